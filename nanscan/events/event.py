"""Event: one thing that went wrong, in the words of the public API. Plain data, no device, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from nanscan.events.jsonable import encode, number
from nanscan.record import TensorStats

SEVERITIES = ("error", "warning", "info")
NONFINITE_KINDS = ("nan", "inf", "both")
HEALTH_KINDS = ("explosion", "dead", "vanishing", "stale gradient", "zero gradient", "stalled")
ROLES = ("origin", "carrier", "absorbed", "external", "uninitialised")
PHASES = ("data", "forward", "backward", "optimizer")
TENSOR_KINDS = (None, "parameter", "gradient", "buffer", "check", "input")

_VOCABULARY = {
    "severity": SEVERITIES,
    "kind": NONFINITE_KINDS + HEALTH_KINDS,
    "role": ROLES,
    "phase": PHASES,
    "tensor_kind": TENSOR_KINDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One finding, named as precisely as the records allow.

    Args:
        severity: "error" (a non-finite value that escaped), "warning" (growth, health, lost overflow) or "info".
        kind: "nan", "inf" or "both", or one of HEALTH_KINDS.
        role: made here ("origin"), handed on, absorbed, or not made by any watched code ("external", "uninitialised").
        phase: "data", "forward", "backward" or "optimizer".
        module: name in named_modules(), "" for the root, None outside every module.
        op: ATen or custom op, or autograd node; None where only modules are watched.
        source: "file.py:12" of the user's line, if known.
        step, batch: counted from 0; batch counts root forward calls.
        shape, stats, first_bad_index: of the bad tensor; the index is flat and row-major; where an
            op has made NaN of what already held Inf, that of the first NaN.
        inputs: "input 0" -> statistics of what the module or op had read.
        tensor: name of the parameter, buffer, check or input the value sits in. tensor_kind: which of them it is;
            "gradient" is the gradient of the parameter of that name.
        reader: who read the value first; last_clean: where the same memory was last seen without it.
        clean_before: the last module that returned a finite value before it in the same forward, with its max|x|.
        hidden_by: what keeps it out of the framework's own log, and the setting that does.
        chain: names from the origin to where the value escaped. evidence: short factual sentences.
        cause: one of the closed vocabulary, or "unknown". rule: id of the rule that says so ("NS101", see
            ``nanscan explain``), None where none does. others: causes of other rules that apply, most specific first.
        remedy: the next command or call.
        past: max|x| of what was made at the same place in the steps before, oldest first; empty where it is not known.
        seq: order of the records; time: seconds since the epoch.
    """

    severity: str
    kind: str
    phase: str
    step: int
    role: str = "origin"
    module: str | None = None
    module_type: str | None = None
    op: str | None = None
    output_index: int | None = None
    source: str | None = None
    batch: int | None = None
    rank: int = 0
    device: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    stats: TensorStats | None = None
    inputs: Mapping[str, TensorStats] = field(default_factory=dict)
    tensor: str | None = None
    tensor_kind: str | None = None
    reader: str | None = None
    last_clean: str | None = None
    clean_before: str | None = None
    hidden_by: str | None = None
    chain: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    first_bad_index: int | None = None
    cause: str = "unknown"
    rule: str | None = None
    others: tuple[str, ...] = ()
    remedy: str | None = None
    past: tuple[float, ...] = ()
    seq: int = 0
    time: float = 0.0

    def __post_init__(self) -> None:
        for name, known in _VOCABULARY.items():
            if getattr(self, name) not in known:
                raise ValueError(f"Event({name}={getattr(self, name)!r}): use one of {', '.join(map(repr, known))}")

    @property
    def nonfinite(self) -> bool:
        """Whether it is about a NaN or Inf, not about health."""
        return self.kind in NONFINITE_KINDS

    @property
    def key(self) -> tuple[str | None, ...]:
        """What makes two events "the same site": warnings and log lines are rationed by it."""
        return ("" if self.nonfinite else self.kind, self.severity, self.phase, self.module, self.op, self.tensor)

    @property
    def tensor_label(self) -> str | None:
        """``fc.weight``, ``fc.weight.grad``, ``check 'loss'``, ``input 0``; None where there is no name."""
        if self.tensor is None:
            return None
        return {"gradient": f"{self.tensor}.grad", "check": f"check {self.tensor!r}"}.get(
            self.tensor_kind or "", self.tensor
        )

    @property
    def place(self) -> str:
        """How a person would call it: ``blocks.2.attn (Attention)``, ``fc.weight at the optimizer's step``."""
        name = self.module if self.module else self.module_type or "the root module"
        if self.module and self.module_type:
            name = f"{name} ({self.module_type})"
        if self.tensor_kind == "check":
            return f"{self.tensor_label}" if self.module is None else f"{self.tensor_label} in {name}"
        if self.phase == "optimizer" and self.tensor is not None:
            return f"{self.tensor_label} at the optimizer's step"
        if self.module is None:
            loss = "the loss code" if self.tensor is None else "the loss code or a compiled backward"
            name = {"optimizer": "the optimizer's step", "backward": loss}.get(self.phase, "code outside every module")
        return f"{self.tensor} read by {name}" if self.role == "external" and self.tensor else name

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; NaN and Inf become strings, since JSON has none."""
        return {f.name: encode(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Event:
        """The inverse of `to_dict`. Fields it does not know (a newer writer's) are left out."""
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        for name in ("shape", "chain", "evidence", "others"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        values["past"] = tuple(number(x) for x in values.get("past") or ())
        if values.get("stats") is not None:
            values["stats"] = _stats(values["stats"])
        values["inputs"] = {name: _stats(stats) for name, stats in (values.get("inputs") or {}).items()}
        values["time"] = number(values.get("time", 0.0))
        return cls(**values)

    def _repr_html_(self) -> str | None:
        return None if _as_html is None else _as_html(self)

    def __str__(self) -> str:
        where = f"step {self.step}" if self.rank == 0 else f"step {self.step}, rank {self.rank}"
        kind = f"{self.kind} ({self.role})" if self.nonfinite else self.kind
        text = f"{self.severity}: {kind} in {self.phase}, {where}: {self.place}"
        if self.op is not None:
            text += f", {self.op}"
        if self.nonfinite and self.stats is not None:
            text += f", {self.stats.nonfinite} of {self.stats.numel} elements"
        elif self.evidence:
            text += f", {self.evidence[0]}"
        return text


_as_html: Callable[[Event], str] | None = None


def show_in_notebooks(as_html: Callable[[Event], str]) -> None:
    """How a notebook shows an event. nanscan.report says it: drawing stands above, and is not known here."""
    global _as_html
    _as_html = as_html


def _stats(data: Mapping[str, Any]) -> TensorStats:
    floats = {"min", "max", "mean", "std", "norm", "absmax"}
    values: dict[str, Any] = {}
    for f in fields(TensorStats):
        values[f.name] = number(data[f.name]) if f.name in floats else data[f.name]
    return TensorStats(**values)
