"""The commands for runs on a cluster: submit, status, logs, stop, jobs, fetch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from raysim.jobs.cluster import Cluster
    from raysim.jobs.watch import Job

ID = click.argument("job", metavar="ID")
ADDRESS = click.option(
    "--address",
    metavar="URL",
    help="The cluster's dashboard. Default: RAY_API_SERVER_ADDRESS or RAY_DASHBOARD_ADDRESS, then http://127.0.0.1:8265.",
)


@click.command()
@click.argument("scenario", type=click.Path())
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the scenario, as for launch. May be given often.",
)
@ADDRESS
@click.option("--wait", is_flag=True, help="Show what the job prints until it ends, and end with its exit code.")
@click.option("--id", "job", metavar="ID", help="The job's id. Default: made of the scenario's name and the time.")
@click.option(
    "--env",
    multiple=True,
    metavar="KEY=VALUE",
    help="Environment variable of the job and its actors, for example RAYSIM_DATA=/data; whoever sees the dashboard "
    "can read it. May be given often.",
)
def submit(
    scenario: str, sets: tuple[str, ...], address: str | None, wait: bool, job: str | None, env: tuple[str, ...]
) -> None:
    """Run a scenario on a Ray cluster.

    The scenario is checked here; then it and the code (raysim, algorithms) are sent to the cluster's dashboard, and a
    driver on the head node runs it. Data is not sent: name its place on the cluster in data.root or RAYSIM_DATA.
    Relative paths of the scenario, such as the results in ./runs, mean ~/raysim on the head node.

    \b
    Examples:
        raysim submit scenarios/quickstart.yaml --address http://head:8265
        raysim submit scenarios/quickstart.yaml --set rounds=3 --wait
        raysim submit scenarios/cifar100_hetero.yaml --env RAYSIM_DATA=/data --set output=/shared/runs
    """
    from raysim.jobs.cluster import connect, find_address
    from raysim.jobs.submit import new_id, parse_env
    from raysim.jobs.submit import submit as submit_job
    from raysim.launch.check import check
    from raysim.scenario.load import load_scenario

    # Everything that can be known to be wrong here is told before anybody is asked.
    checked = check(load_scenario(scenario, sets))
    variables = parse_env(env)
    job = new_id(checked.loaded.scenario.name, job)
    cluster = connect(find_address(address))
    for note in (*cluster.notes, *submit_job(cluster, Path(scenario), sets, checked, variables, job)):
        click.echo(f"note: {note}", err=True)
    click.echo(f"submitted {job}", err=wait)
    if not wait:
        rest = "" if address is None else f" --address {address}"
        click.echo(f"  follow  raysim logs {job} --follow{rest}")
        click.echo(f"  status  raysim status {job}{rest}")
        click.echo(f"  stop    raysim stop {job}{rest}")
        click.echo(f"  fetch   raysim fetch {job}{rest}")
        return
    ended = _follow(cluster, job)
    if ended.code:
        _say_end(cluster, ended)
    sys.exit(ended.code)


@click.command()
@ID
@ADDRESS
def status(job: str, address: str | None) -> None:
    """Show how a job stands: its state, progress or result."""
    from raysim.jobs.watch import look

    found, told = look(_cluster(address), job)
    click.echo(_columns(_status_rows(found, told)))


@click.command()
@ID
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends; Ctrl-C ends the following, not the job.")
@ADDRESS
def logs(job: str, follow: bool, address: str | None) -> None:
    """Print what a job has printed."""
    from raysim.jobs.marks import Unmarked

    cluster = _cluster(address)
    if follow:
        _follow(cluster, job)
        return
    cluster.info(job)
    lines = Unmarked()
    click.echo(lines.feed(cluster.log(job)) + lines.end(), nl=False)


@click.command()
@ID
@ADDRESS
def stop(job: str, address: str | None) -> None:
    """End a job; what its run has done until then is kept."""
    from raysim.jobs.watch import look
    from raysim.jobs.watch import stop as stop_job

    cluster = _cluster(address)
    before, _ = look(cluster, job)
    if before.ended:
        click.echo(f"{job} had ended already: {before.state}")
        return
    stop_job(cluster, job)
    after, told = look(cluster, job)
    rounds = told.summary.get("rounds")
    if rounds is not None:
        kept = f"; {rounds} rounds are kept in {told.run_folder} (raysim fetch {job})"
    else:
        kept = f"; what was done is in {told.run_folder}" if told.run_folder else "; its run had not begun"
    click.echo(f"{job}: {after.state}{kept}")


@click.command()
@ADDRESS
def jobs(address: str | None) -> None:
    """List raysim's jobs on the cluster, newest first."""
    from raysim.jobs.watch import Job
    from raysim.report.units import human_seconds

    found = [Job.of(info) for info in _cluster(address).jobs()]
    if not found:
        click.echo("no jobs")
        return
    rows = [
        (job.id, job.state, job.name, job.algorithm, _when(job.began_s), human_seconds(job.seconds)) for job in found
    ]
    click.echo(_columns([("id", "state", "scenario", "algorithm", "submitted", "time"), *rows]))


@click.command()
@ID
@click.option(
    "--output", "-o", type=click.Path(file_okay=False), help="Folder to put it in. Default: ./runs/<scenario>/<run id>."
)
@click.option("--checkpoints", is_flag=True, help="Bring the checkpoints as well.")
@ADDRESS
def fetch(job: str, output: str | None, checkpoints: bool, address: str | None) -> None:
    """Bring a job's run folder here, through the dashboard alone.

    It can be fetched while the run goes on, and again when it has ended.
    """
    from raysim.jobs.fetch import fetch as fetch_folder

    target, count = fetch_folder(_cluster(address), job, None if output is None else Path(output), checkpoints)
    click.echo(f"{target}: {count} files")


def _cluster(address: str | None) -> Cluster:
    from raysim.jobs.cluster import connect, find_address

    return connect(find_address(address))


def _follow(cluster: Cluster, job: str) -> Job:
    from raysim.jobs.watch import follow

    def write(text: str) -> None:
        if text:
            click.echo(text, nl=False)

    try:
        return follow(cluster, job, write)
    except KeyboardInterrupt:
        click.echo(f"{job} goes on without being watched (raysim stop {job} ends it)", err=True)
        sys.exit(130)


def _say_end(cluster: Cluster, job: Job) -> None:
    """What a job that did not end well did not say itself."""
    from raysim.jobs.watch import look, why

    _, told = look(cluster, job.id)
    if not told.problem:
        click.echo(
            f"raysim: {job.id}: {job.state}: {'stopped' if job.state == 'STOPPED' else why(job, told)}", err=True
        )


def _status_rows(job: Job, told: Any) -> list[tuple[str, str]]:
    from raysim.jobs.watch import why
    from raysim.report.table import rows
    from raysim.report.units import human_seconds

    found = [
        ("job", job.id),
        ("job state", job.state),
        ("submitted", f"{_when(job.began_s)}, {human_seconds(job.seconds)} {'long' if job.ended else 'ago'}"),
    ]
    if job.state == "FAILED":
        found.append(("why", why(job, told)))
    if told.summary:
        return [*found, *rows(told.summary)]
    found += [("scenario", ", ".join(filter(None, (job.name, job.algorithm))))]
    if told.progress and not job.ended:
        found.append(("progress", told.progress))
    if told.run_folder:
        found.append(("results", told.run_folder))
    return found


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines; never folded, as ids and paths are for copying."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _when(seconds: float) -> str:
    from datetime import datetime

    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


COMMANDS: list[click.Command] = [submit, status, logs, stop, jobs, fetch]
"""For the group in `raysim.cli.main`."""
