"""The choice of tuned values: scores of trials, progress of each variant's search, and records of both.

Trials are ordinary cells, beside those of the result and with other seeds. Only their run folders record what was done,
so a tuning that was interrupted at any time makes the choice of one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from raysim.engine.policies.stopping import falls
from raysim.results.load import read_rounds
from raysim.scenario.deciding import DECIDING
from raysim.scenario.parse import ParsedScenario
from raysim.study.cells import Cell, CellState, Sweep, counts, state_of, written
from raysim.study.search import Point, Search, choice, distribution, halving, planned, ranked, tpe
from raysim.study.space import Space, Values, draws, grid
from raysim.study.sweep_card import ChosenValue, TunedVariant, TuningCard

if TYPE_CHECKING:
    import pandas as pd

    from raysim.study.tune import Tune

TRIALS = "trials.csv"
"""Name of a file with one row per trial, in the folder of the trials."""

JOURNAL = "optuna.log"
"""Name of a file for Optuna and optuna-dashboard, in the folder of the trials."""


@dataclass(frozen=True)
class Candidate:
    """A variant with keys to tune."""

    finals: tuple[Cell, ...]  # the cells of the final runs, which differ in their seeds
    space: Space
    trials: int
    steps: tuple[int, ...]  # rounds after which trials are compared, ascending; after the last one, a trial is chosen

    @property
    def name(self) -> str:
        """The variant's label or, if it is empty, its method."""
        return self.finals[0].variant

    @property
    def rounds(self) -> int:
        """The number of rounds of a final run."""
        return self.finals[0].scenario.rounds


@dataclass(frozen=True)
class TuningTrial:
    """A trial of a candidate, which consists of one cell per seed of the tuning."""

    number: int
    values: Point
    states: tuple[CellState, ...]  # states of its cells, which run until the last round requested so far
    score: float | None  # mean of the metric over the seeds; NaN: a cell failed or diverged; None: not done yet

    @property
    def rounds(self) -> int:
        """The last round after which the trial was or will be compared."""
        return self.states[0].cell.rounds

    @property
    def failed(self) -> bool:
        """Whether a cell of the trial failed or diverged."""
        return self.score is not None and math.isnan(self.score)


@dataclass(frozen=True)
class Tuning:
    """The tuning of a sweep's variants."""

    settings: Tune
    candidates: tuple[Candidate, ...]
    sweep: Sweep  # the trials' folder and the maker of their cells, as a sweep without cells
    _made: dict[tuple[str, int, str], tuple[Cell, ...]] = field(default_factory=dict)

    @property
    def keep(self) -> Fraction:
        """The share of the compared trials that continues."""
        return self.settings.halving.keep if self.settings.halving is not None else Fraction(1)

    @property
    def scenarios(self) -> list[ParsedScenario]:
        """The scenarios of the trials made so far. After `tuning_of`, each value of each list is in one of them."""
        return [cell.scenario for cells in self._made.values() for cell in cells]

    def of_cells(self, names: Collection[str]) -> Tuning:
        """Return the tuning for only those candidates that have a final run with one of these names."""
        chosen = [one for one in self.candidates if any(cell.name in names for cell in one.finals)]
        return replace(self, candidates=tuple(chosen))

    def points(self, candidate: Candidate) -> list[dict[str, Any]]:
        """Return the values of every trial, from the grid or by random draws."""
        if self.settings.search == "grid":
            lists = {key: one for key, one in candidate.space.items() if isinstance(one, Values)}
            return grid(lists)[: candidate.trials]
        return draws(candidate.space, self.settings.seed, candidate.trials)

    def search(self, candidate: Candidate) -> Search:
        """Start the search for the best values of a candidate."""
        smaller = falls(self.settings.select)
        if self.settings.search == "tpe":
            seed = self.settings.seed
            return tpe(candidate.space, candidate.trials, candidate.rounds, seed, candidate.name, smaller)
        return halving(self.points(candidate), candidate.steps, self.keep, smaller)

    def cells(self, candidate: Candidate, number: int, values: Point, until: int) -> tuple[Cell, ...]:
        """Return a trial's cells, one per seed. Raises `ScenarioError` if a scenario with these values is invalid."""
        key = (candidate.name, number, written(dict(values)))
        if key not in self._made:
            variant = candidate.finals[0].made_of
            cells = (self.sweep.maker.cell(variant, seed, values, number) for seed in self.settings.seeds)
            self._made[key] = tuple(cells)
        return tuple(replace(cell, until=None if until == cell.scenario.rounds else until) for cell in self._made[key])

    def trial(self, candidate: Candidate, number: int, values: Point, until: int) -> TuningTrial:
        """Read a trial, and its score after round `until`, from the run folders."""
        states = tuple(state_of(cell, self.sweep.output) for cell in self.cells(candidate, number, values, until))
        if any(state.state not in ("done", "failed") for state in states):
            return TuningTrial(number, values, states, None)
        scores = [score(state, self.settings.select) for state in states]
        return TuningTrial(number, values, states, math.fsum(scores) / len(scores))

    def progress(self) -> list[TuningProgress]:
        """Read the progress of every candidate's search from the run folders."""
        found = [TuningProgress(self, candidate) for candidate in self.candidates]
        for one in found:
            one.advance()
        return found

    def resolved(self, sweep: Sweep, progress: Sequence[TuningProgress]) -> Sweep:
        """Return the sweep with the chosen values in its cells. Cells of candidates without a choice stay pending."""
        finals: dict[str, Cell] = {}
        for one in progress:
            if one.chosen is not None:
                for pending in one.candidate.finals:
                    cell = sweep.maker.cell(pending.made_of, pending.given_seed, one.chosen.values)
                    finals[pending.name] = replace(cell, published=pending.published)
        cells = tuple(finals.get(cell.name, cell) for cell in sweep.cells)
        settings = self.settings
        card = TuningCard(
            settings.search,
            settings.select,
            DECIDING[settings.select].part == "test",
            self.settings.seeds,
            [one.tuned for one in progress],
        )
        return replace(sweep, cells=cells, facts=replace(sweep.facts, tuning=card))


