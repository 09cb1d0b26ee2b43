"""Loads a sweep file, or a scenario with a grid. The result is a sweep with one scenario per cell."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.common.text import is_name
from raysim.core.fields import Range as Bounds
from raysim.plugins.registry import Reference
from raysim.scenario.bundled import bundled_file, scenario_file
from raysim.scenario.origin import Origin
from raysim.scenario.parse import SWEEP_KEYS, flatten
from raysim.scenario.rules import refuse_secrets
from raysim.scenario.schema import Section
from raysim.scenario.sentences import validated
from raysim.scenario.yaml_text import opening_comment, parse, read_text, written_value
from raysim.study.cells import Cell, CellMaker, CellVariant, Sweep
from raysim.study.published import PublishedValues, published_for, read_published
from raysim.study.space import Space
from raysim.study.sweep_card import SweepCard
from raysim.study.tune import Tune, read_tune, spaces_of, tuning_of

Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]
"""Key of a scenario -> list of values."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


class SweepFile(Section):
    """The keys of a sweep file."""

    base: str | dict[str, Any]
    """required: the path of a scenario file, relative to the sweep file's folder; or the name of a bundled scenario,
    such as quickstart; or the keys and values of a scenario"""
    name: str | None = None
    """name of the folder below `output` (default: ./runs) and of the MLflow experiment; default: the name of the
    file"""
    seeds: Any = None
    """a list of seeds, or a range such as 1..5; default: the seed of `base`"""
    grid: Grid = Field(default_factory=dict)
    """key -> list of values; every combination is a cell"""
    runs: dict[str, Any] = Field(default_factory=dict)
    """the variants to compare, as name -> list of overrides, such as {FedGH: [algorithm.name=fedgh, training.lr=0.1]}.
    For a variant with its own grid, write {set: OVERRIDES, grid: {KEY: VALUES}} instead of the list. To combine choices
    of several kinds, write KIND -> NAME -> list of overrides, such as {method: {FedGH: [...], FedProto: [...]}, rate:
    {slow: [...], fast: [...]}}: raysim runs every combination, here four variants"""
    set: list[str] = Field(default_factory=list)
    """list of overrides for every cell"""
    baseline: str | None = None
    """the method, or the name in `runs`, that all others are compared with"""
    targets: list[Annotated[float, Bounds(gt=0, le=1)]] | None = None
    """target accuracies, greater than 0 and at most 1; the comparison shows the rounds, MiB and operations until each
    is reached"""
    targets_on: Literal["all", "all_current", "participants"] = "all"
    """the clients whose mean test accuracy must reach a target. all (the default): all clients, each with its own
    network. all_current: all clients, each after it received the server's current message. participants: only the
    participants of a round"""
    tune: dict[str, Any] | None = None
    """the keys to tune by trials before the final runs, and how to tune them: see `raysim describe tune`"""
    published: Annotated[list[PublishedValues], BeforeValidator(_as_list)] = Field(default_factory=list)
    """a paper's values to compare with: a mapping with the keys `file`, `rows` and `measures`, or a list of such
    mappings. `file` is a CSV file. `rows` selects rows of this file (column -> value). `measures` assigns a measure of
    raysim to a metric of the file (metric -> measure)"""


class RunEntry(Section):
    """A value in the section `runs`."""

    set: list[str] = Field(default_factory=list)
    """overrides"""
    grid: Grid = Field(default_factory=dict)
    """key -> values, for this entry only"""


KEYS: Mapping[str, Mapping[str, str]] = {
    name: {key: " ".join((field.description or "").split()) for key, field in section.model_fields.items()}
    for name, section in (("sweep", SweepFile), ("tune", Tune))
}
"""Section -> key -> meaning."""

ABOUT: Mapping[str, str] = {
    "sweep": "A sweep file describes many runs; `raysim sweep FILE` runs each once. Overrides are written as for "
    "--set: training.lr=0.1. See an example with `raysim describe sweeps/digits`; copy the bundled files with "
    "`raysim init`.",
    "tune": "With `tune`, trials on other seeds first choose the values of some keys for each name in `runs`; then "
    "the final runs use the chosen values. See an example with `raysim describe sweeps/tuned`.",
}

_SEEDS = re.compile(r"(\d+)\.\.(\d+)")


