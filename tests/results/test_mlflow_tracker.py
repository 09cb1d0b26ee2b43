"""MLflow gets a run as a whole, at most one batch a round, and may fail without taking the run along."""

from __future__ import annotations

import json
import math
import threading
import time

import pytest

from raysim.common.errors import RunError
from raysim.results.database import load_mlflow
from raysim.results.folder import RunFolder
from raysim.results.mlflow import MlflowTracker


def client_of(uri):
    load_mlflow(uri)  # for its filter of MLflow's warnings
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def wait_until(condition, timeout_s=120.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_finished_run(store, tmp_path, make_card, make_rows, monkeypatch, capfd):
    folder = RunFolder.create(tmp_path / "runs" / "quick", "r1")
    folder.write("scenario.yaml", "name: quick\n")
    folder.write("private.txt", "stays")
    (folder.path / "plots").mkdir()
    (folder.path / "plots" / "accuracy.png").write_bytes(b"png")
    card = make_card(folder.path)
    tracker = MlflowTracker(store, "fedgh-digits", {"paper": "FedGH"})
    folder.open(card)
    tracker.open(card)
    assert tracker.ready(60)
    batches = []
    original = tracker._client.log_batch

    def log_batch(*args, **kwargs):
        batches.append(kwargs)
        original(*args, **kwargs)

    monkeypatch.setattr(tracker._client, "log_batch", log_batch)
    for t in range(4):
        values = {
            "accuracy/all": t / 10,
            "comm/total_bytes": 2**40 + t,
            "loss/test": math.nan,
            "odd name!": 1,
        }
        folder.log(t, values, make_rows(t, 3))
        tracker.log(t, values, make_rows(t, 3))
    folder.close("finished", {})
    tracker.close("finished", {})

    sent = [m.key for b in batches for m in b["metrics"]]
    assert sent == ["accuracy/all", "comm/total_bytes", "odd name_"] * 4 and len(batches) <= 4
    assert tracker.where == f"raysim ui --uri {store}"
    client = client_of(store)
    run = client.get_run(tracker.run_id)
    assert run.info.run_name == "fedgh-s1 r1" and run.info.status == "FINISHED"
    history = client.get_metric_history(tracker.run_id, "accuracy/all")
    assert sorted((m.step, m.value) for m in history) == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)]
    assert all(abs(m.timestamp / 1000 - time.time()) < 300 for m in history)
    assert run.data.metrics["comm/total_bytes"] == 2**40 + 3
    assert len(run.data.params) == len(card.parameters)
    assert run.data.params["data.augment"] == "true" and run.data.params["engine.gpus"] == "null"
    assert run.data.params["notes"] == "x" * 6000
    assert run.data.tags["algorithm"] == "fedgh" and run.data.tags["paper"] == "FedGH"
    assert run.data.tags["raysim.version"]
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("digits", "d" * 36)
    assert json.loads(given.dataset.profile) == {"num_samples": 1797}  # MLflow shows it for all runs with this data
    assert run.data.tags["raysim.partition"] == "p" * 64
    names = {f.path for f in client.list_artifacts(tracker.run_id)}
    assert names == {"scenario.yaml", "rounds.parquet", "clients.parquet", "summary.json", "plots"}
    assert (tmp_path / "mlartifacts" / tracker.run_id / "artifacts" / "plots" / "accuracy.png").is_file()
    assert capfd.readouterr() == ("", "")


def test_a_run_that_was_interrupted(store, tmp_path, make_card):
    tracker = MlflowTracker(store, "e", {})
    tracker.open(make_card(tmp_path))
    tracker.log(0, {"accuracy/all": 0.1}, [])  # before it is ready
    tracker.close("interrupted", {})
    run = client_of(store).get_run(tracker.run_id)
    assert run.info.status == "KILLED" and run.data.metrics == {"accuracy/all": 0.1}


def test_open_and_log_do_not_wait(store, tmp_path, make_card, monkeypatch):
    loading, load = threading.Event(), load_mlflow

    def slow(uri):
        assert loading.wait(60)
        return load(uri)

    monkeypatch.setattr("raysim.results.mlflow.load_mlflow", slow)
    tracker = MlflowTracker(store, "e", {})
    tracker.open(make_card(tmp_path))
    for t in range(3):
        tracker.log(t, {"accuracy/all": 0.1}, [])
    assert not tracker.ready(0.0)  # all that, and it has not begun
    loading.set()
    tracker.close("finished", {})
    assert len(client_of(store).get_metric_history(tracker.run_id, "accuracy/all")) == 3


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_server_that_stops_answering(comes_back, store, tmp_path, make_card, monkeypatch, caplog):
    folder = RunFolder.create(tmp_path / "runs" / "quick", "r1")
    tracker = MlflowTracker(store, "e", {}, timeout_s=0.2)
    card = make_card(folder.path)
    folder.open(card)
    tracker.open(card)
    assert tracker.ready(60)
    original, state = tracker._client.log_batch, {"down": True}

    def log_batch(run_id, metrics=(), params=()):
        if state["down"]:
            raise ConnectionError("connection refused")
        original(run_id, metrics=metrics, params=params)

    monkeypatch.setattr(tracker._client, "log_batch", log_batch)
    for t in range(4):
        values = {"accuracy/all": t / 10} | {f"client/{i}": 1.0 for i in range(1200 if t == 3 else 0)}
        folder.log(t, values, [])
        tracker.log(t, values, [])
    wait_until(lambda: caplog.messages)
    assert "the run continues" in caplog.messages[0]
    folder.close("finished", {})
    state["down"] = not comes_back
    if not comes_back:
        with pytest.raises(RunError, match="connection refused"):
            tracker.close("finished", {})
        return
    tracker.close("finished", {})
    client = client_of(store)
    assert len(client.get_metric_history(tracker.run_id, "accuracy/all")) == 4
    assert len(client.get_run(tracker.run_id).data.metrics) == 1000  # what one call takes
