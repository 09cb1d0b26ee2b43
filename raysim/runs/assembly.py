"""Assembly of a run from its scenario: the plan of its actors, its samples and their partition."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from raysim.common.errors import HookError, RunError, ScenarioError
from raysim.common.files import reason
from raysim.common.shards import Shards
from raysim.core import accelerator
from raysim.core.seeds import seed_for
from raysim.data.datasets import Dataset, load_dataset
from raysim.data.partition import make_partition
from raysim.data.shards import Partition
from raysim.data.specs import DatasetSpec
from raysim.data.statistics import normalised_by
from raysim.data.transform import transform_of
from raysim.engine.checkpoint.storage import Storage, open_storage
from raysim.engine.initial import Initial
from raysim.engine.policies.placement import ClusterResources, Plan, make_plan
from raysim.engine.policies.sampling import SELECTIONS
from raysim.engine.policies.stopping import StoppingRule
from raysim.engine.run import LoopSettings, sample
from raysim.engine.spec import RunSpec
from raysim.models import MODELS
from raysim.runs.signals import sigterm_kept
from raysim.scenario.deciding import DECIDING
from raysim.scenario.inputs import input_digests
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario
from raysim.scenario.trackers import check_packages


class Public(NamedTuple):
    """Public data, which all parties have."""

    raw_P: NDArray[Any]  # as stored
    label_P: NDArray[np.int64]  # -1 for samples of another data set
    held_P: NDArray[np.int64]  # positions in the clients' data set, ascending; empty for another data set
    digest: str = ""  # of the other data set


@dataclass
class Assembly:
    """Everything that a run needs before its backend starts."""

    scenario: Scenario
    plan: Plan | None  # None: all rounds are done, so no actor is planned
    data: Dataset  # without its samples after a call of `raw`
    partition: Partition
    dataset: DatasetSpec  # as networks read it, with the mean and deviation of training samples
    public: Public | None = None
    initial: Initial | None = None  # see `init` of the scenario
    inputs: Mapping[str, str] = field(default_factory=dict)  # see `input_digests`
    notes: tuple[str, ...] = ()  # warnings about the partition and the initial state

    @property
    def digest(self) -> str:
        """SHA-256 of all data: of the data set, and of the public data set if that is another one."""
        other = self.public.digest if self.public else ""
        return hashlib.sha256(f"{self.data.digest}{other}".encode()).hexdigest() if other else self.data.digest

    def raw(self) -> NDArray[Any]:
        """Hand over all samples as stored [M, ...] to the backend, which holds them once per node.

        The assembly drops them, because the driver would otherwise hold up to 200 MB that it does not need. A later
        call reads them again.
        """
        raw_M = self.data.raw_M
        if not len(raw_M):
            return _read_data(self.scenario).raw_M
        self.data = replace(self.data, decoded=self.data.decoded._replace(raw_M=raw_M[:0].copy()))
        return raw_M

    @cached_property
    def spec(self) -> RunSpec:
        """The specification of the run that every process gets."""
        scenario, data, partition = self.scenario, self.data, self.partition
        threads = dict.fromkeys(range(scenario.clients.number), 1)
        for group in self.plan.groups if self.plan else ():
            threads |= dict.fromkeys(group.clients, group.threads)
        published = np.arange(data.num_train, len(data.label_M), dtype=np.int64)
        return RunSpec(
            algorithm=scenario.algorithm,
            seed=scenario.seed,
            num_classes=scenario.dataset.num_classes,
            feature_dim=scenario.feature_dim,
            models=tuple(scenario.clients.models),
            build_model=scenario.build,
            transform=transform_of(self.dataset, scenario.data.augment),
            local=scenario.local,
            own_local=scenario.own_local,
            stragglers=scenario.stragglers,
            initial=self.initial,
            schedule=scenario.training.schedule,
            train=partition.train,
            val=partition.val,
            test=partition.test,
            threads=tuple(threads[k] for k in range(scenario.clients.number)),
            global_test=published if scenario.evaluation.global_test else None,
            evaluate_when=scenario.evaluation.when,
            tolerates_failures=scenario.failure.max_failed_fraction > 0,
            together=scenario.together,
            client_timeout_s=scenario.failure.client_timeout_s,
            independent_init=scenario.clients.independent_init,
            weights_seed=scenario.seeds.weights,
            may_discard=scenario.clients.deadline_s is not None or scenario.clients.oversample > 1,
            num_rounds=scenario.rounds,
            labels=data.label_M,
            encoder=scenario.task.encoder,
            own_code=scenario.own_code,
            public=self.public and (self.public.raw_P, self.public.label_P),
        )

    @property
    def loop_settings(self) -> LoopSettings:
        """The settings of the loop over rounds; see the function `loop_settings`."""
        return loop_settings(self.scenario)


def loop_settings(scenario: Scenario) -> LoopSettings:
    """Return the settings of the loop over rounds: their number, participants, tests and tolerated failures."""
    return LoopSettings(
        scenario.rounds,
        scenario.participants,
        scenario.evaluation.every,
        scenario.failure.max_failed_fraction,
        scenario.failure.max_attempts,
        global_every=scenario.evaluation.global_every,
        participation=scenario.participation,
        stopping=stopping_rule(scenario),
        all_every=all_every(scenario),
    )


def all_every(scenario: Scenario) -> int | None:
    """Return the number of rounds between tests of all clients with the server's current message; None: no tests."""
    evaluation = scenario.evaluation
    return (evaluation.all_every or evaluation.every) if evaluation.clients == "all" else None