def load_sweep(
    file: Path | str,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: str | Sequence[int] | None = None,
    sets: Sequence[str] = (),
) -> Sweep:
    """Read a sweep file, or create a sweep from a scenario file.

    grid: key -> values, added to the file's grid. seeds: replace the file's, such as "1..5" or [1, 2]. sets: overrides
    of the base for every cell.

    Raises:
        ScenarioError: a wrong key or value, a cell with an invalid scenario, two cells that are the same run.
    """
    path = scenario_file(file)
    text = read_text(path)
    given = _sweep_file(path, text)
    base = given.base if isinstance(given.base, Mapping) else _base_file(given.base, path)
    chosen = _seeds(given.seeds, "seeds", str(path)) if seeds is None else _seeds(seeds, "--seeds", "")
    lists = {key: of if isinstance(of, str) else list(of) for key, of in (grid or {}).items()}
    written_value(lists, "--grid")  # raises for a value that YAML cannot contain, for example a NumPy number
    option: RunEntry = validated(RunEntry, {"grid": lists}, Origin("--grid", {}), ())
    maker = CellMaker(base, tuple(given.set), tuple(sets), path, frozenset(option.grid))
    published = read_published(given.published, path)
    made: list[list[Cell]] = []
    for variant in _variants(given.runs, {**given.grid, **option.grid}, path):
        values = published_for(published, variant.labels, path)
        made.append([replace(maker.cell(variant, seed), published=values) for seed in chosen])
    tune = None if given.tune is None else _tune(given.tune, path)
    spaces = [{} for _ in made] if tune is None else spaces_of(tune, made, str(path))
    _refuse_repeated(made, spaces, path)
    cells = [replace(cell, pending=bool(space)) for of, space in zip(made, spaces, strict=True) for cell in of]
    _check_baseline(given.baseline, cells, str(path))
    sweep = _sweep_of(given, cells, maker, opening_comment(text))
    return sweep if tune is None else tuning_of(tune, made, spaces, sweep)


def _sweep_file(path: Path, text: str) -> SweepFile:
    """Parse a sweep file. A scenario file becomes the base of a sweep without other keys. Raises `ScenarioError`."""
    raw = parse(text, str(path))
    if not is_sweep(raw):
        return SweepFile(base=path.name)
    given: SweepFile = validated(SweepFile, raw, Origin(str(path), {}), ())
    given = given.model_copy(update={"name": given.name or path.stem})
    if not is_name(given.name):
        text = f"{given.name!r} given; give at most 100 letters, digits, dots, dashes and underscores"
        raise ScenarioError(text, key="name", origin=str(path))
    return given


def _sweep_of(given: SweepFile, cells: Sequence[Cell], maker: CellMaker, about: str) -> Sweep:
    """Return the sweep with these cells, without its tuning. about: the opening comment of the file."""
    first = cells[0].scenario
    name = given.name or f"{first.name}-sweep"
    folder, address = first.results_folder(name), ""
    if "://" in first.output:
        folder, address = Path("runs", name).absolute(), f"{first.output.rstrip('/')}/{name}"
        refuse_secrets(first)
    facts = SweepCard(about, {}, given.baseline, given.targets, given.targets_on)
    return Sweep(maker, tuple(cells), folder, facts, address=address)


def _refuse_repeated(made: Sequence[Sequence[Cell]], spaces: Sequence[Space], path: Path) -> None:
    """Raise `ScenarioError` if two cells are the same run, or have the same name or folder.

    spaces: the keys that are tuned for each variant; cells that are tuned differently are different runs.
    """
    first: dict[tuple[str, str], Cell] = {}
    taken: dict[str, Cell] = {}  # name or folder -> cell: tuning may give two cells the same settings
    for cells, space in zip(made, spaces, strict=True):
        tuned = str(sorted((key, str(of)) for key, of in space.items()))
        for cell in cells:
            if (same := first.setdefault((cell.id, tuned), cell)) is not cell:
                text = f"the cells {same.name!r} and {cell.name!r} are the same run; remove one of them"
                raise ScenarioError(f"{path}: {text}")
            for name in (cell.name, cell.folder_name):
                if (other := taken.setdefault(name, cell)) is not cell:
                    text = f"the cells {other.name!r} and {cell.name!r} would have the same folder or name"
                    raise ScenarioError(f"{text}; give them other names", key="runs", origin=str(path))


def files_of(path: Path) -> list[Path]:
    """Return the sweep file and the files that it needs (base, published values); empty for a scenario file.

    A bundled scenario is not among them. Raises `ScenarioError` if the file cannot be read.
    """
    text = read_text(path)
    if not is_sweep(parse(text, str(path))):
        return []
    given = _sweep_file(path, text)
    needed = [path.parent / one.file for one in given.published]
    if isinstance(given.base, str) and (file := _base_file(given.base, path)) != bundled_file(given.base):
        needed.insert(0, file)
    return [path, *dict.fromkeys(needed)]


