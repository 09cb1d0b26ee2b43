"""A run goes on in the MLflow run that it had, which then holds every round once, whatever it held before."""

from __future__ import annotations

import pytest

from raysim.results.database import load_mlflow
from raysim.results.folder import RunFolder
from raysim.results.mlflow import MlflowTracker

LAST = 6


@pytest.fixture
def client(store):
    load_mlflow(store)  # for its filter of MLflow's warnings
    from mlflow.tracking import MlflowClient

    return MlflowClient(store)


@pytest.fixture
def begin(store, tmp_path, make_card):
    """A tracker that has opened, for a run whose folder holds rounds 0 to `done`; None: a new run."""

    def begin(done=None, **changes):
        if done is not None:
            folder = RunFolder.create(tmp_path, str(changes.get("run_id", "r1")))
            folder.open(make_card(folder.path))
            for t in range(LAST + 1):
                folder.log(t, values(t), [])
            folder.close("finished", {})
            changes["folder"] = folder.path
        tracker = MlflowTracker(store, "e", {"paper": "FedGH"}, timeout_s=5.0)
        tracker.open(make_card(changes.pop("folder", tmp_path), **changes))
        return tracker

    return begin


def values(t):
    """As the engine has them: round 0 has no time, and not every round an accuracy."""
    if t == 0:
        return {"accuracy/all": 0.0, "loss/test": 2.0}
    return {"client/x": 1.0, "comm/up_bytes": 2.0**40 + t, "time/round_s": t / 8} | (
        {"accuracy/all": t / 10} if t % 3 == 0 else {}
    )


def tell(tracker, *rounds):
    for t in rounds:
        tracker.log(t, values(t), [])


def kill(tracker):
    """End the tracker's thread once it has sent all, without a word to MLflow about it."""
    tracker._complete = lambda: tracker._send(tracker._logged())
    tracker.close("failed", {})


def the_run(client):
    """The one run of the experiment, which must hold rounds 0 to LAST once each."""
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    for name in ("accuracy/all", "loss/test", "client/x", "comm/up_bytes", "time/round_s"):
        history = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name))
        assert history == [(t, values(t)[name]) for t in range(LAST + 1) if name in values(t)], name
    assert run.info.status == "FINISHED"
    return run


def test_every_round_is_there_once(client, begin):
    """MLflow had fewer rounds than the folder, from which the run continues."""
    killed = begin()
    tell(killed, 0, 3, 4)
    kill(killed)
    tracker = begin(5)
    tell(tracker, LAST)
    tracker.close("finished", {})
    assert the_run(client).info.run_id == tracker.run_id == killed.run_id


def test_a_run_that_ended_is_running_again(client, begin):
    tracker = begin()
    tell(tracker, 0, 1)
    tracker.close("interrupted", {"ended_early": "no progress"})
    tracker = begin(1)
    assert tracker.ready(30)
    found = client.get_run(tracker.run_id)
    assert found.info.status == "RUNNING" and "ended_early" not in found.data.tags
    tracker.close("finished", {})
    the_run(client)


def test_parameters_are_added_but_not_changed(client, begin):
    killed = begin(parameters={"a": 1, "resources.gpus": 0})
    kill(killed)
    changed = {"a": 2, "resources.gpus": 4} | {f"new {i}": i for i in range(150)}
    tracker = begin(3, parameters=changed, tags={"algorithm": "fedgh", "host": "b"}, dataset="cifar100")
    tracker.close("finished", {})
    run = the_run(client)
    assert run.data.params == {"a": "1", "resources.gpus": "0"} | {f"new {i}": str(i) for i in range(150)}
    assert run.data.tags["host"] == "b" and run.data.tags["paper"] == "FedGH"
    assert [given.dataset.name for given in run.inputs.dataset_inputs] == ["digits"]


def test_a_server_that_fails_once_at_the_start(client, begin, monkeypatch):
    """As if two runs added the same data set at once: MLflow refuses the second, which has to repeat its call."""
    from mlflow.tracking import MlflowClient

    original, errors = MlflowClient.log_inputs, [ConnectionError("connection refused")]

    def failing(self, *args, **kwargs):
        if errors:
            raise errors.pop()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_inputs", failing)
    begin(3).close("finished", {})
    assert not errors and len(the_run(client).inputs.dataset_inputs) == 1
