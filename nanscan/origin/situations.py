"""From an op-level birth to what the cause rules look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from nanscan.origin.facts import kinds_of
from nanscan.origin.narrate import ShapeOf
from nanscan.origin.op_births import OpBirth, record_bits
from nanscan.origin.op_calls import BAD, CallBit, Detail, OpCall
from nanscan.record import Flag, LinkCode, stats_from_record
from nanscan.sites import SiteTable
from nanscan.why import Arg, Past, Situation

MAX_DEPTH = 2  # births behind a birth that are described as well

Names = Callable[[int], str]


class Situations:
    """Knows names and shapes; judges nothing.

    Args:
        compiled: whether code made by torch.compile, in which no op is seen, may have run.
    """

    def __init__(self, sites: SiteTable, shape_of: ShapeOf, op_name: Names, compiled: Callable[[], bool]) -> None:
        self._sites = sites
        self._shape_of = shape_of
        self._op_name = op_name
        self._compiled = compiled

    def of(self, birth: OpBirth, **found: Any) -> Situation:
        """What is known of `birth`; `found`: fields that its judge knows."""
        return replace(self._describe(birth, 0), **found)

    def _describe(self, birth: OpBirth, depth: int) -> Situation:
        call, rec = birth.call, birth.fact
        inner, made, args, saved = self._details(birth)
        bits = birth.bits if made is None else record_bits(made)
        parents = () if depth == MAX_DEPTH else tuple(self._describe(p, depth + 1) for p in birth.parents)
        own = [r for r in birth.inputs.values() if r is not rec]
        return Situation(
            op=self._op_name(call.op),
            inner=inner,
            phase=birth.phase,
            role=birth.role,
            kinds=kinds_of(bits),
            out=None if rec is None else stats_from_record(rec if made is None else made),
            args=args,
            saved=saved,
            inputs=tuple(stats_from_record(r) for r in own),
            made_of=parents,
            went=tuple(self._went(birth.trail)),
            lost=birth.lost_at is not None and not birth.selected,
            scaling=bool(call.bits & int(CallBit.SCALES)),
            given_bad=bool(call.in_bits & BAD),
            escaped=birth.escaped is not None,
            updating=bool(call.bits & int(CallBit.WRITES_PARAM)),
            constant=bool(call.bits & int(CallBit.CONSTANT)),
            compiled=self._compiled(),
            behind=self._behind(birth.details),
            past=_past(birth.details),
        )

    def _went(self, trail: Iterable[OpCall]) -> Iterable[str]:
        return (self._op_name(call.op).rpartition("::")[2] for call in list(trail)[1:])

    def _details(self, birth: OpBirth) -> tuple[str | None, Any, dict[str, Arg], dict[str, Arg]]:
        """(the op inside a Python backward and the record of its result, arguments by name, saved values by name)."""
        inner, made, args, saved = None, None, dict[str, Arg](), dict[str, Arg]()
        for rec in birth.details:
            flags, slot, name = int(rec["flags"]), int(rec["output_index"]), self._op_name(int(rec["site"]))
            if slot == Detail.BEHIND:
                continue
            if slot == Detail.INNER:
                inner, made = name, rec if flags & int(Flag.PARAM) else made
            elif not flags & int(Flag.LINK) or int(rec["n"]) == LinkCode.ARGUMENT:
                group = saved if slot == Detail.SAVED else args
                group[name] = self._grown(group.get(name) or Arg(name), rec, flags)
        if inner is None:
            for slot, name in self._slots(birth.details).items():
                if slot in birth.inputs and args[name].whole is None:
                    args[name] = replace(args[name], whole=stats_from_record(birth.inputs[slot]))
        return inner, made, args, saved

    def _behind(self, details: list[Any]) -> str | None:
        names = (self._op_name(int(rec["site"])) for rec in details if int(rec["output_index"]) == Detail.BEHIND)
        return next(names, None)

    def _slots(self, details: list[Any]) -> dict[int, str]:
        """Ordinal of a tensor among the call's inputs -> name; of a list, that of the tensor that the part is of."""
        named: dict[int, str] = {}
        for rec in details:
            slot = int(rec["output_index"])
            if slot < Detail.COUNTS:
                named[slot] = self._op_name(int(rec["site"]))
        with_part = {int(r["output_index"]) for r in details if int(r["flags"]) & int(Flag.INPUT)}
        return dict(sorted(named.items(), key=lambda item: item[0] not in with_part))

    def _grown(self, arg: Arg, rec: Any, flags: int) -> Arg:
        """`arg` with what one more record says of it."""
        if flags & int(Flag.INPUT):
            return replace(arg, part=stats_from_record(rec))
        if flags & int(Flag.PARAM):
            return replace(arg, whole=stats_from_record(rec), shape=self._shape(rec))
        if rec["shape"]:
            return arg if arg.part is not None else replace(arg, shape=self._shape(rec))
        if int(rec["output_index"]) < Detail.SAVED:
            return arg
        number = float(rec["min"])
        if not int(rec["n_nan"]):
            return replace(arg, value=number)
        before = arg.value if isinstance(arg.value, tuple) else ()
        return replace(arg, value=(*before, number))

    def _shape(self, rec: Any) -> tuple[int, ...] | None:
        return tuple(self._shape_of(int(rec["shape"]))) if rec["shape"] else None


def _past(details: list[Any]) -> Past:
    records = [r for r in details if int(r["flags"]) & int(Flag.LINK) and int(r["n"]) == LinkCode.PAST]
    return Past(tuple(int(r["n_nan"]) for r in records), tuple(float(r["min"]) for r in records))
