"""Commands for several runs, and for their results: sweep, compare, report, plot, export."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import JSON, SETS, ScenarioFile, folders_of, metric, print_json, width
from raysim.results.accuracies import OWN

if TYPE_CHECKING:
    from raysim.results.figures import Width
    from raysim.study.cells import Sweep
    from raysim.study.statistics import Spread


def _axis(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, list[Any]]:
    """Parse `--grid KEY=V1,V2` as a key and its values."""
    from raysim.scenario.yaml_text import UNREADABLE, load_value

    found: dict[str, list[Any]] = {}
    for text in given:
        key, sign, values = text.partition("=")
        try:
            found.setdefault(key, []).extend(load_value(f"[{values}]"))
        except UNREADABLE:
            sign = ""
        if not sign or not key:
            remedy = "write KEY=VALUE,VALUE with YAML values, such as training.lr=0.1,0.01"
            raise click.BadParameter(f"{text!r} given; {remedy}", context, parameter)
    return found


@click.command()
@click.argument("file", type=ScenarioFile())
@click.option(
    "--grid",
    multiple=True,
    metavar="KEY=V1,V2",
    callback=_axis,
    help="A key of the scenario, and the values to try. May be repeated.",
)
@click.option("--seeds", metavar="SEEDS", help="Run every variant with each of these seeds, such as 1..5 or 1,2,7.")
@SETS
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of cells to run at the same time. Default: one per CPU.",
)
@click.option("--retry-failed", is_flag=True, help="Also run failed cells again.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="List the cells with their states, and estimate the time that is left from a few training steps, without "
    "running the sweep.",
)
@click.option(
    "--status", is_flag=True, help="Only show the sweep's progress. Another process may be running the sweep."
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Run or list only these cells. NAME is a method, a cell, a name under `runs` in the sweep file, or a pattern "
    "such as '*lr=0.1*'. May be repeated.",
)
@JSON
def sweep(
    file: str,
    grid: dict[str, list[Any]],
    seeds: str | None,
    sets: tuple[str, ...],
    parallel: int | None,
    retry_failed: bool,
    dry_run: bool,
    status: bool,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the scenarios of a sweep file, or of a grid of settings.

    Each of these scenarios is called a cell. Repeating the command skips finished cells, resumes interrupted ones and
    runs the rest. A failed cell does not stop the others. Exit code 1: a cell is not done, or results could not be
    copied to an address. With --dry-run, exit code 2: a cell can never run, for example because its data is damaged.
    Data that is not downloaded yet is not an error.

    Cells run as Ray tasks, several at a time. A cell runs with client actors instead if it has `backend: ray`, or a
    number of client actors or `overrides` in `resources`, or is too large for a task's share of the memory. Only
    one such cell runs at a time.

    If the file has `tune`, trials on other seeds run first. Then the cells run with the values of the best trials.
    `raysim describe sweep` and `raysim describe tune` explain the keys of a sweep file.

    \b
    Examples:
        raysim sweep sweeps/tuned
        raysim sweep quickstart --grid algorithm.name=fedgh,fedproto,standalone --seeds 1..5
        raysim sweep sweeps/digits --only fedgh
    """
    if as_json and not status:
        raise click.UsageError("--json requires --status: add --status, or leave out --json.")
    from raysim.study.cells import chosen_cells
    from raysim.study.definition import load_sweep
    from raysim.study.display import run_and_show

    loaded = load_sweep(file, grid=grid, seeds=seeds, sets=sets)
    listed = {cell.name for cell in chosen_cells(loaded, only)}
    if status:
        _show_status(loaded, listed, as_json)
    elif dry_run:
        _dry_run(file, loaded, listed, parallel or os.cpu_count() or 1, retry_failed)
    else:
        sys.exit(run_and_show(loaded, parallel, retry_failed, only))


def _show_status(loaded: Sweep, listed: Collection[str], as_json: bool) -> None:
    """Print the states of the cells in `listed`, and the progress of their tuning."""
    from raysim.study.copies import download
    from raysim.study.status import print_status, status_json, status_of

    for sweep in (loaded, *([loaded.tuning.sweep] if loaded.tuning is not None else [])):
        download(sweep)
    states, progress = status_of(loaded, listed)
    if as_json:
        print_json(status_json(loaded, states, progress))
    else:
        print_status(states, progress)


