"""Deliberately wrong little algorithms, each breaking one clause of the contract; test_contract.py says which."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
    """LG-FedAvg in short: breaks nothing, so that what a subclass breaks is the subclass's doing."""

    paper: ClassVar[str] = "none"

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


SCALE = [1.0]


@dataclass(frozen=True)
class LossReadsAGlobal(Sound):
    """Its loss reads a global that the hook of each client sets: together, all have that of the last."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        SCALE[0] = 1.0 + client.id
        client.fit(self.scaled_loss)
        return Header(weights(client.net.header))

    def scaled_loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        """The loss, times a number of the client."""
        return SCALE[0] * cross_entropy(net, batch, given)


class NotAFrozenDataclass(Sound):
    """Forgets @dataclass(frozen=True)."""


@dataclass(frozen=True)
class StateOnSelf(Sound):
    """Counts its rounds on itself."""

    rounds: int = 0
    """Rounds so far."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        object.__setattr__(self, "rounds", self.rounds + 1)


@dataclass(frozen=True)
class StateOnClass(Sound):
    """Keeps a list on its class, shared by every copy of it in one process and by none in another."""

    seen: ClassVar[list[int]] = []

    def client_update(self, client: Client, down: Header | None) -> Any:
        self.seen.append(client.id)
        return super().client_update(client, down)


@dataclass(frozen=True)
class HoldsALambda(Sound):
    """A field that pickle cannot take."""

    factor: Any = None
    """A function."""


@dataclass(frozen=True)
class UnequalCopy(Sound):
    """A field that is equal only to itself."""

    thing: Any = None
    """An object without ==."""


@dataclass(frozen=True)
class SendsADict(Sound):
    """A bare dict instead of a message."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return super().client_update(client, down).w

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Any]) -> None:
        super().server_update(server, {k: Header(up) for k, up in ups.items()})


@dataclass(frozen=True)
class PlainDataclass:
    """Frozen, but not declared with @message: torch cannot look inside it."""

    w: Weights


@dataclass(frozen=True)
class SendsAPlainDataclass(Sound):
    """A dataclass that is no message."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return PlainDataclass(super().client_update(client, down).w)


class Renamed(Header):
    """A subclass of a message that is not declared with @message: torch cannot look inside it."""


@dataclass(frozen=True)
class SendsASubclass(Sound):
    """A subclass of a message that is no message."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return Renamed(super().client_update(client, down).w)


@message
class Named:
    """A header with a text."""

    w: Weights
    name: str


@dataclass(frozen=True)
class SendsText(Sound):
    """A message with a string in it."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return Named(super().client_update(client, down).w, client.arch)


@dataclass(frozen=True)
class TrainsTheOthers(Sound):
    """A client hook that reaches another client's network, through a list that client_model fills."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        NETS.append(model)
        return model

    def client_update(self, client: Client, down: Header | None) -> Any:
        with torch.no_grad():
            for net in NETS:
                net.header.bias += 0.1
        return super().client_update(client, down)


NETS: list[Any] = []


@dataclass(frozen=True)
class ServerHookTouchesClients(TrainsTheOthers):
    """A server hook that changes the clients' networks."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return Sound.client_update(self, client, down)

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        with torch.no_grad():
            for net in NETS:
                net.header.bias.zero_()


@dataclass(frozen=True)
class ChangesItsData(Sound):
    """Makes the first label of its client's data another one."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.data.y[0] = (client.data.y[0] + 1) % 4
        return super().client_update(client, down)


@dataclass(frozen=True)
class ReceivesInPlace(Sound):
    """Scales the shared message before loading it."""

    def client_receive(self, client: Client, down: Header) -> None:
        down.w["weight"] *= 0.5
        super().client_receive(client, down)


@dataclass(frozen=True)
class TrainsTheMessage(Sound):
    """Adds its own header onto the shared message and sends that."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        assert down is not None
        up = super().client_update(client, down)
        down.w["bias"].add_(up.w["bias"])
        return up


@dataclass(frozen=True)
class SumsInPlace(Sound):
    """Uses the first upload as its accumulator."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        total = next(iter(ups.values())).w
        for up in list(ups.values())[1:]:
            for name, value in up.w.items():
                total[name] += value
        server.state = Header({name: value / len(ups) for name, value in total.items()})


@dataclass(frozen=True)
class DrawsFromNumpy(Sound):
    """Noise from numpy's global generator."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        up = super().client_update(client, down)
        return Header({name: value + float(np.random.rand()) * 1e-3 for name, value in up.w.items()})


