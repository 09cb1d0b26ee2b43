"""The data of a run: samples, their partition among the clients, public samples, and digests of all files it reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError
from raysim.common.shards import Shards
from raysim.core.seeds import seed_for
from raysim.data.datasets import Dataset, load_dataset
from raysim.data.partition import make_partition
from raysim.data.shards import Partition
from raysim.scenario.inputs import input_digests
from raysim.scenario.scenario import Scenario


class PublicSamples(NamedTuple):
    """Public data, which all parties have."""

    raw_P: NDArray[Any]  # as stored
    label_P: NDArray[np.int64]  # -1 for samples of another data set
    held_P: NDArray[np.int64]  # positions in the clients' data set, ascending; empty for another data set
    digest: str = ""  # of the other data set


@dataclass
class RunData:
    """The data of a run. The driver has them; workers get the samples that `raw` hands over once."""

    scenario: Scenario
    dataset: Dataset  # without its samples after a call of `raw`
    partition: Partition
    public: PublicSamples | None
    inputs: Mapping[str, str]  # see `input_digests`
    notes: tuple[str, ...]  # warnings about the partition and the initial state

    @classmethod
    def of(cls, scenario: Scenario) -> RunData:
        """Read the data that a scenario names and partition them. Raises `ScenarioError`, one sentence."""
        dataset = _read(scenario)
        public = _public(scenario, dataset)
        partition = _partition(scenario, dataset, public)
        notes = (
            *dataset.decoded.notes,
            *partition.notes,
            *_absent_classes(partition, dataset),
            *_reused_samples(partition),
        )
        return cls(scenario, dataset, partition, public, input_digests(scenario), notes)

    @property
    def digest(self) -> str:
        """SHA-256 of all data: of the data set, and of the public data set if that is another one."""
        other = self.public.digest if self.public else ""
        return hashlib.sha256(f"{self.dataset.digest}{other}".encode()).hexdigest() if other else self.dataset.digest

    def raw(self) -> NDArray[Any]:
        """Hand over all samples as stored [M, ...] to the backend, which holds them once per node.

        This object drops them, because the driver would otherwise hold up to 200 MB that it does not need. A later
        call reads them again.
        """
        raw_M = self.dataset.raw_M
        if not len(raw_M):
            return _read(self.scenario).raw_M
        self.dataset = replace(self.dataset, decoded=self.dataset.decoded._replace(raw_M=raw_M[:0].copy()))
        return raw_M


def _read(scenario: Scenario) -> Dataset:
    given = scenario.data
    return load_dataset(given.name, given.root, given.format, files=scenario.files)


def _public(scenario: Scenario, data: Dataset) -> PublicSamples | None:
    given = scenario.data
    if given.public is None:
        return None
    rng = np.random.default_rng(seed_for(scenario.seed_of("data"), "public"))
    if given.public.name is None:
        held_P = np.sort(rng.choice(data.num_train, scenario.held_back, replace=False))
        return PublicSamples(data.raw_M[held_P], data.label_M[held_P], held_P)
    other = load_dataset(given.public.name, given.root, given.format)
    if other.digest == data.digest:
        raise ScenarioError(
            f"{given.public.name} given, but its files have the same samples as {given.name}; give another data set, "
            "or put the files of each data set into a folder with its name",
            key="data.public.name",
        )
    if scenario.public_size > other.num_train:
        raise ScenarioError(
            f"{scenario.public_size} samples needed, but the files of {given.public.name} have only {other.num_train}; "
            f"set data.public.samples to at most {other.num_train}",
            key="data.public.samples",
        )
    place_P = np.sort(rng.choice(other.num_train, scenario.public_size, replace=False))
    return PublicSamples(other.raw_M[place_P], np.full(len(place_P), -1), np.zeros(0, np.int64), other.digest)


def _partition(scenario: Scenario, data: Dataset, public: PublicSamples | None) -> Partition:
    """Partition all samples except those held back as public data."""
    if public is None or not len(public.held_P):
        return _dealt(scenario, data, data.label_M, data.num_train)
    left_L = np.delete(np.arange(len(data)), public.held_P)
    partition = _dealt(scenario, data, data.label_M[left_L], data.num_train - len(public.held_P))
    train, val, test = (Shards(left_L[part.index], part.offset) for part in partition.parts.values())
    return replace(partition, train=train, val=val, test=test)


def _dealt(scenario: Scenario, data: Dataset, label_M: NDArray[np.int64], num_train: int) -> Partition:
    return make_partition(
        label_M,
        num_train,
        scenario.dataset.num_classes,
        scenario.clients.number,
        scenario.data.partition,
        scenario.split,
        scenario.seed_of("data"),
        data.name,
        data.decoded.owner_M,
        data.decoded.owners,
    )


def _absent_classes(partition: Partition, data: Dataset) -> tuple[str, ...]:
    """Return a warning that names the classes of which no client has a training sample; none if there are none."""
    of_all_X = np.unique(data.label_M)
    absent_X = np.setdiff1d(of_all_X, data.label_M[partition.train.index])
    if not len(absent_X):
        return ()
    shown = ", ".join(map(str, absent_X[:10])) + (", ..." if len(absent_X) > 10 else "")
    counts = f"{len(absent_X)} of the {len(of_all_X)} classes"
    text = f"{data.name}: no client has training samples of {counts}: {shown}"
    return (text,)


def _reused_samples(partition: Partition) -> tuple[str, ...]:
    """Return a warning if one client trains on samples that another is tested on, as the partition `listed` allows."""
    test_X = np.unique(partition.test.index)
    both_X = np.intersect1d(test_X, partition.train.index)
    if not len(both_X):
        return ()
    text = (
        f"test samples that are also training samples of another client: {len(both_X)} of {len(test_X)}, for example "
        f"sample {both_X[0]}; with messages between clients, test accuracies may be too high"
    )
    return (text,)
