"""Clients that never take part: who they are, and what their tests do not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim
from tests.engine.scenarios import digits

NEW: dict[str, Any] = {
    "clients": {"count": 8, "held_out": 0.25, "models": ["digits_mlp64"]},
    "evaluation": {"clients": "all"},
}


def test_new_clients_are_tested_and_change_nothing(workplace: Path) -> None:
    given = digits(**NEW)
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
