"""Submits a scenario or sweep, with the code, to a cluster as a job."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.common.errors import RunError, ScenarioError
from raysim.common.temporary import temporary_folder
from raysim.common.text import expanded, is_name
from raysim.jobs.cluster import KIND, Cluster, NoAnswerError, NotReadyError
from raysim.jobs.stage import stage
from raysim.jobs.versions import VARIABLE, Versions, ray_incompatibility, release
from raysim.plugins.own_code import OwnCode
from raysim.report.units import plural
from raysim.scenario.paths import READ
from raysim.scenario.scenario import Scenario
from raysim.tracking.store import PASSWORD, USER, is_loopback, shown

if TYPE_CHECKING:
    from raysim.scenario.parse import ParsedScenario
    from raysim.sweeps.cells import Sweep

logger = logging.getLogger(__name__)

STOP_S = 12
"""Seconds between SIGTERM and SIGKILL when Ray stops a job; Ray's default of 3 is too short to close a run."""

READY_S, RETRY_S = 60.0, 1.0
"""How long to wait until a node of a new cluster accepts jobs, and the time between attempts, in seconds."""

MLFLOW = "MLFLOW_TRACKING_URI"


def parse_env(items: Sequence[str]) -> dict[str, str]:
    """Parse the items KEY=VALUE of `--env`. Raises `ScenarioError`."""
    for item in items:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", item):
            raise ScenarioError(f"--env {item}: write it as KEY=VALUE, for example RAYSIM_DATA=/data")
    return dict(item.split("=", 1) for item in items)


def new_id(scenario: str, chosen: str | None = None) -> str:
    """Return a job's id: `chosen`, or one made of the scenario's name and the time. Raises `ScenarioError`."""
    if chosen is None:
        return f"{scenario[:78]}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"  # at most 100 characters
    if not is_name(chosen):
        raise ScenarioError(
            f"--id: {chosen!r} given; allowed: up to 100 letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit"
        )
    return chosen


def check_versions(cluster: Cluster) -> None:
    """Raise `ScenarioError` if the cluster has another release of Ray; the job itself checks other versions."""
    here = Versions.here()
    if release(here.ray) != release(cluster.ray_version):
        raise ScenarioError(f"{shown(cluster.address)}: {ray_incompatibility(here.ray, cluster.ray_version)}")


