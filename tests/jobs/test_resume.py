"""Which run `raysim submit --resume` means."""

from __future__ import annotations

import json

import pytest

from raysim.common.errors import ScenarioError
from raysim.jobs.job_log import PREFIX
from raysim.jobs.resume import run_on_cluster
from tests.jobs.fakes import cluster, details

LOG = PREFIX + json.dumps({"run_folder": "/home/x/raysim/runs/quickstart/r1", "run_id": "r1"}) + "\n"
KNOWN = {"name": "quickstart", "algorithm": "fedgh"}


def test_a_jobs() -> None:
    here = cluster(details("j", "STOPPED"), logs={"j": LOG})
    assert run_on_cluster(here, "j") == ("/home/x/raysim/runs/quickstart/r1", KNOWN)


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("/shared/runs/quickstart/r1", {"name": "quickstart"}),
        ("~/raysim/runs/quickstart/r1/", {"name": "quickstart"}),
        ("../r1", {}),  # nothing that an id could begin with
        ("r1", {}),
    ],
)
def test_anything_else_is_for_the_head_node_to_find(given: str, known: dict[str, str]) -> None:
    assert run_on_cluster(cluster(details("j", "STOPPED"), logs={"j": LOG}), given) == (given, known)


def test_one_that_goes_on() -> None:
    with pytest.raises(ScenarioError, match=r"^--resume: job j has not ended \(RUNNING\); stop it .* `raysim stop j`$"):
        run_on_cluster(cluster(details("j"), logs={"j": LOG}), "j")


def test_one_that_never_had_a_folder() -> None:
    with pytest.raises(ScenarioError, match=r"^--resume: job j ended \(FAILED\) before it created .*; submit"):
        run_on_cluster(cluster(details("j", "FAILED"), logs={"j": "raysim: data.root: no such folder\n"}), "j")


def test_a_job_of_another_program_is_refused() -> None:
    assert run_on_cluster(cluster(details("j", "STOPPED", metadata={"job_name": "x"})), "j") == ("j", {})


def test_a_sweeps() -> None:
    log = PREFIX + json.dumps({"run_folder": "/home/x/raysim/runs/digits", "run_id": "digits", "sweep": True}) + "\n"
    with pytest.raises(ScenarioError, match=r"^--resume: job j runs a sweep; to continue it, submit the sweep again"):
        run_on_cluster(cluster(details("j", "STOPPED"), logs={"j": log}), "j")
