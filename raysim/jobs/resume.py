"""Resolves `--resume` of `raysim submit` to a run on the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from raysim.common.errors import ScenarioError
from raysim.common.text import is_name, one_line
from raysim.jobs.cluster import Cluster
from raysim.jobs.job_log import read_log
from raysim.jobs.watch import Job

FACTS = ("name", "scenario", "algorithm")
"""Metadata that a resuming job copies from the job that ran the run, unless it has its own scenario."""


def run_on_cluster(cluster: Cluster, run: str) -> tuple[str, Mapping[str, str]]:
    """Return a run's folder or id on the head node, and metadata for the job that resumes it.

    run: a job's id, or the run's folder or id on the head node, which only the resuming job can check. Raises
    `ScenarioError` if the job has not ended, or has no run.
    """
    if not run.strip():
        raise ScenarioError(f"--resume: {run!r} given; give a job's id, or a run's folder or id on the cluster")
    known_jobs = {info.submission_id: info for info in cluster.jobs()}
    if run not in known_jobs:
        scenario = PurePosixPath(run).parent.name  # from <output>/<scenario>/<run id>
        return run, {"name": scenario} if is_name(scenario) else {}
    job = Job.of(known_jobs[run])
    if not job.ended:
        raise ScenarioError(f"--resume: job {run} has not ended ({job.state}); stop it first with `raysim stop {run}`")
    log = read_log(cluster.log(run))
    if log.sweep:
        text = f"--resume: job {run} runs a sweep; to continue it, submit the sweep again without --resume"
        raise ScenarioError(text)
    folder = log.run_folder
    if not folder:
        raise ScenarioError(
            f"--resume: job {run} ended ({job.state}) before it created a run folder; submit its scenario again"
        )
    known = {key: one_line(value) for key, value in known_jobs[run].metadata.items() if key in FACTS}
    return folder, {**known, "name": job.name}
