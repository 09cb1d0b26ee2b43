"""HeteroFL: narrow clients train the first channels of one wide network.

Diao, Ding, Tarokh. ICLR 2021. https://arxiv.org/abs/2010.01264
All architectures are one network in several widths: each tensor of a narrow network is a leading block of the tensor in
the widest network. A participant receives its blocks, trains them and sends them back; the server averages each number
over the participants that have it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from raysim.core import Algorithm, Client, ClientId, Model, Server, Task, UpdateOf
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
class HeteroFL(Algorithm[Model, Model, dict[str, Model]]):
    """Average nested networks of several widths, entry by entry."""

    paper: ClassVar[str] = "Diao et al., ICLR 2021, https://arxiv.org/abs/2010.01264"
    averages = "values"
    stale_uploads = True

    scaler: bool = True
    """Divide a narrow layer's outputs by its share of the widest layer's outputs."""
    masked: bool = True
    """Set a client's logits of classes that it does not have to 0, and exclude its header rows of these classes from
    the mean."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """Weights of clients in the mean: all equal (the paper), or by sample counts."""

    def check(self, task: Task) -> None:
        check_nested(initial(task))

    def client_model(self, model: Any, task: Task) -> nn.Module:
        if self.scaler:
            add_scaler(model, initial(task))  # Eq. B
        if self.masked:
            add_mask(model, task.num_classes)  # Eq. C
        return model

    def server_start(self, server: Server[dict[str, Model]], registrations: Mapping[ClientId, Any]) -> dict[str, Model]:
        nets = initial(server.task)
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
        wide = mean_of_blocks(nets[widest(nets)], ups, weight, rows, server.combine_values)  # Eq. D
        server.state = blocks(wide, nets)  # Eq. A

    def exposed(self, client: Client, up: Model) -> UpdateOf:
        return UpdateOf(client.net, up.w)
