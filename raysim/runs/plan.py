"""`make_plan` creates the plan of a run from a scenario, its data and the resources of this machine or cluster.

`RunData` has the data: samples, their partition among the clients, public samples, and digests of all files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import HookError, RunError, ScenarioError
from raysim.common.shards import Shards
from raysim.core.seeds import seed_for
from raysim.data.datasets import Dataset, load_dataset
from raysim.data.partition import make_partition
from raysim.data.shards import Partition
from raysim.data.statistics import normalised_by
from raysim.data.transform import transform_of
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import EvaluationSchedule
from raysim.engine.policies.placement import ClusterResources, Layout
from raysim.engine.policies.sampling import SELECTIONS
from raysim.engine.policies.stopping import StoppingRule
from raysim.runs.machine import layout_of
from raysim.scenario.data import input_digests
from raysim.scenario.deciding import DECIDING
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario


@dataclass
class RunData:
    """The data of a run, for the driver. Workers get the samples from `raw`, which works only once."""

    scenario: Scenario
    dataset: Dataset  # after a call of `raw`, without samples
    partition: Partition
    public: PublicSamples | None
    inputs: Mapping[str, str]  # result of `input_digests`
    notes: tuple[str, ...]  # warnings about the partition, the initial state, and what changed before a resume

    @classmethod
    def of(cls, scenario: Scenario) -> RunData:
        """Read the data that a scenario names, and partition them. Raises `ScenarioError`."""
        dataset = _read(scenario)
        public = _public(scenario, dataset)
        partition = _partition(scenario, dataset, public)
        notes = (*partition.notes, *_warnings(partition, dataset))
        return cls(scenario, dataset, partition, public, input_digests(scenario), notes)

    @property
    def digest(self) -> str:
        """SHA-256 of the data set and, if it is another data set, of the public data."""
        other = self.public.digest if self.public else ""
        return hashlib.sha256(f"{self.dataset.digest}{other}".encode()).hexdigest() if other else self.dataset.digest

    @property
    def able(self) -> int:
        """Number of clients that can take part: those with training samples that are not held out."""
        return len(set(np.flatnonzero(self.partition.train.size_N).tolist()) - self.scenario.held_out)

    def raw(self) -> NDArray[Any]:
        """Return all stored samples [M, ...], and drop them here, because the backend keeps them once per node.

        This object drops them, because the driver would otherwise hold up to 200 MB that it does not need. A later
        call reads them again.
        """
        raw_M = self.dataset.raw_M
        if not len(raw_M):
            return _read(self.scenario).raw_M
        self.dataset = replace(self.dataset, raw_M=raw_M[:0].copy())
        return raw_M


def make_plan(
    scenario: Scenario, machine: ClusterResources | None = None, *, rounds_left: bool = True
) -> tuple[Plan, RunData]:
    """Plan the actors, read and partition the data; return the plan of the run and its data.

    machine: the resources for the actors; default: those of the cluster that RAY_ADDRESS names, else of this machine.
    rounds_left: False for a run that has all its rounds; no actors are planned for it. Raises `ScenarioError`, one
    sentence.
    """
    layout = layout_of(scenario, machine) if rounds_left else None
    if layout and scenario.backend == "in_process":
        layout = replace(layout, groups=tuple(replace(group, actors=0) for group in layout.groups))
    data = RunData.of(scenario)
    if rounds_left:
        _refuse_unmeasured(scenario, data.partition)
    plan = _plan(data, layout)
    if rounds_left and scenario.resolved["clients"]["selection"]["name"] not in SELECTIONS:
        _try_selection(scenario, plan)
    return plan, data


def _plan(data: RunData, layout: Layout | None) -> Plan:
    scenario, dataset, partition = data.scenario, data.dataset, data.partition
    evaluation, failure = scenario.evaluation, scenario.failure
    threads = dict.fromkeys(range(scenario.clients.number), 1)
    for group in layout.groups if layout else ():
        threads |= dict.fromkeys(group.clients, group.threads)
    evaluations, stopping = evaluations_of(scenario), stopping_rule(scenario)
    published = np.arange(dataset.num_train, len(dataset.label_M), dtype=np.int64)
    normalised = normalised_by(scenario.dataset, dataset.raw_M, np.unique(partition.train.index))
    return Plan(
        algorithm=scenario.algorithm,
        seed=scenario.seed,
        num_rounds=scenario.rounds,
        num_classes=scenario.dataset.num_classes,
        feature_dim=scenario.feature_dim,
        models=tuple(scenario.clients.models),
        build_model=scenario.build,
        transform=transform_of(normalised, scenario.data.augment),
        local=scenario.local,
        own_local=scenario.own_local,
        stragglers=scenario.stragglers,
        schedule=scenario.training.schedule,
        together=scenario.together,
        train=partition.train,
        val=partition.val,
        test=partition.test,
        labels=dataset.label_M,
        public=data.public and (data.public.raw_P, data.public.label_P),
        encoder=scenario.task.encoder,
        participants=scenario.participants,
        participation=scenario.participation,
        malicious=scenario.malicious,
        held_out=scenario.held_out,
        fine_tune=evaluation.fine_tune,
        robust=scenario.robust,
        privacy=scenario.client_privacy and scenario.client_privacy.among(data.able),
        asynchronous=scenario.buffered,
        independent_init=scenario.clients.independent_init,
        weights_seed=scenario.seeds.weights,
        evaluate_when=evaluation.when,
        evaluations=evaluations,
        global_test=published if evaluation.global_test else None,
        stopping=stopping,
        max_failed_fraction=failure.max_failed_fraction,
        max_attempts=failure.max_attempts,
        client_timeout_s=failure.client_timeout_s,
        own_code=scenario.own_code,
        threads=tuple(threads[k] for k in range(scenario.clients.number)),
        layout=layout,
    )


def evaluations_of(scenario: Scenario) -> EvaluationSchedule:
    """Return the schedule of tests."""
    given = scenario.evaluation
    all_every = (given.all_every or given.every) if given.clients == "all" else None
    return EvaluationSchedule(scenario.rounds, given.every, given.global_every, all_every)


def stopping_rule(scenario: ParsedScenario) -> StoppingRule | None:
    """Return the rule for early stopping; None: the run does all its rounds."""
    return None if scenario.stop is None else StoppingRule(**scenario.stop.model_dump())


def _refuse_unmeasured(scenario: Scenario, partition: Partition) -> None:
    """Raise `ScenarioError` if no client has samples for the metric of `stop` or `checkpoint.keep`."""
    needed = {("checkpoint", "keep"): ("best_val", "val")} if "best_val" in scenario.checkpoint.keep else {}
    if scenario.stop is not None:
        deciding = DECIDING[scenario.stop.metric]
        if deciding.part != "train" and deciding.needs != "global_test":
            needed["stop", "metric"] = (scenario.stop.metric, deciding.part)
    for key, (given, part) in needed.items():
        if not len(partition.parts[part].index):
            samples = {"val": "validation", "test": "test"}[part]
            raise scenario.origin.error(
                key, f"{given} given, but no client has {samples} samples; give clients such samples, or set {key[1]}"
            )


def _try_selection(scenario: Scenario, plan: Plan) -> None:
    """Call a custom selection policy for round 1, to check it. Raises `ScenarioError`."""
    try:
        first, again = (list(plan.cohort(1)) for _ in range(2))
        if first != again:
            name = type(scenario.participation.selection).__name__
            raise RunError(
                f"round 1: {name}.select returns other clients when it is called again with the same arguments; draw "
                "random numbers only from `rng`, and keep no state"
            )
    except HookError:
        raise
    except RunError as error:
        raise scenario.origin.error(("clients", "selection"), str(error)) from error


class PublicSamples(NamedTuple):
    """Public samples, which all clients and the server have."""

    raw_P: NDArray[Any]  # samples as stored
    label_P: NDArray[np.int64]  # -1 for samples from another data set
    held_P: NDArray[np.int64]  # positions in the clients' data set, ascending; empty for samples from another data set
    digest: str = ""  # digest of the other data set; empty without one


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
    if scenario.public_size > other.num_train:
        raise ScenarioError(
            f"{scenario.public_size} samples needed, but the files of {given.public.name} have only {other.num_train}; "
            f"set data.public.samples to at most {other.num_train}",
            key="data.public.samples",
        )
    place_P = np.sort(rng.choice(other.num_train, scenario.public_size, replace=False))
    return PublicSamples(other.raw_M[place_P], np.full(len(place_P), -1), np.zeros(0, np.int64), other.digest)


def _partition(scenario: Scenario, data: Dataset, public: PublicSamples | None) -> Partition:
    """Partition all samples, except public ones."""
    held_P = np.zeros(0, np.int64) if public is None else public.held_P
    left_L = np.delete(np.arange(len(data)), held_P)
    partition = make_partition(
        data.label_M[left_L],
        data.num_train - len(held_P),
        scenario.dataset.num_classes,
        scenario.clients.number,
        scenario.data.partition,
        scenario.split,
        scenario.seed_of("data"),
        data.name,
        data.owner_M,
        data.owners,
    )
    train, val, test = (Shards(left_L[part.index], part.offset) for part in partition.parts.values())
    return replace(partition, train=train, val=val, test=test)


def _warnings(partition: Partition, data: Dataset) -> list[str]:
    """Return a sentence if no client trains on some classes, and one if a client trains on test samples of another.

    `listed` partitions allow the latter.
    """
    texts = []
    of_all_X, train_X = np.unique(data.label_M), np.unique(partition.train.index)
    absent_X = np.setdiff1d(of_all_X, data.label_M[train_X])
    if len(absent_X):
        shown = ", ".join(map(str, absent_X[:10])) + (", ..." if len(absent_X) > 10 else "")
        counts = f"{len(absent_X)} of the {len(of_all_X)} classes"
        texts.append(f"{data.name}: no client has training samples of {counts}: {shown}")
    test_X = np.unique(partition.test.index)
    both_X = np.intersect1d(test_X, train_X)
    if len(both_X):
        texts.append(
            f"test samples that are also training samples of another client: {len(both_X)} of {len(test_X)}, for "
            f"example sample {both_X[0]}; with messages between clients, test accuracies may be too high"
        )
    return texts
