"""`Cell` and `Sweep`: creation of cells (one scenario per variant, seed and tuned values), and their states."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import yaml

from raysim.common.errors import ScenarioError
from raysim.common.files import is_locked
from raysim.common.results import LOCK, Summary
from raysim.common.suggestions import suggest
from raysim.common.text import few
from raysim.plugins.registry import Reference
from raysim.results.load import read_summary, rounds_done
from raysim.runs.code import Code, versions
from raysim.scenario.data import data_digests, input_digests
from raysim.scenario.origin import override_key
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import decides
from raysim.scenario.yaml_text import UNREADABLE, Dumper, load_value
from raysim.study.published import Published
from raysim.study.sweep_card import CellCard, SweepCard

if TYPE_CHECKING:
    from raysim.study.choice import Tuning


@dataclass(frozen=True)
class CellVariant:
    """The cells of a sweep that differ only in their seeds."""

    labels: Mapping[str, str]  # axis of `runs` -> chosen name
    sets: tuple[str, ...]  # overrides by the chosen names
    assignments: tuple[tuple[str, Any], ...] = ()  # (key, value) from the grids


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str  # unique in the sweep, such as "fedgh seed=1"
    label: str  # the name without the seed, which all seeds of a variant share
    sets: tuple[str, ...]  # overrides of the base
    scenario: ParsedScenario
    id: str  # a digest of everything that decides the result
    made_of: CellVariant
    given_seed: int | None  # None: the seed of the base
    published: tuple[Published, ...] = ()  # values that papers published for the label
    until: int | None = None  # the round after which the run is interrupted; None: the run does all its rounds
    pending: bool = False  # whether the cell cannot run yet, because tuning has not chosen its values

    @property
    def folder_name(self) -> str:
        """The name of the folder for the cell's runs: readable words, made unique by the id."""
        words = re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-.") or "cell"
        return f"{words[:60].rstrip('-.')}-{self.id[:10]}"

    @property
    def runs(self) -> tuple[str, ...]:
        """The names in `runs` that define the cell."""
        return tuple(self.made_of.labels.values())

    @property
    def variant(self) -> str:
        """The name of the cell's variant: the label or, if it is empty, the method."""
        return self.label or self.scenario.method

    @property
    def rounds(self) -> int:
        """The number of rounds that the cell will have when it is done."""
        return self.scenario.rounds if self.until is None else self.until


@dataclass(frozen=True)
class CellMaker:
    """Makes the cells of one sweep file."""

    base: Path | Mapping[str, Any]
    common: tuple[str, ...]  # overrides of the base in the sweep file, for all cells
    sets: tuple[str, ...]  # overrides by `--set`, for all cells
    file: Path  # the sweep file
    options: frozenset[str] = frozenset()  # keys from `--grid`, for which paths are relative to the current folder

    def cell(
        self, variant: CellVariant, seed: int | None, tuned: Mapping[str, Any] | None = None, trial: int | None = None
    ) -> Cell:
        """Create a cell. seed: None: the base's. tuned: key -> tuned value. trial: number of the trial.

        Raises `ScenarioError` if its scenario is invalid.
        """
        of_seed = [] if seed is None else [f"seed={seed}"]
        assigned = (*variant.assignments, *(tuned or {}).items())
        overrides = (*variant.sets, *(f"{key}={written(value)}" for key, value in assigned), *of_seed)
        places = dict.fromkeys(map(override_key, (*self.common, *overrides)), "the sweep")
        places |= dict.fromkeys(self.options, "--grid")
        changed = (*self.common, *self.sets, *overrides)
        try:
            scenario = parse_scenario(self.base, changed, sweep=self.file.parent, places=places)
        except ScenarioError as error:
            _, name = _names(variant, of_seed, trial, None)
            raise ScenarioError(f"{self.file}: the cell {name!r}: {error}") from None
        label, name = _names(variant, of_seed, trial, scenario.method)
        return Cell(name, label, changed, scenario, identity(scenario), variant, seed)


