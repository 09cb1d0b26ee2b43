"""Ward's clustering against SciPy's, and its laws."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cophenet, fcluster, is_monotonic, is_valid_linkage, linkage

from raysim.core import ward as module
from raysim.core.ward import micro_clusters, ward


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2  # put back
    torch.set_num_threads(threads)


def points(seed: int, n: int, c: int, offset: float = 0.0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(4, c))
    return centres[rng.integers(4, size=n)] + rng.normal(size=(n, c)) + offset


def same_partitions(one: NDArray[np.float64], other: NDArray[np.float64], ks: list[int]) -> bool:
    """Whether flat cuts put the same points together."""
    for k in ks:
        a, b = fcluster(one, k, "maxclust"), fcluster(other, k, "maxclust")
        if len(set(zip(a.tolist(), b.tolist(), strict=True))) != a.max() or a.max() != b.max():
            return False
    return True


def test_five_points_by_hand():
    # {0,1} and {12,13} at sqrt(2 * 1/2) = 1; 10 and {12,13}: 2/3 * 2.5^2 * 2 = 8.3333; {0,1} and the rest: 6/5 * 2 *
    # (35/3 - 1/2)^2 = 299.27.
    found = ward(torch.tensor([[0.0], [1.0], [10.0], [12.0], [13.0]]))
    assert_array_equal(found[:, [0, 1, 3]], [[0, 1, 2], [3, 4, 2], [2, 6, 3], [5, 7, 5]])
    assert_allclose(found[:, 2], [1.0, 1.0, 2.886751, 17.299326], rtol=1e-6)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(2, 300), st.integers(1, 12), st.integers(0, 10**6))
def test_equals_scipy_row_by_row(n: int, c: int, seed: int):
    x = points(seed, n, c)
    found, expected = ward(torch.from_numpy(x)), linkage(x, "ward")
    assert_array_equal(found[:, [0, 1, 3]], expected[:, [0, 1, 3]])
    assert_allclose(found[:, 2], expected[:, 2], rtol=1e-9)


def test_equals_scipy_on_more_points_than_one_tile(monkeypatch: pytest.MonkeyPatch):
    x = points(3, 1_500, 10)
    expected = linkage(x, "ward")
    for tile in (1 << 10, 1 << 17):  # 64 x 16 distances at a time, and all columns at once
        monkeypatch.setattr(module, "_TILE", tile)
        found = ward(torch.from_numpy(x))
        assert_array_equal(found[:, [0, 1, 3]], expected[:, [0, 1, 3]])
        assert_allclose(found[:, 2], expected[:, 2], rtol=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(2, 120), st.integers(1, 6), st.integers(0, 10**6))
def test_repeated_points_give_scipys_tree_but_for_the_order_of_equals(n: int, c: int, seed: int):
    rng = np.random.default_rng(seed)
    x = points(seed, max(2, n // 3), c)[rng.integers(max(2, n // 3), size=n)]
    found, expected = ward(torch.from_numpy(x)), linkage(x, "ward")
    assert is_valid_linkage(found) and is_monotonic(found)
    assert_allclose(cophenet(found), cophenet(expected), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 64, 257])
def test_one_value_only_and_a_grid_end_and_are_valid(n: int):
    constant = ward(torch.full((n, 3), 0.1))
    assert is_valid_linkage(constant) and (constant[:, 2] == 0).all() and constant[-1, 3] == n
    # A line of equal gaps: every distance ties with its neighbours' at every level.
    grid = ward(torch.arange(float(n))[:, None])
    assert is_valid_linkage(grid) and is_monotonic(grid) and grid[-1, 3] == n
    assert grid[0, 2] == 1.0


def test_repeated_points_merge_in_pairs_of_pairs():
    # So the path above each is as short as can be: 8 equal points take 3 merges each.
    found = ward(torch.zeros(8, 2))
    assert found[:, 3].tolist() == [2, 2, 2, 2, 4, 4, 8]


def test_far_from_the_origin_and_nearly_equal():
    # Gaps of 1e-7 beside norms of 1: norms and products alone would be all rounding.
    x = points(5, 200, 4) * 1e-7
    x[0] += 1.0
    found, expected = ward(torch.from_numpy(x)), linkage(x, "ward")
    assert_array_equal(found[:, [0, 1, 3]], expected[:, [0, 1, 3]])
    shifted = ward(torch.from_numpy(points(5, 200, 4, offset=1e4)))
    assert same_partitions(shifted, linkage(points(5, 200, 4), "ward"), list(range(2, 100, 7)))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(2, 40), st.integers(1, 5), st.integers(0, 10**6))
def test_sizes_stand_for_repeated_points(n: int, c: int, seed: int):
    x = points(seed, n, c)
    size_N = np.random.default_rng(seed).integers(1, 5, size=n)
    found = ward(torch.from_numpy(x), torch.from_numpy(size_N))
    expected = linkage(np.repeat(x, size_N, axis=0), "ward")
    assert_allclose(found[:, 2], expected[-(n - 1) :, 2], rtol=1e-9)  # the merges before those are of equals
    assert found[-1, 3] == size_N.sum()
    assert_array_equal(found[:, 3], expected[-(n - 1) :, 3])


def test_sizes_of_one_change_nothing():
    x = torch.from_numpy(points(1, 50, 3))
    assert_array_equal(ward(x), ward(x, torch.ones(50, dtype=torch.int64)))


def test_the_number_of_threads_changes_no_bit():
    x = torch.from_numpy(points(2, 700, 7)).float()
    two = ward(x)
    torch.set_num_threads(1)
    one = ward(x)
    torch.set_num_threads(2)
    assert one.tobytes() == two.tobytes()


def test_float32_points_are_clustered_in_float64():
    x = points(4, 150, 5).astype(np.float32)
    assert_allclose(ward(torch.from_numpy(x))[:, 2], linkage(x.astype(np.float64), "ward")[:, 2], rtol=1e-9)


def test_one_point_has_no_merges():
    assert ward(torch.zeros(1, 3)).shape == (0, 4)


def test_points_are_left_as_they_are():
    x = torch.from_numpy(points(6, 60, 3))
    before = x.clone()
    ward(x)
    micro_clusters(x, 5, torch.Generator().manual_seed(0))
    assert torch.equal(x, before)


# -- micro-clusters ----------------------------------------------------------------------------------


def test_as_many_micro_clusters_as_points_are_the_points():
    assert micro_clusters(torch.zeros(4, 2), 4, torch.Generator()).tolist() == [0, 1, 2, 3]
    assert micro_clusters(torch.zeros(4, 2), 9, torch.Generator()).tolist() == [0, 1, 2, 3]


def test_micro_clusters_are_numbered_without_gaps_and_drawn_from_their_generator():
    x = torch.from_numpy(points(7, 500, 4))
    one, same = (micro_clusters(x, 40, torch.Generator().manual_seed(3)) for _ in range(2))
    other = micro_clusters(x, 40, torch.Generator().manual_seed(4))
    assert one.unique().tolist() == list(range(int(one.max()) + 1))
    assert 20 < int(one.max()) + 1 <= 40
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_micro_clusters_explain_most_of_the_variance():
    x = torch.from_numpy(points(8, 2_000, 3))
    at_N = micro_clusters(x, 100, torch.Generator().manual_seed(0))
    within = sum(float((x[at_N == m] - x[at_N == m].mean(0)).square().sum()) for m in at_N.unique())
    assert within < 0.1 * float((x - x.mean(0)).square().sum())
