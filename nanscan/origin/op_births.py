"""Where bad values are born at op level, and where they go: one step after the other, in the order of the records."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from nanscan.origin.op_calls import BAD, CallBit, CallKind, Holds, OpCall
from nanscan.record import Phase
from nanscan.sites import NO_SITE

# Plain integers: an operation on an IntFlag member makes another one, which takes longer than all the rest here.
NAN, POS, NEG = int(Holds.NAN), int(Holds.POS), int(Holds.NEG)
UNMADE = int(Holds.UNINIT | Holds.OUTSIDE | Holds.CHANGED)
HOST, CONSTANT, WRITES_PARAM, SELECTS = (
    int(CallBit.HOST), int(CallBit.CONSTANT), int(CallBit.WRITES_PARAM), int(CallBit.SELECTS)
)  # fmt: skip
OP, NODE, LOSS = int(CallKind.OP), int(CallKind.NODE), int(CallKind.LOSS)
WAYS_OUT = {
    int(CallKind.TOP): "the model's output", int(CallKind.CHECK): "a check", LOSS: "the loss",
    int(CallKind.LEAF): "a parameter's gradient",
}  # fmt: skip
MAX_TRAIL = 64  # calls a value is followed through, for the chain
MAX_VALUES = 1 << 13  # bad values remembered, those used last (a bad parameter lives on)
MAX_BORN = 1024  # births of one step kept in full: a step may never end


@dataclass(slots=True, eq=False)
class OpBirth:
    """A candidate for the first culprit.

    Args:
        call: the call that made the value, or, for a value no call made, the one that read it first.
        fact: record of the bad tensor. inputs: ordinal -> record.
        parents: births that this one was made of (a NaN out of somebody's Inf).
        lost_at: the call where it was absorbed by arithmetic, if it was.
    """

    seq: int
    step: int
    role: str
    phase: str
    call: OpCall
    bits: int
    fact: Any
    inputs: dict[int, Any]
    parents: tuple[OpBirth, ...] = ()
    owner: int | None = None  # PARAM/BUFFER site the value sits in
    last_clean: tuple[int, int] | None = None
    escaped: str | None = None  # where the value got out
    told: bool = False
    blamed_in: int | None = None  # step in which an error was told of it; -1: it is what an earlier one had left
    selected: bool = False
    lost_at: OpCall | None = None
    n_carried: int = 0  # later calls that made something bad of it, in the step carried_in
    carried_in: int = -1
    eldest: OpBirth | None = field(default=None, init=False)
    trail: list[OpCall] = field(default_factory=list)
    details: list[Any] = field(default_factory=list)  # records for the cause rules

    def settle(self) -> None:
        """Its step is over, or nearly: whatever is made of it still goes back to it, but nobody will print it."""
        self.parents = ()  # its culprit is known, and those between would live on with it
        if self.told:
            self.fact, self.inputs, self.trail, self.details = None, {}, [], []

    def carry(self, step: int) -> None:
        """A call has made something bad of it."""
        self.n_carried = self.n_carried + 1 if step == self.carried_in else 1
        self.carried_in = step

    @property
    def scaled(self) -> bool:
        """Whether a GradScaler judges it: a gradient, or the loss times the scale."""
        return self.phase in ("backward", "optimizer") or bool(self.call.bits & int(CallBit.SCALES))

    def __post_init__(self) -> None:
        # Once: a chain of births as long as the training, with two parents each, has more paths than anybody can walk.
        older = [parent.culprit for parent in self.parents]
        self.eldest = min(older, key=lambda b: b.seq) if older and min(b.seq for b in older) < self.seq else None

    @property
    def culprit(self) -> OpBirth:
        """The earliest birth it goes back to."""
        return self if self.eldest is None else self.eldest


def fresh_bits(made: int, given: int) -> int:
    """What is new in a result: a NaN where none came in, an Inf where nothing bad came in."""
    if made & NAN and not given & NAN:
        return made
    return made if made and not given else 0


class Births:
    """Follows values from birth to escape.

    Args:
        explained: sites of parameters and buffers whose being bad has been told of. Reading one is no news.
    """

    def __init__(self, explained: Container[int] = ()) -> None:
        self._explained = explained
        self.inherits = False  # this step follows others that nobody watched op by op, and something was bad in them
        self._of_value: OrderedDict[int, tuple[OpBirth, ...]] = OrderedDict()
        self._of_call: dict[int, OpBirth] = {}  # forward births of this step, by the call that made them
        self.born: list[OpBirth] = []  # of this step
        self.step = 0  # of the latest call
        self.explained = False  # something bad in this step comes from what an error was told of in an earlier one

    def begin_step(self) -> None:
        for birth in self.born:
            birth.settle()
        self.inherits = False  # what it read by then is remembered
        self.explained = False
        self.born = []
        self._of_call = {}

    def overdue(self) -> list[OpBirth]:
        """The older half of the births, when there are too many; they are taken off the list."""
        if len(self.born) <= MAX_BORN:
            return []
        cut = MAX_BORN // 2
        old, self.born = self.born[:cut], self.born[cut:]
        for number in list(self._of_call)[:cut]:
            del self._of_call[number]
        return old

    def take(self, call: OpCall) -> None:
        """Judge one call. Takes its records from it: they would keep the whole drained array alive."""
        self._judge(call)
        call.outputs, call.reads, call.details = [], {}, []

    def _judge(self, call: OpCall) -> None:
        self.step = call.step
        sources = self._sources(call)
        if call.kind in WAYS_OUT or call.bits & HOST:
            self._leaves(call, sources)
            return
        new = fresh_bits(call.out_bits, call.in_bits)
        if call.out_bits:
            for birth in {one.culprit for one in sources}:
                birth.carry(call.step)
                self.explained = self.explained or (birth.blamed_in is not None and birth.blamed_in < call.step)
        if call.out_bits and new and not self._deliberate(call, sources):
            for birth in sources:  # what it is made of ends up here
                birth.trail.append(call)
            sources = (self._make(call, sources),)
        elif not call.out_bits:
            self._absorb(call, sources)
            return
        for birth in sources:
            for one in {birth, birth.culprit}:
                if len(one.trail) < MAX_TRAIL and (not one.trail or one.trail[-1] is not call):
                    one.trail.append(call)
        self._remember(call.call, sources)
        if call.bits & WRITES_PARAM and call.kind == OP:
            self.escape(sources, "a parameter")

    def escape(self, sources: tuple[OpBirth, ...], where: str) -> None:
        for birth in sources:
            for one in (birth, birth.culprit):
                if one.escaped is None:
                    one.escaped = where
                    if one not in self.born:  # of an earlier step, harmless until now
                        self.born.append(one)

    def behind_node(self, birth: OpBirth) -> OpBirth | None:
        """The forward birth whose own backward node made this bad gradient (a torch.where trap), if there is one."""
        forward = self._of_call.get(birth.call.forward)
        return forward if forward is not None and not forward.told else None

    def _sources(self, call: OpCall) -> tuple[OpBirth, ...]:
        found: dict[int, OpBirth] = {}
        known: tuple[OpBirth, ...] | None = None
        bad_inputs = [(value, holds) for value, holds in call.inputs if holds & BAD]
        for order, (value, holds) in enumerate(bad_inputs):
            known = self._of_value.get(value)
            if known is not None:
                self._of_value.move_to_end(value)
            if known is None and holds & UNMADE:
                # What the op has written over can no longer be looked at, and has no record. Such arguments come first.
                bad_reads = [i for i, rec in call.reads.items() if record_bits(rec)]
                place = order - max(0, len(bad_inputs) - len(bad_reads))
                ordinal = bad_reads[place] if 0 <= place < len(bad_reads) else None
                known = self._not_made(call, holds, ordinal)
                if known:
                    self._remember(value, known)
            for birth in known or ():
                found[id(birth)] = birth
        if call.kind == NODE:  # its forward's result was bad and got out: what it saved is bad too
            for birth in self._of_value.get(call.forward, ()):
                if birth.escaped:
                    found[id(birth)] = birth
        # The same tuple again where a value is only handed on: nothing new for the garbage collector to walk.
        return known if known is not None and len(known) == len(found) == 1 else tuple(found.values())

    def _not_made(self, call: OpCall, holds: int, ordinal: int | None) -> tuple[OpBirth, ...]:
        """A bad value that no observed call made, at its first reader."""
        rec = None if ordinal is None else call.reads.get(ordinal)
        if rec is None:  # read and written by one op (x.add_): what it left there is all that can be shown
            rec = call.outputs[0] if call.outputs else None
        if rec is None:
            return ()
        owner = int(rec["site"]) if holds & Holds.PARAM else None
        explained = owner is not None and owner in self._explained
        # Optimizer states and the like: bad before the first op was seen, so nothing can be said of who wrote them.
        explained |= self.inherits and bool(holds & Holds.OUTSIDE) and not holds & Holds.CHANGED
        if int(rec["n"]) == 1 and not explained and not holds & (Holds.UNINIT | Holds.CHANGED):
            return ()  # one number: a constant that somebody wrote down (torch.tensor(-inf))
        clean = call.last_clean.get(ordinal) if ordinal is not None else None
        role = "uninitialised" if holds & Holds.UNINIT else "external"
        observed = clean is not None and (clean[0] != 0xFFFFFFFF or clean[1] != 0)
        phase = Phase(call.phase).name.lower() if owner is not None or role == "uninitialised" or observed else "data"
        birth = OpBirth(
            call.seq, call.step, role, phase, call, holds & BAD, rec.copy(), _copied(call.reads),
            owner=owner, last_clean=clean, told=explained, blamed_in=-1 if explained else None,
            escaped="a parameter" if explained else None,
        )  # fmt: skip
        if not explained:
            self.born.append(birth)
        return (birth,)

    def _deliberate(self, call: OpCall, sources: tuple[OpBirth, ...]) -> bool:
        """A constant that was asked for: a mask's -inf, a sentinel's NaN. One that is written into a parameter is not
        meant, nor is a NaN that is computed with (x * nan)."""
        if not call.bits & CONSTANT or sources or call.bits & WRITES_PARAM or call.kind != OP:
            return False
        return bool(call.bits & SELECTS) or not call.out_bits & NAN

    def _make(self, call: OpCall, sources: tuple[OpBirth, ...]) -> OpBirth:
        fact = call.outputs[0].copy() if call.outputs else None
        site = NO_SITE if fact is None else int(fact["site"])  # that of the parameter it was written into, if it was
        birth = OpBirth(
            call.seq, call.step, "origin", Phase(call.phase or Phase.FORWARD).name.lower(), call, call.out_bits, fact,
            _copied(call.reads), parents=sources, owner=None if site in (NO_SITE, call.site) else site,
            details=[rec.copy() for rec in call.details],
        )  # fmt: skip
        self.born.append(birth)
        if call.kind == OP:
            self._of_call[call.call] = birth
        return birth

    def _leaves(self, call: OpCall, sources: tuple[OpBirth, ...]) -> None:
        # -Inf alone may be meant when a model hands it out (masked logits); at a check or as a loss it is not.
        if call.kind == CallKind.TOP and not call.in_bits & (NAN | POS):
            return
        self.escape(sources, WAYS_OUT.get(call.kind, "the host"))

    def _absorb(self, call: OpCall, sources: tuple[OpBirth, ...]) -> None:
        for birth in sources:
            if call.bits & SELECTS or not call.in_bits & POS:
                birth.selected = True
            elif birth.lost_at is None and birth.phase != "backward" and call.kind == OP:
                birth.lost_at = call

    def _remember(self, value: int, sources: tuple[OpBirth, ...]) -> None:
        self._of_value[value] = sources
        while len(self._of_value) > MAX_VALUES:
            self._of_value.popitem(last=False)


def _copied(reads: dict[int, Any]) -> dict[int, Any]:
    """A record taken out of an array keeps all of the array alive."""
    return {ordinal: rec.copy() for ordinal, rec in reads.items()}


def record_bits(rec: Any) -> int:
    return (NAN if rec["n_nan"] else 0) | (POS if rec["n_posinf"] else 0) | (NEG if rec["n_neginf"] else 0)
