"""Take the clients' and the server's state of another run as the beginning of a run (`init`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raysim.common.errors import RunError, ScenarioError
from raysim.core.messages import Weights
from raysim.core.state import Form, form_of, serialize, state_tensors
from raysim.engine.checkpoint.store import Checkpoint
from raysim.engine.initial import Initial, Packed, packed, part_with
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.workers.networks import new_network
from raysim.engine.workers.server import receives
from raysim.runs.data import RunData
from raysim.runs.find import find_run
from raysim.runs.opened import OpenedRun
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import Init


def warm_start(scenario: Scenario, plan: Plan, data: RunData) -> tuple[Scenario, Plan, RunData]:
    """Return the parts of a run with the initial state that its scenario names; without `init`, the same parts.

    The scenario then records the other run's folder and the state's digest. Raises `ScenarioError` if the other run has
    no intact state, the state does not fit this run's clients, or its digest is not the one that the scenario gives.
    """
    if (init := scenario.init) is None:
        return scenario, plan, data
    try:
        folder = find_run(init.run)
        initial, notes = _taken(folder, init, scenario, plan, data)
    except (ScenarioError, RunError) as error:
        text = error.reason if isinstance(error, ScenarioError) else str(error)
        raise scenario.origin.error(("init", "run"), text) from error
    digest = initial.digest
    if init.digest not in (None, digest):
        raise scenario.origin.error(
            ("init", "run"),
            f"{folder} has changed: its state has the digest {digest[:12]}, but init.digest is {init.digest}; restore "
            "the run, or remove init.digest to begin with the current state of that run",
        )
    filled = init.model_copy(update={"run": str(folder), "digest": digest})
    scenario = replace(
        scenario,
        init=filled,
        resolved={**scenario.resolved, "init": filled.model_dump(mode="json")},
    )
    return scenario, replace(plan, initial=initial), replace(data, notes=(*data.notes, *notes))


def _taken(folder: Path, init: Init, scenario: Scenario, plan: Plan, data: RunData) -> tuple[Initial, tuple[str, ...]]:
    """Return the state of the other run in `folder`, and warnings about it."""
    source = OpenedRun.of(folder)
    # Here, because the backend takes the data.
    had, have = ((one.dataset.digest, one.partition.digest) for one in (source.data, data))
    _refuse_other_clients(source, plan)
    checkpoint = _checkpoint(source, init)
    same_method = source.method == scenario.algorithm_name
    if same_method and had != have and plan.algorithm.state_of_samples:
        raise ScenarioError(
            f"the clients of {folder} have different samples than the clients of this run, but the server's state of "
            f"{source.method} refers to samples or classes; set data, and seed or seeds.data, as in that run, or "
            "choose a run of another method"
        )
    with source.backend(range(plan.num_clients), checkpoint) as backend:
        states, of, whole = _clients(source, backend, plan, same_method)
        models = _models(backend, plan)
        server = serialize(backend.server.server.state) if same_method else None
    notes = []
    if had != have:
        notes.append(f"init: the clients of the run {folder} have different samples than the clients of this run")
    if same_method and (differing := _differing_settings(source.plan, plan)):
        notes.append(
            f"init: settings of {source.method} differ from those of the run {folder}: {'; '.join(differing)}. What "
            "the server's state already contains was computed with that run's settings"
        )
    if server is None and not models and receives(plan.algorithm):
        notes.append(
            f"init: the server of this run begins with new weights, because the server of {folder} ({source.method}) "
            "has no model that this run's method can use. In round 1, weights from the server replace the "
            f"corresponding weights that the clients took from {folder}"
        )
    if server is None:
        return Initial(states, of, whole, models), tuple(notes)
    return Initial(states, of, whole, {}, json.dumps(server.tree), packed(server.tensors)), tuple(notes)


def _refuse_other_clients(source: OpenedRun, plan: Plan) -> None:
    had, has = source.plan, plan
    if had.num_clients != has.num_clients:
        raise ScenarioError(
            f"{source.folder} has {had.num_clients} clients, but this run has {has.num_clients}; "
            f"set clients.count to {had.num_clients}. If the partition decides the number of clients, choose another "
            "partition"
        )
    for k in range(has.num_clients):
        if had.arch(k) != has.arch(k):
            raise ScenarioError(
                f"client {k} has model {had.arch(k)} in {source.folder}, but {has.arch(k)} in this run; "
                "set clients.models as in that run"
            )


def _differing_settings(source: Plan, plan: Plan) -> list[str]:
    """Return how the method's settings differ from those of the source, which has the same method."""
    settings = [field.name for field in fields(plan.algorithm) if field.init]  # without derived fields
    had, has = ({key: getattr(one, key, None) for key in settings} for one in (source.algorithm, plan.algorithm))
    return [f"{key}: {has[key]} (there: {had[key]})" for key in settings if has[key] != had[key]]


