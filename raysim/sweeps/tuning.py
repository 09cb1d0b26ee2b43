"""Tuning of a sweep's variants: trials are ordinary cells, beside those of the result, with other seeds.

Only the run folders of the trials record what was done. `Tuning.standing` derives the choice and the trials that
continue from them, so a tuning that was interrupted at any time makes the choice of one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from raysim.common.errors import ScenarioError
from raysim.comparison.sweep_card import ChosenValue, TunedVariant, TuningCard
from raysim.engine.policies.stopping import falls
from raysim.report.load import read_rounds
from raysim.report.units import plural
from raysim.scenario.deciding import DECIDING, missing_setting, rounds_between
from raysim.scenario.origin import override_key
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import Cell, CellMaker, Sweep, Variant, VariantCells, written
from raysim.sweeps.halving import kept, ranked, sizes, total_rounds
from raysim.sweeps.space import Space, Values, corners, draws, grid, number_of_points
from raysim.sweeps.state import CellState, state_of
from raysim.sweeps.tune_settings import TuneSettings

FAST_TRIALS = 2
"""Trials per method with `--fast`."""

FEW_TRIALS = 16
"""Trials from which on a choice of two or more keys is not mostly a matter of luck: see docs/tuning.md."""

FAST_NOTE = f"--fast: at most {FAST_TRIALS} trials per method, on one seed and without successive halving"

HasEnded = Callable[[CellState], bool]
"""Whether a cell of a trial has ended for good."""


def has_ended(state: CellState) -> bool:
    """Whether a cell is done or failed."""
    return state.state in ("done", "failed")


@dataclass(frozen=True)
class Candidate:
    """A variant that is tuned."""

    name: str  # its label, or its method without one
    variant: Variant
    space: Space
    trials: int
    steps: tuple[int, ...]  # the rounds after which trials are compared, ascending; the last is that of the choice
    finals: tuple[tuple[int | None, Cell], ...]  # (seed, pending cell) of the result

    @property
    def rounds(self) -> int:
        """The rounds of a cell of the result."""
        return self.finals[0][1].scenario.rounds


@dataclass(frozen=True)
class Trial:
    """A trial of a candidate, which is one cell per seed of the tuning."""

    number: int
    values: Mapping[str, Any]  # key -> value of the tuned keys
    states: tuple[CellState, ...]  # of its cells, until the last round that was asked of them
    score: float | None = None  # mean of the metric over the seeds; NaN: it failed or diverged; None: it is not done


@dataclass(frozen=True)
class Standing:
    """The progress of a candidate's tuning: its trials, the cells that must run next, and the choice, if it is made."""

    candidate: Candidate
    trials: tuple[Trial, ...]  # those that are known: without those that Optuna has not suggested yet
    open: tuple[CellState, ...] = ()  # the cells that must end before the next decision
    step: int = 0  # index in `steps` of the next decision or, after the last, of the choice
    chosen: Trial | None = None

    @property
    def rounds(self) -> int:
        """The rounds that all cells of the trials have done."""
        states = [state for trial in self.trials for state in trial.states]
        return sum({state.cell.folder_name: min(state.rounds, state.cell.rounds) for state in states}.values())

    @property
    def state(self) -> Literal["tuned", "tuning", "failed"]:
        """Whether values are chosen, trials are left, or every trial failed."""
        return "tuned" if self.chosen is not None else "tuning" if self.open else "failed"

    @property
    def reason(self) -> str:
        """Why nothing is chosen; empty if something is."""
        if self.chosen is not None:
            return ""
        return "its trials are not done" if self.open else "no values chosen: every trial failed or diverged"

    @property
    def failed(self) -> int:
        """The number of trials that rank last."""
        return sum(trial.score is not None and math.isnan(trial.score) for trial in self.trials)


