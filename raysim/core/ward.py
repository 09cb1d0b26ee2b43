"""Ward's hierarchical clustering of many points: exact, in memory that grows with their number and not with its square.

SciPy keeps all N(N-1)/2 distances: 14 GB for the 60,000 points of HKS, and a copy of them while it works. At 12,000
points of 10 coordinates `scipy.cluster.hierarchy.linkage` took 1,100 MiB and 13.8 s, this module 72 MiB and 9.0 s, on
2 busy cores. It stays beside the other numeric helpers of methods, since a file in `algorithms/` may import
`raysim.core` alone. Ward's distance between two clusters depends on their
centroids and sizes alone, s_a s_b / (s_a + s_b) |c_a - c_b|^2, and no merge ever brings a third cluster nearer (it is
"reducible"). So two clusters that are each other's nearest will be merged whatever else happens. That is what the
nearest-neighbour chain rests on; here all such pairs are merged at once, and then only those that lost their nearest
cluster search for a new one. The tree is the same, and the searches become matrix products.

Shapes: N points, C coordinates, A clusters that still stand, P pairs to merge, R clusters that look for their nearest,
S of those in one tile of distances, M micro-clusters, B points of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TILE = 1 << 19  # distances computed at a time, 4 MB: the product is in cache when its minimum is looked for
_CUDA_TILE = 1 << 25
_BLURRED = 1e-8  # below this share of the squared norms, rounding could choose the wrong cluster
_BATCH, _PASSES = 4096, 3  # of mini-batch k-means


def ward(point_NC: Tensor, size_N: Tensor | None = None) -> NDArray[np.float64]:
    """The tree of Ward's clustering as `scipy.cluster.hierarchy.linkage(points, "ward")` gives it: [N-1, 4].

    Row i merges clusters Z[i, 0] < Z[i, 1] (below N: that point; N + j: row j) at height Z[i, 2] =
    sqrt(2 s_a s_b / (s_a + s_b)) |c_a - c_b| into a cluster of Z[i, 3] points. Rows ascend in height; the order among
    equal heights is deterministic, but not SciPy's. All sums are in float64, on the device of `point_NC`, and do not
    depend on the number of threads.

    size_N: how many points each given point stands for (default 1); they count in the heights and in Z[:, 3].
    """
    centroid_AC = point_NC.detach().double()
    # Distances are computed from norms and products, which round the less the nearer the points are to the origin.
    centroid_AC = centroid_AC - centroid_AC.mean(0)
    size_A = torch.ones_like(centroid_AC[:, 0]) if size_N is None else size_N.to(centroid_AC)
    with _threads() as pool:
        return _Clusters(centroid_AC, size_A, _positions(size_A), torch.zeros_like(size_A), pool).merged()


def micro_clusters(point_NC: Tensor, num_clusters: int, rng: torch.Generator) -> Tensor:
    """Mini-batch k-means (Sculley, WWW 2010): for each point the number of its micro-cluster, [N] int64 from 0 on.

    Starts from points drawn from `rng` (a CPU generator) and makes a few passes over all of them; clusters that end up
    empty are left out, so that there may be fewer than asked for. As many as there are points: each is its own.
    """
    num_points = len(point_NC)
    if num_clusters >= num_points:
        return _positions(point_NC)
    point_NC = point_NC.detach().double()
    point_NC = point_NC - point_NC.mean(0)
    centre_MC = point_NC[torch.randperm(num_points, generator=rng)[:num_clusters].to(point_NC.device)]
    seen_M = torch.zeros_like(centre_MC[:, 0])
    with _threads() as pool:
        for _ in range(_PASSES):
            for index_B in torch.randperm(num_points, generator=rng).to(point_NC.device).split(_BATCH):
                batch_BC = point_NC[index_B]
                at_B = _closest(batch_BC, centre_MC, pool)
                count_M = torch.zeros_like(seen_M).index_add_(0, at_B, torch.ones_like(batch_BC[:, 0]))
                sum_MC = torch.zeros_like(centre_MC).index_add_(0, at_B, batch_BC)
                # Each centre is the mean of all that it has been given so far.
                seen_M += count_M
                centre_MC = centre_MC + (sum_MC - count_M[:, None] * centre_MC) / seen_M.clamp(min=1)[:, None]
        at_N = _closest(point_NC, centre_MC, pool)
    return torch.unique(at_N, return_inverse=True)[1]


@dataclass
class _Clusters:
    """The clusters that still stand, and the merges so far."""

    centroid_AC: Tensor
    size_A: Tensor
    name_A: Tensor  # one of the points in each
    height_A: Tensor
    pool: ThreadPoolExecutor
    merges: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)  # names [P] and [P], height, size

    def merged(self) -> NDArray[np.float64]:
        """Merge until one is left; the linkage matrix."""
        num_points = len(self.name_A)
        self._merge_equal()
        nearest_A, distance_A = self._nearest(_positions(self.name_A))
        while len(self.name_A) > 1:
            position_A = _positions(self.name_A)
            first_P = ((nearest_A[nearest_A] == position_A) & (position_A < nearest_A)).nonzero()[:, 0]
            if not len(first_P):  # equal distances in a circle, told apart by rounding: take the nearest two of all
                first_P = distance_A.argmin()[None]
            second_P = nearest_A[first_P]
            changed_A = torch.zeros_like(position_A, dtype=torch.bool)
            changed_A[first_P] = changed_A[second_P] = True
            searching_A = changed_A | changed_A[nearest_A]
            kept_A = self._merge(first_P, second_P, (2 * distance_A[first_P]).sqrt())
            place_A = kept_A.cumsum(0) - 1
            nearest_A, distance_A = place_A[nearest_A[kept_A]], distance_A[kept_A]
            row_R = searching_A[kept_A].nonzero()[:, 0]
            nearest_A[row_R], distance_A[row_R] = self._nearest(row_R)
        return _linkage(num_points, self.merges)

    def _merge_equal(self) -> None:
        """Merge equal points first, in pairs of pairs: they would all have the same nearest one, and wait in line."""
        group_A = torch.unique(self.centroid_AC, dim=0, return_inverse=True)[1]
        while len(group_A) > 1:
            order_A = group_A.argsort(stable=True)
            position_A = _positions(group_A)
            starts_A = torch.ones_like(group_A, dtype=torch.bool)
            starts_A[1:] = group_A[order_A][1:] != group_A[order_A][:-1]
            rank_A = position_A - torch.where(starts_A, position_A, 0).cummax(0).values  # within its group
            odd_P = (rank_A % 2 == 1).nonzero()[:, 0]
            if not len(odd_P):
                return
            kept_A = self._merge(order_A[odd_P - 1], order_A[odd_P], torch.zeros_like(self.height_A[odd_P]))
            group_A = group_A[kept_A]

    def _merge(self, first_P: Tensor, second_P: Tensor, height_P: Tensor) -> Tensor:
        """Put a merged cluster where its first half was and close the gaps. Returns which places were kept, [A]."""
        s_P, t_P = self.size_A[first_P], self.size_A[second_P]
        # Rounding must not put a cluster below its parts.
        height_P = torch.stack([height_P, self.height_A[first_P], self.height_A[second_P]]).amax(0)
        self.merges.append((self.name_A[first_P], self.name_A[second_P], height_P, s_P + t_P))
        gap_PC = self.centroid_AC[second_P] - self.centroid_AC[first_P]
        self.centroid_AC[first_P] += gap_PC * (t_P / (s_P + t_P))[:, None]
        self.size_A[first_P], self.height_A[first_P] = s_P + t_P, height_P
        kept_A = torch.ones_like(self.size_A, dtype=torch.bool)
        kept_A[second_P] = False
        self.centroid_AC, self.size_A = self.centroid_AC[kept_A], self.size_A[kept_A]
        self.name_A, self.height_A = self.name_A[kept_A], self.height_A[kept_A]
        return kept_A

    def _nearest(self, row_R: Tensor) -> tuple[Tensor, Tensor]:
        """Of the clusters at these places, the nearest other one [R] and Ward's distance to it [R]."""
        if len(self.name_A) == 1:
            return torch.zeros_like(row_R), torch.full_like(self.size_A[row_R], torch.inf)
        centroid_AC, norm_A = self.centroid_AC, (self.centroid_AC**2).sum(1)
        inverse_A = None if bool((self.size_A == 1).all()) else 1 / self.size_A  # all single: one factor for all
        nearest_R = _closest(centroid_AC, centroid_AC, self.pool, row_R, inverse_A)
        distance_R = self._distance(row_R, nearest_R)
        # Points much nearer to each other than to the origin: once more, from differences.
        scale_R = self.size_A[row_R] * (norm_A[row_R] + norm_A[nearest_R])
        blurred_R = (distance_R < _BLURRED * scale_R).nonzero()[:, 0]
        if len(blurred_R):
            again_R = row_R[blurred_R]
            nearest_R[blurred_R] = _closest(centroid_AC, centroid_AC, self.pool, again_R, inverse_A, exact=True)
            distance_R[blurred_R] = self._distance(again_R, nearest_R[blurred_R])
        return nearest_R, distance_R

    def _distance(self, a_R: Tensor, b_R: Tensor) -> Tensor:
        """Ward's distance, the same bits for (a, b) and (b, a)."""
        gap_RC = self.centroid_AC[a_R] - self.centroid_AC[b_R]
        s_R, t_R = self.size_A[a_R], self.size_A[b_R]
        return (gap_RC * gap_RC).sum(1) * (s_R * t_R / (s_R + t_R))


