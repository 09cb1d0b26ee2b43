"""`sweep.json` in a sweep's folder: labels, baseline, targets and published values for the comparison of its cells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from raysim.common import files
from raysim.common.errors import ScenarioError
from raysim.comparison.published import Published
from raysim.comparison.trials import TrialsCard
from raysim.comparison.tuned import TuningCard

SWEEP_CARD = "sweep.json"

FORMAT = 1
"""The format of `sweep.json` that this version writes."""

SWEEP_LOCK = ".lock"
"""A file in a sweep's folder. It is locked while a process runs the sweep."""


@dataclass(frozen=True)
class CellCard:
    """A cell of a sweep; all seeds of a variant have the same label."""

    label: str
    published: Sequence[Published] = ()
    runs: Sequence[str] = ()  # the names in the sweep's `runs` that define the cell


@dataclass(frozen=True)
class SweepCard:
    """The facts about a sweep that its comparison needs."""

    about: str  # the comments at the top of the sweep file and its base
    cells: Mapping[str, CellCard]  # name of the cell's folder -> cell
    baseline: str | None = None
    targets: Sequence[float] | None = None
    notes: Sequence[str] = field(default_factory=list)  # how the runs differ from the sweep file
    targets_on: str = "all"  # the clients, one of `CURVES`, whose mean accuracy must reach a target
    tuning: TuningCard | None = None  # the values that were chosen for these cells
    trials: TrialsCard | None = None  # if the cells are trials of a tuning
    format: int = FORMAT

    @property
    def current(self) -> Mapping[str, CellCard]:
        """The cells whose values are those that the tuning chose last; without tuning, all cells."""
        if self.tuning is None:
            return self.cells
        chosen = frozenset(self.tuning.cells)
        return {name: cell for name, cell in self.cells.items() if name in chosen}

    @classmethod
    def read(cls, folder: Path) -> SweepCard | None:
        """Read the card of a sweep's folder; None if there is none. Raises `ScenarioError` if it cannot be read."""
        path = folder / SWEEP_CARD
        try:
            content = path.read_bytes()
            files.check_format(path, json.loads(content), FORMAT)
            return TypeAdapter(cls).validate_json(content, strict=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ScenarioError(f"{path} cannot be read: {error.strerror}") from None
        except (ValidationError, json.JSONDecodeError):
            raise ScenarioError(f"{path} is damaged; delete this file and run the sweep again") from None

    def write(self, folder: Path) -> None:
        """Write the card. Cells of earlier cards stay before these, as their runs do: of two runs, the last one counts.

        Earlier cells without a run do not stay: the sweep was edited before they began. Raises `OSError`,
        `ScenarioError`.
        """
        earlier = self.read(folder)
        others = {
            name: cell
            for name, cell in (earlier.cells if earlier else {}).items()
            if name not in self.cells and any((folder / name).glob("*/summary.json"))
        }
        card = replace(self, cells={**others, **self.cells})
        content = TypeAdapter(dict).dump_json(asdict(card), indent=1)
        files.write_bytes(folder / SWEEP_CARD, content)
