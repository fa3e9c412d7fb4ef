"""NS2xx: a result that does not fit its element type."""

from __future__ import annotations

import math

from nanscan.record import DType
from nanscan.why.rule import Evidence, Predicate, Rule, ops
from nanscan.why.situation import Situation
from nanscan.why.words import NARROW, above, beyond, limit_of, number, overwritten

_EXPONENTIALS = ops("exp exp2 expm1 cosh sinh _foreach_exp _foreach_expm1")
_BASES = {"exp2": 2.0}
# Ops that multiply many numbers: moderate ones are enough.
_STEEP = ops("prod cumprod linalg_matrix_exp matrix_exp pow linalg_vector_norm norm linalg_matrix_power")
# Ops that can make Inf or NaN out of moderate numbers: where one of these did, overflow is not the explanation.
_WITH_POLES = ops(
    "div true_divide divide floor_divide remainder fmod addcdiv reciprocal rsqrt log log2 log10 log1p logit "
    "xlogy tan atanh erfinv lgamma digamma polygamma pow float_power acos asin acosh sqrt _softmax _log_softmax "
    "softmax log_softmax logsumexp nll_loss_forward nll_loss2d_forward _ctc_loss ctc_loss _cudnn_ctc_loss exp "
    "exp2 expm1 cosh sinh _linalg_slogdet linalg_slogdet logdet linalg_inv_ex linalg_solve_ex _linalg_solve_ex "
    "special_ndtri _foreach_div _foreach_addcdiv _foreach_reciprocal _foreach_pow _weight_norm_interface "
    "special_xlogy special_erfinv special_zeta mvlgamma atan2 angle masked_fill full fill max amax min amin "
    "scatter_reduce index_reduce special_psi special_gammaln _foreach_rsqrt _foreach_log _foreach_log10 "
    "_foreach_log1p _foreach_log2 _foreach_exp _foreach_expm1 bernoulli multinomial where special_logit "
    "grid_sampler_2d"
)
_NAMED = {
    DType.F16: "fp16 overflow",
    DType.F64: "float64 overflow",
    DType.C128: "float64 overflow",
    DType.BF16: "bf16 overflow",
}
OVERFLOWS = ("float32 overflow", "fp8 overflow", *dict.fromkeys(_NAMED.values()))


def overflow_cause(s: Situation) -> str:
    """The name of an overflow of the result's element type."""
    return "fp8 overflow" if s.dtype.torch_name.startswith("float8") else _NAMED.get(s.dtype, "float32 overflow")


def _exp(s: Situation) -> Evidence | None:
    limit = s.dtype.max_finite
    if math.isnan(limit) or not s.inf or s.in_node:
        return None
    x = s.arg("self")
    edge = math.log(limit) / math.log(_BASES.get(s.name, math.e))
    if s.name == "pow":  # 2 ** x
        base, x = s.arg("self"), s.arg("exponent")
        if base is None or base.value is None or not isinstance(base.value, float) or base.value <= 1:
            return None
        edge = math.log(limit) / math.log(base.value)
    seen = beyond(x, edge - 1) if s.name in ("cosh", "sinh") else above(x, edge - 1)
    seen = seen or overwritten(s, x, f"more than {edge:.4g}")
    return (f"{s.name} was given {seen}, and {s.dtype.torch_name} ends at {s.name}({edge:.4g})",) if seen else None


def _fits_arithmetic(s: Situation) -> bool:
    """Inf out of finite numbers, by an op of PyTorch's that has no pole: only overflow does that."""
    known = s.op is not None and (s.inner or s.op).startswith(("aten::", "prims::"))
    return known and s.role == "origin" and s.clean and s.name not in _WITH_POLES and not s.constant


def grew_out(s: Situation) -> str | None:
    """The numbers behind an overflow; None where they are too small for one."""
    dtype, limit = s.dtype, s.dtype.max_finite
    if math.isnan(limit):
        return None
    seen = [(name, arg.seen) for name, arg in s.args.items()]
    known = [(name, stats) for name, stats in seen if stats is not None and stats.finite]
    if not known:
        known = [(f"input {i}", stats) for i, stats in enumerate(s.inputs) if stats.finite]
    logs = sorted((math.log(max(stats.absmax, 1e-300)) for _, stats in known), reverse=True)
    # A generous bound: the two largest factors, squared once more, times the number of terms.
    terms = max((stats.numel for _, stats in known), default=1)
    if (
        s.name not in _STEEP
        and logs
        and 2 * sum(max(x, 0.0) for x in logs[:2]) + math.log(max(terms, 1)) + 1 < math.log(limit)
    ):
        return None
    shown = ", ".join(f"{name} {number(stats.absmax)}" for name, stats in known[:3])
    finite = "" if s.out is None or not s.out.finite else f"; the rest of the result goes up to {number(s.out.absmax)}"
    return f"{limit_of(dtype)}, and max|x| of what {s.name} read is: {shown}{finite}" if shown else None


