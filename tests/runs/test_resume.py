"""A run that ended anyhow goes on in its folder as if nothing had been; what would be another run is refused."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from raysim.common.errors import RunError, ScenarioError
from raysim.common.results import LOCK, Status
from raysim.engine.checkpoint.storage import Storage, local_folder, open_storage
from raysim.engine.checkpoint.store import CheckpointError, CheckpointStore
from raysim.engine.progress import Progress
from raysim.report.load import read_clients, read_rounds, read_summary
from raysim.runs.run import Run, run
from raysim.runs.summary import label
from raysim.tracking.folder import RunFolder
from raysim.tracking.in_memory import MemoryTracker
from raysim.tracking.mlflow import MlflowTracker
from tests.choices import first
from tests.cli.command import run as command
from tests.engine.scenarios import loaded as mixed
from tests.engine.scenarios import of_method
from tests.engine.scenarios import plain as loaded


def of_results(folder: Path) -> tuple[Any, Any]:
    """rounds.parquet and clients.parquet without what the clock says."""
    rounds, clients = read_rounds(folder), read_clients(folder)
    varying = [name for name in rounds.column_names if name.startswith(("time/", "memory/"))]
    return rounds.drop_columns(varying), clients.drop_columns(["train_s", "evaluate_s"])


class Cut(MemoryTracker):
    """Stops the run in some round, as Ctrl-C twice does."""

    def __init__(self, t: int) -> None:
        super().__init__()
        self.t = t

    def log(self, t: int, values: Any, clients: Any) -> None:
        if t == self.t:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", first(["hks", "fedgh", "fedcache", "dc_pfl", "fedmd", "fedgkt"]))
def test_a_run_that_was_cut_off_goes_on_with_the_same_bits(workplace: Path, method: str) -> None:
    sets = [*of_method(method), "rounds=4", "checkpoint.every=2", "evaluation.every=3"]
    whole = run(mixed(*sets), quiet=True)
    with pytest.raises(KeyboardInterrupt):
        run(mixed(*sets), quiet=True, trackers=[Cut(3)])
    (folder,) = set((workplace / "runs" / "tiny").iterdir()) - {whole.folder}
    result = Run(folder).resume(quiet=True)
    assert result.folder == folder
    assert of_results(folder)[0].equals(of_results(whole.folder)[0])
    assert of_results(folder)[1].equals(of_results(whole.folder)[1])
    varying = {"run_id", "folder", "seconds", "final", "checkpoint", "mlflow"}
    assert {k: v for k, v in result.summary.items() if k not in varying} == {
        k: v for k, v in whole.summary.items() if k not in varying
    }


def test_going_on_with_more_rounds_is_as_if_there_had_always_been_so_many(workplace: Path) -> None:
    whole = run(mixed("rounds=5"), quiet=True)
    short = run(mixed("rounds=2"), quiet=True)
    longer = Run(short.folder).resume(sets=["rounds=5"], quiet=True)
    assert longer.state_digest == whole.state_digest
    assert of_results(longer.folder)[1].equals(of_results(whole.folder)[1])
    again = Run(short.folder).resume(sets=["rounds=5"], quiet=True)
    assert f"raysim resume {short.folder} --set rounds=N" in again.summary["nothing_to_do"]


@pytest.mark.parametrize("when", first(["after_receive", "after_update", "both"]))
def test_the_additional_test_of_the_last_round_is_not_kept(workplace: Path, when: str) -> None:
    """Round 3 is tested only because it is the last one; rounds 4 and 8 do not show that it was."""
    sets = ["evaluation.every=4", f"evaluation.when={when}", "clients.participation=0.25"]
    whole = run(mixed(*sets, "rounds=8"), quiet=True)
    longer = run(mixed(*sets, "rounds=3"), quiet=True)
    longer.resume(sets=["rounds=8"], quiet=True)
    for name in ("accuracy/all", "accuracy/val", "loss/test"):
        longer_T, whole_T = longer.rounds[name], whole.rounds[name]
        assert longer_T.notna().tolist() == [True, False, False, True, True, *[False] * 3, True]
        assert longer_T[[0, 4, 8]].tolist() == whole_T[[0, 4, 8]].tolist()


def test_a_trace_file_may_be_moved(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = workplace / "trace.csv"
    trace.write_text("client,latency_s\n" + "".join(f"{k},{k}\n" for k in range(8)))
    first = run(loaded("system.trace=trace.csv", "rounds=1"), quiet=True)
    monkeypatch.chdir("/")
    assert Run(first.folder).resume(sets=["rounds=2"], quiet=True).summary["rounds"] == 2
    moved = trace.rename(workplace / "moved.csv")
    assert Run(first.folder).resume(sets=["rounds=3", f"system.trace={moved}"], quiet=True).summary["rounds"] == 3
    moved.write_text(moved.read_text().replace("7,7", "7,8"))
    with pytest.raises(ScenarioError, match=r"with different settings: system\.trace_sha256"):
        Run(first.folder).resume(sets=["rounds=4", f"system.trace={moved}", "system.trace_sha256=null"], quiet=True)


def test_resuming_a_finished_run_tells_how_to_run_more_rounds(
    workplace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What it prints is a command that works, where more rounds are possible."""
    folder = run(loaded("rounds=2", "output=with space"), quiet=True).folder
    code, _, err = command(capfd, "resume", str(folder), "--quiet")
    assert code == 0 and f"{folder}: this run is finished: all 2 rounds are done; to run more rounds: " in err
    line = err.partition("to run more rounds: ")[2].partition(", where N is greater than 2")[0]
    words = shlex.split(line.replace("rounds=N", "rounds=3"))
    assert words[0] == "raysim"
    assert command(capfd, *words[1:], "--quiet")[0] == 0
    assert read_summary(folder)["rounds"] == 3


