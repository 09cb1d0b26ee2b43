"""`Run`: one run folder, whether its run is finished, still running, interrupted or damaged.

Every property reads the folder on each access, so a `Run` of a run in progress shows its current state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.common.results import Summary, Tracker
from raysim.data import datasets
from raysim.engine.stop import Stop
from raysim.results.client_rows import last_measured
from raysim.results.folder import RunFolder
from raysim.results.load import (
    class_accuracy,
    read_clients,
    read_partition,
    read_rounds,
    read_summary,
)
from raysim.results.store import check_uri
from raysim.runs.execution import RESUME, Execution, Options
from raysim.runs.find import find_run
from raysim.runs.identity import Identity, run_scenario
from raysim.runs.machine import only_in_process
from raysim.runs.plan import make_plan
from raysim.runs.resume import resume
from raysim.runs.warm_start import warm_start
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario
from raysim.scenario.trackers import trackers_of

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from raysim.core.data import Samples
    from raysim.runs.opened import OpenedRun, Representations, Round


class Run:
    """A run, opened by its folder or, if it is below ./runs, by its id.

    A property or method raises `ScenarioError` if a file that it needs is missing or damaged, and `CheckpointError` if
    it is a file of a checkpoint; the others still work.

    Attributes:
        folder: the run folder, an absolute path.

    >>> import raysim
    >>> run = raysim.run("quickstart", sets=["rounds=2", "backend=in_process"], quiet=True)
    >>> run.status, list(run.rounds["round"])
    ('finished', [0, 1, 2])
    >>> again = raysim.Run(run.folder.name)  # by its id, from the folder that contains runs/
    >>> again.resume(["rounds=3"], quiet=True).summary["rounds"]
    3
    """

    def __init__(self, run: os.PathLike[str] | str) -> None:
        """Open a run. Raises `ScenarioError` unless the folder or a run with this id below ./runs exists."""
        self.folder = find_run(os.fspath(run))
        self._ending: Summary = {}  # result of `resume`
        self._opened: OpenedRun | None = None

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def __fspath__(self) -> str:
        """The folder, so that functions that take the path of a run, such as `raysim.compare`, also take a run."""
        return str(self.folder)

    @property
    def summary(self) -> Summary:
        """The content of `summary.json`. During the run, it has only the facts that were known at the start.

        After `resume` of a run that had all its rounds, it also has `nothing_to_do`, which says how to add rounds, or
        `completed`, if only plots or MLflow data were missing.
        """
        return {**read_summary(self.folder), "folder": str(self.folder), **self._ending}

    @property
    def status(self) -> str:
        """`running`, `closing` (all rounds are done), `finished`, `interrupted`, `failed` or `died` (it was killed)."""
        return str(self.summary["status"])

    @property
    def state_digest(self) -> str | None:
        """SHA-256 over all client and server state, which is equal for bit-identical runs. None before the end."""
        return self.summary.get("state_digest")

    @property
    def scenario(self) -> Scenario:
        """The run's scenario with all defaults and overrides."""
        return Scenario.of(run_scenario(self.folder))

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per round, and one column per metric. `raysim describe metrics` explains the metrics."""
        return read_rounds(self.folder).to_pandas()

    @property
    def clients(self) -> pd.DataFrame:
        """One row per round and client that took part or was tested; see `raysim describe clients.parquet`."""
        return read_clients(self.folder).to_pandas()

    @property
    def latest(self) -> pd.DataFrame:
        """For each client, the row of `clients` with its latest test. The mean of `accuracy` is `accuracy/all`."""
        return last_measured(read_clients(self.folder)).to_pandas().set_index("client")

    @property
    def classes(self) -> pd.DataFrame:
        """One row per class of the test samples, with id, name and accuracy in all clients' latest tests.

        The columns are class, name (None in a run of an earlier raysim), correct, total and accuracy.
        """
        return class_accuracy(self.folder).to_pandas()

    @property
    def partition(self) -> pd.DataFrame:
        """One row per sample of a client: client, part (train, val or test), sample, label."""
        return read_partition(self.folder).to_pandas()

    def resume(
        self,
        sets: Sequence[str] = (),
        *,
        scenario: ParsedScenario | None = None,
        quiet: bool = False,
        trackers: Sequence[Tracker] = (),
        code_changed: bool = False,
        stop: Stop | None = None,
        resume_command: str = RESUME,
    ) -> Run:
        """Resume the run from its last checkpoint, in the same folder and MLflow run, and return it.

        sets: overrides of settings that do not change the result, or more `rounds`. scenario: the scenario to resume
        with, instead of the run's own with `sets`. code_changed: resume although the code of the method or of raysim
        has changed. The other arguments are those of `raysim.run`.
        A run that has all its rounds is not changed, except that missing plots and MLflow data are added, without Ray.
        Raises `ScenarioError` when the run cannot be resumed, `RunError` when it fails.
        """
        if scenario is None:
            datasets.forget()
            scenario = run_scenario(self.folder, sets, code_changed=code_changed)
        options = Options(quiet, trackers, resume_command, stop or Stop())
        with only_in_process(scenario.backend):
            self._ending = resume(self.folder, checked(scenario), options, code_changed=code_changed)
        self._opened = None
        return self

    def client(self, k: int, round: Round = None) -> RunClient:
        """Return client k. Raises `ScenarioError` if it does not exist, or if the data differ from those of the run.

        round: the saved state that `network` and `predictions` use, as in `RunClient.network_after`.
        """
        self._open().check_clients([k])
        return RunClient(self, k, round)

    def representations(self, clients: Sequence[int], part: str = "test", round: Round = None) -> Representations:
        """Return the inputs of the headers for each client's samples of one part, computed by the client's own network.

        The arrays are `value_ND` float32 [N, D], `label_N` int64 [N] and `client_N` int64 [N]. part: train, val or
        test. round: as in `RunClient.network_after`. Raises `ScenarioError` for an unknown client, part or round, and
        if none of the clients has samples of the part.
        """
        return self._open().representations(clients, part, round)

    def export(self, folder: os.PathLike[str] | str, round: Round = None) -> None:
        """Write each client's `network` to client-K.safetensors in `folder`. Reading such a file needs no raysim.

        The metadata of a file name the architecture and what it was built with. round: as in
        `RunClient.network_after`. Raises `ScenarioError` if the round has no checkpoint.
        """
        self._open().export(Path(folder), round)

    def _open(self) -> OpenedRun:
        """Open the run's data once."""
        from raysim.runs.opened import OpenedRun

        if self._opened is None:
            datasets.forget()
            self._opened = OpenedRun.of(self.folder)
        return self._opened


