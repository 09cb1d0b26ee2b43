"""`sweep.json` in a sweep's folder: labels, baseline, targets, published values, and its tuning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from raysim.common import files
from raysim.common.errors import ScenarioError
from raysim.results.units import plural
from raysim.study.published import Published

SWEEP_CARD = "sweep.json"

FORMAT = 1
"""The format of `sweep.json` that this version writes."""

SWEEP_LOCK = ".lock"
"""A file in a sweep's folder. It is locked while a process runs the sweep."""


@dataclass(frozen=True)
class ChosenValue:
    """The value that was chosen for a key."""

    key: str
    value: str  # YAML in one line
    edge: Literal["", "lower", "upper"] = ""  # the edge of the possible values on which the value lies
    space: str = ""  # the possible values as in the sweep file, YAML in one line; empty: not recorded

    @property
    def words(self) -> str:
        """The key with its value, the values that it was chosen from, and whether it lies on their edge."""
        edge = f"at the {self.edge} end of its search space; extend it" if self.edge else ""
        inner = "; ".join(filter(None, [f"from {self.space}" if self.space else "", edge]))
        return f"{self.key}={self.value}" + (f" ({inner})" if inner else "")


@dataclass(frozen=True)
class TunedVariant:
    """The tuning of one variant."""

    label: str
    trials: int
    rounds: int  # rounds of all trials together
    failed: int  # trials that failed or diverged
    trial: int | None = None  # number of the chosen trial; None: no choice yet, or every trial failed
    score: float | None = None  # mean score of the chosen trial over the seeds
    chosen: Sequence[ChosenValue] = ()

    @property
    def sentence(self) -> str:
        """The chosen values in one sentence, which marks each value on an edge of its space."""
        rank_last = f"; {plural(self.failed, 'trial')} failed or diverged" if self.failed else ""
        if self.trial is None or self.score is None:
            return f"{self.label}: no values chosen{rank_last}"
        values = ", ".join(one.words for one in self.chosen)
        best = f"the best of {plural(self.trials, 'trial')}, score {self.score:.4g}"
        return f"{self.label}: tuned to {values} ({best}){rank_last}"


@dataclass(frozen=True)
class TuningCard:
    """The facts about the tuning of a sweep that its comparison shows."""

    search: str  # grid, random or tpe
    select: str  # the metric by which the trial was chosen
    uses_test: bool  # whether that metric uses test samples
    seeds: Sequence[int]
    variants: Sequence[TunedVariant]

    @property
    def notes(self) -> list[str]:
        """Sentences about the tuning, each tuned variant, and each reason why the result is less certain."""
        notes = [f"tuned by {self.select} on the seeds {', '.join(map(str, self.seeds))}, {self.search} search"]
        notes += [variant.sentence for variant in self.variants]
        if len({variant.trials for variant in self.variants}) > 1:
            counts = ", ".join(f"{plural(one.trials, 'trial')} of {one.label}" for one in self.variants)
            notes.append(f"unequal tuning: {counts}")
        if self.uses_test:
            notes.append(f"results are optimistic: {self.select}, which chose the tuned values, uses test samples")
        return notes


@dataclass(frozen=True)
class CellCard:
    """A cell of a sweep; all seeds of a variant have the same label."""

    label: str
    published: Sequence[Published] = ()
    runs: Sequence[str] = ()  # the names in the `runs` section that define the cell


@dataclass(frozen=True)
class SweepCard:
    """The facts about a sweep that its comparison needs."""

    about: str  # the opening comments of the sweep file and of its base
    cells: Mapping[str, CellCard]  # name of the cell's folder -> cell, for the cells that count
    baseline: str | None = None
    targets: Sequence[float] | None = None
    targets_on: str = "all"  # the clients whose mean accuracy must reach a target: all, all_current or participants
    tuning: TuningCard | None = None  # the values that were chosen for these cells
    trials: bool = False  # whether the cells are trials of a tuning
    format: int = FORMAT

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
        except (ValidationError, json.JSONDecodeError):
            raise ScenarioError(f"{path} is damaged; delete this file and run the sweep again") from None

    def write(self, folder: Path) -> None:
        """Write the card. Cells of earlier cards come first, because the last run of a variant and seed counts.

        Earlier cells without a run do not stay: the sweep was edited before they began. Nor do those of a tuned sweep,
        which may have values that are no longer chosen. Raises `OSError`, `ScenarioError`.
        """
        earlier = None if self.tuning else self.read(folder)
        others = {
            name: cell
            for name, cell in (earlier.cells if earlier else {}).items()
            if name not in self.cells and any((folder / name).glob("*/summary.json"))
        }
        card = replace(self, cells={**others, **self.cells})
        content = TypeAdapter(dict).dump_json(asdict(card), indent=1)
        files.write_bytes(folder / SWEEP_CARD, content)
