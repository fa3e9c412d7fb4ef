"""The rules of the op level on synthetic call records: origin, carrier, absorbed, meant, external, and the ways out."""

from __future__ import annotations

import numpy as np
import pytest

from nanscan.origin import OpOrigin
from nanscan.origin.op_calls import CALL_DTYPE, MAX_CALL_INPUTS, CallBit, CallKind, Holds
from nanscan.record import RECORD_DTYPE, DType, Flag, LinkCode, Phase
from nanscan.sites import NO_SITE, SiteTable

NAN, POS, NEG = Holds.NAN, Holds.POS, Holds.NEG
BAD = NAN | POS | NEG
OUTSIDE = Holds.OUTSIDE


class Play:
    """Writes call records as the observer would. Values are call ids."""

    def __init__(self):
        self.sites = SiteTable()
        self.net = self.sites.add_module("net", "Net")
        self.weight = self.sites.add_parameter("net.weight", "net", "Net")
        self.names = []
        self.origin = OpOrigin(
            self.sites, {0: (), 1: (4,)}.__getitem__, lambda i: self.names[i], lambda i: f"/u/code.py:{i}" if i else ""
        )
        self.records, self.seq, self.calls, self.step = [], 0, 0, 0

    def write(self, layout, **fields):
        self.seq += 1
        record = np.zeros(1, layout)
        for name, value in {"seq": self.seq, "step": self.step, "device": -1, **fields}.items():
            record[name] = value
        self.records.append(record.view(RECORD_DTYPE))

    def stats(self, call, holds, index=0, n=4, flags=0, site=NO_SITE):
        bad = Flag.BAD if holds & BAD else 0
        self.write(
            RECORD_DTYPE, call=call, site=site, n=n, n_nan=bool(holds & NAN), n_posinf=bool(holds & POS),
            n_neginf=bool(holds & NEG), dtype=DType.F32, flags=flags | bad, output_index=index, shape=1,
            first_bad=0 if bad else -1,
        )  # fmt: skip

    def call(
        self, op, reads=(), makes=0, *, kind=CallKind.OP, bits=0, phase=Phase.FORWARD, forward=0, line=0, n=4,
        clean_at=None, site=None,
    ):  # fmt: skip
        """One call. reads: (value, Holds) pairs. Returns the id of its result."""
        self.calls += 1
        call = self.calls
        if op not in self.names:
            self.names.append(op)
        inputs = np.zeros(MAX_CALL_INPUTS, np.uint64)
        for i, (value, holds) in enumerate(reads):
            inputs[i] = value << 8 | int(holds)
        if kind == CallKind.NODE:
            inputs[-1] = forward
        self.write(
            CALL_DTYPE, call=call, site=self.net if site is None else site, bits=int(bits), flags=int(Flag.CALL),
            op=self.names.index(op), line=line or call, kind=kind, n_inputs=len(reads), n_outputs=1,
            output_bits=int(makes), inputs=inputs, output=call, phase=phase,
        )  # fmt: skip
        if makes:
            self.stats(call, makes)
        for i, (_, holds) in enumerate(reads):
            owner = self.weight if holds & Holds.PARAM else NO_SITE
            flags = Flag.INPUT | (Flag.CHANGED if holds & Holds.CHANGED else 0)
            self.stats(call, holds, index=i, n=n, flags=flags, site=owner)
            if holds & Holds.CHANGED and clean_at:
                self.write(
                    RECORD_DTYPE, call=call, flags=Flag.LINK, n=LinkCode.PRODUCER_OF_INPUT, site=self.net,
                    n_zero=clean_at, output_index=i,
                )  # fmt: skip
        return call

    def top(self, value, holds=NAN):
        self.call("", [(value, holds)], kind=CallKind.TOP)

    def leaf(self, value, holds=NAN):
        self.call("", [(value, holds)], kind=CallKind.LEAF, phase=Phase.BACKWARD)

    def decide(self, point="boundary", **verdict):
        if self.records:
            self.origin.feed(np.concatenate(self.records))
            self.records = []
        events = self.origin.decide(point, **verdict)
        if point == "boundary":
            self.step += 1
        return events


