"""Values that a sweep has tuned: a sentence per method for its comparison, and whether the budgets were equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from raysim.report.units import plural


@dataclass(frozen=True)
class ChosenValue:
    """The value that was chosen for a key."""

    key: str
    value: str  # YAML in one line
    edge: Literal["", "lower", "upper"] = ""  # the edge of its possible values that it lies on
    space: str = ""  # its possible values as in the sweep file, YAML in one line; empty: not recorded

    @property
    def words(self) -> str:
        """The key and the value, from which values it was chosen, and whether it lies on their edge."""
        edge = f"at the {self.edge} end of its search space; extend it" if self.edge else ""
        inner = "; ".join(filter(None, [f"from {self.space}" if self.space else "", edge]))
        return f"{self.key}={self.value}" + (f" ({inner})" if inner else "")


@dataclass(frozen=True)
class CloseDecision:
    """A decision of successive halving between two trials whose scores differ by less than two samples."""

    round: int  # after which the trials were compared
    kept: int  # the worst trial that continued
    kept_score: float
    ended: int  # the best trial that ended
    ended_score: float
    samples: str  # those that measured a score, such as "360 validation samples"


@dataclass(frozen=True)
class TunedVariant:
    """The tuning of one variant."""

    label: str
    trials: int
    steps: Sequence[int]  # rounds of successive halving; empty: none
    rounds: int  # that all trials did
    failed: int  # trials that failed or diverged
    trial: int | None = None  # the chosen one; None: no choice yet, or every trial failed
    score: float | None = None  # its mean over the seeds
    chosen: Sequence[ChosenValue] = ()
    close: Sequence[CloseDecision] = ()

    @property
    def budget(self) -> str:
        """The number of trials and the rounds of successive halving."""
        halving = f" with successive halving at rounds {', '.join(map(str, self.steps))}" if self.steps else ""
        return f"{plural(self.trials, 'trial')}{halving}"

    @property
    def sentence(self) -> str:
        """What was chosen, with a mark at each value on an edge of its space."""
        rank_last = f"; {plural(self.failed, 'trial')} failed or diverged" if self.failed else ""
        if self.trial is None or self.score is None:
            return f"{self.label}: no values chosen{rank_last}"
        values = ", ".join(one.words for one in self.chosen)
        return f"{self.label}: tuned to {values} (trial {self.trial}, score {self.score:.4g}){rank_last}"


@dataclass(frozen=True)
class TuningCard:
    """The facts about the tuning of a sweep that its comparison shows."""

    search: str  # grid, random or tpe
    select: str  # the metric that chose
    uses_test: bool  # whether that metric uses test samples
    seeds: Sequence[int]
    variants: Sequence[TunedVariant]
    untuned: Sequence[str] = ()  # labels of the variants without a key to tune
    cells: Sequence[str] = field(default_factory=list)  # names of the folders with runs of the choice

    @property
    def notes(self) -> list[str]:
        """A sentence for the tuning, one per tuned variant, and one for each reason why the result is less certain."""
        seeds = f"{'seed' if len(self.seeds) == 1 else 'seeds'} {', '.join(map(str, self.seeds))}"
        notes = [f"tuned by {self.select} on {seeds}, {self.search} search: {self._budget}"]
        notes += [variant.sentence for variant in self._begun]
        if waiting := len(self.variants) - len(self._begun):
            notes.append(f"the tuning of {plural(waiting, 'other variant')} has not begun")
        if self.untuned:
            notes.append(
                f"unequal tuning: {', '.join(self.untuned)} {'was' if len(self.untuned) == 1 else 'were'} not tuned"
            )
        if self.uses_test:
            notes.append(f"results are optimistic: {self.select}, which chose the tuned values, uses test samples")
        return notes

    @property
    def _begun(self) -> Sequence[TunedVariant]:
        """The variants with a trial that has done a round; all variants if none has one."""
        return [one for one in self.variants if one.rounds] or self.variants

    @property
    def _budget(self) -> str:
        """The trials of each variant, or of all if they are equal."""
        budgets = {one.label: one.budget for one in self._begun}
        different = set(budgets.values())
        if len(different) == 1:
            return f"equal budgets of {different.pop()} per method"
        return "unequal budgets: " + ", ".join(f"{label} {words}" for label, words in budgets.items())
