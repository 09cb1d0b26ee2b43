"""The settings of clients: participation, devices, overrides of training and resources, groups, attacks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from raysim.common.files import reason
from raysim.core.fields import Range
from raysim.core.seeds import seed_for
from raysim.data.specs import DatasetSpec
from raysim.engine.policies.attacks import Malicious
from raysim.engine.policies.placement import ResourceRequest
from raysim.engine.policies.sampling import Fastest, Participation, cohort_size, draw_share
from raysim.engine.policies.system import Devices, Floats, LogNormal, Uniform
from raysim.models import MODELS, TOGETHER
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


def with_participation(parsed: ParsedScenario) -> tuple[ParsedScenario, Participation]:
    """Return the scenario with the digest of its trace, and its rules of participation. Raises `ScenarioError`."""
    clients, origin = parsed.clients, parsed.origin
    parsed, system = with_system(parsed)
    if system is None and (key := parsed.first_set("clients.deadline_s", "clients.oversample")):
        raise origin.error(key, "needs virtual time; add the section `system`")
    if isinstance(clients.selection, Fastest) and (system is None or np.isinf(system.flops_per_s).any()):
        name = parsed.resolved["clients"]["selection"]["name"]
        raise origin.error(("clients", "selection", "name"), f"{name!r} needs system.flops_per_s; set it")
    seed = parsed.seeds.cohorts
    return parsed, Participation(clients.selection, seed, clients.oversample, clients.deadline_s, system)


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


def with_system(parsed: ParsedScenario) -> tuple[ParsedScenario, Devices | None]:
    """Return the scenario with the digest of its trace, and every client's device and connection.

    The devices are None if the scenario has no section `system`. Raises `ScenarioError`, one sentence.
    """
    given, origin, count = parsed.system, parsed.origin, parsed.clients.number
    if given is None:
        return parsed, None
    trace: Mapping[str, Floats] = {}
    if given.trace is not None:
        trace, digest = _trace(parsed, given.trace, given.trace_sha256)
        parsed = parsed.with_choices(system={"trace_sha256": digest})
    properties: dict[str, Floats] = {}
    for name, (allowed, absent) in PROPERTIES.items():
        value, key = getattr(given, name), ("system", name)
        if name in trace:
            if value is not None:
                raise origin.error(
                    key, f"the file of system.trace also has the column {name}; remove this key or that column"
                )
            key = ("system", "trace")
        if isinstance(value, Uniform | LogNormal):
            seed = seed_for(parsed.seed_of("cohorts"), "system", name)
            each = value.draw(np.random.default_rng(seed), count)
        elif isinstance(value, list):
            each = np.resize(np.array(value, dtype=np.float64), count)
        else:
            each = trace.get(name, np.full(count, absent if value is None else value, dtype=np.float64))
        refused = [k for k in range(count) if not allowed.holds(each[k])]
        if refused:
            k = refused[0]
            raise origin.error(key, f"client {k} has the {name} {each[k]:g}; allowed: a number {allowed}")
        properties[name] = each
    return parsed, Devices(**properties)


def _trace(parsed: ParsedScenario, name: str, digest: str | None) -> tuple[dict[str, Floats], str]:
    """Read a trace file; return property -> each client's value, and the file's SHA-256.

    digest: the SHA-256 that the scenario asks for.
    """
    origin, key, count = parsed.origin, ("system", "trace"), parsed.clients.number
    try:
        sha = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        columns = _columns(Path(name), count)
    except (OSError, ValueError, KeyError) as error:
        wrong = reason(error) if isinstance(error, OSError) else " ".join(str(error).split())
        raise origin.error(
            key,
            f"{name} cannot be read ({wrong}); give a CSV or Parquet file with the column `client`, one row for each "
            f"client from 0 to {count - 1}, and numbers in one or more of the columns {', '.join(PROPERTIES)}",
        ) from None
    if digest not in (None, sha):
        raise origin.error(
            key,
            f"{name} has the SHA-256 {sha[:12]}, but system.trace_sha256 is {digest}; restore the file, or remove "
            "system.trace_sha256",
        )
    return columns, sha


def _columns(path: Path, count: int) -> dict[str, Floats]:
    """Return the columns of a trace file with one row per client. Raises `ValueError` or `KeyError`."""
    if path.suffix == ".parquet":
        from raysim.common.parquet import read_parquet  # imported here, because it imports Arrow

        table = read_parquet(path)
    else:
        from pyarrow import csv

        table = csv.read_csv(path, csv.ReadOptions(use_threads=False))
    frame = table.to_pandas().set_index("client")
    if not frame.index.is_unique:
        raise ValueError("a client has several rows")
    if frame.columns.empty or not frame.columns.isin([*PROPERTIES]).all():
        raise ValueError(f"its columns are {', '.join(table.column_names)}")
    return {name: column.to_numpy(np.float64) for name, column in frame.loc[[*range(count)]].items()}


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
    except ValueError as error:
        raise parsed.origin.error(key, f"{text!r} is invalid: {error}; allowed: ids from 0 to {count - 1}") from None


def parse_ranges(text: str, count: int) -> set[int]:
    """Parse ranges of ids below `count`: `"0-9,12"` -> {0, ..., 9, 12}. Raises `ValueError` for any other text."""
    ids: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError('write ranges of ids such as "0-9,12"')
        if last and int(last) < int(first):
            raise ValueError(f"{part.strip()} is in descending order")
        if max(int(first), int(last or first)) >= count:
            raise ValueError(f"there is no client {max(int(first), int(last or first))}")
        ids |= set(range(int(first), int(last or first) + 1))
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

    Raises `ScenarioError` when an override selects no client or changes nothing, or for impossible settings.
    """
    training = parsed.training
    _refuse_nesterov(parsed, training, ("training",))
    steps = training.steps is not None or any(one.steps is not None for one in training.overrides)
    if steps and training.stragglers is not None:
        raise parsed.origin.error(
            ("training", "stragglers"),
            "stragglers train for fewer epochs, but `steps` takes the place of epochs; remove one of them",
            cause=("training", "steps"),
        )
    own: dict[int, Training] = {}
    for override, (key, clients, settings) in zip(
        training.overrides, overridden(parsed, "training", training), strict=False
    ):
        if override.model_dump(exclude_none=True).keys() <= Selected.model_fields.keys():
            raise parsed.origin.error(
                key, "this override changes no setting; set one, such as `lr`, or remove the override"
            )
        if not clients:
            raise parsed.origin.error(
                key,
                "this override applies to no client: either it selects none, or earlier overrides already select all "
                "its clients; move it before the earlier ones, or remove it",
            )
        _refuse_nesterov(parsed, settings, key)
        own |= dict.fromkeys(clients, settings)
    return own


def _refuse_nesterov(parsed: ParsedScenario, training: Training, key: Key) -> None:
    if training.nesterov and training.optimizer != "sgd":
        raise parsed.origin.error(
            (*key, "nesterov"),
            f"true given, but the optimizer is {training.optimizer}; set `nesterov` to false, or `optimizer` to sgd",
        )
    if training.nesterov and not training.momentum:
        raise parsed.origin.error((*key, "nesterov"), "true given, but momentum is 0; set `momentum` greater than 0")


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
