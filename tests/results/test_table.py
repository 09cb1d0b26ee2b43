"""The closing table says what is known and leaves out the rest."""

from __future__ import annotations

from raysim.results.table import summary_rows

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


def test_the_numbers_of_a_run():
    rows = dict(summary_rows(SUMMARY))
    words = {
        "scenario": "seed 3", "overridden": "data.augment=true", "clients": "10 per round",
        "accuracy, all clients": "91.2% ± 5.4", "accuracy, worst tenth": "80.0%", "accuracy, best round": "round 18",
        "accuracy at best val.": "90.5% in round 15", "sent per participant": "1.00 MiB up, 2.00 MiB down",
        "total communication": "600 MiB", "total computation": "15.0 TFLOP", "time": "43.2 s", "state": "a1b2c3d4e5f6",
        "results": "/a/runs/quickstart/r1",
    }  # fmt: skip
    assert {name: word for name, word in words.items() if word not in rows[name]} == {}
    early = {"status": "interrupted", "rounds": 7, "rejected_uploads": 3, "uploads": 5, "restarts": 2, "final": {}}
    rows = dict(summary_rows({**SUMMARY, **early}))
    assert "interrupted" in rows["rounds"] and rows["uploads left out"].startswith("3 of 5") and rows["restarts"] == "2"
    assert "accuracy, all clients" not in rows