class TuningProgress:
    """The progress of a candidate's search.

    Attributes:
        trials: those that are known, by number: with `tpe`, without those that Optuna has not suggested yet.
        open: the states of the cells that must end before the next decision.
        batches: the number of batches of trials that have ended.
        chosen: None if trials are left, or every trial failed.
    """

    def __init__(self, tuning: Tuning, candidate: Candidate) -> None:
        """Start the search. `advance` reads its trials."""
        self.tuning, self.candidate = tuning, candidate
        self.trials: dict[int, TuningTrial] = {}
        self.open: tuple[CellState, ...] = ()
        self.batches = 0
        self.chosen: TuningTrial | None = None
        self._search = tuning.search(candidate)
        self._batch = next(self._search, None)

    def advance(self, retry_failed: bool = False, ran: bool = False) -> bool:
        """Read the trials of the current batch. If all of them have ended, continue with the next batch, and so on.

        retry_failed: whether failed cells count as not ended. ran: whether the present batch just ran, so that its
        cells are not run again. Returns whether cells in `open` are to run.
        """
        before = self.batches
        while self._batch is not None:
            points, until = self._batch
            batch = {n: self.tuning.trial(self.candidate, n, values, until) for n, values in points.items()}
            self.trials |= batch
            self.open = tuple(state for trial in batch.values() for state in trial.states)
            scores = {number: trial.score for number, trial in batch.items() if trial.score is not None}
            just_ran = ran and self.batches == before
            again = retry_failed and not just_ran and any(state.state == "failed" for state in self.open)
            if again or len(scores) < len(batch):
                return not just_ran
            self._go_on(scores)
        self.open = ()
        return False

    def _go_on(self, scores: Mapping[int, float]) -> None:
        """Continue with the next batch. After the last one, choose the best trial that ran until the last step."""
        self.batches += 1
        try:
            self._batch = self._search.send(scores)
        except StopIteration:
            self._batch = None
            last = [trial for trial in self.trials.values() if trial.rounds == self.candidate.steps[-1]]
            known = {trial.number: trial.score for trial in last if trial.score is not None}
            best = ranked(known, falls(self.tuning.settings.select))
            self.chosen = self.trials[best[0]] if best else None

    @property
    def state(self) -> Literal["tuned", "tuning", "failed"]:
        """The state of the search: values are chosen, trials remain, or every trial failed."""
        return "tuning" if self.open else "failed" if self.chosen is None else "tuned"

    @property
    def rounds(self) -> int:
        """The number of rounds that all cells of the trials have done together."""
        states = [state for trial in self.trials.values() for state in trial.states]
        return sum({state.cell.folder_name: min(state.rounds, state.cell.rounds) for state in states}.values())

    @property
    def planned_rounds(self) -> int:
        """The number of rounds of all cells of the trials together, if none fails or ends early."""
        steps, keep = self.candidate.steps, self.tuning.keep
        return len(self.tuning.settings.seeds) * planned(self.candidate.trials, steps, keep)

    @property
    def tuned(self) -> TunedVariant:
        """The facts about the candidate's tuning that the comparison shows."""
        candidate, chosen = self.candidate, self.chosen
        values = [
            ChosenValue(key, written(value), candidate.space[key].edge(value), str(candidate.space[key]))
            for key, value in (chosen.values if chosen else {}).items()
        ]
        return TunedVariant(
            candidate.name,
            len(self.trials),
            self.rounds,
            sum(trial.failed for trial in self.trials.values()),
            chosen.number if chosen is not None else None,
            chosen.score if chosen is not None else None,
            values,
        )


