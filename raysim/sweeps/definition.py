"""Loads a sweep file, or a scenario with a grid, as cells, each with its own scenario."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from raysim.common import names
from raysim.common.errors import ScenarioError
from raysim.common.files import refuse_special
from raysim.common.text import is_name
from raysim.comparison.measures import CURVES
from raysim.comparison.published import Published
from raysim.comparison.sweep_card import CellCard, SweepCard
from raysim.engine.policies.sampling import cohort_size
from raysim.plugins.references import Reference
from raysim.runs.code import Code, versions
from raysim.scenario.bundled import scenario_file
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.schema import decides
from raysim.scenario.yaml_text import UNREADABLE, Dumper, load_value, opening_comment, parse, read_text, shown
from raysim.sweeps.claims import claimed, read_claims

KEYS: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "base": (str, dict),
    "seeds": (list, str, int),
    "set": list,
    "grid": dict,
    "runs": dict,
    "baseline": str,
    "targets": list,
    "targets_on": str,
    "published": (dict, list),
}
"""The keys of a sweep file and the types of their values."""

FAST_NOTE = (
    "--fast: at most 3 rounds, 1 of them warm-up, a tenth of the participants and of the epochs and the first seed of "
    "the sweep's file; these numbers show that it runs, not which method is better"
)

MOST_CELLS = 100_000
"""The most cells of a sweep: each is a scenario in memory, and a run."""

_SEEDS = re.compile(r"(\d+)\.\.(\d+)")


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

    @property
    def folder_name(self) -> str:
        """The name of the folder with the cell's runs: readable words, made unique by the id."""
        words = re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-.") or "cell"
        return f"{words[:60].rstrip('-.')}-{self.id[:10]}"


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
    targets_on: str = "all"  # the clients, one of `CURVES`, whose mean accuracy must reach a target

    def card(self) -> SweepCard:
        """The facts that the comparison of the cells needs."""
        cells = {cell.folder_name: CellCard(cell.label, cell.published, cell.runs) for cell in self.cells}
        return SweepCard(self.about, cells, self.baseline, self.targets, self.notes, self.targets_on)