def brief(events):
    return [(e.severity, e.role, e.phase, e.op) for e in events]


@pytest.fixture
def play():
    return Play()


def test_a_nan_out_of_clean_inputs_is_the_origin(play):
    play.top(play.call("aten::log", [(99, 0)], NAN, line=12))
    (event,) = play.decide()
    assert brief([event]) == [("error", "origin", "forward", "aten::log")]
    assert (event.module, event.kind, event.step, event.source) == ("net", "nan", 0, "/u/code.py:12")
    assert "the value reached the model's output" in event.evidence


def test_carriers_are_links_of_the_chain_and_no_events(play):
    value = play.call("aten::log", [(99, 0)], NAN)
    for op in ("aten::mul", "aten::add"):
        value = play.call(op, [(value, NAN)], NAN)
    play.top(value)
    (event,) = play.decide()
    assert [link.split()[0] for link in event.chain] == ["aten::log", "aten::mul", "aten::add"]


def test_an_inf_that_turns_into_nan_is_the_origin_not_the_nan(play):
    inf = play.call("aten::exp", [(99, 0)], POS)
    play.top(play.call("aten::sub", [(inf, POS), (inf, POS)], NAN))
    (event,) = play.decide()
    assert (event.op, event.kind) == ("aten::exp", "inf")
    assert [link.split()[0] for link in event.chain] == ["aten::exp", "aten::sub"]


def test_a_constant_that_was_asked_for_is_no_origin(play):
    mask = play.call("aten::masked_fill", [(99, 0)], NEG, bits=CallBit.CONSTANT | CallBit.SELECTS)
    play.call("aten::_softmax", [(mask, NEG)], 0, bits=CallBit.SELECTS)
    assert play.decide() == []


def test_a_nan_out_of_a_deliberate_inf_is_the_origin(play):
    mask = play.call("aten::masked_fill", [(99, 0)], NEG, bits=CallBit.CONSTANT | CallBit.SELECTS)
    play.top(play.call("aten::_softmax", [(mask, NEG)], NAN, bits=CallBit.SELECTS))
    assert brief(play.decide()) == [("error", "origin", "forward", "aten::_softmax")]


def test_a_constant_written_into_a_parameter_is_not_meant(play):
    play.call("aten::fill_", [], NAN, bits=CallBit.CONSTANT | CallBit.WRITES_PARAM, phase=Phase.OPTIMIZER)
    assert brief(play.decide()) == [("error", "origin", "optimizer", "aten::fill_")]


def test_absorbed_by_selection_is_info(play):
    value = play.call("aten::log", [(99, 0)], NEG)
    play.call("aten::where", [(value, NEG)], 0, bits=CallBit.SELECTS)
    (event,) = play.decide()
    assert brief([event]) == [("info", "absorbed", "forward", "aten::log")]


def test_absorbed_by_selection_is_told_once_per_place(play):
    for expected in (1, 0):
        value = play.call("aten::log", [(99, 0)], NEG, line=5)
        play.call("aten::where", [(value, NEG)], 0, bits=CallBit.SELECTS)
        assert len(play.decide()) == expected


def test_inf_lost_by_arithmetic_is_a_warning(play):
    value = play.call("aten::exp", [(99, 0)], POS)
    play.call("aten::div", [(98, 0), (value, POS)], 0, line=7)
    (event,) = play.decide()
    assert brief([event]) == [("warning", "origin", "forward", "aten::exp")]
    assert any("lost by arithmetic at aten::div" in text for text in event.evidence)


def test_minus_inf_lost_by_arithmetic_is_log_space_zero(play):
    value = play.call("aten::log", [(99, 0)], NEG)
    play.call("aten::exp", [(value, NEG)], 0)
    assert [e.severity for e in play.decide()] == ["info"]


