"""Programs that a careless rule would explain wrongly, or not at all: each with the cause that is right."""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nanscan
from nanscan.backends import get

pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")

INF = math.inf
T = torch.tensor


def first_of(program: Callable[[], Any]) -> nanscan.Event | None:
    torch.manual_seed(0)
    torch._dynamo.utils.counters.clear()  # what another test has compiled would make causes less certain here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with nanscan.trace(on_anomaly="record") as scanner:
            made = program()
            if isinstance(made, torch.Tensor):
                nanscan.check(made, "made")
            scanner.flush()
    return scanner.first


def leaf(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        pytest.param(lambda: T([0.0, 1.0]).log_(), "log of zero", id="in place: log"),
        pytest.param(lambda: T([-1.0, 1.0]).log_(), "log of a negative number", id="in place: log of a negative"),
        pytest.param(lambda: T([-1.0, 1.0]).sqrt_(), "sqrt of a negative number", id="in place: sqrt"),
        pytest.param(lambda: T([100.0, 1.0]).exp_(), "exp overflow", id="in place: exp"),
        pytest.param(lambda: T([0.0, 1.0]).pow_(-0.5), "division by zero", id="in place: degree"),
        pytest.param(lambda: T([3.0]).div_(T([0])), "division by zero", id="in place: by an integer"),
        pytest.param(lambda: 1 / T([1e-40]), "float32 overflow", id="tiny divisor"),
        pytest.param(lambda: T([1e-25]) ** -2, "float32 overflow", id="tiny base"),
        pytest.param(lambda: (1 / T([1e-4])) ** 12, "float32 overflow", id="steep power"),
        pytest.param(lambda: torch.full((50,), 1e3).prod(), "float32 overflow", id="product of many"),
        pytest.param(lambda: T([400.0, -400.0, 0.0]).half().var(), "fp16 overflow", id="variance in half"),
        pytest.param(lambda: T([1e200], dtype=torch.float64) ** 2, "float64 overflow", id="double"),
        pytest.param(lambda: T([1e30]).bfloat16() * T([1e30]).bfloat16(), "bf16 overflow", id="bfloat16"),
        pytest.param(lambda: torch.remainder(T([5.0]), T([0.0])), "division by zero", id="remainder"),
        pytest.param(lambda: T([[INF, INF]]).neg().neg() @ T([[1.0], [-1.0]]), "bad input data", id="Inf handed in"),
        pytest.param(
            lambda: F.layer_norm(T([[3e38, -3e38, 3e38, 3e38, 1.0, 2.0]]), (6,), eps=0.0), "unknown",
            id="an overflow inside, and eps 0",
        ),
        pytest.param(lambda: ((leaf(1e-3, dtype=torch.half) * 300.0) * 300.0).sum().backward(), "fp16 overflow",
                     id="half gradient without a scale"),
        pytest.param(lambda: leaf(200.0, 0.0).exp().sum().backward(), "exp overflow", id="an Inf loss"),
        pytest.param(lambda: torch.logsumexp(leaf(1.0) - INF, 0).backward(),
                     "gradient of logsumexp over only -inf", id="masked completely"),
    ],
)  # fmt: skip
def test_the_cause(program: Callable[[], Any], cause: str) -> None:
    event = first_of(program)
    assert event is not None
    assert (event.cause, event.others) == (cause, ()), event.evidence


def test_saved_values_that_cannot_be_seen_are_no_evidence() -> None:
    event = first_of(
        lambda: torch.utils.checkpoint.checkpoint(
            lambda z: z.sqrt().sum(), leaf(0.0, 4.0), use_reentrant=False
        ).backward()
    )
    assert event is not None
    assert (event.op, event.cause) == ("SqrtBackward0", "unknown")


def test_a_user_s_own_norm_after_a_backward_is_no_clipping() -> None:
    def program() -> torch.Tensor:
        leaf(1.0).sum().backward()
        return torch.full((4,), 1e20).pow(2).sum()

    event = first_of(program)
    assert event is not None
    assert event.cause == "float32 overflow"


def test_a_dice_score_in_half_after_a_backward_is_no_optimizer() -> None:
    def program() -> torch.Tensor:
        leaf(1.0).sum().backward()
        return torch.zeros(2, dtype=torch.half) / torch.zeros(2, dtype=torch.half)

    event = first_of(program)
    assert event is not None
    assert event.cause == "division by zero"


def test_a_wanted_constant_inside_a_custom_backward_is_passed_over() -> None:
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(scores, mask)
            return scores.sum()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            scores, mask = ctx.saved_tensors
            weights = scores.masked_fill(mask, -INF).exp()
            return grad / weights.sum(-1, keepdim=True) * torch.ones_like(scores), None

    mask = T([[True, True], [False, True]])
    event = first_of(lambda: Attention.apply(torch.zeros(2, 2, requires_grad=True), mask).backward())
    assert event is not None
    assert (event.cause, event.evidence[1]) == ("division by zero", "1 / 0 is +Inf")


def test_a_damaged_half_checkpoint_is_a_bad_parameter() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 64).half()
    with torch.no_grad():
        layer.weight.normal_(std=0.02)
    layer.weight.data.numpy()[3, 5] = math.nan
    with nanscan.enable(layer, level="op", on_anomaly="record") as scanner:
        layer(torch.ones(1, 64, dtype=torch.half))
    assert scanner.first is not None
    assert scanner.first.cause == "bad parameter"


def test_the_tenth_tensor_of_a_list() -> None:
    weights = [nn.Parameter(torch.ones(2, dtype=torch.half)) for _ in range(10)]
    model, optimizer = nn.ParameterList(weights), torch.optim.Adam(weights, foreach=True)
    with nanscan.enable(model, level="op", on_anomaly="record") as scanner:
        for weight in weights:
            weight.grad = torch.ones(2, dtype=torch.half)
        weights[9].grad = T([1.0, 1e-4]).half()
        optimizer.step()
        scanner.flush()
    assert scanner.first is not None
    assert (scanner.first.cause, scanner.first.tensor) == ("optimizer eps underflow", "9")


def test_a_long_divergence_is_walked_once() -> None:
    """Each bad value is made of two bad ones: the paths back to the first double with every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    x = torch.randn(8, 4)
    with nanscan.enable(model, level="op", on_anomaly="record") as scanner:
        for _ in range(100):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        kept = sum(type(thing).__name__ == "OpBirth" for thing in gc.get_objects())
    assert scanner.first is not None
    assert kept < 200, f"{kept} births are alive after 100 steps"


def test_telling_an_error_keeps_no_local_variable_alive() -> None:
    class Loop:
        def fit(self) -> list[bool]:
            with nanscan.trace(on_anomaly="record") as scanner:
                big = torch.zeros(1000)
                gone = weakref.ref(big)
                nanscan.check(big.log(), "big")
                scanner.flush()
                assert scanner.first is not None
                del big
                gc.collect()
            return [gone() is None]

    assert Loop().fit() == [True]
