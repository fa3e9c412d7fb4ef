"""NS6xx: values that no op made, and ops whose inside nobody sees."""

from __future__ import annotations

from nanscan.why.rule import Evidence, Rule
from nanscan.why.situation import Situation
from nanscan.why.words import NARROW, number

_GARBAGE = 1e30  # no initialisation gives numbers like that


def _uninitialised(s: Situation) -> Evidence | None:
    if s.role != "uninitialised":
        return None
    return (f"{s.op or 'a module'} was the first to read memory that only an allocation had returned",)


def _never_filled(s: Situation) -> Evidence | None:
    if s.role != "external" or s.tensor is None or s.last_clean is not None or s.out is None or s.others_bad:
        return None
    if s.out.finite == 0 and s.out.numel > 1:
        return (f"all {s.out.numel} elements of {s.tensor} were bad from the start, and no other parameter was",)
    raw = s.dtype not in NARROW and s.out.subnormal * 20 > s.out.numel
    if s.dtype not in NARROW and (s.out.absmax > _GARBAGE or raw):
        return (f"what is finite of {s.tensor} goes up to {number(s.out.absmax)}, {s.out.subnormal} of it subnormal",)
    return None


def _written(s: Situation) -> Evidence | None:
    if s.role != "external" or s.last_clean is None:
        return None
    return ("numpy, ctypes or an extension that shares this memory wrote there; this op only reads it",)


def _data(s: Situation) -> Evidence | None:
    if s.role != "external" or s.last_clean is not None or s.tensor is not None or s.compiled or s.out is None:
        return None
    return (f"{s.out.nonfinite} of {s.out.numel} values were not finite when they were handed in",)


def _parameter(s: Situation) -> Evidence | None:
    if s.role != "external" or s.last_clean is not None or s.tensor is None or s.out is None or _never_filled(s):
        return None
    return (f"{s.tensor} holds {s.out.nonfinite} non-finite values of {s.out.numel}, and no update made them",)


def _custom(s: Situation) -> Evidence | None:
    name = s.inner or s.op
    own = (
        name is not None
        and not s.in_node
        and "::" in name
        and not name.startswith(("aten::", "prims::", "prim::", "torch::"))
    )
    if not own or s.role != "origin" or not s.clean:
        return None
    given = "" if s.largest is None else f", max|x| {number(s.largest)}"
    return (f"{name} was given finite values{given}, and PyTorch sees nothing of what it does inside",)


def _lost(s: Situation) -> Evidence | None:
    if not s.lost or s.escaped or s.trap or "+inf" not in s.kinds or s.phase == "optimizer":
        return None
    return ("arithmetic turned its +Inf into a finite number, so no NaN will ever show it",)


RULES = (
    Rule(
        id="NS601",
        cause="uninitialised memory",
        when=_uninitialised,
        rank=90,
        why="torch.empty and its kin return memory as they found it. What is read before it is filled is whatever "
        "was there: finite today, NaN tomorrow.",
        remedy="torch.zeros instead of torch.empty, or call reset_parameters()",
        example="""\
import torch
import nanscan

torch.use_deterministic_algorithms(True)  # fills torch.empty with NaN: this shows every time
with nanscan.trace() as scanner:
    cache = torch.empty(3)
    nanscan.check(cache * 2.0, "from the cache")
torch.use_deterministic_algorithms(False)
print(scanner.report())
""",
    ),
    Rule(
        id="NS607",
        cause="uninitialised memory",
        when=_never_filled,
        rank=88,
        why="A parameter was bad before anything ran, all of it or with values as only raw memory has them, while "
        "the others were fine. It was made by torch.Tensor(n) or torch.empty, and nobody filled it.",
        remedy="initialise it where it is made: nn.init.normal_(self.weight), or torch.zeros",
        example="""\
import torch
import nanscan

torch.use_deterministic_algorithms(True)  # fills torch.empty with NaN: this shows every time
model = torch.nn.Linear(2, 1)
model.scale = torch.nn.Parameter(torch.empty(2))
torch.use_deterministic_algorithms(False)
model.register_forward_pre_hook(lambda module, args: (args[0] * module.scale,))
with nanscan.enable(model, level="op") as scanner:
    model(torch.ones(1, 2))
print(scanner.report())
""",
    ),
    Rule(
        id="NS602",
        cause="memory written outside the dispatcher",
        when=_written,
        rank=90,
        why="The memory was finite when it was last seen and is not now, and no op that PyTorch dispatched wrote "
        "there. A numpy array that shares it, ctypes, .data_ptr() in an extension, or another process did.",
        remedy="find what shares it: .numpy(), from_numpy, ctypes; nanscan.extension(f) names f",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    buffer = torch.ones(3)
    total = buffer * 2.0
    buffer.numpy()[1] = float("nan")
    nanscan.check(buffer * 2.0, "from the buffer")
print(scanner.report())
""",
    ),
    Rule(
        id="NS603",
        cause="bad input data",
        when=_data,
        rank=85,
        why="The tensor held a NaN or Inf when the first op read it. It came from outside: a missing value in a "
        "table, a division in the loader, a corrupt file.",
        remedy="assert torch.isfinite(x).all() in the dataset; repair or drop such samples",
        example="""\
import numpy
import torch
import nanscan

with nanscan.trace() as scanner:
    table = torch.from_numpy(numpy.array([[1.0, float("nan")], [2.0, 3.0]]))
    nanscan.check(table.mean(), "mean")
print(scanner.report())
""",
    ),
    Rule(
        id="NS604",
        cause="bad parameter",
        when=_parameter,
        rank=85,
        why="A parameter or buffer was bad before anything that was watched ran. It was loaded so from a "
        "checkpoint, or initialised so.",
        remedy="for n, p in model.named_parameters(): print(n, p.isfinite().all()), then reload",
        example="""\
import torch
import nanscan

layer = torch.nn.Linear(2, 1)
layer.weight.data.numpy()[0, 1] = float("inf")  # as a damaged checkpoint would leave it
with nanscan.enable(layer, level="op") as scanner:
    layer(torch.ones(1, 2))
print(scanner.report())
""",
    ),
    Rule(
        id="NS605",
        cause="custom kernel",
        when=_custom,
        rank=20,
        why="An op that is not PyTorch's own made the value out of finite ones. What it does inside is not "
        "visible, so only its arguments can be given.",
        remedy="call the op alone with these arguments, and compare with a plain PyTorch version",
        example="""\
import torch
import nanscan

library = torch.library.Library("nanscan_example", "DEF")
library.define("normalise(Tensor x) -> Tensor")
library.impl("normalise", lambda x: torch.from_numpy(x.numpy() / x.numpy().sum()), "CPU")
with nanscan.trace() as scanner:
    nanscan.check(torch.ops.nanscan_example.normalise(torch.tensor([1.0, -1.0])), "weights")
library._destroy()
print(scanner.report())
""",
    ),
    Rule(
        id="NS606",
        cause="absorbed overflow",
        when=_lost,
        companion=True,
        why="An Inf that is divided by, or goes through rsqrt or tanh, becomes a finite number again: 0, or 1. "
        "Training goes on with a wrong value, and nothing ever turns NaN.",
        remedy="bound the value where it overflowed; the loss will not tell you",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    energy = torch.tensor([1.0, 200.0]).exp()
    scale = 1.0 / energy
    nanscan.check(scale, "scale")
print(scanner.report())
""",
    ),
)