def _dry_run(file: str, loaded: Sweep, listed: Collection[str], parallel: int, retry_failed: bool) -> None:
    """Print the cells in `listed` with their states, and the estimated remaining time.

    Raises `ScenarioError`, after printing, if one of them can never run.
    """
    from raysim.common.errors import ScenarioError, UnavailableError
    from raysim.study.status import print_plan

    errors = print_plan(loaded, listed, parallel, retry_failed)
    for name, error in errors.items():
        click.echo(f"note: {name}: {error}")
    for name, error in errors.items():
        if isinstance(error, ScenarioError) and not isinstance(error, UnavailableError):
            raise ScenarioError(f"{file}: the cell {name!r} can never run: {error}")


BASELINE = click.option(
    "--baseline",
    metavar="METHOD",
    help="Also show paired differences to this method, or to the runs with this name. Default: `baseline` of the sweep "
    "file, if the runs have one.",
)
SELECT = click.option(
    "--select",
    default="last",
    show_default=True,
    type=click.Choice(["last", "val", "val_current"]),
    help="Round to compare. last: the last round of each run. val: each run's round with the greatest accuracy/val. "
    "val_current: each run's round with the greatest accuracy/val_current. `raysim describe NAME` explains these "
    "accuracies.",
)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path())
@click.option(
    "--target",
    "targets",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Target accuracy, greater than 0 and at most 1: also show the rounds, MiB and FLOP needed to reach it. With "
    "--select val or val_current, the validation accuracy must reach it. May be repeated. Default: `targets` of the "
    "sweep file.",
)
@BASELINE
@SELECT
@metric("accuracy/all; with --select val_current accuracy/all_current")
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    help="Also write tables (.tex, .csv) and figures (.svg, .png, .pdf) to FOLDER.",
)
@click.option(
    "--columns",
    metavar="NAME,NAME",
    help="Columns of the printed table and of the LaTeX table, such as last,rounds_to_0.5,n. A measure, "
    "for example last, also has the columns last.difference, last.p_holm and last.published.",
)
@click.option(
    "--spread",
    default="interval",
    show_default=True,
    type=click.Choice(["interval", "std"]),
    help="The number after ± in tables. interval: half of the 95% confidence interval over seeds. std: the standard "
    "deviation over seeds. Figures always show intervals.",
)
@width("two-columns")
@JSON
def compare(
    runs: tuple[str, ...],
    targets: tuple[float, ...],
    baseline: str | None,
    select: str,
    metric: str | None,
    output: str | None,
    columns: str | None,
    spread: Spread,
    width: Width,
    as_json: bool,
) -> None:
    """Compare runs, with 95% confidence intervals over seeds.

    Runs that differ only in their seed form a variant. RUNS are run folders, folders that contain run folders (such as
    a sweep's folder), or sweep files.

    \b
    Example:
        raysim compare runs/quickstart --baseline standalone --target 0.9 -o comparison
        raysim compare runs/quickstart --columns last,worst_decile,total_mib -o comparison
    """
    from raysim.study.compare import compare as of
    from raysim.study.pictures import draw
    from raysim.study.tables import chosen_columns, print_comparison, write_tables

    found = of(
        *folders_of(runs), targets=targets or None, baseline=baseline, select=select, metric=metric, spread=spread
    )
    shown = None if columns is None else chosen_columns(found, [name.strip() for name in columns.split(",")])
    if not as_json:
        print_comparison(found, shown=shown)
    files = []
    if output is not None:
        files = [*write_tables(found, Path(output), shown), *draw(found, Path(output), width=width)]
    if as_json:
        measures = found.measures if shown is None else [column.measure for column in shown]
        records = [record for record in found.records if record["measure"] in measures]
        facts = {
            name: getattr(found, name) for name in ("select", "main", "baseline", "targets", "tasks", "runs", "notes")
        }
        print_json({**facts, "measures": records, "files": [path.absolute() for path in files]})
    else:
        for path in files:
            click.echo(path)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path())
