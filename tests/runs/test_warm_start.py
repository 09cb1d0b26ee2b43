"""`init: {run: ...}`: a run begins with the state of another run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import raysim
from raysim.common.errors import ScenarioError
from raysim.engine.workers.client import new_network
from raysim.runs.plan import make_plan
from raysim.runs.preview import preview
from raysim.runs.run import Run, run
from raysim.runs.verify import verify
from raysim.runs.warm_start import warm_start
from raysim.scenario.scenario import Scenario
from tests.conftest import plain_runs
from tests.engine.scenarios import loaded
from tests.runs.test_resume import Cut, of_results

ONE = ("clients.models=[digits_cnn_s]", "rounds=2")
"""One architecture, as FedAvg needs; half of the clients take part in a round, so some never do."""


def source_of(method: str, *sets: str) -> Run:
    return run(loaded(f"algorithm.name={method}", *ONE, *sets), quiet=True)


Finished = Callable[..., Run]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tracking_store: str) -> Finished:
    """`source_of`, whose runs are made once and must not be changed."""
    place = tmp_path_factory.mktemp("finished")

    @cache
    def made_once(method: str, *sets: str) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            plain_runs(patch, tracking_store)
            patch.chdir(place)
            return source_of(method, *sets)

    return made_once


def after(source: Run, method: str, *sets: str) -> Any:
    return loaded(f"algorithm.name={method}", *ONE, f"init.run={source.folder}", *sets)


def networks(of: Run) -> list[dict[str, torch.Tensor]]:
    return [of.client(k).network.state_dict() for k in range(8)]


def test_a_run_begins_with_the_accuracy_with_which_the_other_ended(workplace: Path) -> None:
    source = source_of("standalone", "rounds=3", "clients.models=[digits_mlp64, digits_cnn_s, digits_resnet]")
    sets = ["algorithm.name=standalone", f"init.run={source.folder.name}", "training.lr=0.01", "seeds.weights=9"]
    warm = run(loaded(*sets), quiet=True)
    assert source.rounds["accuracy/all"].iloc[-1] > 0.3
    assert warm.rounds["accuracy/all"][0] == source.rounds["accuracy/all"].iloc[-1]
    resolved = yaml.safe_load((warm.folder / "resolved.yaml").read_text())["init"]
    assert resolved == json.loads((warm.folder / "run.json").read_text())["init"]
    assert resolved["run"] == str(source.folder) and len(resolved["digest"]) == 64


def test_a_run_of_the_same_method_continues_with_the_server(workplace: Path, finished: Finished) -> None:
    source = finished("fedavg")
    warm = run(after(source, "fedavg", "clients.participation=1", "rounds=1", "training.lr=1e-30"), quiet=True)
    assert warm.rounds["accuracy/all"][0] == source.rounds["accuracy/all"].iloc[-1]
    # With this learning rate, each client keeps the model that the server sent, which is the other run's.
    first, *others = networks(warm)
    assert all(torch.equal(one["header.weight"], first["header.weight"]) for one in others)
    untrained = set(range(8)) - set(source.clients["client"][source.clients["round"] > 0])
    assert untrained
    fresh = source.client(int(min(untrained))).network.state_dict()
    assert not torch.equal(first["header.weight"], fresh["header.weight"])


def test_lg_fedavg_begins_with_the_clients_and_the_header_of_fedavg(workplace: Path) -> None:
    source = source_of("fedavg", "clients.participation=1")
    warm = run(after(source, "lg_fedavg", "clients.participation=1", "rounds=1", "training.lr=1e-30"), quiet=True)
    assert warm.rounds["accuracy/all"][0] == source.rounds["accuracy/all"].iloc[-1]
    average = run(after(source, "fedavg", "clients.participation=1", "rounds=1", "training.lr=1e-30"), quiet=True)
    header = average.client(0).network.state_dict()["header.weight"]
    for one, had in zip(networks(warm), networks(source), strict=True):
        assert torch.equal(one["header.weight"], header)  # the server's, in round 1
        extractor = [name for name in one if not name.startswith("header.")]
        assert extractor and all(torch.equal(one[name], had[name]) for name in extractor)  # the client's own


def test_a_server_without_a_model_begins_anew_with_a_warning(
    workplace: Path, finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    run(after(finished("lg_fedavg"), "fedavg"), quiet=True)
    assert "from the server" in caplog.text and "different samples" not in caplog.text
    caplog.clear()
    run(after(finished("standalone"), "standalone", "seed=6"), quiet=True)
    assert "different samples" in caplog.text


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("fedmrl", []),
        ("fedproto", ["algorithm.inference=nearest"]),
        ("heterofl", ["clients.models=[heterofl_cnn_e]"]),
    ],
)
def test_a_model_inside_another_network_or_with_more_buffers(finished: Finished, method: str, sets: list[str]) -> None:
    shared = [one for one in sets if not one.startswith("algorithm.")]
    source = finished("standalone", *shared)
    given = Scenario.of(after(source, method, *sets))
    plan, _ = warm_start(*make_plan(given))
    (arch,) = plan.task.architectures
    net = new_network(plan, plan.task, torch.device("cpu"), arch)
    assert plan.initial is not None
    plan.initial.load(0, net)
    own, held = source.client(0).network.state_dict(), getattr(net, "model", net).state_dict()
    assert all(torch.equal(held[name], value) for name, value in own.items())


@pytest.mark.large
@pytest.mark.ray
def test_the_bits_are_those_of_actors_and_of_a_kill_before_the_first_checkpoint(
    workplace: Path, ray_session: None, finished: Finished
) -> None:
    traces = verify(after(finished("fedavg"), "lg_fedavg"), [2], kill=True)
    assert [trace.difference for trace in traces] == [None] * len(traces)
    assert traces[-1].restarts == 1


def test_a_run_is_resumed_without_the_other_run(workplace: Path) -> None:
    source = source_of("fedavg")
    scenario = after(source, "lg_fedavg", "rounds=3", "checkpoint.every=2")
    whole = run(scenario, quiet=True)
    with pytest.raises(KeyboardInterrupt):
        run(scenario, quiet=True, trackers=[Cut(1)])
    (folder,) = set((workplace / "runs" / "tiny").iterdir()) - {whole.folder, source.folder}
    shutil.rmtree(source.folder)
    assert Run(folder).resume(quiet=True).state_digest == whole.state_digest
    assert of_results(folder)[0].equals(of_results(whole.folder)[0])
    (folder / "init.safetensors").unlink()
    with pytest.raises(ScenarioError, match="init"):
        Run(folder).resume(["rounds=4"], quiet=True)


def test_a_changed_source_is_refused(workplace: Path) -> None:
    source = source_of("standalone")
    warm = run(after(source, "standalone"), quiet=True)
    again = raysim.run(warm.folder / "resolved.yaml", quiet=True)
    assert again.state_digest == warm.state_digest
    source.resume(["rounds=3"], quiet=True)
    with pytest.raises(ScenarioError, match=r"init\.run"):
        raysim.run(warm.folder / "resolved.yaml", quiet=True)


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        (["clients.count=7"], "clients.count"),
        (["clients.models=[digits_mlp64]"], "digits_cnn_s"),
        (["init.run=nowhere"], "nowhere"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(workplace: Path, finished: Finished, sets: list[str], text: str) -> None:
    scenario = after(finished("standalone"), "standalone", *sets)
    for action in (lambda: preview(Scenario.of(scenario)), lambda: run(scenario, quiet=True)):
        with pytest.raises(ScenarioError, match=r"init\.run") as caught:
            action()
        assert text in str(caught.value)
    assert not [*workplace.glob("runs/*/*")], "no run folder may be left"


def test_a_state_that_refers_to_samples_needs_the_same_samples(workplace: Path, finished: Finished) -> None:
    source = finished("fedssa")
    with pytest.raises(ScenarioError, match=r"init\.run.*samples"):
        run(after(source, "fedssa", "seed=6"), quiet=True)
    # With another seed for all but the data, the samples are the same.
    assert run(after(source, "fedssa", "seed=6", "seeds.data=5"), quiet=True).summary


def test_a_source_without_an_intact_state_is_refused(workplace: Path) -> None:
    without = source_of("standalone", "checkpoint.every=0")
    assert not (without.folder / "checkpoints").exists()
    with pytest.raises(ScenarioError, match=r"init\.run.*checkpoint"):
        run(after(without, "standalone"), quiet=True)


def test_the_best_state_by_validation_is_taken(workplace: Path) -> None:
    source = source_of("standalone", "rounds=4", "checkpoint={every: 1, keep: [last, best_val]}")
    best = source.summary["best_val_round"]
    warm = run(after(source, "standalone", "init.round=best_val", "rounds=1"), quiet=True)
    assert warm.rounds["accuracy/all"][0] == source.rounds["accuracy/all"][best]
