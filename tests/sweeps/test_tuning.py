"""Tuning: trials on seeds of their own, halving that repeats nothing, and the same choice after any interruption."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import yaml

import raysim
from raysim.cli.main import main
from raysim.common.errors import ScenarioError
from raysim.comparison.compare import compare
from raysim.engine.ray import tasks as ray_tasks
from raysim.engine.stop import Stop
from raysim.runs.run import run
from raysim.sweeps import loop
from raysim.sweeps.cells import CellState, Sweep, counts, states_of
from raysim.sweeps.choice import Tuning, score, with_choices
from raysim.sweeps.definition import load_sweep
from raysim.sweeps.loop import lock, run_sweep
from raysim.sweeps.search import Point, tpe
from raysim.sweeps.space import Space, ValueRange, Values
from raysim.sweeps.workers import CellTask, Outcome, run_cell
from tests.conftest import REPOSITORY, said
from tests.engine.scenarios import digits

HUGE = 1.0e12  # a learning rate that diverges


def small(folder: Path) -> dict[str, Any]:
    """A base of four rounds, whose learning rate depends on the number of rounds."""
    training = {"batch_size": 64, "lr": 0.05, "schedule": {"name": "cosine"}}
    clients = {"count": 6, "participation": 0.5, "models": ["digits_mlp64"]}
    data = {"name": "digits", "partition": {"name": "pathological", "classes_per_client": 3}}
    return digits(rounds=4, training=training, clients=clients, data=data, output=str(folder / "runs"))


def tune(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "seeds": [101],
        "search": "grid",
        "space": {"training.lr": [HUGE, 0.001, 0.1, 0.05]},
        "halving": {"rounds": [1, 2, 4], "keep": 0.5},
    }
    return {key: value for key, value in {**content, **changes}.items() if value is not None}


def write(folder: Path, **content: Any) -> Path:
    path = folder / "sweep.yaml"
    runs = {"FedGH": ["algorithm.name=fedgh"], "Alone": ["algorithm.name=standalone"]}
    whole = {"name": "tuned", "base": small(folder), "seeds": "1..2", "runs": runs, "tune": tune(), **content}
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return path


class KilledError(BaseException):
    """The driver and its workers were killed."""


@dataclass
class Pool:
    """A pool of one worker in this process. `kill_at`: the task after whose first round everything is killed."""

    kill_at: int = 0
    rounds: list[tuple[str, int]] = field(default_factory=list)  # (cell, round) of every round that was run
    tasks: int = 0
    stop: Stop = field(default_factory=Stop)  # one for all tasks, as a worker has
    running: dict[str, int] = field(default_factory=dict)
    waiting: list[tuple[str, CellTask]] = field(default_factory=list)

    has_room, several_nodes, limit = True, False, 1

    def connect(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Pool:
        self.running, self.waiting = {}, []
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self, name: str, task: CellTask, expected: int) -> None:
        self.running[name] = -1
        self.waiting.append((name, task))

    def wait(self) -> list[tuple[str, Outcome]]:
        (name, task), self.waiting = self.waiting[0], self.waiting[1:]
        del self.running[name]
        self.tasks += 1
        if self.tasks == self.kill_at:
            stop = Stop()

            def report(t: int) -> None:
                self.rounds.append((name, t))
                stop.requested = True

            run_cell(task, stop, report)
            raise KilledError
        return [(name, run_cell(task, self.stop, lambda t: self.rounds.append((name, t))))]

    @property
    def done(self) -> list[tuple[str, int]]:
        return [one for one in self.rounds if one[1] >= 1]  # before round 1, clients are only tested


class Unrecorded:
    """In the place of `ParentRun`: a sweep that MLflow knows nothing of."""

    def __init__(self, uri: str, sweep: str, folder: Path) -> None:
        self.uri = uri

    def tags(self) -> dict[str, str]:
        return {}

    def close(self, finished: bool, metrics: object, files: object) -> None:
        pass

    def __enter__(self) -> Unrecorded:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, workplace: Path) -> Pool:
    """Cells run one after another in this process, not in Ray's."""
    pool = Pool()

    monkeypatch.setattr(ray_tasks, "Tasks", lambda function, limit: pool)
    monkeypatch.setattr("raysim.sweeps.loop.draw", lambda comparison, folder: [])  # takes a second
    monkeypatch.setattr("raysim.sweeps.loop.ParentRun", Unrecorded)
    return pool


def tuning(sweep: Sweep) -> Tuning:
    assert sweep.tuning is not None
    return sweep.tuning


