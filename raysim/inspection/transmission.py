"""What a client's upload shows of one image, and what an attacker's model would send for any other.

The client trains one step of plain SGD on that image alone, not augmented, from the state of a saved round, and sends
what its method sends: the upload is the method's own. Two kinds of method are told apart by what it depends on:

    a step      parameters that the server knew before; their change over the learning rate is a gradient
    an output   logits or representations, of which the mean over one image is the image's own

Shapes: B = 1 image, C classes, E numbers that are seen.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raysim.common.errors import ScenarioError
from raysim.core.algorithm import Client, ClientId
from raysim.core.data import Batch
from raysim.core.fit import FitJob, FitResult, LocalTraining, fit_one, has_batchnorm
from raysim.core.messages import leaves, unpack
from raysim.core.ops import cross_entropy
from raysim.core.seeds import global_seed
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.spec import RunSpec
from raysim.engine.workers.hooks import hook
from raysim.runs.opened import own_model

Knowledge = Literal["white", "blind"]
"""white: the attacker has the client's private weights, the worst case. blind: the architecture with the fewest
parameters, freshly initialised, stands for them. Both know what the server sent."""

STEPS: Mapping[str, str] = {
    "fedavg": "",
    "feddf": "",
    "heterofl": "",
    "fml": "small.",
    "fedkd": "small.",
    "fedapen": "shared.",
    "lg_fedavg": "header.",
    "fedclassavg": "header.",
    "fedssa": "header.",
    "fedral": "matrix_DD",
}
"""Methods that send a step -> how the names of the parameters begin that are shared."""

OUTPUTS: Mapping[str, Literal["logits", "features", "stage"]] = {
    "fd": "logits",
    "hks": "logits",
    "fedcache": "logits",
    "fedproto": "features",
    "fedtgp": "features",
    "fedgh": "features",
    "dc_pfl": "features",
    "fedgkt": "stage",
}
"""Methods that send outputs -> which. The covariance that DC-PFL sends, too, is zero for one image; FedGKT's logits add
little to what its first stage gives."""

NOTHING: Mapping[str, str] = {
    "standalone": "sends nothing",
    "fedmd": "sends what a network gives for public data, nothing of one image",
}
"""Methods that are not attacked -> why."""


@dataclass(frozen=True)
class Transmission:
    """What is seen of a client that trained on one image, and the attacker's model of it."""

    client: ClientId
    sample: int  # the image's place in the client's training samples
    seen_E: Tensor
    send: Callable[[Tensor, Tensor], Tensor]  # (normalised image [B, C, H, W], label [B, C] in [0, 1]) -> [E]
    uses_label: bool  # whether `send` reads the label


def attack_spec(spec: RunSpec) -> RunSpec:
    """The run with clients that train one step of plain SGD on images that are not augmented."""
    local = LocalTraining(epochs=1, batch_size=spec.local.batch_size, lr=spec.local.lr)
    return replace(spec, local=local, transform=replace(spec.transform, augment=None))  # type: ignore[type-var]


def attackable(method: str, spec: RunSpec) -> list[ClientId]:
    """The clients with training samples whose upload shows something of one image. Raises `ScenarioError` if none."""
    if method not in STEPS and method not in OUTPUTS:
        why = NOTHING.get(method, "is not known to the attack")
        raise ScenarioError(f"{method} {why}; allowed: a run of {', '.join(sorted([*STEPS, *OUTPUTS]))}")
    trains = method in STEPS or method == "fedcache"

    def fits(arch: str) -> bool:
        # With BatchNorm, training leaves out a batch of one sample.
        return not (trains and has_batchnorm(spec.algorithm.client_model(spec.task.model(arch), spec.task)))

    fitting = {arch for arch in spec.task.architectures if fits(arch)}
    found = [k for k in spec.eligible if spec.arch(k) in fitting]
    if not found:
        raise ScenarioError(
            f"the networks of all clients that hold samples have BatchNorm, which {method} cannot train on one image"
        )
    return found


def transmit(
    method: str, backend: InProcessBackend, t: int, k: ClientId, sample: int, knowledge: Knowledge
) -> Transmission:
    """What client `k` sends in round `t` after it trained on one of its samples.

    The clients of `backend` stay as they are. Raises `ScenarioError` when the method sends nothing then.
    """
    spec = backend.spec
    broadcast = backend.send(t, [k])
    place = broadcast.of[k]
    down = None if place is None else unpack(broadcast.messages[place])
    client = backend.worker.client(k, t)
    client.net = copy.deepcopy(client.net)
    if down is not None:
        with hook(spec.seed, "client_receive", t, k, spec.algorithm, torch.device("cpu"), down, client.arch):
            spec.algorithm.client_receive(client, down)
    before = copy.deepcopy(client.net)
    client.data = client.data.subset(torch.tensor([sample]))
    jobs: list[FitJob] = []

    def train(job: FitJob) -> FitResult:
        jobs.append(job)
        return fit_one(job)

    client.trainer = train
    with hook(spec.seed, "client_update", t, k, spec.algorithm, torch.device("cpu"), down, client.arch):
        up = spec.algorithm.client_update(client, down)
    if up is None:
        raise ScenarioError(f"{method} sends nothing in round {t}; choose the state after another round")
    if method in OUTPUTS:
        return _output(method, spec, client, before, up, sample, knowledge)
    return _step(method, spec, client, before, up, sample, knowledge, jobs[0])


