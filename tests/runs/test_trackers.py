"""`tracking.also`: trackers that a scenario names receive every round of a run, of a resumed run and of each cell."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysim.common.errors import RunError, ScenarioError
from raysim.runs.run import Run, run
from raysim.scenario import trackers
from raysim.scenario.scenario import Scenario
from raysim.study.cells import identity
from tests.engine.scenarios import plain as loaded
from tests.runs.test_resume import Cut

MINE = '''
import json
from dataclasses import dataclass


class JsonLines:
    """A line of JSON per round, in the run folder."""

    def __init__(self, name="rounds.jsonl"):
        self.name = name

    def open(self, card):
        self.file = (card.folder / self.name).open("a")
        self.write({"first": card.first_round})

    def log(self, t, values, clients):
        self.write({"round": t, "accuracy": values.get("accuracy/all"), "clients": len(clients)})

    def close(self, status, summary):
        self.write({"status": status})
        self.file.close()

    def write(self, values):
        self.file.write(json.dumps(values) + "\\n")
        self.file.flush()


@dataclass
class Fails:
    """Raises an exception in one round."""

    at: int = 2

    def open(self, card): pass

    def log(self, t, values, clients):
        if t == self.at:
            raise ZeroDivisionError("of mine")

    def close(self, status, summary): pass


class NoTracker:
    def open(self, card): pass
    def close(self, status, summary): pass
'''
LINES = "tracking.also=[./mine.py:JsonLines]"


@pytest.fixture
def place(workplace: Path) -> Path:
    (workplace / "mine.py").write_text(MINE)
    return workplace


def lines(folder: Path, name: str = "rounds.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_an_own_tracker_receives_every_round_and_changes_no_result(place: Path) -> None:
    plain = run(loaded("rounds=2"), quiet=True)
    also = "tracking.also=[./mine.py:JsonLines, {name: ./mine.py:JsonLines}]"
    tracked = run(loaded("rounds=2", also), quiet=True)
    assert tracked.state_digest == plain.state_digest
    assert [line["round"] for line in lines(tracked.folder) if "round" in line] == [0, 0, 1, 1, 2, 2]
    assert [line for line in lines(tracked.folder) if "status" in line] == [{"status": "finished"}] * 2
    assert plain.summary["code"]["files"] == tracked.summary["code"]["files"]
    assert identity(loaded("rounds=2")) == identity(loaded("rounds=2", LINES))


def test_a_resumed_run_continues_its_trackers_and_says_from_which_round(place: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(loaded("rounds=4", "checkpoint.every=2", LINES), quiet=True, trackers=[Cut(3)])
    (folder,) = (place / "runs" / "tiny").iterdir()
    (place / "mine.py").unlink()  # the run folder has a copy
    Run(folder).resume(quiet=True)
    Run(folder).resume(["rounds=5", "tracking.also=[]"], quiet=True)
    found = lines(folder)
    assert [line["round"] for line in found if "round" in line] == [0, 1, 2, 3, 4]
    assert [line["first"] for line in found if "first" in line] == [0, 3]
    assert found[-1] == {"status": "finished"}


def test_a_tracker_that_raises_ends_the_run_and_resume_continues(place: Path) -> None:
    with pytest.raises(RunError, match=r"mine\.py:Fails.*ZeroDivisionError"):
        run(loaded("rounds=4", "checkpoint.every=1", "tracking.also=[./mine.py:Fails]"), quiet=True)
    (folder,) = (place / "runs" / "tiny").iterdir()
    assert Run(folder).status == "failed"
    assert Run(folder).resume(["tracking.also=[{name: ./mine.py:Fails, at: 9}]"], quiet=True).status == "finished"
    whole = run(loaded("rounds=4"), quiet=True)
    assert whole.state_digest == Run(folder).state_digest


@pytest.mark.parametrize(
    ("also", "word"),
    [
        ("tensorboard", "tracking.also"),
        ("[tensorbord]", "'tensorboard'"),
        ("[wandb, {name: wandb, projekt: x}]", "tracking.also.1.projekt"),
    ],
)
def test_refused(place: Path, also: str, word: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        Scenario.of(loaded(f"tracking.also={also}"))
    assert word in str(raised.value)


@pytest.mark.parametrize(
    ("also", "word"), [("[./mine.py:NoTracker]", "open, log, close"), ("[{name: wandb}]", "raysim[wandb]")]
)
def test_refused_before_anything_is_written(place: Path, also: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ScenarioError) as raised:
        run(loaded(f"tracking.also={also}"), quiet=True)
    assert word in str(raised.value)
    assert [path.name for path in place.iterdir()] == ["mine.py"]


def steps(folder: Path) -> dict[str, list[int]]:
    """The steps of each tag that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def interrupted(place: Path, also: str) -> Path:
    """The folder of a run that was cut off in round 3 of 4, after a checkpoint of round 2."""
    with pytest.raises(KeyboardInterrupt):
        # The cut comes last, so that round 3 reaches the trackers, and comes again after `resume`.
        sets = ["rounds=4", "checkpoint.every=2", f"tracking.also=[{also}, {{name: ./cut.py:Cut}}]"]
        (place / "cut.py").write_text(
            "from tests.runs.test_resume import Cut as Real\nclass Cut(Real):\n    def __init__(self):\n"
            "        super().__init__(3)\n"
        )
        run(loaded(*sets), quiet=True)
    (folder,) = (place / "runs" / "tiny").iterdir()
    return folder


def test_tensorboard_shows_each_round_of_a_resumed_run_once(place: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = interrupted(place, "tensorboard")
    assert steps(folder)["accuracy/all"] == [0, 1, 2, 3]
    done = Run(folder).resume(["tracking.also=[tensorboard]"], quiet=True)
    found = steps(folder)
    assert found["accuracy/all"] == [0, 1, 2, 3, 4]
    assert found["comm/total_bytes"] == [1, 2, 3, 4]
    assert found.keys() == {name for name in done.rounds.dropna(axis=1, how="all").columns if name != "round"}


@pytest.mark.large
def test_wandb_continues_its_run_offline(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    ids: list[Any] = []
    real: Callable[..., Any] = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **given: ids.append((given["id"], given["project"])) or real(**given))
    folder = interrupted(place, "{name: wandb, project: mine}")
    done = Run(folder).resume(["tracking.also=[{name: wandb, project: mine}]"], quiet=True)
    assert done.status == "finished"
    assert ids == [(folder.name, "mine")] * 2
    kept = sorted((place / "wandb").glob(f"offline-run-*/run-{folder.name}.wandb"))
    assert len(kept) == 2 and all(path.stat().st_size > 1000 for path in kept)


def test_rounds_come_from_one_thread_and_the_rest_from_the_callers(workplace: Path) -> None:
    called: dict[str, set[int]] = {"open": set(), "log": set(), "close": set()}

    class Threads:
        def open(self, card: Any) -> None:
            called["open"].add(threading.get_ident())

        def log(self, t: int, values: Any, clients: Any) -> None:
            called["log"].add(threading.get_ident())

        def close(self, status: str, summary: Any) -> None:
            called["close"].add(threading.get_ident())

    run(loaded("rounds=2"), quiet=True, trackers=[Threads()])
    assert called["open"] == called["close"] == {threading.get_ident()}
    assert len(called["log"]) == 1 and called["log"].isdisjoint(called["open"])
