"""Functions that algorithms share, against small numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from raysim.contract.toy import toy_model
from raysim.core.data import Batch
from raysim.core.messages import Weights
from raysim.core.ops import class_means, cross_entropy, kl, weighted_mean


def part(*values: float) -> Weights:
    return {"w": torch.tensor(values)}


def test_class_means_of_the_classes_that_occur():
    value_ND = torch.tensor([[1.0, 2.0], [10.0, 0.0], [3.0, 6.0], [20.0, 0.0], [5.0, 1.0]])
    class_S, mean_SD, count_S = class_means(value_ND, torch.tensor([7, 2, 7, 2, 7]))
    assert class_S.tolist() == [2, 7]
    assert mean_SD.tolist() == [[15.0, 0.0], [3.0, 3.0]]
    assert count_S.tolist() == [2, 3]
    assert (class_S.dtype, mean_SD.dtype, count_S.dtype) == (torch.int64, torch.float32, torch.int64)


def test_class_means_sum_in_float64():
    # In float32, 1e8 + 1 is 1e8, and the mean would be 0.
    value_ND = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    assert class_means(value_ND, torch.zeros(4, dtype=torch.int64))[1].tolist() == [[0.5]]


def test_weighted_mean():
    mean = weighted_mean([(1, part(0.0, 8.0)), (3, part(4.0, 0.0))])
    assert mean["w"].tolist() == [3.0, 2.0]


@given(st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=1, max_size=4), st.integers(1, 10**9))
@settings(max_examples=60, deadline=None)
def test_the_mean_of_one_part_is_that_part(values: list[float], weight: int):
    only = part(*values)
    assert torch.equal(weighted_mean([(weight, only)])["w"], only["w"])


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(-100, 100, width=32)), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_the_mean_is_scale_free_and_lies_between_its_parts(parts: list[tuple[int, float]]):
    once = weighted_mean([(n, part(value)) for n, value in parts])["w"]
    doubled = weighted_mean([(2 * n, part(value)) for n, value in parts])["w"]
    assert torch.equal(once, doubled)
    values = [value for _, value in parts]
    assert min(values) - 1e-4 <= once.item() <= max(values) + 1e-4
    swapped = weighted_mean([(n, part(value)) for n, value in reversed(parts)])["w"]
    assert_close(once, swapped)


def test_the_mean_sums_in_float64_and_keeps_the_type():
    found = weighted_mean([(1, part(1e8)), (1, part(1.0)), (1, part(-1e8)), (1, part(1.0))])["w"]
    assert found.tolist() == [0.5] and found.dtype == torch.float32
    # A third of each, which no float32 holds: (30,000,000 + 1 - 29,999,998) / 3 = 1.
    assert weighted_mean([(1, part(value)) for value in (3e7, 1.0, 2 - 3e7)])["w"].tolist() == [1.0]
    half = weighted_mean([(1, {"w": torch.tensor([1.0], dtype=torch.bfloat16)})])["w"]
    assert half.dtype == torch.bfloat16


def test_integers_are_copied_from_the_first_part():
    first = torch.tensor(7)
    found = weighted_mean([(1, {"n": first}), (3, {"n": torch.tensor(11)})])["n"]
    assert found.item() == 7 and found.data_ptr() != first.data_ptr()


def test_cross_entropy_heeds_padding():
    net = toy_model("flat")
    x, y = torch.rand(3, 1, 4, 4), torch.tensor([0, 1, 2])
    whole = Batch(x, y, torch.arange(3), torch.tensor([1.0, 1.0, 0.0]))
    short = Batch(x[:2], y[:2], torch.arange(2))
    assert_close(cross_entropy(net, whole, None), cross_entropy(net, short, None))
    uniform = Batch(x, y, torch.arange(3))
    for parameter in net.parameters():
        parameter.data.zero_()
    assert cross_entropy(net, uniform, None).item() == pytest.approx(1.3862944)  # ln 4


def test_kl_between_two_softmaxes_and_no_gradient_for_the_teacher():
    # Softmax outputs t = (.5, .5) and s = (.9, .1).
    t = torch.tensor([[0.0, 0.0]], requires_grad=True)
    s = torch.tensor([[0.9, 0.1]]).log().requires_grad_()
    assert kl(s, t).item() == pytest.approx(0.510826, abs=1e-6)
    assert kl(t, s).item() == pytest.approx(0.368064, abs=1e-6)
    kl(s, t).sum().backward()
    assert t.grad is None and s.grad.abs().max() > 0.1
    # A temperature divides both logits.
    assert torch.equal(kl(s, t + 1, temperature=4.0), kl(s / 4, t))
