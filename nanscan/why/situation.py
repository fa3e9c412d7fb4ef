"""What a rule may look at: one call that made a bad value, or that read one, as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from nanscan.record import DType, TensorStats

Number = float | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument of an op by its name in the op's schema, or a value that an autograd node had saved.

    Args:
        value: a Python number, or several (``dim=[0, 1]``); None for a tensor.
        whole: statistics of the tensor.
        part: statistics of those of its elements that the first bad element of the result was computed from: one
            element for an elementwise op, a row for a reduction. None where that is not known.
        shape: of the tensor, where it is on record.
    """

    name: str
    value: Number | None = None
    whole: TensorStats | None = None
    part: TensorStats | None = None
    shape: tuple[int, ...] | None = None

    @property
    def at(self) -> float | None:
        """The one number behind the first bad element; None where that is not known or were several (or complex)."""
        if self.value is not None:
            return self.value if isinstance(self.value, float) else None
        if self.part is None or self.part.numel != 1 or self.part.dtype.startswith("complex"):
            return None
        if self.part.nan:
            return math.nan
        if self.part.posinf or self.part.neginf:
            return math.inf if self.part.posinf else -math.inf
        return self.part.min

    @property
    def seen(self) -> TensorStats | None:
        """The closest look there is: the part, else the whole tensor."""
        return self.part if self.part is not None else self.whole


@dataclass(frozen=True, slots=True)
class Past:
    """max|x| of what the same op at the same place made in earlier steps, oldest first, at most 8."""

    steps: tuple[int, ...] = ()
    absmax: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    """One birth of a bad value. Fields that are not known are None or empty: a rule that needs them does not apply.

    Args:
        op: "aten::log", "mylib::f", "SqrtBackward0"; None at module level.
        inner: the op inside a Python autograd.Function's backward that made it, if it was one.
        behind: the node whose own backward this node belongs to (double backward), if it was one.
        phase, role: as in Event. kinds: "nan", "+inf", "-inf": what is new in the result.
        out: statistics of the bad result.
        args: arguments of the op (or of `inner`), by name. saved: what an autograd node had kept of its forward.
            "grad" is the gradient that came in.
        inputs: statistics of all that the call read, by ordinal.
        made_of: the births that it goes back to (a NaN out of somebody's Inf), as situations.
        went: bare names of the ops that read the value afterwards, in order.
        lost: whether arithmetic (x / inf) swallowed it, and no selection (where, masked_fill) did.
        given_bad: something it read was bad, also where no statistics are left of it (written in place).
        escaped: the value got out: into a loss, a gradient, the model's output. updating: the call writes a parameter.
        trap: the value was selected away, and came back through the backward of the op that made it.
        scaling: a GradScaler was multiplying the loss. constant: a non-finite Python number was passed.
        tensor: the parameter or buffer it sits in. others_bad: how many other parameters and buffers were bad before
            anything ran. last_clean: where the same memory was last seen finite.
        compiled: whether code made by torch.compile, in which no op is seen, may have run.
    """

    op: str | None
    phase: str
    role: str
    kinds: tuple[str, ...]
    inner: str | None = None
    behind: str | None = None
    out: TensorStats | None = None
    args: Mapping[str, Arg] = field(default_factory=dict)
    saved: Mapping[str, Arg] = field(default_factory=dict)
    inputs: tuple[TensorStats, ...] = ()
    made_of: tuple[Situation, ...] = ()
    went: tuple[str, ...] = ()
    lost: bool = False
    trap: bool = False
    given_bad: bool = False
    escaped: bool = False
    updating: bool = False
    scaling: bool = False
    constant: bool = False
    tensor: str | None = None
    others_bad: int = 0
    last_clean: str | None = None
    compiled: bool = False
    past: Past = Past()

    @property
    def name(self) -> str:
        """``log`` for ``aten::log_``, ``LogBackward`` for ``LogBackward0``; of the inner op where one is known."""
        return bare(self.inner or self.op or "the op")

    @property
    def clean(self) -> bool:
        """Whether everything it read was finite, as far as that is on record."""
        return not self.given_bad and all(not stats.nonfinite for stats in self.inputs) and not self.made_of

    @property
    def largest(self) -> float | None:
        """max|x| of all that is finite in what it read; None where nothing is, or nothing is on record."""
        return max((stats.absmax for stats in self.inputs if stats.finite), default=None)

    @property
    def in_node(self) -> bool:
        """Whether an autograd node made it (and not an op that is known inside one)."""
        return self.inner is None and self.phase == "backward" and "::" not in (self.op or "::")

    @property
    def nan(self) -> bool:
        return "nan" in self.kinds

    @property
    def inf(self) -> bool:
        return "+inf" in self.kinds or "-inf" in self.kinds

    @property
    def dtype(self) -> DType:
        """Element type of the result."""
        return DType.UNKNOWN if self.out is None else DType.from_torch_name(self.out.dtype)

    def arg(self, *names: str) -> Arg | None:
        """The first of these arguments that is on record."""
        return next((self.args[name] for name in names if name in self.args), None)

    def kept(self, *names: str) -> Arg | None:
        """The first of these saved values that is on record."""
        return next((self.saved[name] for name in names if name in self.saved), None)


def bare(op: str) -> str:
    """An op's name without its namespace and in-place underscore, a node's without its number."""
    name = op.rpartition("::")[2]
    if (node := name.rstrip("0123456789")).endswith("Backward"):
        return node
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name
