"""What every process of a run gets once: the clients' data and models, and how they train. Plain data, no behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from raysim.core.seeds import global_seed
from raysim.engine.learning_rate import Constant, RateSchedule, factor_of
from raysim.plugins.own_code import OwnCode

FEW = 8
"""Minimum group size at which one call is faster: a call costs as much as four steps of a perceptron."""


@dataclass(frozen=True)
class RunSpec:
    """One run, as its workers and its server need it. Picklable; the samples travel apart."""

    algorithm: AnyAlgorithm
    seed: int
    num_classes: int
    feature_dim: int
    models: tuple[str, ...]  # client k has models[k % len(models)]
    build_model: Callable[..., Any]  # name, perhaps feature_dim -> a SplitModel; weights from torch's global generator
    transform: Transform
    local: LocalTraining
    train: Shards
    val: Shards
    test: Shards
    threads: tuple[int, ...]  # intra-op threads of client k's work: threads[k % len(threads)]
    global_test: NDArray[np.int64] | None = None  # positions of the published test samples, where asked for
    evaluate_when: Literal["after_update", "after_receive"] = "after_update"
    independent_init: bool = False  # True: each client draws initial weights of its own
    server_threads: int = 1
    tolerates_failures: bool = False  # whether a round may go on without a client that fails
    may_discard: bool = False  # whether a participant may finish too late, and then stays as it was
    client_timeout_s: float | None = None  # limit of a client's part of a round
    together: Mapping[str, int] = field(default_factory=dict)  # architecture -> clients trained by one call; else 1
    num_rounds: int = 1
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    encoder: Callable[[str], Any] = only_pixels  # as in Task; picklable
    weights_seed: int | None = None  # of initial weights; None: the run's
    public: tuple[NDArray[Any], NDArray[np.int64]] | None = None  # samples as stored and labels that all parties have
    schedule: RateSchedule = field(default_factory=Constant)  # of the learning rate
    own_code: OwnCode = OwnCode()

    def __getstate__(self) -> dict[str, Any]:
        return {"own_code": self.own_code, **vars(self)}  # first: what follows may need its modules

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.train)

    @property
    def init_seed(self) -> int:
        """The seed of initial weights."""
        return self.seed if self.weights_seed is None else self.weights_seed

    def arch(self, k: ClientId) -> str:
        """Client k's architecture."""
        return self.models[k % len(self.models)]

    def groups(self, cohort: Sequence[ClientId]) -> list[tuple[ClientId, ...]]:
        """Who is trained with whom: clients of one architecture, in id order, in groups as equal as they can be.

        A few are trained one by one, unless so few were asked for. A function of the scenario and the cohort alone,
        because bits depend on it.
        """
        of_arch: dict[str, list[ClientId]] = {}
        for k in cohort:
            of_arch.setdefault(self.arch(k), []).append(k)
        found: list[tuple[ClientId, ...]] = []
        for arch, ids in of_arch.items():
            most = self.together.get(arch, 1)
            count = math.ceil(len(ids) / most) if len(ids) >= min(most, FEW) else len(ids)
            ends = [len(ids) * i // count for i in range(count + 1)]
            found += [tuple(ids[begin:end]) for begin, end in pairwise(ends)]
        return sorted(found)

    def local_in(self, t: int) -> LocalTraining:
        """How clients train in round `t`; in round 0, in which no client trains, as in the first."""
        return replace(self.local, lr=self.local.lr * factor_of(self.schedule, max(t, 1), self.num_rounds))

    def fresh_model(self, name: str, *key: int | str, **width: int) -> Any:
        """A new model with the initial weights of `name` (and `key`: of one client, or one purpose).

        width: `feature_dim`, if other than the run's.
        """
        with global_seed(self.init_seed, "init", name, *key):
            return self.build_model(name, **width)

    @cached_property
    def task(self) -> Task:
        """The part of this that algorithms see."""
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
        """n_k: training samples of each client."""
        return dict(enumerate(self.train.size_N.tolist()))

    @property
    def classes(self) -> Mapping[ClientId, Tensor]:
        """The classes of each client that has training samples, ascending: [S] int64."""
        return _Classes(self)

    @cached_property
    def shared_tests(self) -> NDArray[np.int64] | None:
        """All samples that clients are tested or validated on, ascending, where they share them; else None.

        They share them where a network of each architecture sees fewer samples, if it sees all of these, than if it
        sees those of each of its clients.
        """
        used = [self.val.index, self.test.index, *([] if self.global_test is None else [self.global_test])]
        found_U = np.unique(np.concatenate(used))
        seen = len(self.val.index) + len(self.test.index)
        return found_U if 2 * len(found_U) * len(self.task.architectures) <= seen else None

    @cached_property
    def eligible(self) -> list[ClientId]:
        """Clients that hold training samples; the others never take part."""
        return [k for k, count in self.num_samples.items() if count]


@dataclass(frozen=True)
class _Classes(Mapping[ClientId, Tensor]):
    """`RunSpec.classes`, found when a method asks for them: most do not, and 100,000 tensors take a second."""

    spec: RunSpec

    def __getitem__(self, k: ClientId) -> Tensor:
        if not self.spec.num_samples[k]:
            raise KeyError(k)
        return torch.from_numpy(np.unique(self.spec.labels[self.spec.train.of(k)]))

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self.spec.eligible)

    def __len__(self) -> int:
        return len(self.spec.eligible)
