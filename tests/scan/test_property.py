"""Any shape, layout and mixture of special values: every implementation says what the oracle says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

shapes = st.lists(st.integers(0, 24), max_size=4).map(tuple)
fractions = st.sampled_from([0.0, 0.002, 0.4, 1.0])
scales = st.sampled_from([(0.0, 1.0), (1e3, 0.1), (1.0, 1e-3), (0.0, 1e-12), (0.0, 1e4)])


@st.composite
def views(draw, shape):
    """What to do to a contiguous tensor: a permutation, steps, an expansion."""
    order = draw(st.permutations(range(len(shape))))
    steps = draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=len(shape), max_size=len(shape)))
    return order, steps, draw(st.sampled_from([0, 0, 0, 1, 5]))


def apply(tensor, order, steps, expansion):
    tensor = tensor.permute(order)
    for dim, step in enumerate(steps):
        tensor = tensor[(slice(None),) * dim + (slice(None, None, step),)]
    if expansion == 0:
        return tensor
    middle = tensor.dim() // 2
    return tensor.unsqueeze(middle).expand(*tensor.shape[:middle], expansion, *tensor.shape[middle:])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), shape=shapes, fraction=fractions, ends=st.booleans(), scale=scales, seed=st.integers(0, 1 << 30))
def test_agrees_with_the_oracle(agree, make, dtype, data, shape, fraction, ends, scale, seed):
    n = int(torch.Size(shape).numel())
    mean, std = scale
    tensor = make(dtype, n, seed=seed, fraction=fraction, mean=mean, std=std, ends=ends).reshape(shape)
    # The shift may be an unlucky one, which costs up to a factor n / 64 = 64 in m2 (see accumulate.h).
    agree(apply(tensor, *data.draw(views(shape))), slack=15)