def score(state: CellState, metric: str) -> float:
    """Return the last value of a metric in a cell's rounds; NaN if the cell failed or diverged.

    NaN if the cell failed, if it did not measure the metric, or if a loss was NaN or infinite before.
    """
    if state.state != "done" or state.folder is None:
        return math.nan
    rows = [row for row in read_rounds(state.folder).to_pylist() if row["round"] <= state.cell.rounds]
    losses = [row[name] for row in rows for name in ("loss/train", "loss/test") if row.get(name) is not None]
    values = [row[metric] for row in rows if row["round"] >= 1 and row.get(metric) is not None]
    return float(values[-1]) if values and all(map(math.isfinite, (*losses, *values))) else math.nan


def with_choices(sweep: Sweep) -> Sweep:
    """Return the sweep with the values chosen so far; without tuning, the sweep itself."""
    return sweep if sweep.tuning is None else sweep.tuning.resolved(sweep, sweep.tuning.progress())


def trials_frame(progress: Sequence[TuningProgress]) -> pd.DataFrame:
    """Return one row per trial made so far, in the order of the methods; see `Study.trials`."""
    import pandas as pd

    rows = [
        {
            "method": one.candidate.name,
            "trial": trial.number,
            "state": counts(trial.states),
            "rounds": trial.rounds,
            "score": trial.score,
            "chosen": trial is one.chosen,
            **trial.values,
        }
        for one in progress
        for trial in one.trials.values()
    ]
    return pd.DataFrame(rows, columns=None if rows else ["method", "trial", "state", "rounds", "score", "chosen"])


def write_journal(tuning: Tuning, progress: Sequence[TuningProgress]) -> None:
    """Write the ended trials as an Optuna journal with one study per candidate, if Optuna is installed."""
    if find_spec("optuna") is None:
        return
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = tuning.sweep.output / JOURNAL
    direction = "minimize" if falls(tuning.settings.select) else "maximize"
    unfinished = path.with_name(f".{JOURNAL}")
    unfinished.unlink(missing_ok=True)
    storage = JournalStorage(JournalFileBackend(str(unfinished)))
    for one in progress:
        study = optuna.create_study(storage=storage, study_name=one.candidate.name, direction=direction)
        study.set_user_attr("metric", tuning.settings.select)
        study.add_trials([_optuna_trial(one, trial) for trial in one.trials.values() if trial.score is not None])
    unfinished.replace(path)


def _optuna_trial(progress: TuningProgress, trial: TuningTrial) -> Any:
    """Return a trial for Optuna. A trial that halving ended early counts as pruned."""
    from optuna.trial import TrialState, create_trial

    ended_early = trial.rounds < progress.candidate.steps[-1]
    return create_trial(
        state=TrialState.FAIL if trial.failed else TrialState.PRUNED if ended_early else TrialState.COMPLETE,
        value=None if trial.failed else trial.score,
        params={key: choice(value) for key, value in trial.values.items()},
        distributions={key: distribution(one) for key, one in progress.candidate.space.items()},
        user_attrs={"folders": [state.cell.folder_name for state in trial.states]},
        intermediate_values={} if trial.failed else {trial.rounds: trial.score},
    )
