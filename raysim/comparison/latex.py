"""The table of a comparison in LaTeX, with booktabs and, if wanted, siunitx.

Each column has one unit and one number of digits, and the best and second-best means are marked (`ranking.RULES`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from raysim.common.errors import ScenarioError
from raysim.comparison.compare import Comparison
from raysim.comparison.measures import is_cost_to_target, sends_nothing
from raysim.comparison.ranking import RULES, Bold, Mark, direction, marks
from raysim.comparison.scale import scales_of
from raysim.comparison.tables import Column, legend, short_columns, shown_spread, some, texts, titled
from raysim.report.figures import OVER

PLUS_MINUS = r"@{\,$\pm$\,}"
UNITS = [unit.name for axis in ("bytes", "operations") for unit in OVER[axis].units[1:]]
"""Units that a title may not name wrongly. Units without a prefix are missing: they may be parts of other words."""
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}",
    "[": "{[}", "]": "{]}", "*": "{*}",  # after \\, LaTeX would read them as arguments
}  # fmt: skip
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def _greek(letter: str) -> str:
    """Return the LaTeX command of a Greek letter; pdflatex has none of them outside mathematical mode."""
    name = unicodedata.name(letter).split()[-1].lower().replace("lamda", "lambda")
    return rf"\ensuremath{{\{name if letter.islower() else name.capitalize()}}}"


_LATEX |= {letter: _greek(letter) for letter in "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"}


def escaped(text: str) -> str:
    """Escape text for one line of LaTeX, which may be a table cell or a comment."""
    return "".join(_LATEX.get(character, character) for character in text)


@dataclass(frozen=True)
class Cell:
    """A cell: a number, or text."""

    text: str = ""  # before the number, or instead of it; escaped
    mean: str = ""
    spread: str = ""  # the number after ±
    after: str = ""
    mark: Mark | None = None

    @property
    def is_number(self) -> bool:
        """Whether the cell is a number and nothing else."""
        return bool(self.mean) and not self.text and not self.after

    @property
    def plain(self) -> str:
        """The cell without siunitx."""
        number = _signed(self.mean) + (rf" $\pm$ {self.spread}" if self.spread else "")
        marked = {None: number, "best": rf"\textbf{{{number}}}", "second": rf"\underline{{{number}}}"}[self.mark]
        return self.text + marked + self.after


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
        lines.append(" & ".join([name, *(cells[number] for _, cells in columns)]) + r" \\")
        lines += [r"\midrule"] if number == 0 else []
    notes = (f"% {escaped(note)}" for note in comparison.notes)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *(["}"] * siunitx), *notes, ""])


def _with_booktabs(head: str, cells: Sequence[Cell]) -> tuple[str, list[str]]:
    """The specification of a column, and its title and cells."""
    return "r", [head, *(cell.plain for cell in cells)]


def _with_siunitx(head: str, cells: Sequence[Cell]) -> tuple[str, list[str]]:
    """As `_with_booktabs`: numbers in a column `S`, those with ± in two; columns with other cells stay as they are.

    Numbers are aligned to the right, and have equally many digits, so that cells without `S` are aligned with them.
    """
    if not any(cell.is_number for cell in cells) or not all(cell.is_number or cell.text == "-" for cell in cells):
        return _with_booktabs(head, cells)
    spreads = [cell.spread for cell in cells if cell.spread]
    spec = _format([cell.mean for cell in cells if cell.mean])
    if not spreads:
        return spec, [f"{{{head}}}", *(_one(cell.mean, cell.mark, "r") if cell.mean else "{-}" for cell in cells)]
    both = [rf"\multicolumn{{2}}{{c}}{{{head}}}"]
    for cell in cells:
        if cell.spread:
            both.append(f"{_one(cell.mean, cell.mark, f'r{PLUS_MINUS}')} & {_one(cell.spread, cell.mark, 'r')}")
        else:
            number = rf"\num{{{cell.mean}}}" if cell.mean else "-"
            both.append(rf"\multicolumn{{2}}{{c}}{{{number}}}")
    return f"{spec}{PLUS_MINUS}{_format(spreads)}", both


def _format(numbers: Sequence[str]) -> str:
    """The column `S` for these numbers."""
    sign = "+" if any(number[0] in "+-" for number in numbers) else ""
    parts = [number.lstrip("+-").partition(".") for number in numbers]
    return rf"S[table-format={sign}{max(len(whole) for whole, _, _ in parts)}.{len(parts[0][2])}]"


def _one(number: str, mark: Mark | None, align: str) -> str:
    """A number in a column `S`; align: the column's alignment for a cell that replaces `S`."""
    if mark == "second":
        return rf"\multicolumn{{1}}{{{align}}}{{\underline{{\num{{{number}}}}}}}"
    return rf"\bfseries {number}" if mark == "best" else number


def _signed(number: str) -> str:
    """A number, perhaps with another one in brackets, whose sign is not a hyphen."""
    return re.sub(r"(^|\()([+-])(?=\d)", r"\1$\2$", number)


def _check_unit(comparison: Comparison, column: Column, head: str) -> None:
    """Raise `ScenarioError` if a title names a unit of `UNITS`, but the numbers of the column have another unit."""
    if column.measure not in comparison.measures or column.kind == "p_holm":
        return
    unit = scales_of(comparison, column.measure).mean.unit
    named = [one for one in UNITS if one in head]
    if unit and named and unit not in named:
        raise ScenarioError(f"--head: {column.name}={head} given, but this column is in {unit}; write {unit}")


def _column(comparison: Comparison, column: Column, bold: Bold) -> list[Cell]:
    """The cells of a column."""
    plain = texts(comparison, column)
    if column.kind not in ("mean", "difference"):
        return [Cell(_signed(escaped(one))) for one in plain]
    measure, differs = column.measure, column.kind == "difference"
    scales = scales_of(comparison, measure)
    scale = scales.difference if differs else scales.mean
    of = partial(comparison.difference if differs else comparison.estimate, measure=measure)
    found = {variant.name: of(variant.name) for variant in comparison.variants}
    marked = {} if differs else marks(comparison, measure, bold)
    # Costs that are the same with every seed have no spread to show.
    spreads = any(shown_spread(measure, one, comparison.spread) is not None for one in found.values() if one)
    reached = {variant.name: comparison.reached(variant.name, measure) for variant in comparison.variants}
    partly = is_cost_to_target(measure) and not all(one.all for one in reached.values())
    cells = []
    for variant, without_number in zip(comparison.variants, plain, strict=True):
        estimate = found[variant.name]
        if estimate is None or (not differs and sends_nothing(measure, estimate.mean)):
            cells.append(Cell(escaped(without_number if estimate is None or partly else "-")))
            continue
        spread = estimate.spread(comparison.spread)
        cells.append(
            Cell(
                f"{reached[variant.name].runs} of {reached[variant.name].of}: " if partly and not differs else "",
                scale(estimate.mean, sign=differs),
                scale(spread) if spreads and spread is not None else "",
                some(estimate, len(comparison.pairs(variant.name))),
                marked.get(variant.name),
            )
        )
    return cells