def score_by_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every trial have ended with its learning rate as score, without a run."""
    monkeypatch.setattr("raysim.sweeps.choice.state_of", lambda cell, sweep: CellState(cell, "done"))
    monkeypatch.setattr("raysim.sweeps.choice.score", lambda state, metric: state.cell.scenario.training.lr)


def digests(states: list[CellState]) -> list[Any]:
    return [raysim.Run(one.folder).state_digest for one in states if one.folder is not None]


@pytest.mark.large
def test_a_sweep_is_tuned_and_a_kill_anywhere_changes_nothing(
    workplace: Path, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(workplace)
    sweep = load_sweep(path)
    assert [cell.pending for cell in sweep.cells] == [True] * 4
    assert counts(states_of(sweep)) == "4 waiting"
    states = run_sweep(sweep)
    assert counts(states) == "4 done"

    # Four trials until round 1, two until round 2, one until round 4; then two seeds of four rounds. Nothing twice.
    # The trial that diverges is left out at once.
    assert len(pool.done) == len(set(pool.done)) == 2 * (4 + 2 + 2) + 2 * 2 * 4
    progress = tuning(sweep).progress()
    assert [one.rounds for one in progress] == [one.planned_rounds for one in progress] == [8, 8]
    assert all(one.trials[0].failed for one in progress)
    chosen = [one.chosen for one in progress]
    assert all(one is not None and one.values["training.lr"] in (0.1, 0.05) for one in chosen)
    best = chosen[0]
    assert best is not None

    # The rounds of a trial that was interrupted twice are those of a run with all rounds, although the learning rate
    # depends on how many there are.
    (state,) = best.states
    alone = run(state.cell.scenario.resolved, sets=[f"output={workplace / 'alone'}"], quiet=True)
    assert digests([state]) == [alone.state_digest]
    assert best.score == pytest.approx(alone.rounds["accuracy/val"].iloc[-1])

    # Trials lie beside the result, which has the chosen values and no other run.
    assert sorted(folder.name for folder in (workplace / "runs").iterdir()) == ["tuned", "tuned-tuning"]
    final = with_choices(load_sweep(path))
    assert [cell.scenario.training.lr for cell in final.cells[:2]] == [best.values["training.lr"]] * 2
    found = compare(sweep.output)
    assert [(variant.name, len(variant.runs)) for variant in found.variants] == [("FedGH", 2), ("Alone", 2)]
    assert "tuned by accuracy/val on the seeds" in found.notes[0]
    assert any(note.startswith(f"FedGH: tuned to training.lr={best.values['training.lr']}") for note in found.notes)
    assert not any("unequal" in note for note in found.notes)
    before = len(pool.rounds)
    assert counts(run_sweep(load_sweep(path))) == "4 done" and len(pool.rounds) == before

    # The same sweep in another place, killed in a cell of each step, in the next one, and in the result.
    for kill_at in (2, 4, 3, 2, 1, 3):
        other = load_sweep(path, sets=[f"output={workplace / 'other'}"])
        pool.kill_at, pool.tasks = kill_at, 0
        with pytest.raises(KilledError):
            run_sweep(other)
    pool.kill_at = 0
    again = run_sweep(load_sweep(path, sets=[f"output={workplace / 'other'}"]))
    assert digests(again) == digests(states)
    assert set(Counter(pool.done).values()) == {2}  # once in each place

    main(["sweep", str(path), "--status"])
    tuned, alone_tuned, *_ = capsys.readouterr().out.splitlines()
    assert tuned.startswith(f"tuned       FedGH: tuned to training.lr={best.values['training.lr']}")
    assert "1 trial failed or diverged" in tuned and alone_tuned.startswith("tuned       Alone: ")
    study = raysim.Study(path)
    trials = study.trials
    assert list(trials.columns) == ["method", "trial", "state", "rounds", "score", "chosen", "training.lr"]
    assert trials.query("chosen")["training.lr"].tolist() == [one.values["training.lr"] for one in chosen if one]
    assert trials.query("method == 'FedGH'")["rounds"].tolist().count(4) == 1
    stored = pd.read_csv(workplace / "runs" / "tuned-tuning" / "trials.csv")
    assert stored["score"].isna().sum() == 2 and stored.query("chosen")["trial"].tolist() == [
        one.number for one in chosen if one
    ]
    assert list(study.runs) == ["FedGH seed=1", "FedGH seed=2", "Alone seed=1", "Alone seed=2"]


def test_runs_of_an_earlier_choice_are_left_out(workplace: Path, pool: Pool) -> None:
    def tuned_to(rate: float) -> Path:
        runs = {"FedGH": ["algorithm.name=fedgh"]}
        tuned = tune(halving=None, space={"training.lr": [rate]})
        return write(workplace, runs=runs, seeds=[1], set=["rounds=1"], tune=tuned)

    first = run_sweep(load_sweep(tuned_to(0.05)))
    second = run_sweep(load_sweep(tuned_to(0.1)))
    found = compare(second[0].cell.scenario.results_folder("tuned"))
    assert [run.folder for variant in found.variants for run in variant.runs] == [second[0].folder]
    assert first[0].folder is not None and first[0].folder.exists()


def test_methods_without_a_choice_wait_and_the_others_run(
    workplace: Path, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    tuned = tune(halving=None, space=None, methods={"FedGH": {"training.lr": [HUGE, 2 * HUGE]}}, trials=2)
    runs = {"FedGH": ["algorithm.name=fedgh"], "Alone": ["algorithm.name=standalone"]}
    path = write(workplace, seeds=[1], set=["rounds=1"], tune=tuned, runs=runs)
    states = run_sweep(load_sweep(path))
    assert [one.state for one in states] == ["waiting", "done"]
    assert states[0].reason == "tuning has not chosen the values of this cell yet"
    assert "FedGH: no values chosen; 2 trials failed or diverged" in said(caplog)
    found = compare(load_sweep(path).output)
    assert "FedGH: no values chosen; 2 trials failed or diverged" in found.notes


def test_only_the_chosen_methods_are_tuned(workplace: Path, pool: Pool) -> None:
    path = write(workplace, seeds=[1], set=["rounds=1"], tune=tune(halving=None, space={"training.lr": [0.05, 0.1]}))
    states = run_sweep(load_sweep(path), only=["FedGH"])
    assert [(one.cell.label, one.state) for one in states] == [("FedGH", "done"), ("Alone", "waiting")]
    assert {name.split()[0] for name, _ in pool.rounds} == {"FedGH"}
    assert counts(run_sweep(load_sweep(path))) == "2 done"
    assert len(pool.done) == len(set(pool.done)) == 2 * 2 + 2


@pytest.mark.parametrize("where", ["run_cells", "_compare"])
def test_an_error_ends_the_run_of_mlflow(
    where: str, workplace: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the tuning, whose second pass fails here, or of the sweep."""
    ended: list[tuple[str, object]] = []

    class Recorded(Unrecorded):
        def __init__(self, uri: str, sweep: str, folder: Path) -> None:
            self.uri, self.sweep = uri, sweep

        def __exit__(self, kind: object, *_: object) -> None:
            ended.append((self.sweep, kind))

    works = getattr(loop, where)

    def fails(*given: Any) -> Any:
        if pool.tasks:
            raise ValueError("no space left")
        return works(*given)

    monkeypatch.setattr("raysim.sweeps.loop.ParentRun", Recorded)
    monkeypatch.setattr(f"raysim.sweeps.loop.{where}", fails)
    tuned = tune(halving={"rounds": [1, 2]}, space={"training.lr": [0.05, 0.1]})
    path = write(workplace, seeds=[1], set=["rounds=2"], tune=tuned)
    with pytest.raises(ValueError, match="no space left"):
        run_sweep(load_sweep(path))
    assert ended[-1] == ("tuned-tuning" if where == "run_cells" else "tuned", ValueError)


