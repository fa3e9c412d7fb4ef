"""NS1xx: a function that was asked outside its domain."""

from __future__ import annotations

from nanscan.why.rule import Evidence, Rule, ops
from nanscan.why.situation import Situation
from nanscan.why.words import above, at_size, below, beyond, negative, number, overwritten, zero

_LOGS = ops("log log2 log10 log1p xlogy special_xlogy logit special_logit")
_DETERMINANTS = ops("_linalg_slogdet linalg_slogdet slogdet logdet")


def _log_argument(s: Situation) -> tuple[str, float, float | None]:
    """(argument, where the log is -Inf, where it is +Inf)."""
    if s.name in ("xlogy", "special_xlogy"):
        return "other", 0.0, None
    return ("self", -1.0, None) if s.name == "log1p" else ("self", 0.0, 1.0 if "logit" in s.name else None)


def _log_of_zero(s: Situation) -> Evidence | None:
    if s.in_node or not s.inf:
        return None
    if s.name in _DETERMINANTS:
        return ("the determinant is 0, and its log -Inf",) if s.clean else None
    name, low, high = _log_argument(s)
    x = s.arg(name)
    if x is None:
        return None
    for pole in (low, high):
        if pole is not None and x.at == pole:
            return (f"{s.name} was given {number(pole)}, where it is {'-' if pole == low else '+'}Inf",)
    if x.at is None and low == 0 and (seen := zero(x) or overwritten(s, x, "0")):
        return (f"{s.name} was given {seen}, where it is -Inf",)
    return None


def _log_of_negative(s: Situation) -> Evidence | None:
    if s.name == "PowBackward":
        seen = negative(s.kept("self")) if s.nan and s.kept("result") is not None else None
        return (f"the gradient of the exponent takes the log of the base, which is {seen}",) if seen else None
    if s.in_node or not s.nan:
        return None
    name, low, high = _log_argument(s)
    seen = below(s.arg(name), low) or (above(s.arg(name), high) if high is not None else None)
    seen = seen or overwritten(s, s.arg(name), "a negative number")
    return (f"{s.name} was given {seen}, and has no real value there",) if seen else None


def _sqrt_of_negative(s: Situation) -> Evidence | None:
    if s.in_node or not s.nan:
        return None
    if s.name in ("sqrt", "rsqrt"):
        seen = negative(s.arg("self")) or overwritten(s, s.arg("self"), "a negative number")
        return (f"{s.name} was given {seen}",) if seen else None
    variance = s.arg("running_var")
    if variance is not None and (seen := negative(variance)):
        return (f"running_var holds {seen}, and {s.name} takes its square root",)
    return None


def _fractional_power(s: Situation) -> Evidence | None:
    base, power = s.arg("self"), s.arg("exponent")
    if s.in_node:
        base, power = s.kept("self"), s.kept("exponent")
    if not s.nan or power is None or not (seen := negative(base)):
        return None
    exponent = power.at
    if exponent is not None and exponent.is_integer():
        return None
    shown = "powers that are not whole" if exponent is None else f"the power {number(exponent)}"
    return (f"{seen} was raised to {shown}",)


def _arc_outside(s: Situation) -> Evidence | None:
    if s.in_node or not s.nan:
        return None
    seen = beyond(s.arg("self"), 1.0) or overwritten(s, s.arg("self"), "a number beyond 1")
    return (f"{s.name} was given {seen}, and ends at 1",) if seen else None


def _outside(s: Situation) -> Evidence | None:
    x = s.arg("self")
    if s.in_node or not s.nan or x is None:
        return None
    seen = below(x, 1.0) if s.name in ("acosh", "arccosh") else beyond(x, 1.0)
    if s.name in ("sin", "cos", "tan"):
        seen = None if x.at is None or abs(x.at) != float("inf") else number(x.at)
    return (f"{s.name} was given {seen}, and has no real value there",) if seen else None


def _pole(s: Situation) -> Evidence | None:
    x = s.arg("self")
    if s.in_node or not s.inf or x is None:
        return None
    if s.name in ("atanh", "arctanh", "erfinv", "special_erfinv"):
        seen = at_size(x, 1.0)
    elif s.name == "special_ndtri":
        seen = zero(x) or (number(1.0) if x.at == 1.0 else None)
    else:
        at = x.at
        seen = number(at) if at is not None and at <= 0 and at.is_integer() else (zero(x) if at is None else None)
    return (f"{s.name} was given {seen}, where it has a pole",) if seen else None