@dataclass(frozen=True)
class Sweep:
    """A validated sweep: the scenario of every cell is valid."""

    maker: CellMaker
    cells: tuple[Cell, ...]
    output: Path  # the folder with one folder per cell
    facts: SweepCard  # the facts for the comparison, without the cells
    tuning: Tuning | None = None  # how the values of pending cells are chosen
    # Address of the copy of the folder `output`, if the scenario's `output` is an address; see `copies`.
    address: str = ""

    @property
    def name(self) -> str:
        """The sweep's name, which is that of its folder."""
        return self.output.name

    def card(self) -> SweepCard:
        """Return the facts for the comparison of the cells, except pending cells."""
        known = [cell for cell in self.cells if not cell.pending]
        cells = {cell.folder_name: CellCard(cell.label, cell.published, cell.runs) for cell in known}
        return replace(self.facts, cells=cells)


def _names(variant: CellVariant, of_seed: Sequence[str], trial: int | None, method: str | None) -> tuple[str, str]:
    """Return a cell's label, and its name with the seed. method: name in tables; None: the scenario is invalid."""
    assigned = {key: shown_value(value) for key, value in variant.assignments}
    seeds = [f"seed={assigned.pop('seed')}"] if "seed" in assigned else []
    parts = [method or value if key == "algorithm.name" else f"{key}={value}" for key, value in assigned.items()]
    parts = [*variant.labels.values(), *parts, *([] if trial is None else [f"trial {trial}"])]
    return " ".join(parts), " ".join([*parts, *seeds, *of_seed]) or "base"


def written(value: Any) -> str:
    """Return a value of a grid as text for `--set`: YAML in one line."""
    with suppress(*UNREADABLE):  # some texts need quotes, for example "["
        if isinstance(value, str) and value and load_value(value) == value:
            return value
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**6)
    return " ".join(text.removesuffix("...\n").split())


def in_quotes(value: Any) -> str:
    """Return text, or lists or mappings of text, in quotes for `--set`: one line of YAML with every character."""
    return yaml.dump(value, Dumper=Dumper, default_flow_style=True, default_style='"', width=math.inf).strip()


def shown_value(value: Any) -> str:
    """Return a value of a grid for a cell's name. A custom file has its name in runs, without its folder."""
    reference = Reference.of(value) if isinstance(value, str) else None
    return reference.name if reference is not None else written(value)


