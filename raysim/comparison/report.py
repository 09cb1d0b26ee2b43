"""Comparison as a self-contained HTML file: tables, figures, notes, and each run's digest and command."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from raysim.common.errors import ScenarioError
from raysim.common.files import write_bytes
from raysim.comparison.compare import Comparison, compare
from raysim.comparison.measures import MEASURES
from raysim.comparison.pictures import pictures
from raysim.comparison.runs import RunRecord
from raysim.comparison.tables import Table, all_columns, tasks_table, variants_table
from raysim.report.figures import save
from raysim.scenario.yaml_text import opening_comment, read_text, shown

CAPTIONS = {
    "curves": "Mean {accuracy} over rounds, bytes sent, operations and (if runs have it) virtual time. Bands are 95% "
    "confidence intervals over seeds, shown for at least three seeds.",
    "clients": "Spread of the {accuracy}. Each box pools all clients of all seeds: median, quartiles and whiskers at "
    "1.5 interquartile ranges; the dot is the mean.",
    "profile": "Performance profile: share of clients (of all seeds) whose {accuracy} is above x.",
    "architectures": "Mean over the clients of each architecture, with 95% intervals over seeds: {accuracy}.",
}
"""Kind of a figure -> caption."""


@dataclass(frozen=True)
class Part:
    """One comparison in the report."""

    name: str
    about: str  # the comment at the top of the scenario, unless an earlier part shows the same comment
    comparison: Comparison

    @property
    def tables(self) -> list[Table]:
        """The short table and, if there are several tasks, that of methods over all tasks."""
        return [table for table in (variants_table(self.comparison), tasks_table(self.comparison)) if table]

    @property
    def all_measures(self) -> Table:
        """The table of all measures."""
        return variants_table(self.comparison, all_columns(self.comparison))

    @property
    def settings(self) -> list[list[str]]:
        """The table of every key that decides a result, with its values, defaults included, and their variants.

        The table of runs has the seeds.
        """
        of_variant = {one.name: next(iter(one.counted.values())).deciding for one in self.comparison.variants}
        table = [["key", "value", "variants"]]
        for key in dict.fromkeys(key for deciding in of_variant.values() for key in deciding):
            variants: dict[str, list[str]] = {}
            for name, deciding in of_variant.items():
                if key in deciding:
                    value = deciding[key]
                    variants.setdefault(value if isinstance(value, str) else shown(value), []).append(name)
            for value, having in variants.items():
                table.append([key, value, "all" if len(having) == len(of_variant) else ", ".join(having)])
        return table

    @property
    def partitions(self) -> list[tuple[str, str]]:
        """(PNG as base64, caption) of each distinct partition among the first runs of the variants."""
        shown: dict[object, tuple[str, str]] = {}
        for variant in self.comparison.variants:
            run = variant.runs[0]
            path = run.folder / "plots" / "partition.png"
            if path.is_file() and run.summary.get("partition_digest") not in shown:
                task = f" Task: {' '.join(variant.task)}." if variant.task else ""
                caption = f"Training samples of each class and client, with seed {run.seed}.{task}"
                shown[run.summary.get("partition_digest")] = base64.b64encode(path.read_bytes()).decode(), caption
        return list(shown.values())

    @property
    def figures(self) -> list[tuple[str, str]]:
        """(SVG as base64, caption) of every figure that the runs have data for."""
        figures = []
        for picture in pictures(self.comparison):
            svg = io.BytesIO()
            save(picture.figure, svg, format="svg", transparent=True)
            over_key = "Mean {accuracy} over {key}, with 95% confidence intervals over seeds."
            accuracy = f"{self.comparison.accuracy.phrase} ({MEASURES[self.comparison.main].title})"
            key = picture.kind.removeprefix("over_")
            caption = CAPTIONS.get(picture.kind, over_key).format(accuracy=accuracy, key=key)
            caption += f" Task: {picture.task}." if picture.task else ""
            figures.append((base64.b64encode(svg.getvalue()).decode(), caption))
        return figures


def report(
    *sources: Path | str,
    output: Path | str,
    baseline: str | None = None,
    select: str = "last",
    metric: str | None = None,
) -> Path:
    """Write a report on runs, one part per source, into one HTML file; returns its path.

    sources: run folders, or folders with runs in them, such as a sweep's. baseline, select,
    metric: as in `compare`.

    Raises:
        ScenarioError: see `compare`; or `output` is no regular file.
        OSError: the file cannot be written.
    """
    path = Path(output)
    parts: list[Part] = []
    for source in sources:
        part = _part(Path(source), baseline, select, metric)
        is_repeated = any(part.about == earlier.about for earlier in parts)
        parts.append(dataclasses.replace(part, about="") if is_repeated else part)
    environment = Environment(loader=PackageLoader("raysim.comparison"), autoescape=True, undefined=StrictUndefined)
    measures = {f"{one.title} ({name})": one.meaning.replace("`", "") for name, one in MEASURES.items()}
    name = ", ".join(part.name for part in parts)
    page = environment.get_template("report.html").render(parts=parts, measures=measures, name=name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path.resolve(), page.encode())
    return path


def _part(source: Path, baseline: str | None, select: str, metric: str | None) -> Part:
    comparison = compare(source, baseline=baseline, select=select, metric=metric)
    runs = [run for variant in comparison.variants for run in variant.runs]
    name = source.resolve().name
    if len(runs) == 1:
        (run,) = runs
        name = (
            f"{run.summary.get('scenario') or run.keys.get('name')}, {run.method}, seed {run.seed} ({run.folder.name})"
        )
    return Part(name, _about(runs), comparison)


def _about(runs: Sequence[RunRecord]) -> str:
    """The comment at the top of the sweep file or, without a sweep, of the first run's scenario; may be empty."""
    scenario = runs[0].folder / "scenario.yaml"
    try:
        return runs[0].sweep.about if runs[0].sweep else opening_comment(read_text(scenario))
    except ScenarioError:
        return ""
