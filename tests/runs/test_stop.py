"""`stop` ends a run early: with the bits of a shorter run, also after an interruption, and until `stop` is removed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.common.errors import ScenarioError
from raysim.results.table import summary_rows
from raysim.runs.run import Run, run
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import loaded
from tests.runs.test_closing import recorded
from tests.runs.test_resume import Cut

STOP = "stop={metric: accuracy/all, patience: 2}"


@pytest.mark.usefixtures("recorded_in_mlflow")
def test_a_run_that_ends_early_is_a_shorter_run_and_goes_on_when_it_may(workplace: Path, tracking_store: str) -> None:
    short = run(loaded("rounds=12", STOP), quiet=True)
    t = short.summary["rounds"]
    assert 3 <= t < 12 and short.status == "finished"
    accuracy = short.rounds["accuracy/all"].tolist()
    assert max(accuracy[1:]) == accuracy[t - 2] and len(accuracy) == t + 1
    reason = short.summary["ended_early"]
    assert f"since round {t - 2} " in reason and dict(summary_rows(short.summary))["ended early"] == reason
    same = run(loaded(f"rounds={t}"), quiet=True)
    assert same.state_digest == short.state_digest and "ended early" not in dict(summary_rows(same.summary))
    _, found = recorded(tracking_store, short.folder.name)
    assert found.info.status == "FINISHED" and found.data.tags["ended_early"] == reason

    again = Run(short.folder).resume(quiet=True)
    assert again.summary["nothing_to_do"].endswith("--set stop=null")
    with pytest.raises(ScenarioError, match=r"stop\.patience \(2 before, 1 now\)"):
        Run(short.folder).resume(["stop.patience=1"], quiet=True)
    whole = Run(short.folder).resume(["stop=null"], quiet=True)
    assert whole.summary["rounds"] == 12 and whole.summary["ended_early"] is None
    _, found = recorded(tracking_store, short.folder.name)
    assert found.info.status == "FINISHED" and "ended_early" not in found.data.tags
    assert whole.state_digest == run(loaded("rounds=12"), quiet=True).state_digest


def test_an_interruption_changes_nothing(workplace: Path) -> None:
    short = run(loaded("rounds=12", STOP), quiet=True)
    t = short.summary["rounds"]
    assert t < 12
    with pytest.raises(KeyboardInterrupt):
        run(loaded("rounds=12", STOP, "checkpoint.every=1"), quiet=True, trackers=[Cut(t)])
    (folder,) = (
        path.parent
        for path in Path("runs/tiny").glob("*/summary.json")
        if json.loads(path.read_text())["status"] != "finished"
    )
    resumed = Run(folder).resume(quiet=True)
    assert (resumed.summary["rounds"], resumed.state_digest) == (t, short.state_digest)
    assert resumed.summary["ended_early"] == short.summary["ended_early"]


def test_more_rounds_do_not_change_where_a_run_ends(workplace: Path) -> None:
    # Round 4 is tested only because it is the last: a run of nine rounds is not tested then.
    stop = ("stop={metric: accuracy/all, target: 0.01, min_rounds: 4}", "evaluation.every=3")
    resumed = run(loaded("rounds=4", *stop), quiet=True).resume(["rounds=9"], quiet=True)
    whole = run(loaded("rounds=9", *stop), quiet=True)
    assert resumed.summary["rounds"] == whole.summary["rounds"] == 6
    assert resumed.state_digest == whole.state_digest


def test_what_depends_on_the_number_of_rounds_ends_as_the_longer_run_was(workplace: Path) -> None:
    changes = ["training.schedule={name: cosine}"]
    stop = "stop={metric: accuracy/all, target: 0.01, min_rounds: 2}"
    short = run(loaded("rounds=4", stop, *changes), quiet=True)
    assert short.summary["rounds"] == 2
    assert short.state_digest != run(loaded("rounds=2", *changes), quiet=True).state_digest
    longer = short.resume(["stop=null"], quiet=True)
    assert longer.state_digest == run(loaded("rounds=4", *changes), quiet=True).state_digest


@pytest.mark.parametrize(
    ("sets", "word"),
    [
        (["stop={}"], "patience"),
        (["stop={target: 70}"], "target: 70"),
        (["stop={target: 0.7, metric: accuracy/global}"], "global_test"),
        (["stop={target: 0.7}", "data.split=published"], r"data\.split"),
        (["stop={metric: time/total_s}"], "time/total_s"),
    ],
)
def test_what_is_refused(sets: list[str], word: str) -> None:
    with pytest.raises(ScenarioError, match=word):
        Scenario.of(loaded(*sets))


def test_clients_without_test_samples_cannot_end_a_run(workplace: Path) -> None:
    parts = {"client": [0, 0, 1, 1], "part": ["train", "val"] * 2, "sample": [0, 1, 2, 3]}
    pq.write_table(pa.table(parts), "untested.parquet")
    untested = ["clients.count=2", "data.partition={name: listed, path: untested.parquet}", "data.augment=false"]
    with pytest.raises(ScenarioError, match=r"stop\.metric"):
        run(loaded(*untested, "stop={metric: loss/test, patience: 1}"), quiet=True)
    assert not Path("runs").exists()
