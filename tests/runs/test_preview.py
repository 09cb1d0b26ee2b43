"""What a dry run estimates."""

from __future__ import annotations

import pytest

from raysim.common.errors import ScenarioError
from raysim.engine.policies.placement import ClusterResources
from raysim.runs.plan import make_plan
from raysim.runs.preview import _samples_tested, preview
from raysim.scenario.scenario import Scenario

QUICKSTART = "scenarios/quickstart.yaml"
TINY = ["rounds=5", "backend=in_process", "clients.count=4", "clients.participation=0.5", "evaluation.every=2"]
GLOBAL = ["data.split=published", "evaluation.global_test=true"]
OWN, PUBLISHED = 10.0, 360


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        # All four clients before round 1; two participants after rounds 2, 4 and 5, the last.
        ([], 4 * OWN + 2 * 3 * OWN),
        (GLOBAL, 4 * (OWN + PUBLISHED) + 2 * 3 * (OWN + PUBLISHED)),
        (["evaluation.when=both"], 4 * OWN + 2 * 3 * 2 * OWN),
        # All four clients also after each of these rounds, and before round 1 with the server's first message.
        (["evaluation.clients=all"], 4 * OWN + 2 * 3 * OWN + 4 * 4 * OWN),
        ([*GLOBAL, "evaluation.global_every=4"], 4 * OWN + 2 * (OWN + 2 * (OWN + PUBLISHED))),
    ],
)
def test_how_many_samples_are_tested(sets: list[str], expected: float) -> None:
    assert _samples_tested(Scenario.load(QUICKSTART, [*TINY, *sets]), OWN) == expected


def test_tests_are_in_the_estimate() -> None:
    scenario = Scenario.load(QUICKSTART, [*TINY, *GLOBAL])
    found, own = preview(scenario), len(make_plan(scenario)[0].test.index) / 4
    per_sample_s = sum(model.test_s * model.clients for model in found.models) / 4
    client_round_s = sum(model.step_s * model.steps * model.clients for model in found.models) / 4
    assert 70 < own < 90  # about a quarter of the 360 published test samples: no client has samples of some classes
    assert found.tests_s == pytest.approx(per_sample_s * (4 + 2 * 3) * (own + PUBLISHED))
    assert found.total_s == pytest.approx(client_round_s * 2 * 5 + found.tests_s)  # in one process, one after another


def test_float16_needs_gpus() -> None:
    scenario = Scenario.load(QUICKSTART, [*TINY, "training.precision=float16", "resources.gpus_per_actor=0"])
    for refused in (preview, make_plan):
        with pytest.raises(ScenarioError, match=r"training\.precision: float16 given, but some or all clients "):
            refused(scenario)
    assert make_plan(scenario, ClusterResources(2, 0), rounds_left=False)[0].local.precision == "float16"
    many = ["clients.count=64", "clients.models=[digits_mlp64]"]
    together = {
        precision: Scenario.load(QUICKSTART, [*many, f"training.precision={precision}"]).together["digits_mlp64"]
        for precision in ("bfloat16", "float16")
    }
    assert together == {"bfloat16": 32, "float16": 1}
