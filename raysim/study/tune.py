"""The section `tune` of a sweep file: its keys, and the candidates and trials for the sweep's variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from raysim.common.errors import ScenarioError
from raysim.core.fields import Range as Bounds
from raysim.scenario.deciding import DECIDING, missing_setting, rounds_between
from raysim.scenario.origin import Origin, override_key
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.schema import AtLeastOne, Metric, Section, decides
from raysim.scenario.sentences import unknown_key, validated
from raysim.study.cells import Cell, Sweep, valid
from raysim.study.choice import Candidate, Tuning
from raysim.study.space import Space, ValueRange, domain, number_of_points
from raysim.study.sweep_card import SweepCard

MOST_TRIALS = 1000


class Halving(Section):
    """Successive halving: after each of these rounds except the last, only the best trials continue."""

    rounds: Annotated[list[AtLeastOne], Field(min_length=1)]
    """The rounds after which trials are compared."""
    keep: Annotated[Fraction, BeforeValidator(str), Field(strict=False, gt=0, lt=1)] = Fraction(1, 3)
    """The share of compared trials that continues; their number is rounded up."""


class Tune(Section):
    """How values are chosen: the trials of every method, and the metric by which they are compared."""

    seeds: list[int]
    """required: the seeds of every trial, such as [101] or 101..102; they must differ from the seeds of the final
    runs"""
    space: dict[str, Any] = Field(default_factory=dict)
    """the keys to tune for every method: key -> list of values, or a range {log: [LOW, HIGH]}, {linear: [LOW, HIGH]}
    or {integer: [LOW, HIGH]}"""
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """keys to tune for some of the methods only: name in `runs` -> keys with their values, as in `space`"""
    search: Literal["random", "grid", "tpe"] = "random"
    """random (the default), grid, or tpe (Optuna)"""
    trials: Annotated[int, Bounds(ge=1, le=MOST_TRIALS)] | None = None
    """number of trials of each method, from 1 to 1000, or fewer if there are fewer combinations; required, except with
    `search: grid`, which tries every combination"""
    halving: Halving | None = None
    """successive halving, such as {rounds: [5, 20], keep: 1/3}: only the best third of the trials continues after round
    5, and these trials end after round 20; `keep` is 1/3 by default. Default: every trial runs all rounds"""
    select: Metric = "accuracy/val"
    """metric that compares trials: one of the metrics that `raysim describe stop` lists for `metric`; default:
    accuracy/val"""
    seed: int = 1
    """seed of random draws and of `tpe`; default: 1"""


NOT_TUNED = ("seed", "seeds", "rounds", "evaluation", "stop", "algorithm.name")
"""Keys and sections that affect results, but cannot be tuned."""


def read_tune(raw: Mapping[str, Any], file: str) -> Tune:
    """Check the section `tune` alone, without the scenarios of its trials. Raises `ScenarioError`."""
    tune: Tune = validated(Tune, raw, Origin(file, {}), ("tune",))
    if not tune.space and not tune.methods:
        raise ScenarioError("give `space`, `methods`, or both", key="tune", origin=file)
    if tune.search == "tpe" and find_spec("optuna") is None:
        text = "tpe given, but Optuna is not installed; run `pip install 'raysim[tune]'`, or use random"
        raise ScenarioError(text, key="tune.search", origin=file)
    if tune.trials is None and tune.search != "grid":
        text = f"is missing; give the number of trials of each method, from 1 to {MOST_TRIALS}"
        raise ScenarioError(text, key="tune.trials", origin=file)
    if tune.halving is not None and tune.search == "tpe":
        text = "does not work with `search: tpe`, which learns from complete trials; set `search` to random or grid"
        raise ScenarioError(text, key="tune.halving", origin=file)
    return tune


def spaces_of(tune: Tune, variants: Sequence[Sequence[Cell]], file: str) -> list[Space]:
    """Return the space of each variant, whose cells differ in their seeds.

    Raises `ScenarioError` if `tune.methods` has a name that no variant has.
    """
    shared = _space(tune.space, "tune.space", file)
    methods = {name: _space(keys, f"tune.methods.{name}", file) for name, keys in tune.methods.items()}
    spaces: list[Space] = []
    known: dict[str, None] = {}
    for cells in variants:
        called = (name for cell in cells for name in (cell.label, cell.scenario.method) if name)
        names = dict.fromkeys((*cells[0].runs, *called))
        known.update(names)
        spaces.append({**shared, **{key: one for name in names for key, one in methods.get(name, {}).items()}})
    if unknown := [name for name in methods if name not in known]:
        text = f"no such name in `runs`; allowed: {', '.join(known)}"
        raise ScenarioError(text, key=f"tune.methods.{unknown[0]}", origin=file)
    return spaces


def _space(raw: Mapping[str, Any], place: str, file: str) -> Space:
    """Parse the domain of each key. Raises `ScenarioError`."""
    for key in raw:
        problem = unknown_key(key)
        if not decides(key):
            problem = "cannot be tuned, because it does not affect results; remove this key"
        elif key in NOT_TUNED or key.partition(".")[0] in NOT_TUNED:
            problem = (
                "cannot be tuned, because trials must be comparable; remove this key. Name methods in `runs`, give the "
                "seeds of trials in `tune.seeds` and, to end bad trials early, set `tune.halving`"
            )
        if problem:
            raise ScenarioError(problem, key=f"{place}.{key}", origin=file)
    return {key: domain(value, f"{place}.{key}", file) for key, value in raw.items()}


def tuning_of(tune: Tune, variants: Sequence[Sequence[Cell]], spaces: Sequence[Space], sweep: Sweep) -> Sweep:
    """Return the sweep with its tuning. spaces: of each variant. Raises `ScenarioError` if it cannot be tuned."""
    file = str(sweep.maker.file)
    # A seed of a final run must not be used: values tuned with its data and initial networks would have an advantage.
    if both := sorted({cell.scenario.seed for cell in sweep.cells} & set(tune.seeds)):
        text = f"{both[0]} given, but a final run of the sweep has this seed; give other seeds, such as 101..102"
        raise ScenarioError(text, key="tune.seeds", origin=file)
    candidates = [_candidate(tune, cells, space, file) for cells, space in zip(variants, spaces, strict=True) if space]
    output = sweep.output.with_name(f"{sweep.name}-tuning")
    address = sweep.address and f"{sweep.address}-tuning"
    trials = Sweep(sweep.maker, (), output, SweepCard(sweep.facts.about, {}, trials=True), address=address)
    tuning = Tuning(tune, tuple(candidates), trials)
    for candidate in candidates:
        _check_trials(tuning, candidate)
    return replace(sweep, tuning=tuning)


def _candidate(tune: Tune, cells: Sequence[Cell], space: Space, file: str) -> Candidate:
    """Return the candidate for a variant with keys to tune. Raises `ScenarioError`."""
    name, variant = cells[0].variant, cells[0].made_of
    keys = {key for key, _ in variant.assignments} | set(map(override_key, variant.sets))
    if both := [key for key in (*space, "seed") if key in keys]:
        where = " ".join(variant.labels.values()) or "the grid"
        text = f"{where} sets {both[0]}, but trials have other values of this key; remove it there or from `tune`"
        raise ScenarioError(f"{text} (give the seeds of the final runs in `seeds`)", key="tune", origin=file)
    trials = _number_of_trials(tune, space, name, file)
    steps = _steps(tune, cells[0].scenario, name, file)
    return Candidate(tuple(cells), space, trials, steps)


def _number_of_trials(tune: Tune, space: Space, name: str, file: str) -> int:
    """Return the number of trials of a method with this name and space. Raises `ScenarioError` for a wrong number."""
    size = number_of_points(space)
    if tune.search == "grid" and (size > MOST_TRIALS or any(isinstance(one, ValueRange) for one in space.values())):
        text = f"grid tries every combination of lists, at most {MOST_TRIALS}, but {name} has a range or more of them"
        raise ScenarioError(f"{text}; use random, or shorter lists", key="tune.search", origin=file)
    if tune.search == "grid" and tune.trials is not None and tune.trials < size:
        text = f"{tune.trials} given, but {name} has {size:.0f} combinations; leave out trials, or use random"
        raise ScenarioError(text, key="tune.trials", origin=file)
    return int(size) if tune.trials is None else int(min(tune.trials, size))


def _steps(tune: Tune, scenario: ParsedScenario, name: str, file: str) -> tuple[int, ...]:
    """Return the rounds after which a candidate's trials are compared. Raises `ScenarioError` if halving is invalid."""
    if tune.halving is None:
        return (scenario.rounds,)
    rounds = sorted(set(tune.halving.rounds))
    every = rounds_between(tune.select, scenario.evaluation)
    problem = ""
    if rounds[-1] > scenario.rounds:
        problem = f"{rounds[-1]} given, but {name} has {scenario.rounds} rounds; give at most {scenario.rounds}"
    elif wrong := [t for t in rounds if t % every and t != scenario.rounds]:
        problem = f"{wrong[0]} given, but {name} measures {tune.select} every {every} rounds; give multiples of {every}"
    if problem:
        raise ScenarioError(problem, key="tune.halving.rounds", origin=file)
    return tuple(rounds)