class ClientData(NamedTuple):
    """A client's samples, as partitioned and without augmentation.

    Each part has `raw_N` as stored (images uint8 [N, H, W, C]), `x` as networks read them ([N, C, H, W]), and `y`, the
    labels.
    """

    train: Samples
    val: Samples
    test: Samples


class RunClient:
    """One client of a run, on the CPU.

    Attributes:
        run: the run.
        id: the client's id, from 0.
        round: the round after which `network` and `predictions` have the client's state, as in `network_after`.

    >>> import raysim
    >>> run = raysim.run("quickstart", sets=["rounds=1", "backend=in_process"], quiet=True)
    >>> client = run.client(3)
    >>> client.data.train.x.shape[1:], client.network(client.data.test.x).shape[1:]
    (torch.Size([1, 8, 8]), torch.Size([10]))
    >>> list(client.predictions("test"))
    ['sample', 'label', 'predicted', 'probability']
    """

    def __init__(self, run: Run, k: int, round: Round = None) -> None:
        self.run, self.id, self.round = run, k, round

    def __repr__(self) -> str:
        return f"{self.run!r}.client({self.id}{'' if self.round is None else f', round={self.round!r}'})"

    @property
    def network(self) -> nn.Module:
        """The client's network after `round`, in eval mode, including all parts that the method keeps for the client.

        It reads normalised samples, such as `data.test.x`, and returns logits [N, C].
        """
        return self.network_after(self.round)

    def network_after(self, round: Round) -> nn.Module:
        """Return the client's network after a round with a checkpoint (one of the last two); None: the latest.

        "best_val": the round with the greatest validation accuracy, if `checkpoint.keep` has `best_val`. A client that
        had not taken part until then has its initial network. Raises `ScenarioError` if the round has no checkpoint.
        """
        return self.run._open().network(self.id, round)

    @property
    def current_network(self) -> nn.Module:
        """The client's network after `round`, after it has also received the server's next message.

        It has the accuracy that `accuracy/all_current` counts for this client. For FedAvg and the like, this is the
        global model; a method whose clients use the message only while they train has `network`. It can be opened
        whether or not the run tests all clients.
        """
        return self.run._open().network(self.id, self.round, current=True)

    @property
    def data(self) -> ClientData:
        """The client's training, validation and test samples."""
        opened = self.run._open()
        return ClientData(*(opened.samples(self.id, part) for part in ClientData._fields))

    def predictions(self, part: str = "test", current: bool = False, *, probabilities: bool = False) -> pd.DataFrame:
        """Test the client's network on its own samples of one part: train, val or test.

        current: test `current_network` instead of `network`.
        Returns one row per sample: `sample` (its position in the data set), `label`, `predicted`, and `probability` of
        the predicted class (softmax of the logits). probabilities: also return the probability of every class c, as
        `probability_c`, such as `probability_0`. Raises `ScenarioError` for an unknown part.
        """
        import pandas as pd

        return pd.DataFrame(self.run._open().predictions(self.id, part, self.round, current, probabilities))