def test_bad_data_is_external(play):
    play.top(play.call("aten::addmm", [(99, NAN | OUTSIDE)], NAN))
    (event,) = play.decide()
    assert brief([event]) == [("error", "external", "data", "aten::addmm")]
    assert event.reader == "aten::addmm"


def test_a_single_number_from_outside_is_a_constant(play):
    value = play.call("aten::where", [(99, NEG | OUTSIDE)], NEG, n=1, bits=CallBit.SELECTS)
    play.top(value, NEG)
    assert [e for e in play.decide() if e.severity == "error"] == []


def test_a_bad_parameter_is_external_and_named(play):
    play.top(play.call("aten::addmm", [(99, NAN | OUTSIDE | Holds.PARAM)], NAN))
    (event,) = play.decide()
    assert (event.role, event.phase, event.tensor) == ("external", "forward", "net.weight")


def test_memory_written_behind_the_dispatcher(play):
    holds = NAN | OUTSIDE | Holds.CHANGED
    play.top(play.call("aten::sigmoid", [(99, holds)], NAN, line=8, clean_at=6))
    (event,) = play.decide()
    assert brief([event]) == [("error", "external", "forward", "aten::sigmoid")]
    assert event.last_clean == "net, code.py:6"
    assert event.evidence[2] == (
        "finite when last written at net, code.py:6, non-finite when read at aten::sigmoid in net, "
        "code.py:8, no observed write in between"
    )


def test_uninitialised_memory(play):
    play.top(play.call("aten::mul", [(99, NAN | Holds.UNINIT)], NAN))
    (event,) = play.decide()
    assert (event.role, event.cause) == ("uninitialised", "uninitialised memory")


def test_a_value_from_outside_that_goes_nowhere_is_silent(play):
    play.call("aten::where", [(99, NAN | OUTSIDE)], 0, bits=CallBit.SELECTS)
    assert [e for e in play.decide() if e.severity != "info"] == []


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (CallKind.TOP, "the model's output"), (CallKind.CHECK, "a check"), (CallKind.LOSS, "the loss"),
        (CallKind.LEAF, "a parameter's gradient"),
    ],
)  # fmt: skip
def test_ways_out(play, kind, where):
    play.call("", [(play.call("aten::log", [(99, 0)], NAN), NAN)], kind=kind)
    (event,) = play.decide()
    assert (event.severity, event.evidence) == (
        "error",
        ("its result holds 1 NaN among 4 elements", f"the value reached {where}"),
    )


def test_way_out_to_the_host(play):
    value = play.call("aten::log", [(99, 0)], NAN)
    play.call("aten::_local_scalar_dense", [(value, NAN)], bits=CallBit.HOST)
    assert [e.severity for e in play.decide()] == ["error"]


def test_minus_inf_that_a_model_hands_out_may_be_meant(play):
    play.top(play.call("aten::log", [(99, 0)], NEG), NEG)
    assert [e.severity for e in play.decide()] == ["info"]


def test_way_out_through_a_parameter(play):
    value = play.call("aten::div", [(99, 0)], NAN, phase=Phase.OPTIMIZER)
    play.call("aten::add_", [(value, NAN)], NAN, bits=CallBit.WRITES_PARAM, phase=Phase.OPTIMIZER)
    assert brief(play.decide()) == [("error", "origin", "optimizer", "aten::div")]


def test_first_bad_node_is_the_origin(play):
    bad = play.call("SqrtBackward0", [(99, 0)], NAN, kind=CallKind.NODE, phase=Phase.BACKWARD, line=3)
    play.leaf(play.call("MulBackward0", [(bad, NAN)], NAN, kind=CallKind.NODE, phase=Phase.BACKWARD))
    (event,) = play.decide()
    assert brief([event]) == [("error", "origin", "backward", "SqrtBackward0")]