def stopping_rule(scenario: ParsedScenario) -> StoppingRule | None:
    """Return the rule for ending the run early; None: the run does all its rounds."""
    return None if scenario.stop is None else StoppingRule(**scenario.stop.model_dump())


def assemble(scenario: Scenario, machine: ClusterResources | None = None, *, rounds_left: bool = True) -> Assembly:
    """Plan the actors, read the data and partition it.

    machine: the resources for the actors; default: those of the cluster that RAY_ADDRESS names, else of this machine.
    rounds_left: False for a run that has all its rounds; no actors are planned for it. Raises `ScenarioError`, one
    sentence.
    """
    plan = None
    if rounds_left:
        plan = make_plan(scenario.requests, machine or find_machine(scenario), scenario.participants)
        refuse_float16_on_cpu(scenario, plan)
        if scenario.backend == "in_process":
            plan = replace(plan, groups=tuple(replace(group, actors=0) for group in plan.groups))
    data = _read_data(scenario)
    public = _public(scenario, data)
    partition = _partition(scenario, data, public)
    notes = (*data.decoded.notes, *partition.notes, *absent_classes(partition, data), *reused_samples(partition))
    dataset = normalised_by(scenario.dataset, data.raw_M, np.unique(partition.train.index))
    inputs = input_digests(scenario)
    assembly = Assembly(scenario, plan, data, partition, dataset, public, inputs=inputs, notes=notes)
    if rounds_left and scenario.resolved["clients"]["selection"]["name"] not in SELECTIONS:
        _try_selection(assembly)
    if rounds_left:
        _refuse_unmeasured(scenario, partition)
    return assembly


def _refuse_unmeasured(scenario: Scenario, partition: Partition) -> None:
    """Raise `ScenarioError` if `stop` or `checkpoint.keep` uses a metric for which no client has samples."""
    if scenario.stop is not None:
        metric, deciding = scenario.stop.metric, DECIDING[scenario.stop.metric]
        of_clients = deciding.part != "train" and deciding.needs != "global_test"
        if of_clients and not len(partition.parts[deciding.part].index):
            samples = {"val": "validation", "test": "test"}[deciding.part]
            raise scenario.origin.error(
                ("stop", "metric"),
                f"{metric} given, but no client has {samples} samples; give clients {samples} samples, or set another "
                "metric",
            )
    if "best_val" in scenario.checkpoint.keep and not len(partition.val.index):
        raise scenario.origin.error(
            ("checkpoint", "keep"),
            "best_val given, but no client has validation samples; give clients more samples, or give [last]",
        )


def absent_classes(partition: Partition, data: Dataset) -> tuple[str, ...]:
    """Return a warning that names the classes of which no client has a training sample; none if there are none."""
    of_all_X = np.unique(data.label_M)
    absent_X = np.setdiff1d(of_all_X, data.label_M[partition.train.index])
    if not len(absent_X):
        return ()
    shown = ", ".join(map(str, absent_X[:10])) + (", ..." if len(absent_X) > 10 else "")
    counts = f"{len(absent_X)} of the {len(of_all_X)} classes"
    text = f"{data.name}: no client has training samples of {counts}: {shown}"
    return (text,)


def reused_samples(partition: Partition) -> tuple[str, ...]:
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


def refuse_float16_on_cpu(scenario: Scenario, plan: Plan) -> None:
    """Raise `ScenarioError` if clients would train in float16 without a GPU."""
    if scenario.training.precision == "float16" and not all(group.gpus_per_actor for group in plan.groups):
        # Measured: 65 to 125 times the time of float32 for a step of CNN-1 to CNN-5.
        raise scenario.origin.error(
            ("training", "precision"),
            "float16 given, but some or all clients train on the CPU, where it takes many times as long as float32; "
            "use bfloat16 or float32, or only actors with GPUs",
        )


def _try_selection(assembly: Assembly) -> None:
    """Check that a custom selection policy works for round 1. Raises `ScenarioError`."""
    try:
        first, again = (list(sample(assembly.spec, assembly.loop_settings, 1)) for _ in range(2))
        if first != again:
            name = type(assembly.scenario.participation.selection).__name__
            raise RunError(
                f"round 1: {name}.select returns other clients when it is called again with the same arguments; draw "
                "random numbers only from `rng`, and keep no state"
            )
    except HookError:
        raise
    except RunError as error:
        raise assembly.scenario.origin.error(("clients", "selection"), str(error)) from error


