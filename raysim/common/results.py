"""The results of a run, one row per round and one per round and client, and the interface of trackers.

The names are the same everywhere: MLflow metrics, Parquet columns and the table in the terminal.
Accuracies are fractions in [0, 1] in data and per cent only where printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

Scalar = str | int | float | bool | None

Status = Literal["running", "closing", "finished", "failed", "interrupted"]
"""State of a run. "closing": all rounds are done, but plots or MLflow data may be missing, which `resume` adds."""

METRICS: Mapping[str, str] = {
    "accuracy/participants": "mean test accuracy of the round's participants, each on its own test samples",
    "accuracy/participants_pooled": "correctly classified test samples of all participants, divided by all of their "
    "test samples",
    "accuracy/participants_before": "mean test accuracy of the participants after they received the server's message "
    "and before they trained, if `evaluation.when` is `both`",
    "accuracy/all": "mean over all clients of the test accuracy that each client's own network had when it was last "
    "tested; a client that has not taken part yet is tested with its initial network",
    "accuracy/took_part": "like accuracy/all, but without the clients that have not taken part in any round yet",
    "accuracy/all_std": "standard deviation of the clients' test accuracies, whose mean is accuracy/all",
    "accuracy/all_pooled": "share of all clients' test samples that are classified correctly, with the networks used "
    "for accuracy/all",
    "accuracy/worst_decile": "mean accuracy of the worst tenth of the clients in accuracy/all",
    "accuracy/min": "accuracy of the worst client in accuracy/all",
    "accuracy/decile_1": "first decile of the clients' accuracies in accuracy/all: a tenth of the clients have at most "
    "this accuracy",
    "accuracy/median": "median of the clients' accuracies in accuracy/all",
    "accuracy/decile_9": "ninth decile of the clients' accuracies in accuracy/all: nine tenths of the clients have at "
    "most this accuracy",
    "accuracy/jain": "Jain's fairness index of the clients' accuracies in accuracy/all: 1 if all are equal, 1/N if all "
    "but one are 0",
    "accuracy/macro_f1": "macro-averaged F1 of each client's latest model on the client's own test samples, averaged "
    "over all clients",
    "accuracy/balanced": "balanced accuracy (mean over classes of the share that is classified correctly) of each "
    "client's latest model on the client's own test samples, averaged over all clients",
    "accuracy/val": "mean accuracy of all clients that have validation samples on these samples, each with its latest "
    "model",
    "accuracy/all_current": "mean test accuracy of all clients, each tested with a copy of its network that has "
    "received the server's current message; only if `evaluation.clients` is `all`",
    "accuracy/all_current_std": "standard deviation of the clients' test accuracies, whose mean is "
    "accuracy/all_current",
    "accuracy/all_current_pooled": "share of all clients' test samples that are classified correctly, with the "
    "networks used for accuracy/all_current",
    "accuracy/all_current_worst_decile": "mean accuracy of the worst tenth of the clients in accuracy/all_current",
    "accuracy/held_out": "mean test accuracy of the clients that never take part (`clients.held_out`), each with a "
    "copy of its initial network that received the server's current message and trained for `evaluation.fine_tune` "
    "epochs",
    "accuracy/val_current": "like accuracy/val, but with the networks used for accuracy/all_current",
    "accuracy/best": "greatest accuracy/all of rounds 1 to this one; it is optimistic, because the round is chosen by "
    "test accuracy",
    "accuracy/at_best_val": "test accuracy of all clients (accuracy/all) in the round, from 1 on, with the greatest "
    "validation accuracy (accuracy/val) so far",
    "accuracy/best_participants": "greatest accuracy/participants so far",
    "accuracy/best_current": "greatest accuracy/all_current of rounds 1 to this one",
    "accuracy/global": "mean accuracy of the participants' models on the whole published test set",
    "loss/train": "mean training loss per sample of each participant, averaged over participants",
    "loss/test": "mean test loss per sample of each client's latest model, averaged over all clients",
    "loss/test_current": "like loss/test, but with the networks used for accuracy/all_current",
    "training/lr": "learning rate of the round: `training.lr` times the schedule's factor; clients with an override "
    "may use another",
    "comm/up_bytes": "bytes that the participants sent in this round",
    "comm/down_bytes": "bytes that the server sent in this round",
    "comm/total_bytes": "bytes sent in both directions, summed over all rounds so far",
    "comm/up_params": "count of numbers, such as parameters, that the participants sent in this round",
    "comm/down_params": "count of numbers, such as parameters, that the server sent in this round",
    "compute/flops": "floating-point operations of the participants in this round, without evaluation",
    "compute/server_flops": "floating-point operations of `server_update` in this round; they are counted in the first "
    "round with uploads of these shapes, and taken to be the same in later rounds with such uploads",
    "compute/total_flops": "floating-point operations of clients and server, summed over all rounds so far",
    "time/round_s": "seconds of the round",
    "time/train_s": "seconds that client hooks took, summed over participants",
    "time/aggregate_s": "seconds of the server's hooks",
    "time/evaluate_s": "seconds of evaluation, summed over clients",
    "time/total_s": "seconds since the first round began",
    "time/virtual_s": "seconds that the round takes on the simulated devices and connections, if the scenario sets "
    "`system`",
    "time/virtual_total_s": "time/virtual_s, summed over all rounds so far",
    "async/staleness": "mean age of the uploads that count in this round, in rounds, if the scenario sets "
    "`asynchronous`",
    "engine/restarts": "how often the run has returned to a checkpoint after an actor or a node died",
    "engine/participants": "clients that took part in this round: without those that dropped out, were late or failed",
    "engine/absent_clients": "clients that have not taken part in any round yet; accuracy/all tests their initial "
    "networks",
    "engine/failed_clients": "participants that failed in this round; the round continued without them",
    "engine/dropped_clients": "selected clients that do not count: they dropped out, missed the deadline, or finished "
    "after enough other clients (`clients.oversample`); if the scenario sets `system`",
    "engine/moved_clients": "clients whose state moved to another actor in this round",
    "privacy/epsilon": "loss of privacy in all rounds so far, for the delta of section `privacy`; only in rounds with "
    "a test. With `noise_at: client`, it is that of the client that has sent most often",
    "memory/host_mb": "resident memory of the run's processes, in MiB",
    "memory/gpu_peak_mb": "greatest GPU memory of any actor so far, in MiB",
}
"""Metric of the engine -> its meaning. Algorithms add metrics `client/<name>` and `server/<name>`."""


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A client in a round: a row of `clients.parquet`. Fields that end in `_s` are timings, except `virtual_s`."""

    round: int
    """round, from 1; 0: before the first round"""
    client: int
    """client id, from 0"""
    model: str
    """architecture"""
    participated: bool
    """whether the client took part in this round"""
    accuracy: float | None
    """test accuracy, correct / total. This and all other test results are null if not measured in this round"""
    correct: int | None
    """number of correctly classified test samples"""
    total: int | None
    """number of test samples"""
    loss: float | None
    """mean test cross-entropy per sample"""
    val_correct: int | None
    """number of correctly classified validation samples"""
    val_total: int | None
    """number of validation samples"""
    global_accuracy: float | None
    """accuracy on the whole published test set, if the scenario requests it"""
    train_loss: float | None
    """mean training loss per sample of the round; null for a client that did not train"""
    train_samples: int
    """number of samples in training, counted once per epoch"""
    up_bytes: int
    """bytes that the client sent"""
    down_bytes: int
    """bytes that the server sent to the client"""
    up_params: int
    """number of values, such as parameters, that the client sent"""
    down_params: int
    """number of values, such as parameters, that the server sent to the client"""
    flops: float
    """floating-point operations of training, without evaluation"""
    train_s: float
    """seconds in the client's hooks"""
    evaluate_s: float
    """seconds in the client's tests"""
    macro_f1: float | None = None
    """mean F1 over the classes in the test samples or in their predictions"""
    balanced_accuracy: float | None = None
    """mean, over the classes in the test samples, of the share of correctly classified samples"""
    class_correct: list[int] | None = None
    """number of correctly classified test samples per class, for the classes in the client's test samples, by ascending
    class id"""
    virtual_s: float | None = None
    """seconds of the client's part of the round on its simulated device and connection (`system`). With
    `evaluation.clients: all`, late clients have a row and this value, too"""
    before_accuracy: float | None = None
    """test accuracy between receiving the server's message and training, if `evaluation.when` is `both`"""
    before_loss: float | None = None
    """mean test cross-entropy per sample, measured with `before_accuracy`"""
    current_accuracy: float | None = None
    """test accuracy after receiving the message that the server would send next, if `evaluation.clients` is `all`"""
    current_correct: int | None = None
    """number of correctly classified test samples, measured with `current_accuracy`"""
    current_total: int | None = None
    """number of test samples, measured with `current_accuracy`"""
    current_loss: float | None = None
    """mean test cross-entropy per sample, measured with `current_accuracy`"""
    current_val_correct: int | None = None
    """number of correctly classified validation samples, measured with `current_accuracy`"""
    current_val_total: int | None = None
    """number of validation samples, measured with `current_accuracy`"""