def load_sweep(
    file: Path | str,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: str | Sequence[int] | None = None,
    sets: Sequence[str] = (),
    fast: bool = False,
) -> Sweep:
    """Read a sweep file, or make a sweep from a scenario file.

    grid: key -> values, added to the file's grid. seeds: replace the file's, such as "1..5" or [1, 2]. sets: overrides
    of the base for every cell. fast: cut rounds, participants and epochs, and use only the first seed, to try a sweep
    in minutes; this is a separate sweep, with a name that ends in "-fast".

    Raises:
        ScenarioError: a wrong key or value, a cell with an invalid scenario, two cells that are the same run.
    """
    path = scenario_file(file)
    text = read_text(path)
    raw = parse(text, str(path))
    of_scenario = not _is_sweep(raw)
    if of_scenario:
        raw = {"base": path.name}
    for key, value in raw.items():
        if key not in KEYS:
            raise ScenarioError(f"unknown key; allowed: {', '.join(KEYS)}", key=str(key), origin=str(path))
        if not isinstance(value, KEYS[key]) or isinstance(value, bool):
            raise ScenarioError(f"{shown(value)} given; allowed: {_kind(key)}", key=key, origin=str(path))
    name = raw.get("name", path.stem)
    if not of_scenario and not is_name(name):
        allowed = "letters, digits and . _ -, at most 100, beginning with a letter or digit"
        raise ScenarioError(f"{name!r} given; allowed: {allowed}", key="name", origin=str(path))
    _check_overrides(raw.get("set", []), "set", str(path))
    base, common = _base(raw, path), [*raw.get("set", []), *sets]
    chosen = _seeds(raw.get("seeds") if seeds is None else seeds, str(path))
    axes = _grid({**raw.get("grid", {}), **(grid or {})}, str(path))
    runs = _runs(raw.get("runs", {}), str(path))
    number = math.prod(len(values) for values in (runs, *axes.values(), chosen))
    if number > MOST_CELLS:
        raise ScenarioError(f"{path}: the sweep has {number:,} cells, and at most {MOST_CELLS:,} fit: split it")
    claims = read_claims(raw.get("published"), path)
    if fast:
        chosen = chosen[:1]
    cells: dict[str, Cell] = {}
    named: dict[str, str] = {}  # a cell's name -> its id
    methods: dict[str, str] = {}  # `algorithm.name` -> name in tables
    for (labels, of_run), *values, seed in itertools.product(runs, *axes.values(), chosen):
        assignments = list(zip(axes, values, strict=True))
        of_seed = [] if seed is None else [f"seed={seed}"]
        overrides = [*of_run, *(f"{key}={_written(value)}" for key, value in assignments), *of_seed]
        _, provisional = _names(labels, assignments, of_seed, _label)
        try:
            scenario, changed = _load(base, (*common, *overrides), path, fast)
        except ScenarioError as error:
            several = len(axes.get("algorithm.name", ())) > 1
            how = _runs_instead(error.key, dict(assignments)) if several and "unknown key" in error.reason else ""
            raise ScenarioError(f"{path}: the cell {provisional!r}: {error}{how}") from None
        label, cell_name = _names(labels, assignments, of_seed, partial(_method, scenario, methods))
        cell = Cell(
            cell_name, label, changed, scenario, identity(scenario), runs=tuple(map(names.name, labels.values()))
        )
        if (same := cells.get(cell.id)) is None:
            if named.setdefault(cell.name, cell.id) != cell.id:
                text = f"two cells are called {cell.name!r}; give them names that differ"
                raise ScenarioError(text, key="runs", origin=str(path))
            cells[cell.id] = replace(cell, published=claimed(claims, labels))
        elif not fast:
            raise ScenarioError(f"{path}: the cells {same.name!r} and {cell.name!r} are the same run; remove one")
    _check_comparison(raw, list(cells.values()), str(path))
    targets = raw.get("targets")
    first = next(iter(cells.values())).scenario
    name = (f"{first.name}-sweep" if of_scenario else name) + ("-fast" if fast else "")
    return Sweep(
        name, base, tuple(cells.values()), first.settings.results_folder(name), raw.get("baseline"),
        targets and tuple(targets), _about(text, base), (FAST_NOTE,) if fast else (), raw.get("targets_on", "all"),
    )  # fmt: skip


def _about(text: str, base: Path | Mapping[str, Any]) -> str:
    """The comments at the top of a sweep file and of its base."""
    texts = [text, *([read_text(base)] if isinstance(base, Path) else [])]
    comments = dict.fromkeys(map(opening_comment, texts))  # once, if a scenario file is its own base
    return "\n\n".join(filter(None, comments))


def files_of(path: Path) -> list[Path]:
    """The files that a sweep file needs: first itself, then its base and published values; empty for a scenario file.

    Raises `ScenarioError` if the file cannot be read.
    """
    raw = parse(read_text(path), str(path))
    if not _is_sweep(raw):
        return []
    published = raw.get("published", [])
    claims = published if isinstance(published, list) else [published]
    needed = [raw.get("base"), *(claim.get("file") for claim in claims if isinstance(claim, dict))]
    return [path, *dict.fromkeys(path.parent / name for name in needed if isinstance(name, str))]


def _is_sweep(raw: Mapping[str, Any]) -> bool:
    return "base" in raw or bool({"grid", "runs", "seeds"} & raw.keys())


def _written(value: Any) -> str:
    """Write a value of the grid for `--set`: YAML in one line."""
    with suppress(*UNREADABLE):  # such as "[", which needs quotes
        if isinstance(value, str) and value and load_value(value) == value:
            return value
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**6)
    return " ".join(text.removesuffix("...\n").split())


def _label(value: Any) -> str:
    """Write a value of the grid for a cell's name; a custom file by its name in runs, without its folder."""
    reference = Reference.of(value) if isinstance(value, str) else None
    return reference.name if reference is not None else _written(value)


def _kind(key: str) -> str:
    """The allowed values of a key of a sweep file, in words."""
    words = {"seeds": "a list of integers, or a range such as 1..5", "base": "a scenario file, or its keys and values"}
    if key in words:
        return words[key]
    return "text" if KEYS[key] is str else "a list" if KEYS[key] is list else "a mapping"


