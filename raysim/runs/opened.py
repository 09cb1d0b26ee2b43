"""The networks, samples and representations of a run, read from its folder and checkpoints on the CPU, without Ray.

Shapes: N samples, C classes, D representation width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from raysim.common.errors import ScenarioError
from raysim.core.algorithm import ClientId
from raysim.core.data import Samples
from raysim.data.shards import PARTS
from raysim.engine import initial
from raysim.engine.checkpoint.store import Checkpoint, CheckpointStore
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.tensor_files import contiguous_copies
from raysim.engine.workers.evaluation import EVALUATION_BATCH
from raysim.runs.find import find_run
from raysim.runs.identity import Identity, checkpoints_of, initial_of, run_scenario
from raysim.runs.plan import RunData, make_plan
from raysim.scenario.scenario import Scenario

BEST_VAL: Literal["best_val"] = "best_val"
"""The name of the round with the greatest validation accuracy, whose state `checkpoint.keep` can keep."""

Round = int | Literal["best_val"] | None
"""A round with a checkpoint; None: the latest one."""


class Representations(NamedTuple):
    """Representations of samples: the outputs of clients' extractors, which the headers read."""

    value_ND: NDArray[np.float32]
    label_N: NDArray[np.int64]
    client_N: NDArray[np.int64]  # client that has the sample and the network