@dataclass(frozen=True)
class RunCard:
    """The identity of a run and its facts at the start, which trackers receive."""

    name: str  # name of the scenario
    run_id: str  # the name of the run folder
    folder: Path  # the run folder, absolute
    parameters: Mapping[str, Scalar]  # the resolved scenario, by dotted key
    tags: Mapping[str, str]  # method, data set, partition, number of clients, seed, overridden keys, code
    dataset: str  # value of `data.name`
    dataset_source: str  # path or address of the data
    dataset_digest: str  # SHA-256 of the data set and, if it is another data set, of the public data
    partition_digest: str  # SHA-256 of the positions of every client's samples
    num_samples: int  # number of samples of the whole data set
    num_clients: int
    label: str  # method, seed and overridden keys, as in "fedgh-s1 lr=0.1"
    facts: Summary  # the entries of `summary.json` that are known at the start
    # The first round for `log`. Before a resume, this and later rounds may have been logged already.
    first_round: int = 0


class Summary(TypedDict, total=False):
    """The content of `summary.json`. During the run, it contains only the entries before `rounds`, and `checkpoint`.

    An earlier raysim wrote fewer entries.
    """

    scenario: str
    """name of the scenario"""
    algorithm: str
    """name of the algorithm in the scenario: `fedgh`, or `mine.py:Mine` for a custom method"""
    method: str
    """name of the algorithm in tables; for a custom method, the name of its class"""
    run_id: str
    """name of the run folder"""
    seed: int
    """the scenario's seed"""
    overrides: Mapping[str, Any]
    """dotted keys and values of `--set`"""
    backend: str
    """the scenario's backend"""
    rounds_asked: int
    """number of rounds in the scenario"""
    clients: int
    """number of clients"""
    malicious_clients: list[int]
    """ids of malicious clients, if the scenario has any"""
    held_out_clients: list[int]
    """ids of clients that never take part, if the scenario has any"""
    participants_per_round: int
    """number of clients that a round selects"""
    dataset: Mapping[str, Any]
    """name, source and digest of the data set"""
    public_digest: str
    """digest of the public data, if they are another data set"""
    partition_digest: str
    """digest of the positions of every client's samples"""
    inputs: Mapping[str, str]
    """path -> SHA-256 of the scenario's `inputs`, and of the files of a partition and a trace"""
    versions: Mapping[str, Any]
    """versions of raysim, Python, torch and NumPy; "processor": kind of the machine's processor"""
    code: Mapping[str, Any]
    """digests of the method's files and of raysim, git commit, and changes in resumed runs"""
    folder: str
    """the run folder"""
    status: str
    """a value of `Status`; or "died", which `read_summary` returns if the run's process was killed"""
    rounds: int
    """number of finished rounds"""
    ended_early: str | None
    """why the run ended before its last round"""
    best_round: int | None
    """the round of `accuracy/best`"""
    best_val_round: int | None
    """the round of `accuracy/at_best_val`"""
    best_val: float | None
    """greatest value of `accuracy/val`"""
    final: Mapping[str, Any]
    """metric -> value in the last round that measured it"""
    up_bytes_per_participant: float
    """bytes that a participant sends per round, on average"""
    down_bytes_per_participant: float
    """bytes that a participant receives per round, on average"""
    up_bytes_by_field: Mapping[str, Any]
    """field of the clients' messages -> its bytes in all rounds"""
    down_bytes_by_field: Mapping[str, Any]
    """field of the server's messages -> its bytes in all rounds"""
    uploads: int
    """number of uploads"""
    rejected_uploads: int
    """number of uploads that were left out because of NaN or infinity"""
    diverged_clients: int
    """number of clients whose last loss or upload is not finite"""
    failed_clients: int
    """number of times that a participant failed and the round continued without it"""
    dropped_clients: int
    """number of times that a selected client did not count: see the metric engine/dropped_clients"""
    restarts: int
    """number of times that the run returned to a checkpoint after an actor or a node died"""
    checkpoint: Mapping[str, Any] | None
    """round and folder of the last checkpoint; with `best_val` in `checkpoint.keep`, also `best_val_round`"""
    state_digest: str | None
    """SHA-256 over all client and server state; null before the end"""
    error: str | None
    """why the run failed"""
    actors: int
    """number of client actors"""
    startup: Mapping[str, Any] | float | None
    """seconds until all actors had started; null if the run started none. An earlier raysim also wrote, in a mapping,
    their number"""
    seconds: Mapping[str, Any]
    """seconds of the last process, from the start of its backend to its last checkpoint, without data, plots and MLflow
    ("total"); of the rounds in earlier processes ("before_resume"); and of each phase ("train", "aggregate",
    "evaluate"), summed over clients and server, which work at the same time"""
    mlflow: str | None
    """the address to open, or the command to type, to see the run in MLflow"""
    nothing_to_do: str
    """only in `Run.summary`: how to add rounds, if all rounds were done before `resume`"""
    completed: bool
    """only in `Run.summary`: true if `resume` only added plots or MLflow data"""


def written(overrides: Iterable[tuple[str, object]]) -> list[str]:
    """Return overrides as users type them after `--set`, for example "training.lr=0.1"."""
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in overrides]


LOCK = "logs/.lock"
"""Name of a file in a run folder that the run's process locks until it ends."""


class Tracker(Protocol):
    """Receives a run's results. One thread calls `log`, for rounds in order, and another the other methods.

    >>> import raysim
    >>> class Printed:
    ...     def open(self, card): print("begins")
    ...     def log(self, t, values, clients): print("round", t)
    ...     def close(self, status, summary): print(status)
    >>> sets = ["rounds=1", "backend=in_process"]
    >>> run = raysim.run("quickstart", sets=sets, quiet=True, trackers=[Printed()])
    begins
    round 0
    round 1
    finished
    """

    def open(self, card: RunCard) -> None:
        """Start recording a run. Raises `ScenarioError` if that is impossible."""

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Record round `t` (0: before the first round). values: metric -> value, for measured metrics."""

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Stop recording, because the run has ended. summary: the content of `summary.json`, a `Summary`."""
