"""Everything that can be known to be wrong before data is read or Ray is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.common.errors import RunError, ScenarioError, UnavailableError
from raysim.common.inputs import image
from raysim.common.text import expanded, holds_secret, quoted
from raysim.core.own_code import FAILURES, failing, named, where
from raysim.core.schedule import SCHEDULES, Constant, RateSchedule, factor_of
from raysim.data.partition import PARTITIONS, Listed, check_partition, default_split
from raysim.data.specs import DATASETS, DatasetSpec, Files
from raysim.engine.checkpoint.storage import is_process_memory
from raysim.engine.policies.placement import ResourceRequest, parse_ranges
from raysim.engine.policies.sampling import SELECTIONS, Participation, cohort_size
from raysim.models import MODELS, TOGETHER, build_model, common_feature_dim, incompatibility
from raysim.scenario.data import files_of, public_samples, read_data, with_count
from raysim.scenario.load import Key, Loaded, named_settings
from raysim.scenario.registry import suggest
from raysim.scenario.schema import Override, Resources
from raysim.scenario.system import read_system
from raysim.tracking.store import PASSWORD, USER

if TYPE_CHECKING:
    from raysim.core.algorithm import Task
    from raysim.core.fit import LocalTraining


NAMED: Mapping[tuple[str, str], Mapping[str, type]] = {
    ("data", "partition"): PARTITIONS,
    ("clients", "selection"): SELECTIONS,
    ("training", "schedule"): SCHEDULES,
}
"""Sections whose `name` chooses a settings class, besides `algorithm`."""


@dataclass(frozen=True)
class Checked:
    """A scenario whose names are resolved and whose parts fit each other."""

    loaded: Loaded
    dataset: DatasetSpec  # as networks read it
    partition: Any  # one of the settings in PARTITIONS
    split: str
    feature_dim: int
    participants: int  # K
    requests: tuple[ResourceRequest, ...]
    participation: Participation
    files: Files | None = None  # of a user's own data
    public_size: int = 0  # P: samples that all parties have
    held_back: int = 0  # how many of them are training samples, which no client gets
    schedule: RateSchedule = field(default_factory=Constant)
    together: Mapping[str, int] = field(default_factory=dict)  # architecture -> clients that one call trains

    @cached_property
    def task(self) -> Task:
        """What all parties agree on, as far as it is known before the run."""
        import torch

        from raysim.core.algorithm import Task
        from raysim.core.data import tensors
        from raysim.models.encoders import build_encoder

        build, public, size = self.build, None, self.public_size
        if size:  # as many samples as there will be, with or without labels
            label = torch.tensor(0 if self.held_back else -1)
            public = tensors(torch.zeros(()).expand(size, *self.dataset.input_spec.shape), label.expand(size))
        return Task(
            self.dataset.num_classes,
            self.feature_dim,
            self.architectures,
            lambda name, *key: build(name),  # whose weights they start from says the run
            self.loaded.scenario.rounds,
            partial(build_encoder, kind=self.dataset.input_spec.kind),
            public,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed, but perhaps not what was meant."""
        training, rounds = self.loaded.scenario.training, self.loaded.scenario.rounds
        found = []
        if training.optimizer == "adam" and training.momentum:
            found.append(f"training.momentum: {training.momentum:g} is not used, as the optimizer is adam")
        for name, warmup in self.loaded.warmup.items():
            if warmup >= rounds:
                found.append(f"algorithm.{name}: {warmup} given, so that all {rounds} rounds are warm-up")
        return tuple(found)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The clients' different ones, in order of first use."""
        clients = self.loaded.scenario.clients
        return tuple(dict.fromkeys(clients.models[: clients.number]))

    @property
    def build(self) -> Any:
        """name -> a fresh model for this task; picklable."""
        return _builder(self.dataset, self.feature_dim)

    @property
    def local(self) -> LocalTraining:
        """How clients train."""
        from raysim.core.fit import LocalTraining

        return LocalTraining(**self.loaded.scenario.training.model_dump(exclude={"schedule", "together"}))


