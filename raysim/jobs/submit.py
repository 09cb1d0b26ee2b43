"""Hands a scenario and the code to a cluster."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from raysim.common.errors import RunError, ScenarioError
from raysim.jobs.cluster import KIND, Cluster, NotReadyError
from raysim.jobs.stage import stage
from raysim.jobs.versions import VARIABLE, Versions, ray_incompatibility, release
from raysim.launch.check import Checked
from raysim.tracking.store import PASSWORD, USER, is_loopback, shown

STOP_S = 12
"""How long a job that is asked to stop may take before Ray kills it, in seconds; Ray's own 3 cut a run's ending off."""

READY_S, AGAIN_S = 60.0, 1.0
"""How long to wait until a node of a cluster that was just started takes jobs, and how long between two tries."""

MLFLOW = "MLFLOW_TRACKING_URI"


def parse_env(items: Sequence[str]) -> dict[str, str]:
    """The `--env KEY=VALUE`s. Raises `ScenarioError`."""
    for item in items:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", item):
            raise ScenarioError(f"--env {item}: write it as KEY=VALUE, for example RAYSIM_DATA=/data")
    return dict(item.split("=", 1) for item in items)


def new_id(scenario: str, given: str | None = None) -> str:
    """The id of a job: `given`, or one that says what it runs and when. Raises `ScenarioError`."""
    if given is None:
        return f"{scenario}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", given):
        raise ScenarioError(
            f"--id: {given!r} given; allowed: up to 100 letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit"
        )
    return given


def check_versions(cluster: Cluster) -> None:
    """Raises `ScenarioError` when the cluster's Ray is of another release; all else only the cluster can tell."""
    here = Versions.here()
    if release(here.ray) != release(cluster.ray_version):
        raise ScenarioError(f"{shown(cluster.address)}: {ray_incompatibility(here.ray, cluster.ray_version)}")


def environment(given: Mapping[str, str], cluster: str) -> tuple[dict[str, str], list[str]]:
    """The job's environment variables, and notes for the user. What is not `given` stays on this machine.

    The one exception is MLFLOW_TRACKING_URI where it names a server that the cluster can reach as well.
    """
    notes = []
    sent = {VARIABLE: Versions.here().text(), "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)}
    given_here = os.environ.get(MLFLOW, "")
    server = shown(given_here)
    if MLFLOW not in given and server.startswith(("http://", "https://")):
        if is_loopback(server) and not is_loopback(cluster):
            notes.append(
                f"{MLFLOW}={server} means this machine and is not sent; --env {MLFLOW}=... names one for the cluster"
            )
        else:
            sent[MLFLOW] = server
            if server != given_here:
                notes.append(
                    f"the user name and password in {MLFLOW} are not sent: whoever sees the dashboard could read them; "
                    f"set {USER} and {PASSWORD} where Ray is started, or give them with --env"
                )
    return {**sent, **given}, notes


@dataclass(frozen=True)
class Work:
    """What a job is to do."""

    scenario: Path | None  # None: that of the run
    sets: Sequence[str] = ()
    run: str | None = None  # to go on with, as the head node knows it; None: a new one
    facts: Mapping[str, str] = field(default_factory=dict)  # for whoever lists jobs
    code_changed: bool = False  # go on although the code is another


def facts_of(scenario: Path, checked: Checked) -> dict[str, str]:
    """What others may know of a scenario."""
    loaded = checked.loaded
    return {
        "name": loaded.scenario.name,
        "scenario": str(scenario),
        "algorithm": str(loaded.resolved["algorithm"]["name"]),
        "rounds": str(loaded.scenario.rounds),
    }


def submit(
    cluster: Cluster, work: Work, env: Mapping[str, str], job: str, say: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Submit `work` as the job `job`; returns notes for the user. `say` is told when it has to wait.

    Scenario and `--set`s are shipped as they were given, so that the run folder holds what the user wrote; whoever
    calls has checked them. Raises `ScenarioError` when the cluster's Ray does not fit or the id is taken, `RunError`
    when the cluster does not take the job.
    """
    check_versions(cluster)
    if any(job == known.submission_id for known in cluster.call("list_jobs")):
        raise ScenarioError(f"--id: {job} is taken by another job at {shown(cluster.address)}; choose another")
    variables, notes = environment(env, cluster.address)
    with tempfile.TemporaryDirectory(prefix="raysim-submit-") as folder:
        name = stage(work.scenario, Path(folder))
        _when_ready(
            cluster,
            say,
            # `exec`: the signal to stop then reaches the run, with no shell in between that dies of it first.
            entrypoint=f"exec {shlex.join(_words(name, work))}",
            submission_id=job,
            metadata={KIND: Versions.here().raysim, **work.facts},
            runtime_env={"working_dir": folder, "env_vars": variables},
        )
    return notes


def _when_ready(cluster: Cluster, say: Callable[[str], None], **job: Any) -> None:
    """Submit, and try again for a while where `ray start` has returned before the node's agent is there."""
    end = time.monotonic() + READY_S
    waiting = False
    while True:
        try:
            cluster.call("submit_job", **job)
            return
        except NotReadyError as error:
            if time.monotonic() > end:
                raise RunError(f"{error} (for {READY_S:.0f} s; `ray status` shows what is wrong)") from None
        if not waiting:
            say(f"{shown(cluster.address)} takes no jobs yet; trying again for up to {READY_S:.0f} s")
        waiting = True
        time.sleep(AGAIN_S)


def _words(name: str | None, work: Work) -> list[str]:
    words = ["python", "-m", "raysim.jobs.entry"]
    if name is not None:
        words.append(name)
    for item in work.sets:
        words += ["--set", item]
    if work.run is not None:
        words.append(f"--resume={work.run}")
    if work.code_changed:
        words.append("--code-changed")
    return words
