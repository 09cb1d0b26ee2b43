"""Hostile names in every output of a comparison: each shows them as text, and does nothing else with them."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from markdown_it import MarkdownIt
from matplotlib.cbook import is_math_text
from mlflow.utils.validation import _validate_metric_name

from raysim.common import names
from raysim.common.errors import ScenarioError
from raysim.comparison.compare import Comparison, compare
from raysim.comparison.latex import latex
from raysim.comparison.pictures import curves, draw
from raysim.comparison.published import Published
from raysim.comparison.report import report
from raysim.comparison.sweep_card import CellCard, SweepCard
from raysim.comparison.tables import write_tables
from raysim.comparison.terminal import print_table
from raysim.report.plots import plot_accuracy
from raysim.sweeps.definition import load_sweep
from raysim.sweeps.listing import print_states
from raysim.sweeps.state import states_of
from tests.comparison.runs import make_run
from tests.engine.scenarios import digits

HOSTILE = [
    "$x_1$", "a $\\frac{", "US$ and $", r"\$", "_hidden", "_a_ and b_c", "a|b", "<script>alert(1)</script>", "&lt;<b>",
    "first\n\\input{/etc/passwd}", "% \\write18{ls}", "\r\n# heading", "=1+1", "+1+cmd|' /C calc'!A0", "-2+3",
    "@SUM(A1)", "\t=1", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J", "\u202egnp.exe", "[bold]x[/bold]", "[/x]",
    "![a](http:b)", "[a](javascript:b)", "`code`", "*a* **b**", "~~~", "~~a~~", "- a", "1. b", "# c", "../../up",
    "/abs", "end/", ".", "..x", "{}", "^^5c", "'; DROP TABLE metrics", "-->", "]]>", "é 名 😀", "x" * 1000, "fedgh",
    "{{ 7*7 }}", "\x00\x01a", 'say "hi"',
]  # fmt: skip
NOTHING = ["\ud800", "\x00", " ", "\x1b[0m", ""]
"""Names of which nothing is left."""


def sweep_of(folder: Path, labels: Sequence[str]) -> Comparison:
    """A comparison of a run for each of these labels, which are also keys, architectures, metrics and notes."""
    cells = {}
    for i, label in enumerate(labels):
        made = make_run(folder / f"cell{i}" / "run", f"m{i}", accuracy=[0.1, 0.6], algorithm={"x": i, label: label})
        rows = [{"round": 1, "client": k, "model": f"{labels[i % 4]}{k}", "accuracy": 0.5} for k in (0, 1)]
        pq.write_table(pa.Table.from_pylist(rows), made / "clients.parquet")
        cells[f"cell{i}"] = CellCard(label, (Published(label, 1, labels[i % 4], label, None, None),))
    SweepCard("# <script>", cells, baseline="m4", notes=labels).write(folder)
    return compare(folder, targets=[0.5])


pytestmark = pytest.mark.xdist_group("hostile_names")  # one process makes the runs


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return sweep_of(tmp_path_factory.mktemp("hostile") / "$runs", HOSTILE)


def is_clean(text: str) -> bool:
    return not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\n" for c in text)


def test_every_variant_has_a_name_of_its_own(comparison: Comparison) -> None:
    found = [variant.name for variant in comparison.variants]
    assert len(set(found)) == len(HOSTILE)
    assert all(is_clean(name) and "\n" not in name and 0 < len(name) <= names.LONGEST_NAME + 3 for name in found)


def test_the_terminal(comparison: Comparison) -> None:
    shown = io.StringIO()
    print_table(comparison, shown)
    assert is_clean(shown.getvalue())
    for line in ("[bold]x[/bold] ", "[/x] ", "$x_1$ "):
        assert f"\n{line}" in shown.getvalue()
    assert shown.getvalue().count("\nnote: ") == len(comparison.notes)


def test_markdown(comparison: Comparison, tmp_path: Path) -> None:
    """A reader of Markdown sees the names as they are, and no link, picture, heading or HTML."""
    text = write_tables(comparison, tmp_path)[0].read_text()
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    allowed = {"table", "thead", "tbody", "tr", "th", "td", "paragraph", "bullet_list", "list_item"}
    assert {token.type.removesuffix("_open").removesuffix("_close") for token in tokens} <= {*allowed, "inline"}
    inline = [token for token in tokens if token.type == "inline"]
    parts = [part for token in inline for part in token.children or []]
    assert {part.type for part in parts} <= {"text", "text_special"}
    seen = ["".join(part.content for part in token.children or []) for token in inline]
    assert {variant.name for variant in comparison.variants} <= set(seen)
    assert {" ".join(names.plain(note).split()) for note in comparison.notes} <= {" ".join(one.split()) for one in seen}
    assert "<script" not in text


def test_latex(comparison: Comparison, tmp_path: Path) -> None:
    """Undoing the escapes gives the names back, so no character of one is a command."""
    lines = write_tables(comparison, tmp_path)[1].read_text().splitlines()
    plain = {**{escaped: character for character, escaped in names._LATEX.items()}, "$+$": "+", "$-$": "-"}
    escapes = re.compile("|".join(re.escape(one) for one in sorted(plain, key=len, reverse=True)))
    rows = [line for line in lines if line.endswith(r" \\")]
    cells = [[escapes.sub(lambda found: plain[found[0]], cell) for cell in row.split(" & ")] for row in rows]
    assert {variant.name for variant in comparison.variants} <= {row[0] for row in cells}
    assert len({len(row) for row in cells}) == 1
    bare = [escapes.sub("", row.removesuffix(r" \\").replace(" & ", "")) for row in rows]
    assert not any(re.search(r"[\\&%$#_{}~^]", line) for line in bare)
    after = lines[lines.index(r"\end{tabular}") + 1 :]
    assert len(after) == len(comparison.notes) and all(line.startswith("% ") for line in after)


def test_csv(comparison: Comparison, tmp_path: Path) -> None:
    for path in write_tables(comparison, tmp_path)[2:]:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        assert len({len(row) for row in rows}) == 1
        for cell in (cell for row in rows for cell in row):
            assert is_clean(cell) and "\n" not in cell
            assert cell[:1] not in "=+-@" or cell == "" or re.fullmatch(r"-?[\d.e-]+", cell), cell


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path: Path) -> None:
    labels = [label for label in HOSTILE if label.isascii() and len(label) < 100]
    labels += ["α=0.1, é", "".join(map(chr, range(ord("α"), ord("ω") + 1))).translate({ord(x): None for x in "ος"})]
    labels += ["ΓΔΘΛΞΠΣΦΨΩ"]
    table = latex(sweep_of(tmp_path / "runs", labels))
    document = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}{table}\\end{{document}}"
    (tmp_path / "t.tex").write_text(document)
    done = subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


class Page(HTMLParser):
    """The elements of a page, and the text of its cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.found |= {name for name, _ in attributes if name.startswith("on")}
        if tag in ("td", "li"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_the_page(tmp_path: Path) -> None:
    labels = [label for label in HOSTILE if set(label) & set("<>&{") or not is_clean(label)]
    comparison = sweep_of(tmp_path / "$runs", labels)
    text = report(tmp_path / "$runs", output=tmp_path / "r.html").read_text()
    page = Page(text)
    assert is_clean(text.replace("\t", ""))
    assert not {"script", "b", "img", "a", "onerror"} & page.found
    assert {variant.name for variant in comparison.variants} <= set(page.cells)


def test_pictures(tmp_path: Path) -> None:
    """Every variant is in the legend, under its name, and nothing is a formula."""
    labels = [label for label in HOSTILE if set(label) & set("$_/😀") or len(label) > 200]
    comparison = sweep_of(tmp_path / "runs", labels)
    files = draw(comparison, tmp_path / "out", (".svg",))
    assert set(files) == set((tmp_path / "out").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out"}
    figure = curves(comparison)
    assert figure is not None
    shown = figure.axes[0].get_legend_handles_labels()[1]
    assert shown == [names.picture(variant.name) for variant in comparison.variants]
    assert shown[0] == r"\$x_1\$" and " _hidden" in shown
    assert not any(is_math_text(names.picture(label)) for label in HOSTILE)


def test_a_name_of_which_nothing_is_left() -> None:
    assert {names.name(text) for text in NOTHING} == {"(no name)"}
    assert {names.mlflow(text) for text in ("", "/", "//")} == {"_"}
    for write in (names.plain, names.markdown, names.latex, names.spreadsheet, names.picture, names.file):
        assert all(is_clean(write(text)) for text in [*NOTHING, *HOSTILE])


def test_mlflow(comparison: Comparison) -> None:
    found = names.distinct((variant.name for variant in comparison.variants), names.mlflow)
    assert len(set(found)) == len(HOSTILE)
    for name in found:
        _validate_metric_name(f"last/{name}")


def test_keys_and_architectures_of_another_persons_run(tmp_path: Path) -> None:
    """A key is drawn as an axis, and names a file, which stays in the folder."""
    key = "/../../$x\n=1"
    for i in range(3):
        make_run(tmp_path / "runs" / str(i), algorithm={key: i})
    comparison = compare(tmp_path / "runs")
    write_tables(comparison, tmp_path / "out")
    draw(comparison, tmp_path / "out", (".svg",))
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out"}
    assert len(list((tmp_path / "out").glob("over_*"))) == 1
    make_run(tmp_path / "runs" / "text", algorithm={key: "0"})  # as text, it looks like the number
    assert len({variant.name for variant in compare(tmp_path / "runs").variants}) == 4


@pytest.mark.parametrize("title", ["a $\\frac{$ b", "$", "_x", "\x1b[31m\n\t$$"])
def test_titles_of_a_runs_plots(tmp_path: Path, title: str) -> None:
    plot_accuracy([{"round": 0, "accuracy/all": 0.5}], tmp_path / "a.png", title)
    assert not is_math_text(names.picture(title))


def test_names_in_a_sweep_file(tmp_path: Path) -> None:
    """Cells have clean names, and folders that are in the sweep's."""
    path = tmp_path / "s.yaml"
    runs = {label: [f"training.lr={0.001 * (i + 1)}"] for i, label in enumerate(HOSTILE)}
    content = {"base": digits(output=str(tmp_path)), "runs": runs}
    path.write_text(yaml.safe_dump(content, allow_unicode=False), encoding="utf-8")
    sweep = load_sweep(path)
    assert len({cell.name for cell in sweep.cells}) == len(runs)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", cell.folder_name) for cell in sweep.cells)
    shown = io.StringIO()
    print_states(states_of(sweep), shown)
    assert is_clean(shown.getvalue()) and len(shown.getvalue().splitlines()) == len(runs) + 2
    sweep.output.mkdir()
    sweep.card().write(sweep.output)
    card = SweepCard.read(sweep.output)
    assert card is not None and len(card.cells) == len(runs)


def test_two_cells_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    runs = {"a": {"x y": ["training.lr=0.1"], "x": ["training.lr=0.2"]}, "b": {"z": ["rounds=1"], "y z": ["rounds=2"]}}
    path.write_text(yaml.safe_dump({"base": digits(), "runs": runs}))
    with pytest.raises(ScenarioError, match=r"runs: two cells are called 'x y z'; give each cell a different name"):
        load_sweep(path)
