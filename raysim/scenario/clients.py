"""The settings of clients: participation, devices, overrides of training and resources, groups, attacks, networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.common.text import cause
from raysim.core.fields import Range
from raysim.core.seeds import seed_for
from raysim.data.specs import DatasetSpec
from raysim.engine.policies.attacks import Malicious
from raysim.engine.policies.placement import ResourceRequest
from raysim.engine.policies.sampling import Fastest, Participation, cohort_size, draw_share
from raysim.engine.policies.system import Devices, Floats, LogNormal, Uniform
from raysim.models import MODELS, TOGETHER, build_model, common_feature_dim, incompatibility
from raysim.plugins.calling import failing
from raysim.plugins.registry import named
from raysim.scenario.origin import Key
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.schema import Resources, Selected, Training

PROPERTIES: Mapping[str, tuple[Range, float]] = {
    "flops_per_s": (Range(gt=0), math.inf),
    "up_mbit_per_s": (Range(gt=0), math.inf),
    "down_mbit_per_s": (Range(gt=0), math.inf),
    "latency_s": (Range(ge=0, lt=math.inf), 0.0),
    "availability": (Range(ge=0, le=1), 1.0),
    "dropout": (Range(ge=0, le=1), 0.0),
}
"""Key of the section -> (range of a client's value, default value)."""


def participation_of(parsed: ParsedScenario) -> Participation:
    """Return the rules of participation. Raises `ScenarioError`."""
    clients, system = parsed.clients, devices_of(parsed)
    if isinstance(clients.selection, Fastest) and (system is None or np.isinf(system.flops_per_s).any()):
        name = parsed.resolved["clients"]["selection"]["name"]
        raise parsed.origin.error(("clients", "selection", "name"), f"{name!r} needs system.flops_per_s; set it")
    return Participation(clients.selection, parsed.seeds.cohorts, clients.oversample, clients.deadline_s, system)


def count_participants(parsed: ParsedScenario) -> int:
    """Return K, the number of clients in a round. Raises `ScenarioError` if K is zero."""
    clients = parsed.clients
    participants = cohort_size(clients.participation, clients.number)
    if participants < 1:
        raise parsed.origin.error(
            ("clients", "participation"),
            f"{clients.participation:g} given, which selects no client of {clients.number}; "
            f"allowed: 1/{clients.number} to 1",
        )
    return participants


def devices_of(parsed: ParsedScenario) -> Devices | None:
    """Return every client's device and connection; None if the scenario has no section `system`.

    Raises `ScenarioError`, one sentence.
    """
    given, origin, count = parsed.system, parsed.origin, parsed.clients.number
    if given is None:
        return None
    trace = {} if given.trace is None else _trace(parsed, given.trace)
    properties: dict[str, Floats] = {}
    for name, (allowed, absent) in PROPERTIES.items():
        of_all, key = getattr(given, name), ("system", name)
        if name in trace:
            if of_all is not None:
                raise origin.error(
                    key, f"the file of system.trace also has the column {name}; remove this key or that column"
                )
            key = ("system", "trace")
        if isinstance(of_all, Uniform | LogNormal):
            seed = seed_for(parsed.seed_of("cohorts"), "system", name)
            each = of_all.draw(np.random.default_rng(seed), count)
        elif isinstance(of_all, list):
            each = np.resize(np.array(of_all, dtype=np.float64), count)
        else:
            each = trace.get(name, np.full(count, absent if of_all is None else of_all, dtype=np.float64))
        if refused := [(k, value) for k, value in enumerate(each) if not allowed.holds(value)]:
            k, value = refused[0]
            raise origin.error(key, f"client {k} has the {name} {value:g}; allowed: a number {allowed}")
        properties[name] = each
    return Devices(**properties)


def _trace(parsed: ParsedScenario, name: str) -> Mapping[str, Floats]:
    """Read a trace file; return property -> each client's value."""
    import pandas as pd  # imported here, because few scenarios need it

    from raysim.common.parquet import read_parquet

    key, count = ("system", "trace"), parsed.clients.number
    try:
        frame = read_parquet(Path(name)).to_pandas() if name.endswith(".parquet") else pd.read_csv(name)
        frame = frame.set_index("client")
        if not frame.index.is_unique:
            raise ValueError("a client has several rows")
        frame = frame.loc[[*range(count)]]
        columns = {property: column.to_numpy(np.float64) for property, column in frame.items()}
    except Exception as error:  # pandas raises many kinds of errors for a damaged or unsuitable file
        raise parsed.origin.error(
            key,
            f"{name} cannot be read ({cause(error)}); give a CSV or Parquet file with the column `client` and one row "
            f"for each client from 0 to {count - 1}",
        ) from None
    if not columns or not columns.keys() <= PROPERTIES.keys():
        raise parsed.origin.error(
            key, f"{name} has the columns {', '.join(columns)}; give one or more of the columns {', '.join(PROPERTIES)}"
        )
    return columns


S = TypeVar("S", Training, Resources)


def overridden(parsed: ParsedScenario, name: str, section: S) -> list[tuple[Key, list[int], S]]:
    """Return key, clients and settings of each override of a section; last come those of all other clients.

    The first override that matches a client applies. Raises `ScenarioError` when an override does not select clients of
    this scenario.
    """
    origin, models = parsed.origin, parsed.clients.models
    left = list(range(parsed.clients.number))
    found: list[tuple[Key, list[int], S]] = []
    for i, override in enumerate(section.overrides):
        key: Key = (name, "overrides", str(i))
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
            chosen = ranges_of(parsed, (*key, "clients"), override.clients)
        changes = override.model_dump(exclude=set(Selected.model_fields), exclude_none=True)
        found.append((key, [k for k in left if k in chosen], section.model_copy(update=changes)))
        left = [k for k in left if k not in chosen]
    found.append(((name,), left, section))
    return found


def ranges_of(parsed: ParsedScenario, key: Key, text: str) -> set[int]:
    """Return the clients in the ranges of ids that a key has as value. Raises `ScenarioError`."""
    count = parsed.clients.number
    try:
        return parse_ranges(text, count)
    except ValueError:
        raise parsed.origin.error(
            key, f'{text!r} given; write ranges of ids from 0 to {count - 1}, such as "0-9,12"'
        ) from None


def parse_ranges(text: str, count: int) -> set[int]:
    """Parse ranges of ids below `count`: `"0-9,12"` -> {0, ..., 9, 12}. Raises `ValueError` for any other text."""
    ids: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        chosen = range(int(first), int(last if dash else first) + 1)
        if not chosen or chosen[-1] >= count:
            raise ValueError(part)
        ids.update(chosen)
    return ids


def requests_of(parsed: ParsedScenario) -> tuple[ResourceRequest, ...]:
    """Return one resource request per override, and one for all other clients. Raises `ScenarioError`."""
    return tuple(
        ResourceRequest(
            tuple(clients),
            None if given.actors == "auto" else given.actors,
            None if given.clients_per_actor == "auto" else given.clients_per_actor,
            given.cpus_per_actor,
            None if given.gpus_per_actor == "auto" else given.gpus_per_actor,
            ".".join(key),
        )
        for key, clients, given in overridden(parsed, "resources", parsed.resources)
    )


def own_training_of(parsed: ParsedScenario) -> dict[int, Training]:
    """Return the training settings of each client that an override selects.

    Raises `ScenarioError` when an override selects no client, or for impossible settings.
    """
    training = parsed.training
    steps = training.steps is not None or any(one.steps is not None for one in training.overrides)
    if steps and training.stragglers is not None:
        raise parsed.origin.error(
            ("training", "stragglers"),
            "stragglers train for fewer epochs, but `steps` takes the place of epochs; remove one of them",
            cause=("training", "steps"),
        )
    own: dict[int, Training] = {}
    for key, clients, settings in overridden(parsed, "training", training):
        if settings.nesterov and (settings.optimizer != "sgd" or not settings.momentum):
            raise parsed.origin.error(
                (*key, "nesterov"), "true given, which needs the optimizer sgd and a momentum greater than 0"
            )
        if key == ("training",):  # the settings of all other clients
            continue
        if not clients:
            raise parsed.origin.error(
                key,
                "this override applies to no client: either it selects none, or earlier overrides already select all "
                "its clients; move it before the earlier ones, or remove it",
            )
        own |= dict.fromkeys(clients, settings)
    return own


def together_of(
    parsed: ParsedScenario, dataset: DatasetSpec, feature_dim: int, own: Mapping[int, Training]
) -> dict[str, int]:
    """Return architecture -> number of clients that one call trains. own: the settings of clients with an override.

    Raises `ScenarioError` for an unknown architecture, or if another key requires that each client trains alone.
    """
    given = parsed.training.together
    names = dict.fromkeys(parsed.clients.models[: parsed.clients.number])
    if isinstance(given, dict) and (unknown := [name for name in given if name not in names]):
        raise parsed.origin.error(
            ("training", "together"),
            f"{unknown[0]} given, which is not among clients.models; allowed: {', '.join(names)}",
        )
    # Groups must depend only on the scenario and the cohort. They must not depend on which clients fail or exceed the
    # time limit, so with these keys clients train alone.
    alone = parsed.first_set("failure.max_failed_fraction", "failure.client_timeout_s")
    if given == "auto":
        task = dataset.input_spec, feature_dim, dataset.num_classes
        size = dict.fromkeys(names, parsed.training.batch_size)  # architecture -> its largest batch size
        for k, training in own.items():
            name = parsed.clients.models[k % len(parsed.clients.models)]
            size[name] = max(size[name], training.batch_size)
        # `Stack` cannot train several clients in float16.
        known = MODELS.keys() if not alone and parsed.training.precision != "float16" else ()
        return {name: TOGETHER if name in known and MODELS[name].stacks(*task, size[name]) else 1 for name in names}
    sizes = {name: given.get(name, 1) if isinstance(given, dict) else given for name in names}
    if alone and max(sizes.values()) > 1:
        reason = ".".join(alone)
        raise parsed.origin.error(
            ("training", "together"),
            f"{max(sizes.values())} given, but {reason} requires that each client trains alone; set this key to 1 or "
            f"auto, or remove {reason}",
            cause=alone,
        )
    return sizes


def malicious_of(parsed: ParsedScenario) -> Malicious | None:
    """Return the malicious clients with their attack; None without section `adversary`. Raises `ScenarioError`."""
    given, count = parsed.adversary, parsed.clients.number
    if given is None:
        return None
    seed, key = parsed.seed_of("cohorts"), ("adversary", "clients")
    if isinstance(given.clients, str):
        clients = frozenset(ranges_of(parsed, key, given.clients))
    else:
        clients = draw_share(seed, "malicious", given.clients, count)
    if not clients:
        text = f"{given.clients} given, which selects no client of {count}; give at least {1 / count:g}"
        raise parsed.origin.error(key, text)
    return Malicious(clients, given.attack, seed)


def builder(dataset: DatasetSpec, feature_dim: int) -> Any:
    return partial(build_model, num_classes=dataset.num_classes, input_spec=dataset.input_spec, feature_dim=feature_dim)


def feature_dim_of(parsed: ParsedScenario, dataset: DatasetSpec) -> int:
    """Return the representation width of all models, after checking that each model exists and accepts the samples.

    Raises `ScenarioError`.
    """
    clients, origin = parsed.clients, parsed.origin
    for name in dict.fromkeys(clients.models):
        known = name in MODELS or named("models", name) is not None
        reason = (
            incompatibility(name, dataset.input_spec) if known else f"unknown model {name!r}{suggest(name, MODELS)}"
        )
        if reason:
            fitting = [name for name in MODELS if incompatibility(name, dataset.input_spec) is None]
            raise origin.error(
                ("clients", "models"),
                f"{reason}; allowed for {dataset.name}, which has {dataset.input_spec}: {', '.join(fitting)}",
                cause=("data", "name") if known else (),
            )
    try:
        auto = clients.feature_dim == "auto"
        feature_dim = common_feature_dim(clients.models) if auto else int(clients.feature_dim)
        for name in dict.fromkeys(clients.models):
            if name not in MODELS:
                parsed.own_code.activate()
                _try_model(name, dataset, feature_dim)
    except ScenarioError as error:
        raise origin.error(("clients", "models"), error.reason) from None
    return feature_dim


def _built(name: str, dataset: DatasetSpec, feature_dim: int) -> Any:
    """Return a network of a custom model. Raises `ScenarioError` if its weights ignore the seed of torch's generator.

    Every process builds a client's network by itself, so the network must be the same everywhere.
    """
    import torch

    nets = []
    for _ in range(2):
        torch.default_generator.manual_seed(0)
        nets.append(builder(dataset, feature_dim)(name))
    second = nets[1].state_dict()
    for key, value in nets[0].state_dict().items():
        with failing(f"{name}: {key} cannot be compared"):  # torch's error says if a layer is lazy
            differs = isinstance(value, torch.Tensor) and not torch.equal(value, second[key])
        if differs:
            raise ScenarioError(
                f"{name}: {key} differs between two networks that are built with the same seed; draw its values with "
                "torch only, and leave none uninitialised"
            )
    return nets[0]


def _try_model(name: str, dataset: DatasetSpec, feature_dim: int) -> None:
    """Check that a custom model can be built, and that its outputs and header fit. Raises `ScenarioError`."""
    import torch

    from raysim.models.split import example

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        net = _built(name, dataset, feature_dim).eval()
        with failing(f"{name}: fails on two samples of {dataset.input_spec}"):
            feature_BD = net.features(example(dataset.input_spec, 2))
            given = tuple(feature_BD.shape), tuple(net.header(feature_BD).shape)
    if given != (wanted := ((2, feature_dim), (2, dataset.num_classes))):
        raise ScenarioError(
            f"{name}: representation and logits of two samples have the shapes {given[0]} and {given[1]}; they must "
            f"have {wanted[0]} and {wanted[1]}"
        )
    if not isinstance(net.header, torch.nn.Linear):
        raise ScenarioError(
            f"{name}: its header is a {type(net.header).__name__}; it must be a torch.nn.Linear, because methods "
            "exchange its weight and bias. Put the other layers into the extractor"
        )
