"""Partitions: which client holds which samples for training, validation and test.

A partition divides the samples of a data set among clients. A split decides which of a client's samples are for
training and which for testing. All draws come from one generator, seeded by the run's seed.

Shapes: N clients, C classes, M samples of the data set.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from raysim.common.errors import ScenarioError
from raysim.core.fields import Count, Positive
from raysim.core.seeds import seed_for
from raysim.data import partition_counts as counts
from raysim.data.partition_counts import Floats, Ints, Split
from raysim.data.predefined import deal_by_id, kept_ids, read_partition
from raysim.data.shards import PARTS, Partition, make_shards
from raysim.plugins.calling import failing

_HKS_MIN_SAMPLES, _HKS_RETRIES = 10, 100


class ByShares(Protocol):
    """A partition that divides each class among the clients by shares: a frozen dataclass of raysim or of the user."""

    def shares(self, class_count_C: Ints, num_clients: int, rng: np.random.Generator) -> Floats:
        """Return each client's share of each class: [N, C]. class_count_C: number of samples of each class."""


@dataclass(frozen=True)
class Iid:
    """Samples are divided at random, in equal numbers, so all clients have the same distribution."""


@dataclass(frozen=True)
class Pathological:
    """Every client holds only a few classes, with a random weight from 0.4 to 0.6 for each class, as in pFedHN."""

    classes_per_client: Count
    """Number of different classes that each client holds."""

    def shares(self, class_count_C: Ints, num_clients: int, rng: np.random.Generator) -> Floats:
        """See `ByShares`."""
        return counts.pathological_shares(num_clients, len(class_count_C), self.classes_per_client, rng)


@dataclass(frozen=True)
class Dirichlet:
    """Each class is divided among all clients by a Dirichlet draw, so clients differ in size and in class mix."""

    alpha: Positive = 0.5
    """Concentration: near 0, each class goes to one client; large values approach equal parts."""
    min_samples: Count = 10
    """Minimum number of samples of a client. Test samples count only with split pooled811, which divides all samples
    at once."""
    max_retries: Count = 100
    """Maximum number of draws. If none gives every client `min_samples`, the smallest clients of the best draw receive
    samples from the largest clients, and `launch` says how many."""

    def drawn(self, class_count_C: Ints, num_clients: int, rng: np.random.Generator) -> tuple[Floats, str]:
        """Return the shares, and a sentence if they differ from those of a Dirichlet draw."""
        return counts.dirichlet_shares(class_count_C, num_clients, self.alpha, self.min_samples, self.max_retries, rng)


@dataclass(frozen=True)
class Hks:
    """A Dirichlet draw divides the published training images; the published test images are divided in proportion."""

    alpha: Positive = 1.0
    """Concentration of the Dirichlet draw; smaller is more skewed."""

    def drawn(self, class_count_C: Ints, num_clients: int, rng: np.random.Generator) -> tuple[Floats, str]:
        """Return the shares, and a sentence if they differ from those of a Dirichlet draw."""
        return counts.dirichlet_shares(class_count_C, num_clients, self.alpha, _HKS_MIN_SAMPLES, _HKS_RETRIES, rng)


@dataclass(frozen=True)
class Resample:
    """Each client draws its samples independently of the others, so clients share samples.

    A small data set is then enough for any number of clients; use this to test scale. No client trains on another
    client's test samples.
    """

    samples_per_client: Count
    """Number of training samples of every client. Validation and test samples are drawn in addition, in the
    proportions of the split."""


@dataclass(frozen=True)
class Natural:
    """Each id in the data, such as a user, writer or device, is a client with its own samples."""

    by: str | None = None
    """Name of the column with the ids. For numpy: the name of the array. For images: a column of `metadata.csv`, or
    `folder` for <client>/<class>/. `null`: the ids of the data set itself (femnist and shakespeare)."""
    min_samples: Count = 2
    """Minimum number of samples of an id. Ids with fewer are left out, as are ids without any sample in the training
    part or in the test part. With split `pfedhn`, a fifth of the training part becomes validation samples afterwards,
    so an id with few samples may keep no training sample."""
    max_clients: Count | None = None
    """Maximum number of ids, drawn at random; `null`: no limit."""