@dataclass(frozen=True)
class DrawsFromPython(Sound):
    """Noise from Python's global generator."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        server.state.w["bias"].mul_(random.random())


@dataclass(frozen=True)
class DrawsFromFreshNumpy(Sound):
    """Noise from a generator that the operating system seeds."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        up = super().client_update(client, down)
        noise = float(np.random.default_rng().random()) * 1e-3
        return Header({name: value + noise for name, value in up.w.items()})


@dataclass(frozen=True)
class CountsForwardPasses(Sound):
    """A loss that writes into `given`, which goes up: counting operations is one pass more."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        tally = torch.zeros(())
        client.fit(tallied, tally)
        return Header({name: value + 1e-3 * tally for name, value in weights(client.net.header).items()})


def tallied(net: Any, batch: Batch, given: Any) -> Tensor:
    """Cross-entropy, and one more pass."""
    given += 1
    return cross_entropy(net, batch, given)


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
    """Keeps a running value as a plain attribute of the network."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.net.rounds = getattr(client.net, "rounds", 0) + 1
        up = super().client_update(client, down)
        with torch.no_grad():
            client.net.header.bias.mul_(1 / client.net.rounds)
        return up


@dataclass(frozen=True)
class LeavesAForwardHook(Sound):
    """Observes the header's inputs and never stops."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.net.header.register_forward_pre_hook(lambda module, inputs: None)
        return super().client_update(client, down)


ROUNDS_OF: dict[ClientId, int] = {}


@dataclass(frozen=True)
class StateInTheModule(Sound):
    """Keeps a running value in a global of its file."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        ROUNDS_OF[client.id] = ROUNDS_OF.get(client.id, 0) + 1
        up = super().client_update(client, down)
        with torch.no_grad():
            client.net.header.bias.mul_(1 / ROUNDS_OF[client.id])
        return up


class Opaque:
    """An object that is equal only to itself."""

    def __init__(self, w: Weights) -> None:
        self.w = w


@dataclass(frozen=True)
class KeepsAViewOfItsState(Sound):
    """Two values of the server's state share memory, which those of a restored state do not."""

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        first = super().server_start(server, registrations).w
        return {"w": first, "row": first["weight"][0]}

    def server_send(self, server: Server[Any], to: ClientId) -> Header:
        return Header(server.state["w"])

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Header]) -> None:
        server.state["w"] = weighted_mean((server.num_samples[k], up.w) for k, up in ups.items())
        server.state["row"] = server.state["w"]["weight"][0]


@dataclass(frozen=True)
class KeepsAnOptimizer(Sound):
    """Keeps an optimizer, not its state_dict, in server.state."""

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        header = server.task.new_header()
        return {"header": header, "adam": torch.optim.Adam(header.parameters(), lr=0.01)}

    def server_send(self, server: Server[Any], to: ClientId) -> Header:
        return Header(weights(server.state["header"]))

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Header]) -> None:
        mean = weighted_mean((server.num_samples[k], up.w) for k, up in ups.items())
        for name, value in server.state["header"].named_parameters():
            value.grad = value.detach() - mean[name]
        server.state["adam"].step()


@dataclass(frozen=True)
class StateBesideServerState(Sound):
    """Keeps the round's uploads on the server object."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        server.latest = ups  # type: ignore[attr-defined]


@dataclass(frozen=True)
class StateBesideClientState(Sound):
    """Keeps the message on the client object."""

    def client_receive(self, client: Client, down: Header) -> None:
        super().client_receive(client, down)
        client.latest = down  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ServerKeeps(Algorithm[Header, Header, Any]):
    """A server that keeps something, and sends and aggregates nothing else."""

    def client_update(self, client: Client, down: Header | None) -> Header:
        client.fit(cross_entropy)
        return Header(weights(client.net.header))


@dataclass(frozen=True)
class KeepsADefaultDict(ServerKeeps):
    """Counts in a mapping that a dict cannot replace."""

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        return defaultdict(int)

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Header]) -> None:
        server.state["rounds"] += 1


@dataclass(frozen=True)
class KeepsAGraph(ServerKeeps):
    """Keeps a tensor that is still connected to those that it was computed from."""

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        return {"w": torch.ones(1, requires_grad=True)}

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Header]) -> None:
        server.state["w"] = server.state["w"] * 1.1


@dataclass(frozen=True)
class AddsModulesLater(ServerKeeps):
    """Creates a network of the server in round 1."""

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        return {0: server.task.new_header()}

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Header]) -> None:
        server.state[server.t] = server.task.new_header()


@dataclass(frozen=True)
class KeepsAGenerator(ServerKeeps):
    """Draws from a generator of its own."""

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        return {"rng": torch.Generator()}

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Header]) -> None:
        torch.rand(1, generator=server.state["rng"])


class WithHiddenTensor(nn.Linear):
    """A layer with a tensor that its state_dict does not know."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.register_buffer("secret", torch.zeros(3), persistent=False)