def check(loaded: Loaded) -> Checked:
    """Resolve every name of a scenario and refuse combinations that cannot run.

    Reads no data set whose size its name tells, and starts no Ray. Raises `ScenarioError`, one sentence.
    """
    origin = loaded.origin
    _refuse_secrets(loaded)
    _refuse_unusable_folders(loaded)
    data = loaded.scenario.data
    partition = named_settings(data.partition, ("data", "partition"), PARTITIONS, origin, loaded.own_code, "shares")
    schedule = schedule_of(loaded)
    split = default_split(partition) if data.split == "auto" else data.split
    try:
        loaded, dataset, public_size, held_back = _check_data(loaded, partition, split)
        files = files_of(loaded, partition)
    except ScenarioError as error:
        if not error.key:
            raise
        raise origin.error(tuple(error.key.split(".")), error.reason, kind=type(error)) from None
    participation, system = _check_participation(loaded)
    feature_dim = _check_models(loaded, dataset)
    together = together_of(loaded, dataset, feature_dim)
    checked = Checked(
        loaded=_with_choices(loaded, partition, split, files, participation, system, schedule, together),
        dataset=dataset,
        partition=partition,
        split=split,
        feature_dim=feature_dim,
        participants=_count_participants(loaded),
        requests=_requests(loaded),
        participation=participation,
        files=files,
        public_size=public_size,
        held_back=held_back,
        schedule=schedule,
        together=together,
    )
    _refuse_augmentation(checked)
    _refuse_global_test(checked)
    _refuse_unsuited_algorithm(checked)
    _ask_algorithm(checked)
    return checked


def _refuse_unusable_folders(loaded: Loaded) -> None:
    """Refuse folders with control characters, of users that do not exist, or in the memory of this process."""
    scenario, origin = loaded.scenario, loaded.origin
    folders = {
        ("output",): scenario.output,
        ("checkpoint", "folder"): scenario.checkpoint.folder or "",
        ("data", "root"): scenario.data.root or "",
    }
    for key, folder in folders.items():
        if not folder.isprintable():
            raise origin.error(key, f"{folder!r} given, which is not a folder name; use printable characters only")
        if str(expanded(folder)).startswith("~"):
            raise origin.error(
                key, f"{folder} given, but there is no such user; give a folder, or ~ for your home folder"
            )
    if is_process_memory(scenario.checkpoint.folder or ""):
        raise origin.error(
            ("checkpoint", "folder"),
            f"{scenario.checkpoint.folder} given, which is memory of this process and is lost when it ends; "
            "choose a folder, or an address that outlives the process",
        )


def _check_data(loaded: Loaded, partition: Any, split: str) -> tuple[Loaded, DatasetSpec, int, int]:
    """Refuse a data set, a number of clients and public data that the partition cannot work with.

    Returns the scenario with its number of clients, the data set as networks read it, how many samples are public, and
    how many of them are training samples that no client gets. Raises `ScenarioError` without the file's name.
    """
    read = read_data(loaded, partition)
    stored = read.spec if read else DATASETS[loaded.scenario.data.name]
    dataset = _normalised(stored, loaded)
    loaded = with_count(loaded, read, dataset, partition, split)
    public_size, held_back = public_samples(loaded, stored, partition)
    num_train = dataset.train_size - held_back
    check_partition(
        partition,
        split,
        dataset.num_classes,
        loaded.scenario.clients.number,
        num_train,
        num_train + dataset.test_size,
        dataset.name,
    )
    return loaded, dataset, public_size, held_back


def _count_participants(loaded: Loaded) -> int:
    """K, the clients of a round. Raises `ScenarioError` where it is zero."""
    clients = loaded.scenario.clients
    participants = cohort_size(clients.participation, clients.number)
    if participants < 1:
        raise loaded.origin.error(
            ("clients", "participation"),
            f"{clients.participation:g} given, which selects no client of {clients.number}; "
            f"allowed: {1 / clients.number:g} to 1",
        )
    return participants