def _check_trials(tuning: Tuning, candidate: Candidate) -> None:
    """Load the scenarios of a candidate's trials, and check that they measure the metric. Raises `ScenarioError`."""
    tune, file = tuning.settings, str(tuning.sweep.maker.file)
    points = tuning.points(candidate)  # the search `tpe` may choose other points
    try:
        cells = [tuning.cells(candidate, number, values, candidate.steps[-1]) for number, values in enumerate(points)]
    except ScenarioError as error:
        of_method = [key for key in tune.space if key.startswith("algorithm.") and f"{key}: unknown key" in str(error)]
        how = "; if only some of the methods have this key, move it from `tune.space` to `tune.methods`"
        raise ScenarioError(f"{error}{how if of_method else ''}") from None
    scenario = cells[0][0].scenario
    if setting := missing_setting(tune.select, scenario.evaluation):
        text = f"{tune.select} given, but it needs {setting}; set that key"
        raise ScenarioError(text, key="tune.select", origin=file)
    checked = valid(scenario)
    if DECIDING[tune.select].part == "val" and checked is not None and checked.split == "published":
        text = (
            f"{tune.select} given, but clients have no validation samples with data.split: published; "
            "choose another metric or, unless the partition is hks, set data.split to pooled811 or pfedhn"
        )
        raise ScenarioError(text, key="tune.select", origin=file)
