"""NS4xx: a gradient that is not finite although the forward pass is."""

from __future__ import annotations

from nanscan.why.rule import Evidence, Rule, ops
from nanscan.why.rules.overflow import overflow_cause
from nanscan.why.situation import Arg, Situation, bare
from nanscan.why.words import at_size, infinite, number, zero

# Ops whose slope is infinite somewhere: what a branch that was not chosen can do harm through.
_STEEP = ops(
    "SqrtBackward PowBackward LogBackward Log2Backward Log10Backward Log1PBackward AcosBackward AsinBackward "
    "AcoshBackward AtanhBackward DivBackward ReciprocalBackward RsqrtBackward XlogyBackward Atan2Backward "
    "LinalgVectorNormBackward NormBackward HypotBackward AngleBackward SpecialEntrBackward ErfinvBackward "
    "LogitBackward"
)
_CHOICES = ops("where masked_fill index index_select masked_select select masked_scatter nan_to_num")
_NORMS = ops(
    "LinalgVectorNormBackward NormBackward DistBackward CdistBackward EuclideanDistBackward "
    "PairwiseDistanceBackward RenormBackward LinalgMatrixNormBackward HypotBackward"
)
_ARCS = ops("AcosBackward AsinBackward AcoshBackward")
_SUMS = ops("LogsumexpBackward LogaddexpBackward Logaddexp2Backward LogcumsumexpBackward")
_DECOMPOSITIONS = ops(
    "LinalgSvdBackward LinalgEighBackward LinalgEigBackward LinalgQrBackward SvdBackward EighBackward "
    "LinalgInvExBackward LinalgSolveExBackward LinalgCholeskyExBackward LinalgLstsqBackward TraceBackward "
    "LinalgSlogdetBackward LinalgDetBackward LinalgLuFactorExBackward LinalgLuBackward PinverseBackward"
) - {"TraceBackward"}  # fmt: skip


def _sqrt(s: Situation) -> Evidence | None:
    seen = zero(s.kept("result")) if s.in_node else None
    return (f"sqrt had returned {seen}, and its slope 1 / (2 sqrt(x)) is infinite there",) if seen else None


def _norm(s: Situation) -> Evidence | None:
    if not s.in_node:
        return None
    if s.behind is not None:  # the gradient of the gradient
        seen = zero(s.kept("other", "result")) if bare(s.behind) in _NORMS else None
        return (f"the norm was {seen}, and the gradient of its gradient divides by it",) if seen else None
    seen = zero(s.kept("result", "result0", "norms")) if s.name in _NORMS else None
    if seen is None:
        return None
    order = s.kept("ord", "p")
    which = "the norm" if order is None or order.at is None else f"the {number(order.at)}-norm"
    return (f"{which} was {seen}, and its gradient divides by it",)


def _power(s: Situation) -> Evidence | None:
    power = s.kept("exponent")
    seen = zero(s.kept("self")) if s.in_node else None
    if power is None or seen is None:
        return None
    exponent = power.at
    if exponent is None:  # a tensor of powers
        low = power.seen.min if power.seen is not None else 1.0
        return (f"{seen} was raised to powers down to {number(low)}",) if low < 1 else None
    return (f"{seen} was raised to the power {number(exponent)}",) if 0 <= exponent < 1 else None


def _arc(s: Situation) -> Evidence | None:
    seen = at_size(s.kept("self"), 1.0) if s.in_node else None
    return (
        (f"{s.name.removesuffix('Backward').lower()} was given {seen}, where its slope is infinite",) if seen else None
    )


def _x_log_x(s: Situation) -> Evidence | None:
    if not s.in_node:
        return None
    seen = zero(s.kept("other" if s.name == "XlogyBackward" else "self", "target"))
    return (f"the logarithm was taken of {seen}, and the slope of x log x there is -Inf",) if seen else None


def _log_sum(s: Situation) -> Evidence | None:
    if not s.in_node:
        return None
    result, x = s.kept("result"), s.kept("self")
    lowest = any(_all_minus_inf(arg) for arg in (result, x))
    return ("the terms are all -Inf, and its gradient is exp(-Inf - -Inf)",) if lowest else None


