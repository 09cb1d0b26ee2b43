"""`Cell` and `Sweep`, and the making of cells: one scenario per variant, seed and tuned values."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.comparison.published import Published
from raysim.comparison.sweep_card import CellCard, SweepCard, TrialsCard, TuningCard
from raysim.engine.policies.sampling import cohort_size
from raysim.plugins.references import Reference
from raysim.runs.code import Code, versions
from raysim.scenario.origin import override_key
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.schema import decides
from raysim.scenario.yaml_text import UNREADABLE, Dumper, load_value

if TYPE_CHECKING:
    from raysim.sweeps.choice import Tuning


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str  # unique in the sweep, such as "fedgh seed=1"
    label: str  # the name without the seed
    sets: tuple[str, ...]  # overrides of the base
    scenario: ParsedScenario
    id: str  # a digest of everything that decides the result
    published: tuple[Published, ...] = ()  # published values for the label
    runs: tuple[str, ...] = ()  # the names in `runs` that define the cell
    until: int | None = None  # the round after which the run is interrupted; None: it has all its rounds
    values: tuple[tuple[str, Any], ...] = ()  # of a trial: (key, value) of the keys that are tuned
    pending: bool = False  # whether tuning has not chosen its values yet, so that it cannot run

    @property
    def folder_name(self) -> str:
        """The name of the folder with the cell's runs: readable words, made unique by the id."""
        words = re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-.") or "cell"
        return f"{words[:60].rstrip('-.')}-{self.id[:10]}"

    @property
    def variant(self) -> str:
        """The name of the cell's variant: the label, or the method if it has none."""
        return self.label or self.scenario.method

    @property
    def rounds(self) -> int:
        """The number of rounds that the cell is to have."""
        return self.scenario.rounds if self.until is None else self.until


@dataclass(frozen=True)
class Sweep:
    """A validated sweep: the scenario of every cell is valid."""

    name: str
    base: Path | Mapping[str, Any]
    cells: tuple[Cell, ...]
    output: Path  # contains one folder per cell
    baseline: str | None = None
    targets: tuple[float, ...] | None = None
    about: str = ""  # the comments at the top of the file and its base
    notes: tuple[str, ...] = ()  # how the runs differ from the file
    targets_on: str = "all"  # all, all_current or participants: whose mean accuracy must reach it
    tuning: Tuning | None = None  # how the values of pending cells are chosen
    tuned: TuningCard | None = None  # the values that were chosen so far
    trials: TrialsCard | None = None  # of a sweep of trials
    address: str = ""  # where `copies` has a copy of the folder `output`, if the scenario's `output` is an address
    folder: Path = Path()  # of the sweep file

    def card(self) -> SweepCard:
        """Return the facts that the comparison of the cells needs, without pending cells."""
        known = [cell for cell in self.cells if not cell.pending]
        cells = {cell.folder_name: CellCard(cell.label, cell.published, cell.runs) for cell in known}
        return SweepCard(
            self.about, cells, self.baseline, self.targets, self.notes, self.targets_on, self.tuned, self.trials
        )


@dataclass(frozen=True)
class CellVariant:
    """The cells of a sweep that differ only in their seed."""

    labels: Mapping[str, str]  # axis of `runs` -> name
    sets: tuple[str, ...]  # overrides of these names
    assignments: tuple[tuple[str, Any], ...] = ()  # (key, value) of each grid

    @property
    def runs(self) -> tuple[str, ...]:
        """The names in `runs` that define the variant."""
        return tuple(self.labels.values())


VariantCells = tuple[CellVariant, Sequence[tuple[int | None, Cell]]]
"""A variant, and its cells with their seeds; seed None: the base's."""


@dataclass(frozen=True)
class CellMaker:
    """Makes the cells of one sweep file."""

    base: Path | Mapping[str, Any]
    common: tuple[str, ...]  # overrides of the base for every cell, from the sweep file
    sets: tuple[str, ...]  # the same from `--set`
    file: Path  # the sweep file
    fast: bool = False
    options: frozenset[str] = frozenset()  # keys of `--grid`; paths in their values are relative to the current folder
    _methods: dict[str, str] = field(default_factory=dict)  # `algorithm.name` in a grid -> its name in tables

    def cell(
        self, variant: CellVariant, seed: int | None, tuned: Mapping[str, Any] | None = None, trial: int | None = None
    ) -> Cell:
        """Make a cell. seed: None: the base's. tuned: key -> value of keys that are tuned. trial: number of the trial.

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
            if self.fast:
                changed = (*changed, *_fast(scenario))
                scenario = parse_scenario(self.base, changed, sweep=self.file.parent, places=places)
        except ScenarioError as error:
            provisional = self._names(variant, of_seed, trial, None)[1]
            raise ScenarioError(f"{self.file}: the cell {provisional!r}: {error}") from None
        label, name = self._names(variant, of_seed, trial, scenario)
        values = () if trial is None else tuple((tuned or {}).items())
        return Cell(name, label, changed, scenario, identity(scenario), runs=variant.runs, values=values)

    def _names(
        self, variant: CellVariant, of_seed: Sequence[str], trial: int | None, scenario: ParsedScenario | None
    ) -> tuple[str, str]:
        """Return a cell's label, and its name with the seed. scenario: None: it could not be loaded."""
        parts = [
            self._method(scenario, value) if key == "algorithm.name" else f"{key}={shown_value(value)}"
            for key, value in variant.assignments if key != "seed"
        ]  # fmt: skip
        parts = [*variant.labels.values(), *parts]
        if trial is not None:
            parts += [*([scenario.method] if scenario is not None and not parts else []), f"trial {trial}"]
        label = " ".join(parts)
        seeds = [f"{key}={value}" for key, value in variant.assignments if key == "seed"]
        return label, " ".join([label, *seeds, *of_seed]).strip() or "base"

    def _method(self, scenario: ParsedScenario | None, value: Any) -> str:
        """Return the name in tables of an algorithm of the grid."""
        name = shown_value(value)
        if scenario is None:
            return name
        if name not in self._methods:
            taken = scenario.method in self._methods.values()
            self._methods[name] = f"{scenario.method} ({name})" if taken else scenario.method
        return self._methods[name]


