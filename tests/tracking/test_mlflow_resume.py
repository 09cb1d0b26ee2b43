"""A run goes on in the MLflow run that it had, which then holds every round once, whatever it held before."""

from __future__ import annotations

import pytest

from raysim.common.errors import ScenarioError
from raysim.tracking.database import load_mlflow
from raysim.tracking.mlflow import MlflowTracker

LAST = 6


@pytest.fixture
def client(store):
    load_mlflow(store)  # for its filter of MLflow's warnings
    from mlflow.tracking import MlflowClient

    return MlflowClient(store)


@pytest.fixture
def begin(store, tmp_path, make_card):
    """A tracker that has opened, for a run that has done `done` rounds; None: a new run."""

    def begin(done=None, experiment="e", breaking=None, **changes):
        tracker = MlflowTracker(store, experiment, {"paper": "FedGH"}, timeout_s=5.0)
        if done is not None:
            tracker.resume([{"round": t, **values(t)} for t in range(done + 1)])
        if breaking is not None:
            tracker.calls = before(tracker, *breaking)
        tracker.open(make_card(tmp_path, **changes))
        return tracker

    return begin


def values(t):
    """As the engine has them: round 0 has no time, and not every round an accuracy."""
    if t == 0:
        return {"accuracy/all": 0.0, "loss/test": 2.0}
    return {"client/x": 1.0, "comm/up_bytes": 2.0**40 + t, "time/round_s": t / 8} | (
        {"accuracy/all": t / 10} if t % 3 == 0 else {}
    )


def tell(tracker, first, last):
    for t in range(first, last + 1):
        tracker.log(t, values(t), [])


def kill(tracker):
    """End the tracker's thread once it has sent all, without a word to MLflow about it."""
    tracker._complete = tracker._send_waiting
    tracker.close("failed", {})


def end(tracker):
    tracker.close("finished", {})


class RefusalError(Exception):
    def get_http_status_code(self):
        return 400


def before(tracker, method, error):
    """Raise `error(n)`, if there is one, instead of the n-th call of the method of MLflow's client; returns all n."""
    find, calls = tracker._find_experiment, []

    def patched():
        original = getattr(tracker._client, method)

        def call(*args, **kwargs):
            calls.append(len(calls) + 1)
            if (problem := error(len(calls))) is not None:
                raise problem
            return original(*args, **kwargs)

        setattr(tracker._client, method, call)
        return find()

    tracker._find_experiment = patched  # the first that is asked of the client
    return calls


def the_run(client, experiment="e"):
    """The one run of the experiment, which must hold rounds 0 to LAST once each."""
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    for name in ("accuracy/all", "loss/test", "client/x", "comm/up_bytes", "time/round_s"):
        history = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name))
        assert history == [(t, values(t)[name]) for t in range(LAST + 1) if name in values(t)], name
    assert run.info.status == "FINISHED"
    return run


@pytest.mark.parametrize(("sent", "done"), [(0, 4), (2, 2), (5, -1), (5, 2)])
def test_every_round_is_there_once(client, begin, sent, done):
    killed = begin()
    tell(killed, 0, sent)
    kill(killed)
    tracker = begin(done)
    tell(tracker, done + 1, LAST)
    end(tracker)
    run = the_run(client)
    assert run.info.run_id == tracker.run_id == killed.run_id
    assert run.data.tags["raysim.resumed"] == "1"


def test_rounds_in_between_that_are_missing_are_sent(client, begin):
    killed = begin()
    for t in (0, 3, 4):
        tell(killed, t, t)
    kill(killed)
    tracker = begin(5)
    assert tracker.ready(60)
    sent, log_batch = [], tracker._client.log_batch

    def count(run_id, metrics):
        sent.extend({m.step for m in metrics})
        log_batch(run_id, metrics=metrics)

    tracker._client.log_batch = count
    tell(tracker, 6, LAST)
    end(tracker)
    the_run(client)
    assert sorted(sent) == [1, 2, 5, 6]


def test_a_run_that_ended_is_running_again_each_time(client, begin):
    for done, status in ((None, "failed"), (2, "interrupted"), (4, "finished")):
        tracker = begin(done)
        assert tracker.ready(30) and client.get_run(tracker.run_id).info.status == "RUNNING"
        tell(tracker, 0 if done is None else done + 1, 2 if done is None else done + 2)
        tracker.close(status, {})
    run = the_run(client)
    assert run.data.tags["raysim.resumed"] == "2"


def test_parameters_are_added_but_not_changed(client, begin):
    killed = begin(parameters={"a": 1, "resources.gpus": 0})
    tell(killed, 0, 3)
    kill(killed)
    changed = {"a": 2, "resources.gpus": 4} | {f"new {i}": i for i in range(150)}
    tracker = begin(3, parameters=changed, tags={"algorithm": "fedgh", "host": "b"}, dataset="cifar100")
    tell(tracker, 4, LAST)
    end(tracker)
    run = the_run(client)
    assert run.data.params == {"a": "1", "resources.gpus": "0"} | {f"new {i}": str(i) for i in range(150)}
    assert run.data.tags["host"] == "b" and run.data.tags["paper"] == "FedGH"
    assert [given.dataset.name for given in run.inputs.dataset_inputs] == ["digits"]


