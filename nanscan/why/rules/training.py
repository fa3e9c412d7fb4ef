"""NS5xx: what the training loop does to gradients and parameters: optimizer, clipping, loss scale, learning rate."""

from __future__ import annotations

import math
from itertools import pairwise

from nanscan.record import DType
from nanscan.why.rule import Evidence, Rule, ops
from nanscan.why.situation import Situation
from nanscan.why.words import limit_of, number, zero

_UPDATES = ops("addcdiv _foreach_addcdiv div _foreach_div _fused_adam _fused_adamw _fused_adagrad")
_NORMS = ops("_foreach_norm linalg_vector_norm")
_SCALED = 1024.0  # no loss of a mean has a gradient of that size by itself
_TOLERABLE = 2.0**-25  # half of float16's smallest number: what is less rounds to 0


def _eps(s: Situation) -> Evidence | None:
    if s.phase != "optimizer" or not s.updating or s.dtype is not DType.F16 or not s.clean:
        return None
    divisor = s.arg("tensor2", "tensors2", "other", "exp_avg_sqs")
    eps = s.arg("eps")
    seen = zero(divisor)
    if not seen and not (eps is not None and eps.at is not None and eps.at < _TOLERABLE):
        return None
    return (f"the update divides by {seen or 'sqrt(v) + eps'}: eps rounds to 0 below 3e-08 in float16",)


def _rate(s: Situation) -> Evidence | None:
    if s.phase != "optimizer" or not s.updating:
        return None
    for name, arg in s.args.items():
        if isinstance(arg.value, float) and not math.isfinite(arg.value):
            return (f"{s.name} was called with {name} = {number(arg.value)}",)
        if name in ("lr", "value", "alpha", "scalars") and arg.at is not None and not math.isfinite(arg.at):
            return (f"{name} = {number(arg.at)}",)
    return None


def _clipping(s: Situation) -> Evidence | None:
    if s.phase != "optimizer" or not s.inf or s.nan or not s.clean:
        return None
    if s.largest is None:
        return None
    return (f"the gradients are finite, max|g| {number(s.largest)}, and the sum of their squares is not",)


def _scale(s: Situation) -> Evidence | None:
    if s.scaling and s.inf:
        return (f"the loss times its scale does not fit: {limit_of(s.dtype)}",)
    if not s.in_node or s.dtype is not DType.F16 or not s.inf or not s.clean:
        return None
    grad = s.kept("grad")
    came = grad.whole.absmax if grad is not None and grad.whole is not None else None
    if came is None or came < _SCALED:
        return None
    return (f"a float16 gradient left its range: max|g| that came in {number(came)}, {limit_of(s.dtype)}",)


def _grew(s: Situation) -> Evidence | None:
    past = [x for x in s.past.absmax if x > 0]
    if len(past) < 3 or past[-1] < 8 * past[0] or any(b < a for a, b in pairwise(past)):
        return None
    return (f"max|x| here grew {past[-1] / past[0]:.3g}x over the last {len(past)} steps",)


RULES = (
    Rule(
        id="NS501",
        cause="optimizer eps underflow",
        ops=_UPDATES,
        when=_eps,
        rank=70,
        why="Adam divides by sqrt(v) + eps. In float16 the usual eps of 1e-8 rounds to 0, and so does v of a "
        "small gradient: the update is m / 0.",
        remedy="keep the parameters in float32 (autocast), or Adam(..., eps=1e-4) in float16",
        example="""\
import torch
import nanscan

model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float16)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with nanscan.enable(model, level="op") as scanner:
    model(torch.tensor([[1e-4, 1.0]], dtype=torch.float16)).sum().backward()
    optimizer.step()
print(scanner.report())
""",
    ),
    Rule(
        id="NS502",
        cause="bad learning rate",
        when=_rate,
        rank=75,
        why="The update was scaled by a number that is not finite. Schedules divide by their number of warm-up "
        "steps, or by a loss, and return NaN or Inf for some step.",
        remedy="print(optimizer.param_groups[0]['lr']) and repair the schedule",
        example="""\
import torch
import nanscan

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with nanscan.enable(model, level="op") as scanner:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.param_groups[0]["lr"] = float("nan")
    optimizer.step()
print(scanner.report())
""",
    ),
    Rule(
        id="NS503",
        cause="clipping with an infinite norm",
        ops=_NORMS,
        when=_clipping,
        rank=70,
        why="clip_grad_norm_ computes max_norm / total_norm. The squares of large gradients overflow, the norm is "
        "Inf, and every gradient is multiplied by 0: nothing is learned, and an Inf among them becomes NaN.",
        remedy="clip_grad_norm_(..., error_if_nonfinite=True), clip_grad_value_ first, or a smaller loss",
        example="""\
import torch
import nanscan

layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
with nanscan.enable(layer, level="op") as scanner:
    (layer(torch.ones(1, 2)) * 1e30).sum().backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
print(scanner.report())
""",
    ),
    Rule(
        id="NS504",
        cause="loss scale too large",
        when=_scale,
        rank=40,
        why="A loss multiplied by its scale, or a gradient that carries it, left float16. A GradScaler lowers the "
        "scale by itself and skips the step; a fixed scale stays too large.",
        remedy="torch.amp.GradScaler instead of a fixed scale, or a smaller one",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    weight = torch.ones(2, 2, dtype=torch.float16, requires_grad=True)
    loss = (torch.full((1, 2), 100.0, dtype=torch.float16) @ weight).sum() * 1e-2
    (loss.float() * 65536.0).backward()
print(scanner.report())
""",
    ),
    Rule(
        id="NS505",
        cause="lr too high",
        when=_grew,
        companion=True,
        rank=20,
        why="What this op makes has grown step after step before it overflowed. Growth by a factor per step is "
        "mostly a learning rate above the stable one, or missing clipping.",
        remedy="a lower lr, warm-up, or clip_grad_norm_; then look at the op itself",
        example="""\
import torch
import nanscan

weight = torch.nn.Parameter(torch.tensor([1.0]))
optimizer = torch.optim.SGD([weight], lr=2e-6)
with nanscan.trace() as scanner:
    for step in range(60):
        optimizer.zero_grad()
        (weight * 1e3).square().sum().backward()
        optimizer.step()
        scanner.step()
print(scanner.report())
""",
    ),
)
