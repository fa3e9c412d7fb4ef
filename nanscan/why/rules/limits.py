"""NS2xx: powers, quotients and sums of gradients that do not fit their element type."""

from __future__ import annotations

from nanscan.why.rule import Evidence, Rule, ops
from nanscan.why.rules.overflow import grew_out, in_half, in_wide, overflow_cause
from nanscan.why.situation import Situation
from nanscan.why.words import limit_of, number


def _power(s: Situation) -> Evidence | None:
    """pow has a pole at 0, for negative exponents only."""
    power = s.arg("exponent")
    if s.in_node or not s.inf or not s.clean or power is None or power.at is None or power.at < 1:
        return None
    seen = grew_out(s)
    return (f"{seen}, to the power {number(power.at)}",) if seen else None


_INVERSES = ops("reciprocal rsqrt pow")


def _inverse(s: Situation) -> Evidence | None:
    """1 / x, or x to a negative power, of something that is small and not 0."""
    x, power = s.arg("self"), s.arg("exponent")
    if s.in_node or not s.inf or not s.clean or x is None or not x.at:
        return None
    if s.name == "pow":
        if power is None or power.at is None or power.at >= 0:
            return None
        return (f"{number(x.at)} to the power {number(power.at)} does not fit: {limit_of(s.dtype)}",)
    return (f"{s.name} of {number(x.at)} does not fit: {limit_of(s.dtype)}",)


def _quotient(s: Situation) -> Evidence | None:
    if s.name in _INVERSES:
        return _inverse(s)
    divisor, top = s.arg("other"), s.arg("self")
    if s.in_node or not s.inf or not s.clean or divisor is None or not divisor.at or top is None or top.at is None:
        return None
    return (f"{number(top.at)} / {number(divisor.at)} does not fit: {limit_of(s.dtype)}",)


def _sum(s: Situation) -> Evidence | None:
    if not s.inf:
        return None
    finite = "" if s.out is None or not s.out.finite else f"; the rest of the sum goes up to {number(s.out.absmax)}"
    return (f"{limit_of(s.dtype)}, and the gradients that arrived did not pass it one by one{finite}",)


RULES = (
    Rule(
        id="NS205",
        cause="fp16 overflow",
        ops=ops("pow"),
        when=in_half(_power),
        why="A power of a moderate number leaves float16, which ends at 65504: 256 squared is enough. Variances "
        "and squared distances belong in float32.",
        remedy="x.float() ** 2, and back with .to(x.dtype) after the sum or mean",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.tensor([3.0, 300.0], dtype=torch.float16)
    nanscan.check((x**2).mean(), "mean square")
print(scanner.report())
""",
    ),
    Rule(
        id="NS206",
        cause="float32 overflow",
        cause_of=overflow_cause,
        ops=ops("pow"),
        when=in_wide(_power),
        why="A power of a large number leaves float32, which ends at 3.4e38: 1e20 squared is enough. The base has "
        "mostly grown before.",
        remedy="bound the base, or compute with its logarithm",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    x = torch.tensor([3.0, 1e20])
    nanscan.check((x**2).mean(), "mean square")
print(scanner.report())
""",
    ),
    Rule(
        id="NS207",
        cause="fp16 overflow",
        ops=ops("div true_divide") | _INVERSES,
        when=in_half(_quotient),
        why="The divisor is not 0, and so small that the quotient leaves float16, which ends at 65504. An eps of "
        "1e-6 is too small a guard in this type.",
        remedy="divide in float32, or clamp the divisor at 1e-3 and more",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    loss = torch.tensor([1.0, 8.0], dtype=torch.float16)
    count = torch.tensor([1.0, 1e-6], dtype=torch.float16)
    nanscan.check(loss / count, "per item")
print(scanner.report())
""",
    ),
    Rule(
        id="NS208",
        cause="float32 overflow",
        cause_of=overflow_cause,
        ops=ops("div true_divide") | _INVERSES,
        when=in_wide(_quotient),
        why="The divisor is not 0, and so small that the quotient leaves float32, which ends at 3.4e38. It is "
        "mostly something that should have been 0 or should have had an eps added.",
        remedy="x / (y + eps), with an eps of the size that y normally has times 1e-6",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    nanscan.check(torch.tensor([1.0, 8.0]) / torch.tensor([1.0, 1e-40]), "per item")
print(scanner.report())
""",
    ),
    Rule(
        id="NS210",
        cause="fp16 overflow",
        ops=ops("AccumulateGrad"),
        when=in_half(_sum),
        why="Every gradient that arrived was finite and their sum in .grad is not: float16 ends at 65504. Several "
        "backward passes without zero_grad, or a shared parameter, add up.",
        remedy="keep the parameters (and so .grad) in float32, or divide the loss by the number of passes",
        example="""\
import torch
import nanscan

weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float16))
model = torch.nn.Module()
model.weight = weight
with nanscan.enable(model, level="op") as scanner:
    for _ in range(2):
        (weight * 40000.0).sum().backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS211",
        cause="float32 overflow",
        cause_of=overflow_cause,
        ops=ops("AccumulateGrad"),
        when=in_wide(_sum),
        why="Every gradient that arrived was finite and their sum in .grad is not. Numbers near 3.4e38 are the "
        "end of a growth that began earlier.",
        remedy="look at the growth before it: lower lr, clip_grad_norm_, zero_grad in every step",
        example="""\
import torch
import nanscan

weight = torch.nn.Parameter(torch.zeros(2))
model = torch.nn.Module()
model.weight = weight
with nanscan.enable(model, level="op") as scanner:
    for _ in range(2):
        (weight * 2e38).sum().backward()
print(scanner.report())
""",
    ),
)