def about_file(name: str) -> tuple[str, list[tuple[str, str]], str]:
    """Return a description of a scenario or sweep file: opening comment, keys with values, and how to run it.

    The file is only read: no key is checked, and no custom code runs. Raises `ScenarioError`.
    """
    path = scenario_file(name)
    text = read_text(path)
    raw = parse(text, str(path))
    how = f"This is a scenario: run it with `raysim launch {name}`; show all keys with `raysim validate {name}`."
    if is_sweep(raw):
        how = f"This is a sweep: run it with `raysim sweep {name}`; `raysim describe sweep` explains its keys."
    return opening_comment(text), [(key, str(value)) for key, value in flatten(raw)], how


def is_sweep(raw: Mapping[str, Any]) -> bool:
    """Return whether a file's content is a sweep instead of a scenario, in which `seeds` is a mapping."""
    return bool(SWEEP_KEYS & raw.keys()) or not isinstance(raw.get("seeds", {}), Mapping)


def _base_file(base: str, path: Path) -> Path:
    """Return the file of a sweep's base: next to the sweep file, or else the bundled scenario with this name.

    As in `scenario_file`, a folder does not hide a bundled scenario.
    """
    own = path.parent / base
    return own if os.path.lexists(own) and not own.is_dir() else bundled_file(base) or own


def _seeds(raw: Any, key: str, file: str) -> list[int | None]:
    """Return the seeds in a list, a number, or a text such as `1..5` or `1,2,7`. Raises `ScenarioError`."""
    if raw is None:
        return [None]
    seeds: Any = [raw] if isinstance(raw, int) else raw
    if isinstance(raw, str):
        ends = _SEEDS.fullmatch(raw.strip())
        words = raw.split(",")
        seeds = [int(word) if word.strip().isdecimal() else word for word in words]
        if ends:
            seeds = list(range(int(ends[1]), int(ends[2]) + 1))
    if not isinstance(seeds, Sequence) or not seeds or not all(type(seed) is int for seed in seeds):
        text = f"{raw!r} given; give a list of integers, or a range such as 1..5"
        raise ScenarioError(text, key=key, origin=file)
    return list(seeds)


def _variants(raw: Mapping[str, Any], grid: Grid, path: Path) -> Iterator[CellVariant]:
    """Yield every combination of names in `runs`, values in their own grids, and values in the common grid.

    Without axes, `runs` has one axis, named "". Raises `ScenarioError`.
    """
    several = raw and all(isinstance(axis, dict) and "grid" not in axis for axis in raw.values())
    axes: list[list[tuple[str, str, RunEntry]]] = []
    for axis, labelled in raw.items() if several else [("", raw)]:
        entries: list[tuple[str, str, RunEntry]] = []
        for label, entry in labelled.items():
            key = tuple(filter(None, ("runs", axis, str(label))))
            content = entry if isinstance(entry, dict) else {"set": entry}
            entries.append((axis, str(label), validated(RunEntry, content, Origin(str(path), {}), key)))
        axes.append(entries)
    for combination in itertools.product(*filter(None, axes)):
        labels = {axis: label for axis, label, _ in combination}
        own = {key: values for *_, run in combination for key, values in run.grid.items()}
        if twice := own.keys() & grid.keys():
            text = f"also in the grid of {' '.join(labels.values())}; remove it from one of the two"
            raise ScenarioError(text, key=f"grid.{min(twice)}", origin=str(path))
        sets = tuple(item for *_, run in combination for item in run.set)
        for values in itertools.product(*own.values(), *grid.values()):
            yield CellVariant(labels, sets, tuple(zip((*own, *grid), values, strict=True)))


def _tune(raw: Mapping[str, Any], path: Path) -> Tune:
    """Parse the section `tune`. Raises `ScenarioError`."""
    if "seeds" in raw:
        raw = {**raw, "seeds": _seeds(raw["seeds"], "tune.seeds", str(path))}
    return read_tune(raw, str(path))


def _check_baseline(baseline: str | None, cells: Sequence[Cell], file: str) -> None:
    """Check the baseline before the runs, so that the comparison after hours cannot fail. Raises `ScenarioError`."""
    if baseline is None:
        return
    names = ((cell.scenario.method, cell.scenario.algorithm_name, *cell.runs, cell.label) for cell in cells)
    allowed = dict.fromkeys(name for of_cell in names for name in of_cell if name)
    reference = Reference.of(baseline)
    first = reference.name if reference else baseline.partition(" ")[0]  # the method's name, which settings may follow
    if not {baseline, first} & allowed.keys():
        near = suggest(baseline, allowed)
        raise ScenarioError(f"{baseline!r} given{near}; allowed: {', '.join(allowed)}", key="baseline", origin=file)