def _all_minus_inf(arg: Arg | None) -> bool:
    stats = None if arg is None else arg.seen
    return stats is not None and stats.neginf > 0 and (arg is None or arg.part is None or stats.neginf == stats.numel)


def _degenerate(s: Situation) -> Evidence | None:
    if not s.in_node:
        return None
    values = s.kept("S", "eigenvalues", *(("L",) if "Eig" in s.name else ()))
    stats = None if values is None else values.whole
    if stats is None:
        return ("the matrix is singular, or two of its values coincide",)
    what = "singular values" if "Svd" in s.name else "eigenvalues"
    if stats.min == stats.max:
        return (f"all {stats.numel} {what} are {number(stats.min)}, and the gradient divides by their differences",)
    return (f"the {stats.numel} {what} go from {number(stats.min)} to {number(stats.max)}: two coincide, or one is 0",)


def _absolute(s: Situation) -> Evidence | None:
    x = s.kept("self")
    stats = None if x is None else x.seen
    if not s.in_node or stats is None or not stats.dtype.startswith("complex"):
        return None
    return (f"|z| of a complex number whose parts are at most {number(stats.absmax)}",)


def _branch(s: Situation) -> Evidence | None:
    if s.trap and _CHOICES.intersection(bare(op) for op in s.went):
        return ("its forward value was selected away, yet its backward ran: torch.where stops values, not gradients",)
    grad = s.kept("grad")
    if s.in_node and s.name in _STEEP and s.nan and grad is not None and grad.at == 0:
        return (
            "the gradient that came in is 0 there, as torch.where, relu or a mask sends it into what it did not choose",
        )
    return None


def _zero_times_inf(s: Situation) -> Evidence | None:
    if not s.in_node or not s.nan:
        return None
    grad = s.kept("grad")
    for name, arg in s.saved.items():
        if name != "grad" and (seen := infinite(arg)) and (grad is None or zero(grad)):
            return (f"the gradient that came in is 0, and the saved {name} is {seen}",)
    return None


def _steep(s: Situation) -> Evidence | None:
    if not s.in_node or not s.inf or s.nan or not s.clean or not set(s.saved) - {"grad"}:
        return None
    sizes = [(name, arg.seen) for name, arg in s.saved.items()]
    known = [(name, stats) for name, stats in sizes if stats is not None and stats.absmax == stats.absmax]
    if not known or any(stats.nonfinite for _, stats in known):
        return None
    shown = ", ".join(f"{name} {number(stats.absmax)}" for name, stats in known[:3])
    return (f"all it multiplies is finite, max|x|: {shown}",)