def test_a_run_that_was_never_made(client, begin):
    killed = begin(run_id="another")  # in the same experiment
    tell(killed, 0, 1)
    kill(killed)
    tracker = begin(4)
    tell(tracker, 5, LAST)
    end(tracker)
    client.delete_run(killed.run_id)
    assert "raysim.resumed" not in the_run(client).data.tags


def test_a_run_that_was_made_and_nothing_else(client, begin, make_card, tmp_path):
    experiment = client.create_experiment("e")
    made = client.create_run(experiment, tags={"raysim.run_id": "r1"})
    tracker = begin(4)
    tell(tracker, 5, LAST)
    end(tracker)
    run = the_run(client)
    assert run.info.run_id == made.info.run_id
    assert len(run.data.params) == len(make_card(tmp_path).parameters)
    assert len(run.inputs.dataset_inputs) == 1 and run.data.tags["raysim.version"]


def test_a_run_of_which_only_some_parameters_arrived(client, begin, make_card, tmp_path):
    killed = begin(breaking=("log_batch", lambda n: RefusalError() if n == 2 else None))
    with pytest.raises(ScenarioError, match="could not record the run"):
        killed.ready(30)
    killed.close("failed", {})
    assert killed.calls == [1, 2]
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert len(run.data.params) == 100
    tracker = begin(-1)
    tell(tracker, 0, LAST)
    end(tracker)
    run = the_run(client)
    assert len(run.data.params) == len(make_card(tmp_path).parameters) and len(run.inputs.dataset_inputs) == 1


def test_an_empty_twin_is_not_taken_for_the_run(client, begin):
    experiment = client.create_experiment("e")
    client.create_run(experiment, tags={"raysim.run_id": "r1"})
    killed = begin()
    tell(killed, 0, 2)
    kill(killed)
    client.create_run(experiment, tags={"raysim.run_id": "r1"})
    tracker = begin(2)
    assert tracker.ready(30) and tracker.run_id == killed.run_id
    kill(tracker)


def test_a_run_that_was_deleted_is_made_again(client, begin):
    killed = begin()
    tell(killed, 0, 2)
    kill(killed)
    client.delete_run(killed.run_id)
    tracker = begin(4)
    tell(tracker, 5, LAST)
    end(tracker)
    the_run(client)
    assert tracker.run_id != killed.run_id


@pytest.mark.parametrize("call", ["search_runs", "update_run", "get_metric_history", "log_batch"])
def test_a_server_that_fails_once_while_the_run_is_looked_for(client, begin, call):
    killed = begin(parameters={"a": 1})
    tell(killed, 0, 2)
    kill(killed)
    client.set_tag(killed.run_id, "raysim.resumed", "4")
    breaking = (call, lambda n: ConnectionError("connection refused") if n == 1 else None)
    tracker = begin(3, parameters={"b": 1}, breaking=breaking)
    tell(tracker, 4, LAST)
    end(tracker)
    assert len(tracker.calls) > 1
    run = the_run(client)
    assert run.data.params == {"a": "1", "b": "1"} and run.data.tags["raysim.resumed"] == "5"


def test_a_round_too_long_for_one_call_is_not_sent_again(begin):
    long = {f"client/{i}": 1.0 for i in range(1200)} | {"time/round_s": 0.5}
    killed = begin()
    killed.log(1, long, [])
    kill(killed)
    tracker = begin(-1)
    assert tracker.ready(30)
    tracker._client.log_batch = None  # a call would fail
    tracker.log(1, long, [])
    kill(tracker)


def test_files_are_uploaded_again(client, begin, tmp_path):
    for done, text in ((None, "first"), (2, "second")):
        (tmp_path / "resolved.yaml").write_text(text)
        tracker = begin(done)
        tell(tracker, 0, 2)
        end(tracker)
    assert [artifact.path for artifact in client.list_artifacts(tracker.run_id)] == ["resolved.yaml", "summary.json"]
    assert (tmp_path / "mlartifacts" / tracker.run_id / "artifacts" / "resolved.yaml").read_text() == "second"
    assert len(client.get_metric_history(tracker.run_id, "time/round_s")) == 2


def test_without_resume_a_run_is_a_new_one(client, begin):
    for _ in range(2):
        tracker = begin()
        tell(tracker, 0, 1)
        end(tracker)
    found = client.search_runs([tracker.experiment_id])
    assert len(found) == 2 and not any("raysim.resumed" in run.data.tags for run in found)


@pytest.mark.parametrize(("given", "expected"), [(None, "fedgh-s1 rounds=7 r1"), ("mine", "mine")])
def test_the_name_follows_the_overrides_unless_the_user_gave_one(client, begin, given, expected):
    killed = begin(label="fedgh-s1 rounds=4")
    tell(killed, 0, 4)
    kill(killed)
    if given is not None:
        client.update_run(killed.run_id, name=given)
    tracker = begin(4, label="fedgh-s1 rounds=7")
    tell(tracker, 5, LAST)
    end(tracker)
    assert the_run(client).info.run_name == expected