def _with_choices(
    loaded: Loaded,
    partition: Any,
    split: str,
    files: Files | None,
    participation: Participation,
    system: dict[str, Any] | None,
    schedule: RateSchedule,
    together: Mapping[str, int],
) -> Loaded:
    """Write every choice that raysim made into the resolved scenario.

    A default that a later version changes must not change an old run.
    """
    resolved, scenario = loaded.resolved, loaded.scenario
    dealt = {"name": scenario.data.partition["name"], **asdict(partition)}
    if isinstance(partition, Listed):
        dealt["path"] = str(expanded(partition.path).absolute())
    data: dict[str, Any] = {**resolved["data"], "partition": dealt, "split": split}
    if files and files.path:
        data["path"] = [str(expanded(path).absolute()) for path in files.path]
    selection = {"name": scenario.clients.selection["name"], **asdict(participation.selection)}  # type: ignore[call-overload]
    rates = {"name": scenario.training.schedule["name"], **asdict(schedule)}  # type: ignore[call-overload]
    chosen = {
        "data": data,
        "clients": {**resolved["clients"], "selection": selection},
        "system": system,
        "training": {**resolved["training"], "together": together, "schedule": rates},
    }
    return replace(loaded, resolved={**resolved, **chosen})


def _refuse_augmentation(checked: Checked) -> None:
    """Only images can be augmented."""
    dataset = checked.dataset
    if checked.loaded.scenario.data.augment and dataset.input_spec.kind != "image":
        raise checked.loaded.origin.error(
            ("data", "augment"), f"true given, but {dataset.name} has {dataset.input_spec}, not images; allowed: false"
        )


def _refuse_global_test(checked: Checked) -> None:
    """The published test set serves as a global test only where no client trains on it, and in tested rounds."""
    evaluation, origin = checked.loaded.scenario.evaluation, checked.loaded.origin
    if evaluation.global_test and checked.split in ("pooled811", "listed"):
        raise origin.error(
            ("evaluation", "global_test"),
            f"true given, but with data.split {checked.split} clients train on published test samples; "
            "use data.split published or pfedhn",
        )
    if evaluation.global_every is not None and evaluation.global_every % evaluation.every:
        raise origin.error(
            ("evaluation", "global_every"),
            f"{evaluation.global_every} given, which is no multiple of evaluation.every ({evaluation.every})",
        )
    if evaluation.global_every is not None and not evaluation.global_test:
        raise origin.error(("evaluation", "global_every"), "needs evaluation.global_test: true; set it")


def _refuse_unsuited_algorithm(checked: Checked) -> None:
    """The algorithm's declaration may require one architecture or public data."""
    loaded, name = checked.loaded, checked.loaded.resolved["algorithm"]["name"]
    if loaded.declared.one_architecture and len(checked.architectures) > 1:
        raise loaded.origin.error(
            ("clients", "models"),
            f"{len(checked.architectures)} architectures given ({', '.join(checked.architectures)}), but "
            f"{name} exchanges whole models; allowed: one architecture",
            cause=("algorithm", "name"),
        )
    if loaded.declared.public_data and loaded.scenario.data.public is None:
        raise loaded.origin.error(
            ("data", "public"),
            f"{name} needs public data; set data.public to {{share: 0.1}} or {{name: DATASET}}",
            cause=("algorithm", "name"),
        )


def _ask_algorithm(checked: Checked) -> None:
    """Let the algorithm refuse the task, with its own `check`. Raises `ScenarioError`."""
    loaded = checked.loaded
    if not loaded.declared.checks:
        return
    try:
        loaded.algorithm.check(checked.task)
    except UnavailableError as error:
        raise loaded.origin.error(("algorithm",), str(error), kind=UnavailableError) from None
    except ValueError as error:
        raise loaded.origin.error(("algorithm",), str(error)) from None
    except FAILURES as error:
        name = type(loaded.algorithm).__name__
        raise loaded.origin.error(("algorithm",), f"{name}.check fails: {where(error)}") from error


def together_of(loaded: Loaded, dataset: DatasetSpec, feature_dim: int) -> dict[str, int]:
    """Architecture -> how many clients one call trains. Raises `ScenarioError` where they cannot be trained so."""
    scenario = loaded.scenario
    given, failure = scenario.training.together, scenario.failure
    names = dict.fromkeys(scenario.clients.models[: scenario.clients.number])
    if isinstance(given, dict):
        for name in given.keys() - names:
            raise loaded.origin.error(
                ("training", "together"),
                f"{name} given, which is not among clients.models; allowed: {', '.join(names)}",
            )
    # Who is trained with whom must depend on nothing but the scenario and the cohort.
    by_client = {
        "failure.max_failed_fraction": failure.max_failed_fraction > 0,
        "failure.client_timeout_s": failure.client_timeout_s is not None,
    }
    reason = next((key for key, by_itself in by_client.items() if by_itself), None)
    if given == "auto":
        task = dataset.input_spec, feature_dim, dataset.num_classes, scenario.training.batch_size
        known = MODELS.keys() if not reason else ()
        return {name: TOGETHER if name in known and MODELS[name].stacks(*task) else 1 for name in names}
    found = {name: given.get(name, 1) if isinstance(given, dict) else given for name in names}
    if reason and max(found.values()) > 1:
        raise loaded.origin.error(
            ("training", "together"),
            f"{max(found.values())} given, but {reason} requires that each client trains alone; allowed: 1 or auto",
            cause=tuple(reason.split(".")),
        )
    return found


