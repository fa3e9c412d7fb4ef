"""When is a step over? clock="auto" and "manual", in the kinds of loops people write."""

from __future__ import annotations

import copy

import pytest
import torch

import nanscan

BAD = float("nan")


def place(scanner):
    """(step, batch) of each event."""
    return [(e.step, e.batch) for e in scanner.events]


def test_a_step_is_over_when_a_forward_begins_after_the_optimizer(training):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    assert scanner.stats["steps"] == 0
    training.run(5, at={3: "forward"})
    assert scanner.stats["steps"] == 5
    assert scanner.stats["batches"] == 5
    assert place(scanner) == [(3, 3)]


def test_gradient_accumulation_counts_batches_not_steps(training):
    # GIVEN 4 micro-batches per step
    net, optimizer = training.net, training.optimizer
    scanner = nanscan.enable(net, on_anomaly="record")
    for batch in range(12):
        net.trap.bad = "forward" if batch == 6 else None
        net(torch.ones(3, 4)).sum().backward()
        if batch % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            break_even = scanner.stats["steps"]
    assert break_even == 3
    assert scanner.stats["batches"] == 12
    assert place(scanner) == [(1, 6)]


def test_a_bad_gradient_of_a_late_micro_batch(training):
    net, optimizer = training.net, training.optimizer
    scanner = nanscan.enable(net, on_anomaly="record")
    for batch in range(8):
        net.trap.bad = "backward" if batch == 6 else None
        net(torch.ones(3, 4)).sum().backward()
        if batch % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    scanner.close()
    assert [(e.step, e.batch, e.phase, e.module) for e in scanner.events if e.severity == "error"] == [
        (1, 6, "backward", "trap")
    ]


def test_manual(training):
    scanner = nanscan.enable(training.net, on_anomaly="record", clock="manual")
    for i in range(6):
        training.step("forward" if i == 4 else None)
        if i % 2:
            scanner.step()
    assert scanner.stats["steps"] == 3
    assert place(scanner)[0] == (2, 4)


def test_what_an_update_inside_a_manual_step_spoils_is_not_told_again(training):
    # GIVEN two updates per step; the first one writes NaN into every parameter
    scanner = nanscan.enable(training.net, on_anomaly="record", clock="manual")
    training.step("forward")
    training.step()
    scanner.step()
    assert place(scanner) == [(0, 0)]


def test_scanner_step_ends_a_step_that_no_optimizer_ended(make_net):
    # GIVEN somebody who updates parameters by hand
    net = make_net()
    scanner = nanscan.enable(net, on_anomaly="record")
    for i in range(4):
        net.trap.bad = "forward" if i == 2 else None
        net(torch.ones(3, 4)).sum().backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 1e-3 * p.grad.nan_to_num()
                p.grad = None
        scanner.step()
    assert scanner.stats["steps"] == 4
    assert place(scanner) == [(2, 2)]


def test_scanner_step_after_the_optimizer_ends_a_step_once(training):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    for i in range(4):
        training.step("forward" if i == 2 else None)
        scanner.step()
    assert scanner.stats["steps"] == 4
    assert place(scanner) == [(2, 2)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_has_one_step_per_forward(make_net, mode):
    net = make_net().eval()
    scanner = nanscan.enable(net, on_anomaly="record")
    with mode():
        for i in range(5):
            net(torch.full((1, 4), BAD if i == 3 else 1.0))
    assert scanner.stats["steps"] == 5
    assert place(scanner) == [(3, 3)]
    assert scanner.first.phase == "data"


def test_evaluation_inside_training_does_not_tick(training):
    net = training.net
    scanner = nanscan.enable(net, on_anomaly="record")
    for i in range(6):
        training.step("forward" if i == 4 else None)
        if i % 2:
            net.trap.bad = None
            net.eval()
            with torch.no_grad():
                for _ in range(3):
                    net(torch.ones(2, 4))
            net.train()
    scanner.flush()
    # THEN an evaluation belongs to a step of training, and the numbers stay those of training
    assert scanner.stats["batches"] == 6 + 9
    assert scanner.stats["steps"] - 6 <= 3
    assert [e.step for e in scanner.events][:1] == [4]


def test_two_optimizers_after_one_backward_are_one_step(make_net):
    net = make_net()
    pair = [torch.optim.SGD(part.parameters(), lr=1e-3) for part in (net.a, net.b)]
    scanner = nanscan.enable(net, on_anomaly="record")
    for i in range(4):
        net.trap.bad = "forward" if i == 2 else None
        net(torch.ones(3, 4)).sum().backward()
        for optimizer in pair:
            optimizer.step()
            optimizer.zero_grad()
    assert scanner.stats["steps"] == 4
    assert place(scanner)[0] == (2, 2)


def test_lbfgs_runs_its_closures_inside_one_step(make_net):
    net = make_net()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
    scanner = nanscan.enable(net, on_anomaly="record")
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    calls = []

    def closure():
        calls.append(scanner.stats["steps"])
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert len(calls) > 3
    assert scanner.stats["steps"] == 3
    assert scanner.stats["batches"] == len(calls)
    assert scanner.events == ()


def test_lbfgs_with_a_bad_closure(make_net):
    net = make_net()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)
    scanner = nanscan.enable(net, on_anomaly="record")
    x = torch.randn(8, 4)
    for i in range(3):
        net.trap.bad = "forward" if i == 1 else None

        def closure():
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    scanner.close()
    assert (scanner.first.step, scanner.first.module, scanner.first.phase) == (1, "trap", "forward")


def test_an_optimizer_of_master_copies_is_ours(make_net):
    # GIVEN a model in half precision and an optimizer that owns fp32 copies of its parameters
    net = make_net().bfloat16()
    master = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
    optimizer = torch.optim.SGD(master, lr=1e-3)
    scanner = nanscan.enable(net, on_anomaly="record")
    for i in range(4):
        net.trap.bad = "forward" if i == 2 else None
        net(torch.ones(3, 4, dtype=torch.bfloat16)).sum().backward()
        for copied, p in zip(master, net.parameters(), strict=True):
            copied.grad, p.grad = p.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for copied, p in zip(master, net.parameters(), strict=True):
                p.copy_(copied)
    assert scanner.stats["steps"] == 4
    assert place(scanner)[0] == (2, 2)


def test_a_batch_that_raises_is_still_a_batch(training):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    training.run(1)
    with pytest.raises(RuntimeError):
        training.net(torch.ones(3, 5))  # [3, 5] into Linear(4, 8)
    training.step()
    training.step("forward")
    assert place(scanner) == [(2, 3)]


def test_a_deep_copy_has_no_clock(training):
    scanner = nanscan.enable(training.net, on_anomaly="record")
    twin = copy.deepcopy(training.net)
    for _ in range(3):
        twin(torch.ones(1, 4)).sum().backward()
    assert scanner.stats["batches"] == 0
    assert scanner.stats["steps"] == 0