def _checkpoint(source: OpenedRun, init: Init) -> Checkpoint:
    """Return the checkpoint to begin with. Raises `ScenarioError` if it is missing or damaged."""
    checkpoint = source.checkpoint()  # drops damaged checkpoints, instead of which an earlier one must not be taken
    if source.store.damage:
        raise ScenarioError(f"{source.folder}: {source.store.damage[-1]}; restore that file")
    return checkpoint if init.round == "last" else source.checkpoint(init.round)


def _clients(
    source: OpenedRun, backend: InProcessBackend, plan: Plan, same_method: bool
) -> tuple[tuple[Packed, ...], tuple[int, ...], bool]:
    """Return the distinct states of all clients, the position of each client's state, and whether they are whole.

    They are if both runs have the same method; otherwise only the clients' own models can be taken.
    """
    nets = {arch: new_network(plan, plan.task, torch.device("cpu"), arch) for arch in plan.task.architectures}
    models: dict[str, Weights] = {arch: plan.fresh_model(arch).state_dict() for arch in nets}
    had: dict[str, Weights] = {arch: source.plan.fresh_model(arch).state_dict() for arch in nets}
    states: list[Packed] = []
    of: list[int] = []
    untrained: dict[str, int] = {}  # architecture -> position of the state of clients that never took part
    for k in range(plan.num_clients):
        arch = plan.arch(k)
        fresh = backend.worker.states.is_untrained(k)
        if not (fresh and arch in untrained):
            with backend.worker.states.reading(k) as net:
                if same_method:
                    _refuse_other_form(source, k, arch, net.state_dict(), nets[arch].state_dict())
                    states.append(packed(net.state_dict()))
                else:
                    _refuse_other_form(source, k, arch, had[arch], models[arch])
                    _part(nets[arch], models[arch], "this run")
                    part = _part(net, had[arch], str(source.folder)).state_dict()
                    states.append(packed({name: part[name] for name in had[arch]}))
            if fresh:
                untrained[arch] = len(states) - 1
        of.append(untrained[arch] if fresh else len(states) - 1)
    return tuple(states), tuple(of), same_method


def _models(backend: InProcessBackend, plan: Plan) -> dict[str, Packed]:
    """Return the model in the server's state, by its architecture; empty if there is none, or several.

    With several architectures, methods disagree about what their servers share. Buffers that the server does not have,
    such as BatchNorm's, stay those of a new model.
    """
    if len(plan.task.architectures) > 1:
        return {}
    (arch,) = plan.task.architectures
    held, model = state_tensors(backend.server.server.state), plan.fresh_model(arch)
    needed = {name: value.shape for name, value in model.named_parameters()}
    first = min(needed)
    prefixes = [name.removesuffix(first) for name in held if name == first or name.endswith(f".{first}")]
    whole = [at for at in prefixes if all(_shape(held, f"{at}{name}") == shape for name, shape in needed.items())]
    if len(whole) != 1:
        return {}
    fresh: Weights = model.state_dict()
    return {arch: packed({name: held.get(f"{whole[0]}{name}", value) for name, value in fresh.items()})}


def _shape(held: Mapping[str, Tensor], name: str) -> torch.Size | None:
    return held[name].shape if name in held else None


def _part(net: nn.Module, model: Weights, where: str) -> nn.Module:
    part = part_with(net, model)
    if part is None:
        raise ScenarioError(
            f"the client network {type(net).__name__} of {where} does not contain the model of its architecture; "
            "choose a method whose clients keep this model"
        )
    return part


def _refuse_other_form(source: OpenedRun, k: int, arch: str, before: Weights, after: Weights) -> None:
    had, has = form_of(before), form_of(after)
    names: list[Any] = [name for name in dict.fromkeys([*has, *had]) if had.get(name) != has.get(name)]
    if names:
        raise ScenarioError(
            f"client {k}'s model {arch} has {_shown(had, names[0])} in {source.folder}, but {_shown(has, names[0])} in "
            "this run; choose a run with the same number of classes, the same clients.feature_dim and the same shape "
            "of samples"
        )


def _shown(form: Form, name: str) -> str:
    return f"{name} {list(form[name][0])}" if name in form else f"no {name}"