def _base(raw: Mapping[str, Any], path: Path) -> Path | Mapping[str, Any]:
    if "base" not in raw:
        raise ScenarioError("is missing; give a scenario file, or its keys and values", key="base", origin=str(path))
    base = raw["base"]
    if isinstance(base, Mapping):
        return base
    file = path.parent / base
    refuse_special(file, "base", str(path))
    if not file.is_file():
        raise ScenarioError(
            f"{base} given, but {file} is not a file; give a scenario file", key="base", origin=str(path)
        )
    if file.resolve() != path.resolve() or "base" not in parse(read_text(path), str(path)):
        content = parse(read_text(file), str(file))
        if not {"base", "grid"} & content.keys():
            return file
    raise ScenarioError(f"{base} given, which is a sweep; give a scenario file", key="base", origin=str(path))


def _seeds(raw: Any, file: str) -> list[int | None]:
    if raw is None:
        return [None]
    seeds: Any = raw
    if isinstance(raw, int):
        seeds = [raw]
    elif isinstance(raw, str):
        ends = _SEEDS.fullmatch(raw.strip())
        words = raw.split(",")
        seeds = [int(word) if word.strip().isascii() and word.strip().isdigit() else word for word in words]
        if ends:
            seeds = range(int(ends[1]), int(ends[2]) + 1)
            if len(seeds) > MOST_CELLS:
                text = f"{raw!r} given, which is {len(seeds):,} seeds; give at most {MOST_CELLS:,}"
                raise ScenarioError(text, key="seeds", origin=file)
    if not seeds or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
        raise ScenarioError(f"{raw!r} given; allowed: {_kind('seeds')}", key="seeds", origin=file)
    return list(seeds)


def _grid(raw: Mapping[str, Any], file: str) -> dict[str, list[Any]]:
    for key, values in raw.items():
        if not isinstance(values, list | tuple) or not values:
            text = f"{shown(values)} given; give a list with at least one value"
            raise ScenarioError(text, key=f"grid.{key}", origin=file)
    return {key: list(values) for key, values in raw.items()}


def _runs(raw: Mapping[str, Any], file: str) -> list[tuple[dict[str, str], list[str]]]:
    """(axis -> label, overrides) for every combination of `runs:`; without axes there is one axis, named ""."""
    axes = raw if raw and all(isinstance(axis, dict) for axis in raw.values()) else {"": raw}
    for axis, labelled in axes.items():
        for label, sets in labelled.items():
            _check_overrides(sets, ".".join(filter(None, ("runs", str(axis), str(label)))), file)
        if axis and not labelled:
            raise ScenarioError("{} given; add at least one name with overrides", key=f"runs.{axis}", origin=file)
    combinations = []
    for combination in itertools.product(*(labelled.items() for labelled in axes.values() if labelled)):
        labels = {str(axis): str(label) for axis, (label, _) in zip(axes, combination, strict=False)}
        combinations.append((labels, [item for _, sets in combination for item in sets]))
    return combinations


def _check_overrides(overrides: Any, key: str, file: str) -> None:
    if not isinstance(overrides, list) or not all(isinstance(item, str) and "=" in item for item in overrides):
        # YAML reads an item with ": " as a mapping unless it is in quotes.
        text = (
            f"{shown(overrides)} given; give a list of overrides such as training.lr=0.1, in quotes if they have a ':'"
        )
        raise ScenarioError(text, key=key, origin=file)


def _names(
    labels: Mapping[str, str],
    assignments: Sequence[tuple[str, Any]],
    of_seed: Sequence[str],
    method: Callable[[Any], str],
) -> tuple[str, str]:
    """A cell's label, and its name with the seed. method: returns the name of an algorithm in tables."""
    parts = [
        method(value) if key == "algorithm.name" else f"{key}={_label(value)}"
        for key, value in assignments if key != "seed"
    ]  # fmt: skip
    label = names.name(" ".join([*labels.values(), *parts])) if labels or parts else ""
    seeds = [f"{key}={value}" for key, value in assignments if key == "seed"]
    return label, " ".join([label, *seeds, *of_seed]).strip() or "base"


def _method(scenario: ParsedScenario, methods: dict[str, str], value: Any) -> str:
    """The name in tables of an algorithm of the grid. methods: algorithm -> name so far; this adds the new one."""
    name = _label(value)
    if name not in methods:
        taken = scenario.method in methods.values()
        methods[name] = f"{scenario.method} ({name})" if taken else scenario.method
    return methods[name]