@dataclass(frozen=True)
class HiddenInAServerModule(Sound):
    """Server state in a non-persistent buffer."""

    def server_start(self, server: Server[Any], registrations: Mapping[ClientId, Any]) -> Any:
        return {"net": [WithHiddenTensor()]}

    def server_send(self, server: Server[Any], to: ClientId) -> Header:
        return Header(weights(server.state["net"][0]))

    def server_update(self, server: Server[Any], ups: Mapping[ClientId, Header]) -> None:
        mean = weighted_mean((server.num_samples[k], up.w) for k, up in ups.items())
        server.state["net"][0].load_state_dict(mean)


class Pair(nn.Module):
    """A network whose forward gives two things."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.header = net, net.header

    def forward(self, x: Tensor) -> Any:
        return self.net.features(x), self.net(x)


@dataclass(frozen=True)
class ForwardGivesAPair(Sound):
    """Cannot be evaluated as every other network."""

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Pair(model)

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.fit(lambda pair, batch, given: cross_entropy(pair.net, batch, given))
        return Header(weights(client.net.header))


@dataclass(frozen=True)
class TouchesTheAbsent(TrainsTheOthers):
    """The server resets the networks of clients that take no part in a round."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return Sound.client_update(self, client, down)

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        for k, net in enumerate(NETS):
            if k not in ups:
                net.header.load_state_dict(server.state.w)


@dataclass(frozen=True)
class ForgetsBatchMean(Sound):
    """A loss that averages padding in."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.fit(self.loss)
        return Header(weights(client.net.header))

    def loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        return F.cross_entropy(net(batch.x), batch.y)


@dataclass(frozen=True)
class LossPastItsNet(Sound):
    """A loss that reads weights of client.net from a closure."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        def loss(net: Any, batch: Batch, given: Any) -> Tensor:
            logits_BC = client.net.header(net.features(batch.x))
            return batch.mean(F.cross_entropy(logits_BC, batch.y, reduction="none"))

        client.fit(loss)
        return Header(weights(client.net.header))


@dataclass(frozen=True)
class Misspells(Sound):
    """Uses a name that there is not."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return Header(wieghts(client.net.header))  # type: ignore[name-defined]  # noqa: F821


@dataclass(frozen=True)
class NeedsClientZero(Sound):
    """Raises an exception in rounds without client 0."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        assert 0 in ups, "no client 0"
        super().server_update(server, ups)


@dataclass(frozen=True)
class SetsItself(Sound):
    """Assigns to itself, which a frozen dataclass refuses."""

    rounds: int = 0
    """Rounds so far."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        self.rounds = 1  # type: ignore[misc]
        return super().client_update(client, down)


@dataclass(frozen=True)
class SendsNaN(Sound):
    """Divides nothing by nothing."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return Header({name: w * 0 / 0 for name, w in weights(client.net.header).items()})


@dataclass(frozen=True)
class TrainsNothing(Sound):
    """Sends the header back as it came."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        return Header(weights(client.net.header))


@dataclass(frozen=True)
class ClimbsTheLoss(Sound):
    """A sign error: trains towards wrong answers."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.fit(climb)
        return Header(weights(client.net.header))


def climb(net: Any, batch: Batch, given: Any) -> Tensor:
    """Minus the loss, bounded below, so that it stays finite."""
    return -batch.mean(F.cross_entropy(net(batch.x), batch.y, reduction="none").clamp(max=20))


@message
class ClassMeans:
    """Mean representations."""

    class_S: Tensor
    mean_SD: Tensor


