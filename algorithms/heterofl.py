"""HeteroFL: narrow clients train the first channels of one wide network.

Diao, Ding, Tarokh. ICLR 2021. https://arxiv.org/abs/2010.01264
All architectures are one network in several widths: each tensor of a narrower one is a leading block of the widest's.
A participant gets its block, trains it and sends it back; the server averages each number over those who have it.

Shapes: B batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Client, ClientId, Model, Server, Task, UpdateOf, Weights, weights
from raysim.core.ops import cross_entropy


def scale(rate: float, layer: nn.Module, given: Any, out: Tensor) -> Tensor:
    """After a layer: divide by its share of the widest one's outputs, so that the next layer's sums are alike."""
    return out / rate  # Eq. B


def mask(net: Any, given: Any, logits_BC: Tensor) -> Tensor:
    """After a network: the logits of classes that the client does not have are 0."""
    return logits_BC.masked_fill(~net.owned_C, 0.0)  # Eq. C


@dataclass(frozen=True)
class HeteroFL(Algorithm[Model, Model, dict[str, Model]]):
    """Average nested networks of several widths, number by number."""

    paper: ClassVar[str] = "Diao et al., ICLR 2021, https://arxiv.org/abs/2010.01264"

    scaler: bool = True
    """Divide a narrow layer's outputs by its share of the widest one's."""
    masked: bool = True
    """A client's logits of classes that it does not have are 0, and its header's rows of them are left out of the
    mean."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """How clients count in the mean: all alike (the paper), or by their samples."""

    def check(self, task: Task) -> None:
        nets = initial(task)
        wide = widest(nets)
        for name, part in nets.items():
            if not is_block(part, nets[wide]):
                raise ValueError(
                    f"clients.models: {name} is no leading part of {wide}; allowed: one network in several widths, "
                    "such as heterofl_cnn_a, heterofl_cnn_b and heterofl_cnn_c"
                )

    def client_model(self, model: Any, task: Task) -> nn.Module:
        if self.scaler:
            nets = initial(task)
            wide = nets[widest(nets)]
            for name, layer in model.named_modules():
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    rate = len(layer.weight) / len(wide[f"{name}.weight"])
                    if rate < 1:
                        layer.register_forward_hook(partial(scale, rate))
        if self.masked:
            model.register_buffer("owned_C", torch.ones(task.num_classes, dtype=torch.bool))  # until it takes part
            model.register_forward_hook(mask)
        return model

    def server_start(self, server: Server[dict[str, Model]], registrations: Mapping[ClientId, Any]) -> dict[str, Model]:
        nets = initial(server.task)
        return blocks(nets[widest(nets)], nets)

    def server_send(self, server: Server[dict[str, Model]], to: ClientId) -> Model:
        return server.state[server.arch[to]]

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.load_state_dict(down.w, strict=not self.masked)  # all but owned_C
        if self.masked:
            client.net.owned_C.copy_(client.data.y.bincount(minlength=client.task.num_classes) > 0)

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(cross_entropy)
        return Model({name: w for name, w in weights(client.net).items() if name != "owned_C"})

    def server_update(self, server: Server[dict[str, Model]], ups: Mapping[ClientId, Model]) -> None:
        nets = {arch: part.w for arch, part in server.state.items()}
        wide = {
            name: self.mean(server, name, old, {k: up.w[name] for k, up in ups.items()})
            for name, old in nets[widest(nets)].items()
        }
        server.state = blocks(wide, nets)

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net, up.w)

    def mean(self, server: Server[Any], name: str, old: Tensor, parts: Mapping[ClientId, Tensor]) -> Tensor:
        """A tensor of the widest network: the mean of each number over those who have it; without any, the old one.

        Integer tensors (BatchNorm's batch counter) are taken from the first participant, not averaged.
        """
        if not old.is_floating_point():
            return next(iter(parts.values()))
        counts = {k: self.counts(server, k, name, part.shape) for k, part in parts.items()}
        total = torch.zeros(old.shape, dtype=torch.float64)
        for count in counts.values():
            leading(total, count.shape).add_(count)
        mean = old.double().where(total == 0, 0.0)
        for k, part in parts.items():
            share = counts[k] / leading(total, part.shape).clamp(min=1)
            leading(mean, part.shape).add_(share * part.double())  # Eq. D
        return mean.to(old.dtype)

    def counts(self, server: Server[Any], k: ClientId, name: str, shape: torch.Size) -> Tensor:
        """How much each number of a client's tensor counts."""
        rows = server.classes[k] if self.masked and name.startswith("header.") else ...
        counts = torch.zeros(shape, dtype=torch.float64)
        counts[rows] = server.num_samples[k] if self.agg == "weighted" else 1
        return counts


def initial(task: Task) -> dict[str, Weights]:
    """The weights that each architecture starts from."""
    return {name: weights(task.model(name)) for name in task.architectures}


def widest(nets: Mapping[str, Weights]) -> str:
    """The architecture with the most numbers."""
    return max(nets, key=lambda name: sum(w.numel() for w in nets[name].values()))


def leading(w: Tensor, shape: torch.Size) -> Tensor:
    """The first rows, columns and so on of a tensor, as a view."""
    return w[tuple(slice(size) for size in shape)]


def blocks(wide: Weights, nets: Mapping[str, Weights]) -> dict[str, Model]:
    """What each architecture has of the widest network."""
    return {
        arch: Model({name: leading(wide[name], w.shape).clone() for name, w in part.items()})  # Eq. A
        for arch, part in nets.items()
    }


def is_block(part: Weights, wide: Weights) -> bool:
    """Whether every tensor is no larger, in any dimension, than the one of the same name."""
    return part.keys() == wide.keys() and all(
        w.dim() == wide[name].dim() and all(a <= b for a, b in zip(w.shape, wide[name].shape, strict=True))
        for name, w in part.items()
    )
