"""Ward's clustering by its definition: merge the two clusters that increase the sum of squares least."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def paths(points: NDArray[np.float64], left: int) -> tuple[NDArray[np.float64], list[list[int]]]:
    """Merge until `left` clusters remain; return the centre of each merged cluster, and each point's clusters.

    The clusters of a point begin with the smallest. The point alone is none of them.
    """
    count = len(points)
    centre, size = points.copy(), np.ones(count)
    members = [[i] for i in range(count)]
    centres: list[NDArray[np.float64]] = []
    path: list[list[int]] = [[] for _ in range(count)]
    alive = np.ones(count, bool)
    cost = np.stack([increases(centre, size, alive, i) for i in range(count)])
    best = cost.argmin(1)  # the cluster with which each one merges at the least cost
    for _ in range(count - left):
        a = int(cost[np.arange(count), best].argmin())
        b = int(best[a])
        centre[a] = (size[a] * centre[a] + size[b] * centre[b]) / (size[a] + size[b])
        size[a], members[a], alive[b] = size[a] + size[b], members[a] + members[b], False
        for i in members[a]:
            path[i].append(len(centres))
        centres.append(points[members[a]].mean(0))
        cost[a] = cost[:, a] = increases(centre, size, alive, a)
        cost[b] = cost[:, b] = np.inf
        for one in np.flatnonzero((best == a) | (best == b)):
            best[one] = cost[one].argmin()
        best[cost[np.arange(count), best] > cost[:, a]] = a
    return np.stack(centres), path


def increases(
    centre: NDArray[np.float64], size: NDArray[np.float64], alive: NDArray[np.bool_], i: int
) -> NDArray[np.float64]:
    """Return how much the sum of squares grows if cluster i merges with each of the others; infinite for itself."""
    apart = centre - centre[i]
    cost = size * size[i] / (size + size[i]) * np.einsum("nc,nc->n", apart, apart)
    cost[~alive], cost[i] = np.inf, np.inf
    return np.asarray(cost)
