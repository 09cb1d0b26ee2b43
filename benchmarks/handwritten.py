"""Baseline for raysim's overhead: LG-FedAvg over a process pool, as one would write it without a framework.

Not run directly: `python benchmarks/overhead.py` runs it and raysim on the same work and compares them.

There is one process per core, with one thread each. Clients' weights are in one block of shared memory. A process that
gets a client from the work queue points its network of that architecture at the client's weights and trains them in
place, so nothing is copied and any process can serve any client. Only ids and scores go through pipes. Cohorts, initial
weights and the order of samples are drawn as in raysim, so both do the same steps; tests/bench compares their results.

Shapes: N clients, M images, K participants, H numbers of a header.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.core.seeds import global_seed, seed_for
from raysim.data.datasets import load_dataset
from raysim.data.partition import PARTITIONS, make_partition
from raysim.data.shards import Partition
from raysim.data.specs import DATASETS
from raysim.data.transform import ImageTransform
from raysim.models import build_model, common_feature_dim


@dataclass(frozen=True)
class Workload:
    """A workload for both sides."""

    name: str
    dataset: str
    partition: Mapping[str, Any]  # as in a scenario
    clients: int
    participants: int
    models: tuple[str, ...]
    batch_size: int
    lr: float = 0.01
    seed: int = 1
    root: str | None = None  # folder of the data set
    split: str = "pooled811"

    def arch(self, k: int) -> str:
        """Client k's architecture."""
        return self.models[k % len(self.models)]

    def build(self, name: str) -> Any:
        """Build a network with the initial weights of the clients with this architecture."""
        spec = DATASETS[self.dataset]
        dim = common_feature_dim(self.models)
        with global_seed(self.seed, "init", name):
            net = build_model(name, num_classes=spec.num_classes, input_spec=spec.input_spec, feature_dim=dim)
        assert not list(net.buffers()), "only parameters are kept per client"
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def cohort(self, t: int) -> list[int]:
        """Draw the participants of round t."""
        rng = np.random.default_rng(seed_for(self.seed, "cohort", t))
        return sorted(rng.choice(self.clients, self.participants, replace=False).tolist())


class Score(NamedTuple):
    """The result of one client round."""

    client: int
    samples: int  # number of training samples
    train_loss: float  # mean per sample
    correct: int
    tested: int
    test_loss: float  # sum
    val_correct: int


@dataclass(frozen=True)
class ShardTensors:
    """The samples of every client, client after client."""

    index: Tensor
    offset: list[int]  # [N+1]

    def of(self, k: int) -> Tensor:
        """Return the samples of one client."""
        return self.index[self.offset[k] : self.offset[k + 1]]


@dataclass(frozen=True)
class Shared:
    """The data of all processes, in shared memory."""

    image_MHWC: Tensor  # uint8
    label_M: Tensor
    train: ShardTensors
    val: ShardTensors
    test: ShardTensors
    weights: Tensor  # float32, client after client
    offset: list[int]  # [N+1]: where each client's weights begin
    header_H: Tensor  # the server's header