def identity(scenario: ParsedScenario) -> str:
    """Return a digest of everything that determines a run's result: deciding keys, versions and the method's code."""
    keys = {key: value for key, value in scenario.flat().items() if decides(key)}
    all_versions = versions()
    deciding = {"scenario": keys, "versions": {name: all_versions[name] for name in ("raysim", "torch")}}
    method = Code.of(scenario.algorithm, scenario.own_code).method
    text = json.dumps({**deciding, "method": method}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def valid(scenario: ParsedScenario) -> Scenario | None:
    """Return the scenario after all checks; None if it is invalid, which its run will report."""
    try:
        return Scenario.of(scenario)
    except ScenarioError:
        return None


def placed(cell: Cell, sweep: Sweep, sets: Sequence[str] = ()) -> ParsedScenario:
    """Return a cell's scenario, with the sweep's folder for its runs. sets: more overrides, which affect no result.

    Raises `ScenarioError` if the cell would now be another run, because its base or the user's code was edited.
    """
    folder = [f"name={cell.folder_name}", f"output={in_quotes(str(sweep.output))}"]
    scenario = parse_scenario(
        sweep.maker.base,
        [*cell.sets, *folder, *sets],
        sweep=sweep.maker.file.parent,
        places=cell.scenario.origin.places,
        known_code=cell.scenario.own_code,
    )
    if identity(scenario) != cell.id:
        raise ScenarioError(
            "the base scenario, or code that the cell runs, was edited after the sweep began; run the same command "
            "again, which makes a new cell of the present files"
        )
    return scenario


def chosen_cells(sweep: Sweep, only: Sequence[str]) -> list[Cell]:
    """Return the cells with one of these names, in the sweep's order; all cells if no names are given.

    A name, in which upper and lower case are the same, is that of a cell, with or without its seed, of its method, or
    of the entries in `runs` that define it; or a shell pattern for one, such as "*lr=0.1*".

    Raises:
        ScenarioError: no cell has one of the names.
    """
    if not only:
        return list(sweep.cells)
    chosen: dict[str, Cell] = {}
    for name in only:
        found = [cell for cell in sweep.cells if any(_matches(name, one) for one in _names_of(cell))]
        if not found:
            known = list(dict.fromkeys(cell.variant for cell in sweep.cells))
            raise ScenarioError(
                f"--only: {name!r} given, but no cell has this name{suggest(name, known)}; allowed: {few(known)}"
            )
        chosen |= {cell.name: cell for cell in found}
    return [cell for cell in sweep.cells if cell.name in chosen]


def _names_of(cell: Cell) -> tuple[str, ...]:
    scenario = cell.scenario
    return (cell.name, cell.label, scenario.method, scenario.algorithm_name, *cell.runs)


def _matches(pattern: str, name: str) -> bool:
    # Names are compared first, because patterns treat brackets in names as sets of characters.
    return bool(name) and (pattern.lower() == name.lower() or fnmatchcase(name.lower(), pattern.lower()))


State = Literal["done", "running", "interrupted", "failed", "waiting"]
"""The state of a cell, which is running until its plots and MLflow data are complete, too."""

ORDER: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class CellState:
    """A cell and its state."""

    cell: Cell
    state: State
    folder: Path | None = None  # the run folder
    rounds: int = 0  # finished rounds
    reason: str = ""  # why the cell is not done, if known


def state_of(cell: Cell, output: Path) -> CellState:
    """Return a cell's state in the sweep's folder `output`: of its finished run, or else of its latest run.

    A cell that is interrupted after a round (`Cell.until`) is done once its run has that round, even if the run has
    gone on since.
    """
    if cell.pending:
        return CellState(cell, "waiting", reason="tuning has not chosen the values of this cell yet")
    folder = output / cell.folder_name
    runs = sorted(path.parent for path in folder.glob("*/summary.json"))
    states = [_of_run(cell, run) for run in runs]
    if done := next((one for one in states if one.state == "done"), None):
        return done
    return states[-1] if states else CellState(cell, "waiting")


def _changed(cell: Cell, summary: Summary) -> str:
    """Return the files that have changed since a run, in words; "" if there are none, or if it is not known."""
    had = summary.get("dataset", {}).get("digest"), summary.get("public_digest")
    if had[0] is not None and data_digests(cell.scenario) not in (None, had):
        return "the data"
    try:
        inputs = input_digests(cell.scenario)
    except ScenarioError:  # a file is missing on this machine
        return ""
    digests = [*summary.get("inputs", inputs).values()]
    return ", ".join(path for path, digest in inputs.items() if digest not in digests)


def _of_run(cell: Cell, run: Path) -> CellState:
    # The lock is read first: of a run that ends between the two reads, the summary is then the last one.
    is_held = is_locked(run / LOCK)
    try:
        summary = read_summary(run)
    except ScenarioError as error:
        return CellState(cell, "failed", run, reason=str(error))
    status, rounds = summary.get("status"), rounds_done(run, summary)
    is_running = status == "running" or (is_held and status == "closing")
    if not is_running and (changed := _changed(cell, summary)):
        reason = f"{changed} changed after the last run, which is kept but no longer counts"
        return CellState(cell, "waiting", reason=reason)
    states: dict[object, State] = {"finished": "done", "failed": "failed"}
    state = "running" if is_running else states.get(status, "interrupted")
    if cell.until is not None and rounds >= cell.until:
        return CellState(cell, "done", run, rounds)
    return CellState(cell, state, run, rounds, str(summary.get("error") or ""))


def states_of(sweep: Sweep) -> list[CellState]:
    """Return the states of all cells, in the sweep's order."""
    return [state_of(cell, sweep.output) for cell in sweep.cells]


def tally(states: Iterable[State]) -> dict[State, int]:
    """Return state -> number of cells; states without cells are left out."""
    found = Counter(states)
    return {state: found[state] for state in ORDER if found[state]}


def counts(states: Iterable[CellState]) -> str:
    """Count states in words, such as "5 done, 1 failed, 2 waiting"."""
    tallied = tally(one.state for one in states)
    return ", ".join(f"{number} {state}" for state, number in tallied.items()) or "no cells"