def environment(variables: Mapping[str, str], cluster: str) -> tuple[dict[str, str], list[str]]:
    """Return the job's environment variables, and notes for the user.

    variables: those of `--env`. Of this machine's variables only MLFLOW_TRACKING_URI is sent, if it is the address of
    a server that the cluster can reach too.
    """
    notes = []
    sent = {VARIABLE: Versions.here().text(), "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)}
    uri = os.environ.get(MLFLOW, "")
    server = shown(uri)
    if MLFLOW not in variables and server.startswith(("http://", "https://")):
        if is_loopback(server) and not is_loopback(cluster):
            notes.append(
                f"the job does not get {MLFLOW}={server}, because only this machine can reach this address; to log "
                f"to MLflow, add --env {MLFLOW}=URL with a server that the cluster can reach"
            )
        else:
            sent[MLFLOW] = server
            if is_loopback(server):
                notes.append(
                    f"the job gets {MLFLOW}={server}, which there is the address of a server on the head node; if you "
                    f"mean this machine's server, add --env {MLFLOW}= to submit without it"
                )
            if server != uri:
                notes.append(
                    f"the job does not get the user name and password in {MLFLOW}, because other users could read "
                    f"them on Ray's dashboard; set {USER} and {PASSWORD} where Ray is started, or accept this risk "
                    "and set them with --env"
                )
    return {**sent, **variables}, notes


def notes_on_data(scenarios: Iterable[ParsedScenario]) -> list[str]:
    """Return a note for each relative path of data, a partition, a trace or a run: the job runs in another folder."""
    given: dict[tuple[str, str], None] = {}
    for one in scenarios:
        for key, paths in one.paths.items():
            given |= dict.fromkeys((key, path) for path in ([paths] if isinstance(paths, str) else paths))
    return [
        f"{key}: {path} is relative to ~/raysim on the head node; give an absolute path that is valid on every node"
        for key, path in given
        if key in READ and not expanded(path).is_absolute()
    ]


@dataclass(frozen=True)
class Work:
    """The work of a job: a new run, a run to resume, or a sweep."""

    scenario: Path | None  # None: the scenario of the run to resume
    sets: Sequence[str] = ()
    run: str | None = None  # the run to resume, its folder or id on the head node; None: a new run
    facts: Mapping[str, str] = field(default_factory=dict)  # metadata for the list of jobs
    code_changed: bool = False  # resume even if the code differs
    sweep: Sequence[Path] = ()  # if the scenario is a sweep file: the files that it needs, including itself
    own_code: OwnCode = OwnCode()  # custom code that the scenario refers to


def facts_of(file: Path, scenario: Scenario) -> dict[str, str]:
    """A job's metadata for a scenario, which other users of the cluster can see."""
    return {
        "name": scenario.name,
        "scenario": str(file),
        "algorithm": scenario.method,
        "rounds": str(scenario.rounds),
    }


def facts_of_sweep(file: Path, sweep: Sweep) -> dict[str, str]:
    """A job's metadata for a sweep, which other users of the cluster can see."""
    methods = dict.fromkeys(cell.scenario.method for cell in sweep.cells)
    return {
        "name": sweep.name,
        "scenario": str(file),
        "algorithm": plural(len(methods), "method") if len(methods) > 1 else next(iter(methods)),
        "cells": str(len(sweep.cells)),
    }


def submit(cluster: Cluster, work: Work, env: Mapping[str, str], job: str) -> list[str]:
    """Submit `work` as the job with the id `job`; returns notes for the user.

    The caller has checked the scenario and its overrides. Both are shipped unchanged, so that the run folder contains
    what the user wrote. Raises `ScenarioError` if the cluster has another release of Ray or the id is taken, `RunError`
    if the cluster refuses the job.
    """
    check_versions(cluster)
    if any(job == known.submission_id for known in cluster.call("list_jobs")):
        raise ScenarioError(f"--id: {job} is the id of another job at {shown(cluster.address)}; choose another id")
    variables, notes = environment(env, cluster.address)
    with temporary_folder("submit-") as folder:
        name = stage(work.sweep or [file for file in (work.scenario,) if file is not None], folder, work.own_code)
        _submit_when_ready(
            cluster,
            # With `exec`, SIGTERM reaches the run itself, not a shell in between.
            entrypoint=f"exec {shlex.join(_words(name, work))}",
            submission_id=job,
            metadata={KIND: Versions.here().raysim, **work.facts},
            runtime_env={"working_dir": str(folder), "env_vars": variables},
        )
    return notes


def _submit_when_ready(cluster: Cluster, **job: Any) -> None:
    """Submit, and retry for `READY_S`: `ray start` may return before the node's agent runs, and connections break.

    If a connection broke, the cluster may have accepted the job. It then refuses the same id, which counts as success.
    """
    end = time.monotonic() + READY_S
    notes: list[str] = []
    broken = False
    while True:
        try:
            cluster.call("submit_job", **job)
            return
        except NotReadyError as error:
            text = f"{error} (after {READY_S:.0f} s of attempts); run `ray status` to see what is wrong"
            failure, why = RunError(text), "accepts no jobs yet"
        except NoAnswerError as error:
            failure, why, broken = error, "broke the connection", True
        except RunError as error:
            if broken and f"{job['submission_id']} already exists" in str(error):
                return
            raise
        if time.monotonic() > end:
            raise failure
        if why not in notes:
            logger.warning(f"{shown(cluster.address)} {why}; retrying for up to {READY_S:.0f} s")
            notes.append(why)
        time.sleep(RETRY_S)


def _words(name: str | None, work: Work) -> list[str]:
    words = ["python", "-m", "raysim.jobs.entry"]
    if name is not None:
        words.append(name)
    if work.sweep:
        words.append("--sweep")
    for item in work.sets:
        words += ["--set", item]
    if work.run is not None:
        words.append(f"--resume={work.run}")
    if work.code_changed:
        words.append("--code-changed")
    return words