@dataclass(frozen=True)
class Listed:
    """A file lists the samples of each client, for example the `partition.parquet` of a run.

    Its columns are client (from 0), part (train, val or test) and sample (position in the data set, from 0).
    """

    path: str
    """Path of the Parquet file."""


PartitionSettings = Iid | Pathological | Dirichlet | Hks | Resample | Natural | Listed
PARTITIONS: dict[str, type] = {
    "iid": Iid,
    "pathological": Pathological,
    "dirichlet": Dirichlet,
    "hks": Hks,
    "resample": Resample,
    "natural": Natural,
    "listed": Listed,
}


def default_split(setting: PartitionSettings) -> str:
    """Return the split that a partition uses if the scenario names none."""
    return "published" if isinstance(setting, Hks) else "listed" if isinstance(setting, Listed) else "pooled811"


def check_split(setting: PartitionSettings, split: Split, num_train: int, num_samples: int, name: str) -> None:
    """Raise ScenarioError, like `check_partition`, if the partition or the data set does not support the split."""
    if isinstance(setting, Hks | Listed) and split != default_split(setting):
        raise ScenarioError(
            f"{split} given, but the partition `{type(setting).__name__.lower()}` needs the split "
            f"`{default_split(setting)}`; give this split",
            key="data.split",
        )
    if split == "listed" and not isinstance(setting, Listed):
        raise ScenarioError(
            "listed given, but this split needs the partition of the same name; give pooled811, pfedhn or published",
            key="data.split",
        )
    if split in ("pfedhn", "published") and num_train == num_samples:
        remedy = "add test data" if isinstance(setting, Hks) else "give pooled811, or add test data"
        raise ScenarioError(
            f"{split} given, but {name} has no test part; {remedy}",
            key="data.split",
        )


def check_partition(
    setting: PartitionSettings,
    split: Split,
    num_classes: int,
    num_clients: int,
    num_train: int,
    num_samples: int,
    name: str,
) -> None:
    """Raise ScenarioError for an impossible partition, before samples are divided. name: the data set in an error.

    num_train, num_samples: numbers of published training samples and of all samples. Raises ScenarioError, one sentence
    that begins with the scenario key.
    """
    check_split(setting, split, num_train, num_samples, name)
    if isinstance(setting, Natural | Listed):
        return  # raysim/data/predefined.py checks the partitions `natural` and `listed`
    if isinstance(setting, Pathological) and setting.classes_per_client > num_classes:
        raise ScenarioError(
            f"{setting.classes_per_client} given, but {name} has {num_classes} classes; give 1 to {num_classes}",
            key="data.partition.classes_per_client",
        )
    pool = _train_pool(split, num_train, num_samples)
    if isinstance(setting, Resample):
        shares = counts.pooled(split)
        most = _train_share(pool, shares) if shares else pool
        if setting.samples_per_client > most:
            raise ScenarioError(
                f"{setting.samples_per_client} given, but {name} has "
                f"{most} training samples with split {split}; give 1 to {most}",
                key="data.partition.samples_per_client",
            )
        return
    # If a client's samples are split, the client needs a second sample for its test part.
    least = _HKS_MIN_SAMPLES if isinstance(setting, Hks) else 2 if counts.pooled(split) else 1
    reduce = "reduce clients.count"
    if isinstance(setting, Dirichlet):
        least, reduce = setting.min_samples, f"{reduce} or data.partition.min_samples"
    if num_clients * least > pool:
        raise ScenarioError(
            f"{num_clients} given, but with split {split}, {name} has {pool} samples, and each client needs at least "
            f"{least}; {reduce}",
            key="clients.count",
        )
    if not counts.pooled(split) and num_clients > num_samples - num_train:
        raise ScenarioError(
            f"{num_clients} given, but each client needs a test sample, and {name} has {num_samples - num_train} "
            f"test samples; give at most {num_samples - num_train}, or set data.split to pooled811",
            key="clients.count",
        )


def given_count(
    setting: PartitionSettings, split: Split, num_train: int, num_samples: int, owner_M: Ints
) -> int | None:
    """Return the number of clients that a partition makes; None if the scenario sets it. Raises ScenarioError."""
    if isinstance(setting, Natural):
        kept = len(kept_ids(setting.min_samples, owner_M, num_train, split))
        return min(kept, setting.max_clients or kept)
    return read_partition(setting.path, None, num_samples).num_clients if isinstance(setting, Listed) else None


