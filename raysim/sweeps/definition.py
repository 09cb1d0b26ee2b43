"""Loads a sweep file, or a scenario with a grid, as cells, each with its own scenario."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.common.text import is_name
from raysim.comparison.measures import CURVES
from raysim.plugins.references import Reference
from raysim.scenario.bundled import bundled_file, bundled_names, scenario_file
from raysim.scenario.origin import override_key
from raysim.scenario.parse import SWEEP_KEYS, overrides_of
from raysim.scenario.yaml_text import opening_comment, parse, read_text, shown, written_value
from raysim.sweeps.cells import Cell, CellMaker, CellVariant, Sweep, VariantCells
from raysim.sweeps.copies import check_address
from raysim.sweeps.published_values import PublishedEntry, published_for, read_published
from raysim.sweeps.space import Space
from raysim.sweeps.tune import Tune, read_tune, spaces_of, tuning_of

KEYS: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "base": (str, dict),
    "seeds": (list, str, int),
    "set": list,
    "grid": dict,
    "runs": dict,
    "tune": dict,
    "baseline": str,
    "targets": list,
    "targets_on": str,
    "published": (dict, list),
}
"""The keys of a sweep file and the types of their values."""

FAST_NOTE = (
    "--fast: only the first seed, at most 3 rounds, at most 1 round of warm-up, a tenth of training.epochs and a tenth "
    "of the participants, but at least 2 (all of them with clients.count: auto); this shows that the sweep runs, not "
    "which method is better"
)

MOST_CELLS = 100_000
"""The most cells of a sweep: each is a scenario in memory, and a run."""

_SEEDS = re.compile(r"(\d+)\.\.(\d+)")


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
    sets = overrides_of(sets)
    path = scenario_file(file)
    text = read_text(path)
    raw = parse(text, str(path))
    of_scenario = not is_sweep(raw)
    if of_scenario:
        raw = {"base": path.name}
    else:
        _check_keys(raw, path)
    _check_overrides(raw.get("set", []), "set", str(path))
    base, common = _base(raw, path), (*raw.get("set", []), *sets)
    chosen = _seeds(raw.get("seeds"), "seeds", str(path)) if seeds is None else _seeds(seeds, "--seeds", "")
    axes = _grid(raw.get("grid", {}), "grid", str(path)) | _grid(dict(grid or {}), "--grid", "")
    runs = _runs(raw.get("runs", {}), str(path))
    of_runs = sum(math.prod(map(len, run.grid.values())) for run in runs)
    number = of_runs * math.prod(map(len, axes.values())) * len(chosen)
    if number > MOST_CELLS:
        text = f"{path}: the sweep has {number:,} cells, more than the maximum of {MOST_CELLS:,}; split the sweep"
        raise ScenarioError(text)
    published = read_published(raw.get("published"), path)
    if fast:
        chosen = chosen[:1]
    tune = _tune(raw.get("tune"), text, path)
    places = {**_keys_of(raw.get("set", []), "`set`"), **_keys_of(sets, "--set")}
    of_seed = "`seeds`" if seeds is None else "--seeds"
    axis_places = {"seed": of_seed, **dict.fromkeys(axes, "`grid`"), **dict.fromkeys(grid or (), "--grid")}
    maker = CellMaker(base, common, path, fast, axes, places, axis_places)
    made = _make_cells(maker, _variants(runs, axes, str(path)), chosen, published)
    spaces = [{} for _ in made] if tune is None else spaces_of(tune, made, str(path))
    variants = _different_runs(made, spaces, maker)
    cells = tuple(cell for _, of_variant in variants for _, cell in of_variant)
    _check_comparison(raw, cells, str(path))
    targets = raw.get("targets")
    first = cells[0].scenario
    name = (f"{first.name}-sweep" if of_scenario else raw.get("name", path.stem)) + ("-fast" if fast else "")
    folder, address = first.results_folder(name), ""
    if "://" in first.output:
        folder, address = Path("runs", name).absolute(), f"{first.output.rstrip('/')}/{name}"
        check_address(first, folder)
    sweep = Sweep(
        name, base, cells, folder, raw.get("baseline"),
        targets and tuple(targets), _about(text, base), (FAST_NOTE,) if fast else (), raw.get("targets_on", "all"),
        address=address, folder=path.parent,
    )  # fmt: skip
    return sweep if tune is None else tuning_of(tune, maker, variants, spaces, sweep)


def _check_keys(raw: Mapping[str, Any], path: Path) -> None:
    """Check the keys of a sweep file, the types of their values, and its name. Raises `ScenarioError`."""
    for key, value in raw.items():
        if key not in KEYS:
            text = f"unknown key{suggest(str(key), KEYS)}; allowed: {', '.join(KEYS)}"
            raise ScenarioError(text, key=str(key), origin=str(path))
        if not isinstance(value, KEYS[key]) or isinstance(value, bool):
            raise ScenarioError(f"{shown(value)} given; give {_kind(key)}", key=key, origin=str(path))
    name = raw.get("name", path.stem)
    if not is_name(name):
        text = (
            f"{name!r} given; give at most 100 letters, digits, dots, dashes and underscores, beginning with a letter "
            "or digit"
        )
        raise ScenarioError(text, key="name", origin=str(path))


def _make_cells(
    maker: CellMaker,
    variants: Iterable[CellVariant],
    seeds: Sequence[int | None],
    published: Sequence[PublishedEntry],
) -> list[VariantCells]:
    """Make the cells of each variant, with their seeds. Raises `ScenarioError` if a cell has an invalid scenario."""
    made: list[VariantCells] = []
    for variant in variants:
        values = published_for(published, variant.labels)
        made.append((variant, [(seed, replace(maker.cell(variant, seed), published=values)) for seed in seeds]))
    return made


def _different_runs(made: Sequence[VariantCells], spaces: Sequence[Space], maker: CellMaker) -> list[VariantCells]:
    """Return the variants, without cells that would repeat the run of an earlier cell. Only `--fast` allows such cells.

    spaces: the keys that are tuned for each variant; cells that are tuned differently are different runs. Raises
    `ScenarioError` if two cells have one name or folder, or if two are the same run without `--fast`.
    """
    first: dict[tuple[str, str], Cell] = {}
    named: set[str] = set()
    in_folder: dict[str, Cell] = {}  # tuning may give two cells the same settings, and then the same folder
    different: list[VariantCells] = []
    for (variant, cells), space in zip(made, spaces, strict=True):
        tuned = str(sorted((key, str(of)) for key, of in space.items()))
        of_variant: list[tuple[int | None, Cell]] = []
        for seed, cell in cells:
            same = first.setdefault((cell.id, tuned), cell)
            if same is cell:
                if cell.name in named:
                    text = f"two cells are called {cell.name!r}; give each cell a different name"
                    raise ScenarioError(text, key="runs", origin=str(maker.file))
                named.add(cell.name)
                other = in_folder.setdefault(cell.folder_name, cell)
                if other is not cell:
                    text = (
                        f"the cells {other.name!r} and {cell.name!r} would have the same folder; give names that "
                        "differ in their first 60 characters, in a letter from A to Z or a digit"
                    )
                    raise ScenarioError(text, key="runs", origin=str(maker.file))
                of_variant.append((seed, cell))
            elif not maker.fast:
                text = f"{maker.file}: the cells {same.name!r} and {cell.name!r} are the same run; remove one of them"
                raise ScenarioError(text)
        different.append((variant, of_variant))
    return different


def _keys_of(overrides: Sequence[str], place: str) -> dict[str, str]:
    """Return the key of each override -> the place where they are written."""
    return dict.fromkeys(map(override_key, overrides), place)


def _about(text: str, base: Path | Mapping[str, Any]) -> str:
    """Return the comment at the top of a sweep file, and that of its base with the base's name."""
    own = opening_comment(text)
    if not isinstance(base, Path) or not (of_base := opening_comment(read_text(base))):
        return own
    own = "" if own == of_base else own  # a scenario file is its own base
    return "\n\n".join(filter(None, [own, f"Base scenario {base.name}: {of_base}"]))


