"""The first-culprit block, as golden text."""

from __future__ import annotations

import pytest

from nanscan.events import Aftermath
from nanscan.report import first_culprit_lines, warning_before, warning_lines


def golden(lines, text):
    assert lines == text.strip("\n").split("\n")


def test_forward_origin(make_event):
    lines = first_culprit_lines(
        make_event(),
        history=[9.0, 31.2, 30.9, 31.5, 31.1, 30.8],
        after=Aftermath(outputs=4, gradients=290, n_gradients=290, parameters=290, later_steps=9310),
        world_size=8,
    )
    golden(
        lines,
        """
nanscan: FIRST NON-FINITE  step 1843  rank 0/8  forward
  where   layers.17.attn  Attention  output[0]  bf16 (8, 32, 1024, 1024)
  value   65536 NaN of 268 M (0.024 %), first at [0, 0, 0, 1023]; the rest max|x| 31.2
  inputs  all finite, max|x| 4.5
  before  max|x| last 5 steps: 31.2 30.9 31.5 31.1 30.8  (flat, so not a slow overflow)
  after   4 later module outputs and 290/290 parameter gradients bad in the same step; 290
          parameters left bad; 9310 later steps bad because of it, not shown
  chain   layers.17.attn > layers.17 > head > Net
  next    put nanscan.check(tensor, 'name') inside layers.17.attn to find the line
""",
    )


def test_bad_input_data(make_event, make_stats):
    event = make_event(
        role="external", phase="data", module="0", module_type="Linear", tensor="input 0", output_index=None, batch=12,
        step=3, shape=(2, 2), stats=make_stats(nan=1, numel=4, index=2, dtype="float32"), first_bad_index=2,
        cause="bad input data", inputs={}, evidence=("input 0 holds 1 NaN among 4 elements",), chain=("input 0", "0"),
        remedy="look at input 0 of batch 12: drop or repair its non-finite entries before the model",
    )  # fmt: skip
    golden(
        first_culprit_lines(event),
        """
nanscan: FIRST NON-FINITE  step 3  batch 12  data
  where   0  Linear  input 0  fp32 (2, 2)
  value   1 NaN of 4 (25 %), first at [1, 0]; the rest max|x| 31.2
  why     bad input data
  chain   input 0 > 0
  next    look at input 0 of batch 12: drop or repair its non-finite entries before the model
""",
    )


def test_loss_code_and_optimizer(make_event, make_stats):
    event = make_event(
        phase="backward", module=None, module_type=None, output_index=None, inputs={}, chain=(), shape=(1,), kind="inf",
        stats=make_stats(posinf=1, numel=1, index=0), first_bad_index=0, remedy=None,
        evidence=("the gradient holds 1 +Inf among 1 elements", "bad gradient enters the root's output (Net)"),
    )  # fmt: skip
    golden(
        first_culprit_lines(event, after=Aftermath(gradients=2, n_gradients=4, skipped=True)),
        """
nanscan: FIRST NON-FINITE  step 1843  backward
  where   after the model, in the loss code  bf16 (1)
  value   1 +Inf of 1, first at [0]
  why     bad gradient enters the root's output (Net)
  after   2/4 parameter gradients bad in the same step; the step was skipped
  next    print(scanner.first) shows every field of the event
""",
    )
    event = make_event(phase="optimizer", module=None, module_type=None, output_index=None, tensor="fc.weight")
    assert first_culprit_lines(event)[1] == "  where   fc.weight  bf16 (8, 32, 1024, 1024)"


def test_check(make_event, make_stats):
    event = make_event(
        module="block",
        module_type="Block",
        tensor="scores",
        tensor_kind="check",
        output_index=None,
        inputs={},
        chain=(),
    )
    assert first_culprit_lines(event)[1] == "  where   check 'scores'  in block  Block  bf16 (8, 32, 1024, 1024)"
    event = make_event(
        module=None, tensor="loss", tensor_kind="check", output_index=None, inputs={}, chain=(), shape=(),
        stats=make_stats(nan=1, numel=1, index=0, absmax=float("nan")), first_bad_index=0,
    )  # fmt: skip
    golden(
        first_culprit_lines(event)[1:3],
        """
  where   check 'loss'  outside every module  bf16 ()
  value   1 NaN of 1
""",
    )


def test_gradients(make_event):
    event = make_event(phase="optimizer", module=None, tensor="0.weight", tensor_kind="gradient", output_index=None)
    assert first_culprit_lines(event)[1] == "  where   0.weight.grad  bf16 (8, 32, 1024, 1024)"
    event = make_event(phase="backward", module=None, tensor="0.weight", tensor_kind="gradient", output_index=None)
    assert first_culprit_lines(event)[1].startswith(
        "  where   in the loss code or a compiled backward  0.weight.grad  "
    )


@pytest.fixture
def make_warning(make_event):
    def make(**fields):
        base = {
            "severity": "warning", "kind": "explosion", "phase": "backward", "step": 1840, "module": "0",
            "module_type": "Linear", "stats": None,
            "remedy": "lower the learning rate; then look at the site named here",
            "evidence": (
                "the gradient of 0.bias has RMS 1.17e+03, 2.5e+03 times the largest value before (0.472)", "more",
            ),
        }  # fmt: skip
        return make_event(**{**base, **fields})

    return make


