"""What followed the first error: every number of the "after" row, compared with the tensors themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

import nanscan
from nanscan.origin import ModuleOrigin, OpOrigin

NAN, INF = float("nan"), float("inf")
LEVELS = pytest.mark.parametrize("level", ["module", "op"])


class _BadGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Tail(nn.Module):
    """A linear layer whose weight alone gets a bad gradient, on demand."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)
        self.factor = None

    def forward(self, x):
        weight = self.fc.weight if self.factor is None else _BadGrad.apply(self.fc.weight, self.factor)
        return nn.functional.linear(x, weight, self.fc.bias)


class Program:
    """Linear, BatchNorm, a trap, Linear, Tail; `step` runs one training step and counts what is bad in the tensors."""

    def __init__(self, make_net, optimizer=torch.optim.SGD):
        torch.manual_seed(0)
        trap = make_net().trap
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), trap, nn.Linear(8, 8), Tail())
        self.trap, self.tail = trap, self.net[4]
        self.optimizer = optimizer(list(self.net.parameters()), lr=1e-3)
        self.left, self.after, self.zeros = [], [], []  # gradients at the end of backward, and at the update
        self.n_gradients, self.parameters, self.buffers = [], [], []

    def step(self, *, bad=None, factor=None, clip=None, micro_batches=1, between=None):
        self.optimizer.zero_grad()
        for i in range(micro_batches):
            self.trap.bad, self.tail.factor = (bad, factor) if i == 0 else (None, None)
            (self.net(torch.randn(5, 4)).square().mean() / micro_batches).backward()
        gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
        self.left.append(count_bad(gradients))
        if clip is not None:
            clip_grad_norm_(self.net.parameters(), 1.0, foreach=clip)
        if between is not None:
            between(self)
        self.after.append(count_bad(gradients))
        self.zeros.append(sum(not g.any() for g in gradients))
        self.n_gradients.append(len(gradients))
        self.optimizer.step()
        self.parameters.append(count_bad(self.net.parameters()))
        self.buffers.append(count_bad(b for b in self.net.buffers() if b.is_floating_point()))


def count_bad(tensors):
    return sum(not bool(t.detach().isfinite().all()) for t in tensors)


def aftermath(scanner):
    scanner.flush()
    return scanner._levels.aftermath


@pytest.fixture
def program(make_net):
    return Program(make_net)


def watch(program, level, **options):
    return nanscan.enable(program.net, level=level, on_anomaly="record", escalate=False, **options)


@LEVELS
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
def test_counts_are_those_of_the_tensors(make_net, level, optimizer):
    program = Program(make_net, optimizer)
    scanner = watch(program, level)
    for i in range(7):
        program.step(bad="forward" if i == 3 else None)
    after = aftermath(scanner)
    assert scanner.first.step == 3
    assert (after.gradients, after.n_gradients) == (program.after[3], program.n_gradients[3]) == (8, 8)
    assert (after.parameters, after.buffers) == (program.parameters[3], program.buffers[3]) == (8, 0)
    assert after.last_clean == max(i for i in range(7) if program.parameters[i] == 0) == 2
    assert after.later_steps == 3
    assert not after.skipped
    assert "8 parameters left bad; last clean step: 2; 3 later steps bad because of it" in flat(scanner.report())


def flat(text):
    return " ".join(text.split())


@LEVELS
def test_what_has_no_gradient_is_not_among_all(program, level):
    program.net[0].requires_grad_(False)
    scanner = watch(program, level)
    for i in range(3):
        program.step(factor=NAN if i == 1 else None)
    after = aftermath(scanner)
    assert (after.gradients, after.n_gradients) == (1, program.n_gradients[1]) == (1, 6)
    assert after.parameters == program.parameters[1] == 1


@LEVELS
def test_running_statistics_are_no_parameters(program, level):
    # GIVEN a NaN in the batch, which the batch norm averages in
    scanner = watch(program, level)
    program.step()
    program.optimizer.zero_grad()
    program.net(torch.full((5, 4), NAN)).square().mean().backward()
    program.optimizer.step()
    after = aftermath(scanner)
    assert after.parameters == count_bad(program.net.parameters()) == 8
    assert after.buffers == count_bad([program.net[1].running_mean, program.net[1].running_var]) == 2
    assert after.last_clean == 0
    if level == "module":  # the other block has too much to say
        assert "8 parameters and 2 buffers left bad; last clean step: 0" in flat(scanner.report())


@pytest.mark.parametrize("level", ["module", "op"])
def test_masks_are_not_left_bad(level):
    # GIVEN a buffer that holds -inf, as a mask does, and one of NaN that nobody has filled yet
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("mask", torch.full((4,), -INF))
            self.register_buffer("best", torch.full((4,), NAN))

        def forward(self, x):
            return self.fc(x)

    net = Masked()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scanner = nanscan.enable(net, level=level, on_anomaly="record", escalate=False)
    for i in range(3):
        optimizer.zero_grad()
        (net(torch.ones(2, 4)).sum() * (NAN if i == 1 else 1.0)).backward()
        optimizer.step()
    after = aftermath(scanner)
    assert (after.parameters, after.buffers, after.last_clean) == (2, 0, 0)


