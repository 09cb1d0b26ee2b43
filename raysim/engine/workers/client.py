"""The worker for clients: it builds their models, runs their part of a round, and evaluates them.

A plain class: the in-process backend has one, and each client actor of the Ray backend has one. Rounds are in
`training.py`, tests in `evaluation.py`, and the storage of states in `states.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from raysim.core import accelerator
from raysim.core.algorithm import Algorithm, Client, ClientId, overrides
from raysim.core.state import digest, state_tensors
from raysim.engine.checkpoint.format import client_files, read_clients
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import Coverage
from raysim.engine.policies.placement import Group
from raysim.engine.records import (
    Broadcast,
    CheckpointFile,
    ClientEvaluation,
    ClientFailure,
    ClientReport,
    ClientState,
)
from raysim.engine.workers.client_samples import ClientSamples
from raysim.engine.workers.evaluation import ClientTester
from raysim.engine.workers.networks import new_network
from raysim.engine.workers.state_files import StateFiles
from raysim.engine.workers.states import ClientStates
from raysim.engine.workers.training import ClientTrainer


class ClientWorker:
    """The clients of one worker, with their models, on one device."""

    def __init__(
        self, plan: Plan, raw_M: NDArray[Any], device: torch.device | str = "cpu", files: StateFiles | None = None
    ) -> None:
        """files: where clients' states are stored; default: new files."""
        self.device = place = torch.device(device)
        task = plan.task
        if task.public is not None:
            task = replace(task, public=task.public.to(place))

        # These functions must not refer to `self`: the worker would be part of a reference cycle, so after a recovery
        # its networks would stay in memory until the next garbage collection.
        def initial(arch: str) -> nn.Module:
            return new_network(plan, task, place, arch)

        def own(k: ClientId) -> nn.Module:
            net = new_network(plan, task, place, plan.arch(k), *((k,) if plan.independent_init else ()))
            if plan.initial is not None:
                plan.initial.load(k, net)
            return net

        samples = ClientSamples(plan, raw_M, place)
        self.states = ClientStates(plan.models, plan.num_clients, initial, own if plan.separate_init else None, files)
        self.evaluation = ClientTester(plan, self.states, samples)
        self.training = ClientTrainer(plan, task, self.states, samples, self.evaluation)

    # -- the round ---------------------------------------------------------------------------------

    def register(self, ids: Iterable[ClientId]) -> dict[ClientId, Any]:
        """Return the packed registration message of every client with samples."""
        return self.training.register(ids)

    def train(
        self,
        t: int,
        groups: Sequence[Group],
        broadcast: Broadcast,
        evaluate_before: Coverage | None,
        skip: Collection[ClientId] = (),
    ) -> Iterator[tuple[ClientId, Any, ClientReport | ClientFailure]]:
        """Run round `t` of these clients, one group after another, and yield (client, packed upload, report).

        evaluate_before: samples on which to test each model between receiving and training; None: no test.
        skip: clients that count as failed and do not train.
        """
        return self.training.train(t, groups, broadcast, evaluate_before, skip)

    def discard(self, ids: Iterable[ClientId]) -> None:
        """Restore clients to their state before the last call of `train`."""
        self.training.discard(ids)

    def evaluate(self, groups: Iterable[Group], coverage: Coverage = "whole") -> dict[ClientId, ClientEvaluation]:
        """Test clients in their current state, each group by one call."""
        return self.evaluation.evaluate(groups, coverage)

    def evaluate_current(
        self, t: int, ids: Iterable[ClientId], broadcast: Broadcast
    ) -> dict[ClientId, ClientEvaluation | ClientFailure]:
        """Test clients as `evaluate` does, after copies of their networks received their message of round `t`.

        No client's state changes. A failed client is reported if the run tolerates failures.
        """
        return self.training.evaluate_current(t, ids, broadcast)

    def receiver(self, t: int, broadcast: Broadcast) -> Callable[[ClientId], None]:
        """Return a function that makes a client receive its message of round `t`, as `evaluate_current` does.

        It changes the network that `net` returns for the client, or that `ClientStates.reading` yields.
        """
        return self.training.receiver(t, broadcast)

    def client(self, k: ClientId, t: int) -> Client:
        """Return client k as its algorithm sees it in round `t`."""
        return self.training.client(k, t)

    def net(self, k: ClientId) -> nn.Module:
        """Return the network of client k, which may be changed: see `ClientStates.open`."""
        return self.states.open(k)

    # -- state -------------------------------------------------------------------------------------

    def release(self, ids: Iterable[ClientId], shared: bool) -> dict[ClientId, ClientState]:
        """Remove clients and return their states for another worker. shared: whether both use the same state files."""
        states = self.states
        released = {
            k: ClientState(None if shared else states.row(k), k in states.unsaved) for k in ids if k in states.held
        }
        states.held.difference_update(released)
        states.unsaved.difference_update(released)
        return released

    def adopt(self, moved: Mapping[ClientId, ClientState]) -> None:
        """Add clients that another worker released."""
        for k, client in moved.items():
            if client.row is None:
                self.states.held.add(k)
            else:
                self.states.put(k, client.row)
            if client.unsaved:
                self.states.unsaved.add(k)

    def save(self, t: int) -> Iterator[tuple[CheckpointFile, bytes]]:
        """Yield files with the clients that changed since the last call. The caller writes them. t: the round."""
        changed = sorted(self.states.unsaved)
        self.states.unsaved = set()
        yield from client_files(t, ((k, self.states.state(k)) for k in changed))

    def restore(self, file: CheckpointFile, data: bytes) -> None:
        """Load the clients of `file`. data: the file's content."""
        for k, state in read_clients(data, file.clients).items():
            self.states.load(k, state)

    def mark_saved(self) -> None:
        """Mark all clients as saved."""
        self.states.unsaved.clear()

    def digests(self, ids: Iterable[ClientId]) -> dict[ClientId, str]:
        """Return the SHA-256 of each client's state."""
        states = self.states
        untrained: dict[str, str] = {}  # architecture -> digest of its clients that never took part
        digests = {}
        for k in ids:
            arch, is_untrained = states.arch(k), states.is_untrained(k)
            if is_untrained and arch in untrained:
                digests[k] = untrained[arch]
                continue
            with states.reading(k) as net:
                digests[k] = digest(net)
            if is_untrained:
                untrained[arch] = digests[k]
        return digests

    def fingerprints(self, ids: Iterable[ClientId]) -> dict[ClientId, dict[str, str]]:
        """Return the SHA-256 of each tensor of each client."""
        fingerprints = {}
        for k in ids:
            with self.states.reading(k) as net:
                fingerprints[k] = {name: digest(value) for name, value in state_tensors(net).items()}
        return fingerprints

    def gpu_peak_mb(self) -> float:
        """Return the maximum GPU memory of this process so far, in MiB; 0 on a CPU."""
        return accelerator.peak_memory_mb(self.device)


def registers(algorithm: Algorithm[Any, Any, Any]) -> bool:
    """Return whether clients register with the server before round 1."""
    return overrides(type(algorithm), "client_register")