def schedule_of(loaded: Loaded) -> RateSchedule:
    """The learning rate over the rounds. Raises `ScenarioError` when there is no such schedule, or it gives no rate."""
    scenario, key = loaded.scenario, ("training", "schedule")
    found: RateSchedule = named_settings(
        scenario.training.schedule, key, SCHEDULES, loaded.origin, loaded.own_code, "factor"
    )
    for t in range(1, scenario.rounds + 1):
        try:
            factor_of(found, t, scenario.rounds)
        except RunError as error:
            raise loaded.origin.error(key, str(error)) from error
    return found


def _check_participation(loaded: Loaded) -> tuple[Participation, dict[str, Any] | None]:
    """Who is selected and who counts, and the section `system` with what it leaves open filled in."""
    scenario, clients, origin = loaded.scenario, loaded.scenario.clients, loaded.origin
    selection = named_settings(
        clients.selection, ("clients", "selection"), SELECTIONS, origin, loaded.own_code, "select"
    )
    system, section = read_system(loaded)
    needs: dict[Key, bool] = {
        ("clients", "deadline_s"): clients.deadline_s is not None,
        ("clients", "oversample"): clients.oversample > 1,
    }
    for key in (key for key, given in needs.items() if given and system is None):
        raise origin.error(key, "needs virtual time; add the section `system`")
    if clients.selection["name"] == "fastest" and (system is None or np.isinf(system.flops_per_s).any()):
        raise origin.error(("clients", "selection", "name"), "'fastest' needs system.flops_per_s; set it")
    seed = scenario.seeds.cohorts
    return Participation(selection, seed, clients.oversample, clients.deadline_s, system), section


def _refuse_secrets(loaded: Loaded) -> None:
    """The scenario is shown in the run folder and in MLflow's parameters."""
    instead = {
        "tracking.uri": f"put them into {USER} and {PASSWORD}",
        "checkpoint.folder": "put them where its fsspec package looks, such as AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or a file in ~/.config/fsspec",
    }
    for name, value in loaded.flat().items():
        if isinstance(value, str) and holds_secret(value):
            raise loaded.origin.error(
                tuple(name.split(".")),
                "the address contains a user name, password or token, which the run folder and MLflow would show; "
                f"{instead.get(name, 'leave them out')}",
            )


def _normalised(dataset: DatasetSpec, loaded: Loaded) -> DatasetSpec:
    """The data set as networks see it: with the scenario's own mean and deviation, if it gives any."""
    given = loaded.scenario.data.normalise
    if given is None:
        return dataset
    reads, origin = dataset.input_spec, loaded.origin
    if reads.kind == "tokens":
        raise origin.error(("data", "normalise"), f"given, but {dataset.name} has {reads}; allowed: null")
    if reads.kind == "features" and not given.scaled:
        raise origin.error(
            ("data", "normalise", "scaled"), f"false given, but {dataset.name} has {reads}, not pixels; allowed: true"
        )
    channels = (reads.shape[0], 3) if reads.shape[0] == 1 else (reads.shape[0],)
    if reads.kind == "features":
        channels = (1, reads.size)
    for name, numbers in (("mean", given.mean), ("std", given.std)):
        if len(numbers) not in channels or len(numbers) != len(given.mean):
            raise origin.error(
                ("data", "normalise", name),
                f"{len(numbers)} numbers given; allowed for {dataset.name}: {' or '.join(map(str, channels))}, and as "
                "many means as deviations",
            )
    unit = 1 if given.scaled else 255
    mean, std = (tuple(number / unit for number in numbers) for numbers in (given.mean, given.std))
    if reads.kind == "image":
        reads = image(len(mean), *reads.shape[1:])
    return replace(dataset, input_spec=reads, mean=mean, std=std)


