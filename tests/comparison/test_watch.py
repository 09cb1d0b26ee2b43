"""`raysim report --watch`: a page that refreshes itself until its runs have ended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raysim.common.errors import ScenarioError
from raysim.common.files import hold
from raysim.common.results import LOCK
from raysim.comparison.compare import compare
from raysim.comparison.sweep_card import CellCard, SweepCard
from raysim.comparison.watch import EVERY_S, SWEEP_LOCK, Watched, watch
from tests.cli.command import run
from tests.comparison.runs import make_run

pytestmark = pytest.mark.usefixtures("undrawn")

REFRESH = f'<meta http-equiv="refresh" content="{round(EVERY_S)}">'


def begin(folder: Path, accuracy: list[float], method: str = "fedgh", **facts: object) -> int:
    """A run in progress, which this process holds; returns the handle of its lock."""
    made = make_run(folder, method, accuracy=accuracy)
    summary = {"status": "running", "rounds_asked": 9, "participants_per_round": 1, "partition_digest": "p1", **facts}
    (made / "summary.json").write_text(json.dumps(summary))
    (made / "logs").mkdir()
    return hold(made / LOCK)


def end(folder: Path, handle: int) -> None:
    os.close(handle)
    summary = json.loads((folder / "summary.json").read_text())
    rounds = summary.get("rounds_asked", 9)
    (folder / "summary.json").write_text(json.dumps({**summary, "status": "finished", "rounds": rounds}))


def test_a_run_until_it_ends(tmp_path: Path) -> None:
    folder, page = tmp_path / "run", tmp_path / "r.html"
    handle = begin(folder, [0.1, 0.2, 0.3])
    pages, waited, told = [], [], []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        pages.append(page.read_text())
        end(folder, handle)

    assert watch([folder], page, show=told.append, sleep=sleep) == page
    (during,) = pages
    assert REFRESH in during and "<li>run: running; 2 of 9 rounds</li>" in during and "30.00" in during
    assert "running after 2 of 2 rounds" not in during and during.count("<svg") >= 3
    assert REFRESH not in page.read_text() and "<li>run: finished; 9 of 9 rounds</li>" in page.read_text()
    assert told == ["run: running; 2 of 9 rounds", "run: finished; 9 of 9 rounds"] and waited[0] >= EVERY_S


def steps(*actions: Callable[[], object]) -> Callable[[float], None]:
    """A `sleep` that does the next action instead."""
    left = list(actions)

    def sleep(seconds: float) -> None:
        left.pop(0)()

    return sleep


def test_a_sweep_from_before_it_begins(tmp_path: Path) -> None:
    """Between two cells no run is running, but the sweep is."""
    sweep, page = tmp_path / "sweep", tmp_path / "r.html"
    pages: list[str] = []
    handles: list[int] = []

    def started() -> None:
        pages.append(page.read_text())
        sweep.mkdir()
        SweepCard("", {"a": CellCard("A"), "b": CellCard("B")}, baseline="B").write(sweep)
        handles.append(hold(sweep / SWEEP_LOCK))

    def first_done() -> None:
        pages.append(page.read_text())
        end(sweep / "a" / "run", begin(sweep / "a" / "run", [0.1, 0.2], rounds_asked=3))

    def second_runs() -> None:
        pages.append(page.read_text())
        handles.append(begin(sweep / "b" / "run", [0.1, 0.2], "fd"))

    def ended() -> None:
        pages.append(page.read_text())
        end(sweep / "b" / "run", handles.pop())
        os.close(handles.pop())

    watch([sweep], page, sleep=steps(started, first_done, second_runs, ended))
    assert all(REFRESH in one for one in pages) and REFRESH not in page.read_text()
    for text, line in zip(
        [*pages, page.read_text()],
        [
            "no run has begun yet", "2 waiting", "1 finished, 1 waiting; 3 of 3 rounds of these runs",
            "1 finished, 1 running; 4 of 12 rounds of these runs", "2 finished; 12 of 12 rounds of these runs",
        ],
        strict=True,
    ):  # fmt: skip
        assert f"<li>sweep: {line}</li>" in text
    assert "<td>A</td>" in page.read_text() and "<td>B</td>" in page.read_text()


def test_ctrl_c_leaves_a_page_that_does_not_refresh(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    handle = begin(tmp_path / "run", [0.1, 0.2])
    with pytest.raises(KeyboardInterrupt):
        watch([tmp_path / "run"], tmp_path / "r.html", sleep=steps(interrupted))
    assert REFRESH not in (tmp_path / "r.html").read_text() and "1 of 9 rounds" in (tmp_path / "r.html").read_text()
    os.close(handle)


@pytest.mark.parametrize("metric", [None, "accuracy/all_current"])
def test_ctrl_c_leaves_the_baseline_and_does_without_a_metric_of_later_rounds(
    tmp_path: Path, metric: str | None
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    handle = begin(tmp_path / "runs" / "a", [0.1, 0.2])
    make_run(tmp_path / "runs" / "b", "standalone")
    with pytest.raises(KeyboardInterrupt):
        watch([tmp_path / "runs"], tmp_path / "r.html", "standalone", sleep=steps(interrupted), metric=metric)
    page = (tmp_path / "r.html").read_text()
    assert REFRESH not in page and ("vs standalone" in page) == (metric is None)
    os.close(handle)


def test_ctrl_c_before_anything_is_known_leaves_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(folder: Path) -> Watched:
        raise KeyboardInterrupt

    (tmp_path / "r.html").write_text("an earlier report")
    monkeypatch.setattr(Watched, "of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watch([tmp_path / "run"], tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == "an earlier report"


def test_a_baseline_that_has_not_begun(tmp_path: Path) -> None:
    handle = begin(tmp_path / "runs" / "a", [0.1, 0.2])
    (tmp_path / "runs" / "a" / "summary.json").write_text('{"status": "running"}')

    def both_end() -> None:
        make_run(tmp_path / "runs" / "b", "standalone")
        end(tmp_path / "runs" / "a", handle)

    watch([tmp_path / "runs"], tmp_path / "r.html", "standalone", sleep=steps(both_end))
    assert "vs standalone" in (tmp_path / "r.html").read_text()
    with pytest.raises(ScenarioError, match="--baseline: nothing given"):
        watch([tmp_path / "runs"], tmp_path / "r.html", "nothing")


def test_a_metric_that_is_not_measured_yet(tmp_path: Path) -> None:
    handle = begin(tmp_path / "run", [0.1, 0.2])
    rounds = pq.read_table(tmp_path / "run" / "rounds.parquet")
    pq.write_table(rounds.drop_columns("accuracy/participants"), tmp_path / "run" / "rounds.parquet")
    pages: list[str] = []

    def measured() -> None:
        pages.append((tmp_path / "r.html").read_text())
        pq.write_table(rounds, tmp_path / "run" / "rounds.parquet")
        end(tmp_path / "run", handle)

    watch([tmp_path / "run"], tmp_path / "r.html", sleep=steps(measured), metric="accuracy/participants")
    assert REFRESH in pages[0] and "20.00" in pages[0]
    assert "30.00" in (tmp_path / "r.html").read_text()


def test_the_command(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a<b>$")
    page = tmp_path / "r.html"
    code, out, error = run(capfd, "report", str(tmp_path / "runs"), "--watch", "-o", str(page))
    assert (code, out, error) == (0, f"{page}\n", "runs: finished\n")
    code, out, error = run(capfd, "report", str(tmp_path / "nowhere"), "--watch", "-o", str(page))
    assert (code, out, error.count("\n")) == (2, "", 1) and "nowhere: cannot be read" in error
    assert Watched.of(tmp_path / "nowhere").line == "nowhere: no run has begun yet"


def test_a_running_run_is_compared_with_the_rounds_that_it_has(tmp_path: Path) -> None:
    handle = begin(tmp_path / "a", [0.1, 0.2, 0.7])
    comparison = compare(tmp_path / "a")
    found = comparison.estimate("fedgh", "last")
    assert found is not None and found.mean == 0.7
    os.close(handle)


def test_a_run_without_a_status_is_not_running(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "summary.json").write_text("{}")
    assert not Watched.of(tmp_path / "runs").running