def test_a_failed_trial_ranks_last_and_is_run_again_when_asked(workplace: Path, pool: Pool) -> None:
    space = {"clients.count": [5000, 6]}  # too many clients for the samples: known only when the data is dealt
    path = write(workplace, seeds=[1], set=["rounds=1"], tune=tune(halving=None, space=space))
    sweep = load_sweep(path)
    run_sweep(sweep)
    for one in tuning(sweep).progress():
        assert [trial.states[0].state for trial in one.trials.values()] == ["failed", "done"]
        assert one.chosen is one.trials[1] and one.tuned.failed == 1
    before = pool.tasks
    run_sweep(load_sweep(path), retry_failed=True)
    assert pool.tasks == before + 2  # both methods' first trial, once


def test_a_score_is_the_last_value_until_the_round_and_nan_after_a_loss_that_is_not_finite(
    workplace: Path, pool: Pool
) -> None:
    path = write(workplace, seeds=[1], tune=tune(space={"training.lr": [0.05]}, halving={"rounds": [2]}))
    sweep = load_sweep(path)
    run_sweep(sweep)
    (state,) = tuning(sweep).progress()[0].trials[0].states
    assert state.folder is not None and (state.state, state.cell.until) == ("done", 2)
    rounds = raysim.Run(state.folder).rounds
    assert rounds["round"].max() == 2
    assert score(state, "accuracy/val") == rounds["accuracy/val"].iloc[-1]
    assert math.isnan(score(state, "accuracy/global"))
    assert math.isnan(score(CellState(state.cell, "failed", state.folder), "accuracy/val"))