def _closest(
    from_NC: Tensor,
    to_AC: Tensor,
    pool: ThreadPoolExecutor,
    row_R: Tensor | None = None,
    inverse_A: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    """For each of `from_NC`, where the closest of `to_AC` is, [N]; the first of equals.

    row_R: only for these, which are among `to_AC` themselves and are not their own closest. inverse_A: 1 / size of
    each; Ward's distances then. exact: from differences, not from norms and products.
    """
    own, norm_A = row_R is not None, (to_AC * to_AC).sum(1)
    right_CA = torch.cat([-2 * to_AC, norm_A[:, None], torch.ones_like(norm_A)[:, None]], 1).T.contiguous()
    index_R = _positions(from_NC) if row_R is None else row_R
    tile = _CUDA_TILE if to_AC.is_cuda else _TILE
    rows = max(tile // len(to_AC), min(64, len(index_R)), 1)
    columns = max(tile // rows, 1)

    def some(start: int) -> None:
        index_S = index_R[start : start + rows]
        from_SC = from_NC[index_S]
        norm_S = (from_SC * from_SC).sum(1, keepdim=True)
        left_SC = torch.cat([from_SC, torch.ones_like(norm_S), norm_S], 1)
        found_S, at_S = torch.full_like(norm_S[:, 0], torch.inf), torch.zeros_like(index_S)
        for begin in range(0, len(to_AC), columns):
            end = min(begin + columns, len(to_AC))
            if exact:
                tile_SA = torch.zeros_like(norm_S).repeat(1, end - begin)
                for x_S, x_A in zip(from_SC.T, to_AC[begin:end].T, strict=True):
                    gap_SA = x_S[:, None] - x_A
                    tile_SA.addcmul_(gap_SA, gap_SA)
            else:
                tile_SA = left_SC @ right_CA[:, begin:end]
            if inverse_A is not None:
                tile_SA /= inverse_A[index_S][:, None] + inverse_A[begin:end]
            if own:
                mine_S = ((index_S >= begin) & (index_S < end)).nonzero()[:, 0]
                tile_SA[mine_S, index_S[mine_S] - begin] = torch.inf
            value_S, place_S = tile_SA.min(1)
            closer_S = value_S < found_S
            found_S = torch.where(closer_S, value_S, found_S)
            at_S = torch.where(closer_S, place_S + begin, at_S)
        at_R[start : start + rows] = at_S

    # Made before the tiles: small results that outlive them would break up the memory they leave.
    at_R = torch.empty_like(index_R)
    starts = range(0, len(index_R), rows)
    # Threads of CUDA would only queue up behind one another.
    for _ in map(some, starts) if to_AC.is_cuda or len(starts) == 1 else pool.map(some, starts):
        pass
    return at_R


def _linkage(num_points: int, merges: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> NDArray[np.float64]:
    """SciPy's matrix from merges that name one point of each side."""
    if not merges:
        return np.zeros((0, 4))
    a, b, height, size = (torch.cat(column).cpu().numpy() for column in zip(*merges, strict=True))
    order = height.argsort(kind="stable")  # a cluster comes after its parts, also where heights are equal
    root = list(range(num_points))  # union-find
    number = list(range(num_points))  # of the cluster of each root

    def root_of(x: int) -> int:
        while root[x] != x:
            root[x] = x = root[root[x]]
        return x

    pairs = []
    for i, (one, other) in enumerate(zip(a[order].tolist(), b[order].tolist(), strict=True)):
        one, other = root_of(one), root_of(other)
        pairs.append(sorted((number[one], number[other])))
        root[other] = one
        number[one] = num_points + i
    return np.column_stack([np.array(pairs, dtype=np.float64), height[order], size[order]])


def _positions(like_N: Tensor) -> Tensor:
    return torch.arange(len(like_N), device=like_N.device)


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch has, each with tiles of its own.

    Left to itself, torch shares every tile among its threads, and on a busy machine each waits for the slowest.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)
