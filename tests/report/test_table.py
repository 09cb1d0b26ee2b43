"""The closing table says what is known and leaves out the rest."""

from __future__ import annotations

import io

import pytest

from raysim.report.table import print_closing_table, summary_rows

SUMMARY = {
    "scenario": "quickstart",
    "algorithm": "fedgh",
    "seed": 3,
    "overrides": {"rounds": 20, "data.augment": True},
    "status": "finished",
    "rounds": 20,
    "rounds_asked": 20,
    "clients": 20,
    "participants_per_round": 10,
    "up_bytes_per_participant": 2.0**20,
    "down_bytes_per_participant": 2.0**21,
    "best_round": 18,
    "best_val_round": 15,
    "state_digest": "a1b2c3d4e5f6a7b8c9",
    "folder": "/a/runs/quickstart/r1",
    "mlflow": "mlflow ui --backend-store-uri sqlite:////a/mlflow.db",
    "seconds": {"total": 43.2, "train": 30.1, "aggregate": 0.2, "evaluate": 9.0},
    "final": {
        "accuracy/all": 0.912,
        "accuracy/all_std": 0.054,
        "accuracy/worst_decile": 0.8,
        "accuracy/participants": 0.93,
        "accuracy/best": 0.92,
        "accuracy/at_best_val": 0.905,
        "comm/up_bytes": 10 * 2**20,
        "comm/down_bytes": 20 * 2**20,
        "comm/total_bytes": 600 * 2**20,
        "compute/total_flops": 1.5e13,
        "time/total_s": 40.0,
        "engine/restarts": 0,
    },
}


def test_accuracy_of_all_clients_with_the_current_message():
    final = {"accuracy/all_current": 0.55, "accuracy/all_current_std": 0.2, "accuracy/all_current_pooled": 0.541}
    final["accuracy/participants_before"] = 0.5
    rows = dict(summary_rows({**SUMMARY, "final": {**SUMMARY["final"], **final}}))
    assert (
        rows["accuracy, current"]
        == "55.0% ± 20.0 (mean ± std), 54.1% pooled, each client after it received the server's current message"
    )
    assert rows["accuracy, before training"] == "50.0%"


def test_clients_that_have_not_taken_part_are_counted():
    def row(absent: int) -> str | None:
        final = {"accuracy/all": 0.5, "accuracy/took_part": 0.95, "engine/absent_clients": absent}
        return dict(summary_rows({**SUMMARY, "final": final})).get("accuracy, took part")

    few = row(10)
    assert few is not None and few.startswith("95.0%") and "10 of 20" in few
    assert row(0) is None


def test_all_rows():
    assert dict(summary_rows(SUMMARY)) == {
        "scenario": "quickstart, fedgh, seed 3",
        "overridden": "rounds=20 data.augment=true",
        "rounds": "20",
        "clients": "20, 10 per round",
        "accuracy, all clients": "91.2% ± 5.4 (mean ± std), each client as it was last tested",
        "accuracy, worst tenth": "80.0%",
        "accuracy, participants": "93.0%",
        "accuracy, best round": "92.0% in round 18, which has the greatest test accuracy of all clients",
        "accuracy at best val.": "90.5% in round 15, which has the greatest validation accuracy of all clients",
        "sent per participant": "1.00 MiB up, 2.00 MiB down per round",
        "total communication": "600 MiB",
        "total computation": "15.0 TFLOP",
        "time": "43.2 s without data, plots and MLflow, 40.0 s for all rounds",
        "time by phase": "train 30.1 s, aggregate 0.20 s, evaluate 9.00 s "
        "(summed over clients, which may run in parallel)",
        "state": "a1b2c3d4e5f6",
        "results": "/a/runs/quickstart/r1",
        "MLflow": "mlflow ui --backend-store-uri sqlite:////a/mlflow.db",
    }


def test_new_clients_and_privacy_have_rows():
    rows = dict(summary_rows({**SUMMARY, "final": {"accuracy/held_out": 0.5, "privacy/epsilon": 4.3812}}))
    assert rows["accuracy, new clients"].startswith("50.0%")
    assert rows["epsilon"] == "4.381"


def test_operations_that_are_not_counted_are_told():
    rows = dict(summary_rows({**SUMMARY, "final": {**SUMMARY["final"], "compute/total_flops": 0.0}}))
    expected = "0 FLOP; those of client hooks outside fit, outputs and add_flops are not counted"
    assert rows["total computation"] == expected


def test_a_run_that_stopped_early():
    early = {**SUMMARY, "status": "interrupted", "rounds": 7, "final": {}, "restarts": 2}
    early |= {"up_bytes_per_participant": 2048.0, "down_bytes_per_participant": None, "seconds": {}}
    found = dict(summary_rows(early))
    assert found["rounds"] == "7 of 20, interrupted"
    assert "uploads left out" not in found
    assert dict(summary_rows({**SUMMARY, "rejected_uploads": 3}))["uploads left out"].startswith("3 of")
    every = dict(summary_rows({**SUMMARY, "uploads": 3, "rejected_uploads": 3, "diverged_clients": 2}))
    assert every["uploads left out"] == "3 of 3 (NaN or infinity)"
    assert every["diverged clients"].startswith("2 of 20: the last loss or upload was NaN or infinite")
    assert "dropped out or late" not in found
    assert dict(summary_rows({**SUMMARY, "dropped_clients": 7}))["dropped out or late"] == "7 client rounds"
    assert found["restarts"] == "2" and found["sent per participant"] == "2.00 KiB up per round"
    assert "accuracy, all clients" not in found and "time" not in found


def test_the_time_of_a_resumed_run():
    def time(final: dict[str, float], **seconds: float) -> str:
        return dict(summary_rows({"seconds": seconds, "final": final}))["time"]

    assert time({}, total=43.2) == "43.2 s"
    for seconds in ({"total": 10.0}, {"total": 50.0, "before_resume": 15.0}):
        found = time({"time/total_s": 40.0}, **seconds)
        assert "since the run was resumed" in found and "40.0 s for all rounds" in found
    assert "resumed" not in time({"time/total_s": 40.0}, total=43.2, before_resume=0.0)


def test_nothing_known():
    assert summary_rows({}) == []
    assert summary_rows({"status": "failed", "final": None, "best_round": None}) == [("rounds", "failed")]


def test_a_path_stays_on_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = io.StringIO()
    folder = "/a b/" + "deep/" * 30 + "[r1]"
    print_closing_table({**SUMMARY, "folder": folder}, out)
    lines = out.getvalue().splitlines()
    assert f" results                  {folder}" in lines
    assert len(lines) == len(summary_rows(SUMMARY)) + 2 and lines[0] == lines[-1] == ""