class _CountBad(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.n += isinstance(out, torch.Tensor) and out.is_floating_point() and not bool(out.isfinite().all())
        return out


def test_later_ops_are_counted_one_by_one():
    def ops(x):
        y = (x - 2).log()  # the origin
        z = y * 2 + 1
        mask = torch.zeros(3).masked_fill(torch.tensor([True, False, False]), -INF)  # meant, and no consequence
        return z.exp().sum() + torch.softmax(mask, 0).sum()

    with _CountBad() as mode, torch.no_grad():
        ops(torch.ones(3))
    with nanscan.trace(on_anomaly="record") as scanner, torch.no_grad():
        nanscan.check(ops(torch.ones(3)), "result")
        after = aftermath(scanner)
    assert scanner.first.op == "aten::log"
    assert after.ops == mode.n - 2 == 5  # without the origin and the mask
    assert "5 later ops bad in the same step" in scanner.report()


@LEVELS
@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "one by one"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_clipping_spreads_a_nan(program, level, foreach, micro_batches):
    scanner = watch(program, level)
    for i in range(5):
        program.step(factor=NAN if i == 2 else None, clip=foreach, micro_batches=micro_batches)
    after = aftermath(scanner)
    assert (scanner.first.step, scanner.first.phase) == (2, "backward")
    assert (after.spread_from, after.spread_to) == (program.left[2], program.after[2]) == (1, 8)
    assert (after.gradients, after.n_gradients) == (program.after[2], program.n_gradients[2])
    assert after.parameters == program.parameters[2] == 8
    assert after.zeroed == 0
    assert "clipping spread it from 1 to 8 of 8 gradients" in flat(scanner.report())


@LEVELS
def test_clipping_has_spread_nothing_where_all_were_bad(program, level):
    scanner = watch(program, level)
    for i in range(3):
        program.step(bad="forward" if i == 1 else None, clip=True)
    assert program.left[1] == program.after[1] == 8
    assert aftermath(scanner).spread_to == 0
    assert "clipping" not in scanner.report()


@LEVELS
@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "one by one"])
def test_clipping_by_an_infinite_norm_leaves_zeros(program, level, foreach):
    scanner = watch(program, level)
    for i in range(4):
        program.step(factor=INF if i == 2 else None, clip=foreach)
    after = aftermath(scanner)
    assert after.zeroed == program.zeros[2] == 7
    assert (after.gradients, after.spread_to) == (1, 0)
    assert after.parameters == program.parameters[2] == 1
    assert "clipping by an infinite norm has set the other 7 gradients to 0" in flat(scanner.report())


def _zero_the_rest(program):
    for parameter in program.net.parameters():
        if parameter is not program.tail.fc.weight:
            parameter.grad.zero_()


def _spoil_a_part(program):
    program.net[0].weight.grad[0] = NAN


@LEVELS
@pytest.mark.parametrize(
    ("factor", "between"),
    [
        pytest.param(NAN, _spoil_a_part, id="a part of one more"),
        pytest.param(INF, _zero_the_rest, id="zeros beside an Inf that stayed"),
        pytest.param(NAN, _zero_the_rest, id="zeros beside a NaN"),
    ],
)
def test_other_code_before_the_update_is_not_called_clipping(program, level, factor, between):
    scanner = watch(program, level)
    for i in range(3):
        program.step(factor=factor if i == 1 else None, between=between if i == 1 else None)
    after = aftermath(scanner)
    assert (after.spread_to, after.zeroed) == (0, 0)
    assert after.gradients == program.after[1]


@LEVELS
def test_the_last_clean_step_is_a_watched_one(program, level):
    scanner = watch(program, level, every=2)
    for i in range(7):
        program.step(bad="forward" if i == 4 else None)
    assert scanner.first.step == 4
    assert aftermath(scanner).last_clean == 2


@LEVELS
def test_there_is_no_clean_step_before_the_first(program, level):
    scanner = watch(program, level)
    program.step(bad="forward")
    assert aftermath(scanner).parameters == 8
    assert aftermath(scanner).last_clean is None
    assert "last clean" not in scanner.report()


@LEVELS
def test_a_parameter_that_was_never_good_leaves_no_clean_step(program, level):
    with torch.no_grad():
        program.net[0].bias[0] = NAN
    scanner = watch(program, level)
    program.step()
    program.step()
    assert aftermath(scanner).parameters == program.parameters[0]
    assert aftermath(scanner).last_clean is None


@LEVELS
def test_nothing_bad_is_left_where_nothing_was_written(program, level):
    scanner = watch(program, level)
    program.step()
    program.trap.bad = "forward"
    program.net(torch.randn(5, 4)).square().mean().backward()
    after = aftermath(scanner)
    assert (after.gradients, after.parameters, after.last_clean) == (8, 0, None)
    assert "left bad" not in scanner.report()


def test_a_follow_up_at_op_level_goes_on_counting(program):
    # GIVEN the default: the steps after a first anomaly run at op level
    scanner = nanscan.enable(program.net, on_anomaly="record")
    said = []
    for i in range(9):
        program.step(bad="forward" if i == 2 else None, clip=True)
        after = aftermath(scanner)
        said.append(None if after is None else (after.outputs, after.gradients, after.parameters, after.later_steps))
    assert said == [None, None, *[(3, 8, 8, later) for later in range(7)]]


@LEVELS
def test_a_healthy_step_is_not_looked_at(training, level, monkeypatch):
    seen = []
    for origin in (ModuleOrigin, OpOrigin):
        real = origin.witness
        monkeypatch.setattr(origin, "witness", lambda self, records, real=real: (seen.append(1), real(self, records)))
    scanner = nanscan.enable(training.net, level=level, on_anomaly="record", escalate=False)
    training.run(4)
    scanner.flush()
    assert seen == []
    training.step("forward")
    scanner.flush()
    assert seen


def test_the_log_has_the_same_numbers(program, tmp_path):
    scanner = watch(program, "module", dir=tmp_path)
    for i in range(5):
        program.step(factor=NAN if i == 2 else None, clip=True)
    after = aftermath(scanner)
    scanner.close()
    from nanscan.events import read_dir
    from nanscan.report import Report

    assert Report.from_logs(read_dir(tmp_path)).after == after