@dataclass
class Loop:
    """The hand-written run: call `round` for every round, then `close`."""

    work: Workload
    processes: int
    niceness: int = 0  # niceness of the processes
    shared: Shared = field(init=False)

    def __post_init__(self) -> None:
        work = self.work
        spec = DATASETS[work.dataset]
        data = load_dataset(work.dataset, work.root)
        settings = dict(work.partition)
        setting = PARTITIONS[settings.pop("name")](**settings)
        dealt: Partition = make_partition(
            data.label_M, data.num_train, spec.num_classes, work.clients, setting, work.split, work.seed
        )
        nets = {name: work.build(name) for name in work.models}
        start = {name: torch.cat([_flat(p.detach()) for p in net.parameters()]) for name, net in nets.items()}
        header = nets[work.models[0]].header
        torch.manual_seed(seed_for(work.seed, "server_start", 0, -1))
        drawn = nn.Linear(header.in_features, header.out_features)
        offset = np.cumsum([0, *(len(start[work.arch(k)]) for k in range(work.clients))]).tolist()
        self.shared = Shared(
            image_MHWC=torch.tensor(data.raw_M).share_memory_(),
            label_M=torch.tensor(data.label_M).share_memory_(),
            train=ShardTensors(torch.tensor(dealt.train.index).share_memory_(), dealt.train.offset.tolist()),
            val=ShardTensors(torch.tensor(dealt.val.index).share_memory_(), dealt.val.offset.tolist()),
            test=ShardTensors(torch.tensor(dealt.test.index).share_memory_(), dealt.test.offset.tolist()),
            weights=torch.cat([start[work.arch(k)] for k in range(work.clients)]).share_memory_(),
            offset=offset,
            header_H=torch.cat([_flat(p.detach()) for p in drawn.parameters()]).share_memory_(),
        )
        # The header is each network's last layer, so it is at the end of the client's weights.
        size = len(self.shared.header_H)
        self.headers = [self.shared.weights[end - size : end] for end in offset[1:]]
        self.samples = dealt.train.size_N.tolist()
        self.cost = [self.samples[k] * len(start[work.arch(k)]) for k in range(work.clients)]
        # Spawn, because forking a process that has run torch or Ray threads can hang.
        context = mp.get_context("spawn")
        self.tasks: Any = context.SimpleQueue()
        self.results: list[Connection] = []
        self.workers: list[Any] = []
        job = (work, self.shared, self.niceness, self.tasks)
        for _ in range(self.processes):
            ours, theirs = context.Pipe(duplex=False)
            worker = context.Process(target=_serve, args=(*job, theirs), daemon=True)
            worker.start()
            theirs.close()  # so that the pipe of a dead worker raises EOFError
            self.results.append(ours)
            self.workers.append(worker)

    def round(self, t: int) -> list[Score]:
        """Train and test the cohort of round t, and average its headers."""
        cohort = self.work.cohort(t)
        # Longest first, to keep all cores busy to the end; small clients are sent several per message.
        order = sorted(cohort, key=lambda k: -self.cost[k])
        grain = max(1, len(order) // (4 * self.processes))
        parts = [order[i : i + grain] for i in range(0, len(order), grain)]
        for part in parts:
            self.tasks.put((t, part))
        scores: list[Score] = []
        open_parts = len(parts)
        while open_parts:
            for pipe in wait(self.results):
                assert isinstance(pipe, Connection)
                scores += pipe.recv()
                open_parts -= 1
        weight_K = torch.tensor([self.samples[k] for k in cohort], dtype=torch.float64)
        header_KH = torch.stack([self.headers[k] for k in cohort]).double()
        self.shared.header_H.copy_(weight_K / weight_K.sum() @ header_KH)
        return sorted(scores)

    def close(self) -> None:
        """End the processes."""
        for _ in self.workers:
            self.tasks.put(None)
        for worker in self.workers:
            worker.join()
        for pipe in self.results:
            pipe.close()
        self.tasks.close()


class _Trainer:
    """The networks of one process, one per architecture, which use the weights of one client after another."""

    def __init__(self, work: Workload, shared: Shared) -> None:
        self.work, self.shared = work, shared
        self.transform: ImageTransform = ImageTransform.of(DATASETS[work.dataset], augment=False)
        self.nets = {name: work.build(name) for name in work.models}
        # Plain SGD has no state, so one optimizer serves all clients of an architecture.
        self.optimizers = {
            name: torch.optim.SGD(net.parameters(), lr=work.lr, fused=True) for name, net in self.nets.items()
        }
        self.parameters = {name: list(net.parameters()) for name, net in self.nets.items()}
        self.views: dict[int, list[Tensor]] = {}
        self.rng = torch.Generator()

    def client_report(self, t: int, k: int) -> Score:
        work, shared = self.work, self.shared
        arch = work.arch(k)
        net, optimizer = self.nets[arch], self.optimizers[arch]
        end = shared.offset[k + 1]
        shared.weights[end - len(shared.header_H) : end].copy_(shared.header_H)
        for parameter, view in zip(self.parameters[arch], self._views(k), strict=True):
            parameter.data = view
        index = shared.train.of(k)
        self.rng.manual_seed(seed_for(work.seed, "client", t, k))
        loss_sum = torch.zeros(())
        order = torch.randperm(len(index), generator=self.rng)
        for part in index[order].split(work.batch_size):
            x, y = self._batch(part)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach() * len(part)
        with torch.inference_mode():
            tested = len(shared.test.of(k))
            x, y = self._batch(torch.cat([shared.test.of(k), shared.val.of(k)]))
            logits = net(x)
            right = logits.argmax(1) == y
            test_loss = float(F.cross_entropy(logits[:tested], y[:tested], reduction="sum"))
        correct, val_correct = int(right[:tested].sum()), int(right[tested:].sum())
        return Score(k, len(index), float(loss_sum) / len(index), correct, tested, test_loss, val_correct)

    def _batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        # index_select copies whole images; indexing with a tensor is many times slower.
        shared = self.shared
        x = self.transform.plain(shared.image_MHWC.index_select(0, index))
        return x, shared.label_M.index_select(0, index)

    def _views(self, k: int) -> list[Tensor]:
        """Return the client's weights as views with the shapes of its network's parameters."""
        if k not in self.views:
            shared, views = self.shared, []
            left = shared.weights[shared.offset[k] : shared.offset[k + 1]]
            for like in self.parameters[self.work.arch(k)]:
                flat, left = left[: like.numel()], left[like.numel() :]
                views.append(_shaped(flat, like.shape))
            self.views[k] = views
        return self.views[k]


def _serve(work: Workload, shared: Shared, niceness: int, tasks: Any, results: Connection) -> None:
    os.nice(niceness)
    torch.set_num_threads(1)
    trainer = _Trainer(work, shared)
    while (task := tasks.get()) is not None:
        t, ids = task
        results.send([trainer.client_report(t, k) for k in ids])


def _flat(parameter: Tensor) -> Tensor:
    """Flatten a parameter; filters with channels last, which is the fastest layout for CPU convolutions."""
    return (parameter.permute(0, 2, 3, 1) if parameter.dim() == 4 else parameter).reshape(-1)


def _shaped(flat: Tensor, shape: Sequence[int]) -> Tensor:
    """Invert `_flat`; returns a view."""
    if len(shape) == 4:
        out, channels, height, width = shape
        return flat.view(out, height, width, channels).permute(0, 3, 1, 2)
    return flat.view(*shape)
