"""The toy task in which the contract runs algorithms: C = 4 classes, D = 8, images of 4 x 4 pixels, a few clients.

`Toy(algorithm, clause)` runs an algorithm on one CPU, with the seeds and the order of the engine. Clauses read its
networks, server and messages, or watch every hook; tests of algorithms use it too.

Shapes: N samples of one client, B batch, C classes, D representation width, H x W pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import FrozenInstanceError
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.contract.compare import fingerprint
from raysim.core.algorithm import AnyAlgorithm, Client, ClientId, Server, Task, overrides, pixels
from raysim.core.data import Augmentation, Samples
from raysim.core.fit import LocalTraining, Trainer, fit_one
from raysim.core.messages import DECLARE, is_message, pack, unpack
from raysim.core.meter import FlopMeter, flops_of
from raysim.core.seeds import seed_for, seeded
from raysim.core.state import Form, check_savable, check_shared, digest, drop_gradients, forms_in, state_tensors
from raysim.core.torch_workarounds import count_hooks
from raysim.grouped.lockstep import in_lockstep
from raysim.grouped.together import fit_all

SEED, C, D, SIDE, ROUNDS = 7, 4, 8, 4, 8
LOCAL = LocalTraining(epochs=1, batch_size=6, lr=0.1, momentum=0.5)

Labels = Sequence[Sequence[int]]
FOUR: Labels = ([0, 1] * 8, [1, 2] * 6 + [1], [2, 3] * 7, [3, 0, 1] * 4)
"""Four clients of different sizes; the last batch of the second client holds a single sample."""
PUBLIC = [0, 1, 2, 3] * 3
"""Labels of the public data, which all clients and the server have."""
PAIRS: Labels = ([0, 1] * 6, [1, 2] * 6, [2, 3] * 6, [3, 0, 1] * 4, [0, 2] * 6, [1, 3, 2] * 4)
"""Six clients of one size, so that there are two of each of three architectures."""
UNEVEN: Labels = ([0, 1] * 8, [1, 2] * 6 + [1], [2, 3] * 7, [3, 0, 1] * 3, [0, 2] * 3, [1])
"""Six clients of different sizes, two of each of three architectures."""
GAP: Labels = ([0, 1] * 4, [1, 0] * 3, [2] * 5)
"""No client holds class 3, and the last client alone holds class 2."""


class ContractError(AssertionError):
    """An algorithm breaks a clause; the message names the clause, the problem and the remedy."""

    def __init__(self, algorithm: AnyAlgorithm, clause: str, problem: str, remedy: str) -> None:
        super().__init__(f"{type(algorithm).__name__} breaks the clause {clause!r}: {problem}; {remedy}")
        self.clause = clause


class ToyTransform:
    """Scaling of pixels to [0, 1]; augmentation adds a little noise, so that draws from `rng` change the result."""

    draws = True

    def plain(self, raw_BHWC: Tensor) -> Tensor:
        """Return images [B, 1, H, W] in [0, 1]."""
        return raw_BHWC.permute(0, 3, 1, 2).to(torch.get_default_dtype()) / 255

    def augmentations(self, sizes: Sequence[int], like: Tensor, rng: torch.Generator) -> Sequence[Augmentation]:
        """Return functions that give the images of `plain` with noise."""
        pixels = like.permute(0, 3, 1, 2).shape[1:]
        return [partial(self._noisy, noise=torch.randn(size, *pixels, generator=rng)) for size in sizes]

    def _noisy(self, raw_BHWC: Tensor, noise: Tensor) -> Tensor:
        return self.plain(raw_BHWC) + 0.02 * noise


STAGED = ("short", "long")
FAMILIES = (("flat", "norm", "deep"), ("norm", "wide", "thin"), STAGED)
"""Families of client architectures: three different ones, one in three widths, and two with two stages each."""


class ToyNet(nn.Module):
    """A tiny network; architectures `norm`, `wide`, `thin` and `broad` have a convolution and BatchNorm."""

    def __init__(self, name: str, feature_dim: int = D) -> None:
        super().__init__()
        pixels, width = SIDE * SIDE, feature_dim

        def convolved(channels: int) -> list[nn.Module]:
            return [
                nn.Conv2d(1, channels, 3),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(4 * channels, width),
            ]

        def staged(*rest: nn.Module) -> list[nn.Module]:
            return [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), *rest]

        layers: Mapping[str, Callable[[], list[nn.Module]]] = {
            "flat": lambda: [nn.Flatten(), nn.Linear(pixels, width)],
            "deep": lambda: [nn.Flatten(), nn.Linear(pixels, 12), nn.ReLU(), nn.Linear(12, width)],
            "norm": lambda: convolved(3),
            "wide": lambda: convolved(5),
            "thin": lambda: convolved(2),
            "broad": lambda: convolved(6),
            "short": lambda: staged(nn.Linear(12, width)),
            "long": lambda: staged(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, width)),
        }
        self.extractor = nn.Sequential(*layers[name](), nn.ReLU())
        self.header = nn.Linear(width, C)
        self.stages: tuple[nn.Module, ...] = (self.extractor,)
        if name in STAGED:
            self.stages = (self.extractor[:2], self.extractor[2:])

    def features(self, x: Tensor) -> Tensor:
        """Return the representation [B, D]."""
        return self.extractor(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        return self.header(self.features(x))


@contextmanager
def toy_seed(purpose: str, *key: int | str) -> Iterator[None]:
    """Seed torch's global CPU generator for a block, then restore it; replaces `global_seed` without a GPU.

    `torch.manual_seed` also queues the seeding of absent devices, with a stack trace: half a millisecond, longer than
    most hooks take here.
    """
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed_for(SEED, purpose, *key))
    try:
        yield
    finally:
        torch.set_rng_state(before)


def toy_model(name: str, *key: str, feature_dim: int = D) -> ToyNet:
    """Return a fresh network with the initial weights of its architecture (and of `key`, a purpose)."""
    with toy_seed("init", name, *key):
        return ToyNet(name, feature_dim)


def toy_encoder(name: str) -> Callable[[Tensor], Tensor]:
    """Return the encoder `pixels` for any name."""
    return pixels


def toy_samples(labels: Sequence[int], k: ClientId) -> Samples:
    """Return images of noise with one bright quarter, which determines the class."""
    rng = seeded(SEED, "toy", k)
    raw_N = torch.randint(0, 90, (len(labels), SIDE, SIDE, 1), generator=rng, dtype=torch.uint8)
    half = SIDE // 2
    for i, label in enumerate(labels):
        top, left = half * (label // 2), half * (label % 2)
        raw_N[i, top : top + half, left : left + half] += 150
    return Samples(raw_N, torch.tensor(labels), ToyTransform())


def _attributes(net: nn.Module) -> set[str]:
    """Return the names of all attributes of a network and its modules, besides parameters, buffers and modules."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, module in net.named_modules()
        for name in vars(module)
        if not isinstance(getattr(type(module), name, None), cached_property)
    }


