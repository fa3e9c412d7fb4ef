"""NS11x: division by zero, in whatever form it comes."""

from __future__ import annotations

from nanscan.record import DType
from nanscan.why.rule import Evidence, Rule, ops
from nanscan.why.situation import Arg, Situation
from nanscan.why.words import number, overwritten, zero

_QUOTIENTS = ops("div true_divide divide floor_divide remainder fmod _foreach_div addcdiv _foreach_addcdiv")
_INVERSES = ops("reciprocal rsqrt _foreach_reciprocal _foreach_rsqrt")
_NORMALISED = ops(
    "native_layer_norm native_group_norm native_batch_norm layer_norm group_norm batch_norm rms_norm "
    "_fused_rms_norm _native_batch_norm_legit _native_batch_norm_legit_no_training instance_norm"
)
_NODES = ops(
    "DivBackward ReciprocalBackward RsqrtBackward AngleBackward AtanhBackward Atan2Backward "
    "StdBackward StdMeanBackward LogBackward Log2Backward Log10Backward Log1PBackward "
    ""
)


def _divided(s: Situation) -> Evidence | None:
    divisor = s.arg("other", "tensor2", "tensors2")
    if s.in_node or not (seen := zero(divisor)) or (s.updating and s.dtype is DType.F16):
        return None  # an update in float16 has a rule of its own
    top = s.arg("self" if "addcdiv" not in s.name else "tensor1", "tensors1")
    return (_quotient(top, divisor, seen, s),)


def _quotient(top: Arg | None, divisor: Arg | None, seen: str, s: Situation) -> str:
    if top is not None and top.at is not None and divisor is not None and divisor.at is not None:
        if s.name in ("remainder", "fmod", "floor_divide") or not top.at:
            made = "NaN"
        else:
            made = {"+inf": "+Inf", "-inf": "-Inf"}[s.kinds[0]] if len(s.kinds) == 1 and s.inf else "Inf"
        return f"{number(top.at)} / {number(divisor.at)} is {made}"
    what = "the divisor is 0 there" if divisor is not None and divisor.at is not None else f"the divisor holds {seen}"
    return f"{what}, so the result is {'NaN: 0 / 0' if s.nan else 'Inf'}"


def _half(s: Situation) -> Evidence | None:
    """In float16 an eps that was meant to prevent this may have rounded to 0."""
    seen = _inverted(s) if s.name in _INVERSES else _divided(s)
    return (*seen, "in float16 an eps below 3e-08 is 0") if seen and s.dtype is DType.F16 else None


def _inverted(s: Situation) -> Evidence | None:
    if s.in_node or not s.inf:
        return None
    seen = zero(s.arg("self")) or overwritten(s, s.arg("self"), "0, or next to it")
    return (f"{s.name} was given {seen}",) if seen else None


def _negative_power(s: Situation) -> Evidence | None:
    power = s.kept("exponent") if s.in_node else s.arg("exponent")
    base = s.kept("self") if s.in_node else s.arg("self")
    if power is None or power.at is None or power.at >= 0:
        return None
    seen = zero(base) or (overwritten(s, base, "0, or next to it") if s.inf and not s.in_node else None)
    if seen is None:
        return None
    return (f"{seen} was raised to the power {number(power.at)}",)


def _normalised(s: Situation) -> Evidence | None:
    if s.in_node or not s.clean:
        return None
    eps = s.arg("eps", "epsilon")
    if eps is None or eps.at is None:
        return None
    spread = (
        s.arg("running_var") if "no_training" in s.name or s.name == "native_batch_norm" else s.arg("self", "input")
    )
    if (s.largest or 0.0) ** 2 > s.dtype.max_finite:
        return None  # an overflow inside may be behind it
    held = (
        ""
        if spread is None or spread.whole is None
        else f", values from {number(spread.whole.min)} to {number(spread.whole.max)}"
    )
    return (f"eps is {number(eps.at)} and a group has no spread{held}",) if eps.at < 1e-30 else None


def _weight_norm(s: Situation) -> Evidence | None:
    seen = None if s.in_node or not s.nan else zero(s.arg("v"))
    return (f"v holds {seen}, and a row of v has norm 0: 0 / 0",) if seen else None