@dataclass(frozen=True)
class FedGHSlip(Algorithm[Header, ClassMeans, nn.Linear]):
    """FedGH as its released code has it: the server's optimizer owns some other network's parameters."""

    paper: ClassVar[str] = "none"

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
class NeedsTwoClients(Sound):
    """Divides by the number of the others."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        server.state.w["bias"].mul_(1 / (len(server.num_samples) - 1))


@dataclass(frozen=True)
class NeedsTwoSamples(Sound):
    """Sends a sample standard deviation, which one sample does not have."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        up = super().client_update(client, down)
        spread_D = torch.from_numpy(np.asarray(client.outputs(client.net.features))).std(0, correction=0)
        count = len(client.data)
        up.w["bias"].mul_(1 + 0 * spread_D.sum() * count / (count - 1) if count > 1 else float("nan"))
        return up


@dataclass(frozen=True)
class NeedsEveryClass(FedGHSlip):
    """Averages means per class, 0 / 0 where no client has the class."""

    def server_update(self, server: Server[nn.Linear], ups: Mapping[ClientId, ClassMeans]) -> None:
        sum_CD, count_C = torch.zeros(4, 8), torch.zeros(4)
        for up in ups.values():
            sum_CD.index_add_(0, up.class_S, up.mean_SD)
            count_C.index_add_(0, up.class_S, torch.ones(len(up.class_S)))
        with torch.no_grad():
            server.state.weight.copy_(sum_CD / count_C[:, None])


# -- slips after which a hook or a field is silently none ----------------------------------------------


@dataclass(frozen=True)
class TypoInAHook(Sound):
    """A letter short."""

    def server_updat(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)


@dataclass(frozen=True)
class AHookOfAnotherLibrary(Sound):
    """Named as hooks are, but not one of them."""

    def server_aggregate(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)


@dataclass(frozen=True)
class AHookWithAnUnderscore(Sound):
    """Made private, so that the engine never calls it."""

    def _client_receive(self, client: Client, down: Header) -> None:
        super().client_receive(client, down)


@dataclass(frozen=True)
class ForgetsToReturn(Sound):
    """Makes a message and does not hand it over."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        super().client_update(client, down)


@dataclass(frozen=True)
class ForgetsToReturnTheFirstState(Sound):
    """Puts the state where it belongs, and then None over it."""

    def server_start(self, server: Server[Header], registrations: Mapping[ClientId, Any]) -> Any:
        server.state = super().server_start(server, registrations)


@dataclass(frozen=True)
class ForgetsToReturnSometimes(Sound):
    """As ForgetsToReturnTheFirstState, where only running shows it."""

    def server_start(self, server: Server[Header], registrations: Mapping[ClientId, Any]) -> Any:
        server.state = super().server_start(server, registrations)
        return registrations or None


@dataclass(frozen=True)
class FieldWithoutAnnotation(Sound):
    """Looks like a field, and no scenario can set it."""

    gamma = 0.5


@dataclass(frozen=True)
class FieldKeepsItsOldDefault(UnequalCopy):
    """Means to give an inherited field another default."""

    thing = "else"


@dataclass(frozen=True)
class TypoInAnAttribute(Sound):
    """Means `one_architecture`."""

    one_architectur = True


@dataclass(frozen=True)
class TypoInADeclaredAttribute(Sound):
    """Means `scheduled`."""

    schedulled: ClassVar[bool] = True


@dataclass(frozen=True)
class StaticByAMethod(Sound):
    """Says that its downlink is not static, by a method, which is always true."""

    def static_downlink(self) -> bool:  # type: ignore[override]
        return False


@dataclass(frozen=True)
class AsyncHook(Sound):
    """A coroutine that is never awaited."""

    async def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:  # type: ignore[override]
        super().server_update(server, ups)


@dataclass(frozen=True)
class GeneratorHook(Sound):
    """A generator whose values are never taken."""

    def client_receive(self, client: Client, down: Header) -> Any:
        for name, value in down.w.items():
            yield client.net.header.get_parameter(name).data.copy_(value)


@dataclass(frozen=True)
class ClassmethodHook(Sound):
    """Sees the field's default, whatever a scenario says."""

    factor: float = 1.0
    """What the upload is multiplied by."""

    @classmethod
    def client_update(cls, client: Client, down: Header | None) -> Any:  # type: ignore[override]
        client.fit(cross_entropy)
        return Header({name: cls.factor * value for name, value in weights(client.net.header).items()})


@dataclass(frozen=True)
class PropertyHook(Sound):
    """A hook that cannot be called."""

    @property
    def client_receive(self) -> Any:
        return Sound.client_receive


@dataclass(frozen=True)
class TooFewArguments(Sound):
    """Forgets who the message is for."""

    def server_send(self, server: Server[Header]) -> Header:  # type: ignore[override]
        return server.state


