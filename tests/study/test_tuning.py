"""Tuning: trials on seeds of their own, halving that repeats nothing, and the same choice after any interruption."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import yaml

import raysim
from raysim.cli.main import main
from raysim.common.errors import ScenarioError
from raysim.runs.run import run
from raysim.study.cells import CellState, Sweep, counts, states_of
from raysim.study.choice import Tuning, score, with_choices
from raysim.study.compare import compare
from raysim.study.definition import load_sweep
from raysim.study.loop import lock, run_sweep
from raysim.study.search import Point, tpe
from raysim.study.space import Space, ValueRange, Values
from tests.conftest import REPOSITORY, said
from tests.engine.scenarios import digits
from tests.study.conftest import KilledError, Pool

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


def tuning(sweep: Sweep) -> Tuning:
    assert sweep.tuning is not None
    return sweep.tuning


def score_by_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every trial have ended with its learning rate as score, without a run."""
    monkeypatch.setattr("raysim.study.choice.state_of", lambda cell, sweep: CellState(cell, "done"))
    monkeypatch.setattr("raysim.study.choice.score", lambda state, metric: state.cell.scenario.training.lr)


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
    for kill_at in (2, 4, 1, 3):
        other = load_sweep(path, sets=[f"output={workplace / 'other'}"])
        pool.kill_at = pool.tasks + kill_at
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


def test_the_score_of_a_trial_is_the_mean_over_its_seeds(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_seed = {101: 0.2, 102: 0.7, 103: 0.6}
    monkeypatch.setattr("raysim.study.choice.state_of", lambda cell, sweep: CellState(cell, "done"))
    monkeypatch.setattr("raysim.study.choice.score", lambda state, metric: of_seed[state.cell.scenario.seed])
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
    monkeypatch.setattr("raysim.study.choice.read_rounds", lambda folder: pa.table(rows))
    (cell, *_) = load_sweep(write(workplace, set=["rounds=5"], tune=tune(halving=None))).cells

    def scored(until: int | None, metric: str = "accuracy/val") -> float:
        return score(CellState(replace(cell, until=until), "done", workplace), metric)

    # Not the greatest of the earlier values, and not the first; round 3 has none.
    assert [scored(until) for until in (1, 2, 3, 4)] == [0.5, 0.3, 0.3, 0.7]
    assert math.isnan(scored(None))  # the loss of round 5
    assert math.isnan(score(CellState(cell, "failed", workplace), "accuracy/val"))
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


def test_the_sweep_of_the_page_on_tuning(workplace: Path) -> None:
    page = (REPOSITORY / "docs" / "tuning.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    path = workplace / "scenarios" / "sweeps" / "tuned.yaml"
    path.parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / "scenarios" / "quickstart.yaml", path.parent.parent)
    path.write_text(block)
    assert [one.planned_rounds for one in tuning(load_sweep(path)).progress()] == [84] * 3


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
        ({"seeds": "2..3"}, "tune.seeds: 2 given, .*final run"),
        ({**RANDOM, "trials": None}, "tune.trials: is missing"),
        ({"trials": 3}, "tune.trials: 3 given, .*FedGH"),
        ({"space": {"training.lr": {"log": [0.1, 1]}}}, "tune.search: grid.*FedGH.*random"),
        ({"space": None}, "tune: .*`space`"),
        ({"space": {"resources.actors": [1, 2]}}, "tune.space.resources.actors: .*results"),
        ({"space": {"rounds": [1, 2]}}, "tune.space.rounds: .*tune.halving"),
        ({"space": {"algorithm.header_lr": [0.1]}}, "the cell 'Alone trial 0 .*unknown key.*`tune.methods`"),
        ({"space": {"lr": [1]}}, "tune.space.lr: unknown key.*'training.lr'"),
        ({"methods": {"FedHG": {"training.lr": [1]}}}, "tune.methods.FedHG: .*FedGH"),
        ({"search": "tpe", "trials": 2}, "tune.halving: .*tpe"),
        ({"select": "accuracy/vall"}, "tune.select: 'accuracy/vall' given.*accuracy/val"),
        ({"halving": {"rounds": [1, 5]}}, "tune.halving.rounds: 5 given, but FedGH has 4 rounds"),
        ({"halving": {"rounds": [1], "keep": "3/2"}}, "tune.halving.keep: '3/2' given"),
    ],
)
def test_wrong_tuning(workplace: Path, changes: dict[str, Any], words: str) -> None:
    path = write(workplace, tune=tune(**changes))
    with pytest.raises(ScenarioError, match=f"^{path}: {words}") as caught:
        load_sweep(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"set": ["evaluation.every=2"]}, "tune.halving.rounds: 1 given, .*every 2 rounds"),
        ({"set": ["data.split=published"]}, "tune.select: accuracy/val given, .*data.split"),
        ({"runs": {"a": ["training.lr=0.1"]}}, "tune: a sets training.lr"),
    ],
)
def test_sweeps_that_cannot_be_tuned(workplace: Path, content: dict[str, Any], words: str) -> None:
    path = write(workplace, **content)
    with pytest.raises(ScenarioError, match=f"^{path}: {words}"):
        load_sweep(path)


def test_draws_are_those_of_the_seed_of_tuning_which_is_1_by_default(workplace: Path) -> None:
    def drawn(**changes: int) -> list[dict[str, Any]]:
        settings = tune(search="random", trials=5, halving=None, space={"training.lr": {"log": [0.01, 1]}}, **changes)
        found = tuning(load_sweep(write(workplace, tune=settings)))
        return found.points(found.candidates[0])

    assert drawn() == drawn(seed=1) != drawn(seed=2)


def test_other_processes_are_told_of_a_sweep_that_is_being_tuned(workplace: Path) -> None:
    sweep = load_sweep(write(workplace))
    with contextlib.ExitStack() as cleanup:
        lock(sweep, cleanup)
        with pytest.raises(ScenarioError, match="another process is running this sweep"):
            lock(sweep, cleanup)


@pytest.mark.large
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
    pool.kill_at = pool.tasks + 11  # the first ten trials are drawn at random
    with pytest.raises(KilledError):
        run_sweep(load_sweep(path, sets=[f"output={workplace / 'other'}"]))
    pool.kill_at = 0
    other = load_sweep(path, sets=[f"output={workplace / 'other'}"])
    run_sweep(other)
    assert raysim.Study(path, sets=[f"output={workplace / 'other'}"]).trials.to_dict("records") == expected


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


def test_optuna_opens_the_trials(workplace: Path, pool: Pool) -> None:
    optuna = pytest.importorskip("optuna")
    space = {"training.lr": [0.05, HUGE, 0.1], "training.momentum": {"linear": [0.1, 0.9]}}
    halving = {"rounds": [1, 2], "keep": 0.3}
    settings = tune(search="random", trials=3, halving=halving, space=space, select="loss/train")
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
    assert "PRUNED" in ended
    file.unlink()
    study.run(quiet=True)
    assert file.exists()
