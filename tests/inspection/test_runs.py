"""A run's networks, samples and representations as it had them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.data.datasets import load_dataset
from raysim.inspection.runs import own_model
from raysim.launch.session import Result

Runs = Callable[..., Result]


def test_a_loaded_client_has_the_accuracy_that_the_run_measured(runs: Runs) -> None:
    result = runs()
    last = result.clients.dropna(subset=["accuracy"]).groupby("client").last()
    assert result.clients["participated"].sum() < 3 * 8  # in each round some client keeps its state
    for k, row in last.iterrows():
        net, test = raysim.load_client(result.folder, k), raysim.client_data(result.folder, k, "test")
        right = net(test.x).argmax(1) == test.y
        assert (int(right.sum()), len(test)) == (row["correct"], row["total"])
        assert not net.training


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_samples_are_those_of_the_partition_table(runs: Runs, part: str) -> None:
    result = runs()
    table = pq.read_table(result.folder / "partition.parquet").to_pandas().query("part == @part and client == 2")
    samples = raysim.client_data(result.folder, 2, part)
    assert samples.y.tolist() == table["label"].tolist()
    images = load_dataset("digits").raw_M[table["sample"].to_numpy()]
    assert np.array_equal(samples.raw_N.numpy(), images)


def test_representations_are_what_the_header_reads(runs: Runs) -> None:
    folder = runs().folder
    value_ND, label_N, client_N = raysim.representations(folder, [4, 1], "val")
    assert value_ND.shape == (len(label_N), 32) and client_N.tolist() == sorted(client_N, reverse=True)
    net, samples = raysim.load_client(folder, 4), raysim.client_data(folder, 4, "val")
    logits_NC = net.header(torch.from_numpy(value_ND[client_N == 4]))
    torch.testing.assert_close(logits_NC, net(samples.x))


def test_earlier_rounds_as_far_as_they_are_kept(runs: Runs) -> None:
    folder = runs("fedgh", "checkpoint.every=1").folder
    cohort = set(runs("fedgh", "checkpoint.every=1").clients.query("round == 3 and participated")["client"])
    for k in range(8):
        now, before = (raysim.load_client(folder, k, t).state_dict() for t in (3, 2))
        assert all(torch.equal(now[name], before[name]) for name in now) == (k not in cohort)
    with pytest.raises(
        raysim.ScenarioError, match=r"^round 1 given, but .* keeps the state after round 2 and 3 only; "
    ):
        raysim.load_client(folder, 0, 1)


@pytest.mark.parametrize("method", ["fml", "fedkd", "fedapen", "fedral", "hks"])
def test_the_own_model_is_found_beside_others(runs: Runs, method: str) -> None:
    net = raysim.load_client(runs(method, "rounds=1").folder, 0)
    assert {name for name, _ in own_model(net).named_children()} >= {"header"} or method == "fedral"
    assert own_model(net).features(raysim.client_data(runs(method, "rounds=1").folder, 0, "test").x).shape[1] == 32


def test_nothing_in_the_folder_changes(runs: Runs) -> None:
    folder = runs().folder
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    raysim.representations(folder, [0], "test")
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_what_cannot_be_is_one_sentence(runs: Runs, tmp_path: Path) -> None:
    folder = runs().folder
    for call, sentence in (
        (lambda: raysim.load_client(folder, 8), r"^client 8 given, but .* has clients 0 to 7$"),
        (lambda: raysim.load_client(folder, -1), r"^client -1 given, "),
        (lambda: raysim.client_data(folder, 0, "tests"), r"^part: 'tests' given; allowed: train, val, test$"),
        (lambda: raysim.load_client("nowhere", 0), r"^nowhere given, but there is no such run folder"),
        (lambda: raysim.load_client(tmp_path, 0), r"contains no run.json"),
        (lambda: raysim.load_client(runs("fedgh", "checkpoint.every=0").folder, 0), r"has no checkpoint; "),
    ):
        with pytest.raises(raysim.ScenarioError, match=sentence):
            call()
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for part in (copy / "checkpoints").glob("clients-*"):
        part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(raysim.ScenarioError, match=r"has no checkpoint \(the checkpoint of round 3 cannot"):
        raysim.load_client(copy, 0)


def test_data_that_is_not_the_runs_is_refused(runs: Runs, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs().folder, copy)
    card = copy / "run.json"
    card.write_text(card.read_text().replace('"partition_digest": "', '"partition_digest": "0000'))
    with pytest.raises(raysim.ScenarioError, match=r"its partition had the digest 0000.*, the present one has "):
        raysim.client_data(copy, 0, "train")
