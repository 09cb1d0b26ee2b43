"""Commands that inspect a run: plot, tsne, attack, tree, export.

They are commands rather than scripts in `examples/`, because an installed raysim does not contain that folder, and two
of them reproduce published results (FedRAL's Table 5, HKS's Figure 3) with tested numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import METRICS, WIDTH, complete_folders, folders_of, metric
from raysim.cli.output import echo

if TYPE_CHECKING:
    from raysim.inspection.attack import Convention
    from raysim.inspection.transmission import Knowledge
    from raysim.report.figures import Width
    from raysim.runs.opened import Round


def _ids(context: click.Context, parameter: click.Parameter, given: str) -> list[int]:
    """Parse client ids such as 0,5,9, without repetitions."""
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{given!r} given; give client ids separated by commas, such as 0,5,9")
    return list(dict.fromkeys(map(int, parts)))


def _output(name: str) -> Callable[[Any], Any]:
    return click.option(
        "-o", "--output", default=name, show_default=True, metavar="FILE", help="Picture to write: .png, .svg or .pdf."
    )


SEED = click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, 2**32 - 1),  # scikit-learn's t-SNE accepts no greater one
    help="Seed of this command's random choices.",
)


def _saved_round(context: click.Context, parameter: click.Parameter, given: str | None) -> Any:
    """Parse the number of a round, or best_val."""
    if given is None or given == "best_val":
        return given
    if not (given.isascii() and given.isdecimal() and len(given) < 10):  # Python refuses more than 4300 digits
        raise click.BadParameter(f"{given!r} given; give the number of a round, or best_val")
    return int(given)


def _round(default: str) -> Callable[[Any], Any]:
    return click.option(
        "--round",
        "round_",
        callback=_saved_round,
        metavar="T|best_val",
        help="Use the checkpoint after this round. best_val is the round with the greatest validation accuracy. Its "
        f"checkpoint is kept if checkpoint.keep contains best_val. Default: {default}.",
    )


PART = click.Choice(["train", "val", "test"])
# The keys of `run_plots.KINDS`, which would import torch: `raysim --help` takes no second.
PLOTS = ("curves", "bytes", "virtual-time", "boxes", "clients", "confusion")


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_folders)
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
    help="Start of the accuracy axis of curves, to distinguish curves that are close together.",
)
@WIDTH
@_output("plot.pdf")
def plot(runs: tuple[str, ...], kind: str, metric: str | None, ymin: float, width: Width, output: str) -> None:
    """Draw a figure of one or several RUNs for a paper or a screen.

    A RUN is a run's folder, or the id of a run below ./runs. The run may still be in progress. For a sweep, give the
    sweep file, or a folder that contains run folders: curves and boxes then have a colour for each variant, whose runs
    differ only in their seed. Curves are means over seeds, with 95% confidence intervals from three seeds on; boxes
    pool the clients of all seeds. Other kinds have a panel per run. Runs of a sweep are labelled with their names in
    the sweep. A figure shows at most 40 runs or variants.

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
    from raysim.comparison.plotted import draw_variants, runs_to_plot
    from raysim.inspection.run_plots import draw, output_file, save

    file = output_file(output, kind, ymin)
    found, shown = runs_to_plot(map(str, folders_of(runs))), metric or METRICS[0]
    # Runs that are given one by one are drawn one by one.
    figure = draw_variants(found, kind, width, shown) if len(found) > len(runs) else None
    if figure is None:
        folders, variants = zip(*found, strict=True)
        figure = draw(folders, kind, width, shown, variants)
    echo(save(figure, file, ymin))


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_folders)
@click.option(
    "--clients", default="0,1,2", show_default=True, callback=_ids, metavar="K,K", help="Clients whose samples to show."
)
@click.option("--part", default="test", show_default=True, type=PART, help="Which part of the samples to show.")
@_round("the latest round that has one")
@SEED
@_output("tsne.png")
def tsne(runs: tuple[str, ...], clients: list[int], part: str, round_: Round, seed: int, output: str) -> None:
    """Draw clients' representations in the plane by t-SNE.

    The figure has one panel per RUN. Each client's network maps the client's own samples. Colours are classes, markers
    are clients.

    \b
    Example:
        raysim tsne 20261121-062424-3099 20261121-071512-9a01 --clients 0,5,9 -o tsne.png
    """
    from raysim.inspection.tsne import draw_tsne

    echo(draw_tsne(runs, clients, part, output, seed, round_))


