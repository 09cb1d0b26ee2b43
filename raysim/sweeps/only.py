"""The cells of a sweep that `--only` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from raysim.common.errors import ScenarioError
from raysim.common.suggestions import suggest
from raysim.sweeps.cells import Cell, Sweep


def chosen_cells(sweep: Sweep, only: Sequence[str]) -> list[Cell]:
    """The cells with one of these names, in the sweep's order; all cells if there are no names.

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
