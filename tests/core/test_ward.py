"""Ward's clustering against SciPy's, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cophenet, fcluster, is_monotonic, is_valid_linkage, linkage

from raysim.core.ward import ward


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
    found = ward(np.array([[0.0], [1.0], [10.0], [12.0], [13.0]]))
    assert_array_equal(found[:, [0, 1, 3]], [[0, 1, 2], [3, 4, 2], [2, 6, 3], [5, 7, 5]])
    assert_allclose(found[:, 2], [1.0, 1.0, 2.886751, 17.299326], rtol=1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(2, 300), st.integers(1, 12), st.integers(0, 10**6))
def test_equals_scipy_row_by_row(n: int, c: int, seed: int):
    x = points(seed, n, c)
    found, expected = ward(x), linkage(x, "ward")
    assert_array_equal(found[:, [0, 1, 3]], expected[:, [0, 1, 3]])
    assert_allclose(found[:, 2], expected[:, 2], rtol=1e-9)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(2, 120), st.integers(1, 6), st.integers(0, 10**6))
def test_repeated_points_give_scipys_tree_but_for_the_order_of_equals(n: int, c: int, seed: int):
    rng = np.random.default_rng(seed)
    x = points(seed, max(2, n // 3), c)[rng.integers(max(2, n // 3), size=n)]
    found, expected = ward(x), linkage(x, "ward")
    assert is_valid_linkage(found) and is_monotonic(found)
    assert_allclose(cophenet(found), cophenet(expected), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 64, 257])
def test_one_value_only_and_a_grid_end_and_are_valid(n: int):
    constant = ward(np.full((n, 3), 0.1))
    assert is_valid_linkage(constant) and constant[-1, 3] == n
    assert_allclose(constant[:, 2], 0, atol=1e-14)
    # A line of equal gaps: every distance ties with its neighbours' at every level.
    grid = ward(np.arange(float(n))[:, None])
    assert is_valid_linkage(grid) and is_monotonic(grid) and grid[-1, 3] == n
    assert grid[0, 2] == 1.0


def test_far_from_the_origin_and_nearly_equal():
    # Gaps of 1e-7 beside norms of 1: norms and products alone would be all rounding.
    x = points(5, 200, 4) * 1e-7
    x[0] += 1.0
    found, expected = ward(x), linkage(x, "ward")
    assert_array_equal(found[:, [0, 1, 3]], expected[:, [0, 1, 3]])
    shifted = ward(points(5, 200, 4, offset=1e4))
    assert same_partitions(shifted, linkage(points(5, 200, 4), "ward"), list(range(2, 100, 7)))
