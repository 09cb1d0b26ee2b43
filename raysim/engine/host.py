"""A host holds clients: it builds them, runs their part of a round, and measures them.

A plain class: the in-process backend has one, the Ray backend makes each actor one. What a client does depends on its
state, its message, the run's seed and the round, never on the host or on who else lives there.
"""

from __future__ import annotations

import copy
import mmap
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from raysim.core.algorithm import Algorithm, Client, ClientId
from raysim.core.data import Samples
from raysim.core.errors import RunError
from raysim.core.fit import set_training
from raysim.core.messages import Weights, WireSize, nonfinite, pack, unpack, weights, wire_size
from raysim.core.meter import FlopMeter
from raysim.core.results import ClientRow
from raysim.core.seeds import global_seed, seeded
from raysim.core.shards import Shards
from raysim.core.state import digest, state_tensors
from raysim.engine.commits import Bytes, Part, client_parts
from raysim.engine.hooks import blaming, hook
from raysim.engine.timelimit import limit
from raysim.engine.world import World

EVALUATION_BATCH = 512
LARGE = 1 << 20  # bytes from which a network's weights have memory of their own
ALIGNMENT = 64  # bytes, as torch aligns tensors: another alignment may choose another kernel


@dataclass(frozen=True)
class Outbox:
    """What the server sends in one round: each distinct message once, and who gets which."""

    messages: tuple[Any, ...]  # packed
    of: Mapping[ClientId, int | None]  # client -> position in `messages`; None: nothing is sent


@dataclass(frozen=True)
class NonFinite:
    """What the server gets in the place of an upload that held a NaN or infinity."""


@dataclass(frozen=True)
class Failed:
    """What stands in the place of a client's upload and turn when the round goes on without it."""

    reason: str  # one sentence
    trace: str = ""


@dataclass(frozen=True)
class Moved:
    """A client on its way to another host."""

    state: Any  # packed
    unsaved: bool  # changed since the last commit


@dataclass(frozen=True, slots=True)
class Measure:
    """A model's result on one set of test samples."""

    correct: int
    total: int
    loss_sum: float

    @property
    def accuracy(self) -> float | None:
        """correct / total; None without test samples, which is not the same as 0."""
        return self.correct / self.total if self.total else None

    @property
    def loss(self) -> float | None:
        """Mean cross-entropy per sample."""
        return self.loss_sum / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class Measured:
    """How good a client's model is, and what it took to find out."""

    local: Measure  # on its own test samples
    val_correct: int  # of its own validation samples
    val_total: int
    everyone: Measure | None  # on the published test set, where asked for
    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """What is known of one client after its part of a round, besides its upload."""

    train_loss: float | None  # mean per sample; None when nothing was trained
    train_samples: int
    up: WireSize
    down: WireSize
    flops: float
    train_s: float
    values: Mapping[str, float]  # what the algorithm logged
    measured: Measured | None  # where models are measured before they train


def client_row(world: World, t: int, k: ClientId, turn: Turn | None, measured: Measured | None) -> ClientRow:
    """The row of a client that had a turn, was measured, or both."""
    local, everyone = (measured.local, measured.everyone) if measured else (None, None)
    return ClientRow(
        round=t,
        client=k,
        model=world.arch(k),
        participated=turn is not None,
        accuracy=local.accuracy if local else None,
        correct=local.correct if local else None,
        total=local.total if local else None,
        loss=local.loss if local else None,
        val_correct=measured.val_correct if measured else None,
        val_total=measured.val_total if measured else None,
        global_accuracy=everyone.accuracy if everyone else None,
        train_loss=turn.train_loss if turn else None,
        train_samples=turn.train_samples if turn else 0,
        up_bytes=turn.up.bytes if turn else 0,
        down_bytes=turn.down.bytes if turn else 0,
        up_params=turn.up.params if turn else 0,
        down_params=turn.down.params if turn else 0,
        flops=turn.flops if turn else 0.0,
        train_s=turn.train_s if turn else 0.0,
        evaluate_s=measured.seconds if measured else 0.0,
    )