def run(
    scenario: ParsedScenario | str | Path | Mapping[str, Any],
    *,
    sets: Sequence[str] = (),
    quiet: bool = False,
    trackers: Sequence[Tracker] = (),
    stop: Stop | None = None,
    resume_command: str = RESUME,
) -> Run:
    """Run a scenario to its end and return the run.

    scenario: a `Scenario`, a YAML file, or the same content as a mapping. sets: overrides such as "training.lr=0.1",
    for a file or mapping. quiet: show no progress, warnings or notes. trackers: receive every round, in addition to the
    run folder and MLflow. stop: ends the run after the current round, as Ctrl-C does, once `stop.requested` is set.
    resume_command: the command that is shown, followed by the run folder, when the run ends early.
    Raises `ScenarioError` when the run cannot start, `RunError` when it cannot continue; the finished rounds are kept
    in the run folder, and `Run.resume` continues from the last checkpoint. Ctrl-C and SIGTERM end the run with
    `KeyboardInterrupt`: the first signal after the current round, which is saved, the second at once.

    With `backend: in_process`, hooks draw from torch's global generators in this process. Until the run ends, other
    threads must not use these; opening a run's networks or loading a scenario does, except in a tracker.

    >>> import raysim
    >>> run = raysim.run("quickstart", sets=["rounds=1", "training.lr=0.1", "backend=in_process"], quiet=True)
    >>> run.status, run.scenario.training.lr
    ('finished', 0.1)
    """
    if not isinstance(scenario, ParsedScenario):
        scenario = Scenario.load(scenario, sets)
    elif sets:
        raise ScenarioError(
            f"sets: {list(sets)} given, but the scenario is already loaded; pass the overrides to Scenario.load"
        )
    given = checked(scenario)
    with only_in_process(given.backend):
        given.own_code.activate()
        options = Options(quiet, trackers_of(given, trackers), resume_command, stop or Stop())
        tracking = check_uri(given.tracking.uri)
        plan, data = warm_start(*make_plan(given))
        identity = Identity.new(data, tracking)
        folder = RunFolder.create(given.results_folder(), identity.run_id)
        Execution(plan, data, identity, folder, options).run()
    return Run(folder.path)


def checked(scenario: ParsedScenario) -> Scenario:
    """Return the scenario, checked if it was only parsed. Raises `ScenarioError`."""
    return scenario if isinstance(scenario, Scenario) else Scenario.of(scenario)
