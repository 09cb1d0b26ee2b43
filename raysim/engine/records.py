"""Records that the round loop, the backends and the workers exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import RunError
from raysim.common.results import ClientRow
from raysim.core.algorithm import ClientId
from raysim.core.messages import WireSize
from raysim.engine.policies.system import Timing

if TYPE_CHECKING:
    from raysim.engine.plan import Plan

T = TypeVar("T")


@dataclass(frozen=True)
class Pending(Generic[T]):
    """Work that a backend has started; `result` waits until it has ended."""

    result: Callable[[], T]


@dataclass(frozen=True)
class Broadcast:
    """The server's messages of a round: each distinct message once, and its receivers."""

    messages: tuple[Any, ...]  # packed
    of: Mapping[ClientId, int | None]  # client -> position in `messages`; None: the client gets no message


@dataclass(frozen=True)
class NonFiniteUpload:
    """Placeholder for an upload that contains NaN or infinity."""


@dataclass(frozen=True)
class ClientFailure:
    """Placeholder for the upload and report of a client that failed, in a run that tolerates failures."""

    error: RunError | None = None  # None: the client failed when the round ran for the first time

    @property
    def reason(self) -> str:
        """The failure in one sentence."""
        return str(self.error or "it failed before")


@dataclass(frozen=True)
class ClientState:
    """The state of a client that moves to another worker."""

    row: NDArray[np.uint8] | None  # None: both workers use the same file, which keeps the row
    unsaved: bool  # whether the state changed after the last checkpoint


@dataclass(frozen=True)  # with `slots=True`, pickling takes twice as long
class ClientEvaluation:
    """The test of a client's model. Fields with the name of a column of `ClientRow` have its meaning."""

    correct: int
    total: int
    loss_sum: float  # over its own test samples
    val_correct: int
    val_total: int
    global_accuracy: float | None
    seconds: float
    macro_f1: float | None = None
    balanced_accuracy: float | None = None
    class_correct: list[int] = field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """correct / total; None, not 0, without test samples."""
        return self.correct / self.total if self.total else None

    @property
    def loss(self) -> float | None:
        """Mean cross-entropy per test sample."""
        return self.loss_sum / self.total if self.total else None


TESTED = (
    "accuracy", "correct", "total", "loss", "val_correct", "val_total", "global_accuracy", "macro_f1",
    "balanced_accuracy", "class_correct",
)  # fmt: skip
"""Columns of a client's test."""

TESTED_WITH_CURRENT = ("accuracy", "correct", "total", "loss", "val_correct", "val_total")
"""Columns, without their prefix `current_`, of a client's test with the server's current message."""

CurrentTests = Mapping[ClientId, ClientEvaluation | ClientFailure]
"""Tests of all clients with the server's next message, in client-id order; empty: they were not tested."""


@dataclass(frozen=True)  # with `slots=True`, pickling takes twice as long
class ClientReport:
    """One client's part of a round, without its upload."""

    train_loss: float | None  # mean per sample; None without training
    train_samples: int
    up: WireSize
    down: WireSize
    flops: float
    train_s: float
    values: Mapping[str, float]  # values that the algorithm logged
    evaluation: ClientEvaluation | None  # the test before training, if requested
    alone_because: str = ""  # why it was not trained together with its group; empty: no reason
    received_nonfinite: bool = False  # whether its training loss and the message that it received were not finite
    single_sample: bool = False  # whether a training of a BatchNorm network had only one sample