@dataclass
class OpenedRun:
    """A run folder with the data of its run, opened for reading."""

    folder: Path
    plan: Plan  # the plan of the run's workers, without actors
    data: RunData
    store: CheckpointStore  # as the last call of `checkpoint` found it

    @classmethod
    def of(cls, run: Path | str) -> OpenedRun:
        """Open a finished or unfinished run by its folder, or by its id if it is below ./runs.

        Raises `ScenarioError` when there is no such run, or its data is missing or has changed.
        """
        folder = find_run(str(run))
        scenario = Scenario.of(run_scenario(folder, ["backend=in_process", "tracking.also=[]"]))
        identity = Identity.of(folder)
        plan, data = make_plan(scenario, rounds_left=False)
        identity.refuse_other_data(folder, data)
        return cls(folder, replace(plan, initial=initial_of(folder, scenario)), data, checkpoints_of(folder))

    @cached_property
    def raw_M(self) -> NDArray[Any]:
        """All samples of the data set, as stored."""
        return self.data.raw()

    @property
    def method(self) -> str:
        """The name of the run's algorithm."""
        return self.data.scenario.algorithm_name

    def check_clients(self, clients: Collection[ClientId]) -> None:
        """Raise `ScenarioError` if one of these clients does not exist."""
        for k in clients:
            if k not in range(self.plan.num_clients):
                last = self.plan.num_clients - 1
                raise ScenarioError(f"client {k!r} given, but {self.folder} has clients 0 to {last}")

    def checkpoint(self, t: Round = None) -> Checkpoint:
        """Return the checkpoint of round `t`. Raises `ScenarioError` if it is missing or its manifest is damaged.

        The list of checkpoints is read again, because a run in progress replaces them.
        """
        self.store = store = checkpoints_of(self.folder)
        if (latest := store.latest()) is None:
            raise ScenarioError(
                f"{self.folder} has no intact checkpoint ({store.damage[-1]}); restore its checkpoint files"
                if store.damage
                else f"{self.folder} has no checkpoint: it has saved none yet, it has checkpoint.every: 0, or `raysim "
                "fetch` copied it without --checkpoints"
            )
        best = latest.facts.get("best_val_round")
        wanted = latest.round if t is None else best if t == BEST_VAL else t
        found = next((one for one in store.kept if one.round == wanted), None)
        if found is None:
            given = f"{t} given, which is round {best}" if t == BEST_VAL and best is not None else f"{t!r} given"
            kept = " and ".join(str(one.round) for one in store.kept)
            raise ScenarioError(
                f"round: {given}, but {self.folder} has only states after rounds {kept}; choose one of these, or run "
                f"the scenario again, with checkpoint.keep: [last, {BEST_VAL}] or with fewer rounds"
            )
        return found

    @contextmanager
    def backend(self, clients: Collection[ClientId], checkpoint: Checkpoint) -> Iterator[InProcessBackend]:
        """Restore these clients and the server from a checkpoint, in this process."""
        wanted = [f._replace(clients=tuple(k for k in f.clients if k in clients)) for f in checkpoint.client_files]
        some = replace(checkpoint, client_files=tuple(file for file in wanted if file.clients))
        backend = InProcessBackend()
        try:
            backend.start(self.plan, lambda: self.raw_M)
            backend.restore((some.client_files, some.server), self.store.storage)
            yield backend
        finally:
            backend.close()

    def networks(
        self, clients: Sequence[ClientId], checkpoint: Checkpoint, current: bool = False, keep: bool = False
    ) -> Iterator[tuple[ClientId, nn.Module]]:
        """Yield the network of each client at a checkpoint, in eval mode; initial ones if they never took part.

        current: after they also received the message that the server would send next, as for `accuracy/all_current`.
        keep: whether the caller keeps the networks; otherwise one is in memory at a time, and the next one replaces it.
        """
        self.check_clients(clients)
        with self.backend(clients, checkpoint) as backend:
            t, states = checkpoint.round + 1, backend.worker.states
            receive = backend.worker.training.receiver(t, backend.server.current(t)) if current else None
            for k in clients:
                net = states.open(k)
                if receive is not None:
                    receive(k)
                yield k, net.eval()
                if not keep:
                    states.undo(k)

    def network(self, k: ClientId, t: Round = None, current: bool = False) -> nn.Module:
        """Return the network of a client after round `t`, for use at any time; current: as in `networks`."""
        return dict(self.networks([k], self.checkpoint(t), current, keep=True))[k]

    def export(self, folder: Path, t: Round = None) -> None:
        """Write each client's network after round `t` to `folder`, in safetensors format, as client-K.safetensors.

        The metadata of each file describe the network. One network is in memory at a time.
        """
        checkpoint, plan = self.checkpoint(t), self.plan
        folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "algorithm": self.method,
            "round": checkpoint.round,
            "num_classes": plan.num_classes,
            "feature_dim": plan.feature_dim,
            "input": self.data.scenario.dataset.input_spec.shape_text,
            "transform": plan.transform,
        }
        for k, net in self.networks(range(plan.num_clients), checkpoint):
            own = {name: str(value) for name, value in {"client": k, "architecture": plan.arch(k), **facts}.items()}
            save_file(contiguous_copies(net.state_dict()), folder / f"client-{k}.safetensors", own)

    def samples(self, k: ClientId, part: str) -> Samples:
        """Return a client's samples of one part (train, val or test), in the order of the data set."""
        self.check_clients([k])
        if part not in PARTS:
            raise ScenarioError(f"part: {part!r} given; allowed: {', '.join(PARTS)}")
        index_N = self.data.partition.parts[part].of(k)
        raw_N = torch.from_numpy(self.raw_M[index_N])
        return Samples(raw_N, torch.from_numpy(self.plan.labels[index_N]), self.plan.transform)

    def refuse_other_classes(self, first: OpenedRun) -> None:
        """Raise `ScenarioError` if this run's classes differ from those of `first`, which the same figure shows."""
        if list(self.data.dataset.class_names) != list(first.data.dataset.class_names):
            raise ScenarioError(
                f"{self.folder}: the classes of this run differ from those of the first run; draw it in another figure"
            )

    def predictions(
        self, k: ClientId, part: str, t: Round = None, current: bool = False, probabilities: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Test a client on its samples of one part; return columns `sample`, `label`, `predicted` and `probability`.

        current: as in `networks`. probabilities: also a column per class, such as `probability_0`.
        """
        samples = self.samples(k, part)
        logits = _outputs(self.network(k, t, current), samples)
        probability_NC = torch.cat(logits).softmax(1) if logits else torch.zeros(0, self.plan.num_classes)
        probability_N, predicted_N = probability_NC.max(1)
        return {
            "sample": self.data.partition.parts[part].of(k),
            "label": samples.y.numpy(),
            "predicted": predicted_N.numpy(),
            "probability": probability_N.numpy(),
            **{f"probability_{c}": of_N.numpy() for c, of_N in enumerate(probability_NC.T) if probabilities},
        }

    def confusion(self, part: str, checkpoint: Checkpoint, current: bool = False) -> NDArray[np.int64]:
        """Count samples by true class (row) and predicted class (column): [C, C], pooled over all clients.

        Each client's own network, as it was at the checkpoint, classifies the client's own samples of one part.
        current: as in `networks`.
        """
        classes = self.plan.num_classes
        count_CC = np.zeros((classes, classes), np.int64)
        clients = [k for k in range(self.plan.num_clients) if len(self.data.partition.parts[part].of(k))]
        for k, net in self.networks(clients, checkpoint, current):
            samples = self.samples(k, part)
            predicted_N = torch.cat(_outputs(net, samples)).argmax(1)
            np.add.at(count_CC, (samples.y.numpy(), predicted_N.numpy()), 1)
        return count_CC

    def representations(self, clients: Sequence[ClientId], part: str, t: Round = None) -> Representations:
        """Return the representations of each client's own samples by its own network."""
        values, labels, owners = [], [], []
        for k, net in self.networks(clients, self.checkpoint(t)):
            samples = self.samples(k, part)
            own: Any = initial.own_model(net)
            if own is None:
                raise ScenarioError(
                    f"cannot compute representations: the client network {type(net).__name__} has no module that "
                    "defines `features`; choose a run of a method whose clients keep a model with an extractor"
                )
            if len(samples):
                values += [value.numpy() for value in _outputs(own.features, samples)]
                labels.append(samples.y.numpy())
                owners.append(np.full(len(samples), k))
        if not values:
            of = ", ".join(map(str, clients))
            raise ScenarioError(
                f"part: {part} given, but no chosen client ({of}) has samples of this part; choose another part"
            )
        return Representations(np.concatenate(values), np.concatenate(labels), np.concatenate(owners))


@torch.inference_mode()
def _outputs(of: Callable[[Tensor], Tensor], samples: Samples) -> list[Tensor]:
    """Return the outputs for each batch of samples; no batch without samples, for which some networks fail."""
    return [of(batch.x) for batch in samples.in_order(EVALUATION_BATCH)] if len(samples) else []