@BASELINE
@SELECT
@metric("accuracy/all; with --select val_current accuracy/all_current")
@click.option("-o", "--output", default="report.html", show_default=True, metavar="FILE", help="The HTML file.")
def report(runs: tuple[str, ...], baseline: str | None, select: str, metric: str | None, output: str) -> None:
    """Write a comparison of runs as one self-contained HTML file.

    The file has a section for each folder or file in RUNS. RUNS are run folders, folders that contain run folders (such
    as a sweep's folder), or sweep files.

    \b
    Example:
        raysim report runs/digits --baseline standalone -o digits.html
    """
    from raysim.study.report import report as write

    click.echo(write(*folders_of(runs), output=output, baseline=baseline, select=select, metric=metric))


# The keys of `study.pictures.KINDS`, repeated because an import of that module imports torch and delays `raysim
# --help`.
PLOTS = ("curves", "bytes", "virtual-time", "boxes", "clients", "confusion")


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path())
@click.option(
    "--kind", default="curves", show_default=True, type=click.Choice(PLOTS), help="Kind of figure, see above."
)
@metric("accuracy/all")
@click.option(
    "--ymin",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 100, max_open=True),
    metavar="PERCENT",
    help="Start of the accuracy axis, to distinguish curves that are close together.",
)
@width("one-column")
@click.option(
    "-o",
    "--output",
    default="plot.pdf",
    show_default=True,
    metavar="FILE",
    help="Picture to write: .png, .svg or .pdf.",
)
def plot(runs: tuple[str, ...], kind: str, metric: str | None, ymin: float, width: Width, output: str) -> None:
    """Draw a figure of one or several RUNs for a paper or a screen.

    A RUN is a run's folder, or the id of a run below ./runs. The run may still be in progress. For a sweep, give the
    sweep file, or a folder that contains run folders: curves and boxes then have a colour for each variant, whose runs
    differ only in their seed. Curves are means over seeds, with 95% confidence intervals from three seeds on; boxes
    pool the clients of all seeds. Other kinds have a panel per run. Runs without the values
    that a kind shows are left out. Runs of a sweep are labelled with their names in the sweep.

    \b
    Kinds:
        curves        accuracy over rounds; for a single run, also the accuracy of the participants and
                      of the worst tenth of the clients
        bytes         accuracy over the bytes sent in both directions
        virtual-time  accuracy over virtual time, where the scenario has `system`
        boxes         a box plot of the clients' last accuracies
        clients       a bar per client: its last accuracy
        confusion     confusion matrix of the last checkpoint, in % of each true class: each client's
                      network predicts the client's own test samples; the counts of all clients are
                      added

    \b
    Example:
        raysim plot 20261121-062424-3099 20261121-071512-9a01 --kind boxes -o boxes.pdf
        raysim plot runs/digits/fedgh-seed-1-* runs/digits/fedproto-seed-1-* -o fedgh.pdf
    """
    from raysim.results.figures import save_picture
    from raysim.study.pictures import plot as draw

    figure = draw([str(folder) for folder in folders_of(runs)], kind, width, metric or OWN.metric)
    if ymin:
        figure.axes[0].set_ylim(bottom=ymin / 100)
    click.echo(save_picture(figure, output))


@click.command()
@click.argument("run", metavar="RUN", type=click.Path())
@click.option(
    "--round",
    "round_",
    metavar="T|best_val",
    help="Use the checkpoint after this round. best_val is the round with the greatest validation accuracy. Its "
    "checkpoint is kept if checkpoint.keep contains best_val. Default: the latest round that has one.",
)
@click.option("-o", "--output", required=True, metavar="FOLDER", help="Folder for the files.")
def export(run: str, round_: str | None, output: str) -> None:
    """Write the clients' networks of a RUN as safetensors files.

    Plain PyTorch can load the files. client-K.safetensors contains the network of client K. Its metadata name the
    architecture, `feature_dim`, the number of classes, the round and how samples are normalised.

    \b
    Example:
        raysim export runs/quickstart/20261121-062424-3099 -o networks
    """
    from raysim.runs.run import Run

    number: Any = int(round_) if round_ and round_.isdecimal() else round_
    Run(run).export(output, number)
    click.echo(output)


COMMANDS = (sweep, compare, report, plot, export)