class Positions:
    """`Shards` as tensors: which images each client has."""

    def __init__(self, shards: Shards) -> None:
        self.index = torch.from_numpy(shards.index)
        self.offset = shards.offset.tolist()

    def of(self, k: ClientId) -> Tensor:
        """One client's, ascending: [N] int64, a view."""
        return self.index[self.offset[k] : self.offset[k + 1]]


class ClientHost:
    """Some of a run's clients, with their models, on one device."""

    def __init__(self, world: World, image_MHWC: NDArray[np.uint8], device: str = "cpu") -> None:
        self.world = world
        self.device = torch.device(device)
        with warnings.catch_warnings():
            # Images and positions are read-only shared memory; nothing here writes to them.
            warnings.simplefilter("ignore")
            self.image_MHWC = torch.from_numpy(image_MHWC)
            self.label_M = torch.from_numpy(world.labels)
            self.train = Positions(world.train)
            self.val = Positions(world.val)
            self.test = Positions(world.test)
            self.published = None if world.global_test is None else torch.from_numpy(world.global_test)
        self.nets: dict[ClientId, nn.Module] = {}
        self.unsaved: set[ClientId] = set()  # had a turn since the last commit
        self.templates: dict[str, nn.Module] = {}
        self.template_digests: dict[str, str] = {}
        self.meter = FlopMeter()

    # -- the round ---------------------------------------------------------------------------------

    def join(self, ids: Iterable[ClientId]) -> dict[ClientId, Any]:
        """The hello of every client that has samples, packed."""
        hellos = {}
        for k in (k for k in ids if self.world.num_samples[k]):
            client = self._client(k, t=0)
            with self._hook("client_join", 0, k):
                hello = self.world.algorithm.client_join(client)
                wire_size(hello)  # what is no message is this hook's mistake
                hellos[k] = pack(hello)
        return hellos

    def work(
        self,
        t: int,
        ids: Sequence[ClientId],
        outbox: Outbox,
        evaluate: bool,
        without: Collection[ClientId] = (),
    ) -> Iterator[tuple[ClientId, Any, Turn | Failed]]:
        """Round `t` of these clients, one after another: (client, packed upload, turn).

        evaluate: measure them, if models are measured before they train; else `measure` does when all is done.
        without: clients that count as failed and do not get a turn.
        """
        received: dict[int | None, tuple[Any, WireSize]] = {None: (None, wire_size(None))}
        for k in ids:
            position = outbox.of[k]
            if position is not None and position not in received:
                down = unpack(outbox.messages[position], self.device)
                received[position] = down, wire_size(down)
            if k in without:
                yield k, Failed("it failed before"), Failed("it failed before")
            elif self.world.tolerant:
                yield self._tolerated(k, t, *received[position], evaluate)
            else:
                yield self._turn(k, t, *received[position], evaluate)

    def measure(self, ids: Iterable[ClientId]) -> dict[ClientId, Measured]:
        """Test clients' models as they are."""
        return {k: self._measured(k) for k in ids}

    # -- state -------------------------------------------------------------------------------------

    def release(self, ids: Iterable[ClientId]) -> dict[ClientId, Moved]:
        """Give clients away: gone from here."""
        return {k: Moved(pack(weights(self.nets.pop(k))), self._forget(k)) for k in ids if k in self.nets}

    def adopt(self, moved: Mapping[ClientId, Moved]) -> None:
        """Take in clients that another host released, or that come from a commit."""
        for k, one in moved.items():
            state: Weights = unpack(one.state)
            self._net(k).load_state_dict(state)
            if one.unsaved:
                self.unsaved.add(k)

    def save(self, t: int) -> Iterator[tuple[Part, Bytes]]:
        """The files of the clients that changed since the last time, after round `t`, to be written by the caller."""
        changed = sorted(self.unsaved)
        self.unsaved = set()
        yield from client_parts(t, ((k, self.nets[k].state_dict()) for k in changed))

    def _forget(self, k: ClientId) -> bool:
        """Whether a client was unsaved; it is no longer known as such."""
        unsaved = k in self.unsaved
        self.unsaved.discard(k)
        return unsaved

    def digests(self, ids: Iterable[ClientId]) -> dict[ClientId, str]:
        """SHA-256 of each client's state."""
        found = {}
        for k in ids:
            if k in self.nets or self.world.independent_init:
                found[k] = digest(self._net(k))
            else:
                # Untouched clients of one architecture are all alike.
                arch = self.world.arch(k)
                if arch not in self.template_digests:
                    self.template_digests[arch] = digest(self._template(arch))
                found[k] = self.template_digests[arch]
        return found

    def fingerprints(self, ids: Iterable[ClientId]) -> dict[ClientId, dict[str, str]]:
        """SHA-256 of each tensor of each client."""
        return {k: {name: digest(value) for name, value in state_tensors(self._net(k)).items()} for k in ids}

    def gpu_peak_mb(self) -> float:
        """Greatest GPU memory this process has used, in MiB; 0 on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) / 2**20 if self.device.type == "cuda" else 0.0

    # -- inside ------------------------------------------------------------------------------------

    def _tolerated(
        self, k: ClientId, t: int, down: Any, down_size: WireSize, evaluate: bool
    ) -> tuple[ClientId, Any, Turn | Failed]:
        """A turn after which, if it fails, the client is as before: what is kept must not depend on where it failed."""
        before = weights(self.nets[k]) if k in self.nets else None
        try:
            return self._turn(k, t, down, down_size, evaluate)
        except RunError as error:
            if before is None:
                self.nets.pop(k, None)
                self.unsaved.discard(k)
            else:
                self.nets[k].load_state_dict(before)
            failed = Failed(str(error), getattr(error, "trace", ""))
            return k, failed, failed

    def _turn(self, k: ClientId, t: int, down: Any, down_size: WireSize, evaluate: bool) -> tuple[ClientId, Any, Turn]:
        limit_s = self.world.client_timeout_s
        if limit_s is None:
            return self._untimed_turn(k, t, down, down_size, evaluate)
        with limit(limit_s, f"client {k} took longer than failure.client_timeout_s ({limit_s:g} s) in round {t}"):
            return self._untimed_turn(k, t, down, down_size, evaluate)

    def _untimed_turn(
        self, k: ClientId, t: int, down: Any, down_size: WireSize, evaluate: bool
    ) -> tuple[ClientId, Any, Turn]:
        algorithm, world = self.world.algorithm, self.world
        client = self._client(k, t)
        measured = None
        start = perf_counter()
        if down is not None:
            with self._hook("client_receive", t, k, down):
                algorithm.client_receive(client, down)
        if evaluate and world.evaluate_when == "after_receive":
            measured = self._measured(k)
        with self._hook("client_update", t, k, down):
            up = algorithm.client_update(client, down)
            up_size = wire_size(up)  # here: what is no message is this hook's mistake
        # A NaN or infinity would spoil the server's state for good: it is told so instead (algorithms.md, 1.4).
        packed = NonFinite() if nonfinite(up) else pack(up)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        train_s = perf_counter() - start - (measured.seconds if measured else 0.0)
        ledger = client.ledger
        train_loss = ledger.train_loss if ledger.samples else None
        turn = Turn(train_loss, ledger.samples, up_size, down_size, ledger.flops, train_s, ledger.values, measured)
        return k, packed, turn

    def _measured(self, k: ClientId) -> Measured:
        start = perf_counter()
        self._set_threads(k)
        net = self.nets.get(k)
        if net is None:
            # A client that never had a turn is its architecture's template; no copy is made to look at it.
            net = self._net(k) if self.world.independent_init else self._template(self.world.arch(k))
        test_M, val_M = self.test.of(k), self.val.of(k)
        with blaming(lambda: f"the test of client {k} with model {self.world.arch(k)} failed"):
            set_training(net, False)
            local, val_correct = self._score(net, test_M, val_M)
            everyone = None if self.published is None else self._score(net, self.published, val_M[:0])[0]
        return Measured(local, val_correct, len(val_M), everyone, perf_counter() - start)

    @torch.inference_mode()
    def _score(self, net: nn.Module, test_M: Tensor, val_M: Tensor) -> tuple[Measure, int]:
        """The result on test samples, and how many validation samples are right; both pass through together."""
        samples = self._samples(torch.cat((test_M, val_M)))
        logits_MC = torch.cat([net(batch.x) for batch in samples.in_order(EVALUATION_BATCH)])
        right_M = logits_MC.argmax(1) == samples.y
        tested = len(test_M)
        loss = F.cross_entropy(logits_MC[:tested].double(), samples.y[:tested], reduction="sum")
        measure = Measure(int(right_M[:tested].count_nonzero()), tested, float(loss))
        return measure, int(right_M[tested:].count_nonzero())

    def _samples(self, index_M: Tensor) -> Samples:
        raw_NHWC = self.image_MHWC.index_select(0, index_M).to(self.device)
        return Samples(raw_NHWC, self.label_M.index_select(0, index_M).to(self.device), self.world.transform)

    def _client(self, k: ClientId, t: int) -> Client:
        world = self.world
        self._set_threads(k)
        self.unsaved.add(k)
        return Client(
            id=k,
            task=world.task,
            data=self._samples(self.train.of(k)),
            net=self._net(k),
            local=world.local,
            rng=seeded(world.seed, "client", t, k),
            t=t,
            arch=world.arch(k),
            meter=self.meter,
        )

    def _net(self, k: ClientId) -> nn.Module:
        if k not in self.nets:
            arch = self.world.arch(k)
            net = self._build(arch, k) if self.world.independent_init else copy.deepcopy(self._template(arch))
            settle(net)
            self.nets[k] = net
        return self.nets[k]

    def _template(self, arch: str) -> nn.Module:
        if arch not in self.templates:
            self.templates[arch] = self._build(arch)
        return self.templates[arch]

    def _build(self, arch: str, *key: int) -> nn.Module:
        world = self.world
        model = world.fresh_model(arch, *key)
        with global_seed(world.seed, "client_model", arch, *key):
            net = world.algorithm.client_model(model, world.task)
        # Images come channels last; convolutions on CPU are 1.2 to 1.35 times faster when weights are too.
        return net.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _set_threads(self, k: ClientId) -> None:
        threads = self.world.threads[k % len(self.world.threads)]
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    def _hook(self, name: str, t: int, k: ClientId, msg: Any = None) -> Any:
        return hook(self.world.seed, name, t, k, self.world.algorithm, self.device, msg, self.world.arch(k))


def settle(net: nn.Module) -> None:
    """Move a large network's weights, on a CPU, to memory of their own, which goes back to the system with it.

    Between the short-lived blocks of training steps, networks that come and go leave holes: 50 MB in an actor that
    holds 50 CNNs. Nothing else changes: shapes, strides and alignment stay as they were.
    """
    dense = [
        tensor
        for tensor in (*net.parameters(), *net.buffers())
        if tensor.device.type == "cpu"
        and (tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)))
    ]
    ends = list(accumulate(-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in dense))
    if not ends or ends[-1] < LARGE:
        return
    block = torch.frombuffer(mmap.mmap(-1, ends[-1], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
    for tensor, begin in zip(dense, [0, *ends], strict=False):
        place = block[begin : begin + tensor.nbytes].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        place.copy_(tensor.detach())
        tensor.data = place


def joins(algorithm: Algorithm[Any, Any, Any]) -> bool:
    """Whether clients have anything to tell the server before round 1."""
    return type(algorithm).client_join is not Algorithm.client_join