RULES = (
    Rule(
        id="NS401",
        cause="sqrt gradient at zero",
        ops=ops("SqrtBackward"),
        when=_sqrt,
        why="The slope of sqrt at 0 is infinite. The forward value 0 is right, so nothing is seen until backward; "
        "a gradient of 0 from above gives 0 * Inf = NaN.",
        remedy="torch.sqrt(x + eps), or sqrt of x.clamp_min(eps)",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    x.sqrt().sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS402",
        cause="norm gradient at zero",
        ops=_NORMS | {"DivBackward", "ReciprocalBackward", "RsqrtBackward"},
        rank=55,
        when=_norm,
        why="The gradient of a norm divides by the norm. At the zero vector that is 0 / 0; PyTorch masks it for "
        "the usual norms, not for all of them and not in what follows.",
        remedy="(x.square().sum(-1) + eps).sqrt(), or leave zero vectors out",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.zeros(3, requires_grad=True)
    torch.hypot(x, torch.zeros(3)).sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS403",
        cause="power gradient at zero",
        ops=ops("PowBackward FloatPowerBackward"),
        when=_power,
        why="The slope of x ** p is p * x ** (p - 1), which is infinite at 0 for p below 1. A focal loss with "
        "gamma below 1, a learnable pooling exponent and a gamma correction all get there.",
        remedy="x.clamp_min(eps) ** p",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    (x**0.7).sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS404",
        cause="acos gradient at 1",
        ops=_ARCS,
        when=_arc,
        why="The slope of acos and asin is 1 / sqrt(1 - x^2), infinite at 1 and at -1 (that of acosh at 1). "
        "Clamping to exactly 1 keeps the value right and the gradient infinite.",
        remedy="torch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6))",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    cosine = torch.tensor([0.5, 1.0], requires_grad=True)
    torch.acos(cosine).sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS405",
        cause="gradient of x log x at zero",
        ops=ops("XlogyBackward SpecialXlogyBackward SpecialEntrBackward KlDivBackward"),
        when=_x_log_x,
        why="x log x goes to 0 as x does, and xlogy returns that 0. Its slope log(x) + 1 goes to -Inf, so a "
        "probability of exactly 0 that needs a gradient makes a bad one.",
        remedy="p.clamp_min(eps) before xlogy or kl_div, or log-probabilities (log_target=True)",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    p = torch.tensor([0.0, 1.0], requires_grad=True)
    torch.xlogy(p, p).sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS406",
        cause="gradient of logsumexp over only -inf",
        ops=_SUMS,
        when=_log_sum,
        why="The gradient of logsumexp is a softmax of its terms. Where all of them are -Inf the sum is -Inf, as "
        "it should, and the softmax is exp(-Inf - -Inf) = NaN.",
        remedy="use a large negative number instead of -inf, or leave such rows out",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    scores = torch.tensor([0.0, 1.0], requires_grad=True)
    masked = scores + torch.zeros(2).masked_fill(torch.tensor([True, True]), float("-inf"))
    torch.logsumexp(masked, 0).exp().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS407",
        cause="gradient of a degenerate decomposition",
        ops=_DECOMPOSITIONS,
        when=_degenerate,
        why="The gradient of svd, eigh and their kin divides by the differences of singular values or "
        "eigenvalues. Equal ones (an identity, a symmetric start, a rank below full) give 1 / 0.",
        remedy="add a little noise or a distinct diagonal, or use svdvals / eigvalsh only",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    a = torch.eye(3, requires_grad=True)
    _, vectors = torch.linalg.eigh(a)
    (vectors * torch.arange(9.0).reshape(3, 3)).sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS408",
        cause="gradient of |z| near zero",
        ops=ops("AbsBackward SgnBackward"),
        when=_absolute,
        why="The gradient of |z| is z / |z|. For a complex number so small that |z| underflows the quotient is 0 "
        "/ 0 or overflows, although |z| itself is fine.",
        remedy="(z.real.square() + z.imag.square() + eps).sqrt()",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    z = torch.tensor([1e-45 + 1e-45j, 1 + 1j], requires_grad=True)
    z.abs().sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS409",
        cause="torch.where hides a bad branch",
        when=_branch,
        companion=True,
        rank=80,
        why="torch.where and masks choose between values that were both computed, and send a gradient of 0 into "
        "the one that was not chosen. If that branch has an infinite slope, 0 * Inf is NaN.",
        remedy="choose the input, not the result: f(torch.where(ok, x, 1.0)), then torch.where again",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    torch.where(x > 0, x.sqrt(), 0.0).sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS410",
        cause="0 * inf in backward",
        when=_zero_times_inf,
        rank=30,
        why="A backward formula multiplied a gradient of 0 by a value that its forward pass had left infinite. "
        "The value was masked or divided away in the forward pass, so the loss is finite.",
        remedy="find the op whose forward result was Inf (print(scanner.events)) and clamp its input",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    weight = torch.tensor([float("inf"), 1.0])
    torch.where(torch.tensor([False, True]), x * weight, 0.0).sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS411",
        cause="float32 overflow",
        cause_of=overflow_cause,
        when=_steep,
        rank=20,
        why="The gradient formula multiplied or divided finite numbers and left the range of the element type. A "
        "divisor close to 0, a steep function, or gradients that had grown before do that.",
        remedy="bound the slope: eps in divisors, clip what comes in, and look at the growth before",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.tensor([1e-30], requires_grad=True)
    (1.0 / x).mul(1e-10).backward()
print(scanner.report())
""",
    ),
)