def files_of(path: Path) -> list[Path]:
    """The files that a sweep file needs: first itself, then its base and published values; empty for a scenario file.

    A bundled scenario is not among them. Raises `ScenarioError` if the file cannot be read, or names one by an absolute
    path: a job gets copies of the files, which keep only their paths relative to each other.
    """
    raw = parse(read_text(path), str(path))
    if not is_sweep(raw):
        return []
    base, published = raw.get("base"), raw.get("published", [])
    claims = published if isinstance(published, list) else [published]
    names = [claim.get("file") for claim in claims if isinstance(claim, dict)]
    for key, name in [("base", base), *(("published.file", name) for name in names)]:
        if isinstance(name, str) and Path(name).is_absolute():  # the job would not find its copy
            text = f"{name} given; the job gets copies, so give its path relative to the sweep file's folder"
            raise ScenarioError(text, key=key, origin=str(path))
    needed = [path.parent / name for name in names if isinstance(name, str)]
    if isinstance(base, str) and (file := _base_file(base, path)) != bundled_file(base):
        needed.insert(0, file)
    return [path, *dict.fromkeys(needed)]


def is_sweep(raw: Mapping[str, Any]) -> bool:
    """Return whether the content of a file is a sweep, not a scenario; in a scenario, `seeds` is a mapping."""
    return bool(SWEEP_KEYS & raw.keys()) or not isinstance(raw.get("seeds", {}), Mapping)