Watch = Callable[["Toy", str, ClientId | None, Any], AbstractContextManager[None]]
"""(toy, hook, client or None for the server, message to the hook) -> context manager around every hook."""

Returned = Callable[["Toy", str, ClientId, Any], None]
"""(toy, hook, client, message): called with every message as the hook returned it."""

SMALL = ("one_client", "single_samples", "class_gap")
"""Clauses that are broken if a hook raises an exception; in the tasks of all other clauses, it breaks `runs`."""

DROPPED = {
    "client_receive": "return uploads from client_update",
    "server_update": "assign the new state to server.state",
}
"""Hooks with an ignored return value -> the remedy."""


class Toy:
    """A run of an algorithm in the toy task, with the seeds and the order of the engine."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        clause: str,
        labels: Labels = FOUR,
        watch: Watch | None = None,
        trainer: Trainer = fit_one,
        meter: FlopMeter | None = None,
        returned: Returned | None = None,
    ) -> None:
        self.algorithm, self.clause, self.trainer = algorithm, clause, trainer
        self._choose_architectures(len(labels))
        self.samples = {k: toy_samples(y, k) for k, y in enumerate(labels)}
        self.meter = meter
        self.watch: Watch = watch or (lambda toy, name, client, msg: nullcontext())
        self.returned: Returned = returned or (lambda toy, name, client, msg: None)
        self.cohort: list[ClientId] = []  # participants of the current round
        self.clients_only = False  # whether rounds end before `server_update`
        self.tamper: Callable[[str, Any], Any] = lambda name, msg: msg  # changes the messages to a hook
        self.sent: list[tuple[str, ClientId, Any]] = []  # copies of all messages as they were sent
        self.server: Server[Any] = Server(
            self.task,
            seeded(SEED, "server_start", 0),
            {k: len(samples) for k, samples in self.samples.items()},
            local=LOCAL,
            classes={k: samples.y.unique() for k, samples in self.samples.items()},
            arch={k: self.architectures[k % len(self.architectures)] for k in self.samples},
        )
        self.forms: Mapping[str, Form] = {}  # of the modules that server.state has before round 1
        self.nets: dict[ClientId, nn.Module] = {}
        for k in self.samples:
            self.nets[k] = self._call("client_model", k, 0, partial(self.fresh_net, k), seed_it=False)

    def _choose_architectures(self, clients: int) -> None:
        """Choose the first family of architectures that the algorithm accepts.

        With `one_architecture` the only candidate is `norm`, which is the hardest to exchange.
        """
        public = toy_samples(PUBLIC, clients)
        refused: ValueError | None = None
        for family in (("norm",),) if self.algorithm.one_architecture else FAMILIES:
            self.architectures = family
            self.task = Task(C, D, family[:clients], toy_model, ROUNDS, toy_encoder, public)
            try:
                self.algorithm.check(self.task)
            except ValueError as error:
                refused = refused or error
            else:
                return
        raise self.broken(
            f"`check` refuses all small tasks that the test tries ({C} classes, feature dimension {D}): {refused}",
            "accept small tasks in `check`",
        ) from refused

    def start(self) -> Toy:
        """Register the clients and create the server's state before round 1."""
        registrations: dict[ClientId, Any] = {}
        if overrides(type(self.algorithm), "client_register"):
            for k in self.samples:
                client = self.client(k, 0)
                registration = self._call("client_register", k, 0, partial(self.algorithm.client_register, client))
                self._check_net(client)
                packed = self._packed("client_register", k, registration)
                registrations[k] = unpack(packed)
                self.sent.append(("client_register", k, unpack(packed)))
        start = partial(self.algorithm.server_start, self.server, registrations)
        state = self._call("server_start", None, 0, start)
        if state is None and self.server.state is not None:
            raise self.broken(
                "server_start assigns server.state but returns None, which replaces the assigned state",
                "return the state",
            )
        self.server.state = state
        self.forms = forms_in(state)
        self._check_state()
        return self

    def round(
        self, t: int, cohort: Sequence[ClientId] | None = None, reverse: bool = False, together: bool = False
    ) -> Toy:
        """Run one round. The server gets the uploads in client-id order in any case.

        reverse: run the clients in the opposite order. together: train clients of one architecture by one call.
        """
        algorithm, cohort = self.algorithm, list(self.samples if cohort is None else cohort)
        self.cohort = cohort
        self._begin("server_send", t)
        outgoing = {
            k: self._call("server_send", None, t, partial(algorithm.server_send, self.server, k)) for k in cohort
        }
        # Clients that get the same message share one copy of it, as in a worker of the engine.
        arrived: dict[int, Any] = {id(None): None}
        kept: dict[int, Any] = {id(None): None}
        for k, msg in outgoing.items():
            if id(msg) not in arrived:
                packed_once = self._packed("server_send", k, msg)
                arrived[id(msg)] = self.tamper("server_send", unpack(packed_once))
                kept[id(msg)] = unpack(packed_once)
            self.sent.append(("server_send", k, kept[id(msg)]))
        packed: dict[ClientId, Any] = {}
        order = list(reversed(cohort)) if reverse else cohort
        client_rounds = {k: partial(self._client_round, k, t, arrived[id(outgoing[k])], packed) for k in order}
        if together:
            for i in range(len(self.architectures)):
                in_lockstep([client_rounds[k] for k in order if k % len(self.architectures) == i], fit_all)
        else:
            for run in client_rounds.values():
                run()
        if self.clients_only:
            return self
        self._begin("server_update", t)
        ups = {k: self.tamper("client_update", unpack(packed[k])) for k in sorted(packed) if packed[k] is not None}
        if ups:
            update = partial(algorithm.server_update, self.server, ups)
            # The engine counts operations of this hook; some ways to compute gradients fail during counting.
            self._call("server_update", None, t, partial(flops_of, update) if self.meter else update, ups)
            self._check_state()
        return self

    def _check_state(self) -> None:
        """Drop the gradients of `server.state`, as the engine does; raise `ContractError` if it cannot be saved."""
        drop_gradients(self.server.state)
        try:
            state_tensors(self.server.state)
            check_savable(self.server.state, self.forms)
            check_shared(self.server.state)
        except TypeError as error:
            problem, _, remedy = str(error).rpartition("; ")
            problem = f"server.state cannot be saved: {problem}"
            raise ContractError(self.algorithm, "server_state_visible", problem, remedy) from None

    def _client_round(self, k: ClientId, t: int, down: Any, packed: dict[ClientId, Any]) -> None:
        """Run a client's part of a round and put its upload into `packed`."""
        client = self.client(k, t)
        attributes, hooks = _attributes(self.nets[k]), count_hooks(self.nets[k].modules())
        if down is not None:
            self._call("client_receive", k, t, partial(self.algorithm.client_receive, client, down), down)
        up = self._call("client_update", k, t, partial(self.algorithm.client_update, client, down), down)
        packed[k] = self._packed("client_update", k, up)
        self.sent.append(("client_update", k, unpack(packed[k])))
        self._check_net(client)
        if added := sorted(_attributes(client.net) - attributes):
            raise self.broken(
                f"the network of client {k} has the new attribute {added[0]}, but raysim keeps only parameters and "
                "buffers, and clients of one architecture share the network object",
                "create the attribute in client_model, and keep values that change in a buffer",
            )
        if count_hooks(client.net.modules()) > hooks:
            raise self.broken(
                f"a torch hook, such as a forward hook, remains on the network of client {k}, but clients of one "
                "architecture share the network object",
                "call remove() of the handle that torch returned before the method's hook ends",
            )

    def _check_net(self, client: Client) -> None:
        """Raise `ContractError` if a hook assigned a new network to the client."""
        if client.net is not self.nets[client.id]:
            raise self.broken(
                f"a hook of client {client.id} assigns a new network to client.net, but raysim ignores this assignment",
                "change the weights of client.net in place, for example with load_state_dict",
            )

    def run(self, rounds: int, reverse: bool = False) -> Toy:
        """Start, then run `rounds` rounds with all clients."""
        self.start()
        for t in range(1, rounds + 1):
            self.round(t, reverse=reverse)
        return self

    def client(self, k: ClientId, t: int) -> Client:
        """Return client `k` as a hook of round `t` gets it."""
        return Client(
            id=k,
            task=self.task,
            data=self.samples[k],
            net=self.nets[k],
            local=LOCAL,
            rng=seeded(SEED, "client", t, k),
            t=t,
            arch=self.architectures[k % len(self.architectures)],
            meter=self.meter,
            trainer=self.trainer,
        )

    def exposed(self, client: Client, up: Any) -> Any:
        """Return what the algorithm declares about an upload."""
        return self._call("exposed", client.id, client.t, partial(self.algorithm.exposed, client, up), up)

    def fresh_net(self, k: ClientId) -> nn.Module:
        """Return a client's network before round 1."""
        arch = self.architectures[k % len(self.architectures)]
        model = toy_model(arch)
        with toy_seed("client_model", arch):
            return self.algorithm.client_model(model, self.task)

    def states(self) -> dict[str, str]:
        """Return a digest of every client's state, of its data and of the server's state."""
        digests = {f"the state of client {k}": fingerprint(net) for k, net in self.nets.items()}
        digests |= {f"the data of client {k}": digest([s.raw_N, s.y]) for k, s in self.samples.items()}
        return digests | {"server.state": fingerprint(self.server.state)}

    @torch.no_grad()
    def score(self) -> tuple[float, float]:
        """Return (mean loss, accuracy) over all clients' samples."""
        losses, hits = [], []
        for k, samples in self.samples.items():
            logits_NC = self.nets[k].eval()(samples.x)
            losses.append(F.cross_entropy(logits_NC, samples.y, reduction="none"))
            hits.append((logits_NC.argmax(1) == samples.y).float())
        return float(torch.cat(losses).mean()), float(torch.cat(hits).mean())

    def broken(self, problem: str, remedy: str) -> ContractError:
        """Return the error for this run's clause."""
        return ContractError(self.algorithm, self.clause, problem, remedy)

    def fork(self) -> Toy:
        """Return an independent copy of this run."""
        other = copy.copy(self)
        other.nets, other.server, other.sent = copy.deepcopy(self.nets), copy.copy(self.server), []
        other.server.state = copy.deepcopy(self.server.state)
        return other

    def _packed(self, name: str, k: ClientId, msg: Any) -> Any:
        """Return a hook's message as bytes, which later changes by the hook cannot affect."""
        if not is_message(msg):
            raise self.broken(f"the return value of {name} for client {k} has the type {type(msg).__name__}", DECLARE)
        self.returned(self, name, k, msg)
        try:
            return pack(msg)
        except Exception as error:
            problem = f"the return value of {name} for client {k} cannot be sent ({error})"
            raise self.broken(problem, "send plain dense tensors and numbers") from error

    def _begin(self, purpose: str, t: int) -> None:
        self.server.t, self.server.values = t, {}
        self.server.rng = seeded(SEED, purpose, t)

    def _call(
        self, name: str, client: ClientId | None, t: int, work: Callable[[], Any], msg: Any = None, seed_it: bool = True
    ) -> Any:
        seed = toy_seed(name, t, -1 if client is None else client) if seed_it else nullcontext()
        with self.watch(self, name, client, msg):
            try:
                with seed:
                    returned = work()
                if returned is not None and name in DROPPED and not self.meter:
                    raise self.broken(
                        f"{name} returns a value of type {type(returned).__name__}, which raysim ignores", DROPPED[name]
                    )
                return returned
            except ContractError:
                raise
            except FrozenInstanceError as error:
                raise ContractError(
                    self.algorithm,
                    "frozen",
                    f"{name} changes a frozen object, such as the algorithm or a message ({error})",
                    "keep state in client.net or server.state, and create a new message instead of changing one",
                ) from error
            except Exception as error:
                place = name + (f" of client {client}" if client is not None else "")
                raise ContractError(
                    self.algorithm,
                    self.clause if self.clause in SMALL else "runs",
                    f"{place} raises {type(error).__name__} in round {t} ({error}){self._who()}",
                    "make the hook work on small tasks with any participants",
                ) from error

    def _who(self) -> str:
        """Return the participants of the round, for an error; "" if all clients take part."""
        if not self.cohort or len(self.cohort) == len(self.samples):
            return ""
        return f" with {len(self.cohort)} of {len(self.samples)} clients: {', '.join(map(str, self.cohort))}"
