"""The arithmetic of partitions: numbers of samples per client and class that add up to the totals.

Shapes: N clients, C classes, P parts (train, validation, test), M samples of a pool; R rows and K columns of any table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_EPS = 1e-9
_FEW = 64  # maximum number of samples drawn for all clients at once, because the time grows with its square


def largest_remainder(total_R: Ints, share_RK: Floats, none_empty: bool = False) -> Ints:
    """Divide each row's total in proportion to its shares: int64 [R, K], whose rows sum to the totals.

    Each column first gets its quota rounded down. The remainder goes to the columns with the largest fractions; among
    equal fractions, the earlier column comes first. A row of zero shares gets nothing. Shares need not sum to 1.
    none_empty: each positive share gets at least one, taken from the row's largest count, if the total allows it.
    """
    sum_R = share_RK.sum(1, keepdims=True)
    quota_RK = share_RK / np.where(sum_R > 0, sum_R, 1) * total_R[:, None]
    count_RK = np.floor(quota_RK + _EPS).astype(np.int64)
    left_R = np.where(sum_R[:, 0] > 0, total_R, 0) - count_RK.sum(1)
    fraction_RK = np.round(quota_RK - count_RK, 9)  # rounded, because rounding errors would make equal fractions differ
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


Shares = tuple[float, float, float]
"""Shares of training, validation and test samples, whose sum is 1."""

SHARES_811: Shares = (0.8, 0.1, 0.1)


Split = str | Shares
"""The name of a split, or the shares by which each client's samples are split."""


def pooled(split: Split) -> Shares | None:
    """Return the shares of a split that first divides all samples among the clients; None for any other split."""
    return SHARES_811 if split == "pooled811" else split if isinstance(split, tuple) else None


def split_cells(cell_NC: Ints, shares: Shares = SHARES_811) -> Ints:
    """Divide each (client, class) cell into train, validation and test samples by largest remainder: [N, C, 3].

    A cell of two samples has one for training and one for test. If validation and test have equal shares and one sample
    is left for both, it goes to test and validation in turn over a client's classes, test first: otherwise a client
    with many small cells would get no validation sample. If a client has no test sample, one sample of its largest
    training cell becomes its test sample, so that its accuracy is defined.
    """
    clients, classes = cell_NC.shape
    # The order is train, test, validation, because the first of equal remainders gets the sample.
    share_P = np.array([shares[0], shares[2], shares[1]])
    count_NCP = largest_remainder(cell_NC.reshape(-1), np.tile(share_P, (cell_NC.size, 1)))
    count_NCP = count_NCP.reshape(clients, classes, 3)
    count_NCP[cell_NC == 2] = [1, 1, 0]
    uneven_NC = (count_NCP[..., 1] > count_NCP[..., 2]) & (cell_NC > 2) & (shares[1] == shares[2])
    swap_NC = uneven_NC & (uneven_NC.cumsum(1) % 2 == 0)
    count_NCP[swap_NC] = count_NCP[swap_NC][:, [0, 2, 1]]
    for client in np.flatnonzero(count_NCP[..., 1].sum(1) == 0):
        if count_NCP[client, :, 0].sum() > 1:
            count_NCP[client, count_NCP[client, :, 0].argmax(), :2] += [-1, 1]
    return count_NCP[..., [0, 2, 1]]


def iid_counts(class_count_C: Ints, num_clients: int, rng: np.random.Generator) -> Ints:
    """Divide samples at random, regardless of class; clients' totals differ by at most one: [N, C]."""
    classes, total = len(class_count_C), int(class_count_C.sum())
    label_M = rng.permutation(np.repeat(np.arange(classes), class_count_C))
    owner_M = np.arange(total) * num_clients // max(total, 1)
    return np.bincount(owner_M * classes + label_M, minlength=num_clients * classes).reshape(num_clients, classes)