def make_partition(
    label_M: Ints,
    num_train: int,
    num_classes: int,
    num_clients: int,
    setting: PartitionSettings,
    split: Split,
    seed: int,
    name: str = "the data set",
    owner_M: Ints | None = None,
    owners: tuple[str, ...] = (),
) -> Partition:
    """Divide a data set's samples among the clients. Its first `num_train` samples are the published train part.

    owner_M, owners: each sample's position among the ids, and the ids, if samples have ids. The same arguments always
    give the same partition. Raises ScenarioError if there are too few samples.
    """
    check_partition(setting, split, num_classes, num_clients, num_train, len(label_M), name)
    if isinstance(setting, Listed):
        return read_partition(setting.path, num_clients, len(label_M), label_M)
    rng = np.random.default_rng(seed_for(seed, "partition"))
    pools, shares = _pools(len(label_M), num_train, split, rng), counts.pooled(split)
    if isinstance(setting, Resample):
        return _resample(pools, shares, num_clients, setting.samples_per_client, rng)
    if isinstance(setting, Natural):
        assert owner_M is not None
        kept = kept_ids(setting.min_samples, owner_M, num_train, split)
        chosen = np.sort(rng.choice(kept, num_clients, replace=False)) if len(kept) > num_clients else kept
        dealt = deal_by_id(label_M, num_classes, owner_M, chosen, owners, pools, shares, rng)
        return replace(dealt, notes=_left_out(name, len(owners), len(kept), setting.min_samples))
    class_count_C = np.bincount(label_M[pools[0]], minlength=num_classes)
    share_NC, note = _shares(setting, class_count_C, num_clients, rng)
    if isinstance(setting, Pathological) and share_NC is not None:
        _check_holders(class_count_C, (share_NC > 0).sum(0), num_clients, name)
    index, places = [], []
    for part, pool in enumerate(pools):
        if not len(pool):
            continue
        class_count_C = np.bincount(label_M[pool], minlength=num_classes)
        if share_NC is None:
            count_NC = counts.iid_counts(class_count_C, num_clients, rng)
        else:
            # Every client must get at least one sample of each of its few classes.
            few = isinstance(setting, Pathological)
            count_NC = counts.largest_remainder(class_count_C, share_NC.T, none_empty=few).T
            if part > 0:
                count_NC = counts.top_up(count_NC, 1, share_NC)
        in_part_P = np.arange(len(PARTS)) == part
        count_NCP = count_NC[..., None] * in_part_P if shares is None else counts.split_cells(count_NC, shares)
        position, place = counts.deal(label_M[pool], count_NCP, rng)
        index.append(pool[position])
        places.append(place)
    client_Q, part_Q = np.divmod(np.concatenate(places), len(PARTS))
    index_Q, masks = np.concatenate(index), [part_Q == part for part in range(len(PARTS))]
    shards = (make_shards(index_Q[mask_Q], client_Q[mask_Q], num_clients) for mask_Q in masks)
    return Partition(*shards, notes=(note,) if note else ())


def _left_out(name: str, num_ids: int, num_kept: int, min_samples: int) -> tuple[str, ...]:
    """Return a note on the ids that do not become clients; () if all ids do."""
    if num_kept == num_ids:
        return ()
    text = (
        f"{name}: {num_ids - num_kept} of {num_ids} ids are left out: they have fewer than {min_samples} samples "
        "(data.partition.min_samples), or no sample to train or to test with"
    )
    return (text,)


def _train_pool(split: Split, num_train: int, num_samples: int) -> int:
    """Return the size of the first pool, which is divided by the clients' shares."""
    return num_samples if counts.pooled(split) else _four_fifths(num_train) if split == "pfedhn" else num_train


def _four_fifths(num_train: int) -> int:
    return round(num_train * 4 / 5)


