"""Commands for runs on a cluster: submit, status, logs, stop, jobs, fetch. `submit` prints the id of the job."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from raysim.cli.options import JSON, SETS, ScenarioFile, print_json
from raysim.common.logs import show_logs
from raysim.jobs import cluster, job_log
from raysim.jobs.entry import STOP_S
from raysim.results.table import summary_rows
from raysim.results.units import human_seconds

DEFAULT_ADDRESS = "http://127.0.0.1:8265"


def _url(context: click.Context, parameter: click.Parameter, given: str) -> str:
    return (given if "://" in given else f"http://{given}").rstrip("/")


ID = click.argument("job", metavar="ID")
ADDRESS = click.option(
    "--address",
    metavar="URL",
    envvar=["RAY_API_SERVER_ADDRESS", "RAY_DASHBOARD_ADDRESS"],
    default=DEFAULT_ADDRESS,
    callback=_url,
    help="Address of the cluster's Ray dashboard, such as http://HOST:8265. Default: the environment variable "
    "RAY_API_SERVER_ADDRESS or RAY_DASHBOARD_ADDRESS; if neither is set, http://127.0.0.1:8265.",
)
CODE_CHANGED = click.option(
    "--code-changed",
    is_flag=True,
    help="Resume even if the code of the method or of raysim has changed since the run began. The change is recorded "
    "in summary.json.",
)


@click.command()
@click.argument("scenario", type=ScenarioFile(), required=False)
@SETS
@ADDRESS
@click.option(
    "--wait",
    is_flag=True,
    help="Print the job's output until it ends, and exit with the job's exit code. Ctrl-C ends the output, not the "
    "job.",
)
@click.option(
    "--resume",
    "run_",
    metavar="RUN",
    help="Resume a run from its last checkpoint. RUN is the id of the run's job, or the run's folder or id on the "
    "cluster; leave out SCENARIO. Overrides may raise `rounds`, and change folders and resources.",
)
@CODE_CHANGED
@click.option("--id", "job", metavar="ID", help="Id of the new job. Default: the scenario's name and the time.")
@click.option(
    "--env",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set an environment variable for the job and its actors, for example RAYSIM_DATA=/data. Everyone with access "
    "to the dashboard can read its value. Of this shell's other variables, only MLFLOW_TRACKING_URI is sent, and only "
    "if it is the address of a server that the cluster can reach. May be repeated.",
)
def submit(
    scenario: str | None,
    sets: tuple[str, ...],
    address: str,
    wait: bool,
    run_: str | None,
    code_changed: bool,
    job: str | None,
    env: tuple[str, ...],
) -> None:
    """Run a scenario or a sweep, or resume a run, on a Ray cluster.

    The scenario is checked on this machine. Then the scenario and the code (raysim, algorithms) are sent to the
    cluster's dashboard, and a driver on the head node runs the scenario; the run continues without this terminal.
    Data is not sent: set data.root or RAYSIM_DATA to its folder on the cluster. All relative paths, such as ./runs for
    results, are relative to ~/raysim on the head node; `raysim fetch` downloads the results.

    SCENARIO may be a sweep file. A sweep is one job, and its cells are spread over the nodes. They need no shared disk,
    because their results are sent to `output` on the head node. Submitting the same sweep again runs the cells that are
    left.

    If the cluster asks for a token, set RAY_AUTH_MODE=token. Ray then sends the token in RAY_AUTH_TOKEN, in the file at
    RAY_AUTH_TOKEN_PATH, or in ~/.ray/auth_token.

    \b
    Examples:
        raysim submit quickstart --address http://head:8265
        raysim submit quickstart --set rounds=3 --wait
        raysim submit scenarios/cifar100_hetero.yaml --env RAYSIM_DATA=/data --set output=/shared/runs
        raysim submit sweeps/digits --set output=s3://bucket/runs
        raysim submit --resume quickstart-20261121-101500-ab12 --set rounds=40
    """
    from raysim.jobs.submit import Work, check, run_on_cluster
    from raysim.jobs.submit import submit as submit_job  # imported here, because it imports torch

    if (scenario is None) == (run_ is None):
        raise click.UsageError("Give a SCENARIO, or a run with --resume.")
    # Errors that need no cluster are reported before connecting to it.
    if wrong := [item for item in env if "=" not in item]:
        raise click.UsageError(f"--env {wrong[0]}: write it as KEY=VALUE, for example RAYSIM_DATA=/data.")
    work = Work() if scenario is None else check(Path(scenario), sets)
    words = [word for item in sets for word in ("--set", item)]
    words += ["--sweep"] if work.sweep else []
    with cluster.connect(address) as client, show_logs(lambda note: click.echo(f"note: {note}", err=True)):
        if run_ is not None:
            run_, facts = run_on_cluster(client, run_)
            work = Work(facts=facts)
            words += [f"--resume={run_}", *(["--code-changed"] if code_changed else [])]
        job = submit_job(client, job, work, words, dict(item.split("=", 1) for item in env))
        click.echo(f"submitted {job}", err=wait)
        if wait:
            sys.exit(_follow_to_end(client, job, address))
    rest = _rest(address)
    click.echo(f"  follow  raysim logs {job} --follow{rest}")
    click.echo(f"  status  raysim status {job}{rest}")
    click.echo(f"  stop    raysim stop {job}{rest}")
    click.echo(f"  fetch   raysim fetch {job}{rest}")


def _follow_to_end(client: Any, job: str, address: str) -> int:
    """Print a job's output and, unless the output says it, why the job failed; return its exit code."""
    info = _follow(client, job, address)
    log = job_log.read_log(client.get_job_logs(job))
    if (code := job_log.exit_code(info)) and not log.problem:
        click.echo(f"raysim: {job}: {info.status}: {job_log.why(info, log)}", err=True)
    return code