def test_a_growth_that_was_warned_of_is_not_hidden(make_event, make_warning):
    lines = first_culprit_lines(make_event(), warned=make_warning())
    golden(
        lines[-5:],
        """
  warned  step 1840: the gradient of 0.bias has RMS 1.17e+03, 2.5e+03 times the largest value before
          (0.472)
  chain   layers.17.attn > layers.17 > head > Net
  next    lower the learning rate; then put nanscan.check(tensor, 'name') inside layers.17.attn to
          find the line
""",
    )


@pytest.mark.parametrize(
    ("event", "warned"),
    [
        pytest.param({"step": 5000}, {}, id="long ago"),
        pytest.param({"role": "external"}, {}, id="bad data is not cured by a learning rate"),
        pytest.param({}, {"kind": "inf", "role": "origin"}, id="no growth"),
    ],
)
def test_what_is_done_about_a_growth_comes_first_only_where_it_fits(make_event, make_warning, event, warned):
    lines = first_culprit_lines(make_event(**event), warned=make_warning(**warned))
    assert any(line.startswith("  warned  step 1840: ") for line in lines)
    assert lines[-1] == "  next    put nanscan.check(tensor, 'name') inside layers.17.attn to find the line"


def test_the_last_warning_before_the_step_on_that_rank(make_event, make_warning):
    event = make_event(step=9)
    steps = [(3, 0), (7, 0), (8, 1), (9, 0)]
    found = warning_before(event, [make_warning(step=step, rank=rank) for step, rank in steps])
    assert (found.step, found.rank) == (7, 0)
    assert warning_before(event, [make_event(step=1)]) is None


def test_a_next_command_is_not_cut(make_event, make_warning):
    long = "word " * 60
    lines = first_culprit_lines(
        make_event(evidence=("x", long), source=long, remedy=f"print({'word ' * 45}end)", last_clean=long),
        history=[1.0] * 5, after=Aftermath(1, 2, 3, 4, 5, True), warned=make_warning(kind="dead"),
    )  # fmt: skip
    assert len(lines) == 12
    assert max(map(len, lines)) <= 100
    assert lines[-3].startswith("  next    print(word ")
    assert lines[-1].endswith(" end)")


def test_memory_names_both_sides(make_event):
    event = make_event(
        role="external", tensor="input 1", last_clean="layers.3", cause="memory written outside the dispatcher"
    )
    lines = first_culprit_lines(event)
    assert "  why     memory written outside the dispatcher" in lines
    assert "  clean   the same memory was last seen clean at layers.3" in lines


def test_an_unscannable_place_still_has_a_block(make_event):
    lines = first_culprit_lines(
        make_event(stats=None, inputs={}, evidence=(), chain=(), first_bad_index=None, shape=None)
    )
    assert len(lines) == 3
    assert lines[-1].startswith("  next    ")


@pytest.mark.parametrize("length", [1, 60, 200, 1000])
def test_at_most_twelve_lines_of_a_hundred_ascii_columns(make_event, length):
    name = "ünïcode." * length
    event = make_event(
        module=name, chain=(name,) * 8, evidence=("x", *("long sentence " * length,) * 5), source=name, last_clean=name,
        op=name, cause="division by zero", remedy="call " * length,
    )  # fmt: skip
    lines = first_culprit_lines(
        event, history=[1.0] * 9, after=Aftermath(1, 2, 3, 4, 5, True), next_step="the next thing to do"
    )
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 100
    assert all(line.isascii() and "\n" not in line for line in lines)
    assert lines[-1] == "  next    the next thing to do"


@pytest.mark.parametrize(
    ("history", "note"),
    [
        ([1.0, 1.1, 1.05], "flat, so not a slow overflow"),
        ([1.0, 4.0, 16.0], "growing 16x"),
        ([1.0, 16.0, 4.0], None),
        ([1.0, 1.0], None),
        ([1.0, float("nan"), 1.0], None),
    ],
)
def test_what_the_history_says(make_event, history, note):
    (line,) = (line for line in first_culprit_lines(make_event(), history=history) if line.startswith("  before"))
    assert line.endswith(f"({note})") if note else "(" not in line


def test_a_warning_of_growth_has_its_own_form(make_event):
    event = make_event(
        severity="warning", kind="explosion", phase="backward", module="blocks.3", module_type="Block", step=52,
        stats=None, evidence=(
            "the gradient reaching blocks.3 has RMS 812, 41.0 times the median of its last 20 steps (19.8), and above "
            "every value it had settled at", "now 812, median 19.8",
        ),
        remedy="lower the learning rate or clip gradients",
    )  # fmt: skip
    golden(
        warning_lines(event),
        """
nanscan: WARNING  explosion  step 52  backward
  where   blocks.3 (Block)
  what    the gradient reaching blocks.3 has RMS 812, 41.0 times the median of its last 20 steps
          (19.8), and above every value it had settled at
  facts   now 812, median 19.8
  next    lower the learning rate or clip gradients
""",
    )


def test_a_non_finite_warning_keeps_the_block(make_event):
    lines = warning_lines(make_event(severity="warning", kind="inf"))
    assert lines[0] == "nanscan: WARNING  inf in layers.17.attn (Attention)  step 1843  forward"
    assert lines[1].startswith("  where   layers.17.attn")