def written(value: Any) -> str:
    """Write a value of a grid for `--set`: YAML in one line."""
    with suppress(*UNREADABLE):  # such as "[", which needs quotes
        if isinstance(value, str) and value and load_value(value) == value:
            return value
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**6)
    return " ".join(text.removesuffix("...\n").split())


def in_quotes(value: Any) -> str:
    """Write text, or lists or mappings of text, in quotes for `--set`: one line of YAML that keeps every character."""
    return yaml.dump(value, Dumper=Dumper, default_flow_style=True, default_style='"', width=math.inf).strip()


def shown_value(value: Any) -> str:
    """Write a value of a grid for a cell's name; a custom file by its name in runs, without its folder."""
    reference = Reference.of(value) if isinstance(value, str) else None
    return reference.name if reference is not None else written(value)


def _fast(scenario: ParsedScenario) -> list[str]:
    """Overrides that make a cell small enough for `--fast`."""
    clients = scenario.clients
    # Fewer participants, not fewer clients: if all images are dealt, fewer clients would each hold more of them.
    training = scenario.resolved["training"]
    lengths = {key: math.ceil(training[key] / 10) for key in ("epochs", "steps") if training.get(key)}
    sets = [f"rounds={min(scenario.rounds, 3)}", *(f"training.{key}={length}" for key, length in lengths.items())]
    # Otherwise a sweep would try nothing but the warm-up.
    sets += [f"algorithm.{name}=1" for name, warmup in scenario.warmup.items() if warmup]
    if clients.count != "auto":
        chosen = cohort_size(clients.participation, clients.count)
        sets.append(f"clients.participation={max(math.ceil(chosen / 10), min(chosen, 2)) / clients.count}")
    return sets


def identity(scenario: ParsedScenario) -> str:
    """Return a digest of everything that decides a run's result: the deciding keys, versions and the method's code."""
    keys = {key: value for key, value in scenario.flat().items() if decides(key)}
    all_versions = versions()
    deciding = {"scenario": keys, "versions": {name: all_versions[name] for name in ("raysim", "torch")}}
    method = Code.of(scenario.algorithm, scenario.own_code).method
    text = json.dumps({**deciding, "method": method}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def placed(cell: Cell, sweep: Sweep, sets: Sequence[str] = ()) -> ParsedScenario:
    """A cell's scenario, with the sweep's folder for its runs. sets: more overrides, of keys that decide no result.

    Raises `ScenarioError` if the cell would now be another run, because its base or the user's code was edited.
    """
    folder = [f"name={cell.folder_name}", f"output={in_quotes(str(sweep.output))}"]
    scenario = parse_scenario(
        sweep.base,
        [*cell.sets, *folder, *sets],
        sweep=sweep.folder,
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
    """Return the cells with one of these names, in the sweep's order; all cells if there are no names.

    A name, in which upper and lower case are the same, is that of a cell, with or without its seed, of its method, or
    of the entries in `runs` that define it; or a shell pattern for one, such as "*lr=0.1*".

    Raises:
        ScenarioError: no cell has one of the names.
    """
    if not only:
        return list(sweep.cells)
    chosen: dict[str, Cell] = {}
    for name in only:
        found = [cell for cell in sweep.cells if any(_matches(name, one) for one in _names(cell))]
        if not found:
            known = list(
                dict.fromkeys(one for cell in sweep.cells for one in (cell.scenario.method, cell.label) if one)
            )
            listed = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
            raise ScenarioError(
                f"--only: {name!r} given, but no cell has this name{suggest(name, known)}; allowed: {listed}"
            )
        chosen |= {cell.name: cell for cell in found}
    return [cell for cell in sweep.cells if cell.name in chosen]


def _names(cell: Cell) -> tuple[str, ...]:
    scenario = cell.scenario
    return (cell.name, cell.label, scenario.method, scenario.algorithm_name, *cell.runs)


def _matches(pattern: str, name: str) -> bool:
    # Names may hold brackets, which a pattern reads as a set of characters.
    return bool(name) and (pattern.lower() == name.lower() or fnmatchcase(name.lower(), pattern.lower()))