def _status_of(info: Any, log: job_log.JobLog) -> dict[str, Any]:
    """Return the output of `status --json`. info: Ray's `JobDetails`."""
    return {
        "job": info.submission_id,
        "state": str(info.status),
        "ended": info.status.is_terminal(),
        "submitted": _submitted(info),
        "seconds": _seconds(info),
        "why": job_log.why(info, log) if info.status == "FAILED" else None,
        "scenario": (info.metadata or {}).get("name", ""),
        "algorithm": (info.metadata or {}).get("algorithm", ""),
        "progress": log.progress,
        "folder": log.run_folder,  # on the head node; empty before it exists
        "summary": log.summary,  # empty until the run has ended
    }


def _rows(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a status as rows (name, value) for people."""
    age = f"{human_seconds(status['seconds'])} {'long' if status['ended'] else 'ago'}"
    rows = [("job", status["job"]), ("job state", status["state"])]
    rows += [("submitted", f"{_when(status['submitted'])}, {age}"), ("why", status["why"])]
    if status["summary"]:
        rows += summary_rows(status["summary"])
    else:
        rows.append(("scenario", ", ".join(filter(None, (status["scenario"], status["algorithm"])))))
        rows += [("progress", "" if status["ended"] else status["progress"]), ("results", status["folder"])]
    return [(name, value) for name, value in rows if value]


@click.command()
@ID
@ADDRESS
@JSON
def status(job: str, address: str, as_json: bool) -> None:
    """Show a job's state on a cluster, and its progress or result.

    ID is the id that `raysim submit` printed; `raysim jobs` lists all. The state is PENDING, RUNNING, SUCCEEDED, FAILED
    or STOPPED.
    """
    with cluster.connect(address) as client:
        found = _status_of(client.get_job_info(job), job_log.read_log(client.get_job_logs(job)))
    if as_json:
        print_json(found)
    else:
        click.echo(_columns(_rows(found)))


@click.command()
@ID
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Keep printing new output until the job ends. Ctrl-C stops the printing, not the job.",
)
@ADDRESS
def logs(job: str, follow: bool, address: str) -> None:
    """Print the output of a job on a cluster.

    The output is a line per round, notes and the result. ID is the id that `raysim submit` printed; `raysim jobs` lists
    all.
    """
    with cluster.connect(address) as client:
        if follow:
            _follow(client, job, address)
        else:
            click.echo(job_log.visible(client.get_job_logs(job)), nl=False)


@click.command()
@ID
@ADDRESS
def stop(job: str, address: str) -> None:
    """Stop a job on a cluster within seconds.

    Finished rounds are kept. The current round is finished if that takes only a few seconds. `raysim fetch` downloads
    the results, `raysim submit --resume ID` resumes the run; to continue a sweep, submit it again. ID is the id that
    `raysim submit` printed; `raysim jobs` lists all.
    """
    with cluster.connect(address) as client:
        client.stop_job(job)
        until = time.monotonic() + STOP_S + 3.0  # the run needs this time to write its results
        while not (state := client.get_job_info(job).status).is_terminal() and time.monotonic() < until:
            time.sleep(0.1)
        log = job_log.read_log(client.get_job_logs(job))
    if not log.run_folder:
        click.echo(f"{job}: {state}; no run had begun")
        return
    click.echo(f"{job}: {state}; its finished rounds are kept in {log.run_folder}")
    click.echo(f"  fetch   raysim fetch {job}{_rest(address)}")
    again = "submit the same sweep again" if log.sweep else f"raysim submit --resume {job}{_rest(address)}"
    click.echo(f"  resume  {again}")


@click.command()
@ADDRESS
def jobs(address: str) -> None:
    """List raysim's jobs on a cluster, newest first.

    The list shows their IDs, states and durations.
    """
    with cluster.connect(address) as client:
        found = cluster.jobs_of(client)
    if not found:
        click.echo("no jobs")
        return
    rows = [
        (
            job.submission_id,
            str(job.status),
            job.metadata.get("name", ""),
            job.metadata.get("algorithm", ""),
            _when(_submitted(job)),
            human_seconds(_seconds(job)),
        )
        for job in found
    ]
    click.echo(_columns([("id", "state", "scenario", "algorithm", "submitted", "time"), *rows]))


@click.command()
@ID
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False),
    help="Folder for the download. Default: ./runs/<scenario>/<run id>; for a sweep, ./runs/<sweep>.",
)
@click.option("--checkpoints", is_flag=True, help="Also download the checkpoints, which can be large.")
@ADDRESS
def fetch(job: str, output: str | None, checkpoints: bool, address: str) -> None:
    """Download the run folder of a job on a cluster.

    The folder contains rounds.parquet, clients.parquet, summary.json and the plots. You can fetch it while the run is
    in progress, and again after its end. This needs no access to the cluster except to its dashboard. ID is the id that
    `raysim submit` printed; `raysim jobs` lists all.
    """
    with cluster.connect(address) as client:
        target, count = cluster.fetch(client, job, None if output is None else Path(output), checkpoints)
    click.echo(f"{target}: {count} files")


def _rest(address: str) -> str:
    """Return the option `--address` for commands that are suggested to the user."""
    return "" if address == DEFAULT_ADDRESS else f" --address {address}"


def _follow(client: Any, job: str, address: str) -> Any:
    try:
        return job_log.follow(client, job, lambda text: click.echo(text, nl=False))
    except KeyboardInterrupt:
        click.echo(f"{job} continues on the cluster; to stop it, run `raysim stop {job}{_rest(address)}`", err=True)
        sys.exit(130)


def _submitted(info: Any) -> datetime:
    return datetime.fromtimestamp(info.start_time / 1000).astimezone()


def _seconds(info: Any) -> float:
    """Return the seconds from a job's submission to its end, or until now."""
    ended_s = time.time() if info.end_time is None else info.end_time / 1000
    return float(ended_s - info.start_time / 1000)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as lines without line breaks, so that users can copy ids and paths."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _when(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"


COMMANDS: list[click.Command] = [submit, status, logs, stop, jobs, fetch]
"""Commands that `raysim.cli.main` adds to its group."""