def test_the_score_of_a_trial_is_the_mean_over_its_seeds(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_seed = {101: 0.2, 102: 0.7, 103: 0.6}
    monkeypatch.setattr("raysim.sweeps.choice.state_of", lambda cell, sweep: CellState(cell, "done"))
    monkeypatch.setattr("raysim.sweeps.choice.score", lambda state, metric: of_seed[state.cell.scenario.seed])
    sweep = load_sweep(write(workplace, tune=tune(seeds=[*of_seed], halving=None, space={"training.lr": [0.1, 0.2]})))
    one, _ = tuning(sweep).progress()
    assert [trial.score for trial in one.trials.values()] == [pytest.approx(0.5)] * 2  # (0.2 + 0.7 + 0.6) / 3
    of_seed[102] = math.nan  # one seed that diverges is enough
    one, _ = tuning(sweep).progress()
    assert one.chosen is None and one.tuned.failed == 2


def test_a_score_is_of_the_last_test_until_the_round_that_is_asked_for(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has gone on since has later rows; round 0 is before any training."""
    rows = {
        "round": [0, 1, 2, 3, 4, 5],
        "accuracy/val": [0.9, 0.5, 0.3, None, 0.7, 0.6],
        "loss/train": [None, 2.0, 1.0, 1.0, 1.0, math.nan],
    }
    monkeypatch.setattr("raysim.sweeps.choice.read_rounds", lambda folder: pa.table(rows))
    (cell, *_) = load_sweep(write(workplace, set=["rounds=5"], tune=tune(halving=None))).cells

    def scored(until: int | None, metric: str = "accuracy/val") -> float:
        return score(CellState(replace(cell, until=until), "done", workplace), metric)

    # Not the greatest of the earlier values, and not the first; round 3 has none.
    assert [scored(until) for until in (1, 2, 3, 4)] == [0.5, 0.3, 0.3, 0.7]
    assert math.isnan(scored(None))  # the loss of round 5
    rows["accuracy/val"] = [0.9, *[None] * 5]
    assert math.isnan(scored(2))


@pytest.mark.parametrize(("select", "chosen"), [("accuracy/val", 0.3), ("loss/test", 0.1)])
def test_the_best_score_is_the_greatest_accuracy_or_the_smallest_loss(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, select: str, chosen: float
) -> None:
    score_by_rate(monkeypatch)
    settings = tune(halving=None, select=select, space={"training.lr": [0.2, 0.3, 0.1]})
    for one in tuning(load_sweep(write(workplace, tune=settings))).progress():
        assert one.chosen is not None and one.chosen.values["training.lr"] == chosen


def test_rounds_count_for_every_seed_of_a_trial(workplace: Path) -> None:
    """Four trials on two seeds until round 1, of which two go on to round 2, and one of these to round 4."""
    one, _ = tuning(load_sweep(write(workplace, tune=tune(seeds=[101, 102])))).progress()
    assert one.planned_rounds == 2 * (4 * 1 + 2 * 1 + 1 * 2)


def test_methods_draw_the_same_values_of_shared_keys_in_any_order(workplace: Path) -> None:
    tuned = tune(search="random", trials=3, halving=None, space={"training.lr": {"log": [0.01, 1]}})
    runs = {"FedGH": ["algorithm.name=fedgh"], "Alone": ["algorithm.name=standalone"]}
    one = tuning(load_sweep(write(workplace, tune=tuned, runs=runs)))
    two = tuning(load_sweep(write(workplace, tune=tuned, runs=dict(reversed(runs.items())))))
    assert {c.name: one.points(c) for c in one.candidates} == {c.name: two.points(c) for c in two.candidates}
    assert one.points(one.candidates[0]) == one.points(one.candidates[1])


def test_each_variant_is_tuned_and_methods_have_keys_of_their_own(workplace: Path) -> None:
    grid = {"data.partition.classes_per_client": [2, 3]}
    methods = {"FedGH": {"algorithm.header_lr": [0.01, 0.1]}}
    sweep = load_sweep(write(workplace, grid=grid, tune=tune(methods=methods, space={"training.lr": [0.1]})))
    found = {one.name: list(one.space) for one in tuning(sweep).candidates}
    assert found == {
        "FedGH data.partition.classes_per_client=2": ["training.lr", "algorithm.header_lr"],
        "FedGH data.partition.classes_per_client=3": ["training.lr", "algorithm.header_lr"],
        "Alone data.partition.classes_per_client=2": ["training.lr"],
        "Alone data.partition.classes_per_client=3": ["training.lr"],
    }
    assert [one.trials for one in tuning(sweep).candidates] == [2, 2, 1, 1]
    by_grid = load_sweep(write(workplace, runs={}, grid={"algorithm.name": ["fedgh", "fd"]}, tune=tune(
        space=None, halving=None, methods={"fedgh": {"algorithm.header_lr": [0.01, 0.1]}})))  # fmt: skip
    assert [one.name for one in tuning(by_grid).candidates] == ["fedgh"]


def test_a_tuned_method_beside_its_default(workplace: Path, pool: Pool) -> None:
    runs = {name: ["algorithm.name=fedgh"] for name in ("Tuned", "Default")}
    tuned = tune(halving=None, space=None, methods={"Tuned": {"training.lr": [0.05]}})  # the default
    path = write(workplace, seeds=[1], set=["rounds=1"], runs=runs, tune=tuned, baseline="Default")
    sweep = load_sweep(path)
    assert counts(run_sweep(sweep)) == "2 done"
    found = compare(sweep.output)
    assert [(variant.name, len(variant.runs)) for variant in found.variants] == [("Tuned", 1), ("Default", 1)]
    assert found.baseline == "Default" and "unequal tuning: not tuned: Default" in found.notes


def test_runs_that_are_tuned_alike_are_the_same(workplace: Path) -> None:
    runs = {name: ["algorithm.name=fedgh"] for name in ("One", "Two")}
    path = write(workplace, runs=runs)
    with pytest.raises(ScenarioError, match="the cells 'One seed=1' and 'Two seed=1' are the same run; remove one"):
        load_sweep(path)
    methods = {"Two": {"training.momentum": [0.5, 0.9]}}
    assert {
        one.name for one in tuning(load_sweep(write(workplace, runs=runs, tune=tune(methods=methods)))).candidates
    } == {"One", "Two"}


@pytest.mark.large
def test_the_page_on_tuning(workplace: Path, pool: Pool) -> None:
    """The block of tuning.md, with fewer trials, rounds and clients."""
    page = (REPOSITORY / "docs" / "tuning.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    content = yaml.safe_load(block)
    assert "tune" in content
    path = workplace / "scenarios" / "sweeps" / "tuned.yaml"
    path.parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / "scenarios" / "quickstart.yaml", path.parent.parent)
    path.write_text(block)
    found = tuning(load_sweep(path))
    assert [one.planned_rounds for one in found.progress()] == [84] * 3
    content["tune"] |= {"trials": 4, "halving": {"rounds": [1, 2]}}
    path.write_text(yaml.safe_dump({**content, "seeds": [1]}))
    tiny = ["rounds=2", "training.epochs=1", "clients.count=4", "clients.models=[digits_mlp64]"]
    sweep = load_sweep(path, sets=tiny)
    assert counts(run_sweep(sweep)) == "3 done"
    notes = compare(sweep.output).notes
    assert "tuned by accuracy/val on the seeds" in notes[0]
    assert any(note.startswith("FedProto: tuned to training.lr=") and "algorithm.lambda_=" in note for note in notes)


def test_the_dry_run_counts_the_trials(workplace: Path, pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(workplace)
    main(["sweep", str(path), "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tuning") and lines[0].endswith("FedGH: 4 trials, 0 of 8 rounds")
    assert "estimated time" in lines[-1]
    main(["sweep", str(path), "--status"])
    assert capsys.readouterr().out.splitlines()[0] == ("tuning      FedGH: 4 trials, 0 of 8 rounds")


RANDOM: dict[str, Any] = {"search": "random", "halving": None, "trials": 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sedes": [1]}, "tune.sedes: unknown key.*'seeds'"),
        ({1: [1]}, "tune.1: "),
        ({"seeds": None}, "tune.seeds: is missing"),
        ({"seeds": "x"}, "tune.seeds: 'x' given"),
        ({"seeds": "2..3"}, "tune.seeds: 2 given, .*final run"),
        ({"trials": True}, "tune.trials: true given"),
        ({**RANDOM, "trials": None}, "tune.trials: is missing"),
        ({**RANDOM, "trials": 0}, "tune.trials: 0 given.*1"),
        ({"space": {"training.lr": {"log": [0.1, 1]}}}, "tune.search: grid.*FedGH.*random"),
        ({"space": {"training.epochs": [*range(1, 1002)]}}, "tune.search: grid.*FedGH.*random"),
        ({"space": {"training.lr": {"log": [0, 1]}}}, "tune.space.training.lr: .*greater than 0"),
        ({"space": None}, "tune: .*`space`"),
        ({"space": {"resources.actors": [1, 2]}}, "tune.space.resources.actors: .*results"),
        ({"space": {"seed": [1, 2]}}, "tune.space.seed: .*tune.seeds"),
        ({"space": {"rounds": [1, 2]}}, "tune.space.rounds: .*tune.halving"),
        ({"space": {"evaluation.every": [1, 2]}}, "tune.space.evaluation.every: cannot"),
        ({"space": {"algorithm.name": ["fd"]}}, "tune.space.algorithm.name: .*`runs`"),
        ({"space": {"training.lr": [-1]}}, "the cell 'FedGH trial 0 seed=101': training.lr=-1 from the sweep"),
        ({"space": {"algorithm.header_lr": [0.1]}}, "the cell 'Alone trial 0 .*unknown key.*`tune.methods`"),
        ({"space": {"lr": [1]}}, "tune.space.lr: unknown key.*'training.lr'"),
        ({"space": [1]}, r"tune.space: \[1\] given"),
        ({"methods": {"FedHG": {"training.lr": [1]}}}, "tune.methods.FedHG: .*FedGH"),
        ({"methods": {"FedGH": [1]}}, r"tune.methods.FedGH: \[1\] given"),
        ({"methods": {"FedGH": {"lr": [1]}}}, "tune.methods.FedGH.lr: unknown key.*'training.lr'"),
        ({"search": "bayes"}, "tune.search: 'bayes' given.*tpe"),
        ({"search": "tpe", "trials": 2}, "tune.halving: .*tpe"),
        ({"select": "accuracy/vall"}, "tune.select: 'accuracy/vall' given.*accuracy/val"),
        ({"select": "accuracy/global"}, "tune.select: .*evaluation.global"),
        ({"select": "accuracy/all_current"}, "tune.select: .*evaluation.clients"),
        ({"halving": {"rounds": [0]}}, "tune.halving.rounds.*: 0 given"),
        ({"halving": {"rounds": [1, 5]}}, "tune.halving.rounds: 5 given, but FedGH has 4 rounds"),
        ({"halving": {"rounds": [1], "keep": "3/2"}}, "tune.halving.keep: '3/2' given"),
        ({"halving": {"rounds": [1], "keep": "third"}}, "tune.halving.keep: 'third' given.*1/3"),
        ({"halving": 3}, "tune.halving: 3 given"),
        ({"halving": {"round": [1]}}, "tune.halving.round: unknown key.*'rounds'"),
    ],
)
def test_wrong_tuning(workplace: Path, changes: dict[str, Any], words: str) -> None:
    path = write(workplace, tune=tune(**changes) if 1 not in changes else {**tune(), **changes})
    with pytest.raises(ScenarioError, match=f"^{path}: {words}") as caught:
        load_sweep(path)
    assert "\n" not in str(caught.value)


def test_a_tracker_whose_name_is_a_list(workplace: Path, pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    path = write(workplace, set=["tracking.also=[{name: [a]}]"], seeds=[1])
    raw = yaml.safe_load(path.read_text())
    del raw["tune"]
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    run_sweep(load_sweep(path))
    assert "tracking.also.0.name: [a] given; give a name" in caplog.text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"set": ["evaluation.every=2"]}, "tune.halving.rounds: 1 given, .*every 2 rounds"),
        (
            {"set": ["evaluation.clients=all", "evaluation.all_every=2"], "tune": tune(select="accuracy/val_current")},
            "tune.halving.rounds: 1 given, .*accuracy/val_current every 2 rounds",
        ),
        ({"set": ["data.split=published"]}, "tune.select: accuracy/val given, .*data.split"),
        ({"runs": {"a": ["training.lr=0.1"]}}, "tune: a sets training.lr"),
        ({"grid": {"training.lr": [0.1]}}, "tune: FedGH sets training.lr"),
        ({"grid": {"seed": [1, 2]}, "seeds": None}, "tune: FedGH sets seed, .*`seeds`"),
    ],
)
def test_sweeps_that_cannot_be_tuned(workplace: Path, content: dict[str, Any], words: str) -> None:
    path = write(workplace, **content)
    if content.get("seeds", 1) is None:
        raw = yaml.safe_load(path.read_text())
        del raw["seeds"]
        path.write_text(yaml.safe_dump(raw, sort_keys=False))
    with pytest.raises(ScenarioError, match=f"^{path}: {words}"):
        load_sweep(path)


def test_draws_are_those_of_the_seed_of_tuning_which_is_1_by_default(workplace: Path) -> None:
    def drawn(**changes: int) -> list[dict[str, Any]]:
        settings = tune(search="random", trials=5, halving=None, space={"training.lr": {"log": [0.01, 1]}}, **changes)
        found = tuning(load_sweep(write(workplace, tune=settings)))
        return found.points(found.candidates[0])

    assert drawn() == drawn(seed=1) != drawn(seed=2)


def test_tuned_cells_keep_their_published_values(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score_by_rate(monkeypatch)
    (workplace / "values.csv").write_text("paper,method,metric,value\nX,Ours,acc_%,93.5\n")
    runs = {"method": {"Ours": ["algorithm.name=fedgh"]}}
    published = {"file": "values.csv", "rows": {"paper": "X"}, "measures": {"acc_%": "last"}}
    settings = tune(halving=None, space={"training.lr": [0.1]})
    sweep = with_choices(load_sweep(write(workplace, runs=runs, published=published, tune=settings)))
    assert [(cell.pending, [one.value for one in cell.published]) for cell in sweep.cells] == [(False, [0.935])] * 2


def test_other_processes_are_told_of_a_sweep_that_is_being_tuned(workplace: Path) -> None:
    sweep = load_sweep(write(workplace))
    with contextlib.ExitStack() as cleanup:
        lock(sweep, cleanup)
        with pytest.raises(
            ScenarioError, match="another process is running this sweep; see its progress with --status"
        ):
            lock(sweep, cleanup)
    sweep.output.with_name("tuned-tuning").mkdir()
    with pytest.raises(ScenarioError, match="no run"):
        compare(sweep.output)


def test_a_metric_of_test_samples_is_called_optimistic(workplace: Path, pool: Pool) -> None:
    tuned = tune(select="loss/test", halving=None, space={"training.lr": [0.05, 0.0001]})
    path = write(workplace, seeds=[1], set=["rounds=1"], runs={"FedGH": []}, tune=tuned)
    sweep = load_sweep(path)
    run_sweep(sweep)
    (one,) = tuning(sweep).progress()
    scores = [trial.score for trial in one.trials.values()]
    assert one.chosen is not None and one.chosen.score == min(filter(None, scores))
    notes = compare(sweep.output).notes
    assert "results are optimistic: loss/test, which chose the tuned values, uses test samples" in notes


def test_tpe_says_what_it_needs(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.sweeps.tune.find_spec", lambda name: None)
    path = write(workplace, tune=tune(search="tpe", trials=3, halving=None))
    with pytest.raises(
        ScenarioError, match=r"tune.search: tpe given, but Optuna is not installed; run `pip install 'raysim\[tune\]'`"
    ):
        load_sweep(path)


def test_tpe_suggests_the_same_trials_after_a_kill(workplace: Path, pool: Pool) -> None:
    space = {
        "training.lr": {"log": [0.001, 1]},
        "training.momentum": [0.0, 0.9],
        "training.batch_size": {"integer": [16, 64]},
    }
    runs = {"FedGH": ["algorithm.name=fedgh"]}
    settings = tune(search="tpe", trials=12, halving=None, space=space)
    path = write(workplace, seeds=[1], set=["rounds=1"], runs=runs, tune=settings)
    run_sweep(load_sweep(path))
    expected = raysim.Study(path).trials.to_dict("records")
    assert len(expected) == 12
    pool.kill_at, pool.tasks = 11, 0  # the first ten trials are drawn at random
    with pytest.raises(KilledError):
        run_sweep(load_sweep(path, sets=[f"output={workplace / 'other'}"]))
    pool.kill_at = 0
    other = load_sweep(path, sets=[f"output={workplace / 'other'}"])
    run_sweep(other)
    assert raysim.Study(path, sets=[f"output={workplace / 'other'}"]).trials.to_dict("records") == expected


def test_tpe_may_suggest_values_twice(workplace: Path, pool: Pool) -> None:
    """A list of three values has few points; each trial has a run of its own, and each counts in the budget."""
    settings = tune(search="tpe", trials=5, halving=None, space={"training.lr": [0.1, 0.05, 0.01, 0.02, 0.03]})
    runs = {"FedGH": ["algorithm.name=fedgh"]}
    sweep = load_sweep(write(workplace, seeds=[1], set=["rounds=1"], runs=runs, tune=settings))
    states = run_sweep(sweep)
    (one,) = tuning(sweep).progress()
    rates = [trial.values["training.lr"] for trial in one.trials.values()]
    assert len(rates) == 5 and len(set(rates)) < 5
    assert one.chosen is not None and one.rounds == 5
    assert [one.state for one in states] == ["done"]


def suggested(space: Space, trials: int, seed: int, smaller: bool, far: Callable[[Point], float]) -> list[Point]:
    """The values that `tpe` suggests if a trial's score is worse the greater `far` of its values is."""
    search, values = tpe(space, trials, 1, seed, "FedGH", smaller), []
    with contextlib.suppress(StopIteration):
        batch, _ = next(search)
        while True:
            values += batch.values()
            batch, _ = search.send({k: far(one) * (1 if smaller else -1) for k, one in batch.items()})
    return values


@pytest.mark.parametrize("smaller", [False, True])
def test_tpe_looks_where_scores_are_good(smaller: bool) -> None:
    """The score is the distance of log10(lr) to -2, plus 1 unless the batch size is 16."""

    def far(values: Point) -> float:
        return abs(math.log10(values["lr"]) + 2) + (values["batch"] != [16])

    space: Space = {"lr": ValueRange("log", 0.0001, 1), "batch": Values(([64], [32], [16]))}
    every = suggested(space, 60, 1, smaller, far)
    rates = [values["lr"] for values in every]
    assert rates == [float(f"{rate:.4g}") for rate in rates]
    # At random, one of the 40 last in 12 is good: a quarter of the logarithms, and a third of the batch sizes.
    assert sum(far(values) < 0.5 for values in every[20:]) >= 9
    assert suggested(space, 60, 1, smaller, far) == every != suggested(space, 60, 2, smaller, far)


@pytest.mark.parametrize("smaller", [False, True])
def test_tpe_avoids_values_that_diverge(smaller: bool) -> None:
    """Rates above 0.1, a quarter of the logarithms, diverge. At random, 12 or 13 of the 50 trials would."""
    every = suggested(
        {"lr": ValueRange("log", 0.0001, 1)},
        60,
        1,
        smaller,
        lambda values: math.nan if values["lr"] > 0.1 else values["lr"],
    )
    assert sum(values["lr"] > 0.1 for values in every[10:]) <= 12


def test_a_suggestion_depends_only_on_the_earlier_scores() -> None:
    """A search that begins anew and receives the recorded scores suggests the same trial next."""
    space: Space = {"lr": ValueRange("log", 0.0001, 1)}
    whole = suggested(space, 14, 1, True, lambda values: values["lr"])
    assert suggested(space, 12, 1, True, lambda values: values["lr"]) == whole[:12]


def test_files_that_only_trials_need_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job ships them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text("def small(num_classes, input_spec, feature_dim): ...\n")
    models = {"clients.models": [["./nets.py:small"], ["digits_mlp64"]]}
    sweep = load_sweep(write(tmp_path, tune=tune(space=models)))
    assert sweep.tuning is not None
    assert not any(cell.scenario.own_code.files for cell in sweep.cells)
    assert {name for one in sweep.tuning.scenarios for name in one.own_code.files} == {"nets.py"}


def test_a_tuned_method_has_a_folder_of_its_own(workplace: Path) -> None:
    runs = {name: ["algorithm.name=fedgh"] for name in ("FedGH", "FedGH*")}
    methods = {"FedGH*": {"training.lr": [0.05, 0.1]}}
    path = write(workplace, runs=runs, tune=tune(space=None, methods=methods))
    with pytest.raises(ScenarioError, match=r"'FedGH seed=1' and 'FedGH\* seed=1' would have the same folder"):
        load_sweep(path)


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_optuna_opens_the_trials(workplace: Path, pool: Pool, search: str) -> None:
    optuna = pytest.importorskip("optuna")
    space = {"training.lr": [0.05, HUGE, 0.1], "training.momentum": {"linear": [0.1, 0.9]}}
    halving = {"rounds": [1, 2], "keep": 0.3} if search == "random" else None
    settings = tune(search=search, trials=3, halving=halving, space=space, select="loss/train")
    path = write(workplace, seeds=[1], set=["rounds=2"], runs={"FedGH": []}, tune=settings)
    study = raysim.Study(path).run(quiet=True)
    file = study.folder.with_name("tuned-tuning") / "optuna.log"
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
    found = optuna.load_study(study_name="FedGH", storage=storage)
    assert [trial.number for trial in found.trials] == list(study.trials["trial"])
    assert [trial.value for trial in found.trials if trial.value is not None] == list(study.trials["score"].dropna())
    assert [trial.params["training.lr"] for trial in found.trials] == list(study.trials["training.lr"])
    chosen = study.trials.query("chosen")
    assert [found.best_trial.number] == list(chosen["trial"])
    ended = {trial.state.name for trial in found.trials if trial.number not in list(chosen["trial"])}
    assert "PRUNED" in ended if halving else "COMPLETE" in ended
    file.unlink()
    study.run(quiet=True)
    assert file.exists()
