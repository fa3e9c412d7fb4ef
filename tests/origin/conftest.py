"""A small stand-in for the write side: plays module calls and writes the records that the hooks would write."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from nanscan.origin import ModuleOrigin
from nanscan.record import RECORD_DTYPE, DType, Flag, LinkCode, Phase
from nanscan.sites import NO_SITE, SiteTable

SHAPES = {1: (4, 8)}
COUNTS = {"ok": (0, 0, 0), "nan": (2, 0, 0), "inf": (0, 2, 0), "-inf": (0, 0, 2), "both": (1, 1, 0), "±inf": (0, 1, 1)}
MODULES = {
    "": "Net", "a": "Linear", "b": "Linear", "block": "Block", "block.norm": "LayerNorm", "block.fc": "Linear",
    "block.mask": "Mask", "head": "Linear",
}  # fmt: skip
PARAMETERS = ("a.weight", "b.weight", "block.fc.weight", "head.weight", "head.bias")
BUFFERS = ("block.norm.running_var",)


class Value:
    """A tensor: what it holds, and where hooks have seen it."""

    def __init__(self, kind="ok", site=NO_SITE, call=0):
        self.kind, self.site, self.call, self.changed = kind, site, call, False


class Frame:
    def __init__(self, call, site, parent, inputs, root):
        self.call, self.site, self.parent, self.inputs, self.is_root = call, site, parent, inputs, root
        self.out = "ok"
        self.params = ()
        self.recompute = False
        self.value = None


class Sim:
    """Plays steps and feeds what a scanner would feed: flagged records only."""

    def __init__(self, **options):
        self.sites = SiteTable()
        self.base = {name: self.sites.add_module(name, kind) for name, kind in MODULES.items()}
        self.params = {n: self.sites.add_parameter(n, *self.owner(n)) for n in PARAMETERS}
        self.buffers = {n: self.sites.add_buffer(n, *self.owner(n)) for n in BUFFERS}
        self.origin = ModuleOrigin(self.sites, SHAPES.__getitem__, rank=0, clock=lambda: 7.0, **options)
        self.step = self.seq = self.calls = self.batch = 0
        self.stack, self.records = [], []

    def owner(self, name):
        module = name.rpartition(".")[0]
        return module, MODULES[module]

    # ---- records

    def write(self, **fields):
        self.seq += 1
        record = np.zeros(1, RECORD_DTYPE)
        values = {"seq": self.seq, "step": self.step, "device": -1, "first_bad": -1, **fields}
        for name, value in values.items():
            record[name] = value
        self.records.append(record)

    def stats(self, kind, low=-1.0, high=2.0, dtype=DType.F32, **fields):
        nan, pos, neg = COUNTS[kind]
        bad = nan + pos + neg
        flags = fields.pop("flags", 0) | (Flag.BAD if bad else 0)
        self.write(
            n=32, n_nan=nan, n_posinf=pos, n_neginf=neg, min=low, max=high, mean=0.5, m2=8.0, dtype=dtype,
            first_bad=9 if bad else -1, shape=1 if bad else 0, flags=flags, **fields,
        )  # fmt: skip

    def link(self, code, call, site, other=0, index=0, **fields):
        self.write(flags=Flag.LINK, call=call, site=site, n=code, n_nan=other, output_index=index, **fields)

    # ---- forward

    @contextmanager
    def call(self, name, inputs=(), root=False, **stats):
        self.calls += 1
        frame = Frame(self.calls, self.base[name], self.stack[-1] if self.stack else None, list(inputs), root)
        known = [value.site != NO_SITE for value in inputs]
        before = [(value.site, value.call) for value in inputs]
        if root:
            self.write(call=frame.call, site=frame.site, flags=Flag.ENTER, n=self.batch, phase=Phase.FORWARD)
            self.batch += 1
            for i, value in enumerate(inputs):
                self.input(frame, i, value, Phase.DATA)
                if value.site == NO_SITE:
                    value.site, value.call = frame.site + 1, frame.call
        self.stack.append(frame)
        yield frame
        self.stack.pop()
        made = frame.out if isinstance(frame.out, list) else [frame.out]
        values = [Value(out) if isinstance(out, str) else out for out in made]
        bad = False
        for i, value in enumerate(values):
            if value.kind == "ok":
                continue
            bad = True
            flags = (0 if self.stack or frame.recompute else Flag.TOP) | (Flag.RECOMPUTE if frame.recompute else 0)
            self.stats(value.kind, flags=flags, call=frame.call, site=frame.site, output_index=i,
                       phase=Phase.FORWARD, **stats)  # fmt: skip
        for value in values:
            if value.site == NO_SITE:
                value.site, value.call = frame.site, frame.call
        if bad:
            for i, value in enumerate(inputs):
                flags = (Flag.KNOWN if known[i] or root else 0) | (Flag.CHANGED if value.changed else 0)
                self.input(frame, i, value, Phase.FORWARD, flags)
                site, call = before[i] if known[i] else (value.site, value.call) if root else (NO_SITE, 0)
                if site != NO_SITE:
                    self.link(LinkCode.PRODUCER_OF_INPUT, frame.call, site, call, index=i)
                value.changed = False
            for parameter, kind in frame.params:
                site = self.params.get(parameter, self.buffers.get(parameter))
                self.stats(kind, flags=Flag.PARAM, call=frame.call, site=site, phase=Phase.FORWARD)
            parent = frame.parent
            self.link(LinkCode.PARENT, frame.call, parent.site if parent else NO_SITE, parent.call if parent else 0)
        frame.value = values[0] if len(values) == 1 else values

    def input(self, frame, i, value, phase, flags=0):
        self.stats(
            value.kind, flags=Flag.INPUT | flags, call=frame.call, site=frame.site + 1, output_index=i, phase=phase
        )

    def leaf(self, name, inputs=(), out="ok", params=(), **stats):
        """A module without modules inside; returns its output."""
        with self.call(name, inputs, **stats) as frame:
            frame.out, frame.params = out, params
        return frame.value

    def forward(self, out="ok", data="ok", **leaves):
        """The usual step: root(a, head); `leaves` gives outputs, e.g. a="nan"."""
        with self.call("", [Value(data)], root=True) as root:
            h = self.leaf("a", root.inputs, leaves.get("a", "ok"))
            self.leaf("head", [h], leaves.get("head", leaves.get("a", "ok")))
            root.out = out
        return root

    # ---- backward, optimizer, checks

    def grad(self, kind, producers=(), readers=()):
        self.calls += 1
        value = self.calls
        site = producers[0].site + 2 if producers else readers[0].site + 3
        self.stats(kind, call=value, site=site, phase=Phase.BACKWARD)
        for code, frames, offset in ((LinkCode.GRAD_PRODUCER, producers, 0), (LinkCode.GRAD_CONSUMER, readers, 1)):
            for frame in frames:
                parent = frame.parent
                self.link(code, value, frame.site + offset, frame.call, n_posinf=parent.call if parent else 0,
                          n_neginf=parent.site if parent else NO_SITE, phase=Phase.BACKWARD)  # fmt: skip

    def param_grads(self, kind="nan", names=PARAMETERS, phase=Phase.BACKWARD):
        for name in names:
            self.stats(kind, site=self.params[name] + 1, phase=phase)

    def values(self, kind="nan", names=PARAMETERS, phase=Phase.OPTIMIZER):
        for name in names:
            self.stats(kind, site=self.params.get(name, self.buffers.get(name)), phase=phase)

    def check(self, name, kind, module=None, phase=Phase.FORWARD):
        self.stats(
            kind, site=self.sites.add_check(name, module), phase=phase, call=self.stack[-1].call if self.stack else 0
        )

    # ---- the read side

    def decide(self, point, **verdict):
        if self.records:
            pieces = np.concatenate(self.records)
            self.records = []
            keep = Flag.BAD | Flag.INPUT | Flag.PARAM | Flag.LINK | Flag.ENTER | Flag.CHANGED
            half = len(pieces) // 2  # pieces may come in any portions
            for piece in (pieces[:half], pieces[half:]):
                self.origin.feed(piece[(piece["flags"] & int(keep)) != 0])
                self.origin.witness(piece)
        events = self.origin.decide(point, **verdict)
        if point == "boundary":
            self.step += 1
        return events

    def end(self, **verdict):
        """The rest of the step; every event that comes out."""
        return self.decide("boundary", **verdict)


@pytest.fixture
def sim():
    return Sim()


@pytest.fixture
def make_sim():
    return Sim


@pytest.fixture
def value():
    return Value


def _brief(events):
    return [(e.severity, e.role, e.phase, e.module, e.tensor) for e in events]


@pytest.fixture
def brief():
    """Events as (severity, role, phase, module, tensor)."""
    return _brief
