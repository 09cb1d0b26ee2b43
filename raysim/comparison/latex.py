"""The table of a comparison in LaTeX, with booktabs and, if wanted, siunitx.

Each column has one unit and one number of digits, and the best and second-best means are marked (`RULES`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.comparison.compare import Comparison
from raysim.comparison.measures import ACCURACIES, is_cost_to_target, sends_nothing
from raysim.comparison.statistics import SIGNIFICANT, holm, paired_difference, paired_p_value
from raysim.comparison.tables import Column, TableCell, cells, legend, scale_of, short_columns, titled

Mark = Literal["best", "second"]
MARKS: tuple[Mark, ...] = ("best", "second")
Bold = Literal["significant", "mean"]
"""Which best means are bold: those that are significantly better than all others, or all."""

_RANKED = (
    "Of the costs, only costs to a target are ranked, and only among variants whose runs all reach the target; "
    "variants that send nothing are not ranked by what they send."
)
RULES: Mapping[Bold, str] = {
    "significant": "Bold: the best mean of a column and task, if it is significantly better than every other variant. "
    "Underlined: the second-best mean, if the best is bold and the second is significantly better than every variant "
    f"below it. Significant: p < {SIGNIFICANT:g} in the paired t-test over seeds between two variants of the same "
    f"task, with Holm's correction for all these tests in the column. {_RANKED}",
    "mean": "Bold: the best mean of a column and task. Underlined: the second-best mean. Means that are printed alike "
    f"have the same mark. No test says whether they differ. {_RANKED}",
}
"""Rule -> its explanation."""

PLUS_MINUS = r"@{\,$\pm$\,}"
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}",
    "[": "{[}", "]": "{]}", "*": "{*}",  # after \\, LaTeX would read them as arguments
}  # fmt: skip
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def escaped(text: str) -> str:
    """Escape text for one line of LaTeX, which may be a table cell or a comment."""
    return "".join(_LATEX.get(character, character) for character in text)


def latex(
    comparison: Comparison,
    shown: Sequence[Column] | None = None,
    siunitx: bool = False,
    heads: Mapping[str, str] = MappingProxyType({}),
    bold: Bold = "significant",
) -> str:
    r"""The table of these columns, by default the terminal's, in LaTeX; it needs `\usepackage{booktabs}`.

    siunitx: use its columns `S`, which need `\usepackage{siunitx}`, version 2.8 or newer. heads: name of a column, or
    `variant` -> its title in LaTeX, in place of raysim's. bold: the rule for the marks. Raises `ScenarioError` for a
    title of a column that is not in the table, and for a title with another unit than the column's.
    """
    shown = short_columns(comparison) if shown is None else shown
    known = ["variant", *(column.name for column in shown)]
    if unknown := [name for name in heads if name not in known]:
        raise ScenarioError(f"--head: no column {unknown[0]} in this table; allowed: {', '.join(known)}")
    render = _with_siunitx if siunitx else _with_booktabs
    columns = []
    for one, title in titled(comparison, shown):
        if one.name in heads:
            _check_unit(comparison, one, heads[one.name])
        columns.append(render(heads.get(one.name, escaped(title)), _column(comparison, one, bold)))
    packages = "booktabs, siunitx" if siunitx else "booktabs"
    ranked = any(column.kind == "mean" and direction(column.measure) for column in shown)
    comments = [legend(comparison, shown), *([RULES[bold]] if ranked else [])]
    lines = [
        rf"% \usepackage{{{packages}}}",
        *(f"% {escaped(comment)}" for comment in comments),
        *([r"{\sisetup{detect-weight=true, retain-explicit-plus=true, table-number-alignment=right}%"] * siunitx),
        rf"\begin{{tabular}}{{l{''.join(spec for spec, _ in columns)}}}",
        r"\toprule",
    ]
    first = [heads.get("variant", "variant"), *(escaped(variant.name) for variant in comparison.variants)]
    for number, name in enumerate(first):
        lines.append(" & ".join([name, *(texts[number] for _, texts in columns)]) + r" \\")
        lines += [r"\midrule"] if number == 0 else []
    notes = (f"% {escaped(note)}" for note in comparison.notes)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *(["}"] * siunitx), *notes, ""])


class Marked(NamedTuple):
    """A cell with the mark of its variant."""

    cell: TableCell
    mark: Mark | None

    @property
    def is_number(self) -> bool:
        """Whether the cell is a number and nothing else."""
        return bool(self.cell.mean) and not self.cell.text and not self.cell.after

    @property
    def plain(self) -> str:
        """The cell without siunitx."""
        text, mean, spread, after = self.cell
        number = _signed(mean) + (rf" $\pm$ {spread}" if spread else "")
        marked = {None: number, "best": rf"\textbf{{{number}}}", "second": rf"\underline{{{number}}}"}[self.mark]
        return _signed(escaped(text)) + marked + escaped(after)


def _column(comparison: Comparison, column: Column, bold: Bold) -> list[Marked]:
    """Return the cells of a column; costs to a target have no counts if every run reaches the target."""
    measure, found = column.measure, cells(comparison, column)
    if column.kind != "mean":
        return [Marked(one, None) for one in found]
    names = [variant.name for variant in comparison.variants]
    counts = [comparison.reached(name, measure) for name in names]
    if is_cost_to_target(measure) and all(reaching == runs for reaching, runs in counts):
        found = [one._replace(text="" if one.mean else "-") for one in found]
    marked = marks(comparison, measure, bold)
    return [Marked(one, marked.get(name)) for name, one in zip(names, found, strict=True)]


def _with_booktabs(head: str, column: Sequence[Marked]) -> tuple[str, list[str]]:
    """Return the specification of a column, and its title and cells."""
    return "r", [head, *(one.plain for one in column)]


def _with_siunitx(head: str, column: Sequence[Marked]) -> tuple[str, list[str]]:
    """As `_with_booktabs`: numbers in a column `S`, those with ± in two; columns with other cells stay as they are.

    Numbers are aligned to the right, and have equally many digits, so that cells without `S` are aligned with them.
    """
    numbers = [one.cell for one in column if one.is_number]
    if not numbers or not all(one.is_number or one.cell.text == "-" for one in column):
        return _with_booktabs(head, column)
    spreads = [one.spread for one in numbers if one.spread]
    spec = _format([one.mean for one in numbers])
    if not spreads:
        return spec, [f"{{{head}}}", *(_one(one.mean, mark, "r") if one.mean else "{-}" for one, mark in column)]
    both = [rf"\multicolumn{{2}}{{c}}{{{head}}}"]
    for one, mark in column:
        if one.spread:
            both.append(f"{_one(one.mean, mark, f'r{PLUS_MINUS}')} & {_one(one.spread, mark, 'r')}")
        else:
            number = rf"\num{{{one.mean}}}" if one.mean else "-"
            both.append(rf"\multicolumn{{2}}{{c}}{{{number}}}")
    return f"{spec}{PLUS_MINUS}{_format(spreads)}", both


def _format(numbers: Sequence[str]) -> str:
    """Return the column `S` for these numbers."""
    sign = "+" if any(number[0] in "+-" for number in numbers) else ""
    parts = [number.lstrip("+-").partition(".") for number in numbers]
    return rf"S[table-format={sign}{max(len(whole) for whole, _, _ in parts)}.{len(parts[0][2])}]"


def _one(number: str, mark: Mark | None, align: str) -> str:
    """Return a number in a column `S`; align: the column's alignment for a cell that replaces `S`."""
    if mark == "second":
        return rf"\multicolumn{{1}}{{{align}}}{{\underline{{\num{{{number}}}}}}}"
    return rf"\bfseries {number}" if mark == "best" else number