@dataclass(frozen=True)
class ArgumentsSwapped(Sound):
    """Takes the message for the client."""

    def client_receive(self, down: Header, client: Client) -> None:  # type: ignore[override]
        super().client_receive(client, down)


@dataclass(frozen=True)
class ReceivesWhatNobodySends(Algorithm[Header, None, None]):
    """Without server_send its client_receive is never called."""

    paper: ClassVar[str] = "none"

    def client_receive(self, client: Client, down: Header) -> None:
        client.net.header.load_state_dict(down.w)

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.fit(cross_entropy)


@dataclass(frozen=True)
class JoinsUnheard(Algorithm[None, None, None]):
    """Clients say something before round 1, and there is no server_start to hear it."""

    paper: ClassVar[str] = "none"

    def client_register(self, client: Client) -> Header:
        return Header(weights(client.net.header))

    def client_update(self, client: Client, down: None) -> Any:
        client.fit(cross_entropy)


@dataclass(frozen=True)
class UnreadField(Sound):
    """A setting that sets nothing."""

    unheeded: float = 0.5
    """How much."""


@dataclass(frozen=True)
class LossNeverFitted(Sound):
    """A setting of a loss that local training does not get."""

    mu: float = 0.5
    """Weight of the second term."""

    def loss(self, net: Any, batch: Batch, given: Any) -> Tensor:
        """Cross-entropy and a second term."""
        return cross_entropy(net, batch, given) + self.mu * batch.mean(net.features(batch.x).square().sum(1))


@dataclass(frozen=True)
class ReadByItsCheckAlone(Sound):
    """A setting that is refused, and otherwise unused."""

    mu: float = 0.5
    """Weight of a second term."""

    def check(self, task: Task) -> None:
        if self.mu > 10:
            raise ValueError(f"mu: {self.mu} given; allowed: at most 10")


@dataclass(frozen=True)
class InheritsAnUnreadField(ClassmethodHook):
    """Replaces the only hook that reads an inherited field."""

    def client_update(self, client: Client, down: Header | None) -> Any:  # type: ignore[override]
        return Sound.client_update(self, client, down)


@dataclass(frozen=True)
class FixesAnInheritedField(InheritsAnUnreadField):
    """Does what the clause says of such a field."""

    factor: ClassVar[float] = 1.0  # type: ignore[misc]


@dataclass(frozen=True)
class ReadsInOneMode(Sound):
    """Reads one field in one mode alone, late, and fails in the other."""

    mode: Literal["plain", "broken", "scaled"] = "plain"
    """How the mean is used."""
    scale: float = 0.9
    """What the mean is multiplied by, from round 6 on."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        assert self.mode != "broken"
        if self.mode == "scaled" and server.t > 5:
            server.state.w["bias"].mul_(self.scale)


@dataclass(frozen=True)
class ReturnsTheState(Sound):
    """Returns the new state instead of assigning it."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> Any:
        return Header(weighted_mean((server.num_samples[k], up.w) for k, up in ups.items()))


@dataclass(frozen=True)
class UploadsFromReceive(Sound):
    """Trains and uploads in a hook whose return value is ignored."""

    def client_receive(self, client: Client, down: Header) -> Any:
        super().client_receive(client, down)
        return super().client_update(client, down)


@dataclass(frozen=True)
class AnotherNet(Sound):
    """Trains a copy of its network, which the engine does not know."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.net = copy.deepcopy(client.net)
        return super().client_update(client, down)


@dataclass(frozen=True)
class UploadsWhatItWas(Sound):
    """Uploads the header of a fresh model, not the trained one."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        super().client_update(client, down)
        return Header(weights(client.task.model(client.arch).header))

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super().server_update(server, ups)
        server.state.w["bias"].add_(server.t)


@dataclass(frozen=True)
class UploadsNever(Sound):
    """Returns a message on no branch that is taken."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        up = super().client_update(client, down)
        return up if client.t < 0 else None


@dataclass(frozen=True)
class SendsNever(Sound):
    """Waits for what never is."""

    def server_send(self, server: Server[Header], to: ClientId) -> Any:
        return server.state if server.t < 0 else None


@dataclass(frozen=True)
class UploadsToNobody(Algorithm[None, Header, None]):
    """Has no server_update."""

    paper: ClassVar[str] = "none"

    def client_update(self, client: Client, down: None) -> Header:
        client.fit(cross_entropy)
        return Header(weights(client.net.header))


@dataclass(frozen=True)
class NeverReceives(Sound):
    """The header arrives and lies there."""

    def client_receive(self, client: Client, down: Header) -> None:
        pass


@dataclass(frozen=True)
class AveragesIntoNothing(Sound):
    """Averages into a variable of its own; what it sends moves all the same."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        state = Header(weighted_mean((server.num_samples[k], up.w) for k, up in ups.items()))
        server.state.w["bias"].add_(0 * state.w["bias"] + server.t)