def find_machine(scenario: Scenario) -> ClusterResources:
    """Return the resources for the run's actors, of the cluster that it attaches to or else of this machine.

    A cluster with an autoscaler counts with its maximum size. Raises `ScenarioError` when the cluster does not answer.
    """
    if not attach(scenario):
        kind = accelerator.available()
        # Actors get a GPU only if Ray counts it, and a Ray that raysim starts does not count every kind.
        usable = kind is not None and (scenario.backend == "in_process" or kind.type == "cuda")
        gpus = accelerator.count() if usable else 0
        return ClusterResources(float(os.cpu_count() or 1), float(gpus), oversubscribable=True)
    from raysim.engine.ray import session

    growth = session.growth(scenario.resources.head)
    return session.machine(scenario.resources.head) if growth is None else growth.resources


def attach(scenario: Scenario) -> bool:
    """Attach to the Ray cluster that RAY_ADDRESS names or that this process has started; False if there is none.

    Raises `ScenarioError` when the cluster does not answer.
    """
    ray = sys.modules.get("ray")
    if scenario.backend != "ray":
        return False
    if not os.environ.get("RAY_ADDRESS") and (ray is None or not ray.is_initialized()):
        return False
    from raysim.engine.ray import session

    with sigterm_kept():
        session.connect()
    return True


def _read_data(scenario: Scenario) -> Dataset:
    given = scenario.data
    return load_dataset(given.name, given.root, given.format, files=scenario.files)


def _public(scenario: Scenario, data: Dataset) -> Public | None:
    given = scenario.data
    if given.public is None:
        return None
    rng = np.random.default_rng(seed_for(scenario.seed_of("data"), "public"))
    if given.public.name is None:
        held_P = np.sort(rng.choice(data.num_train, scenario.held_back, replace=False))
        return Public(data.raw_M[held_P], data.label_M[held_P], held_P)
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
    return Public(other.raw_M[place_P], np.full(len(place_P), -1), np.zeros(0, np.int64), other.digest)


def _partition(scenario: Scenario, data: Dataset, public: Public | None) -> Partition:
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
        scenario.data.split,
        scenario.seed_of("data"),
        data.name,
        data.decoded.owner_M,
        data.decoded.owners,
    )


def check_local(scenario: Scenario) -> None:
    """Raise `ScenarioError` if a run of this scenario cannot start in this folder or on this machine."""
    try:
        str(Path.cwd()).encode()
    except OSError as error:
        raise ScenarioError(
            f"cannot access the current working directory ({error.strerror}); change to an existing directory"
        ) from None
    except UnicodeEncodeError:
        here = os.fsencode(Path.cwd()).decode(errors="replace")
        raise ScenarioError(
            f"the current working directory {here} has a name that is not UTF-8; change to another directory"
        ) from None
    scenario.own_code.activate()  # since the scenario was loaded, another one may have been
    _ = scenario.algorithm  # raises if a user's own file cannot be imported
    check_packages(scenario)
    has = psutil.virtual_memory().total
    size = bytes_of_models(scenario)
    name = max(size, key=lambda name: size[name])
    if size[name] > has:
        given = scenario.clients.feature_dim
        raise scenario.origin.error(
            ("clients", "models") if given == "auto" else ("clients", "feature_dim"),
            f"{name if given == 'auto' else given} given, but the parameters of one {name} take "
            f"{size[name] / 2**30:.0f} GiB, and this machine has {has / 2**30:.0f} GiB of memory; give "
            f"{'a smaller model' if given == 'auto' else 'a smaller number'}",
        )


def bytes_of_models(scenario: Scenario) -> dict[str, int]:
    """Return the size of one model of each architecture."""
    size = {}
    for name in scenario.task.architectures:
        # raysim's own models have shapes without memory here. A custom model may read its weights from a file, which
        # is impossible on the meta device.
        with torch.random.fork_rng(devices=[]), torch.device("meta" if name in MODELS else "cpu"):
            size[name] = sum(p.nbytes for p in scenario.build(name).parameters())
    return size


def checkpoint_storage(address: str) -> Storage:
    try:
        return open_storage(address)
    except OSError as error:
        raise ScenarioError(
            f"{address} cannot be used ({reason(error)}); choose a folder, or install the package that fsspec needs "
            "for this address",
            key="checkpoint.folder",
        ) from None


def try_storage(address: str) -> None:
    """Check that checkpoints can be written to an address, before the run writes anything. Raises `ScenarioError`."""
    storage = checkpoint_storage(address)
    try:
        storage.make()
        storage.publish(".try", b"raysim")
        storage.remove(".try")
    except OSError as error:
        raise ScenarioError(
            f"{address} cannot be written ({reason(error)}); choose a writable folder or address",
            key="checkpoint.folder",
        ) from None
