"""Clients that never take part: who they are, what their tests do not change, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import digits

NEW: dict[str, Any] = {
    "clients": {"count": 8, "held_out": 0.25, "models": ["digits_mlp64"]},
    "evaluation": {"clients": "all"},
}


@pytest.mark.parametrize("method", ["fedgh", "fedproto", "fd"])
def test_new_clients_are_tested_and_change_nothing(method: str, tmp_path: Path) -> None:
    given = digits(**NEW, algorithm={"name": method}, output=str(tmp_path))
    runs = [raysim.run(given, sets=[f"evaluation.fine_tune={epochs}"], quiet=True) for epochs in (0, 10)]
    assert len({run.state_digest for run in runs}) == 1
    new, rows = set(runs[0].summary["held_out_clients"]), runs[1].clients
    assert len(new) == 2
    assert new.isdisjoint(rows.query("participated")["client"])
    assert rows[rows["client"].isin(new)]["accuracy"].isna().all()  # only tests with the current message
    last = rows[rows["round"] == 3].set_index("client")["current_accuracy"]
    assert runs[1].rounds["accuracy/held_out"].iloc[-1] == pytest.approx(last[sorted(new)].mean())
    assert runs[1].rounds["accuracy/all_current"].iloc[-1] == pytest.approx(last.drop(sorted(new)).mean())
    assert runs[1].rounds["accuracy/held_out"].iloc[-1] > runs[0].rounds["accuracy/held_out"].iloc[-1]
    assert (runs[1].rounds["engine/absent_clients"].iloc[1:] == 0).all()


@pytest.mark.large
def test_new_clients_have_the_same_tests_on_any_placement(tmp_path: Path) -> None:
    given = digits(**NEW, output=str(tmp_path))
    given["evaluation"] = {**NEW["evaluation"], "fine_tune": 2}
    sets = [["backend=in_process"], *(["backend=ray", f"resources.actors={n}"] for n in (1, 3))]
    runs = [raysim.run(given, sets=one, quiet=True) for one in sets]
    assert len({(run.state_digest, *run.rounds["accuracy/held_out"]) for run in runs}) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"evaluation": {}}, ["clients.held_out", "evaluation.clients"]),
        ({"algorithm": {"name": "fedcache"}}, ["clients.held_out", "fedcache", "registers"]),
        (
            {"clients": {"count": 8, "models": ["digits_mlp64"]}, "evaluation": {"clients": "all", "fine_tune": 1}},
            ["evaluation.fine_tune", "clients.held_out"],
        ),
    ],
)
def test_what_cannot_be_tested_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(raysim.ScenarioError) as error:
        Scenario.load(digits(**{**NEW, **changes}))
    for word in words:
        assert word in str(error.value)
