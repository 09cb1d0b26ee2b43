"""The networks, samples and representations of a run, read from its folder and checkpoints on the CPU, without Ray.

Shapes: N samples, C classes, D representation width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from raysim.common.errors import RunError, ScenarioError
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
    scenario: Scenario
    plan: Plan  # the plan of the run's workers, without actors
    data: RunData
    store: CheckpointStore

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
        return cls(folder, scenario, replace(plan, initial=initial_of(folder, scenario)), data, checkpoints_of(folder))

    @cached_property
    def raw_M(self) -> NDArray[Any]:
        """All samples of the data set, as stored."""
        return self.data.raw()

    @property
    def method(self) -> str:
        """The name of the run's algorithm."""
        return self.scenario.algorithm_name

    def check_clients(self, clients: Collection[ClientId]) -> None:
        """Raise `ScenarioError` if one of these clients does not exist."""
        for k in clients:
            if isinstance(k, bool) or not isinstance(k, Integral) or not 0 <= k < self.plan.num_clients:
                last = self.plan.num_clients - 1
                raise ScenarioError(f"client {k!r} given, but {self.folder} has clients 0 to {last}")

    def checkpoint(self, t: Round = None) -> Checkpoint:
        """Return the checkpoint of round `t`. Raises `ScenarioError` if it does not exist."""
        latest = self.store.latest()
        kept = {checkpoint.round: checkpoint for checkpoint in self.store.kept}
        if latest is None:
            raise ScenarioError(
                f"{self.folder} has no intact checkpoint ({self.store.damage[-1]}); restore its checkpoint files"
                if self.store.damage
                else f"{self.folder} has no checkpoint: it has saved none yet, it has checkpoint.every: 0, or `raysim "
                "fetch` copied it without --checkpoints"
            )
        if t == BEST_VAL:
            return self._best_val(latest, kept)
        if t is not None and (isinstance(t, str) or t < 0):
            raise ScenarioError(
                f"round: {t!r} given; give the number of a round, {BEST_VAL!r}, or None for the latest saved state"
            )
        if t is not None and t not in kept:
            s = "s" if len(kept) > 1 else ""
            raise ScenarioError(
                f"round {t} given, but {self.folder} has only the state{s} after round{s} "
                f"{' and '.join(map(str, kept))}; "
                f"for the state after round {t}, run the scenario again with rounds: {t}. If the learning rate or the "
                f"method depends on `rounds`, the state after round {t} of the new run differs from that of this run"
            )
        return latest if t is None else kept[t]

    def _best_val(self, latest: Checkpoint, kept: Mapping[int, Checkpoint]) -> Checkpoint:
        """Return the checkpoint of the best round by validation. Raises `ScenarioError` if it is missing or damaged."""
        t = latest.facts.get("best_val_round")
        if not isinstance(t, int):
            raise ScenarioError(
                f"round {BEST_VAL} given, but {self.folder} contains no validation accuracy of the rounds up to "
                f"{latest.round}; give the number of a round instead"
            )
        state = f"the state after round {t}, the best by validation"
        if t in kept:
            return kept[t]
        if BEST_VAL not in self.scenario.checkpoint.keep:
            raise ScenarioError(
                f"{self.folder}: {state}, was not kept; run the scenario again with checkpoint.keep: [last, {BEST_VAL}]"
            )
        raise ScenarioError(
            f"{self.folder}: {state}, is lost: {self.store.storage.where} has no intact checkpoint of this round; "
            "restore the files of this checkpoint there"
        )

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
        except (RuntimeError, KeyError) as error:
            if isinstance(error, RunError):
                raise
            raise RunError(
                f"{self.folder}: the state after round {checkpoint.round} does not fit the networks that the code "
                f"creates now ({error}); restore the code that the run was made with"
            ) from error
        finally:
            backend.close()

    def nets(self, clients: Sequence[ClientId], t: Round = None, current: bool = False) -> dict[ClientId, nn.Module]:
        """Return the networks of these clients after round `t`, in eval mode; initial ones if they never took part.

        current: after they also received the message that the server would send next, as for `accuracy/all_current`.
        """
        self.check_clients(clients)
        checkpoint = self.checkpoint(t)
        with self.backend(clients, checkpoint) as backend:
            receive = _receiver(backend, checkpoint, current)
            nets = {}
            for k in clients:
                nets[k] = backend.worker.states.open(k)
                receive(k)
            return {k: net.eval() for k, net in nets.items()}

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
            "input": self.scenario.dataset.input_spec.shape_text,
            "transform": plan.transform,
        }
        with self.backend(range(plan.num_clients), checkpoint) as backend:
            for k in range(plan.num_clients):
                own = {name: str(value) for name, value in {"client": k, "architecture": plan.arch(k), **facts}.items()}
                with backend.worker.states.reading(k) as net:
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

    def look_again(self) -> None:
        """Read the list of checkpoints again, because a run in progress replaces them."""
        self.store = checkpoints_of(self.folder)

    def predictions(
        self, k: ClientId, part: str, t: Round = None, current: bool = False, probabilities: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Test a client on its samples of one part; return columns `sample`, `label`, `predicted` and `probability`.

        current: as in `nets`. probabilities: also a column per class, such as `probability_0`.
        """
        samples = self.samples(k, part)
        net = self.nets([k], t, current)[k]
        with torch.inference_mode():
            # Some networks fail for a batch without samples.
            logits = [net(batch.x) for batch in samples.in_order(EVALUATION_BATCH)] if len(samples) else []
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
        One network is in memory at a time. current: as in `nets`.
        """
        classes = self.plan.num_classes
        count_CC = np.zeros((classes, classes), np.int64)
        clients = [k for k in range(self.plan.num_clients) if len(self.data.partition.parts[part].of(k))]
        with self.backend(clients, checkpoint) as backend:
            receive = _receiver(backend, checkpoint, current)
            for k in clients:
                with backend.worker.states.reading(k) as net:
                    receive(k)  # not in inference mode, because some methods train when they receive a message
                    net.eval()
                    with torch.inference_mode():
                        for batch in self.samples(k, part).in_order(EVALUATION_BATCH):
                            np.add.at(count_CC, (batch.y.numpy(), net(batch.x).argmax(1).numpy()), 1)
        return count_CC

    @torch.inference_mode()
    def representations(self, clients: Sequence[ClientId], part: str, t: Round = None) -> Representations:
        """Return the representations of each client's own samples by its own network."""
        if not len(clients):
            raise ScenarioError("clients: none given; give at least one client")
        values, labels, owners = [], [], []
        for k, net in self.nets(clients, t).items():
            samples = self.samples(k, part)
            own = require_own_model(net)
            if not len(samples):
                continue
            values += [own.features(batch.x).numpy() for batch in samples.in_order(EVALUATION_BATCH)]
            labels.append(samples.y.numpy())
            owners.append(np.full(len(samples), k))
        if not values:
            of = ", ".join(map(str, clients))
            raise ScenarioError(
                f"part: {part} given, but no chosen client ({of}) has samples of this part; choose another part"
            )
        return Representations(np.concatenate(values), np.concatenate(labels), np.concatenate(owners))


def _receiver(backend: InProcessBackend, checkpoint: Checkpoint, current: bool) -> Callable[[ClientId], None]:
    """Return a function that makes a client receive the message after the checkpoint; without `current`, a no-op."""
    if not current:
        return lambda k: None
    t = checkpoint.round + 1
    return backend.worker.training.receiver(t, backend.server.current(t))


def require_own_model(net: nn.Module) -> Any:
    """Return the model of the client's own architecture within its network. Raises `ScenarioError` without one.

    Raises `ScenarioError` if there is none.
    """
    if (model := initial.own_model(net)) is not None:
        return model
    raise ScenarioError(
        f"cannot compute representations: the client network {type(net).__name__} has no module that defines "
        "`features`; choose a run of a method whose clients keep a model with an extractor"
    )