def _kind(key: str) -> str:
    """Return the allowed values of a key of a sweep file, in words."""
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
    file = _base_file(base, path)
    if not file.is_file():
        near = suggest(str(base), bundled_names())
        raise ScenarioError(
            f"{base} given, but there is no file {file}{near}; give a scenario file, or the name of a bundled scenario",
            key="base",
            origin=str(path),
        )
    if is_sweep(parse(read_text(file), str(file))):
        text = f"{base} given, but that is a sweep file; give a scenario file"
        raise ScenarioError(text, key="base", origin=str(path))
    return file


def _base_file(base: str, path: Path) -> Path:
    """Return the file of a sweep's base: beside the sweep file, or else the bundled scenario of this name.

    As in `scenario_file`, a folder does not hide a bundled scenario.
    """
    own = path.parent / base
    return own if os.path.lexists(own) and not own.is_dir() else bundled_file(base) or own


def _seeds(raw: Any, key: str, file: str) -> list[int | None]:
    if raw is None:
        return [None]
    seeds: Any = raw
    if isinstance(raw, int):
        seeds = [raw]
    elif isinstance(raw, str):
        ends = _SEEDS.fullmatch(raw.strip())
        words = raw.split(",")
        seeds = [int(word) if word.strip().isascii() and word.strip().isdecimal() else word for word in words]
        if ends:
            first, last = int(ends[1]), int(ends[2])
            if last - first >= MOST_CELLS:  # not `len` of the range, which fails for numbers beyond 64 bits
                text = f"{raw!r} given, a range of {last - first + 1:,} seeds; give at most {MOST_CELLS:,} seeds"
                raise ScenarioError(text, key=key, origin=file)
            seeds = range(first, last + 1)
    given = seeds if isinstance(seeds, Sequence) else ()  # `tune.seeds` may be any YAML value
    if not given or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in given):
        raise ScenarioError(f"{raw!r} given; give {_kind('seeds')}", key=key, origin=file)
    return list(seeds)


def _grid(raw: Any, key: str, file: str) -> dict[str, list[Any]]:
    if not isinstance(raw, dict):
        raise ScenarioError(f"{shown(raw)} given; give a mapping of keys to lists", key=key, origin=file)
    for name, values in raw.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            text = f"{shown(values)} given; give a list with at least one value"
            raise ScenarioError(text, key=f"{key}.{name}", origin=file)
        written_value(list(values), f"{key}.{name}")  # raises for a value that YAML cannot contain
    return {str(name): list(values) for name, values in raw.items()}


