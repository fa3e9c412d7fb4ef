"""From flagged records to facts: bad calls with what they read, bad gradients with who made and who read the value."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from nanscan.record import Flag, LinkCode
from nanscan.sites import NO_SITE, SiteKind, SiteTable

# What a tensor holds, as bits: enough to tell cause from carrier.
NAN, POS, NEG = 1, 2, 4
INF = POS | NEG
STRONG = NAN | POS  # -Inf alone is weak: it may be a mask

# A step that never ends (a server, say) must not grow. Older calls than these are forgotten, but never those of the
# forward that ran last: its backward may still come.
MAX_KEPT = 1024  # bad calls, or root forwards
KEPT = MAX_KEPT // 2  # what is left when there were more

# Plain ints: an IntFlag makes an object per operation, which is most of the time of reading a record.
_INPUT, _PARAM, _LINK, _ENTER = int(Flag.INPUT), int(Flag.PARAM), int(Flag.LINK), int(Flag.ENTER)
_RECOMPUTE, _TOP, _CHANGED, _KNOWN = int(Flag.RECOMPUTE), int(Flag.TOP), int(Flag.CHANGED), int(Flag.KNOWN)


def kinds_of(bits: int) -> tuple[str, ...]:
    """What a tensor holds, in the words of allow(kinds=...)."""
    return tuple(name for bit, name in ((NAN, "nan"), (POS, "+inf"), (NEG, "-inf")) if bits & bit)


@dataclass(slots=True, eq=False)
class Fact:
    """One record that carries statistics."""

    seq: int
    call: int
    site: int
    flags: int
    index: int
    phase: int
    bits: int
    rec: Any  # np.void, a view into the step's records

    @property
    def kinds(self) -> tuple[str, ...]:
        """In the words of allow(kinds=...)."""
        return kinds_of(self.bits)


@dataclass(slots=True, frozen=True)
class Party:
    """A call that made or read a value: `site` is its OUTPUT or INPUT site."""

    site: int
    call: int
    parent_call: int
    parent_site: int


@dataclass(slots=True, eq=False)
class BadCall:
    """A module call with a bad output. `parent` is the call it ran in, 0 for none."""

    call: int
    site: int
    seq: int
    outputs: list[Fact] = field(default_factory=list)
    params: list[Fact] = field(default_factory=list)
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)  # input ordinal -> (site, call) it was seen at
    parent: int = 0
    parent_site: int = NO_SITE
    linked: bool = False  # its parent is known, which is the last that is recorded of a call
    top: bool = False
    recompute: bool = False
    bits: int = 0
    waited: int = 0  # how often it was looked at while it could not be judged yet


@dataclass(slots=True, eq=False)
class BadGrad:
    """A bad gradient of a value, with the calls that made and read the value."""

    fact: Fact
    producers: list[Party] = field(default_factory=list)
    readers: list[Party] = field(default_factory=list)


class StepFacts:
    """All flagged records of one step, sorted by what they say. Kinds of records are told apart by flag and site."""

    def __init__(self, sites: SiteTable) -> None:
        self._sites = sites
        self.n_records = 0
        self.enters: list[tuple[int, int, int, int]] = []  # (seq, call, batch, site), in order
        self.inputs: dict[int, dict[int, Fact]] = {}  # call -> input ordinal -> fact
        self.calls: dict[int, BadCall] = {}  # in the order the calls ended
        self.children: dict[int, list[BadCall]] = {}  # parent call -> its bad children
        self.readers: dict[int, list[BadCall]] = {}  # call -> the bad calls that read what it had made
        self.checks: list[Fact] = []
        self.grads: list[BadGrad] = []
        self.param_grads: list[Fact] = []
        self.values: list[Fact] = []  # bad parameters and buffers seen as such, not while explaining a call
        self.pending: dict[int, BadCall] = {}  # those of `calls` that nobody has judged yet
        self.absorbed: dict[int, BadCall] = {}  # those of them that seem to have reached no outermost output
        self.forward_sites: set[int] = set()  # of bad calls that were no recomputation
        self._grad_of_value: dict[int, BadGrad] = {}
        self._something_bad = False
        self._first_call = 0
        self._last_seq = self._seen_until = 0  # the newest record; the same when a forward was last finished
        # What is left of forgotten calls: their bits, those of outermost ones, and the newest of their ids.
        self._gone_bits = self._gone_top_bits = self._newest_gone = 0

    def add(self, records: np.ndarray) -> None:
        """Take a piece, in seq order. The array is copied: the caller may reuse its memory."""
        records = np.array(records, copy=True)
        self.n_records += len(records)
        if len(records):
            self._last_seq = int(records["seq"][-1])
        seqs, calls, sites = records["seq"].tolist(), records["call"].tolist(), records["site"].tolist()
        flags, index, phases = records["flags"].tolist(), records["output_index"].tolist(), records["phase"].tolist()
        n_nan, n_pos, n_neg = (records[name].tolist() for name in ("n_nan", "n_posinf", "n_neginf"))
        for i, flag in enumerate(flags):
            if flag & _LINK:
                rec = records[i]
                self._link(int(rec["n"]), calls[i], sites[i], index[i], n_nan[i], n_pos[i], n_neg[i])
            elif flag & _ENTER:
                self._first_call = self._first_call or calls[i]
                self.enters.append((seqs[i], calls[i], int(records[i]["n"]), sites[i]))
            else:
                bits = (NAN if n_nan[i] else 0) | (POS if n_pos[i] else 0) | (NEG if n_neg[i] else 0)
                self._fact(Fact(seqs[i], calls[i], sites[i], flag, index[i], phases[i], bits, records[i]))

    def _fact(self, fact: Fact) -> None:
        if fact.flags & _INPUT:
            self._input(fact)
            return
        if not fact.bits:
            return
        self._something_bad = True
        kind = self._sites[fact.site].kind
        if fact.flags & _PARAM:
            call = self.calls.get(fact.call)
            if call is not None:
                call.params.append(fact)
        elif kind is SiteKind.OUTPUT:
            call = self.calls.get(fact.call)
            if call is None:
                call = self.calls[fact.call] = self.pending[fact.call] = BadCall(fact.call, fact.site, fact.seq)
            call.outputs.append(fact)
            call.bits |= fact.bits
            call.top |= bool(fact.flags & _TOP)
            call.recompute |= bool(fact.flags & _RECOMPUTE)
            if not call.recompute:
                self.forward_sites.add(call.site)
        elif kind in (SiteKind.GRAD_OUTPUT, SiteKind.GRAD_INPUT):
            grad = BadGrad(fact)
            self.grads.append(grad)
            self._grad_of_value[fact.call] = grad
        elif kind is SiteKind.PARAM_GRAD:
            self.param_grads.append(fact)
        elif kind is SiteKind.CHECK:
            self.checks.append(fact)
        else:
            self.values.append(fact)

    def _input(self, fact: Fact) -> None:
        # A root's inputs are recorded when it begins and again if it ends badly. The first look counts, since the model
        # may have written into them since; unless the second found that memory changed with nobody seen writing.
        known = self.inputs.setdefault(fact.call, {})
        first = known.get(fact.index)
        if first is None or fact.flags & _CHANGED:
            known[fact.index] = fact
        else:
            first.flags |= fact.flags & _KNOWN

    def _link(self, code: int, call: int, site: int, index: int, other: int, parent: int, parent_site: int) -> None:
        if code == LinkCode.GRAD_PRODUCER or code == LinkCode.GRAD_CONSUMER:
            grad = self._grad_of_value.get(call)
            if grad is not None:
                parties = grad.producers if code == LinkCode.GRAD_PRODUCER else grad.readers
                if all(party.call != other for party in parties):
                    parties.append(Party(site, other, parent, parent_site))
            return
        bad = self.calls.get(call)
        if bad is None:
            return
        if code == LinkCode.PRODUCER_OF_INPUT:
            bad.producers.setdefault(index, (site, other))
            self.readers.setdefault(other, []).append(bad)
        elif code == LinkCode.PARENT:
            bad.parent, bad.parent_site, bad.linked = other, site, True
            self.children.setdefault(other, []).append(bad)

    def forget_healthy_forwards(self) -> None:
        """Drop what healthy root forwards left, but for the last one's: a step that never ends must not grow."""
        if self._something_bad:
            return
        self.enters = self.enters[-1:]
        self.inputs = {call: given for call, given in self.inputs.items() if self.is_root(call)}

    def finish_forward(self) -> None:
        """An outermost call has ended, and what can be judged of it has been."""
        self.forget_healthy_forwards()
        self._seen_until = self._last_seq

    def overdue(self) -> int:
        """The seq below which calls are too old to be kept; 0 while there are few."""
        cut = 0
        if len(self.calls) > MAX_KEPT:
            cut = next(islice(reversed(self.calls.values()), KEPT - 1, None)).seq
        if len(self.enters) > MAX_KEPT:
            cut = max(cut, self.enters[-KEPT][0])
        return min(cut, self._seen_until, self.enters[-1][0] if self.enters else cut)

    def forget_calls(self, cut: int) -> list[BadCall]:
        """Drop the calls and root forwards before `cut`, which have been judged; returns the calls."""
        gone = [call for call in self.calls.values() if call.seq < cut]
        for call in gone:
            del self.calls[call.call]
            self._gone_bits |= call.bits
            self._gone_top_bits |= 0 if call.parent else call.bits
            self._newest_gone = max(self._newest_gone, call.call)
        children = ((parent, [c for c in some if c.seq >= cut]) for parent, some in self.children.items())
        self.children = {parent: some for parent, some in children if some}
        self.readers = {call: some for call, some in self.readers.items() if call in self.calls}
        last = set({enter[3]: enter for enter in self.enters}.values())  # a later backward asks which roots ran
        self.enters = [enter for enter in self.enters if enter[0] >= cut or enter in last]
        roots = {enter[1] for enter in self.enters}
        self.inputs = {c: given for c, given in self.inputs.items() if c in self.calls or c in roots}
        return gone

    def take_grads(self) -> list[BadGrad]:
        """The bad gradients of values since the last time. They are judged once, and not kept."""
        taken, self.grads = self.grads, []
        self._grad_of_value.clear()
        return taken

    # ---- questions

    @property
    def bad_forward(self) -> bool:
        """Whether any module returned NaN or +Inf in this step."""
        return bool(self._gone_bits & STRONG) or any(call.bits & STRONG for call in self.calls.values())

    def is_forgotten(self, call: int) -> bool:
        """Whether `call` is of this step, and so old that it is not known any more whether it was bad."""
        return self.first_call() <= call <= self._newest_gone

    def enter_before(self, seq: int) -> tuple[int, int, int, int] | None:
        """The root forward that was the last to begin before `seq`."""
        return next((enter for enter in reversed(self.enters) if enter[0] < seq), None)

    def batch_at(self, seq: int) -> int | None:
        enter = self.enter_before(seq)
        return None if enter is None else enter[2]

    def is_root(self, call: int) -> bool:
        return any(enter[1] == call for enter in self.enters)

    def first_call(self) -> int:
        """Calls below this id belong to earlier steps."""
        return self._first_call

    def bad_inputs(self, call: int) -> int:
        """Bits of everything the call was given; 0 also where nothing was recorded."""
        return _union(self.inputs.get(call, {}).values())

    def outputs_before(self, parent: int, seq: int) -> int:
        """Bits of what the bad children of `parent` had returned before `seq`: what its own code had at hand."""
        bits = 0 if parent else self._gone_top_bits
        for child in self.children.get(parent, ()):
            if child.seq >= seq or bits == NAN | INF:
                break
            bits |= child.bits
        return bits

    def all_outputs_before(self, seq: int) -> int:
        """Bits of everything any bad call had returned before `seq`."""
        bits = self._gone_bits
        for call in self.calls.values():
            if call.seq >= seq or bits == NAN | INF:
                break
            bits |= call.bits
        return bits

    def outermost_id(self, call: BadCall) -> int:
        """Id of the outermost call around `call` that is on record; its own where it ran in none."""
        number = call.parent or call.call
        while (outer := self.calls.get(number)) is not None and outer.parent:
            number = outer.parent
        return number

    def climb(self, call: BadCall) -> tuple[list[BadCall], BadCall | None]:
        """The bad calls around `call`, from itself outwards, and the outermost one if the badness got that far."""
        path = [call]
        while call.parent:
            outer = self.calls.get(call.parent)
            if outer is None or outer in path:  # the enclosing call ended well: absorbed there, or read elsewhere
                outer = next((reader for reader in self.readers.get(call.call, ()) if reader not in path), None)
            if outer is None:
                return path, None
            path.append(outer)
            call = outer
        return path, None if call.recompute else call


def _union(facts: Any) -> int:
    bits = 0
    for fact in facts:
        bits |= fact.bits
    return bits


def fresh(bits: int, context: int) -> int:
    """Which bits of a value were made here, given what the code had at hand: 0 means it only handed something on.

    NaN is new unless NaN came in (also when Inf came in: Inf - Inf). Inf is new only if nothing bad came in.
    """
    if bits & NAN and not context & NAN:
        return NAN
    if bits & INF and not context:
        return bits & INF
    return 0
