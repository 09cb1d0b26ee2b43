"""The worker for clients: it builds their models, runs their part of a round, and evaluates them.

A plain class: the in-process backend has one, and each client actor of the Ray backend has one. Rounds are in
`training.py`, tests in `evaluation.py`, and the storage of states in `states.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from raysim.core.algorithm import ClientId, Task
from raysim.core.seeds import global_seed
from raysim.core.state import digest, state_tensors
from raysim.engine.checkpoint.format import client_files, read_clients
from raysim.engine.plan import Plan
from raysim.engine.records import CheckpointFile, ClientState
from raysim.engine.workers.client_samples import ClientSamples
from raysim.engine.workers.evaluation import ClientTester
from raysim.engine.workers.hooks import errors_from
from raysim.engine.workers.state_files import StateFiles
from raysim.engine.workers.states import ClientStates
from raysim.engine.workers.training import ClientTrainer


class ClientWorker:
    """The clients of one worker, with their models, on one device.

    Attributes:
        states: the clients' states.
        evaluation: tests the clients.
        training: runs the clients' part of a round.
    """

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


def new_network(plan: Plan, task: Task, device: torch.device, arch: str, *key: int) -> nn.Module:
    """Return the network that `client_model` creates from a new model. key: the client, if it has separate weights."""
    model = plan.fresh_model(arch, *key)
    what = f"{type(plan.algorithm).__name__}.client_model"
    with global_seed(plan.init_seed, "client_model", arch, *key), errors_from(what, "client_model", model=arch):
        net = plan.algorithm.client_model(model, task)
        if not isinstance(net, nn.Module):
            raise TypeError(f"it returned a {type(net).__name__}; return one torch module, which may contain others")
    # Images are channels last. If weights are, too, convolutions on a CPU are 1.2 to 1.35 times as fast.
    return net.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
