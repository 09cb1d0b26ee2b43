"""Submits a scenario or sweep to a cluster as a job, with raysim's code, algorithms and scenarios, but without data."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import raysim
from raysim.common.errors import ScenarioError
from raysim.common.installed import installed
from raysim.common.text import holds_secret
from raysim.jobs.cluster import KIND
from raysim.jobs.entry import STOP_S, versions
from raysim.jobs.job_log import read_log
from raysim.plugins.own_code import JOB_CODE, OwnCode
from raysim.results.store import VARIABLE as MLFLOW
from raysim.results.store import is_loopback
from raysim.results.units import plural
from raysim.runs.code import SHIPPED, checkout
from raysim.scenario.parse import parse_scenario
from raysim.scenario.scenario import Scenario
from raysim.study.definition import files_of, load_sweep

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """The files of a job, and the metadata that the list of jobs shows."""

    files: Sequence[Path] = ()  # the scenario or sweep file, and files that it names; empty for resuming a run
    sweep: bool = False
    own_code: OwnCode = OwnCode()  # custom code that the scenario names
    facts: Mapping[str, str] = field(default_factory=dict)


def check(file: Path, sets: Sequence[str]) -> Work:
    """Check a scenario or sweep, and return its job. Raises `ScenarioError`."""
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
    """Return a run's folder or id on the head node, and metadata of a job that resumes the run.

    run: a job's id, or the run's folder or id on the head node, which only the resuming job can check. Raises
    `ScenarioError` if the job has no run.
    """
    known = {job.submission_id: job for job in client.list_jobs()}
    if run not in known:
        return run, {"name": Path(run).parent.name}  # the path is <output>/<scenario>/<run id>
    log = read_log(client.get_job_logs(run))
    if log.sweep or not log.run_folder:
        raise ScenarioError(f"--resume: the job {run} has no run to resume; submit its scenario or sweep again")
    return log.run_folder, known[run].metadata


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment variables: those of `--env`, and MLflow's address."""
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
        client.submit_job(
            entrypoint=f"exec {shlex.join(command)}",  # with `exec`, SIGTERM reaches the run instead of a shell
            submission_id=job,
            metadata={**work.facts, KIND: installed("raysim")},
            runtime_env={"working_dir": str(folder), "env_vars": environment(variables)},
        )
    return job


def stage(files: Sequence[Path], folder: Path, own_code: OwnCode) -> list[str]:
    """Copy raysim and `files` to `folder`; return the paths of the copies of `files`.

    The files keep their paths relative to each other. The package is the one that this process imports, so the job runs
    the code that was checked.
    """
    package = Path(str(raysim.__file__)).parent
    shutil.copytree(package, folder / "raysim", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    _write_metadata(folder)
    # Links are not resolved, so that files and folders stay where the sweep file names them.
    places = [Path(os.path.abspath(file)) for file in files]  # noqa: PTH100  # `absolute` keeps `..`
    common = Path(os.path.commonpath([place.parent for place in places])) if places else folder
    names = [place.relative_to(common).as_posix() for place in places]
    for file, name in zip(files, names, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / name)
    if names:  # the scenario's loader expects this folder, even if it is empty
        code = (folder / names[0]).parent / JOB_CODE
        code.mkdir()
        own_code.write(code)
    return names


def _write_metadata(folder: Path) -> None:
    """Write raysim's metadata, with version and commit, because raysim may not be installed on the cluster."""
    distribution = metadata.distribution("raysim")
    header = str(distribution.metadata).partition("\n\n")[0]
    info = folder / f"raysim-{distribution.version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(header + "\n", encoding="utf-8")
    commit, dirty = checkout()
    if commit is not None:
        (info / SHIPPED).write_text(f"{commit} {'dirty' if dirty else 'clean'}", encoding="utf-8")