def _load(
    base: Path | Mapping[str, Any], sets: tuple[str, ...], file: Path, fast: bool
) -> tuple[ParsedScenario, tuple[str, ...]]:
    """The scenario of a cell, and its overrides of the base. Raises `ScenarioError`."""
    scenario = parse_scenario(base, sets, folders=[file.parent])
    if fast:
        sets = (*sets, *_fast(scenario))
        scenario = parse_scenario(base, sets, folders=[file.parent])
    return scenario, sets


def _runs_instead(key: str, assignments: Mapping[str, Any]) -> str:
    """The remedy if the grid gave a method's key to a method without it: set it in `runs` for some methods only."""
    if key not in assignments or not key.startswith("algorithm."):
        return ""
    name, value = _written(assignments["algorithm.name"]), f"{key}={_written(assignments[key])}"
    return (
        "; a grid gives each of its keys to every method: to give this one to some methods alone, write a sweep file "
        f"with `runs: {{without: ['algorithm.name={name}'], with: ['algorithm.name=METHOD', '{value}']}}` in place of "
        f"the grids of algorithm.name and {key}"
    )


def _fast(scenario: ParsedScenario) -> list[str]:
    """Overrides that make a cell small enough for `--fast`."""
    clients = scenario.clients
    # Fewer participants, not fewer clients: if all images are dealt, fewer clients would each hold more of them.
    epochs = math.ceil(scenario.training.epochs / 10)
    sets = [f"rounds={min(scenario.rounds, 3)}", f"training.epochs={epochs}"]
    # Otherwise a sweep would try nothing but the warm-up.
    sets += [f"algorithm.{name}=1" for name, warmup in scenario.warmup.items() if warmup]
    if clients.count != "auto":
        chosen = cohort_size(clients.participation, clients.count)
        sets.append(f"clients.participation={max(math.ceil(chosen / 10), min(chosen, 2)) / clients.count}")
    return sets


def _check_comparison(raw: Mapping[str, Any], cells: Sequence[Cell], file: str) -> None:
    """Check targets and baseline before hours of runs, so that the comparison cannot fail on them."""
    for target in raw.get("targets", []):
        if not isinstance(target, int | float) or isinstance(target, bool) or not 0 < target <= 1:
            text = f"{shown(target)} given; allowed: accuracies greater than 0 and at most 1"
            raise ScenarioError(text, key="targets", origin=file)
    if (curve := raw.get("targets_on", "all")) not in CURVES:
        raise ScenarioError(f"{shown(curve)} given; allowed: {', '.join(CURVES)}", key="targets_on", origin=file)
    if (baseline := raw.get("baseline")) is None:
        return
    methods = sorted({cell.scenario.method for cell in cells})
    algorithms = {cell.scenario.algorithm_name for cell in cells}
    runs = list(dict.fromkeys(name for cell in cells for name in (*cell.runs, cell.label) if name))
    reference = Reference.of(baseline)
    first = reference.name if reference else (baseline.split() or [""])[0]  # settings may follow the method's name
    if baseline not in runs and first not in {*methods, *algorithms}:
        allowed = dict.fromkeys([*methods, *runs])
        raise ScenarioError(f"{baseline!r} given; allowed: {', '.join(allowed)}", key="baseline", origin=file)


def identity(scenario: ParsedScenario) -> str:
    """A digest of everything that decides a run's result: the deciding keys, versions and the method's code."""
    keys = {key: value for key, value in scenario.flat().items() if decides(key)}
    all_versions = versions()
    deciding = {"scenario": keys, "versions": {name: all_versions[name] for name in ("raysim", "torch")}}
    method = Code.of(scenario.algorithm, scenario.own_code).method
    text = json.dumps({**deciding, "method": method}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def placed(cell: Cell, sweep: Sweep, sets: Sequence[str] = ()) -> ParsedScenario:
    """A cell's scenario, with the sweep's folder for its runs. sets: more overrides, of keys that decide no result."""
    places = [f"name={cell.folder_name}", f"output={sweep.output}"]
    return parse_scenario(sweep.base, [*cell.sets, *places, *sets], folders=cell.scenario.own_code.folders)