@click.command()
@click.argument("run", metavar="RUN", shell_complete=complete_folders)
@click.option(
    "--pairs", default=20, show_default=True, type=click.IntRange(min=1), help="Number of random (client, image) pairs."
)
@_round("round 10 if it has a checkpoint, else the latest round that has one")
@click.option(
    "--knowledge",
    default="white",
    show_default=True,
    type=click.Choice(["white", "blind"]),
    help="What the attacker knows besides the server's messages. white: the client's private weights. blind: nothing "
    "else; the attack uses the weights of a new network of the smallest architecture.",
)
@click.option(
    "--psnr",
    "convention",
    default="psnr",
    show_default=True,
    type=click.Choice(["psnr", "pfllib"]),
    help="Definition of the PSNR. pfllib: divide the mean squared error by 3, as PFLlib does; this adds 4.77 dB.",
)
@SEED
@_output("attack.png")
def attack(
    run: str, pairs: int, round_: Round, knowledge: Knowledge, convention: Convention, seed: int, output: str
) -> None:
    """Try to reconstruct clients' images from their uploads.

    The attack is gradient inversion (DLG); its success is measured in PSNR. Random clients train one step of plain SGD
    on one random image each, and upload what their method uploads. The attacker varies an image until its model of the
    client would upload the same. A higher PSNR means that more was reconstructed; for comparison, the command also
    prints the PSNR of unrelated images and of random pixels. Networks with BatchNorm cannot train on one image, so
    clients with such networks are attacked only if their method uploads outputs of the network instead of its weights.

    \b
    Example:
        raysim attack runs/quickstart/20261121-062424-3099 --pairs 5 -o attack.png
    """
    from raysim.inspection.attack import attack as run_attack
    from raysim.inspection.attack import draw_attack
    from raysim.report.figures import picture_file

    picture_file(output)
    found = run_attack(
        run,
        round=round_,
        pairs=pairs,
        knowledge=knowledge,
        convention=convention,
        seed=seed,
        progress=lambda done: echo(f"image {done} of {pairs}", err=True),
    )
    echo("client  sample  PSNR dB  relative distance")
    for one, value in zip(found.images, found.psnrs, strict=True):
        echo(f"{one.client:6d}  {one.sample:6d}  {value:7.2f}  {one.distance:.1e}")
    when = f"training in round {found.round}, from the state after round {found.round - 1}"
    echo(f"{found.run}, {when}, {found.knowledge} attacker, {len(found.images)} images")
    echo(f"mean PSNR of reconstructed images         {found.mean:6.2f} dB")
    echo(f"for comparison, PSNR of unrelated images  {found.unrelated:6.2f} dB")
    echo(f"for comparison, PSNR of random pixels     {found.start:6.2f} dB")
    echo(draw_attack(found, output))


@click.command()
@click.argument("run", metavar="RUN", shell_complete=complete_folders)
@click.option(
    "--sample", required=True, type=click.IntRange(min=0), help="Position in the data set, as in partition.parquet."
)
@_round("the latest round that has one")
@_output("tree.png")
def tree(run: str, sample: int, round_: Round, output: str) -> None:
    """Show the clusters that contain a sample in a run of HKS.

    The clusters are printed from the sample's first merge to the top. The sample's client learned from the mean logits
    of one of these clusters, or of all of them. The picture shows which samples each level adds to the cluster of the
    chosen sample.

    \b
    Example:
        raysim tree runs/hks/20261121-062424-3099 --sample 17 -o tree.png
    """
    from raysim.inspection.tree import draw_tree, sample_tree
    from raysim.report.figures import picture_file

    picture_file(output)
    found = sample_tree(run, sample, round_)
    echo(f"{found.run.name}, after round {found.round}: sample {sample} of client {found.client}, class {found.label}")
    if not found.clusters:
        echo("This sample is in no cluster yet, so its client trains on the sample's own logits.")
    else:
        echo("cluster  samples  clients  predicted class  classes")
    for level, cluster in enumerate(found.clusters, 1):
        echo(f"{level:7d}  {len(cluster.samples):7d}  {cluster.clients:7d}  {cluster.predicted:<15}  {cluster.named}")
    echo(draw_tree(found, output))


@click.command()
@click.argument("run", metavar="RUN", shell_complete=complete_folders)
@_round("the latest round that has one")
@click.option("-o", "--output", required=True, metavar="FOLDER", help="Folder for the files.")
def export(run: str, round_: Round, output: str) -> None:
    """Write the clients' networks of a RUN as safetensors files.

    Plain PyTorch can load the files. client-K.safetensors contains the network of client K. Its metadata name the
    architecture, `feature_dim`, the number of classes, the round and how samples are normalised.

    \b
    Example:
        raysim export runs/quickstart/20261121-062424-3099 -o networks
    """
    from raysim.runs.run import Run

    Run(run).export(output, round_)
    echo(output)


COMMANDS = (plot, tsne, attack, tree, export)
