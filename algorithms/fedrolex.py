"""FedRolex: narrow clients train a window of a wide network's channels; in every round, the window moves on.

Alam, Liu, Yan, Zhang. NeurIPS 2022. https://arxiv.org/abs/2212.01548
All architectures are one network in several widths. A participant gets consecutive units of each hidden layer, as many
as its width allows, trains this sub-network and sends it back; the server averages each number over the participants
that have it. In the next round all windows begin one unit later and wrap around at the end, so that all units are
trained equally often.

Shapes: C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from raysim.core import Algorithm, Client, ClientId, Model, NonNegativeInt, Server, Task, UpdateOf, Weights
from raysim.core.nested import (
    add_mask,
    add_scaler,
    blocks,
    check_nested,
    initial,
    load_part,
    mean_of_blocks,
    own_part,
    widest,
)
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class FedRolex(Algorithm[Model, Model, dict[str, Model]]):
    """Average sub-networks whose channels roll through one wide network."""

    paper: ClassVar[str] = "Alam et al., NeurIPS 2022, https://arxiv.org/abs/2212.01548"
    averages = "values"

    step: NonNegativeInt = 1
    """Units by which the window of each hidden layer moves from round to round; 0: HeteroFL."""
    server_model: str | None = None
    """Architecture of the server's network, which may be wider than those of all clients; `null`: the clients'
    widest."""
    scaler: bool = True
    """Divide a narrow layer's outputs by its share of the widest layer's outputs."""
    masked: bool = True
    """Set a client's logits of classes that it does not have to 0, and exclude its header rows of these classes from
    the mean."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """Weights of clients in the mean: all equal (the released code), or by sample counts."""

    def check(self, task: Task) -> None:
        try:
            nets = self.initial(task)
        except ValueError as error:
            raise ValueError(f"server_model: {error}") from None
        check_nested(nets, "clients.models" if self.server_model is None else "clients.models and server_model")
        if self.server_model not in (None, widest(nets)):
            raise ValueError(
                f"server_model: {self.server_model} is narrower than {widest(nets)} in clients.models; choose a "
                "network that is at least as wide"
            )
        moves(nets)

    def client_model(self, model: Any, task: Task) -> nn.Module:
        if self.scaler:
            add_scaler(model, self.initial(task))  # Eq. C
        if self.masked:
            add_mask(model, task.num_classes)  # Eq. D
        return model

    def server_start(self, server: Server[dict[str, Model]], registrations: Mapping[ClientId, Any]) -> dict[str, Model]:
        nets = self.initial(server.task)
        return blocks(nets[widest(nets)], nets)

    def server_send(self, server: Server[dict[str, Model]], to: ClientId) -> Model:
        return server.state[server.arch[to]]

    def client_receive(self, client: Client, down: Model) -> None:
        load_part(client.net, down.w, client.data.y)

    def client_update(self, client: Client, down: Model | None) -> Model:
        client.fit(cross_entropy)
        return Model(own_part(client.net))

    def server_update(self, server: Server[dict[str, Model]], ups: Mapping[ClientId, Model]) -> None:
        nets = {arch: part.w for arch, part in server.state.items()}
        weight = {k: server.num_samples[k] if self.agg == "weighted" else 1 for k in ups}
        rows = server.classes if self.masked else None
        wide = mean_of_blocks(nets[widest(nets)], ups, weight, rows, server.combine_values)  # Eq. E
        server.state = blocks(rolled(wide, moves(nets), self.step), nets)  # Eq. B

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net, up.w)

    def initial(self, task: Task) -> dict[str, Weights]:
        """Return the weights that each architecture starts from, including that of the server."""
        return initial(task, self.server_model)


def rolled(wide: Weights, moves: Mapping[str, tuple[int, ...]], step: int) -> Weights:
    """Return the same network with each hidden layer's units in another order, in which unit `step` is the first.

    All windows of a round begin at the same unit, so that the server keeps its network in the order of the round: each
    window is then a leading block, as in HeteroFL.
    """
    return {
        # Eq. A
        name: torch.roll(w, [-step * move for move in moves[name]], list(range(w.dim()))) if w.dim() else w
        for name, w in wide.items()
    }


def moves(nets: Mapping[str, Weights]) -> dict[str, tuple[int, ...]]:
    """Return, for each dimension of each tensor of the widest network, by how many entries a step of 1 moves it.

    0 where all networks have the same size. The inputs of a layer are the outputs of an earlier layer, or, after a
    flattening, as many consecutive entries for each output of the last layer. Raises `ValueError` for other networks.
    """
    found: dict[str, tuple[int, ...]] = {}
    layers: list[tuple[int, ...]] = []  # for each layer so far: its number of outputs in each network
    for name, w in nets[widest(nets)].items():
        sizes = [tuple(net[name].shape[dim] for net in nets.values()) for dim in range(w.dim())]
        is_layer = w.dim() > 1
        inputs = [entries(name, size, layers, w.dim() < 3) for size in (sizes[1:] if is_layer else sizes)]
        found[name] = (int(len(set(sizes[0])) > 1), *inputs) if is_layer else tuple(inputs)
        layers += sizes[:1] if is_layer else []
    return found


def entries(name: str, size: tuple[int, ...], layers: list[tuple[int, ...]], may_be_flat: bool) -> int:
    """Return how many consecutive entries of a dimension are one unit; 0 if all networks have the same size.

    may_be_flat: whether the inputs may be the flattened outputs of the last layer; those of a convolution are not.
    """
    if len(set(size)) == 1:
        return 0
    if layers and size == layers[-1]:
        return 1
    per_unit = size[0] // layers[-1][0] if layers and may_be_flat else 0
    is_flat = per_unit > 0 and size == tuple(per_unit * units for units in layers[-1])
    if is_flat and size in layers:
        raise ValueError(
            f"clients.models: the input of the parameter {name} may be the flattened outputs of the last layer or the "
            "outputs of an earlier layer, which has the same size; give one of the layers another width"
        )
    if is_flat or size in layers:
        return per_unit if is_flat else 1
    raise ValueError(
        f"clients.models: the input size of the parameter {name} does not match the output size of any earlier layer; "
        "choose networks in which each layer reads the output of the previous layer, such as heterofl_cnn_a, "
        "heterofl_cnn_b and heterofl_cnn_c"
    )