# -- and some that are right, however they look ----------------------------------------------------------


@dataclass(frozen=True)
class InPlace(Sound):
    """Keeps one header and changes it in place; what it sends is what it keeps."""

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        super_state = server.state
        super().server_update(server, ups)
        for name, value in server.state.w.items():
            super_state.w[name].copy_(value)
        server.state = super_state


@dataclass(frozen=True)
class LiveUpload(Sound):
    """Uploads its network's own tensors, which training changes in place; the dictionary is torch's."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.fit(cross_entropy)
        return Header(client.net.header.state_dict())


@dataclass(frozen=True)
class HelpersOfManyNames(Sound):
    """Helpers, constants and attributes that only look like slips."""

    LEVELS = ("one", "two")
    State = dict[str, Tensor]
    tolerance: ClassVar[float] = 1e-3
    server_rate: float = 1.0
    """How far the server goes."""

    @property
    def server_pace(self) -> float:
        """Half of it, and half of it again."""
        return self.server_rate

    @staticmethod
    def server_send(server: Server[Header], to: ClientId) -> Header:  # type: ignore[override]
        return server.state

    def client_register(self, client: Client) -> None:
        """Nothing to say, on purpose."""
        return None  # noqa: RET501

    @torch.no_grad()
    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        self.server_updates(server, ups)

    def server_updates(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        """What server_update does."""
        mean = weighted_mean((server.num_samples[k], up.w) for k, up in ups.items())
        server.state = Header({name: self.server_pace * value for name, value in mean.items()})


def fresh_globals() -> Iterator[None]:
    """Empty the globals that some of these leave behind."""
    for kept in (NETS, StateOnClass.seen, LAST, ROUNDS_OF):
        kept.clear()  # type: ignore[attr-defined]
    yield


@dataclass(frozen=True)
class Declares(Sound):
    """Says what its upload exposes."""

    def exposed(self, client: Client, up: Header) -> Any:
        return UpdateOf(client.net.header, up.w)


@dataclass(frozen=True)
class DeclaresTheChange(Sound):
    """Tells how parameters changed, not what they are."""

    def exposed(self, client: Client, up: Header) -> Any:
        old = client.net.header.state_dict()
        return UpdateOf(client.net.header, {name: w - old[name] for name, w in up.w.items()})


@dataclass(frozen=True)
class DeclaresAnotherPart(Sound):
    """Names the whole network, of which it sends the header."""

    def exposed(self, client: Client, up: Header) -> Any:
        return UpdateOf(client.net, up.w)


@dataclass(frozen=True)
class DeclaresACopy(Sound):
    """Names a module that is no part of the client's network."""

    def exposed(self, client: Client, up: Header) -> Any:
        return UpdateOf(copy.deepcopy(client.net.header), up.w)


@dataclass(frozen=True)
class DeclaresAnotherOutput(Sound):
    """Says that the first row of its header is the sample's representation."""

    def exposed(self, client: Client, up: Header) -> Any:
        return OutputOf(client.net.features, up.w["weight"][0])


@dataclass(frozen=True)
class DeclaresAText(Sound):
    """Says in words what it exposes."""

    def exposed(self, client: Client, up: Header) -> Any:
        return "the header"


@dataclass(frozen=True)
class FixesTheType(Sound):
    """Its loss has weights in float32, whatever the type of the network."""

    def client_update(self, client: Client, down: Header | None) -> Any:
        client.fit(weighted)
        return Header(weights(client.net.header))


def weighted(net: Any, batch: Batch, given: Any) -> Tensor:
    logits_BC = net(batch.x)
    weight_C = torch.ones(logits_BC.shape[1], dtype=torch.float32)
    return batch.mean(F.cross_entropy(logits_BC, batch.y, weight_C, reduction="none"))


@dataclass(frozen=True)
class DeclaresNothing(Sound):
    """Says of every parameter that it is not sent."""

    def exposed(self, client: Client, up: Header) -> Any:
        return UpdateOf(client.net.header, {name: torch.full_like(w, torch.nan) for name, w in up.w.items()})