def _signed(number: str) -> str:
    """Return a number, perhaps with another one in brackets, whose sign is not a hyphen."""
    return re.sub(r"(^|\()([+-])(?=\d)", r"\1$\2$", number)


def _check_unit(comparison: Comparison, column: Column, head: str) -> None:
    """Raise `ScenarioError` if a title names a unit of bytes or operations, but not that of the column's numbers."""
    unit = scale_of(comparison, column).unit if column.kind in ("mean", "difference", "published") else ""
    if unit and re.search(r"[KMGT]iB|[kMGTPE]FLOP", head) and unit not in head:
        raise ScenarioError(f"--head: {column.name}={head} given, but this column is in {unit}; write {unit}")


def direction(measure: str) -> int:
    """1: a greater value is better; -1: a smaller one; 0: the measure ranks no methods.

    Costs of all rounds rank no methods: a method that sends nothing would be the best.
    """
    if is_cost_to_target(measure) or measure == "std":
        return -1
    return 1 if measure in ACCURACIES or measure == "jain" else 0


def marks(comparison: Comparison, measure: str, bold: Bold = "significant") -> dict[str, Mark]:
    """Variant -> its mark in the column of a measure, as `RULES` say; a variant without a mark is left out."""
    sign = direction(measure)
    ranked: dict[tuple[str, ...], dict[str, float]] = {}  # task -> variant -> mean, times `sign`
    for variant in comparison.variants if sign else ():
        found = comparison.estimate(variant.name, measure)
        if found is not None and not sends_nothing(measure, found.mean):
            ranked.setdefault(variant.task, {})[variant.name] = sign * found.mean
    of_task = [sorted(mean, key=lambda name: -mean[name]) for mean in ranked.values()]
    if bold == "mean":
        scale = scale_of(comparison, Column("mean", measure))
        shown = {name: scale(sign * value) for mean in ranked.values() for name, value in mean.items()}
        return {name: mark for names in of_task if len(names) > 1 for name, mark in _by_text(names, shown).items()}
    values = comparison.measured
    pairs = [pair for names in of_task for pair in itertools.combinations(names, 2)]
    tested = {pair: paired_p_value(*(values[name][measure] for name in pair)) for pair in pairs}
    corrected = holm({pair: p for pair, p in tested.items() if p is not None})

    def beats(one: str, other: str) -> bool:
        difference = paired_difference(values[one][measure], values[other][measure])
        return difference is not None and sign * difference.mean > 0 and corrected.get((one, other), 1.0) < SIGNIFICANT

    marked: dict[str, Mark] = {}
    for names in of_task:
        for place, mark in enumerate(MARKS):
            one, *below = names[place:]
            if not below or not all(beats(one, other) for other in below):
                break
            marked[one] = mark
    return marked


def _by_text(names: Sequence[str], shown: Mapping[str, str]) -> dict[str, Mark]:
    """Return the marks of the variants of one task, from the best to the worst, by their means as printed."""
    mark_of = dict(zip(dict.fromkeys(shown[name] for name in names), MARKS, strict=False))
    return {name: mark_of[shown[name]] for name in names if shown[name] in mark_of}