def in_half(predicate: Predicate) -> Predicate:
    """The same, asked only where the result is float16."""
    return lambda s: predicate(s) if s.dtype is DType.F16 else None


def in_wide(predicate: Predicate) -> Predicate:
    """The same, asked only where the result has the range of float32 or more."""
    return lambda s: None if s.dtype in NARROW else predicate(s)


def _grew(s: Situation) -> Evidence | None:
    if s.in_node or not s.inf or not _fits_arithmetic(s):
        return None
    seen = grew_out(s)
    return (seen,) if seen else None


def _half(s: Situation) -> Evidence | None:
    return _by_headroom(s) if s.op is None else in_half(_grew)(s)


def _by_headroom(s: Situation) -> Evidence | None:
    """At module level no op is known: what is left of the result has to be near the limit."""
    if s.out is None or s.dtype not in NARROW or not s.inf or s.nan or not s.clean or s.out.finite == 0:
        return None
    part = s.out.absmax / s.dtype.max_finite
    return (
        (f"{limit_of(s.dtype)}, and the rest of the result goes up to {number(s.out.absmax)}",)
        if part > 1 / 16
        else None
    )


def _constant(s: Situation) -> Evidence | None:
    limit = s.dtype.max_finite
    for arg in s.args.values():
        if isinstance(arg.value, float) and limit < abs(arg.value) < math.inf and s.inf and s.dtype in NARROW:
            return (f"the number {number(arg.value)} does not fit: {limit_of(s.dtype)}",)
    return None


def _eighth(s: Situation) -> Evidence | None:
    if not s.dtype.torch_name.startswith("float8") or not s.clean:
        return None
    largest = s.largest or 0.0
    return (f"{limit_of(s.dtype)}, and it was given {number(largest)}",) if largest > s.dtype.max_finite else None


RULES = (
    Rule(
        id="NS201",
        cause="exp overflow",
        ops=_EXPONENTIALS | {"pow"},
        when=_exp,
        why="exp leaves float32 (and bfloat16) beyond 88.7 and float16 beyond 11.1. A log-variance, a logit or a "
        "score that no layer bounds gets there in one bad batch.",
        remedy="bound the argument: x.clamp(max=20), F.softplus, log_softmax, or subtract the maximum",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    log_variance = torch.tensor([0.5, 120.0])
    nanscan.check(log_variance.exp().mean(), "variance")
print(scanner.report())
""",
    ),
    Rule(
        id="NS202",
        cause="fp16 overflow",
        when=_half,
        rank=30,
        why="float16 ends at 65504. Products and sums that are ordinary in float32 leave it: activations of a "
        "feed-forward layer, a sum over an image, a convolution of large weights.",
        remedy="run this op in float32 or bfloat16: with torch.autocast(device, enabled=False)",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    pixels = torch.full((300, 300), 1.0, dtype=torch.float16)
    nanscan.check(pixels.sum(), "area")
print(scanner.report())
""",
    ),
    Rule(
        id="NS203",
        cause="float32 overflow",
        cause_of=overflow_cause,
        when=in_wide(_grew),
        rank=30,
        why="The result does not fit: float32 and bfloat16 end at 3.4e38. Finite numbers of such a size are "
        "mostly the end of a growth that began earlier; the history shows where.",
        remedy="look at the growth before it: lower lr, clip_grad_norm_, normalise the inputs",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.full((2, 2), 1e25)
    nanscan.check((x @ x).sum(), "energy")
print(scanner.report())
""",
    ),
    Rule(
        id="NS204",
        cause="fp16 overflow",
        when=_constant,
        rank=60,
        why="A Python number that is harmless in float32 does not fit float16: a mask of -1e9 becomes -Inf. The "
        "code was written for float32 and runs under another type now.",
        remedy="torch.finfo(x.dtype).min instead of -1e9, or add the mask in float32",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    scores = torch.zeros(2, 3, dtype=torch.float16)
    nanscan.check(scores + -1e9, "masked scores")
print(scanner.report())
""",
    ),
    Rule(
        id="NS209",
        cause="fp8 overflow",
        when=_eighth,
        rank=60,
        why="The 8-bit types end at 448 (e4m3fn) or 57344 (e5m2). A cast beyond that gives Inf or NaN, or is cut "
        "off, depending on the type and the version, so tensors have to be scaled before.",
        remedy="divide by x.abs().amax() / torch.finfo(dtype).max before the cast, and keep the scale",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.tensor([1.0, 100000.0])
    nanscan.check(x.to(torch.float8_e5m2), "quantised")
print(scanner.report())
""",
    ),
)
