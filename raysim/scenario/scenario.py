"""`Scenario`: every key with its value and every name with its object, after all checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.core.robust import RobustMean
from raysim.data.partition_counts import Split
from raysim.data.specs import DatasetSpec, Files
from raysim.engine.learning_rate import WarmsUp
from raysim.engine.policies.asynchronous import UploadBuffer
from raysim.engine.policies.attacks import Malicious
from raysim.engine.policies.placement import ResourceRequest
from raysim.engine.policies.privacy import ClientPrivacy
from raysim.engine.policies.sampling import Participation, draw_share
from raysim.engine.stragglers import StragglerDraws
from raysim.scenario import rules
from raysim.scenario.clients import (
    builder,
    count_participants,
    feature_dim_of,
    malicious_of,
    own_training_of,
    participation_of,
    requests_of,
    together_of,
)
from raysim.scenario.data import with_data
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.schema import Training

if TYPE_CHECKING:
    import raysim
    from raysim.core.algorithm import Task
    from raysim.core.fit import LocalTraining


class Scenario(ParsedScenario):
    """A scenario that can run. Its names are resolved, and its parts fit each other.

    Keys can be read directly, such as `rounds` and `training.lr`. A key that names something holds the object:
    `algorithm` is for example a `FedGH`, `data.partition` a `Dirichlet`. `resolved` contains every choice that raysim
    made.

    >>> import raysim
    >>> scenario = raysim.Scenario.load("quickstart", ["rounds=1", "backend=in_process"])
    >>> scenario.rounds, scenario.clients.count, type(scenario.algorithm).__name__, scenario.data.partition
    (1, 20, 'FedGH', Pathological(classes_per_client=2))
    >>> scenario.run(quiet=True).status
    'finished'
    """

    dataset: DatasetSpec  # as networks read it
    split: Split  # name of the split, or shares of training, validation and test samples
    files: Files | None  # settings of a user's own data; None: a published data set
    public_size: int  # P, the number of public samples
    held_back: int  # number of training samples among the public samples, which no client gets
    feature_dim: int
    participants: int  # K, the number of clients in a round
    participation: Participation
    malicious: Malicious | None
    held_out: frozenset[int]  # ids of clients that never take part
    own_training: Mapping[int, Training]  # client -> settings from an override
    together: Mapping[str, int]  # architecture -> number of clients that one call trains
    requests: tuple[ResourceRequest, ...]

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any], sets: Sequence[str] = ()) -> Scenario:
        """Load a scenario and check it.

        source: a YAML file, or the same content as a mapping. sets: overrides such as "training.lr=0.1"; values are
        YAML.
        Raises `ScenarioError`, one sentence naming the file or override, the key, what was given and what is allowed.
        """
        from raysim.data import datasets  # imported here, because it imports Arrow and Pillow

        datasets.forget()
        return cls.of(parse_scenario(source, sets))

    @classmethod
    def of(cls, parsed: ParsedScenario) -> Scenario:
        """Resolve every name of a scenario, and refuse combinations that cannot run.

        Reads the data set only if its size is not known from its name, and does not start Ray. Raises `ScenarioError`,
        one sentence.
        """
        for rule in rules.BEFORE:
            rule(parsed)
        parsed, data = with_data(parsed)
        feature_dim = feature_dim_of(parsed, data.dataset)
        own_training = own_training_of(parsed)
        together = together_of(parsed, data.dataset, feature_dim, own_training)
        scenario = cls.model_construct(
            **dict(parsed.with_choices(training={"together": together})),
            **data._asdict(),
            feature_dim=feature_dim,
            participants=count_participants(parsed),
            participation=participation_of(parsed),
            malicious=malicious_of(parsed),
            held_out=draw_share(parsed.seed_of("cohorts"), "held_out", parsed.clients.held_out, parsed.clients.number),
            own_training=own_training,
            together=together,
            requests=requests_of(parsed),
        )
        for check in rules.AFTER:
            check(scenario)
        return scenario

    def run(self, *, quiet: bool = False) -> raysim.Run:
        """Run the scenario to its end and return the run; `raysim.run` has more options."""
        import raysim

        return raysim.run(self, quiet=quiet)

    @cached_property
    def task(self) -> Task:
        """The task of all clients and the server, as far as it is known before the run."""
        import torch

        from raysim.core.algorithm import Task
        from raysim.core.data import tensors
        from raysim.models.encoders import build_encoder

        build, public, size = self.build, None, self.public_size
        if size:  # placeholders for public samples, with or without labels
            label = torch.tensor(0 if self.held_back else -1)
            public = tensors(torch.zeros(()).expand(size, *self.dataset.input_spec.shape), label.expand(size))
        return Task(
            self.dataset.num_classes,
            self.feature_dim,
            self.architectures,
            # The purposes of weights (`key`) are ignored, because only a run has initial weights.
            lambda name, *key, **width: build(name, **width),
            self.rounds,
            partial(build_encoder, kind=self.dataset.input_spec.kind),
            public,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about valid settings that may be unintended."""
        texts: list[str] = []
        training = self.training
        if training.optimizer != "sgd" and training.momentum:
            texts.append(
                f"training.momentum: {training.momentum:g} has no effect, because the optimizer is {training.optimizer}"
            )
        if training.stragglers and max(one.epochs for one in (training, *self.own_training.values())) == 1:
            texts.append("training.stragglers: this section has no effect, because all clients train for 1 epoch only")
        schedule: object = training.schedule
        if isinstance(schedule, WarmsUp) and schedule.warmup >= self.rounds:
            texts.append(
                f"training.schedule.warmup: {schedule.warmup} rounds given, so all {self.rounds} rounds are warm-up"
            )
        if self.stop is not None and not self.may_end_early:
            texts.append(
                f"stop: the run cannot end early: its conditions hold after round {self.rounds} at the earliest"
            )
        for name, warmup in self.warmup.items():
            if warmup >= self.rounds:
                texts.append(f"algorithm.{name}: {warmup} rounds given, so all {self.rounds} rounds are warm-up")
        views = self.algorithm.two_views
        if views and getattr(self.algorithm, views) and not self.data.augment:
            images = self.dataset.input_spec.kind == "image"
            remedy = "set it to true" if images else f"raysim cannot augment {self.dataset.name}"
            texts.append(
                f"data.augment: false given, but {self.method} compares two augmented views of each sample, which are "
                f"now equal; {remedy}, or set algorithm.{views} to false"
            )
        return tuple(texts)

    @property
    def may_end_early(self) -> bool:
        """Whether the conditions of `stop` are checked, and can be fulfilled, before the last round."""
        if self.stop is None:
            return False
        tests = self.evaluation
        every = lcm(tests.every, tests.global_every or 1, (tests.all_every or 1) if tests.clients == "all" else 1)
        first = every if self.stop.target is not None else every + (self.stop.patience or 0)
        return (self.rounds - 1) // every * every >= max(first, self.stop.min_rounds)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures of the clients, each once, in order of first use."""
        return tuple(dict.fromkeys(self.clients.models[: self.clients.number]))

    @property
    def build(self) -> Any:
        """A picklable function from an architecture's name to a new model for this task."""
        return builder(self.dataset, self.feature_dim)

    @property
    def local(self) -> LocalTraining:
        """The training settings of clients without an override."""
        return _local(self.training)

    @property
    def own_local(self) -> dict[int, LocalTraining]:
        """Client -> training settings, for clients that an override selects."""
        # Many clients share a settings object, which is converted only once.
        local = {id(training): _local(training) for training in self.own_training.values()}
        return {k: local[id(training)] for k, training in self.own_training.items()}

    @property
    def robust(self) -> RobustMean | None:
        """The rule that replaces the mean of uploads; None: the method's mean is used."""
        given = self.aggregator
        return None if given is None else RobustMean(given.rule, given.mixing)

    @property
    def buffered(self) -> UploadBuffer | None:
        """The settings of asynchronous rounds; None: a round waits for all its uploads."""
        given = self.asynchronous
        return None if given is None else UploadBuffer(given.buffer, given.discount, given.rate)

    @property
    def client_privacy(self) -> ClientPrivacy | None:
        """Clipping and noise of uploads; None: no privacy."""
        given, clients = self.privacy, self.clients
        if given is None:
            return None
        name = self.resolved["clients"]["selection"]["name"]
        sampling: Any = name if name in ("poisson", "uniform") else "other"
        share = self.participants / clients.number
        return ClientPrivacy(
            **given.model_dump(), sampling=sampling, share=share, clients=clients.number, seed=self.seed
        )

    @property
    def stragglers(self) -> StragglerDraws | None:
        """The draw of clients that do not finish their epochs; None: all clients finish."""
        given = self.training.stragglers
        return None if given is None else StragglerDraws(given.share, self.seed_of("cohorts"))


def _local(training: Training) -> LocalTraining:
    from raysim.core.fit import LocalTraining

    return LocalTraining(**training.model_dump(exclude={"stragglers", "together", "schedule", "overrides"}))