def test_a_trap_blames_the_forward_op_that_was_absorbed(play):
    # GIVEN torch.where over a log(0): fine forward, and the log's own node makes 0 * inf
    log = play.call("aten::log", [(99, 0)], NEG, line=4)
    play.call("aten::where", [(log, NEG)], 0, bits=CallBit.SELECTS)
    bad = play.call("LogBackward0", [(98, 0)], NAN, kind=CallKind.NODE, phase=Phase.BACKWARD, forward=log)
    play.leaf(bad)
    (event,) = play.decide()
    assert brief([event]) == [("error", "origin", "forward", "aten::log")]
    assert "its own backward made the first bad gradient" in event.evidence


def test_skipped_steps_of_a_scaler_are_info_until_there_are_too_many(play):
    severities = []
    for _ in range(60):
        play.leaf(play.call("MulBackward0", [(99, 0)], POS, kind=CallKind.NODE, phase=Phase.BACKWARD), POS)
        assert play.decide("backward", scaler=True) == [], "told before the scaler's verdict"
        severities += [e.severity for e in play.decide(scaler=True, skipped=True)]
    assert severities[:3] == ["info"] * 3
    assert severities[-1] == "error"
    assert play.origin.counts["skips"] == severities.count("info")


def test_later_steps_after_a_bad_parameter_repeat_nothing(play):
    # GIVEN step 0: a NaN reaches a parameter
    grad = play.call("SqrtBackward0", [(99, 0)], NAN, kind=CallKind.NODE, phase=Phase.BACKWARD)
    play.leaf(grad)
    update = CallBit.WRITES_PARAM
    weight = play.call("aten::add_", [(grad, NAN)], NAN, bits=update, phase=Phase.OPTIMIZER)
    assert len(play.decide()) == 1
    # WHEN the next step runs on it
    loss = play.call("aten::pow", [(weight, NAN | Holds.PARAM)], NAN)
    play.top(loss)
    play.leaf(play.call("PowBackward0", [(98, 0)], NAN, kind=CallKind.NODE, phase=Phase.BACKWARD, forward=loss))
    # THEN nothing new is told, the node that works on a bad saved tensor included
    assert play.decide() == []


def test_two_origins_in_one_step_come_in_order(play):
    first = play.call("aten::log", [(99, 0)], NAN)
    second = play.call("aten::sqrt", [(98, 0)], NAN)
    play.top(second)
    play.top(first)
    assert [e.op for e in play.decide()] == ["aten::log", "aten::sqrt"]


def test_each_event_is_told_once(play):
    play.top(play.call("aten::log", [(99, 0)], NAN))
    assert len(play.decide("forward")) == 1
    for point in ("backward", "optimizer", "boundary"):
        assert play.decide(point) == []


def test_unknown_point_is_refused(play):
    with pytest.raises(ValueError, match=r"decide\(point='soon'\)"):
        play.origin.decide("soon")


def test_a_split_feed_is_the_same(play):
    play.top(play.call("aten::log", [(99, 0)], NAN))
    pieces = np.concatenate(play.records)
    calls = np.flatnonzero(pieces["flags"] & int(Flag.CALL))
    play.records = []
    play.origin.feed(pieces[: calls[1]])
    play.origin.feed(pieces[calls[1] :])
    assert brief(play.decide()) == [("error", "origin", "forward", "aten::log")]


def test_a_value_that_was_harmless_and_escapes_in_a_later_step(play):
    # GIVEN a bad value from outside, masked away in step 0
    play.call("aten::where", [(99, NAN | OUTSIDE)], 0, bits=CallBit.SELECTS)
    assert [e for e in play.decide() if e.severity == "error"] == []
    # WHEN step 1 hands it out
    play.top(play.call("aten::mul", [(99, NAN | OUTSIDE)], NAN))
    # THEN it is told, once, as of the step that read it first
    (event,) = play.decide()
    assert (event.severity, event.role, event.step) == ("error", "external", 0)
    assert play.decide() == []
