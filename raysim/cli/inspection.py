"""Commands that read a finished or running run: plot, export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import folders_of, metric, width
from raysim.results.accuracies import OWN

if TYPE_CHECKING:
    from raysim.results.figures import Width


# The keys of `comparison.pictures.KINDS`, repeated because an import of that module imports torch and delays `raysim
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


COMMANDS = (plot, export)
