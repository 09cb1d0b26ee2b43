"""The server of a run: it keeps the algorithm's state, sends messages, and aggregates uploads in client-id order."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysim.common.errors import RunError
from raysim.core.algorithm import Algorithm, ClientId, Server, overrides
from raysim.core.fit import LocalTraining
from raysim.core.messages import leaves, nonfinite, pack, unpack, wire_size
from raysim.core.meter import flops_of
from raysim.core.private import PrivateMean
from raysim.core.seeds import seeded
from raysim.core.state import (
    Form,
    Serialized,
    check_classes,
    check_savable,
    check_shared,
    deserialize,
    digest,
    drop_gradients,
    forms_in,
    modules_of,
    serialize,
    state_tensors,
)
from raysim.engine.checkpoint.format import read_server, server_file
from raysim.engine.plan import Plan
from raysim.engine.records import Broadcast, CheckpointFile, ClientFailure, NonFiniteUpload, ServerReport
from raysim.engine.stages import Uploads
from raysim.engine.workers.hooks import ChangedMessageError, Unchanged, errors_from, hook


class Arrived(NamedTuple):
    """An upload with the message that its client had received."""

    up: Any
    down: Any  # None: the client received no message
    t: int  # the round in which the client received it


@dataclass
class Inbox:
    """Uploads of an asynchronous run that wait for a round, and the messages that their clients received."""

    ups: dict[ClientId, tuple[int, int | None, Any]] = field(default_factory=dict)
    """Client -> (round t, position of the client's message in `downs[t]`, upload)."""
    downs: dict[int, list[Any]] = field(default_factory=dict)

    def add(self, t: int, ups: Mapping[ClientId, Any], broadcast: Broadcast) -> None:
        """Add the uploads of clients that trained in round `t`."""
        self.ups |= {k: (t, broadcast.of.get(k), up) for k, up in ups.items()}
        self.downs[t] = list(unpack(broadcast.messages))

    def take(self, held: Collection[ClientId]) -> dict[ClientId, Arrived]:
        """Remove and return all uploads, in client-id order, except those of the clients in `held`."""
        taken = {k: self.ups.pop(k) for k in sorted(self.ups) if k not in held}
        arrived = {
            k: Arrived(up, None if position is None else self.downs[t][position], t)
            for k, (t, position, up) in taken.items()
        }
        needed = {t for t, _, _ in self.ups.values()}
        self.downs = {t: messages for t, messages in self.downs.items() if t in needed}
        return arrived

    def state(self) -> dict[str, Any]:
        """Return the content for checkpoints and digests; `Inbox(**state)` restores it."""
        return {"ups": dict(self.ups), "downs": dict(self.downs)}


@dataclass
class ServerWorker:
    """The server of a run, as a plain class, from which the Ray backend creates an actor."""

    plan: Plan
    server: Server[Any] = field(init=False)
    _flops: dict[str, int] = field(default_factory=dict)  # SHA-256 of the uploads' shapes -> operations
    _send_s: float = 0.0
    _sent: Broadcast = Broadcast((), {})  # messages of this round, for stages
    _inbox: Inbox = field(default_factory=Inbox)  # in an asynchronous run: uploads for later rounds
    _forms: Mapping[str, Form] = field(default_factory=dict)  # forms of the modules in the state before round 1

    def __post_init__(self) -> None:
        plan = self.plan
        rng = seeded(plan.seed, "server_start", 0)
        arch = {k: plan.arch(k) for k in plan.num_samples}
        task = plan.task if plan.initial is None else plan.initial.server_task(plan.task)
        local, robust = plan.local_in(0), plan.robust
        self.server = Server(task, rng, plan.num_samples, local=local, classes=plan.classes, arch=arch, robust=robust)

    def start(self, registrations: Sequence[Mapping[ClientId, Any]] = ()) -> None:
        """Create the state before round 1. registrations: client -> packed message, in parts."""
        torch.set_num_threads(1)
        packed = {k: registration for part in registrations for k, registration in part.items()}
        unpacked = {k: unpack(packed[k]) for k in sorted(packed)}
        with self._hook("server_start", 0):
            self.server.state = self.plan.algorithm.server_start(self.server, unpacked)
            self._forms = forms_in(self.server.state)
            self._check_names()
            self._check_state()
        if self.plan.initial is not None and self.plan.initial.server is not None:
            self.server.state = self._loaded(self.plan.initial.server, self.server.state)

    def send(self, t: int, cohort: Iterable[ClientId]) -> Broadcast:
        """Return the message to each participant. A message object for several participants is packed once."""
        start = perf_counter()
        self._begin("server_send", t)
        self.server.values = {}  # `update` reports the values that both hooks of a round log
        broadcast = self._sent = self._messages(t, self.server, cohort)
        self._send_s = perf_counter() - start
        return broadcast

    def current(self, t: int) -> Broadcast:
        """Return the messages that `send` would return for all clients in round `t`, without changing anything.

        `server_send` may change the state, so the hook gets a copy: the state that a resumed run would have. Clients
        without training samples never take part and get no message. No client does if the method ignores messages
        until it trains.
        """
        plan, of = self.plan, dict[ClientId, int | None].fromkeys(range(self.plan.num_clients))
        new = [k for k in sorted(plan.held_out) if plan.num_samples[k]]
        if receives(plan.algorithm):
            receivers = sorted([*plan.eligible, *new])
        elif plan.fine_tune:  # held-out clients need the message for `client_update`
            receivers = new
        else:
            return Broadcast((), of)
        # The settings are those of the previous round, because no round follows the last one.
        broadcast = self._would_send(t, receivers, plan.local_in(t - 1))
        return replace(broadcast, of=of | dict(broadcast.of))

    def _would_send(self, t: int, receivers: Iterable[ClientId], local: LocalTraining) -> Broadcast:
        """Return the messages of round `t`, computed with a copy of the state."""
        torch.set_num_threads(1)
        with self._visible():
            copied = serialize(self.server.state)
        state = deserialize(copied, self.server.state, modules_of(self.plan.algorithm))
        rng = seeded(self.plan.seed, "server_send", t)
        return self._messages(t, replace(self.server, state=state, t=t, local=local, rng=rng, values={}), receivers)

    def _messages(self, t: int, server: Server[Any], cohort: Iterable[ClientId]) -> Broadcast:
        """Call `server_send` for each client of the cohort and pack the messages."""
        messages: list[Any] = []
        position: dict[int, int] = {}
        of: dict[ClientId, int | None] = {}
        for k in cohort:
            with self._hook("server_send", t):
                down = self.plan.algorithm.server_send(server, k)
                if id(down) not in position:
                    wire_size(down)  # raises if it is no message; `ClientTrainer` counts its bytes
            if down is None:
                of[k] = None
                continue
            if id(down) not in position:
                position[id(down)] = len(messages)
                messages.append(down)
            of[k] = position[id(down)]
        with self._hook("server_send", t):  # Packing refuses sparse tensors and tensors without memory.
            # Messages are packed together, so that a tensor in several messages is stored once.
            return Broadcast(tuple(pack(messages)), of)

    def update(
        self, t: int, uploads: Sequence[Mapping[ClientId, Any]], late: Collection[ClientId] = ()
    ) -> ServerReport:
        """Update the state from the uploads of a round, except those of clients in `late`.

        In an asynchronous run, their uploads are kept, and uploads of earlier rounds count now.
        """
        start = perf_counter()
        self._begin("server_update", t)
        ups, rejected = self._counting(t, uploads, late)
        flops = 0
        if ups or self.server.private is not None:
            # Operations are counted once per set of upload shapes, because counting slows small operations.
            shapes = [tuple(leaf.shape) for leaf in leaves(ups) if isinstance(leaf, Tensor)]
            key = hashlib.sha256(repr(shapes).encode()).hexdigest()
            guard = Unchanged(dict(ups))  # a copy is checked, because the hook may remove uploads from its mapping
            with self._hook("server_update", t):
                if key in self._flops:
                    self._update(ups)
                else:
                    self._flops[key] = flops_of(lambda: self._update(ups))
                    self._check_names()  # the check takes long, so it is not repeated in every round
                self._check_state()
            if not guard.holds():
                raise ChangedMessageError(
                    f"{type(self.plan.algorithm).__name__}: server_update changed an upload in place in round {t}; "
                    "sum into a new tensor, such as a clone"
                )
            flops = self._flops[key]
        seconds = perf_counter() - start + self._send_s
        return ServerReport(dict(self.server.values), float(flops), seconds, tuple(rejected))

    def save(self, t: int) -> tuple[CheckpointFile, bytes]:
        """Return the file with the state after round `t`. The caller writes it."""
        with self._visible():
            serialized = serialize(self._whole_state())
        return server_file(t, serialized, {"flops": self._flops, "inbox": bool(self._inbox.ups)})

    def restore(self, data: bytes) -> None:
        """Load a file of `save`; first call `start`, which creates the modules. Raises `RunError` if they differ."""
        serialized, facts = read_server(data)
        if facts["inbox"]:
            whole = self._loaded(serialized, {"state": self.server.state, "inbox": {}})
            self.server.state, self._inbox = whole["state"], Inbox(**whole["inbox"])
        else:
            self.server.state, self._inbox = self._loaded(serialized, self.server.state), Inbox()
        self._flops = dict(facts["flops"])

    def _check_names(self) -> None:
        state_tensors(self.server.state)  # raises if a value cannot be saved, or if two have the same path
        check_classes(self.server.state, modules_of(self.plan.algorithm))
        check_shared(self.server.state)

    def _check_state(self) -> None:
        drop_gradients(self.server.state)  # a restored state has no gradients
        check_savable(self.server.state, self._forms)

    def _whole_state(self) -> Any:
        """Return all that affects the next round: the algorithm's state and, in an asynchronous run, the inbox."""
        return {"state": self.server.state, "inbox": self._inbox.state()} if self._inbox.ups else self.server.state

    def _loaded(self, serialized: Serialized, template: Any) -> Any:
        try:
            return deserialize(serialized, template, modules_of(self.plan.algorithm))
        except (ValueError, RuntimeError) as error:  # RuntimeError: the parameters of a module differ
            raise RunError(f"the server's state cannot be restored: {error}") from error

    def fingerprints(self) -> dict[str, str]:
        """Return the SHA-256 of each tensor of the server's state and of its inbox."""
        with self._visible():
            return {name: digest(value) for name, value in state_tensors(self._whole_state()).items()}

    def digest(self) -> str:
        """Return the SHA-256 of the server's state and, in an asynchronous run, of its inbox."""
        with self._visible():
            return digest(self._whole_state())

    def _counting(
        self, t: int, uploads: Sequence[Mapping[ClientId, Any]], late: Collection[ClientId]
    ) -> tuple[dict[ClientId, Any], list[ClientId]]:
        """Return the uploads that count in round `t`, after all stages, and the clients whose uploads are not finite.

        late: clients whose uploads do not count; in an asynchronous run, these wait in the inbox.
        """
        packed = {
            k: up
            for part in uploads
            for k, up in part.items()
            if up is not None and not isinstance(up, ClientFailure) and (k not in late or self.plan.asynchronous)
        }
        rejected = [k for k in sorted(packed) if isinstance(packed[k], NonFiniteUpload)]
        ups = unpack({k: packed[k] for k in sorted(packed) if k not in rejected})
        arrived: dict[ClientId, Arrived] = {}
        if self.plan.asynchronous:
            self._inbox.add(t, ups, self._sent)
            arrived = self._inbox.take(late)
            ups = {k: one.up for k, one in arrived.items()}
        self.server.private = self._private(t, bool(ups))
        if (self.plan.stages or arrived) and ups:
            ups, broken = self._staged(ups, t, arrived)
            rejected = sorted([*rejected, *broken])
        return ups, rejected

    def _staged(
        self, ups: Mapping[ClientId, Any], t: int, arrived: Mapping[ClientId, Arrived]
    ) -> tuple[dict[ClientId, Any], list[ClientId]]:
        """Return the uploads after all stages, and the clients whose uploads a stage made infinite or NaN.

        arrived: in an asynchronous run, the same uploads with what their clients got.
        """
        down_of = (lambda k: arrived[k].down) if arrived else partial(_message, self._sent)
        received = Uploads.of(ups, down_of).after(self.plan.stages, t)
        if self.plan.asynchronous:
            factors = {k: self.plan.asynchronous.factor(t - one.t) for k, one in arrived.items()}
            moved = {k: factor for k, factor in factors.items() if arrived[k].t < t or factor != 1}
            now = self._would_send(t, moved, self.server.local) if moved else Broadcast((), {})
            received = received.caught_up(moved, partial(_message, now))
        broken = [k for k, up in received.ups.items() if nonfinite(up)]
        ready = dict(received.ups) if self.server.private is None else received.sealed()
        return {k: up for k, up in ready.items() if k not in broken}, broken

    def _private(self, t: int, has_uploads: bool) -> PrivateMean | None:
        """Return the private mean of round `t`; None if the server adds no noise.

        has_uploads: without any, the mean is that of what clients would have got, plus noise.
        """
        privacy = self.plan.privacy
        if privacy is None or not privacy.central:
            return None
        mean = PrivateMean(privacy.std, privacy.share, self.plan.eligible, seeded(privacy.seed, "privacy", t))
        if not has_uploads:
            down = self.plan.algorithm.server_send(self.server, self.plan.eligible[0])
            tables = [value for value in vars(down).values() if isinstance(value, Mapping)] if down is not None else []
            mean.sent = tables[0] if len(tables) == 1 else {}
        return mean

    def _update(self, ups: Mapping[ClientId, Any]) -> None:
        algorithm: Any = self.plan.algorithm  # as `Any`, because the hook's declared return type is None
        returned = algorithm.server_update(self.server, ups)
        if returned is not None:
            raise TypeError(
                f"the hook returned a {type(returned).__name__}, which raysim ignores; assign the new state to "
                "server.state, and return nothing"
            )

    @contextmanager
    def _visible(self) -> Iterator[None]:
        try:
            yield
        except TypeError as error:
            raise RunError(f"the server's state after round {self.server.t} cannot be saved: {error}") from error

    def _begin(self, purpose: str, t: int) -> None:
        torch.set_num_threads(1)
        self.server.t = t
        self.server.local = self.plan.local_in(t)
        self.server.rng = seeded(self.plan.seed, purpose, t)

    def _hook(self, name: str, t: int) -> errors_from:
        return hook(self.plan, name, t, None, torch.device("cpu"))


def _message(broadcast: Broadcast, k: ClientId) -> Any:
    """Return client k's message in a broadcast; None if it has none."""
    position = broadcast.of.get(k)
    return None if position is None else unpack(broadcast.messages[position])


def receives(algorithm: Algorithm[Any, Any, Any]) -> bool:
    """Return whether clients load the server's message before they train, by the hook `client_receive`."""
    return overrides(type(algorithm), "client_receive")