def _gradient(s: Situation) -> Evidence | None:
    if not s.in_node:
        return None
    name = s.name
    if name == "DivBackward":
        seen = zero(s.kept("other"))
        return (f"the divisor was {seen} in the forward pass, and the gradient divides by it",) if seen else None
    if name in ("ReciprocalBackward", "RsqrtBackward"):
        result = s.kept("result")
        hit = result is not None and (
            result.at in (float("inf"), -float("inf")) or bool(result.seen and result.seen.posinf)
        )
        return ("its forward result was Inf: it had divided by 0",) if hit else None
    if name.startswith("Log"):
        x = s.kept("self")
        hit = (x is not None and x.at == -1.0) if name == "Log1PBackward" else bool(zero(x))
        return ("the gradient of log at 0 divides by 0",) if hit else None
    if name == "AngleBackward":
        x = s.kept("self")
        stats = None if x is None else x.seen
        return (
            None
            if stats is None
            else (f"angle divides by |z|^2, and the parts of z are at most {number(stats.absmax)}",)
        )
    if name == "AtanhBackward":
        x = s.kept("self")
        return (f"the gradient 1 / (1 - x^2) at x = {number(x.at)}",) if x is not None and x.at in (1.0, -1.0) else None
    if name == "Atan2Backward":
        both = zero(s.kept("self")) and zero(s.kept("other"))
        return ("both arguments of atan2 are 0 there",) if both else None
    if name.startswith("Std"):
        seen = zero(s.kept("result", "result0"))
        return (f"the standard deviation is {seen}, and its gradient divides by it",) if seen else None
    return None


RULES = (
    Rule(
        id="NS111",
        cause="division by zero",
        ops=_QUOTIENTS,
        when=_divided,
        why="A number divided by 0 is Inf, and 0 / 0 is NaN. Divisors become 0 when a mask selects nothing, a box "
        "has no area, a batch has no positive example, or a small number underflows.",
        remedy="x / y.clamp_min(eps), or choose the divisor before: x / torch.where(y == 0, 1, y)",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    overlap, union = torch.tensor([3.0, 0.0]), torch.tensor([4.0, 0.0])
    nanscan.check((overlap / union).mean(), "IoU")
print(scanner.report())
""",
    ),
    Rule(
        id="NS112",
        cause="division by zero",
        ops=_INVERSES,
        when=_inverted,
        why="1 / 0 is Inf, and so is rsqrt(0). The divisor is the argument of the op, often a norm, a degree or a "
        "variance of something that is all zero.",
        remedy="(x + eps).rsqrt(), or x.clamp_min(eps).reciprocal()",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    degree = torch.tensor([2.0, 0.0])
    nanscan.check(degree.rsqrt().sum(), "normalised degree")
print(scanner.report())
""",
    ),
    Rule(
        id="NS117",
        cause="division by zero",
        ops=_QUOTIENTS | _INVERSES,
        when=_half,
        rank=55,
        why="A divisor is 0 in float16, whose smallest number is 6e-08. An eps of 1e-8 or 1e-12, which guards the "
        "division in float32, rounds to 0 there and guards nothing.",
        remedy="an eps of 1e-5 or more in float16, or this computation in float32: x.float()",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.ones(2, 4, dtype=torch.float16)
    variance = (x - x.mean(-1, keepdim=True)).square().mean(-1)
    nanscan.check(torch.rsqrt(variance + 1e-8), "inverse deviation")
print(scanner.report())
""",
    ),
    Rule(
        id="NS113",
        cause="division by zero",
        ops=ops("pow float_power PowBackward"),
        when=_negative_power,
        rank=55,
        why="0 to a negative power is 1 / 0. The base has become exactly 0, often by relu, a mask or underflow.",
        remedy="x.clamp_min(eps) ** p",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    distance = torch.tensor([1.0, 0.0])
    nanscan.check((distance**-2.0).sum(), "energy")
print(scanner.report())
""",
    ),
    Rule(
        id="NS114",
        cause="division by zero",
        ops=_NORMALISED,
        when=_normalised,
        why="A normalisation divides by sqrt(variance + eps). With eps 0 (or one that rounds to 0 in this element "
        "type) a constant row has variance 0 and the quotient is 0 / 0.",
        remedy="give eps at least torch.finfo(x.dtype).eps, or normalise in float32",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    silent = torch.ones(2, 4)
    nanscan.check(torch.nn.functional.layer_norm(silent, (4,), eps=0.0).sum(), "normalised")
print(scanner.report())
""",
    ),
    Rule(
        id="NS115",
        cause="division by zero",
        ops=ops("_weight_norm_interface _weight_norm weight_norm"),
        when=_weight_norm,
        why="weight_norm computes g * v / norm(v). A row of v that is all zero (a pruned or zero-initialised one) "
        "gives 0 / 0.",
        remedy="initialise the layer before weight_norm, or leave zero rows out of it",
        example="""\
import torch
import nanscan

layer = torch.nn.Linear(3, 2)
torch.nn.init.zeros_(layer.weight)
layer = torch.nn.utils.parametrizations.weight_norm(layer)
with nanscan.enable(layer, level="op") as scanner:
    layer(torch.ones(1, 3))
print(scanner.report())
""",
    ),
    Rule(
        id="NS116",
        cause="division by zero",
        ops=_NODES,
        when=_gradient,
        why="The gradient of this op divides by a value of its forward pass that is 0 (or too small). The forward "
        "value may look harmless, or a mask may have hidden it: the gradient does not.",
        remedy="keep the value away from 0 before the op: x.clamp_min(eps), or x + eps",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    z = torch.tensor([1 + 1j, 1e-30 + 1e-30j], requires_grad=True)
    z.angle().sum().backward()
print(scanner.report())
""",
    ),
)
