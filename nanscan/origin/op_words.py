"""From an op-level birth to the Event a user reads."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from nanscan.events.event import Event
from nanscan.origin.between import calls_between
from nanscan.origin.narrate import MAX_CHAIN, MAX_INPUTS, ShapeOf, holds
from nanscan.origin.op_births import OpBirth
from nanscan.origin.op_calls import CallBit, OpCall
from nanscan.origin.situations import Situations
from nanscan.record import stats_from_record
from nanscan.sites import NO_SITE, Site, SiteTable
from nanscan.why import Situation, Verdict, explain

ACCUMULATE = "torch::autograd::AccumulateGrad"  # its own sum is not seen: a hook there would change what torch shares


class OpWords:
    """Knows names, lines and shapes; judges nothing.

    Args:
        compiled: whether code compiled by torch.compile, in which no op is seen, may have run.
    """

    def __init__(
        self,
        sites: SiteTable,
        shape_of: ShapeOf,
        op_name: Callable[[int], str],
        line_text: Callable[[int], str],
        rank: int,
        clock: Callable[[], float],
        compiled: Callable[[], bool],
    ) -> None:
        self._sites = sites
        self._shape_of = shape_of
        self._op_name = op_name
        self._line_text = line_text
        self._rank = rank
        self._clock = clock
        self._compiled = compiled
        self._situations = Situations(sites, shape_of, op_name, compiled)

    def site(self, call: OpCall) -> Site | None:
        return None if call.site == NO_SITE else self._sites[call.site]

    def names(self, birth: OpBirth) -> tuple[str | None, ...]:
        """What allow() patterns are matched against."""
        site = self.site(birth.call)
        return (None if site is None else site.module, self._tensor(birth), self._op_name(birth.call.op))

    def place(self, call: OpCall) -> str:
        """``aten::log in blocks.2.attn, model.py:12``."""
        site, line = self.site(call), self._line_text(call.line)
        text = self._op_name(call.op)
        if site is not None:
            text += f" in {site.label}"
        return f"{text}, {_short(line)}" if line else text

    def lost(self, birth: OpBirth) -> str:
        assert birth.lost_at is not None
        return f"its +Inf was lost by arithmetic at {self.place(birth.lost_at)}: the result there is finite, and wrong"

    def event(
        self,
        birth: OpBirth,
        severity: str,
        batch: int | None,
        note: str | None = None,
        role: str | None = None,
        trap: bool = False,
        bad_from_start: int = 0,
    ) -> Event:
        """The event of a birth.

        Args:
            note: one more sentence of evidence. role: instead of the birth's.
            trap: it was selected away, and its own backward has made the first bad gradient.
            bad_from_start: how many parameters and buffers were bad before anything ran.
        """
        rec, call, site = birth.fact, birth.call, self.site(birth.call)
        stats = None if rec is None else stats_from_record(rec)
        inputs = {
            f"input {i}": stats_from_record(r) for i, r in list(birth.inputs.items())[:MAX_INPUTS] if r is not rec
        }
        op = self._op_name(call.op)
        external = birth.role in ("external", "uninitialised")
        tensor, last_clean = self._tensor(birth), self._last_clean(birth)
        others = max(0, bad_from_start - (tensor is not None))
        situation = self._situations.of(birth, tensor=tensor, last_clean=last_clean, trap=trap, others_bad=others)
        verdict = explain(situation)
        what = tensor or ("the tensor" if external else "its result")
        held = None if stats is None else holds(what, stats)
        evidence = [t for t in (held, *verdict.evidence, self._clean(birth), self._between(birth), note) if t]
        if call.bits & int(CallBit.RECOMPUTE):
            evidence.append("its forward ran a second time, inside the backward (activation checkpointing)")
        if birth.role == "external" and birth.last_clean is None and birth.owner is None and self._compiled():
            evidence.append("no observed op made it: it was handed in, or torch.compile's code made it")
        if birth.escaped:
            evidence.append(f"the value reached {birth.escaped}")
        return Event(
            severity=severity,
            kind=_kind(birth.bits),
            role=role or birth.role,
            phase=birth.phase,
            step=birth.step,
            module=None if site is None else site.module,
            module_type=None if site is None else site.module_type,
            op=op,
            output_index=None if rec is None or external else int(rec["output_index"]),
            source=_source(self._line_text(call.line)),
            batch=batch,
            rank=self._rank,
            device="cpu" if rec is None or int(rec["device"]) < 0 else f"cuda:{int(rec['device'])}",
            dtype=None if stats is None else stats.dtype,
            shape=None if rec is None or not rec["shape"] else tuple(self._shape_of(int(rec["shape"]))),
            stats=stats,
            inputs=inputs,
            tensor=tensor,
            reader=op if external else None,
            last_clean=last_clean,
            chain=self._chain(birth),
            evidence=tuple(evidence),
            first_bad_index=None if stats is None else stats.first_bad_index,
            cause=verdict.cause,
            rule=verdict.rule,
            others=verdict.others,
            past=situation.past.absmax,
            remedy=verdict.remedy or "print(scanner.first) shows every field of the event",
            seq=birth.seq,
            time=self._clock(),
        )

    def unexplained(self, rec: Any, phase: str, batch: int | None, n_grads: int) -> Event:
        """A parameter or its gradient is bad, and no observed call made it so."""
        site = self._sites[int(rec["site"])]
        stats = stats_from_record(rec)
        # All that arrived at a leaf was looked at, and so was every op: what is left is the sum that the engine keeps.
        summed = phase == "backward" and stats.kind == "inf" and not self._compiled()
        how = (
            "each gradient that arrived was finite, their sum in .grad is not (overflow while accumulating)"
            if summed
            else "no observed op or node made it: a compiled region, or memory written behind the dispatcher"
        )
        verdict = Verdict()
        if summed:
            verdict = explain(
                Situation(op=ACCUMULATE, phase=phase, role="origin", kinds=("+inf",), out=stats, tensor=site.tensor)
            )
        return Event(
            severity="error",
            kind=stats.kind,
            phase=phase,
            step=int(rec["step"]),
            role="origin" if summed else "external",
            op=ACCUMULATE if summed else None,
            module=site.module if phase == "backward" else None,
            module_type=site.module_type if phase == "backward" else None,
            tensor=site.tensor,
            batch=batch,
            rank=self._rank,
            stats=stats,
            dtype=stats.dtype,
            shape=tuple(self._shape_of(int(rec["shape"]))) if rec["shape"] else None,
            evidence=(holds(site.tensor or "the tensor", stats), *verdict.evidence, how),
            cause=verdict.cause,
            rule=verdict.rule,
            others=verdict.others,
            remedy=verdict.remedy,
            first_bad_index=stats.first_bad_index,
            seq=int(rec["seq"]),
            time=self._clock(),
        )

    def _tensor(self, birth: OpBirth) -> str | None:
        if birth.owner is not None and birth.owner < len(self._sites):
            return self._sites[birth.owner].tensor
        return None

    def _clean(self, birth: OpBirth) -> str | None:
        if birth.last_clean is None:
            return None
        written, read = self._last_clean(birth), self.place(birth.call)
        return f"finite when last written at {written}, non-finite when read at {read}, no observed write in between"

    def _between(self, birth: OpBirth) -> str | None:
        if birth.last_clean is None:
            return None
        return calls_between(self._line_text(birth.last_clean[1]), self._line_text(birth.call.line))

    def _last_clean(self, birth: OpBirth) -> str | None:
        if birth.last_clean is None:
            return None
        site, line = birth.last_clean
        parts = [self._sites[site].label] if site != NO_SITE and site < len(self._sites) else []
        text = _short(self._line_text(line))
        return ", ".join([*parts, text] if text else parts) or "its first sighting"

    def _chain(self, birth: OpBirth) -> tuple[str, ...]:
        calls = [birth.call, *birth.trail[1:]] if birth.role == "origin" else [birth.call, *birth.trail]
        places = list(dict.fromkeys(self.place(c) for c in calls if c.kind < 2))
        return tuple(places if len(places) <= MAX_CHAIN else [*places[: MAX_CHAIN // 2], *places[-MAX_CHAIN // 2 :]])


def _kind(bits: int) -> str:
    return "both" if bits & 1 and bits & 6 else "nan" if bits & 1 else "inf"


def _short(line: str) -> str:
    return line.rsplit("/", 1)[-1]


def _source(line: str) -> str | None:
    """``path.py:12  text of that line``, as far as the file can be read."""
    if not line:
        return None
    path, _, number = line.rpartition(":")
    text = linecache.getline(path, int(number)).strip()
    return f"{line}  {text}" if text else line
