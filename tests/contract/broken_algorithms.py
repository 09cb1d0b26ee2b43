"""Algorithms that each break one clause of the contract, as an honest author might; test_contract.py names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.core import Algorithm, Client, ClientId, OutputOf, Server, Task, UpdateOf, Weights, message, weights
from raysim.core.data import Batch
from raysim.core.ops import class_means, cross_entropy, weighted_mean


@message
class Header:
    """The last linear layer."""

    w: Weights


@dataclass(frozen=True)
class Sound(Algorithm[Header, Header, Header]):
    """LG-FedAvg in short, which breaks no clause."""

    def server_start(self, server: Server[Header], registrations: Mapping[ClientId, Any]) -> Header:
        return Header(weights(nn.Linear(server.task.feature_dim, server.task.num_classes)))

    def server_send(self, server: Server[Header], to: ClientId) -> Header:
        return server.state

    def client_receive(self, client: Client, down: Header) -> None:
        client.net.header.load_state_dict(down.w)

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.fit(cross_entropy)
        return Header(weights(client.net.header))

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        server.state = Header(weighted_mean((server.num_samples[k], up.w) for k, up in ups.items()))


# -- defined, picklable, frozen, fields_read ---------------------------------------------------------


@dataclass(frozen=True)
class NearMiss(Sound):
    """Misspells a hook, which is then never called."""

    def server_updates(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)


class NotADataclass(Sound):
    """Forgets @dataclass(frozen=True)."""


@dataclass(frozen=True)
class HoldsAFunction(Sound):
    """Has a setting that pickle refuses."""

    factor: Any = None
    """A function."""


@dataclass(frozen=True)
class StateOnClass(Sound):
    """Keeps a list on its class, which every process has for itself."""

    seen: ClassVar[list[int]] = []

    def client_update(self, client: Client, down: Header | None) -> Any:
        self.seen.append(client.id)
        return super().client_update(client, down)


@dataclass(frozen=True)
class LossNeverFitted(Sound):
    """Has a setting of a loss that local training does not get."""

    mu: float = 0.5
    """Weight of the second term."""

    def loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        return cross_entropy(net, batch, given) + self.mu * batch.mean(net.features(batch.x).square().sum(1))


# -- runs, logits ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NeedsClientZero(Sound):
    """Raises an exception in rounds without client 0."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        assert 0 in ups, "no client 0"
        super().server_update(server, ups)


@dataclass(frozen=True)
class SendsNaN(Sound):
    """Divides zero by zero."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return Header({name: w * 0 / 0 for name, w in weights(client.net.header).items()})


@dataclass(frozen=True)
class SumsInPlace(Sound):
    """Uses the first upload as the sum."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        total = next(iter(ups.values())).w
        for up in list(ups.values())[1:]:
            for name, value in up.w.items():
                total[name] += value
        server.state = Header({name: value / len(ups) for name, value in total.items()})


class Pair(nn.Module):
    """A network whose forward returns two values."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.header = net, net.header

    def forward(self, x: Tensor) -> Any:
        return self.net.features(x), self.net(x)


@dataclass(frozen=True)
class ForwardReturnsAPair(Sound):
    """Has a network that cannot be tested as every other network."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Pair(model)

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.fit(lambda pair, batch, given: cross_entropy(pair.net, batch, given))
        return Header(weights(client.net.header))


# -- deterministic, any_order, resumable, scheduled, trained_together --------------------------------


@dataclass(frozen=True)
class DrawsFromNumpy(Sound):
    """Adds noise from NumPy's global generator."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        up = super().client_update(client, down)
        return Header({name: value + float(np.random.rand()) * 1e-3 for name, value in up.w.items()})


LAST: dict[str, Tensor] = {}


@dataclass(frozen=True)
class FollowsTheLast(Sound):
    """Each client starts from the bias of the client that ran before it."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        if "bias" in LAST:
            with torch.no_grad():
                client.net.header.bias.copy_(LAST["bias"])
        up = super().client_update(client, down)
        LAST["bias"] = up.w["bias"]
        return up


@dataclass(frozen=True)
class StateBesideTheNet(Sound):
    """Counts rounds in a plain attribute of the network."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.net.rounds = getattr(client.net, "rounds", 0) + 1
        up = super().client_update(client, down)
        with torch.no_grad():
            client.net.header.bias.mul_(1 / client.net.rounds)
        return up


@dataclass(frozen=True)
class DecaysByRounds(Sound):
    """Reads the number of rounds without declaring it."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        server.state.w["bias"].mul_(1 - server.t / (2 * server.task.num_rounds))


SCALE = [1.0]


@dataclass(frozen=True)
class LossReadsAGlobal(Sound):
    """Its loss reads a global that the hook of each client sets: together, all clients have that of the last."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        SCALE[0] = 1.0 + client.id
        client.fit(self.scaled)
        return Header(weights(client.net.header))

    def scaled(self, net: Any, batch: Batch, given: Any) -> Tensor:
        return SCALE[0] * cross_entropy(net, batch, given)


@dataclass(frozen=True)
class ForgetsBatchMean(Sound):
    """Its loss counts the padding of smaller batches."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.fit(self.loss)
        return Header(weights(client.net.header))

    def loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        return F.cross_entropy(net(batch.x), batch.y)


