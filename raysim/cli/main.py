"""The `raysim` command, with the commands that run and check scenarios. Other files of this package have the rest.

docs/guide.md lists the exit codes.
"""

from __future__ import annotations

import atexit
import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.comparison import COMMANDS as COMPARISON_COMMANDS
from raysim.cli.jobs import CODE_CHANGED
from raysim.cli.jobs import COMMANDS as JOB_COMMANDS
from raysim.cli.options import JSON, KINDS, SCENARIO, SETS, print_json
from raysim.cli.starting import COMMANDS as STARTING_COMMANDS
from raysim.common.errors import HookError, RaysimError
from raysim.common.files import reason
from raysim.plugins.calling import own_line, own_traceback
from raysim.runs.signals import interruptible

if TYPE_CHECKING:
    from raysim.common.results import Summary

QUIET = click.option("--quiet", is_flag=True, help="Show no progress, only the closing table.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="raysim", message="%(prog)s %(version)s")
def cli() -> None:
    """Simulate model-heterogeneous federated learning on Ray.

    \b
    A first run, on data that comes with the dependencies:
        raysim launch quickstart
    The same with another method, and its results in the browser:
        raysim launch quickstart --set algorithm.name=lg_fedavg
        raysim ui
    """


@cli.command()
@SCENARIO
@SETS
@click.option(
    "--dry-run", is_flag=True, help="Show the placement of clients and the estimated time and memory, without running."
)
@QUIET
def launch(scenario: str, sets: tuple[str, ...], dry_run: bool, quiet: bool) -> None:
    """Run a scenario to its end.

    Results go to a folder under ./runs (or `output`) and to MLflow: rounds.parquet has a row per round, clients.parquet
    has a row per round and client that took part in it or was tested, and summary.json has the outcome.

    \b
    Examples:
        raysim launch quickstart
        raysim launch scenarios/cifar100_hetero.yaml --set rounds=3 --set data.root=path/to/data
        raysim launch quickstart --set 'algorithm={name: fedgh, server_epochs: 5}'
        raysim launch quickstart --set backend=in_process   # without Ray, to step through
    """
    from raysim.scenario.parse import parse_scenario

    parsed = parse_scenario(scenario, sets)  # before the imports below, which take seconds, so that errors come at once
    if dry_run:
        from raysim.cli.show import show_preview
        from raysim.runs.preview import preview
        from raysim.scenario.scenario import Scenario

        checked = Scenario.of(parsed)
        show_preview(preview(checked), checked)
    else:
        from raysim.runs.run import run

        _close(run(parsed, quiet=quiet).summary)


@cli.command("resume")
@click.argument("run_", metavar="RUN", type=click.Path())
@SETS
@QUIET
@CODE_CHANGED
def resume_(run_: str, sets: tuple[str, ...], quiet: bool, code_changed: bool) -> None:
    """Resume a run that was stopped, failed, or lost its machine.

    The run continues from its last checkpoint. RUN is a run's folder, or the id of a run below ./runs. The result
    equals that of an uninterrupted run, bit for bit. Overrides may raise `rounds`, and change resources and
    other keys that cannot alter the result. Changes that would alter it, including those of the method's code, are
    refused.

    \b
    Examples:
        raysim resume runs/quickstart/20261121-101500-ab12
        raysim resume 20261121-101500-ab12 --set resources.actors=4
    """
    from raysim.runs.run import Run

    _close(Run(run_).resume(sets, quiet=quiet, code_changed=code_changed).summary)


@cli.command()
@SCENARIO
@SETS
@click.option(
    "--actors", default="1,4", show_default=True, help="Numbers of client actors to try, separated by commas."
)
@click.option(
    "--kill",
    is_flag=True,
    help="Also run the scenario on Ray once more, and kill an actor during a round. The results must stay the same.",
)
def verify(scenario: str, sets: tuple[str, ...], actors: str, kill: bool) -> None:
    """Run a scenario on several backends, and compare all states.

    States of clients and server are compared bit by bit after every round. The scenario runs once in this process, and
    once on Ray for each number of actors. If states differ, the command names the first round, client and tensor that
    differ. Choose few rounds: the results of these runs are discarded.

    \b
    Example:
        raysim verify quickstart --set rounds=3 --actors 1,3 --kill
    """
    from raysim.cli.show import show_traces
    from raysim.runs.verify import verify as compare
    from raysim.scenario.parse import parse_scenario

    numbers = [int(part) for part in actors.split(",") if part.strip().isdecimal() and int(part) > 0]
    if len(numbers) != len(actors.split(",")):
        text = f"{actors!r} given; give positive whole numbers, separated by commas, such as 1,4"
        raise click.BadParameter(text, param_hint="--actors")
    traces = compare(parse_scenario(scenario, sets), numbers, kill, lambda text: click.echo(text, err=True))
    show_traces(traces)
    sys.exit(1 if any(trace.difference for trace in traces) else 0)


@cli.command()
@SCENARIO
@SETS
@JSON
def validate(scenario: str, sets: tuple[str, ...], as_json: bool) -> None:
    """Check a scenario without running it, and print its settings.

    The printed settings include every default. Your own data files (`data.path`) are read and checked; `launch` checks
    the files of published data sets and free memory.
    Custom code that the scenario names is imported and tried, as in `launch --dry-run`: methods are created, models
    take a training step, data functions load their data, and options of trackers are checked.
    """
    from raysim.runs.preview import check_code
    from raysim.scenario.scenario import Scenario

    checked = Scenario.load(scenario, sets)
    check_code(checked)
    verdict = "valid; data files were not checked, see `raysim launch --dry-run`"
    if checked.files is not None:
        verdict = "valid, and the data can be read; `raysim launch --dry-run` also checks the memory"
    code = [str(Path(path).absolute()) for path in checked.own_code.paths]
    if as_json:
        facts = {"settings": checked.resolved, "code": code, "notes": checked.warnings}
        print_json({"scenario": Path(scenario).absolute(), "verdict": verdict, **facts})
        return
    click.echo(checked.resolved_yaml(), nl=False)
    if code:
        click.echo(f"note: the scenario runs code from {', '.join(code)}", err=True)
    for warning in checked.warnings:
        click.echo(f"note: {warning}", err=True)
    click.echo(f"{scenario}: {verdict}", err=True)


@cli.command("list")
@click.argument("what", type=click.Choice([*KINDS, "methods", "all"]), default="all")
@JSON
def list_(what: str, as_json: bool) -> None:
    """List methods, models, data sets and other choices.

    The list also contains metrics, measures and bundled scenarios. `methods` is another word for `algorithms`.
    """
    from raysim.cli.description import entries_of, show_list

    if as_json:
        print_json(entries_of(what))
    else:
        show_list(entries_of(what))


@cli.command()
@click.argument("name")
def describe(name: str) -> None:
    """Explain an algorithm, a metric, a scenario key, or a file.

    NAME can also be a model, dataset, partition, or section of a scenario: any name that `raysim list` shows.

    For an algorithm: its paper, whether clients' architectures may differ, its messages, and every field with default,
    range and meaning. NAME may also be a kind, to explain all of its entries: `algorithms`, `models`, `datasets`,
    `partitions`, `selections`, `schedules`, `attacks`, `rules`, `mixings`, `discounts`, `trackers`, `scenarios`,
    `metrics` or `measures`. `clients` explains a section of a scenario, and `clients.count` one of its keys. With
    `clients.parquet` or `rounds.parquet`, the columns of that file are explained; with `sweep` or `tune`, the keys
    of a sweep file. If NAME is a scenario or a sweep (its file, or a bundled name such as `quickstart`), its opening
    comment and its keys are printed.
    """
    from raysim.cli.description import show_description

    show_description(name)


@cli.command()
def schema() -> None:
    """Print the JSON schema of scenario files, for editors.

    \b
    With the YAML extension of VS Code, put this as a scenario's first line:
        # yaml-language-server: $schema=./schema.json
    """
    from raysim.scenario.json_schema import scenario_schema

    click.echo(json.dumps(scenario_schema(), indent=2))


@cli.command()
@click.option("--uri", help="MLflow store or server. Default: MLFLOW_TRACKING_URI, else ./mlflow.db.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. If you change it, other machines may reach the UI.",
)
@click.option("--port", default=5000, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
def ui(uri: str | None, host: str, port: int) -> None:
    """Start the MLflow UI for the store with your runs.

    The command prints the pages to open; Ctrl-C stops it.
    """
    from raysim.results.ui import serve_ui

    sys.exit(serve_ui(uri, host, port))


for command in (*STARTING_COMMANDS, *COMPARISON_COMMANDS, *JOB_COMMANDS):
    cli.add_command(command)


@cli.command()
@JSON
def doctor(as_json: bool) -> None:
    """Show versions, GPUs, limits and addresses of this machine.

    Exit code 1: `raysim launch` would fail, because MLflow or the Ray cluster does not answer.
    """
    from raysim.cli.show import show_finding
    from raysim.runs import doctor

    found = doctor.findings()
    if as_json:
        print_json(found)
    else:
        for finding in found:
            show_finding(finding)
    sys.exit(1 if any(finding.verdict == "problem" for finding in found) else 0)


def _close(summary: Summary) -> None:
    """Print the closing table of a finished run, and where to see the run in the browser."""
    from raysim.results.table import print_closing_table

    print_closing_table(summary)
    if where := summary.get("mlflow"):
        click.echo(f"See the run in the browser:  {where}")


def _skip_last_collection() -> None:
    """Exempt all objects from garbage collection at exit, which takes half a second with torch and MLflow.

    Triton, which torchvision's networks import, needs that collection: without it, its bindings print 30 lines about
    leaked functions.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def _traceback(error: RaysimError) -> str:
    """Return Python's traceback if the user's code raised the cause of an error; otherwise ""."""
    if isinstance(error, HookError):
        return error.trace
    cause = error.__cause__
    if isinstance(cause, SyntaxError) or (cause is not None and own_line(cause)):
        return own_traceback(cause)
    return ""


def main(args: Sequence[str] | None = None) -> Any:
    """Run the command. Errors are one line and an exit code; only errors in custom code also show a traceback."""
    atexit.register(_skip_last_collection)
    try:
        with interruptible():  # SIGTERM ends a command like Ctrl-C
            cli.main(args=None if args is None else list(args), prog_name="raysim", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("raysim: stopped", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RaysimError as error:
        click.echo(f"raysim: {error}", err=True)
        if trace := _traceback(error):
            click.echo(trace, err=True, nl=False)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None:
            raise
        # A file or folder that the user named is missing, has a name that is too long, or cannot be written.
        click.echo(f"raysim: {error.filename}: {reason(error)}; give another file or folder", err=True)
        sys.exit(2)