def _pools(num_samples: int, num_train: int, split: Split, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Return the pools of positions to divide among the clients, as (train, validation, test).

    If all samples are pooled, the first pool has them; each client's samples are split afterwards.
    """
    everything, nothing = np.arange(num_samples), np.zeros(0, np.int64)
    if counts.pooled(split):
        return everything, nothing, nothing
    train, test = everything[:num_train], everything[num_train:]
    if split == "published":
        return train, nothing, test
    mixed = rng.permutation(train)
    return np.sort(mixed[: _four_fifths(num_train)]), np.sort(mixed[_four_fifths(num_train) :]), test


def _shares(setting: Any, class_count_C: Ints, num_clients: int, rng: np.random.Generator) -> tuple[Floats | None, str]:
    """Return each client's share of each class [N, C], and a note if the shares were repaired.

    The shares are None if samples are divided regardless of their class.
    """
    if type(setting) is Iid:
        return None, ""
    if type(setting) in (Dirichlet, Hks):
        drawn: tuple[Floats, str] = setting.drawn(class_count_C, num_clients, rng)
        return drawn
    if type(setting) is Pathological:
        return setting.shares(class_count_C, num_clients, rng), ""
    return _own_shares(setting, class_count_C, num_clients, rng), ""


def _own_shares(setting: Any, class_count_C: Ints, num_clients: int, rng: np.random.Generator) -> Floats:
    """Return the shares of a custom partition, scaled so that each class sums to 1.

    Raises ScenarioError if the shares are not [N, C] finite numbers of at least 0, or leave a class with samples to no
    client.
    """
    name = type(setting).__name__
    with failing(f"{name}.shares fails", key="data.partition.name"):
        repeated = copy.deepcopy(rng)
        share_NC = np.asarray(setting.shares(class_count_C.copy(), num_clients, rng), dtype=np.float64)
        again_NC = np.asarray(setting.shares(class_count_C.copy(), num_clients, repeated), dtype=np.float64)
    if not np.array_equal(share_NC, again_NC, equal_nan=True):
        raise ScenarioError(
            f"{name}.shares returns other shares when it is called again with the same arguments; draw random numbers "
            "only from `rng`, and keep no state",
            key="data.partition.name",
        )
    shape = (num_clients, len(class_count_C))
    fits = share_NC.shape == shape and np.isfinite(share_NC).all() and (share_NC >= 0).all()
    if not fits or ((total_C := share_NC.sum(0)) == 0)[class_count_C > 0].any():
        raise ScenarioError(
            f"{name}.shares returned an array of shape {share_NC.shape} with values from {share_NC.min(initial=0):g} "
            f"to {share_NC.max(initial=0):g}; return an array of shape {shape}, (clients, classes), with finite shares "
            "of at least 0 that give each class to at least one client",
            key="data.partition.name",
        )
    return share_NC / np.where(total_C == 0, 1, total_C)


def _check_holders(class_count_C: Ints, holders_C: Ints, num_clients: int, name: str) -> None:
    if (holders_C > class_count_C).any():
        worst = int((holders_C - class_count_C).argmax())
        raise ScenarioError(
            f"{num_clients} given, but class {worst} of {name} has too few samples ({class_count_C[worst]}) for the "
            f"clients that would hold this class ({holders_C[worst]}); reduce clients.count or "
            "data.partition.classes_per_client, number the classes from 0 without gaps, or choose another partition",
            key="clients.count",
        )


def _resample(
    pools: tuple[Ints, Ints, Ints],
    shares: counts.Shares | None,
    num_clients: int,
    samples: int,
    rng: np.random.Generator,
) -> Partition:
    """Draw samples for each client independently. Draws have no repetitions, and come from pools that do not overlap.

    shares: by which the first pool is split into the pools; None: it is one of them.
    """
    if shares is not None:
        mixed, total = rng.permutation(pools[0]), len(pools[0])
        end = _train_share(total, shares)
        train, val, test = np.split(mixed, [end, end + round((total - end) * shares[1] / (shares[1] + shares[2]))])
        pools = train, val, test
    shards = []
    for pool in pools:
        size = min(len(pool), max(1, round(samples * len(pool) / len(pools[0]))))
        drawn_NS = counts.draw(len(pool), size, num_clients, rng)
        shards.append(make_shards(pool[drawn_NS].ravel(), np.repeat(np.arange(num_clients), size), num_clients))
    return Partition(*shards)


def _train_share(num_samples: int, shares: counts.Shares) -> int:
    return int(num_samples * shares[0] + 1e-9)
