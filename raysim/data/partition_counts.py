"""The arithmetic of partitions: how many samples of each class a client gets, in whole numbers that add up.

Shapes: N clients, C classes, P parts (train, validation, test), M samples of a pool.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_EPS = 1e-9
_FEW = 64  # the time of drawing for all at once grows with the square


def largest_remainder(total_R: Ints, share_RK: Floats, none_empty: bool = False) -> Ints:
    """Divide each row's total in proportion to its shares: int64 [R, K], every row adding up to its total.

    Everyone first gets the whole part of their quota; what is left goes to the largest fractions, the earlier
    column first where they are equal. A row of zero shares gets nothing. Shares need not sum to 1.
    none_empty: a positive share gets at least one, taken from the row's largest, where the total allows it.
    """
    sum_R = share_RK.sum(1, keepdims=True)
    quota_RK = share_RK / np.where(sum_R > 0, sum_R, 1) * total_R[:, None]
    count_RK = np.floor(quota_RK + _EPS).astype(np.int64)
    left_R = np.where(sum_R[:, 0] > 0, total_R, 0) - count_RK.sum(1)
    fraction_RK = np.round(quota_RK - count_RK, 9)  # so that equal fractions are equal in floating point too
    fraction_RK[share_RK <= 0] = -1
    order_RK = np.argsort(-fraction_RK, axis=1, kind="stable")
    rank_RK = np.argsort(order_RK, axis=1, kind="stable")
    count_RK += rank_RK < left_R[:, None]
    if none_empty:
        for row in np.flatnonzero(((count_RK == 0) & (share_RK > 0)).any(1)):
            for column in np.flatnonzero((count_RK[row] == 0) & (share_RK[row] > 0)):
                donor = int(count_RK[row].argmax())
                if count_RK[row, donor] > 1:
                    count_RK[row, donor] -= 1
                    count_RK[row, column] += 1
    return count_RK


def split_811(cell_NC: Ints) -> Ints:
    """Divide each (client, class) cell 8:1:1 into train, validation, test by largest remainder: [N, C, 3].

    A cell of one sample is for training, a cell of two for training and test. Validation and test always have
    equal fractions; where one sample is left for the two, a client's classes take turns, test first, or
    else no client of many small cells would have any validation sample. A client left without any test
    sample gives one of its largest training cell, so that its accuracy is defined.
    """
    clients, classes = cell_NC.shape
    share_P = np.array([0.8, 0.1, 0.1])  # train, test, validation: earlier ones win ties
    count_NCP = largest_remainder(cell_NC.reshape(-1), np.tile(share_P, (cell_NC.size, 1)))
    count_NCP = count_NCP.reshape(clients, classes, 3)
    count_NCP[cell_NC == 2] = [1, 1, 0]
    uneven_NC = (count_NCP[..., 1] > count_NCP[..., 2]) & (cell_NC > 2)
    swap_NC = uneven_NC & (uneven_NC.cumsum(1) % 2 == 0)
    count_NCP[swap_NC] = count_NCP[swap_NC][:, [0, 2, 1]]
    for client in np.flatnonzero(count_NCP[..., 1].sum(1) == 0):
        if count_NCP[client, :, 0].sum() > 1:
            count_NCP[client, count_NCP[client, :, 0].argmax(), :2] += [-1, 1]
    return count_NCP[..., [0, 2, 1]]


def iid_counts(class_count_C: Ints, num_clients: int, rng: np.random.Generator) -> Ints:
    """Samples dealt blindly, every client as many as any other or one more: [N, C]."""
    classes, total = len(class_count_C), int(class_count_C.sum())
    label_M = rng.permutation(np.repeat(np.arange(classes), class_count_C))
    owner_M = np.arange(total) * num_clients // max(total, 1)
    return np.bincount(owner_M * classes + label_M, minlength=num_clients * classes).reshape(num_clients, classes)


def pathological_shares(
    num_clients: int, num_classes: int, classes_per_client: int, rng: np.random.Generator
) -> Floats:
    """Each client's shares of its `classes_per_client` classes; a column sums to 1, or 0 if held by none."""
    total = num_clients * classes_per_client
    left_C = np.full(num_classes, total // num_classes)
    left_C[rng.permutation(num_classes)[: total % num_classes]] += 1
    holds_NC = np.zeros((num_clients, num_classes), bool)
    for client in range(num_clients):
        # One at a time among the classes with the largest quota left, never one that is already held: the
        # same as the first few in order of quota, ties broken at random. It cannot run into a dead end,
        # because a class that every remaining client must take has the largest quota.
        picks = np.lexsort((rng.random(num_classes), -left_C))[:classes_per_client]
        holds_NC[client, picks] = True
        left_C[picks] -= 1
    assert not left_C.any()
    share_NC = rng.uniform(0.4, 0.6, (num_clients, num_classes)) * holds_NC
    sum_C = share_NC.sum(0)
    return share_NC / np.where(sum_C > 0, sum_C, 1)


def dirichlet_shares(
    class_count_C: Ints,
    num_clients: int,
    alpha: float,
    min_samples: int,
    retries: int,
    rng: np.random.Generator,
) -> Floats:
    """Each class divided among the clients by a Dirichlet draw, no client below `min_samples`: columns sum to 1.

    A client that already holds its even part of all samples gets nothing of the classes still to come.
    Draws are repeated until the smallest client is large enough; if none of `retries` is, the best one is
    repaired: small clients are topped up with samples of the classes they already lean to, taken from the
    largest clients.
    """
    best_NC, best_smallest = np.zeros((num_clients, len(class_count_C))), -1
    even = class_count_C.sum() / num_clients
    for _ in range(retries):
        share_NC = np.zeros((num_clients, len(class_count_C)))
        held_N = np.zeros(num_clients, np.int64)
        for cls, count in enumerate(class_count_C):
            share_N = rng.dirichlet(np.full(num_clients, alpha))
            open_N = held_N < even
            if open_N.any():
                share_N = share_N * open_N
            if not share_N.sum() > 0:  # a tiny alpha can put everything on clients that are full
                share_N = open_N.astype(float) if open_N.any() else np.ones(num_clients)
            share_NC[:, cls] = share_N / share_N.sum()
            held_N += largest_remainder(np.array([count]), share_NC[None, :, cls])[0]
        if held_N.min() > best_smallest:
            best_NC, best_smallest = share_NC, int(held_N.min())
        if best_smallest >= min_samples:
            return best_NC
    count_NC = largest_remainder(class_count_C, best_NC.T).T
    topped_NC = top_up(count_NC, min_samples, best_NC + 1e-12)
    changed_C = (topped_NC != count_NC).any(0)
    best_NC[:, changed_C] = topped_NC[:, changed_C] / class_count_C[changed_C]
    return best_NC


def top_up(count_NC: Ints, minimum: int, want_NC: Floats) -> Ints:
    """Move samples between clients until every client has `minimum`: [N, C], with the same class totals.

    A client that is short takes of the classes with the largest positive want, most wanted first, each time
    from the largest client that has some and can spare them. It stays short if no client can.
    """
    count_NC = count_NC.copy()
    for client in np.flatnonzero(count_NC.sum(1) < minimum):
        for cls in np.argsort(-want_NC[client], kind="stable"):
            while want_NC[client, cls] > 0 and (need := minimum - int(count_NC[client].sum())) > 0:
                spare_N = np.minimum(count_NC.sum(1) - minimum, count_NC[:, cls])
                donor = int(np.where(spare_N > 0, count_NC.sum(1), -1).argmax())
                if spare_N[donor] <= 0:
                    break
                moved = min(need, int(spare_N[donor]))
                count_NC[donor, cls] -= moved
                count_NC[client, cls] += moved
    return count_NC


def deal(label_M: Ints, count_NCP: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Hand out a pool's samples at random within each class.

    Returns, for every sample that is handed out, its position in `label_M` and its place `client * P + part`.
    """
    order_M = rng.permutation(len(label_M))
    order_M = order_M[np.argsort(label_M[order_M], kind="stable")]  # by class, at random within it
    clients, classes, parts = count_NCP.shape
    start_C = np.searchsorted(label_M[order_M], np.arange(classes))
    used_C = count_NCP.sum((0, 2))
    place_CK = np.tile(np.arange(clients * parts), classes)
    place = np.repeat(place_CK, count_NCP.transpose(1, 0, 2).reshape(-1))
    within = np.arange(used_C.sum()) - np.repeat(used_C.cumsum() - used_C, used_C)
    return order_M[np.repeat(start_C, used_C) + within], place


def draw(size: int, drawn: int, times: int, rng: np.random.Generator) -> Ints:
    """`drawn` different ones of `range(size)`, independently so many times: [times, drawn].

    As `times` calls of `rng.choice` give them, which take 20 us each; few are drawn for all at once, by Floyd's
    algorithm as NumPy has it: the i-th is one of the first `rank[i]` + 1, and `rank[i]` where that is drawn already.
    """
    if drawn > _FEW:
        return np.stack([rng.choice(size, drawn, replace=False, shuffle=False) for _ in range(times)])
    rank = np.arange(size - drawn, size)
    chosen = rng.integers(0, np.broadcast_to(rank, (times, drawn)), endpoint=True)
    for i in range(1, drawn):
        again = (chosen[:, :i] == chosen[:, i : i + 1]).any(1)
        chosen[again, i] = rank[i]
    return chosen
