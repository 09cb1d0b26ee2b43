"""Which run a job is to go on with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from raysim.common.errors import ScenarioError
from raysim.common.text import is_name, one_line
from raysim.jobs.cluster import Cluster
from raysim.jobs.job_log import read_log
from raysim.jobs.watch import Job

FACTS = ("name", "scenario", "algorithm")
"""What a job that goes on takes over from the metadata of the one before, unless a scenario says it anew."""


def find_run(cluster: Cluster, given: str) -> tuple[str, Mapping[str, str]]:
    """A run as the head node knows it, and what is known of it here.

    given: its folder or id on the head node, or the id of the job that ran it; whether the folder is there only the
    job can tell. Raises `ScenarioError` when that job goes on, or has no run.
    """
    if not given.strip():
        raise ScenarioError(f"--resume: {given!r} given; allowed: a job's id, or a run's folder or id on the cluster")
    ours = {info.submission_id: info for info in cluster.jobs()}
    if given not in ours:
        scenario = PurePosixPath(given).parent.name  # of <output>/<scenario>/<run id>
        return given, {"name": scenario} if is_name(scenario) else {}
    job = Job.of(ours[given])
    if not job.ended:
        raise ScenarioError(f"--resume: {given} is {job.state}; `raysim stop {given}` ends it")
    folder = read_log(cluster.log(given)).run_folder
    if not folder:
        raise ScenarioError(f"--resume: {given} is {job.state}, but never had a run folder; submit its scenario anew")
    known = {key: one_line(value) for key, value in ours[given].metadata.items() if key in FACTS}
    return folder, {**known, "name": job.name}