def pathological_shares(
    num_clients: int, num_classes: int, classes_per_client: int, rng: np.random.Generator
) -> Floats:
    """Draw each client's shares of its `classes_per_client` classes: [N, C]. A column sums to 1, or to 0 if unused."""
    total = num_clients * classes_per_client
    left_C = np.full(num_classes, total // num_classes)
    left_C[rng.permutation(num_classes)[: total % num_classes]] += 1
    holds_NC = np.zeros((num_clients, num_classes), bool)
    for client in range(num_clients):
        # Each client takes the classes with the largest remaining quotas; ties are broken at random. This always leaves
        # a solution for the remaining clients, because a class that all of them must take has the largest quota.
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
) -> tuple[Floats, str]:
    """Divide each class among the clients by a Dirichlet draw, with at least `min_samples` per client: shares [N, C].

    Also returns a sentence if the shares are not those of a draw, else "". Columns sum to 1. A client that already
    holds an equal part of all samples gets nothing of the remaining classes. Draws are repeated until the smallest
    client is large enough. If that fails `retries` times, the best draw is repaired: small clients receive samples of
    the classes that they have most of, taken from the largest clients.
    """
    best_NC, best_smallest, best_even = np.zeros((num_clients, len(class_count_C))), -1, 0
    even = class_count_C.sum() / num_clients
    for _ in range(retries):
        share_NC = np.zeros((num_clients, len(class_count_C)))
        held_N, num_even = np.zeros(num_clients, np.int64), 0
        for cls, count in enumerate(class_count_C):
            share_N = rng.dirichlet(np.full(num_clients, alpha))
            open_N = held_N < even
            if open_N.any():
                share_N = share_N * open_N
            if not share_N.sum() > 0:  # a tiny alpha may give the whole class to clients that are full
                share_N = open_N.astype(float) if open_N.any() else np.ones(num_clients)
                num_even += 1
            share_NC[:, cls] = share_N / share_N.sum()
            held_N += largest_remainder(np.array([count]), share_NC[None, :, cls])[0]
        if held_N.min() > best_smallest:
            best_NC, best_smallest, best_even = share_NC, int(held_N.min()), num_even
        if best_smallest >= min_samples:
            return best_NC, _repairs(0, best_even, best_NC, min_samples)
    count_NC = largest_remainder(class_count_C, best_NC.T).T
    num_small = int((count_NC.sum(1) < min_samples).sum())
    topped_NC = top_up(count_NC, min_samples, best_NC + 1e-12)
    changed_C = (topped_NC != count_NC).any(0)
    best_NC[:, changed_C] = topped_NC[:, changed_C] / class_count_C[changed_C]
    return best_NC, _repairs(num_small, best_even, best_NC, min_samples)


def _repairs(num_small: int, num_even: int, share_NC: Floats, min_samples: int) -> str:
    """Describe how many clients and classes have other shares than in a Dirichlet draw; "" if there are none."""
    clients, classes = share_NC.shape
    small = f"{num_small} of {clients} clients had fewer than {min_samples} samples and received some of larger clients"
    even = (
        f"{num_even} of {classes} classes would have gone only to clients that were full, and were divided equally "
        "among the others"
    )
    changes = [text for number, text in ((num_small, small), (num_even, even)) if number]
    return f"the partition is less skewed than its Dirichlet draw: {'; '.join(changes)}" if changes else ""


def top_up(count_NC: Ints, minimum: int, want_NC: Floats) -> Ints:
    """Move samples between clients until every client has `minimum`: [N, C]; the totals per class stay the same.

    A client below the minimum takes samples of the classes with positive `want_NC`, the largest first, from the largest
    client that has them and stays at or above the minimum. It remains below if no client can give any.
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
    """Assign a pool's samples to clients and parts, at random within each class.

    Returns, for every assigned sample, its position in `label_M` and its place `client * P + part`.
    """
    order_M = rng.permutation(len(label_M))
    order_M = order_M[np.argsort(label_M[order_M], kind="stable")]  # sorted by class, in random order within a class
    clients, classes, parts = count_NCP.shape
    start_C = np.searchsorted(label_M[order_M], np.arange(classes))
    used_C = count_NCP.sum((0, 2))
    place_CK = np.tile(np.arange(clients * parts), classes)
    place = np.repeat(place_CK, count_NCP.transpose(1, 0, 2).reshape(-1))
    within = np.arange(used_C.sum()) - np.repeat(used_C.cumsum() - used_C, used_C)
    return order_M[np.repeat(start_C, used_C) + within], place


def draw(size: int, drawn: int, times: int, rng: np.random.Generator) -> Ints:
    """Draw `drawn` different numbers from `range(size)`; repeat this independently: [times, drawn].

    Each row is distributed like a call of `rng.choice`, which takes 20 us. Small numbers are drawn for all rows at
    once, by Floyd's algorithm as in NumPy: the i-th number is one of 0 to `rank[i]`, or `rank[i]` if that number is
    already drawn.
    """
    if drawn > _FEW:
        return np.stack([rng.choice(size, drawn, replace=False, shuffle=False) for _ in range(times)])
    rank = np.arange(size - drawn, size)
    chosen = rng.integers(0, np.broadcast_to(rank, (times, drawn)), endpoint=True)
    for i in range(1, drawn):
        again = (chosen[:, :i] == chosen[:, i : i + 1]).any(1)
        chosen[again, i] = rank[i]
    return chosen
