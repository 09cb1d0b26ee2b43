"""HeteroFL: narrow clients train the first channels of one wide network.

Diao, Ding, Tarokh. ICLR 2021. https://arxiv.org/abs/2010.01264
All architectures are one network in several widths: each tensor of a narrower one is a leading block of the widest's.
A participant gets its block, trains it and sends it back; the server averages each number over those who have it.

Shapes: B batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Batch, Client, ClientId, Model, Server, Task, Weights, weights
from raysim.core.ops import cross_entropy


class Scale:
    """After a layer, in training: divide by its share of the widest one's outputs, so that their sums are alike."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, layer: nn.Module, given: Any, out: Tensor) -> Tensor:
        return out / self.rate if layer.training else out


@dataclass
class Nested:
    """The widest network, and what each architecture has of it."""

    widest: Weights
    parts: dict[str, Model]


@dataclass(frozen=True)
class HeteroFL(Algorithm[Model, Model, Nested]):
    """Average nested networks of several widths, number by number."""

    paper: ClassVar[str] = "Diao et al., ICLR 2021, https://arxiv.org/abs/2010.01264"

    scaler: bool = True
    """Divide a narrow layer's outputs by its share of the widest one's, in training."""
    masked: bool = True
    """Classes that a client does not have are left out of its loss, and its rows of them out of the mean."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """How clients count in the mean: all alike (the paper), or by their samples."""

    def check(self, task: Task) -> None:
        wide = widest(task)
        full = shapes_of(task.model(wide))
        for name in task.architectures:
            if not is_narrower(shapes_of(task.model(name)), full):
                raise ValueError(
                    f"clients.models: {name} is no narrower {wide}; allowed: one network in several widths"
                )

    def client_model(self, model: Any, task: Task) -> nn.Module:
        if self.scaler:
            wide = dict(task.model(widest(task)).named_modules())
            for name, layer in model.named_modules():
                if isinstance(layer, nn.Linear | nn.Conv2d) and layer is not model.header:
                    rate = layer.weight.shape[0] / wide[name].weight.shape[0]
                    if rate < 1:
                        layer.register_forward_hook(Scale(rate))
        return model

    def server_start(self, server: Server[Nested], registrations: Mapping[ClientId, Any]) -> Nested:
        return self.nested(weights(server.task.model(widest(server.task))), server.task)

    def server_send(self, server: Server[Nested], to: ClientId) -> Model:
        return server.state.parts[server.arch[to]]

    def client_receive(self, client: Client, down: Model) -> None:
        client.net.load_state_dict(down.w)

    def client_update(self, client: Client, down: Model | None) -> Model:
        owned_C = torch.zeros(client.task.num_classes, dtype=torch.bool)
        owned_C[client.data.y] = True
        client.fit(self.loss, owned_C if self.masked else None)
        return Model(weights(client.net))

    def loss(self, net: Any, batch: Batch, owned_C: Tensor | None) -> Tensor:
        """Cross-entropy; with `owned_C`, the logits of other classes are 0, as in the paper."""
        if owned_C is None:
            return cross_entropy(net, batch, None)
        return cross_entropy(lambda x: net(x).masked_fill(~owned_C, 0.0), batch, None)

    def server_update(self, server: Server[Nested], ups: Mapping[ClientId, Model]) -> None:
        found: Weights = {}
        for name, old in server.state.widest.items():
            total, count = torch.zeros(old.shape, dtype=torch.float64), torch.zeros(old.shape, dtype=torch.float64)
            for k, up in ups.items():
                block = tuple(slice(size) for size in up.w[name].shape)
                share = torch.full(up.w[name].shape, float(server.num_samples[k] if self.agg == "weighted" else 1.0))
                if self.masked and name.startswith("header."):
                    others_C = torch.ones(len(old), dtype=torch.bool)
                    others_C[server.classes[k]] = False
                    share[others_C] = 0.0
                total[block] += share * up.w[name]  # Eq. A
                count[block] += share
            mean = torch.where(count > 0, total / count.clamp(min=1e-12), old.double())
            found[name] = mean.to(old.dtype)
        server.state = self.nested(found, server.task)

    def nested(self, wide: Weights, task: Task) -> Nested:
        """The widest network and its leading blocks."""
        parts = {}
        for name in task.architectures:
            shape = shapes_of(task.model(name))
            parts[name] = Model({key: w[tuple(slice(n) for n in shape[key])].clone() for key, w in wide.items()})
        return Nested(wide, parts)


def widest(task: Task) -> str:
    """The architecture with the most numbers."""
    return max(task.architectures, key=lambda name: sum(size.numel() for size in shapes_of(task.model(name)).values()))


def shapes_of(net: nn.Module) -> dict[str, torch.Size]:
    """The shape of every tensor of a network."""
    return {name: value.shape for name, value in net.state_dict().items()}


def is_narrower(part: Mapping[str, torch.Size], full: Mapping[str, torch.Size]) -> bool:
    """Whether every tensor is a leading block of the one of the same name."""
    return part.keys() == full.keys() and all(
        len(size) == len(full[name]) and all(a <= b for a, b in zip(size, full[name], strict=True))
        for name, size in part.items()
    )