RULES = (
    Rule(
        id="NS101",
        cause="log of zero",
        ops=_LOGS | _DETERMINANTS,
        when=_log_of_zero,
        why="log(0) is -Inf. A probability, a distance or a determinant that rounds to exactly 0 is enough. The "
        "Inf turns into NaN as soon as it is multiplied by 0 or subtracted from another one.",
        remedy="torch.log(x.clamp_min(torch.finfo(x.dtype).tiny)), or log_softmax for log(softmax)",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    p = torch.tensor([0.2, 0.8, 0.0])
    nanscan.check(torch.log(p).sum(), "log-likelihood")
print(scanner.report())
""",
    ),
    Rule(
        id="NS102",
        cause="log of a negative number",
        ops=_LOGS | {"PowBackward"},
        when=_log_of_negative,
        why="The logarithm has no real value below 0, so PyTorch returns NaN. Mostly the argument should have "
        "been positive and is not by rounding (1 - p with p a little over 1), or a layer without a positive "
        "range feeds it.",
        remedy="make the argument positive first: F.softplus(x), x.clamp_min(eps), or torch.log1p",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    score = torch.tensor([0.3, -0.1])
    nanscan.check(torch.log(score).mean(), "loss")
print(scanner.report())
""",
    ),
    Rule(
        id="NS103",
        cause="sqrt of a negative number",
        ops=ops(
            "sqrt rsqrt native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit "
            "cudnn_batch_norm batch_norm"
        ),
        when=_sqrt_of_negative,
        why="The square root of a negative number is NaN. Variances computed as mean(x^2) - mean(x)^2 fall below "
        "0 by rounding; a running variance can be loaded or averaged into a negative one.",
        remedy="x.clamp_min(0).sqrt(), and variances by torch.var or ((x - mean) ** 2).mean()",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.full((1000,), 100.1)
    variance = (x * x).mean() - x.mean() ** 2 - 1e-3
    nanscan.check(variance.sqrt(), "std")
print(scanner.report())
""",
    ),
    Rule(
        id="NS104",
        cause="fractional power of a negative number",
        ops=ops("pow float_power PowBackward _foreach_pow"),
        when=_fractional_power,
        why="A negative number to a power that is not a whole number is complex, so PyTorch returns NaN. A "
        "learnable exponent leaves the whole numbers in its first update.",
        remedy="x.sign() * x.abs().clamp_min(eps) ** p, or keep x positive",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    contrast = torch.tensor([0.5, -0.2])
    nanscan.check((contrast**2.2).sum(), "gamma")
print(scanner.report())
""",
    ),
    Rule(
        id="NS105",
        cause="acos outside [-1, 1]",
        ops=ops("acos asin arccos arcsin"),
        when=_arc_outside,
        why="acos and asin are defined from -1 to 1, and NaN beyond. A cosine computed as a dot product of "
        "normalised vectors exceeds 1 by rounding.",
        remedy="torch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6)), or torch.atan2 of cross and dot product",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    cosine = torch.tensor([0.9, 1.0000001])
    nanscan.check(torch.acos(cosine).mean(), "angle")
print(scanner.report())
""",
    ),
    Rule(
        id="NS106",
        cause="domain error",
        ops=ops("acosh arccosh atanh arctanh erfinv special_erfinv sin cos tan"),
        when=_outside,
        why="The function has no real value for this argument, so PyTorch returns NaN: acosh below 1, atanh and "
        "erfinv beyond 1, sine and cosine of Inf. Rounding, or a layer without the right range, is mostly "
        "behind it.",
        remedy="clamp the argument into the domain, with a margin for rounding",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    product = torch.tensor([1.5, 0.99999])
    nanscan.check(torch.acosh(product).sum(), "hyperbolic distance")
print(scanner.report())
""",
    ),
    Rule(
        id="NS107",
        cause="pole of a special function",
        ops=ops(
            "atanh arctanh erfinv special_erfinv special_ndtri lgamma digamma polygamma special_gammaln special_psi "
            "special_zeta mvlgamma"
        ),
        when=_pole,
        why="The function grows without bound towards this argument and is Inf there: lgamma at 0 and at negative "
        "whole numbers, digamma at 0, atanh and erfinv at 1. A parameter that underflowed to 0 is the usual "
        "way in.",
        remedy="keep the argument off the pole: x.clamp_min(eps), or clamp(-1 + eps, 1 - eps)",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    concentration = torch.tensor([2.0, 0.0])
    nanscan.check(torch.lgamma(concentration).sum(), "log normaliser")
print(scanner.report())
""",
    ),
)
