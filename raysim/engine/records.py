"""Records that pass between the round loop, the backends and the workers: what was sent, done, measured, lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from raysim.common.results import ClientRow
from raysim.core.algorithm import ClientId
from raysim.core.messages import WireSize

if TYPE_CHECKING:
    from raysim.engine.spec import RunSpec


@dataclass(frozen=True)
class Broadcast:
    """What the server sends in one round: each distinct message once, and who gets which."""

    messages: tuple[Any, ...]  # packed
    of: Mapping[ClientId, int | None]  # client -> position in `messages`; None: nothing is sent


@dataclass(frozen=True)
class NonFiniteUpload:
    """What the server gets in the place of an upload that held a NaN or infinity."""


@dataclass(frozen=True)
class ClientFailure:
    """What stands in the place of a client's upload and turn when the round goes on without it."""

    reason: str  # one sentence
    trace: str = ""


@dataclass(frozen=True)
class ClientState:
    """A client on its way to another host."""

    state: Any  # packed
    unsaved: bool  # changed since the last checkpoint


@dataclass(frozen=True, slots=True)
class EvaluationResult:
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
class ClientEvaluation:
    """How good a client's model is, and what it took to find out."""

    local: EvaluationResult  # on its own test samples
    val_correct: int  # of its own validation samples
    val_total: int
    everyone: EvaluationResult | None  # on the published test set, where asked for
    seconds: float


@dataclass(frozen=True, slots=True)
class ClientReport:
    """What is known of one client after its part of a round, besides its upload."""

    train_loss: float | None  # mean per sample; None when nothing was trained
    train_samples: int
    up: WireSize
    down: WireSize
    flops: float
    train_s: float
    values: Mapping[str, float]  # what the algorithm logged
    evaluation: ClientEvaluation | None  # where models are measured before they train


def client_row(
    spec: RunSpec, t: int, k: ClientId, client_report: ClientReport | None, evaluation: ClientEvaluation | None
) -> ClientRow:
    """The row of a client that had a turn, was measured, or both."""
    local, everyone = (evaluation.local, evaluation.everyone) if evaluation else (None, None)
    return ClientRow(
        round=t,
        client=k,
        model=spec.arch(k),
        participated=client_report is not None,
        accuracy=local.accuracy if local else None,
        correct=local.correct if local else None,
        total=local.total if local else None,
        loss=local.loss if local else None,
        val_correct=evaluation.val_correct if evaluation else None,
        val_total=evaluation.val_total if evaluation else None,
        global_accuracy=everyone.accuracy if everyone else None,
        train_loss=client_report.train_loss if client_report else None,
        train_samples=client_report.train_samples if client_report else 0,
        up_bytes=client_report.up.bytes if client_report else 0,
        down_bytes=client_report.down.bytes if client_report else 0,
        up_params=client_report.up.params if client_report else 0,
        down_params=client_report.down.params if client_report else 0,
        flops=client_report.flops if client_report else 0.0,
        train_s=client_report.train_s if client_report else 0.0,
        evaluate_s=evaluation.seconds if evaluation else 0.0,
    )


@dataclass(frozen=True)
class ServerReport:
    """What is known of the server after a round."""

    values: Mapping[str, float]  # what the algorithm logged
    flops: float
    seconds: float  # in its hooks, sending included
    rejected: tuple[ClientId, ...]  # uploads with a NaN or infinity, which it never saw


@dataclass(frozen=True)
class Startup:
    """How long client actors took to come up when a run began."""

    actors: int
    seconds: float  # from asking for the first until all had answered
    slowest_s: float  # the longest that one took

    @property
    def per_actor_s(self) -> float:
        """Seconds for each: what one more costs where as many start at a time."""
        return self.seconds / self.actors

    def facts(self) -> dict[str, float]:
        """As `summary.json` has it."""
        return {**asdict(self), "per_actor_s": self.per_actor_s}

    @classmethod
    def of(cls, asked_s: Sequence[float], up_s: Sequence[float]) -> Startup:
        """From the moments at which each was asked for, and at which it had answered."""
        each = [up - asked for asked, up in zip(asked_s, up_s, strict=True)]
        return cls(len(each), max(up_s) - min(asked_s), max(each))


class LostError(Exception):
    """A part of the run is gone: an actor, a node, an object. Nothing is lost that could not be computed again."""


def split_failures(
    cohort: Sequence[ClientId], client_reports: Mapping[ClientId, ClientReport | ClientFailure]
) -> tuple[dict[ClientId, ClientReport], dict[ClientId, ClientFailure]]:
    """(turns that were taken, those that failed), in id order."""
    taken = {k: client_report for k in cohort if isinstance(client_report := client_reports[k], ClientReport)}
    return taken, {k: client_report for k in cohort if isinstance(client_report := client_reports[k], ClientFailure)}


def evaluations_before_training(client_reports: Mapping[ClientId, ClientReport]) -> dict[ClientId, ClientEvaluation]:
    """What was measured before clients trained."""
    return {
        k: client_report.evaluation
        for k, client_report in client_reports.items()
        if client_report.evaluation is not None
    }