@dataclass(frozen=True)
class _Run:
    """A combination of names in `runs`."""

    labels: Mapping[str, str] = field(default_factory=dict)  # axis -> name
    sets: tuple[str, ...] = ()  # overrides
    grid: Mapping[str, list[Any]] = field(default_factory=dict)  # key -> values, for this combination only


def _runs(raw: Mapping[str, Any], file: str) -> list[_Run]:
    """Every combination of `runs:`; without axes there is one axis, named ""."""
    several = raw and all(isinstance(axis, dict) and not _has_grid(axis) for axis in raw.values())
    axes: list[list[tuple[str, str, _Run]]] = []
    for axis, labelled in raw.items() if several else [("", raw)]:
        if axis and not labelled:
            raise ScenarioError("{} given; add at least one name with overrides", key=f"runs.{axis}", origin=file)
        names = [(str(axis), str(label)) for label in labelled]
        keys = [".".join(filter(None, ("runs", *name))) for name in names]
        entries = [_run(entry, key, file) for key, entry in zip(keys, labelled.values(), strict=True)]
        axes.append([(*name, entry) for name, entry in zip(names, entries, strict=True)])
    return [
        _Run(
            {axis: label for axis, label, _ in combination},
            tuple(item for *_, run in combination for item in run.sets),
            {key: values for *_, run in combination for key, values in run.grid.items()},
        )
        for combination in itertools.product(*filter(None, axes))
    ]


def _has_grid(entry: Any) -> bool:
    """Return whether a value in `runs` is a run with a grid of its own, not an axis of runs."""
    return isinstance(entry, dict) and isinstance(entry.get("grid"), dict) and entry.keys() <= {"set", "grid"}


def _run(entry: Any, key: str, file: str) -> _Run:
    """Parse a run: a list of overrides, or a mapping with `grid` and, if needed, such a list as `set`."""
    if not _has_grid(entry):
        _check_overrides(entry, key, file)
        return _Run(sets=tuple(entry))
    _check_overrides(entry.get("set", []), f"{key}.set", file)
    return _Run(sets=tuple(entry.get("set", [])), grid=_grid(entry["grid"], f"{key}.grid", file))


def _variants(runs: Sequence[_Run], axes: Mapping[str, list[Any]], file: str) -> Iterator[CellVariant]:
    """Every combination of a run, the values of its own grid and those of the grid of all runs."""
    for run in runs:
        if twice := next((key for key in run.grid if key in axes), None):
            where = " ".join(run.labels.values())
            text = f"the grid of {where} also has {twice}; remove the key from one of the two grids"
            raise ScenarioError(text, key=f"grid.{twice}", origin=file)
        keys = (*run.grid, *axes)
        for values in itertools.product(*run.grid.values(), *axes.values()):
            yield CellVariant(run.labels, run.sets, tuple(zip(keys, values, strict=True)))


def _tune(raw: Mapping[str, Any] | None, text: str, path: Path) -> Tune | None:
    """Parse `tune`. Raises `ScenarioError`."""
    if raw is None:
        return None
    if "seeds" in raw:
        raw = {**raw, "seeds": _seeds(raw["seeds"], "tune.seeds", str(path))}
    return read_tune(raw, text, str(path))


def _check_overrides(overrides: Any, key: str, file: str) -> None:
    if not isinstance(overrides, list) or not all(isinstance(item, str) and "=" in item for item in overrides):
        # YAML reads an item with ": " as a mapping unless it is in quotes.
        text = (
            f"{shown(overrides)} given; give a list of overrides such as training.lr=0.1, with quotes around an "
            "override that contains ':'"
        )
        raise ScenarioError(text, key=key, origin=file)


def _check_comparison(raw: Mapping[str, Any], cells: Sequence[Cell], file: str) -> None:
    """Check targets and baseline before hours of runs, so that the comparison cannot fail on them."""
    for target in raw.get("targets", []):
        if not isinstance(target, int | float) or isinstance(target, bool) or not 0 < target <= 1:
            text = f"{shown(target)} given; give accuracies greater than 0 and at most 1"
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
        near = suggest(baseline, allowed)
        raise ScenarioError(f"{baseline!r} given{near}; allowed: {', '.join(allowed)}", key="baseline", origin=file)