# -- outputs -----------------------------------------------------------------------------------------


def _output(
    method: str, spec: RunSpec, client: Client, before: nn.Module, up: Any, sample: int, knowledge: Knowledge
) -> Transmission:
    seen_E = next(leaf for leaf in leaves(up) if isinstance(leaf, Tensor) and leaf.is_floating_point()).flatten()

    def sender(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        net = copy.deepcopy(net).eval()
        outputs: Mapping[str, Callable[[], Any]] = {
            "logits": lambda: net,
            "features": lambda: own_model(net).features,
            "stage": lambda: own_model(net).stages[0],
        }
        f = outputs[OUTPUTS[method]]()
        return lambda x, _: f(x).flatten()

    if knowledge == "blind":
        return Transmission(client.id, sample, seen_E, sender(_stranger(spec, {})), uses_label=False)

    def miss(send: Callable[[Tensor, Tensor], Tensor]) -> float:
        return float((send(client.data.x, client.data.y).detach() - seen_E).square().sum())

    # Some methods send what the step itself gave, others what the network gives after it.
    send = min((sender(before), sender(client.net)), key=miss)
    return Transmission(client.id, sample, seen_E, send, uses_label=False)


# -- steps -------------------------------------------------------------------------------------------


def _step(
    method: str,
    spec: RunSpec,
    client: Client,
    before: nn.Module,
    up: Any,
    sample: int,
    knowledge: Knowledge,
    job: FitJob,
) -> Transmission:
    prefix = STEPS[method]
    net = copy.deepcopy(before) if knowledge == "white" else _stranger(spec, _shared(before.state_dict(), prefix))
    net.train()
    shared = _shared(dict(net.named_parameters()), prefix)
    pick = _sent_entries(method, spec, client, up)
    old_E = pick({name: w.detach() for name, w in shared.items()})
    rate_E = pick({name: torch.full_like(w, job.rates.get(name, job.local.lr)) for name, w in shared.items()})
    seen_E = (old_E - _sent_numbers(method, spec, shared, up)) / rate_E
    # Beside the labels, only the extractor learns from FedClassAvg's second view, and a header that equals the one
    # received is not held back: so is what any shared header learns in its first step.
    loss = cross_entropy if prefix == "header." else job.loss

    def send(x: Tensor, label: Tensor) -> Tensor:
        with _Teachers():
            found = loss(net, Batch(x, label, torch.zeros(1, dtype=torch.int64)), job.given)
        value = found[0] if isinstance(found, tuple) else found
        gradients = _step_gradients(value, list(shared.values()))
        return pick(dict(zip(shared, gradients, strict=True)))

    return Transmission(client.id, sample, seen_E, send, uses_label=True)


def _shared(named: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named.items() if name.startswith(prefix)}


def _sent_entries(method: str, spec: RunSpec, client: Client, up: Any) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """From the shared parameters, or their gradients, to what of them is sent, one number after another."""
    if method == "fedssa":
        class_S = client.data.y
        return lambda named: torch.cat([named["header.weight"][class_S].flatten(), named["header.bias"][class_S]])
    if method == "fedral":
        width = spec.feature_dim
        mask_DD = _module(spec).block_mask(width, width * width // len(up.entry_E))
        return lambda named: named["matrix_DD"][mask_DD]
    return lambda named: torch.cat([tensor.flatten() for tensor in named.values()])


def _sent_numbers(method: str, spec: RunSpec, shared: Mapping[str, Tensor], up: Any) -> Tensor:
    """The parameters that an upload holds, in the order of `_sent_entries`."""
    if method == "fedkd":
        old = {name.removeprefix(STEPS[method]): w.detach() for name, w in shared.items()}
        dense = _module(spec).restored(up.tensors, old)
        if isinstance(up, _module(spec).Update):
            dense = {name: old[name] + change for name, change in dense.items()}
        return torch.cat([tensor.flatten() for tensor in dense.values()])
    return torch.cat([leaf.flatten() for leaf in leaves(up) if isinstance(leaf, Tensor)])


def _module(spec: RunSpec) -> Any:
    """The module of the run's method: what it alone knows of its messages."""
    return sys.modules[type(spec.algorithm).__module__]


def _stranger(spec: RunSpec, known: Mapping[str, Tensor]) -> nn.Module:
    """What an attacker without the private weights puts in their place: a fresh network with what is known in it."""
    with global_seed(spec.seed, "attack"):
        net = spec.algorithm.client_model(spec.fresh_model(spec.task.smallest(), "attack"), spec.task)
    net.load_state_dict(dict(known), strict=False)
    return net


class _Constant(torch.autograd.Function):
    """A teacher in a loss: constant to the step that it teaches, but not to an attacker who varies the image."""

    stepping = False

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient) if _Constant.stepping else gradient


class _Teachers(TorchFunctionMode):
    """Within it, `detach` stops the gradient of the step alone."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.detach and args[0].requires_grad:
            return _Constant.apply(args[0])
        return function(*args, **(kwargs or {}))


def _step_gradients(value: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of a step, which itself can be differentiated."""
    _Constant.stepping = True
    try:
        return torch.autograd.grad(value, parameters, create_graph=True)
    finally:
        _Constant.stepping = False
