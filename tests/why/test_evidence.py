"""Numbers printed as evidence are those of the tensors, however a result is related to its arguments."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import nanscan
from nanscan.backends import get

pytestmark = pytest.mark.skipif(get().core is None, reason="the op level needs the compiled core")


def first_of(program: Callable[[], Any]) -> nanscan.Event:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with nanscan.trace(on_anomaly="record") as scanner:
            program()
            scanner.flush()
    assert scanner.first is not None
    return scanner.first


def checked(value: torch.Tensor) -> None:
    nanscan.check(value, "value")


def six(x: torch.Tensor | float) -> str:
    return f"{float(x):.6g}"


def has(event: nanscan.Event, *numbers: str) -> bool:
    """Whether one sentence has all these numbers, as words."""
    return any(all(number in re.split(r"[ ,:;]+", text) for number in numbers) for text in event.evidence)


def planted(*shape: int, at: tuple[int, ...], value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1)).add(0.5).to(dtype)
    x[at] = value
    return x


def test_an_element() -> None:
    x = planted(3, 4, at=(1, 2), value=-0.375)
    event = first_of(lambda: checked(torch.log(x)))
    assert event.first_bad_index == 6
    assert has(event, six(x[1, 2])), event.evidence


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_an_element_of_any_type(dtype: torch.dtype) -> None:
    x = planted(5, at=(3,), value=-0.376, dtype=dtype)
    event = first_of(lambda: checked(x.sqrt()))
    assert has(event, six(x[3])), event.evidence


def test_elements_of_broadcast_arguments() -> None:
    top, bottom = torch.arange(1.0, 13.0).reshape(3, 4), torch.tensor([[1.0], [0.0], [2.0]])
    event = first_of(lambda: checked(top / bottom))
    assert f"{six(top[1, 0])} / 0 is +Inf" in event.evidence


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "permuted"])
def test_an_element_of_any_layout(layout: str) -> None:
    x = planted(4, 6, at=(2, 3), value=-7.25)
    views = {
        "transposed": x.t(),
        "sliced": x[1:, ::3],
        "expanded": x[2:3].expand(5, 6),
        "permuted": x[None].permute(2, 0, 1),
    }
    event = first_of(lambda: checked(torch.log(views[layout])))
    assert has(event, "-7.25"), event.evidence


def test_integers_count() -> None:
    total, n = torch.tensor([3.5, 2.0]), torch.tensor([4, 0])
    event = first_of(lambda: checked(total / n))
    assert event.cause == "division by zero"
    assert "2 / 0 is +Inf" in event.evidence


def test_the_nan_and_not_the_inf_beside_it() -> None:
    x, mask = torch.tensor([math.inf, math.inf, 5.0]), torch.tensor([1.0, 0.0, 1.0])
    event = first_of(lambda: checked(torch.ones(3).exp2().add(x - 2.0) * mask))
    assert event.first_bad_index == 0, "the Inf that came in"
    assert event.role == "external" or has(event, "inf", "0")


def test_a_python_number() -> None:
    event = first_of(lambda: checked(torch.tensor([2.0, -0.3]) ** 1.7))
    assert has(event, "-0.3", "1.7"), event.evidence


def test_a_row() -> None:
    scores = torch.zeros(2, 3, 5)
    mask = torch.zeros(2, 3, 5, dtype=torch.bool)
    mask[1, 2] = True
    event = first_of(lambda: checked(scores.masked_fill(mask, -math.inf).softmax(-1)))
    assert "all 5 scores of the row are -Inf" in event.evidence


def test_a_row_along_another_dimension() -> None:
    mask = torch.zeros(4, 3, dtype=torch.bool)
    mask[:, 1] = True
    event = first_of(lambda: checked(torch.zeros(4, 3).masked_fill(mask, -math.inf).softmax(0)))
    assert "all 4 scores of the row are -Inf" in event.evidence


@pytest.mark.parametrize("keepdim", [False, True])
def test_a_reduced_group(keepdim: bool) -> None:
    event = first_of(lambda: checked(torch.rand(3, 1, 2).std(dim=1, keepdim=keepdim)))
    assert "std of 1 element divides by 1 - 1 = 0" in event.evidence


def test_a_group_over_two_dimensions() -> None:
    event = first_of(lambda: checked(torch.rand(3, 2, 1).var(dim=(1, 2), correction=2)))
    assert "var of 2 elements divides by 2 - 2 = 0" in event.evidence


def test_row_and_column_of_a_product() -> None:
    a, b = planted(3, 4, at=(2, 1), value=3e20), planted(4, 2, at=(1, 1), value=2e20)
    event = first_of(lambda: checked(a @ b))
    assert event.first_bad_index == 5
    assert has(event, "self", "3e+20", "mat2", "2e+20"), event.evidence


def test_row_and_column_of_a_batch_of_products() -> None:
    a, b = planted(2, 3, 4, at=(1, 2, 1), value=3e20), planted(2, 4, 2, at=(1, 1, 0), value=2e20)
    event = first_of(lambda: checked(torch.bmm(a, b)))
    assert has(event, "3e+20", "2e+20"), event.evidence


def test_what_a_node_had_saved() -> None:
    x = planted(2, 3, at=(1, 0), value=0.0).requires_grad_()
    event = first_of(lambda: (x**0.4).sum().backward())
    assert event.op == "PowBackward0"
    assert has(event, "0", "0.4"), event.evidence


def test_the_gradient_that_came_in() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    event = first_of(lambda: torch.where(x > 0, x.sqrt(), 0.0).sum().backward())
    assert event.others == ("torch.where hides a bad branch",)
    assert any("the gradient that came in is 0 there" in text for text in event.evidence)


def test_the_op_inside_a_custom_backward() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.abs()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * torch.log(x)

    x = torch.tensor([2.0, -0.0625], requires_grad=True)
    event = first_of(lambda: Scaled.apply(x).sum().backward())
    assert (event.op, event.cause) == ("ScaledBackward", "log of a negative number")
    assert has(event, "-0.0625"), event.evidence


@pytest.mark.parametrize("foreach", [False, True])
def test_one_tensor_of_a_list(foreach: bool) -> None:
    weights = [torch.nn.Parameter(torch.ones(n, dtype=torch.float16)) for n in (2, 3)]
    model = torch.nn.ParameterList(weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=foreach)
    with nanscan.enable(model, level="op", on_anomaly="record") as scanner:
        weights[0].grad = torch.ones(2, dtype=torch.float16)
        weights[1].grad = torch.tensor([1.0, 1e-4, 1.0], dtype=torch.float16)
        optimizer.step()
        scanner.flush()
    assert scanner.first is not None
    assert (scanner.first.cause, scanner.first.tensor) == ("optimizer eps underflow", "1")


def test_the_past_of_the_same_place() -> None:
    sizes = [1.0, 3.0, 9.0, 27.0, 81.0]
    with nanscan.trace(on_anomaly="record") as scanner:
        for size in [*sizes, 100.0]:
            checked(torch.tensor([0.0, size]).exp())
            scanner.step()
    assert scanner.first is not None
    assert scanner.first.step == 5
    assert scanner.first.past == pytest.approx([float(torch.tensor(size).exp()) for size in sizes], rel=1e-6)


def test_the_past_is_bounded() -> None:
    with nanscan.trace(on_anomaly="record") as scanner:
        for step in range(30):
            checked(torch.tensor([float(step)]) / (0.0 if step == 29 else 1.0))
            scanner.step()
    assert scanner.first is not None
    assert scanner.first.past == tuple(float(step) for step in range(21, 29))


def test_saved_tensors_with_hooks_are_left_alone() -> None:
    looked = 0

    def unpack(x: torch.Tensor) -> torch.Tensor:
        nonlocal looked
        looked += 1
        return x

    def program() -> None:
        x = torch.tensor([0.0, 4.0], requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            y = x.sqrt()
        y.sum().backward()

    event = first_of(program)
    assert event.op == "SqrtBackward0"
    assert looked == 1, "the user's hook ran for us as well"


def test_nothing_is_kept_alive() -> None:
    import gc
    import weakref

    x = torch.tensor([1.0, 0.0], requires_grad=True)
    gone = weakref.ref(x)

    def program() -> None:
        nonlocal x
        y = x.sqrt() / torch.tensor([1, 0])
        y.sum().backward()
        del y
        x = torch.zeros(1)

    first_of(program)
    gc.collect()
    assert gone() is None