def test_a_finished_run_whose_rounds_depend_on_their_number_cannot_have_more(
    workplace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = run(loaded("rounds=2", "training.schedule={name: cosine}"), quiet=True).folder
    code, _, err = command(capfd, "resume", str(folder), "--quiet")
    assert code == 0 and "all 2 rounds are done; for more rounds, launch a new run" in err
    assert command(capfd, "resume", str(folder), "--set", "rounds=3")[0] == 2


def test_what_a_checkpoint_keeps_is_not_counted_on(workplace: Path) -> None:
    """A checkpoint is written while the next round is counted, which a resumed run then counted twice."""
    progress = Progress(t=3, totals={"bytes": 5, "flops": 1.0}, best={"accuracy/best": 0.5}, stale={1})
    progress.up_components["class_S"], progress.seconds["train"] = 80, 2.0
    facts = progress.facts()
    before = json.dumps(facts)
    for counted in (progress.totals, progress.best, progress.up_components, progress.down_components, progress.seconds):
        counted["bytes"] = counted.get("bytes", 0) + 1  # type: ignore[attr-defined, index]
    progress.stale.add(2)
    assert json.dumps(facts) == before


def test_a_sigterm_while_ray_starts_is_an_interruption(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def starting(*given: Any) -> Any:
        raise SystemExit(15)  # as Ray's handler does

    with monkeypatch.context() as patch:
        patch.setattr("raysim.runs.execution.make_backend", starting)
        with pytest.raises(KeyboardInterrupt):
            run(loaded("rounds=2"), quiet=True)
    (folder,) = (workplace / "runs" / "tiny").iterdir()
    assert read_summary(folder)["status"] == "interrupted"
    assert Run(folder).resume(quiet=True).summary["status"] == "finished"


def test_no_process_gets_the_folder_while_mlflow_reads_it(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    close = MlflowTracker.close

    def look(self: MlflowTracker, status: Status, summary: Mapping[str, object]) -> None:
        seen.append(Path(str(summary["folder"])))
        assert read_summary(seen[0])["status"] == "closing"
        with pytest.raises(ScenarioError, match="still running"):
            RunFolder.reopen(seen[0])
        close(self, status, summary)

    monkeypatch.setattr(MlflowTracker, "close", look)
    run(loaded("rounds=1"), quiet=True)
    RunFolder.reopen(*seen)


def test_a_folder_that_was_moved_goes_on_with_its_own_checkpoints(workplace: Path) -> None:
    whole = run(loaded("rounds=4"), quiet=True)
    short = run(loaded("rounds=2"), quiet=True)
    moved = short.folder.rename(workplace / "elsewhere")
    notes = MemoryTracker()
    longer = Run(moved).resume(sets=["rounds=4"], quiet=True, trackers=[notes])
    assert longer.state_digest == whole.state_digest
    assert [values["round"] for values in notes.rounds] == [3, 4]  # not from the beginning
    assert longer.summary["checkpoint"] == {"round": 4, "folder": str(moved / "checkpoints")}
    assert not short.folder.exists()
    again = moved.rename(workplace / "again")
    assert Run(again).resume(quiet=True).folder == again
    assert Run(again).resume(quiet=True).summary["folder"] == str(again)


def test_a_run_without_a_checkpoint_begins_anew_in_its_folder(workplace: Path) -> None:
    whole = run(loaded(), quiet=True)
    with pytest.raises(KeyboardInterrupt):
        run(loaded("checkpoint.every=0"), quiet=True, trackers=[Cut(2)])
    (folder,) = set((workplace / "runs" / "tiny").iterdir()) - {whole.folder}
    assert Run(folder).resume(sets=["checkpoint.every=1"], quiet=True).state_digest == whole.state_digest
    assert read_rounds(folder)["round"].to_pylist() == [0, 1, 2, 3]


OTHER_MATHS = [
    (
        ["training.lr=0.5", "seed=9"],
        r"different settings: seed \(5 before, 9 now\), training.lr \(0.05 before, 0.5 now\);",
    ),
    (["rounds=1"], r"different settings: rounds \(3 before, 1 now\)"),
    (
        [f"clients.models=[{', '.join(['digits_mlp64', 'digits_cnn_s', 'digits_resnet'] * 3)}]"],
        r"different settings: clients.models \(\[.*\] before, \[digits_mlp64, .*\.\.\. now\)",
    ),
    (
        ["algorithm.name=fedproto"],
        r"different settings: algorithm.name \(fedgh before, fedproto now\); .*; to run .* use `raysim launch`$",
    ),
]


def test_going_on_with_other_maths_or_images_is_refused(workplace: Path) -> None:
    done = run(loaded(), quiet=True)
    before = (done.folder / "summary.json").read_bytes()
    for sets, told in OTHER_MATHS:
        with pytest.raises(ScenarioError, match=told):
            Run(done.folder).resume(sets=sets, quiet=True)
    known = json.loads((done.folder / "run.json").read_text())
    (done.folder / "run.json").write_text(json.dumps({**known, "dataset_digest": "0" * 64}))
    with pytest.raises(ScenarioError, match="the data set of this run had the digest 000000000000"):
        Run(done.folder).resume(sets=["rounds=5"], quiet=True)
    assert (done.folder / "summary.json").read_bytes() == before


def test_a_run_is_called_by_what_tells_it_from_others(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles = []
    monkeypatch.setattr("raysim.runs.execution.plot_accuracy", lambda *_, title: titles.append(title))
    monkeypatch.setattr("raysim.runs.execution.draw_heatmap", lambda *_, title: titles.append(title))
    seen = MemoryTracker()
    sets = ["rounds=1", "training.lr=0.02", "algorithm.name=lg_fedavg", "seed=7", "output=elsewhere"]
    short = run(loaded(*sets), quiet=True, trackers=[seen])
    assert seen.card and seen.card.label == "lg_fedavg-s7 rounds=1 lr=0.02"
    assert titles == ["tiny: lg_fedavg-s7 rounds=1 lr=0.02"] * 2
    overrides = {"rounds": 1, "training.lr": 0.02, "algorithm.name": "lg_fedavg", "seed": 7, "output": "elsewhere"}
    assert short.summary["overrides"] == json.loads((short.folder / "run.json").read_text())["overrides"] == overrides
    tags = {"algorithm": "lg_fedavg", "seed": "7", "overridden": "rounds=1 training.lr=0.02"}
    assert {key: " ".join(sorted(seen.card.tags[key].split())) for key in tags} == tags
    # A run that goes on has been told what it was told first, too.
    longer = Run(short.folder).resume(sets=["rounds=2", "tracking.tags={a: b}"], quiet=True)
    assert longer.summary["overrides"] == {**overrides, "rounds": 2, "tracking.tags.a": "b"}
    assert titles[-1] == "tiny: lg_fedavg-s7 rounds=2 lr=0.02"


def test_a_label_is_short() -> None:
    overrides = {
        "data.partition.name": "iid",
        "data.name": "digits",
        "data.augment": True,
        "tracking.uri": "sqlite:///x",
    }
    assert label("fedgh", 1, overrides) == "fedgh-s1 partition=iid data=digits augment=true"
    assert label("fedgh", 1, {}) == "fedgh-s1"
    long = label("fedgh", 1, {"clients.models": "[cnn1, cnn2, cnn3, cnn4, cnn5]" * 9, "rounds": 3})
    assert len(long) == 120 and long.startswith("fedgh-s1 models=[cnn1, cnn2") and long.endswith("…")


def test_the_summary_of_a_run_that_goes_on_has_what_is_known_already(workplace: Path) -> None:
    class Look(MemoryTracker):
        def log(self, t: int, values: Any, clients: Any) -> None:
            assert self.card
            found.append(json.loads((self.card.folder / "summary.json").read_text()))

    found: list[dict[str, Any]] = []
    known = {"scenario": "tiny", "algorithm": "fedgh", "seed": 5, "overrides": {"rounds": 1}, "rounds_asked": 1}
    run(loaded("rounds=1"), quiet=True, trackers=[Look()])
    assert all(one.items() >= {**known, "status": "running", "clients": 8}.items() for one in found) and found


def test_a_method_that_counts_rounds_cannot_have_more_of_them(workplace: Path) -> None:
    done = run(loaded("algorithm={name: fedkd}"), quiet=True)
    with pytest.raises(ScenarioError, match=r"different settings: rounds \(3 before, 9 now\)"):
        Run(done.folder).resume(sets=["rounds=9"], quiet=True)


@pytest.mark.parametrize("broken", ["missing", "empty", "other keys"])
def test_what_is_no_run_folder_cannot_be_gone_on_with(workplace: Path, broken: str) -> None:
    (workplace / "it").mkdir()
    if broken != "missing":
        (workplace / "it" / "run.json").write_text("{}" if broken == "other keys" else "")
    with pytest.raises(ScenarioError, match=r"run\.json"):
        Run(workplace / "it").resume(quiet=True)


class Elsewhere(MemoryFileSystem):  # type: ignore[misc]
    """A store that outlives the process, as far as anybody can tell."""

    protocol = "elsewhere"
    store: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("elsewhere://")))


@pytest.fixture
def elsewhere() -> None:
    fsspec.register_implementation("elsewhere", Elsewhere, clobber=True)
    Elsewhere.store.clear()


@pytest.mark.usefixtures("elsewhere")
def test_checkpoints_anywhere_fsspec_reaches(workplace: Path) -> None:
    result = run(loaded("checkpoint={every: 1, folder: 'elsewhere://far/away/'}"), quiet=True)
    where = f"elsewhere://far/away/tiny/{result.folder.name}"
    assert result.summary["checkpoint"] == {"round": 3, "folder": where}
    assert [checkpoint.round for checkpoint in CheckpointStore.open(open_storage(where)).kept] == [2, 3]
    longer = Run(result.folder).resume(sets=["rounds=4"], quiet=True)
    assert longer.state_digest == run(loaded("rounds=4"), quiet=True).state_digest


@pytest.mark.usefixtures("elsewhere")
def test_checkpoints_that_are_gone_are_not_begun_without(workplace: Path) -> None:
    """Hours of work would silently be repeated, and what they left in the folder thrown away."""
    result = run(loaded("checkpoint={every: 1, folder: 'elsewhere://far'}"), quiet=True)
    rows = (result.folder / "rounds.parquet").read_bytes()
    Elsewhere.store.clear()
    with pytest.raises(
        ScenarioError, match=r"a checkpoint of round 3 in elsewhere://far/tiny/.* contains no checkpoint"
    ):
        Run(result.folder).resume(sets=["rounds=4"], quiet=True)
    assert (result.folder / "rounds.parquet").read_bytes() == rows


def test_a_killed_run_knows_that_it_had_checkpoints(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = RunFolder.end
    # As if the process were killed.
    monkeypatch.setattr(RunFolder, "end", lambda self, *told: self._clients.close_stream())
    with pytest.raises(KeyboardInterrupt):
        run(loaded("checkpoint.every=1"), quiet=True, trackers=[Cut(3)])
    (folder,) = (workplace / "runs" / "tiny").iterdir()
    with pytest.raises(KeyboardInterrupt):  # and once more, before it has saved anything
        Run(folder).resume(quiet=True, trackers=[Cut(3)])
    monkeypatch.setattr(RunFolder, "end", end)
    assert read_summary(folder)["status"] == "died"
    kept = (folder / "checkpoints").rename(workplace / "kept")
    with pytest.raises(ScenarioError, match=r"a checkpoint of round 2 in .*checkpoints contains no checkpoint"):
        Run(folder).resume(quiet=True)
    kept.rename(folder / "checkpoints")
    assert Run(folder).resume(quiet=True).state_digest == run(loaded(), quiet=True).state_digest


def test_a_relative_address_is_that_folder_from_anywhere(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("file://kept", "local://kept", "kept/", str(workplace / "kept")):
        assert local_folder(address) == workplace / "kept"
    short = run(loaded("rounds=2", "checkpoint.folder='file://kept'"), quiet=True)
    assert short.summary["checkpoint"]["folder"] == str(workplace / "kept" / "tiny" / short.folder.name)
    (workplace / "another").mkdir()
    monkeypatch.chdir(workplace / "another")
    notes = MemoryTracker()
    Run(short.folder).resume(sets=["rounds=3"], quiet=True, trackers=[notes])
    assert [values["round"] for values in notes.rounds] == [3]  # not from the beginning


@pytest.mark.parametrize("damaged", first([["000004"], ["000002", "000004"]]))
@pytest.mark.parametrize("part", first(["clients", "server"]))
def test_a_damaged_checkpoint_does_not_prevent_resuming_from_an_older_one(
    workplace: Path, capfd: pytest.CaptureFixture[str], part: str, damaged: list[str]
) -> None:
    whole = run(mixed("rounds=6"), quiet=True)
    short = run(mixed("rounds=4", "checkpoint.every=2"), quiet=True)
    for t in damaged:
        file = next((short.folder / "checkpoints").glob(f"{part}-{t}*"))
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    capfd.readouterr()
    longer = Run(short.folder).resume(sets=["rounds=6"])
    assert longer.state_digest == whole.state_digest
    for one, other in zip(of_results(longer.folder), of_results(whole.folder), strict=True):
        assert one.equals(other)
    reported = "".join(capfd.readouterr().err.split())  # without spaces, since lines are wrapped anywhere
    line = rf"thecheckpointofround4cannotbeused:\S+?{part}-00000[24]\S+?isdamaged:itscontenthaschanged;goingback"
    assert len(re.findall(line, reported)) == 1
    assert ("resumingafterround2" in reported) == (len(damaged) == 1)
    assert ("nocheckpointwasfound,sotherunstartsfromitsbeginning" in reported) == (len(damaged) == 2)


class Taken(MemoryTracker):
    """Does something to the run's folder in round 2."""

    def __init__(self, act: Callable[[Path], object]) -> None:
        super().__init__()
        self.act = act

    def log(self, t: int, values: Any, clients: Any) -> None:
        assert self.card is not None
        if t == 2:
            self.act(self.card.folder)


def delete(folder: Path) -> None:
    """Delete a folder. It is renamed first, because `rmtree` fails if a checkpoint is written into it meanwhile."""
    shutil.rmtree(folder.rename(folder.with_name("gone")))


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("rounds", [2, 4])
def test_a_run_folder_that_is_deleted_is_missed(workplace: Path, rounds: int, every: int) -> None:
    sets = [f"rounds={rounds}", f"checkpoint.every={every}"]
    with pytest.raises(RunError, match="moved or deleted"):
        run(loaded(*sets), quiet=True, trackers=[Taken(delete)])
    assert list((workplace / "runs" / "tiny").iterdir()) == []


def test_a_run_folder_that_is_moved_is_missed_and_goes_on_there(workplace: Path) -> None:
    whole = run(loaded("rounds=4"), quiet=True)
    away = workplace / "away"
    with pytest.raises(RunError, match="moved or deleted"):
        run(loaded("rounds=4", "checkpoint.every=1"), quiet=True, trackers=[Taken(lambda path: path.rename(away))])
    assert list((workplace / "runs" / "tiny").iterdir()) == [whole.folder]
    assert Run(away).resume(quiet=True).state_digest == whole.state_digest


def test_a_folder_of_checkpoints_that_is_deleted_is_not_made_again_without_them(workplace: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the checkpoint of round \d could not be written to .*no such file"):
        run(
            loaded("rounds=5", "checkpoint.every=1"),
            quiet=True,
            trackers=[Taken(lambda path: delete(path / "checkpoints"))],
        )


@pytest.mark.parametrize("step", ["size", "read"])
def test_checkpoints_that_cannot_be_read_now_cost_no_results(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """For example, because the nodes of another cluster have no credentials."""
    short = run(loaded("rounds=4", "checkpoint.every=2"), quiet=True)
    whole = getattr(Storage, step)

    def refused(self: Storage, name: str) -> Any:
        if name.endswith(".json"):
            return whole(self, name)
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), f"{self.where}/{name}")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, step, refused)
        with pytest.raises(RunError, match=r"cannot be read \(permission denied\); nothing was changed"):
            Run(short.folder).resume(sets=["rounds=6"], quiet=True)
    assert read_rounds(short.folder)["round"].to_pylist() == [0, 1, 2, 3, 4]
    longer = Run(short.folder).resume(sets=["rounds=6"], quiet=True)
    assert longer.state_digest == run(loaded("rounds=6"), quiet=True).state_digest


@pytest.mark.usefixtures("elsewhere")
def test_a_copy_of_a_run_that_may_still_run_leaves_its_checkpoints_alone(workplace: Path) -> None:
    result = run(loaded("checkpoint={every: 1, folder: 'elsewhere://far'}"), quiet=True)
    summary = {**json.loads((result.folder / "summary.json").read_text()), "status": "running"}
    (result.folder / "summary.json").write_text(json.dumps(summary))
    (result.folder / LOCK).unlink()  # as `raysim fetch` leaves it
    with pytest.raises(ScenarioError, match="is a copy of a run that had not ended"):
        Run(result.folder).resume(sets=["rounds=4"], quiet=True)
    (result.folder / LOCK).touch()
    assert Run(result.folder).resume(sets=["rounds=4"], quiet=True).summary["rounds"] == 4


def test_a_run_that_had_not_begun_is_not_to_be_resumed(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raysim.data.shards.Partition.table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(loaded())
    output = capfd.readouterr().err
    assert "launch the scenario again" in output and "resume with" not in output
    (folder,) = (workplace / "runs" / "tiny").iterdir()
    with pytest.raises(ScenarioError, match="launch the scenario again"):
        Run(folder).resume(quiet=True)


def test_checkpoints_in_a_folder_beside_the_current_one(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workplace / "here").mkdir()
    monkeypatch.chdir("here")
    short = run(loaded("rounds=2", "checkpoint.folder=../kept"), quiet=True)
    place = (workplace / "kept").resolve() / "tiny" / short.folder.name
    assert short.summary["checkpoint"]["folder"] == str(place)
    assert short.resume(["rounds=3"], quiet=True).summary["rounds"] == 3


def test_the_command_for_the_browser_opens_the_runs_store(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = run(loaded("rounds=1", f"tracking.uri='sqlite:///{workplace}/my runs.db'"), quiet=True).folder
    (workplace / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    code, out, _ = command(capfd, "resume", str(folder), "--quiet")
    line = out.partition("See the run in the browser:  ")[2].strip()
    assert code == 0 and shlex.split(line) == ["raysim", "ui", "--uri", f"sqlite:///{workplace}/my runs.db"]


def test_another_folder_of_checkpoints_is_not_used(workplace: Path, caplog: pytest.LogCaptureFixture) -> None:
    short = run(loaded("rounds=1"), quiet=True)
    short.resume(["rounds=2", "checkpoint.folder=elsewhere"], quiet=True)
    assert f"the change has no effect, because a resumed run keeps its checkpoints in {short.folder}" in caplog.text
    assert not Path("elsewhere").exists()
