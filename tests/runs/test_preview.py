"""What a dry run estimates."""

from __future__ import annotations

import pytest

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
        (["evaluation.clients=all", "evaluation.all_every=4"], 4 * OWN + 2 * 3 * OWN + 3 * 4 * OWN),
        ([*GLOBAL, "evaluation.global_every=4"], 4 * OWN + 2 * (OWN + 2 * (OWN + PUBLISHED))),
    ],
)
def test_how_many_samples_are_tested(sets: list[str], expected: float) -> None:
    assert _samples_tested(Scenario.load(QUICKSTART, [*TINY, *sets]), OWN) == expected


def test_tests_are_in_the_estimate() -> None:
    found = preview(Scenario.load(QUICKSTART, [*TINY, *GLOBAL]))
    per_sample_s = sum(model.test_s * model.clients for model in found.models) / 4
    # Of the 1,437 training samples each client has a quarter, and a quarter of the 360 published test samples.
    assert found.tests_s == pytest.approx(per_sample_s * (4 + 2 * 3) * (90 + PUBLISHED))
    assert found.total_s == pytest.approx((found.turn_s * 2 * 5 + found.tests_s) / found.plan.num_actors)