def client_row(
    plan: Plan,
    t: int,
    k: ClientId,
    report: ClientReport | None,
    evaluation: ClientEvaluation | None,
    virtual_s: float | None = None,
    before: ClientEvaluation | None = None,
    current: ClientEvaluation | ClientFailure | None = None,
) -> ClientRow:
    """Return the table row of a client that trained or was tested. before, current: see `RoundReport`."""
    after = current if isinstance(current, ClientEvaluation) else None
    trained = report or _UNTRAINED
    return ClientRow(
        round=t,
        client=k,
        model=plan.arch(k),
        participated=report is not None,
        train_loss=trained.train_loss,
        train_samples=trained.train_samples,
        up_bytes=trained.up.bytes,
        down_bytes=trained.down.bytes,
        up_params=trained.up.params,
        down_params=trained.down.params,
        flops=trained.flops,
        train_s=trained.train_s,
        evaluate_s=sum((one.seconds for one in (evaluation, before, after) if one), 0.0),
        virtual_s=virtual_s,
        before_accuracy=before.accuracy if before else None,
        before_loss=before.loss if before else None,
        **{name: getattr(evaluation, name, None) for name in TESTED},
        **{f"current_{name}": getattr(after, name, None) for name in TESTED_WITH_CURRENT},
    )


_UNTRAINED = ClientReport(None, 0, WireSize(0, 0, {}), WireSize(0, 0, {}), 0.0, 0.0, {}, None)


@dataclass(frozen=True)
class ServerReport:
    """The server's part of a round."""

    values: Mapping[str, float]  # values that the algorithm logged
    flops: float
    seconds: float  # duration of the server's hooks, including sending
    rejected: tuple[ClientId, ...]  # clients whose uploads had NaN or infinity, which the hook did not get


@dataclass(frozen=True)
class TrainingResult:
    """The clients' part of a round."""

    uploads: Sequence[Any]  # the argument of `Backend.aggregate`; on Ray, object references
    reports: Mapping[ClientId, ClientReport]  # in client-id order, like `failed`
    failed: Mapping[ClientId, ClientFailure]  # clients without whom the round continues
    moved: int = 0  # number of clients whose state moved to another actor

    @classmethod
    def of(
        cls,
        cohort: Sequence[Sequence[ClientId]],
        uploads: Sequence[Any],
        reports: Mapping[ClientId, ClientReport | ClientFailure],
        moved: int = 0,
    ) -> TrainingResult:
        """Separate clients that trained from clients that failed."""
        ids = sorted(k for group in cohort for k in group)
        trained = {k: report for k in ids if isinstance(report := reports[k], ClientReport)}
        failed = {k: report for k in ids if isinstance(report := reports[k], ClientFailure)}
        return cls(uploads, trained, failed, moved)

    @cached_property
    def evaluations(self) -> dict[ClientId, ClientEvaluation]:
        """The tests before training."""
        return {k: report.evaluation for k, report in self.reports.items() if report.evaluation is not None}


class CheckpointFile(NamedTuple):
    """A file with the state of some clients, or of the server. A manifest contains its fields as a list."""

    name: str
    size: int  # bytes
    checksum: int
    clients: tuple[ClientId, ...] = ()


SavedFiles = tuple[Sequence[CheckpointFile], CheckpointFile]
"""The files of a checkpoint: (files with clients, file with the server)."""


@dataclass(frozen=True)
class RoundReport:
    """The results of a round."""

    client_reports: Mapping[ClientId, ClientReport]  # clients whose uploads count, in client-id order
    evaluations: Mapping[ClientId, ClientEvaluation]  # tests of the same clients, if they were tested
    server: ServerReport
    moved: int = 0  # number of clients whose state moved to another actor
    failed: Mapping[ClientId, ClientFailure] = field(default_factory=dict)  # clients without whom the round continued
    timing: Timing | None = None  # virtual timing, if the scenario has `system`
    before: Mapping[ClientId, ClientEvaluation] = field(default_factory=dict)
    """Tests of the same clients before their training; empty unless `evaluation.when` is `both`."""
    current: CurrentTests = field(default_factory=dict)

    @property
    def uploaded(self) -> list[ClientId]:
        """The clients that sent an upload, even if it was rejected."""
        return [k for k, one in self.client_reports.items() if one.up.bytes]


@dataclass(frozen=True)
class MemoryReport:
    """Memory of one process, or of all processes of a run, in MiB."""

    resident_mb: float  # without memory that several processes share
    gpu_peak_mb: float = 0.0  # maximum GPU memory of a process so far


class LostError(Exception):
    """A part of the run is lost: an actor, a node or an object. The run can compute it again."""
