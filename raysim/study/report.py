"""Comparison as a self-contained HTML file: tables, figures, notes, and each run's digest and command."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from raysim.common.files import write_bytes
from raysim.results.figures import save
from raysim.study.compare import Comparison, compare
from raysim.study.measures import MEASURES
from raysim.study.pictures import pictures
from raysim.study.tables import all_columns, tasks_table, variants_table

if TYPE_CHECKING:
    import pandas as pd

CAPTIONS = {
    "curves": "Mean {accuracy} over rounds, bytes sent, operations and (if runs have it) virtual time. Bands are 95% "
    "confidence intervals over seeds, shown for at least three seeds.",
    "clients": "Spread of the {accuracy}. Each box pools all clients of all seeds: median, quartiles and whiskers at "
    "1.5 interquartile ranges; the dot is the mean.",
    "architectures": "Mean over the clients of each architecture, with 95% intervals over seeds: {accuracy}.",
}
"""Kind of a figure -> caption."""


def _part(name: str, comparison: Comparison) -> dict[str, Any]:
    """Return the content of one comparison in the report: text, tables as HTML with legends, and figures."""
    import pandas as pd

    sweep = comparison.variants[0].runs[0].sweep
    tables = (variants_table(comparison), tasks_table(comparison))
    return {
        "name": name,
        "about": sweep.about if sweep else "",
        "tables": [(_html(table.frame), table.legend) for table in tables if table],
        "notes": comparison.notes,
        "figures": _figures(comparison),
        "all_measures": _html(variants_table(comparison, all_columns(comparison)).frame),
        "runs": _html(pd.DataFrame(comparison.runs).drop(columns="folder")),
    }


def _figures(comparison: Comparison) -> list[tuple[str, str]]:
    """Return (SVG as base64, caption) of every figure that the runs have data for."""
    figures = []
    accuracy = f"{comparison.accuracy.phrase} ({MEASURES[comparison.main].title})"
    for picture in pictures(comparison, "two-columns"):
        svg = io.BytesIO()
        save(picture.figure, svg, format="svg", transparent=True)
        caption = CAPTIONS[picture.kind].format(accuracy=accuracy) + (f" Task: {picture.task}." if picture.task else "")
        figures.append((base64.b64encode(svg.getvalue()).decode(), caption))
    return figures


def _html(frame: pd.DataFrame) -> str:
    import pandas as pd

    with pd.option_context("display.max_colwidth", None):
        return frame.to_html(index=False, border=0)


def report(
    *sources: Path | str,
    output: Path | str,
    baseline: str | None = None,
    select: str = "last",
    metric: str | None = None,
) -> Path:
    """Write one HTML file with a report on runs, one part per source; return its path.

    sources: run folders, or folders with runs in them, such as a sweep's. baseline, select,
    metric: as in `compare`.

    Raises:
        ScenarioError: see `compare`.
        OSError: the file cannot be written.
    """
    path = Path(output)
    parts = [
        _part(Path(source).resolve().name, compare(source, baseline=baseline, select=select, metric=metric))
        for source in sources
    ]
    environment = Environment(loader=PackageLoader("raysim.study"), autoescape=True, undefined=StrictUndefined)
    measures = {f"{one.title} ({name})": one.meaning.replace("`", "") for name, one in MEASURES.items()}
    name = ", ".join(part["name"] for part in parts)
    page = environment.get_template("report.html").render(parts=parts, measures=measures, name=name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path.resolve(), page.encode())
    return path
