"""Public data: a share that no client gets, or another data set; refused where it cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raysim.common.errors import ScenarioError
from raysim.engine.inprocess import InProcessBackend
from raysim.runs.plan import RunData, make_plan
from raysim.runs.run import run
from raysim.scenario.scenario import Scenario
from raysim.study.runs import find_runs
from tests.engine.scenarios import ROUNDS, loaded, outcome

DIGITS, TRAIN = 1797, 1437
"""Samples of scikit-learn's digits, and those that train."""


def assembled(*sets: str) -> RunData:
    return RunData.of(Scenario.of(loaded(*sets)))


def dealt(found: RunData) -> np.ndarray:
    return np.sort(np.concatenate([part.index for part in found.partition.parts.values()]))


@pytest.mark.parametrize("split", ["published", "pooled811"])
def test_a_share_is_held_back_from_all_clients(split: str) -> None:
    plan, found = make_plan(Scenario.of(loaded("data.public.share=0.2", f"data.split={split}")))
    public = found.public
    assert public is not None
    assert len(public.held_P) == round(0.2 * TRAIN)
    assert len(np.unique(public.held_P)) == len(public.held_P) and public.held_P.max() < TRAIN
    # Every sample is public or some client's.
    assert np.array_equal(np.sort(np.concatenate([dealt(found), public.held_P])), np.arange(DIGITS))

    task = plan.task
    assert task.public is not None
    assert np.array_equal(task.public.raw_N.numpy(), found.raw()[public.held_P])
    assert task.public.y.tolist() == found.dataset.label_M[public.held_P].tolist()
    plain = next(task.public.in_order(8)).x
    assert torch.equal(plain, plan.transform.plain(task.public.raw_N[:8]))


OWN = """
name: own
rounds: 1
backend: in_process
algorithm: {name: feddf}
data: {name: numpy, path: own.npz, partition: {name: iid}, public: {name: digits, samples: 40}}
clients: {count: 2, models: [digits_mlp64]}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Own images of the digits' shape, and a scenario of them."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x=images, y=np.arange(60) % 4, user=np.arange(60) % 3)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(OWN)
    return tmp_path / "s.yaml"


def test_another_data_set(own: Path) -> None:
    plan, found = make_plan(Scenario.load(own))
    assert found.public is not None
    assert len(dealt(found)) == 60 and found.public.held_P.size == 0
    task = plan.task
    assert task.public is not None
    assert task.public.raw_N.shape == (40, 8, 8, 1)
    assert task.public.y.tolist() == [-1] * 40  # its classes are others
    # A run is resumed with the same public data only.
    assert found.digest != found.dataset.digest
    without = RunData.of(Scenario.load(own, ["data.public=null", "algorithm={name: fd}"]))
    assert without.digest == without.dataset.digest == found.dataset.digest


def test_standalone_without_the_public_data_is_compared_by_seed(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    sets = ["clients.models=[digits_mlp64]", "algorithm={name: standalone}", "data.public=null"]
    with_public, without = (run(Scenario.load(own, more), quiet=True) for more in ([], sets))
    assert with_public.summary["dataset"] == without.summary["dataset"]
    assert "public_digest" in with_public.summary and "public_digest" not in without.summary
    first, second = find_runs([with_public.folder, without.folder])
    assert first.pair == second.pair
    run(Scenario.load(own, [f"init.run={without.folder}"]), quiet=True)
    assert "different samples" not in caplog.text


@pytest.mark.parametrize(
    ("given", "key", "sentence"),
    [
        ("{share: 0.0001}", "share", "0.0001 given"),
        ("{samples: 5}", "", "`share`"),
        ("{name: digits}", "name", "digits"),
        ("{name: cifar10}", "name", "of the same shape"),
    ],
)
def test_refused(given: str, key: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        Scenario.of(loaded("algorithm={name: feddf}", f"data.public={given}"))
    assert f"data.public{'.' if key else ''}{key}: " in str(raised.value) and sentence in str(raised.value)


def test_labels_of_another_data_set_are_known_not_to_be_there(own: Path) -> None:
    sets = ["algorithm={name: fedmd, transfer_epochs: 2}"]
    with pytest.raises(ScenarioError, match="transfer_epochs: 2 given"):
        Scenario.load(own, sets)
    Scenario.load(own, [*sets, "data.public={share: 0.5}"])


def test_a_share_needs_a_partition_that_deals(own: Path) -> None:
    sets = ["data.public={share: 0.5}", "data.partition={name: natural, by: user}", "clients.count=auto"]
    with pytest.raises(ScenarioError, match=r"data.public.share: 0.5 given"):
        Scenario.load(own, sets)


def test_a_method_that_needs_it_says_so() -> None:
    with pytest.raises(ScenarioError, match=r"data\.public: fedmd"):
        Scenario.of(loaded("algorithm={name: fedmd}"))


def test_what_the_server_computes_is_counted() -> None:
    """By hand, for 100 public samples and four participants with a 64-32-10 perceptron.

    A pass forward takes 2 · (64 · 32 + 32 · 10) = 4,736 operations per sample; a step back as many for the weights and
    2 · 32 · 10 for the hidden layer, 5,376. All four models score the samples once, and their mean learns from them
    twice.
    """
    sets = ["algorithm={name: feddf, distill_epochs: 2}", "data.public={share: 0.2, samples: 100}"]
    _, _, values = outcome(loaded(*sets, "clients.models=[digits_mlp64]"), InProcessBackend())
    expected = 4 * 100 * 4_736 + 2 * 100 * (4_736 + 5_376)
    assert [row["compute/server_flops"] for row in values[1:]] == [expected] * ROUNDS
