"""`sweep.json` in a sweep's folder: what its comparison needs to know about the cells besides their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from raysim.common import files
from raysim.common.errors import ScenarioError
from raysim.comparison.published import Published

SWEEP_CARD = "sweep.json"


@dataclass(frozen=True)
class CellCard:
    """One cell: all seeds of a variant have the same label."""

    label: str
    published: Sequence[Published] = ()
    runs: Sequence[str] = ()  # the names in the sweep's `runs` that make it


@dataclass(frozen=True)
class SweepCard:
    """A sweep, as its comparison sees it."""

    about: str  # the comments that open the sweep's file and its base
    cells: Mapping[str, CellCard]  # name of the cell's folder -> cell
    baseline: str | None = None
    targets: Sequence[float] | None = None
    notes: Sequence[str] = field(default_factory=list)  # what makes the runs other than the sweep's file says
    targets_on: str = "all"  # whose mean accuracy must reach a target

    @classmethod
    def read(cls, folder: Path) -> SweepCard | None:
        """The card in a sweep's folder; None where there is none. Raises `ScenarioError` when it is damaged."""
        path = folder / SWEEP_CARD
        files.refuse_special(path)
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            raise ScenarioError(f"{path} is damaged; remove it, and run the sweep again") from None

    def write(self, folder: Path) -> None:
        """Write the card. Cells of earlier cards stay before these, as their runs do: of two runs, the last one counts.

        Raises `OSError`, `ScenarioError`.
        """
        earlier = self.read(folder)
        others = {name: cell for name, cell in (earlier.cells if earlier else {}).items() if name not in self.cells}
        card = replace(self, cells={**others, **self.cells})
        content = TypeAdapter(dict).dump_json(asdict(card), indent=1)
        files.replace(folder / SWEEP_CARD, lambda file: file.write(content))
