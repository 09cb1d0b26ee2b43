"""Submits a scenario or sweep, with the code, to a cluster as a job."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from raysim.common.errors import ScenarioError
from raysim.common.requirements import installed
from raysim.common.text import holds_secret
from raysim.jobs.cluster import KIND
from raysim.jobs.entry import versions
from raysim.jobs.job_log import read_log
from raysim.jobs.stage import stage
from raysim.jobs.watch import STOP_S
from raysim.plugins.own_code import OwnCode
from raysim.report.units import plural
from raysim.scenario.parse import parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.sweeps.definition import files_of, load_sweep
from raysim.tracking.store import VARIABLE as MLFLOW
from raysim.tracking.store import is_loopback

logger = logging.getLogger(__name__)

READY_S, RETRY_S = 60.0, 1.0
"""How long to wait until a node of a new cluster accepts jobs, and the time between attempts, in seconds."""


@dataclass(frozen=True)
class Work:
    """The files of a job, and its metadata for the list of jobs."""

    files: Sequence[Path] = ()  # the scenario or sweep file, and what it names; empty: a run is resumed from its folder
    sweep: bool = False
    own_code: OwnCode = OwnCode()  # custom code that the scenario refers to
    facts: Mapping[str, str] = field(default_factory=dict)


def check(file: Path, sets: Sequence[str]) -> Work:
    """Return the work of a scenario or sweep. Raises `ScenarioError`."""
    files = files_of(file)
    if not files:
        scenario = Scenario.of(parse_scenario(file, sets))
        return Work([file], False, scenario.own_code, {"name": scenario.name, "algorithm": scenario.method})
    sweep = load_sweep(file, sets=sets)
    scenarios = [cell.scenario for cell in sweep.cells]
    methods = {one.method for one in scenarios}
    if sweep.tuning is not None:
        scenarios += sweep.tuning.scenarios
    algorithm = plural(len(methods), "method") if len(methods) > 1 else methods.pop()
    own_code = OwnCode.merged(one.own_code for one in scenarios)
    return Work(files, True, own_code, {"name": sweep.name, "algorithm": algorithm})


def run_on_cluster(client: Any, run: str) -> tuple[str, Mapping[str, str]]:
    """Return a run's folder or id on the head node, and metadata for the job that resumes it.

    run: a job's id, or the run's folder or id on the head node, which only the resuming job can check. Raises
    `ScenarioError` if the job has no run.
    """
    known = {job.submission_id: job for job in client.list_jobs()}
    if run not in known:
        return run, {"name": Path(run).parent.name}  # from <output>/<scenario>/<run id>
    log = read_log(client.get_job_logs(run))
    if log.sweep or not log.run_folder:
        raise ScenarioError(f"--resume: the job {run} has no run to resume; submit its scenario or sweep again")
    return log.run_folder, known[run].metadata


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment variables: those of `--env`, and the address of MLflow's server."""
    sent = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)}
    server = os.environ.get(MLFLOW, "")
    if server.startswith(("http://", "https://")) and MLFLOW not in variables:
        if is_loopback(server) or holds_secret(server):
            logger.info(
                f"the job does not get {MLFLOW}, because its value is an address of this machine or contains a "
                f"password; to log to MLflow, add --env {MLFLOW}=URL with a server that the cluster can reach"
            )
        else:
            sent[MLFLOW] = server
    return {**sent, **variables}


def submit(client: Any, job: str | None, work: Work, words: Sequence[str], variables: Mapping[str, str]) -> str:
    """Submit a job and return its id.

    The caller has checked the scenario and its overrides. Both are shipped unchanged, so that the run folder contains
    what the user wrote.

    job: the id; None: made of the scenario's name and the time. words: the options of `entry`.
    """
    name = work.facts.get("name") or "resume"
    job = job or f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    with tempfile.TemporaryDirectory(prefix="raysim-submit-") as temporary:
        folder = Path(temporary)
        files = stage(work.files, folder, work.own_code)
        command = ["python", "-m", "raysim.jobs.entry", versions(), *files[:1], *words]
        _submit_when_ready(
            client,
            entrypoint=f"exec {shlex.join(command)}",  # `exec`: SIGTERM must reach the run, not a shell in between
            submission_id=job,
            metadata={**work.facts, KIND: installed("raysim")},
            runtime_env={"working_dir": str(folder), "env_vars": environment(variables)},
        )
    return job


def _submit_when_ready(client: Any, **job: Any) -> None:
    """Submit, and retry for `READY_S`: `ray start` may return before the node's agent runs."""
    end = time.monotonic() + READY_S
    while True:
        try:
            client.submit_job(**job)
            return
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(RETRY_S)