# -- learns, messages_move, connected ----------------------------------------------------------------


@dataclass(frozen=True)
class ClimbsTheLoss(ForgetsBatchMean):
    """Has a sign error: trains towards wrong answers."""

    def loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        return -batch.mean(F.cross_entropy(net(batch.x), batch.y, reduction="none").clamp(max=20))


@message
class ClassMeans:
    """Mean representations."""

    class_S: Tensor
    mean_SD: Tensor


@dataclass(frozen=True)
class FedGHSlip(Algorithm[Header, ClassMeans, nn.Linear]):
    """FedGH as in its released code: the server's optimizer has the parameters of another network."""

    def server_start(self, server: Server[nn.Linear], registrations: Mapping[ClientId, Any]) -> nn.Linear:
        return nn.Linear(server.task.feature_dim, server.task.num_classes)

    def server_send(self, server: Server[nn.Linear], to: ClientId) -> Header:
        return Header(weights(server.state))

    def client_receive(self, client: Client, down: Header) -> None:
        client.net.header.load_state_dict(down.w)

    def client_update(self, client: Client, down: Header | None) -> ClassMeans:
        client.fit(cross_entropy)
        class_S, mean_SD, _ = class_means(client.outputs(client.net.features), client.data.y)
        return ClassMeans(class_S.int(), mean_SD)

    def server_update(self, server: Server[nn.Linear], ups: Mapping[ClientId, ClassMeans]) -> None:
        other = server.task.model(server.task.architectures[0])
        sgd = torch.optim.SGD(other.parameters(), lr=0.01)
        for up in ups.values():
            F.cross_entropy(server.state(up.mean_SD), up.class_S.long()).backward()
            sgd.step()
        server.state.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class UploadsToNobody(Algorithm[None, Header, None]):
    """Has no server_update."""

    def client_update(self, client: Client, down: None) -> Header:
        client.fit(cross_entropy)
        return Header(weights(client.net.header))


@dataclass(frozen=True)
class NeverReceives(Sound):
    """Does not load the header that arrives."""

    def client_receive(self, client: Client, down: Header) -> None:
        pass


# -- one_client, single_samples, class_gap -----------------------------------------------------------


@dataclass(frozen=True)
class NeedsTwoClients(Sound):
    """Divides by the number of the other clients."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        server.state.w["bias"].mul_(1 / (len(server.num_samples) - 1))


@dataclass(frozen=True)
class NeedsTwoSamples(Sound):
    """Uploads a sample standard deviation, which is NaN for one sample."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        up = super().client_update(client, down)
        logits_NC = client.outputs(client.net)
        variance_C = (logits_NC - logits_NC.mean(0)).square().sum(0) / (len(logits_NC) - 1)
        up.w["bias"].add_(0.1 * variance_C)
        return up


@dataclass(frozen=True)
class NeedsEveryClass(FedGHSlip):
    """Averages means per class: 0 / 0 where no client has the class."""

    def server_update(self, server: Server[nn.Linear], ups: Mapping[ClientId, ClassMeans]) -> None:
        sum_CD, count_C = torch.zeros(4, 8), torch.zeros(4)
        for up in ups.values():
            sum_CD.index_add_(0, up.class_S, up.mean_SD)
            count_C.index_add_(0, up.class_S, torch.ones(len(up.class_S)))
        with torch.no_grad():
            server.state.weight.copy_(sum_CD / count_C[:, None])


# -- averages ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AveragesElsewhere(Sound):
    """Says that a rule can replace its mean, but does not combine uploads by `server.mean`."""

    averages = "uploads"


# -- stale_uploads -----------------------------------------------------------------------------------


@message
class Dated:
    """A header and the round in which it was trained."""

    w: Weights
    t: int


@dataclass(frozen=True)
class OnlyFresh(Sound):
    """Says that it takes stale uploads, but averages those of the round only, of which there may be none."""

    stale_uploads = True

    def client_update(self, client: Client, down: Header | None) -> Dated:
        return Dated(super().client_update(client, down).w, client.t)

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Any]) -> None:
        fresh = torch.tensor([float(up.t == server.t) for up in ups.values()])
        share_K = fresh / fresh.sum()
        parts = [up.w for up in ups.values()]
        stacked = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
        server.state = Header({name: torch.einsum("k,k...->...", share_K, one) for name, one in stacked.items()})


# -- exposed -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declares(Sound):
    """Describes its upload truly."""

    def exposed(self, client: Client, up: Header) -> Any:
        return UpdateOf(client.net.header, up.w)


@dataclass(frozen=True)
class DeclaresTheChange(Sound):
    """Declares how parameters changed, instead of their values."""

    def exposed(self, client: Client, up: Header) -> Any:
        old = client.net.header.state_dict()
        return UpdateOf(client.net.header, {name: w - old[name] for name, w in up.w.items()})


@dataclass(frozen=True)
class DeclaresAnotherOutput(Sound):
    """Declares the first row of its header as the sample's representation."""

    def exposed(self, client: Client, up: Header) -> Any:
        return OutputOf(client.net.features, up.w["weight"][0])


def clear_globals() -> None:
    """Empty the globals that some of these algorithms leave behind."""
    for kept in (StateOnClass.seen, LAST):
        kept.clear()  # type: ignore[attr-defined]