@dataclass(frozen=True)
class Tuning:
    """The tuning of a sweep's variants."""

    settings: TuneSettings
    candidates: tuple[Candidate, ...]
    untuned: tuple[str, ...]  # names of the variants without a key to tune
    sweep: Sweep  # the sweep of the trials, without cells: its name, base and folder
    maker: CellMaker
    _made: dict[tuple[str, int, str], tuple[Cell, ...]] = field(default_factory=dict)

    def of_cells(self, names: Collection[str]) -> Tuning:
        """Return the tuning of only the candidates with one of these cells of the result."""
        chosen = [one for one in self.candidates if any(cell.name in names for _, cell in one.finals)]
        return replace(self, candidates=tuple(chosen))

    @cached_property
    def keep(self) -> Fraction:
        """The share of the compared trials that continues."""
        return self.settings.halving.keep if self.settings.halving is not None else Fraction(1)

    def points(self, candidate: Candidate) -> list[dict[str, Any]]:
        """The values of every trial, of a grid or of random draws."""
        if self.settings.search == "grid":
            lists = {key: one for key, one in candidate.space.items() if isinstance(one, Values)}
            return grid(lists)[: candidate.trials]
        return draws(candidate.space, self.settings.seed, candidate.trials)

    def cells(self, candidate: Candidate, number: int, values: Mapping[str, Any], until: int) -> tuple[Cell, ...]:
        """The cells of a trial, one per seed. Raises `ScenarioError` if a scenario with these values is invalid."""
        key = (candidate.name, number, written(dict(values)))
        if key not in self._made:
            self._made[key] = tuple(self.maker.cell(candidate.variant, seed, values, number) for seed in self.seeds)
        return tuple(replace(cell, until=None if until == cell.scenario.rounds else until) for cell in self._made[key])

    @property
    def scenarios(self) -> list[ParsedScenario]:
        """The scenarios of the trials that were made so far: after `tuning_of`, they have all values of all lists."""
        return [cell.scenario for cells in self._made.values() for cell in cells]

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds of every trial."""
        return self.settings.seeds[:1] if self.maker.fast else self.settings.seeds

    def planned_rounds(self, candidate: Candidate) -> int:
        """The rounds of all cells of a candidate's trials, if none fails or ends early."""
        return len(self.seeds) * total_rounds(candidate.trials, candidate.steps, self.keep)

    def later_rounds(self, standing: Standing) -> int:
        """The rounds of a candidate's trials that follow those of the open cells, if none fails or ends early."""
        if not standing.open:
            return 0
        candidate, seeds = standing.candidate, len(self.seeds)
        if self.settings.search == "tpe":
            return seeds * (candidate.trials - len(standing.trials)) * candidate.rounds
        steps = candidate.steps[standing.step :]
        compared = len(standing.open) // seeds
        return seeds * (total_rounds(compared, [t - steps[0] for t in steps], self.keep))

    def starts_left(self, standing: Standing) -> int:
        """How often cells of a candidate's trials still start or resume, if none fails or ends early."""
        if not standing.open:
            return 0
        seeds, now = len(self.seeds), sum(not has_ended(state) for state in standing.open)
        if self.settings.search == "tpe":
            return now + seeds * (standing.candidate.trials - len(standing.trials))
        steps = len(standing.candidate.steps) - standing.step
        return now + seeds * sum(sizes(len(standing.open) // seeds, steps, self.keep)[1:])

    def full_rounds(self, candidate: Candidate) -> int:
        """The rounds of all cells of a candidate's trials if every trial had all rounds of the scenario."""
        return len(self.seeds) * candidate.trials * candidate.rounds

    def standings(self, ended: HasEnded = has_ended) -> list[Standing]:
        """Return the progress of every candidate, derived from the run folders."""
        return [self.standing(candidate, ended) for candidate in self.candidates]

    def standing(self, candidate: Candidate, ended: HasEnded = has_ended) -> Standing:
        """Return the progress of a candidate. ended: decides whether a cell has ended for good."""
        if self.settings.search == "tpe":
            from raysim.sweeps.tpe import standing_of  # imports Optuna

            return standing_of(self, candidate, ended)
        points = self.points(candidate)
        trials: dict[int, Trial] = {}
        alive = list(range(len(points)))
        for step, until in enumerate(candidate.steps):
            for number in alive:
                trials[number] = self.trial(candidate, number, points[number], until, ended)
            known = tuple(trials.values())
            if any(trials[number].score is None for number in alive):
                still = tuple(s for number in alive for s in trials[number].states)
                return Standing(candidate, known, still, step)
            best = self.ranked({number: trials[number] for number in alive})
            if not best or until == candidate.steps[-1]:
                return Standing(candidate, known, (), step, trials[best[0]] if best else None)
            alive = sorted(best[: kept(len(alive), self.keep)])
        raise AssertionError("a candidate has at least one step")

    def ranked(self, trials: Mapping[int, Trial]) -> list[int]:
        """The trials with a finite score, from the best to the worst; of equal trials, the earlier one first."""
        scores = {number: math.nan if one.score is None else one.score for number, one in trials.items()}
        return ranked(scores, smaller=falls(self.settings.select))

    def trial(self, candidate: Candidate, number: int, values: Mapping[str, Any], until: int, ended: HasEnded) -> Trial:
        """Read a trial, and its score after round `until`, from its run folders."""
        states = tuple(state_of(cell, self.sweep) for cell in self.cells(candidate, number, values, until))
        if not all(map(ended, states)):
            return Trial(number, values, states)
        scores = [score(state, self.settings.select) for state in states]
        return Trial(number, values, states, math.fsum(scores) / len(scores))

    def resolved(self, sweep: Sweep, standings: Sequence[Standing]) -> Sweep:
        """Return the sweep with the chosen values in its cells; those of a candidate without a choice stay pending."""
        chosen: dict[str, Cell] = {}
        for standing in standings:
            if standing.chosen is None:
                continue
            for seed, pending in standing.candidate.finals:
                cell = self.maker.cell(standing.candidate.variant, seed, standing.chosen.values)
                chosen[pending.name] = replace(cell, published=pending.published)
        cells = tuple(chosen.get(cell.name, cell) for cell in sweep.cells)
        return replace(sweep, cells=cells, tuned=self.card(cells, standings))

    def card(self, cells: Sequence[Cell], standings: Sequence[Standing]) -> TuningCard:
        """The facts about the tuning that the comparison shows. cells: of the result."""
        settings = self.settings
        return TuningCard(
            settings.search,
            settings.select,
            DECIDING[settings.select].part == "test",
            self.seeds,
            tuple(map(self.tuned, standings)),
            self.untuned,
            [cell.folder_name for cell in cells if not cell.pending],
        )

    def tuned(self, standing: Standing) -> TunedVariant:
        """The facts about one candidate that the comparison shows."""
        candidate, chosen = standing.candidate, standing.chosen
        values = [
            ChosenValue(key, written(value), candidate.space[key].edge(value), str(candidate.space[key]))
            for key, value in (chosen.values if chosen else {}).items()
        ]
        return TunedVariant(
            candidate.name,
            len(standing.trials),
            list(candidate.steps) if self.settings.halving is not None else [],
            standing.rounds,
            standing.failed,
            chosen.number if chosen is not None else None,
            chosen.score if chosen is not None else None,
            values,
        )


def score(state: CellState, metric: str) -> float:
    """The last value of a metric that a cell measured in its rounds.

    NaN if the cell failed, if it did not measure the metric, or if a loss was NaN or infinite before.
    """
    if state.state != "done" or state.folder is None:
        return math.nan
    try:
        table = read_rounds(state.folder)
    except ScenarioError:
        return math.nan
    names = [name for name in (metric, "loss/train", "loss/test") if name in table.column_names]
    value = math.nan
    for row in table.select(["round", *names]).to_pylist():
        if row["round"] > state.cell.rounds:
            continue
        if any(row[name] is not None and not math.isfinite(row[name]) for name in names):
            return math.nan
        if row["round"] >= 1 and row.get(metric) is not None:
            value = float(row[metric])
    return value


def with_choices(sweep: Sweep) -> Sweep:
    """Return the sweep with the values that its tuning has chosen so far; a sweep without tuning is not changed."""
    return sweep if sweep.tuning is None else sweep.tuning.resolved(sweep, sweep.tuning.standings())


def tuning_of(
    settings: TuneSettings,
    maker: CellMaker,
    variants: Sequence[VariantCells],
    spaces: Sequence[Space],
    sweep: Sweep,
) -> Sweep:
    """Return the sweep with its tuning, whose cells are pending where a key is tuned.

    spaces: of each variant. sweep: with the untuned cells. Raises `ScenarioError` if it cannot be tuned.
    """
    _refuse_seeds(settings, sweep)
    pending: set[str] = set()
    candidates, untuned = [], []
    for (variant, cells), space in zip(variants, spaces, strict=True):
        if not cells:
            continue  # with --fast, variants may be the same run
        first = cells[0][1]
        name = first.variant
        if not space:
            untuned.append(name)
            continue
        _refuse_fixed(settings, variant, space)
        trials = settings.number_of_trials(space, name)
        finals = tuple((seed, replace(cell, pending=True)) for seed, cell in cells)
        pending |= {cell.name for _, cell in cells}
        steps = _steps(settings, first, name, maker.fast)
        candidates.append(
            Candidate(name, variant, space, min(trials, FAST_TRIALS) if maker.fast else trials, steps, finals)
        )
    output = sweep.output.with_name(f"{sweep.output.name}-tuning")
    address = sweep.address and f"{sweep.address}-tuning"
    trials_sweep = Sweep(
        f"{sweep.name}-tuning", sweep.base, (), output, about=sweep.about, address=address, folder=sweep.folder
    )
    tuning = Tuning(settings, tuple(candidates), tuple(untuned), trials_sweep, maker)
    for candidate in candidates:
        _check_trials(tuning, candidate)
    marked = tuple(replace(cell, pending=cell.name in pending) for cell in sweep.cells)
    notes = (FAST_NOTE,) if maker.fast else (*_last_comparison(settings, candidates), *_few_trials(candidates))
    return replace(sweep, cells=marked, tuning=tuning, notes=(*sweep.notes, *notes))


def _last_comparison(settings: TuneSettings, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """A note if trials are compared for the last time before the last round of the result, else nothing."""
    early = next((one for one in candidates if one.steps[-1] < one.rounds), None)
    if early is None:
        return ()
    chosen, rounds = early.steps[-1], early.rounds
    return (
        f"tuning chooses values after round {chosen} of {rounds}, but other values may be best after round {rounds}; "
        f"to choose after round {rounds}, add {rounds} to the end of the list tune.halving.rounds",
    )


def _few_trials(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """A note if some candidates have few trials for two or more keys, unless they try the whole space."""
    few = [
        one
        for one in candidates
        if one.trials < FEW_TRIALS
        and one.trials < number_of_points(one.space)
        and sum(of.size > 1 for of in one.space.values()) > 1
    ]
    if not few:
        return ()
    least = min(one.trials for one in few)
    return (
        f"{', '.join(one.name for one in few)}: two or more keys are tuned with fewer than {FEW_TRIALS} trials. With "
        f"{plural(least, 'trial')}, the probability that at least one of them is among the best 10% of all "
        f"combinations is {1 - 0.9**least:.0%}; increase tune.trials",
    )


def _refuse_seeds(settings: TuneSettings, sweep: Sweep) -> None:
    """Refuse seeds of the result: values chosen on them would have seen the result's data and initial networks."""
    of_result = {cell.scenario.seed for cell in sweep.cells}
    if both := sorted(of_result & set(settings.seeds)):
        text = f"{both[0]} given, but a final run of the sweep has this seed; give other seeds, such as 101..102"
        raise ScenarioError(text, key="tune.seeds", origin=settings.file)


def spaces_of(settings: TuneSettings, variants: Sequence[VariantCells]) -> list[Space]:
    """The space of each variant. Raises `ScenarioError` for a name in `tune.methods` that no variant has."""
    spaces: list[Space] = []
    known: dict[str, None] = {}
    for variant, cells in variants:
        names = dict.fromkeys((*variant.runs, *(name for _, cell in cells for name in _called(cell))))
        known.update(names)
        own = {key: one for name in names for key, one in settings.methods.get(name, {}).items()}
        spaces.append({**settings.space, **own})
    if unknown := [name for name in settings.methods if name not in known]:
        text = f"no such name in `runs`; allowed: {', '.join(known)}"
        raise ScenarioError(text, key=f"tune.methods.{unknown[0]}", origin=settings.file)
    return spaces


def _called(cell: Cell) -> tuple[str, ...]:
    """Names of a cell's variant, besides those in `runs`."""
    return tuple(filter(None, (cell.label, cell.scenario.method)))


def _refuse_fixed(settings: TuneSettings, variant: Variant, space: Space) -> None:
    """Refuse to tune a key that the variant sets: one of both values would be ignored."""
    keys = {key for key, _ in variant.assignments} | set(map(override_key, variant.sets))
    where = " ".join(variant.labels.values()) or "the grid"
    if both := [key for key in space if key in keys]:
        text = f"{where} sets {both[0]}, but `tune` also tunes this key; remove it from one of the two"
        raise ScenarioError(text, key="tune", origin=settings.file)
    if "seed" in keys:
        text = (
            f"{where} sets seed, but trials need other seeds than the final runs; remove seed there, and give the "
            "seeds of the final runs in `seeds`"
        )
        raise ScenarioError(text, key="tune", origin=settings.file)


def _steps(settings: TuneSettings, cell: Cell, name: str, fast: bool) -> tuple[int, ...]:
    """The rounds after which a candidate's trials are compared. Raises `ScenarioError` if halving does not fit."""
    scenario, halving = cell.scenario, settings.halving
    if halving is None or fast:
        return (scenario.rounds,)
    key, file = "tune.halving.rounds", settings.file
    last = halving.rounds[-1]
    if last > scenario.rounds:
        text = f"{last} given, but {name} has {scenario.rounds} rounds; give at most {scenario.rounds}"
        raise ScenarioError(text, key=key, origin=file)
    every = rounds_between(settings.select, scenario.evaluation)
    if wrong := [t for t in halving.rounds if t % every and t != scenario.rounds]:
        text = (
            f"{wrong[0]} given, but {name} measures {settings.select} every {every} rounds; give multiples of {every}"
        )
        raise ScenarioError(text, key=key, origin=file)
    if scenario.checkpoint.every == 0:
        text = f"trials continue from checkpoints, but {name} has checkpoint.every: 0; remove checkpoint.every"
        raise ScenarioError(text, key="tune.halving", origin=file)
    return halving.rounds


def _check_trials(tuning: Tuning, candidate: Candidate) -> None:
    """Load the scenarios of a candidate's trials, and check that they measure the metric. Raises `ScenarioError`."""
    settings = tuning.settings
    points = corners(candidate.space) if settings.search == "tpe" else tuning.points(candidate)
    try:
        cells = [tuning.cells(candidate, number, values, candidate.steps[-1]) for number, values in enumerate(points)]
    except ScenarioError as error:
        methods = [
            key for key in settings.space if key.startswith("algorithm.") and f"{key}: unknown key" in str(error)
        ]
        how = (
            "; if only some of the methods have this key, move it from `tune.space` to `tune.methods`"
            if methods
            else ""
        )
        raise ScenarioError(f"{error}{how}") from None
    scenario = cells[0][0].scenario
    if setting := missing_setting(settings.select, scenario.evaluation):
        text = f"{settings.select} given, but it needs {setting}; set that key"
        raise ScenarioError(text, key="tune.select", origin=settings.file)
    if DECIDING[settings.select].part == "val" and _split(scenario) == "published":
        text = (
            f"{settings.select} given, but clients have no validation samples with data.split: published; "
            "choose another metric or, unless the partition is hks, set data.split to pooled811 or pfedhn"
        )
        raise ScenarioError(text, key="tune.select", origin=settings.file)


def _split(scenario: ParsedScenario) -> str:
    """How each client's samples are split; empty if the scenario cannot be checked further."""
    try:
        return Scenario.of(scenario).data.split
    except ScenarioError:
        return ""  # the cell fails with this error