def _builder(dataset: DatasetSpec, feature_dim: int) -> Any:
    return partial(build_model, num_classes=dataset.num_classes, input_spec=dataset.input_spec, feature_dim=feature_dim)


def _check_models(loaded: Loaded, dataset: DatasetSpec) -> int:
    """See that every model exists and fits the samples; the representation width that all share."""
    clients, origin = loaded.scenario.clients, loaded.origin
    fitting = [name for name in MODELS if incompatibility(name, dataset.input_spec) is None]
    for i, name in enumerate(clients.models):
        key = ("clients", "models", str(i))
        if name not in MODELS and named("models", name) is None:
            raise origin.error(
                key, f"unknown model {name!r}{suggest(name, MODELS)} (those that fit: {', '.join(fitting)})"
            )
        reason = incompatibility(name, dataset.input_spec)
        if reason:
            raise origin.error(
                key,
                f"{reason}, but {dataset.name} has {dataset.input_spec}; allowed: {', '.join(fitting)}",
                cause=("data", "name"),
            )
    try:
        auto = clients.feature_dim == "auto"
        feature_dim = common_feature_dim(clients.models) if auto else int(clients.feature_dim)
        for name in dict.fromkeys(clients.models):
            if name not in MODELS:
                loaded.own_code.activate()
                _try_model(name, dataset, feature_dim)
    except ScenarioError as error:
        raise origin.error(("clients", "models"), error.reason) from None
    return feature_dim


def _try_model(name: str, dataset: DatasetSpec, feature_dim: int) -> None:
    """See that a model of the user's own can be built and has the shapes that all have. Raises `ScenarioError`."""
    import torch

    from raysim.models.split import example

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        net = _builder(dataset, feature_dim)(name)
        x_B = example(dataset.input_spec, 2)
        parts = (("representation", "features", feature_dim), ("logits", "header", dataset.num_classes))
        for what, part, width in parts:
            with failing(f"{name}: fails on two samples of {dataset.input_spec}"):
                x_B = getattr(net.eval(), part)(x_B)
            if not isinstance(x_B, torch.Tensor) or x_B.shape != (2, width):
                given = f"has the shape {tuple(x_B.shape)}" if isinstance(x_B, torch.Tensor) else f"is {quoted(x_B)}"
                raise ScenarioError(f"{name}: the {what} of two samples {given}; allowed: {(2, width)}")


def _requests(loaded: Loaded) -> tuple[ResourceRequest, ...]:
    """The scenario's resources as groups of clients; the first override that matches a client counts."""
    scenario, origin = loaded.scenario, loaded.origin
    resources, count = scenario.resources, scenario.clients.number
    models = scenario.clients.models
    left = list(range(count))
    requests = []
    for i, override in enumerate(resources.overrides):
        key: Key = ("resources", "overrides", str(i))
        if (override.models is None) == (override.clients is None):
            raise origin.error(key, "give either `models` or `clients` to select the clients of this override")
        if override.models is not None:
            strange = [name for name in override.models if name not in models]
            if strange:
                raise origin.error(
                    (*key, "models"), f"{strange[0]!r} is not among clients.models ({', '.join(dict.fromkeys(models))})"
                )
            chosen = {k for k in left if models[k % len(models)] in override.models}
        else:
            assert override.clients is not None
            try:
                chosen = parse_ranges(override.clients, count)
            except ValueError as error:
                raise origin.error(
                    (*key, "clients"), f"{override.clients!r} given: {error}; allowed: 0 to {count - 1}"
                ) from None
        requests.append(_request([k for k in left if k in chosen], override, resources, ".".join(key)))
        left = [k for k in left if k not in chosen]
    requests.append(_request(left, resources, resources, "resources"))
    return tuple(requests)


def _request(clients: Sequence[int], given: Override | Resources, default: Resources, key: str) -> ResourceRequest:
    cpus = default.cpus_per_actor if given.cpus_per_actor is None else given.cpus_per_actor
    gpus = default.gpus_per_actor if given.gpus_per_actor is None else given.gpus_per_actor
    return ResourceRequest(
        tuple(clients),
        None if given.actors == "auto" else given.actors,
        None if given.clients_per_actor == "auto" else given.clients_per_actor,
        cpus,
        None if gpus == "auto" else gpus,
        key,
    )
