"""The state that a run takes over from another run (`init`), whose workers are in this process."""

from __future__ import annotations

import json

import torch
from torch import nn

from raysim.common.errors import ScenarioError
from raysim.core.messages import Weights
from raysim.core.state import form_of, serialize, state_tensors
from raysim.engine.initial import Initial, Packed, packed, part_with
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.workers.client import new_network


def take_over(backend: InProcessBackend, plan: Plan, same_method: bool) -> Initial:
    """Return the initial state of a run from the restored state of another run with the same architectures.

    plan: of the new run. same_method: whether both runs have the same method; the clients then begin with their whole
    networks and the server with its whole state, otherwise with the models of the clients' architectures.
    Raises `ScenarioError` if the state does not fit the new run.
    """
    nets = {arch: new_network(plan, plan.task, torch.device("cpu"), arch) for arch in plan.task.architectures}
    wanted: dict[str, Weights] = {
        arch: (net if same_method else plan.fresh_model(arch)).state_dict() for arch, net in nets.items()
    }
    for arch, net in nets.items():
        _part(net, wanted[arch], "of this run")
    states: list[Packed] = []
    of: list[int] = []
    untrained: dict[str, int] = {}  # architecture -> position of the state that all clients have that never took part
    for k in range(plan.num_clients):
        arch, fresh = plan.arch(k), backend.worker.states.is_untrained(k)
        if not (fresh and arch in untrained):
            with backend.worker.states.reading(k) as net:
                held = _part(net, wanted[arch], f"of client {k} in that run")
                states.append(packed({name: held[name] for name in wanted[arch]}))
            if fresh:
                untrained[arch] = len(states) - 1
        of.append(untrained[arch] if fresh else len(states) - 1)
    if not same_method:
        return Initial(tuple(states), tuple(of), False, _server_model(backend, plan))
    server = serialize(backend.server.server.state)
    return Initial(tuple(states), tuple(of), True, {}, json.dumps(server.tree), packed(server.tensors))


def _part(net: nn.Module, wanted: Weights, whose: str) -> Weights:
    """Return the state of a network, or of a module in it, that has these tensors. Raises `ScenarioError`."""
    if (part := part_with(net, wanted)) is not None:
        return part.state_dict()
    had = form_of(net.state_dict())
    name = next((name for name, form in form_of(wanted).items() if had.get(name) != form), "")
    shape = f"{name} {list(had[name][0])}" if name in had else f"no {name}"
    raise ScenarioError(
        f"the network {type(net).__name__} {whose} has {shape}, but this run needs {name} {list(wanted[name].shape)}; "
        "choose a run with the same number of classes, the same clients.feature_dim and the same shape of samples, and "
        "a method whose clients keep the model of their architecture"
    )


def _server_model(backend: InProcessBackend, plan: Plan) -> dict[str, Packed]:
    """Return architecture -> model in the server's state; empty if the state has no model, or several.

    With several architectures, methods disagree about what their servers share. Buffers that the server does not have,
    such as BatchNorm's, stay those of a new model.
    """
    if len(plan.task.architectures) > 1:
        return {}
    (arch,) = plan.task.architectures
    held, model = state_tensors(backend.server.server.state), plan.fresh_model(arch)
    needed = {name: value.shape for name, value in model.named_parameters()}
    shapes = {name: value.shape for name, value in held.items()}
    first = min(needed)
    prefixes = [name.removesuffix(first) for name in held if name == first or name.endswith(f".{first}")]
    whole = [at for at in prefixes if all(shapes.get(f"{at}{name}") == shape for name, shape in needed.items())]
    if len(whole) != 1:
        return {}
    fresh: Weights = model.state_dict()
    return {arch: packed({name: held.get(f"{whole[0]}{name}", value) for name, value in fresh.items()})}
