"""A run that ended anyhow goes on in its folder as if nothing had been; what would be another run is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from raysim.common.errors import RunError, ScenarioError
from raysim.common.results import LOCK
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.results.in_memory import MemoryTracker
from raysim.results.load import read_clients, read_rounds
from raysim.runs.run import Run, run
from tests.choices import first
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


@pytest.mark.parametrize("method", first(["hks", "fedcache", "dc_pfl", "fedmd"]))
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
    whole = run(loaded("rounds=5"), quiet=True)
    short = run(loaded("rounds=2"), quiet=True)
    longer = Run(short.folder).resume(sets=["rounds=5"], quiet=True)
    assert longer.state_digest == whole.state_digest
    assert of_results(longer.folder)[1].equals(of_results(whole.folder)[1])
    again = Run(short.folder).resume(sets=["rounds=5"], quiet=True)
    assert "--set rounds=" in again.summary["nothing_to_do"]
    assert (
        again.summary["overrides"] == json.loads((short.folder / "run.json").read_text())["overrides"] == {"rounds": 5}
    )


def test_the_additional_test_of_the_last_round_is_not_kept(workplace: Path) -> None:
    """Round 3 is tested only because it is the last one; rounds 4 and 6 do not show that it was."""
    sets = ["evaluation={every: 4, when: both, clients: all}", "clients.participation=0.25"]
    whole = run(loaded(*sets, "rounds=6"), quiet=True)
    longer = run(loaded(*sets, "rounds=3"), quiet=True)
    longer.resume(sets=["rounds=6"], quiet=True)
    for name in ("accuracy/all", "accuracy/val", "loss/test", "accuracy/all_current"):
        longer_T, whole_T = longer.rounds[name], whole.rounds[name]
        assert longer_T.notna().tolist() == [True, False, False, True, True, False, True]
        assert longer_T[[0, 4, 6]].tolist() == whole_T[[0, 4, 6]].tolist()


def test_a_trace_file_may_be_moved(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = workplace / "trace.csv"
    trace.write_text("client,latency_s\n" + "".join(f"{k},{k}\n" for k in range(8)))
    first = run(loaded("system.trace=trace.csv", "rounds=1"), quiet=True)
    monkeypatch.chdir("/")
    assert Run(first.folder).resume(sets=["rounds=2"], quiet=True).summary["rounds"] == 2
    moved = trace.rename(workplace / "moved.csv")
    assert Run(first.folder).resume(sets=["rounds=3", f"system.trace={moved}"], quiet=True).summary["rounds"] == 3
    moved.write_text(moved.read_text().replace("7,7", "7,8"))
    with pytest.raises(ScenarioError, match="has changed since this run began"):
        Run(first.folder).resume(sets=["rounds=4", f"system.trace={moved}"], quiet=True)


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


def test_going_on_with_other_maths_or_images_is_refused(workplace: Path) -> None:
    done = run(loaded(), quiet=True)
    before = (done.folder / "summary.json").read_bytes()
    for item in ("training.lr=0.5", "rounds=1", "clients.models=[digits_cnn_s]"):
        with pytest.raises(ScenarioError, match=item.partition("=")[0]):
            Run(done.folder).resume(sets=[item], quiet=True)
    known = json.loads((done.folder / "run.json").read_text())
    (done.folder / "run.json").write_text(json.dumps({**known, "dataset_digest": "0" * 64}))
    with pytest.raises(ScenarioError, match="000000000000"):
        Run(done.folder).resume(sets=["rounds=5"], quiet=True)
    assert (done.folder / "summary.json").read_bytes() == before


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
    """Where they are gone, a resumed run does not silently begin anew and throw away the rows of the folder."""
    result = run(loaded("checkpoint={every: 1, folder: 'elsewhere://far/away/'}"), quiet=True)
    where = f"elsewhere://far/away/tiny/{result.folder.name}"
    assert result.summary["checkpoint"] == {"round": 3, "folder": where}
    assert [checkpoint.round for checkpoint in CheckpointStore.open(open_storage(where)).kept] == [2, 3]
    longer = Run(result.folder).resume(sets=["rounds=4"], quiet=True)
    assert longer.state_digest == run(loaded("rounds=4"), quiet=True).state_digest
    rows = (result.folder / "rounds.parquet").read_bytes()
    Elsewhere.store.clear()
    with pytest.raises(ScenarioError, match="elsewhere://far"):
        Run(result.folder).resume(sets=["rounds=5"], quiet=True)
    assert (result.folder / "rounds.parquet").read_bytes() == rows


def test_a_damaged_checkpoint_does_not_prevent_resuming_from_an_older_one_or_the_start(
    workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = run(loaded("rounds=5"), quiet=True)
    short = run(loaded("rounds=4", "checkpoint.every=2"), quiet=True)
    copy = shutil.copytree(short.folder, workplace / "copy")
    for folder, damaged in ((short.folder, ["clients-000004"]), (copy, ["server-000002", "server-000004"])):
        for name in damaged:
            file = next((folder / "checkpoints").glob(f"{name}*"))
            data = file.read_bytes()
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        longer = Run(folder).resume(sets=["rounds=5"], quiet=True)
        assert longer.state_digest == whole.state_digest
        for one, other in zip(of_results(longer.folder), of_results(whole.folder), strict=True):
            assert one.equals(other)
        assert damaged[-1] in caplog.text


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


def test_a_run_folder_that_is_deleted_is_missed(workplace: Path) -> None:
    with pytest.raises(RunError, match="moved or deleted"):
        run(loaded("rounds=4", "checkpoint.every=1"), quiet=True, trackers=[Taken(delete)])
    assert list((workplace / "runs" / "tiny").iterdir()) == []


@pytest.mark.usefixtures("elsewhere")
def test_a_copy_of_a_run_that_may_still_run_leaves_its_checkpoints_alone(workplace: Path) -> None:
    result = run(loaded("checkpoint={every: 1, folder: 'elsewhere://far'}"), quiet=True)
    summary = {**json.loads((result.folder / "summary.json").read_text()), "status": "running"}
    (result.folder / "summary.json").write_text(json.dumps(summary))
    (result.folder / LOCK).unlink()  # as `raysim fetch` leaves it
    with pytest.raises(ScenarioError, match="copy"):
        Run(result.folder).resume(sets=["rounds=4"], quiet=True)
    (result.folder / LOCK).touch()
    assert Run(result.folder).resume(sets=["rounds=4"], quiet=True).summary["rounds"] == 4


def test_a_run_that_had_not_begun_is_not_to_be_resumed(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raysim.data.shards.Partition.table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(loaded(), quiet=True)
    (folder,) = (workplace / "runs" / "tiny").iterdir()
    with pytest.raises(ScenarioError, match="launch"):
        Run(folder).resume(quiet=True)
