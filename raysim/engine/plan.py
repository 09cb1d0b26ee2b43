"""`Plan`: what the rounds of a run need: clients, data, training, tests, cohorts. Each process gets a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysim.common.shards import Shards
from raysim.core.algorithm import AnyAlgorithm, ClientId, Task, only_pixels
from raysim.core.data import Samples, Transform, shared
from raysim.core.fit import LocalTraining
from raysim.core.robust import RobustMean
from raysim.core.seeds import global_seed
from raysim.engine.initial import Initial
from raysim.engine.learning_rate import Constant, RateSchedule, factor_of
from raysim.engine.policies.asynchronous import Flight, UploadBuffer
from raysim.engine.policies.attacks import Malicious
from raysim.engine.policies.evaluations import EvaluationSchedule
from raysim.engine.policies.placement import Layout
from raysim.engine.policies.privacy import ClientPrivacy
from raysim.engine.policies.sampling import Participation
from raysim.engine.policies.sampling import cohort as select
from raysim.engine.policies.stopping import StoppingRule
from raysim.engine.policies.system import Timing, time_round
from raysim.engine.stages import Stage
from raysim.engine.stragglers import StragglerDraws
from raysim.plugins.own_code import OwnCode

FEW = 8
"""Minimum group size at which one call is faster, because a call costs as much as four steps of a perceptron."""


@dataclass(frozen=True)
class Plan:
    """Everything that the rounds of a run need, except the samples, which are sent separately."""

    algorithm: AnyAlgorithm
    seed: int
    num_classes: int
    feature_dim: int
    models: tuple[str, ...]  # client k has models[k % len(models)]
    build_model: Callable[..., Any]  # (name, optional feature_dim) -> a SplitModel with weights from torch's generator
    transform: Transform
    local: LocalTraining  # settings of the server and of clients without own settings
    train: Shards
    val: Shards
    test: Shards
    threads: tuple[int, ...]  # intra-op threads of client k's work: threads[k % len(threads)]
    layout: Layout | None = None  # the actors, which never change a result; None: no round is left
    num_rounds: int = 1
    participants: int = 1  # K, the number of participants of a round
    participation: Participation = Participation()
    malicious: Malicious | None = None  # clients that change their samples or uploads
    held_out: frozenset[ClientId] = frozenset()  # clients that never take part, and are tested as new ones
    fine_tune: int = 0  # epochs that a client of `held_out` trains before a test
    robust: RobustMean | None = None  # the rule that replaces the mean of uploads
    privacy: ClientPrivacy | None = None  # clipping and noise
    asynchronous: UploadBuffer | None = None  # None: a round ends with the uploads of all its participants
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    public: tuple[NDArray[Any], NDArray[np.int64]] | None = None  # samples as stored, and labels, of `Task.public`
    encoder: Callable[[str], Any] = only_pixels  # as in `Task`; picklable
    # Settings of clients that an override selects.
    own_local: Mapping[ClientId, LocalTraining] = field(default_factory=dict)
    schedule: RateSchedule = field(default_factory=Constant)  # schedule of the learning rate
    stragglers: StragglerDraws | None = None  # which clients do not finish their epochs
    # architecture -> maximum number of clients in one call; default: 1
    together: Mapping[str, int] = field(default_factory=dict)
    independent_init: bool = False  # True: each client draws separate initial weights
    weights_seed: int | None = None  # seed of initial weights; None: the run's seed
    initial: Initial | None = None  # the state of another run that this run begins with
    evaluate_when: Literal["after_update", "after_receive", "both"] = "after_update"
    evaluations: EvaluationSchedule = EvaluationSchedule()
    global_test: NDArray[np.int64] | None = None  # positions of the published test samples, if requested
    stopping: StoppingRule | None = None
    max_failed_fraction: float = 0.0  # maximum share of a round's participants that may fail without ending the run
    max_attempts: int = 5  # maximum number of recoveries between two completed rounds
    client_timeout_s: float | None = None  # time limit of a client's part of a round
    own_code: OwnCode = OwnCode()

    def __getstate__(self) -> dict[str, Any]:
        # `own_code` is unpickled first, because other fields may need its modules
        return {"own_code": self.own_code, **vars(self)}

    @property
    def num_clients(self) -> int:
        """Number of clients, N."""
        return len(self.train)

    @property
    def tolerates_failures(self) -> bool:
        """Whether a round may continue without a client that fails."""
        return self.max_failed_fraction > 0

    @property
    def may_discard(self) -> bool:
        """Whether participants may be late; late participants keep their earlier state."""
        return self.participation.deadline_s is not None or self.participation.oversample > 1

    @property
    def separate_init(self) -> bool:
        """Whether clients of one architecture may have different initial weights."""
        return self.independent_init or self.initial is not None

    @property
    def init_seed(self) -> int:
        """The seed of initial weights."""
        return self.seed if self.weights_seed is None else self.weights_seed

    @property
    def stages(self) -> list[Stage]:
        """The stages that change uploads before `server_update`, in order."""
        return [stage for stage in (self.malicious, self.privacy) if stage is not None]

    def arch(self, k: ClientId) -> str:
        """Return client k's architecture."""
        return self.models[k % len(self.models)]

    def groups(self, cohort: Sequence[ClientId]) -> list[tuple[ClientId, ...]]:
        """Split a cohort into groups to train together: clients of one architecture and of similar size, in id order.

        Clients of one architecture that train with different settings, except epochs, are in different groups.

        Fewer than `FEW` clients are trained one by one, unless the scenario sets a smaller group size. The groups
        depend on the scenario and the cohort alone, because grouping changes the last bits of results.
        """
        alike: dict[tuple[str, LocalTraining | None], list[ClientId]] = {}
        for k in cohort:
            settings = replace(self.local_of(k), epochs=1) if self.own_local else None
            alike.setdefault((self.arch(k), settings), []).append(k)
        groups: list[tuple[ClientId, ...]] = []
        for (arch, _), ids in alike.items():
            most = self.together.get(arch, 1)
            count = math.ceil(len(ids) / most) if len(ids) >= min(most, FEW) else len(ids)
            ends = [len(ids) * i // count for i in range(count + 1)]
            groups += [tuple(ids[begin:end]) for begin, end in pairwise(ends)]
        return sorted(groups)

    def cohort(self, t: int, busy: Collection[ClientId] = ()) -> Sequence[ClientId]:
        """Return the clients that take part in round `t`: the selected clients without those that drop out.

        busy: clients whose uploads have not arrived yet; only in an asynchronous run.
        """
        selected, system = self._selected(t, busy), self.participation.system
        return selected if system is None else system.finishing(self._cohorts_seed, t, selected)

    def timing(self, t: int, seconds: Mapping[ClientId, float], failed: int, flight: Flight) -> Timing:
        """Return the virtual timing of round `t`. seconds: of clients that trained. failed: number of failed clients.

        flight: in an asynchronous run, after the round before.
        """
        dropped = len(self._selected(t, flight.arrivals)) - len(seconds) - failed
        if self.asynchronous is not None:
            return self.asynchronous.timing(flight, t, seconds, dropped)
        return time_round(seconds, self.participants, self.participation.deadline_s, dropped, failed)

    def _selected(self, t: int, busy: Collection[ClientId]) -> Sequence[ClientId]:
        idle = tuple(k for k in self.eligible if k not in busy) if busy else self.eligible
        size, samples = self.participants - len(busy), self.num_samples
        return select(self._cohorts_seed, t, idle, size, samples, self.participation)

    @property
    def _cohorts_seed(self) -> int:
        return self.seed if self.participation.seed is None else self.participation.seed

    def train_labels(self, k: ClientId) -> NDArray[np.int64]:
        """Return the labels that client k trains on; those of a malicious client may be changed."""
        label_N = self.labels[self.train.of(k)]
        return label_N if self.malicious is None else self.malicious.labels(k, label_N, self.num_classes)

    def local_of(self, k: ClientId) -> LocalTraining:
        """Return client k's training settings from the scenario, before schedule and stragglers are applied."""
        return self.own_local.get(k, self.local)

    def epochs_in(self, t: int, k: ClientId) -> int:
        """Return client k's epochs in round `t`. No client trains in round 0, so that round has no stragglers."""
        epochs = self.local_of(k).epochs
        return epochs if self.stragglers is None or t < 1 else self.stragglers.epochs(epochs, t, k)

    def trained_samples(self, t: int, k: ClientId) -> int:
        """Return about how many samples client k trains on in round `t`; a sample counts each time that it is used."""
        local = self.local_of(k)
        if local.steps is not None:
            return local.steps * min(local.batch_size, self.num_samples[k])
        return self.epochs_in(t, k) * self.num_samples[k]

    def local_in(self, t: int, k: ClientId | None = None) -> LocalTraining:
        """Return training settings with the learning rate of round `t`. Round 0, which has no training, has that of 1.

        k: the client, with its epochs in this round; None: those of clients without settings of their own.
        """
        local = self.local if k is None else replace(self.local_of(k), epochs=self.epochs_in(t, k))
        return replace(local, lr=local.lr * factor_of(self.schedule, max(t, 1), self.num_rounds))

    def fresh_model(self, name: str, *key: int | str, **width: int) -> Any:
        """Return a new model with the initial weights of `name`. key: a client, or a purpose, with separate weights.

        width: `feature_dim`, if it differs from the run's.
        """
        device = torch.empty(0).device  # torch's default device, which in a hook of a client on a GPU is this GPU
        with global_seed(self.init_seed, "init", name, *key):
            if device.type == "cpu":
                return self.build_model(name, **width)
            with torch.device("cpu"):  # generators of other devices would draw other weights
                model = self.build_model(name, **width)
        return model.to(device)

    @cached_property
    def task(self) -> Task:
        """The part of the plan that algorithms see."""
        used = dict.fromkeys(self.models[: self.num_clients])
        return Task(
            self.num_classes,
            self.feature_dim,
            tuple(used),
            self.fresh_model,
            self.num_rounds,
            self.encoder,
            self._public(),
        )

    def _public(self) -> Samples | None:
        if self.public is None:
            return None
        raw_P, label_P = self.public
        return Samples(shared(raw_P), shared(label_P), self.transform)

    @cached_property
    def num_samples(self) -> dict[ClientId, int]:
        """n_k, the number of training samples of each client."""
        return dict(enumerate(self.train.size_N.tolist()))

    @property
    def classes(self) -> Mapping[ClientId, Tensor]:
        """The ids of the classes of each client with training samples, ascending: [S] int64."""
        counts = self.num_samples.items()
        return {k: torch.from_numpy(np.unique(self.train_labels(k))) for k, count in counts if count}

    @cached_property
    def shared_tests(self) -> NDArray[np.int64] | None:
        """Positions of all test and validation samples, ascending; None unless clients share many of these samples.

        They do if running one network per architecture on all these samples takes at most half as many samples as
        running every client's network on the client's own samples.
        """
        used = [self.val.index, self.test.index, *([] if self.global_test is None else [self.global_test])]
        found_U = np.unique(np.concatenate(used))
        seen = len(self.val.index) + len(self.test.index)
        return found_U if 2 * len(found_U) * len(self.task.architectures) <= seen else None

    @cached_property
    def eligible(self) -> tuple[ClientId, ...]:
        """Clients that can take part: those with training samples that are not held out."""
        return tuple(k for k, count in self.num_samples.items() if count and k not in self.held_out)
