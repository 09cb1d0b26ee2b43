"""Comparison as a self-contained HTML file: tables, figures, notes, and each run's digest and command."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from raysim.common.files import write_bytes
from raysim.comparison.compare import Comparison, compare
from raysim.comparison.measures import MEASURES
from raysim.comparison.pictures import pictures
from raysim.comparison.tables import all_columns, tasks_table, variants_table
from raysim.report.figures import save

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


@dataclass(frozen=True)
class Part:
    """One comparison in the report."""

    name: str
    comparison: Comparison

    @property
    def about(self) -> str:
        """The comment at the top of the sweep file; empty without a sweep."""
        sweep = self.comparison.variants[0].runs[0].sweep
        return sweep.about if sweep else ""

    @property
    def tables(self) -> list[tuple[str, str]]:
        """Return (HTML, legend) of the short table and, if there are several tasks, of the table over all tasks."""
        tables = (variants_table(self.comparison), tasks_table(self.comparison))
        return [(_html(table.frame), table.legend) for table in tables if table]

    @property
    def all_measures(self) -> str:
        """The table of all measures."""
        return _html(variants_table(self.comparison, all_columns(self.comparison)).frame)

    @property
    def runs(self) -> str:
        """The table of all runs."""
        import pandas as pd

        return _html(pd.DataFrame(self.comparison.runs).drop(columns="folder"))

    @property
    def figures(self) -> list[tuple[str, str]]:
        """(SVG as base64, caption) of every figure that the runs have data for."""
        figures = []
        for picture in pictures(self.comparison, "two-columns"):
            svg = io.BytesIO()
            save(picture.figure, svg, format="svg", transparent=True)
            accuracy = f"{self.comparison.accuracy.phrase} ({MEASURES[self.comparison.main].title})"
            caption = CAPTIONS[picture.kind].format(accuracy=accuracy)
            caption += f" Task: {picture.task}." if picture.task else ""
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
        Part(Path(source).resolve().name, compare(source, baseline=baseline, select=select, metric=metric))
        for source in sources
    ]
    environment = Environment(loader=PackageLoader("raysim.comparison"), autoescape=True, undefined=StrictUndefined)
    measures = {f"{one.title} ({name})": one.meaning.replace("`", "") for name, one in MEASURES.items()}
    name = ", ".join(part.name for part in parts)
    page = environment.get_template("report.html").render(parts=parts, measures=measures, name=name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path.resolve(), page.encode())
    return path
