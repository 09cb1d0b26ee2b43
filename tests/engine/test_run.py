"""A whole run in this process: its files, its numbers, and what it leaves when it fails."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch import Tensor

from raysim.algorithms.standalone import Standalone
from raysim.common.errors import HookError
from raysim.common.results import METRICS
from raysim.data.partition import make_partition
from raysim.data.shards import make_shards
from raysim.engine.checkpoint.format import read_clients, read_file, read_server
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.workers.client import ClientWorker
from raysim.models.split import SplitNet
from raysim.results.in_memory import MemoryTracker
from raysim.results.load import class_accuracy
from raysim.runs.plan import make_plan
from raysim.runs.run import Run, run
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import loaded


def quiet_run(*sets: str, **changes: Any) -> tuple[Run, MemoryTracker]:
    memory = MemoryTracker()
    return run(loaded(*sets, **changes), quiet=True, trackers=[memory]), memory


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tracking_store: str) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("finished"))
        patch.setenv("MLFLOW_TRACKING_URI", tracking_store)
        return quiet_run("checkpoint.every=2")[0]


def test_the_run_folder_is_complete(finished: Run) -> None:
    files = {str(path.relative_to(finished.folder)) for path in finished.folder.rglob("*") if path.is_file()}
    assert files >= {
        "scenario.yaml",
        "resolved.yaml",
        "rounds.parquet",
        "clients.parquet",
        "partition.parquet",
        "summary.json",
        "plots/accuracy.png",
        "plots/partition.png",
    }
    assert "clients.arrows" not in files  # it became clients.parquet
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert len(summary["state_digest"]) == 64
    assert yaml.safe_load((finished.folder / "resolved.yaml").read_text())["training"]["epochs"] == 1


def test_rounds_add_up(finished: Run) -> None:
    rounds = pq.read_table(finished.folder / "rounds.parquet").to_pylist()
    clients = pq.read_table(finished.folder / "clients.parquet").to_pylist()
    assert [row["round"] for row in rounds] == [0, 1, 2, 3]
    # Every agreed name is a column with values, those that the scenario did not ask for excepted.
    assert set(METRICS) <= set(rounds[0])
    found = {name for name, value in rounds[-1].items() if value is not None and math.isfinite(value)}
    asked_for = {"accuracy/global", "time/virtual_s", "time/virtual_total_s", "engine/dropped_clients"}
    asked_for |= {"accuracy/participants_before", "accuracy/val_current", "accuracy/best_current", "loss/test_current"}
    asked_for |= {"accuracy/held_out"}
    asked_for |= {name for name in METRICS if name.startswith(("accuracy/all_current", "privacy/", "async/"))}
    assert set(METRICS) - asked_for <= found
    total = 0
    for row in rounds[1:]:
        members = [c for c in clients if c["round"] == row["round"]]
        assert len(members) == 4
        assert all(c["participated"] for c in members)
        assert row["comm/up_bytes"] == sum(c["up_bytes"] for c in members)
        assert row["accuracy/participants"] == pytest.approx(np.mean([c["accuracy"] for c in members]))
        assert row["accuracy/participants_pooled"] == sum(c["correct"] for c in members) / sum(
            c["total"] for c in members
        )
        total += row["comm/up_bytes"] + row["comm/down_bytes"]
        assert row["comm/total_bytes"] == total
        # All clients: each with the last row that it has.
        latest = {c["client"]: c["accuracy"] for c in clients if c["round"] <= row["round"]}
        assert len(latest) == 8
        assert row["accuracy/all"] == pytest.approx(np.mean(list(latest.values())))
        assert row["accuracy/all_std"] == pytest.approx(np.std(list(latest.values())))
        took_part = {c["client"] for c in clients if c["participated"] and c["round"] <= row["round"]}
        assert row["accuracy/took_part"] == pytest.approx(np.mean([latest[k] for k in took_part]))
        assert row["engine/absent_clients"] == 8 - len(took_part)
        assert row["accuracy/min"] == min(latest.values())
        assert row["accuracy/decile_1"] <= row["accuracy/median"] <= row["accuracy/decile_9"]
        val = {c["client"]: c["val_correct"] / c["val_total"] for c in clients if c["round"] <= row["round"]}
        assert row["accuracy/val"] == pytest.approx(np.mean(list(val.values())))
    summary = finished.summary
    for way in ("up", "down"):
        total = sum(client[f"{way}_bytes"] for client in clients if client["participated"])
        assert sum(summary[f"{way}_bytes_by_field"].values()) == total > 0
        assert summary[f"{way}_bytes_per_participant"] == total / 12
    assert rounds[-1]["accuracy/best"] == max(row["accuracy/all"] for row in rounds[1:])
    chosen = max(rounds[1:], key=lambda row: row["accuracy/val"])  # the first of equal ones
    assert rounds[-1]["accuracy/at_best_val"] == chosen["accuracy/all"]
    assert summary["best_val_round"] == chosen["round"]
    dealt = pq.read_table(finished.folder / "partition.parquet").to_pandas()
    for client in clients:
        assert client["accuracy"] == client["correct"] / client["total"]
        assert sum(client["class_correct"]) == client["correct"] and 0 <= client["macro_f1"] <= 1
        assert 0 <= client["balanced_accuracy"] <= 1
        own = dealt[dealt["client"] == client["client"]]["part"].value_counts()
        assert (client["total"], client["val_total"]) == (own["test"], own["val"])


def test_accuracy_of_each_class(finished: Run) -> None:
    found = class_accuracy(finished.folder).to_pydict()
    dealt = finished.folder / "partition.parquet"
    tested = pq.read_table(dealt).to_pandas().query("part == 'test'")
    assert dict(zip(found["class"], found["total"], strict=True)) == tested["label"].value_counts().to_dict()
    last = Run(finished.folder).clients.dropna(subset=["accuracy"]).groupby("client").last()
    assert sum(found["correct"]) == last["correct"].sum()
    assert found["accuracy"] == [c / n for c, n in zip(found["correct"], found["total"], strict=True)]
    assert found["name"] == [str(c) for c in found["class"]]
    # By hand, of the client with the least id.
    labels = sorted({*tested[tested["client"] == 0]["label"]})
    assert len(last.loc[0, "class_correct"]) == len(labels)


@pytest.mark.parametrize("split", ["pooled811", "published"])
def test_test_and_validation_samples_are_told_apart(split: str) -> None:
    checked = Scenario.of(loaded(f"data.split={split}", "data.partition={name: dirichlet}"))
    plan, data = make_plan(checked)
    host = ClientWorker(plan, data.raw())
    with torch.no_grad():  # networks that say "3" to everything
        for k in range(8):
            header = host.states.open(k).header
            header.weight.zero_()
            header.bias.copy_(torch.arange(10) == 3)
    counts = {part: data.partition.count_NC(data.dataset.label_M, 10, part) for part in ("val", "test")}
    threes = {part: count_NC[:, 3].tolist() for part, count_NC in counts.items()}
    found = host.evaluation.evaluate([(k,) for k in range(8)], "whole").values()
    assert [one.correct for one in found] == threes["test"]
    assert [one.val_correct for one in found] == threes["val"]
    assert [one.val_total for one in found] == data.partition.val.size_N.tolist()
    # One logit is 1 and nine are 0: ln(9 + e) each, and 1 less where it is a three.
    for one in found:
        assert one.loss_sum == pytest.approx(one.total * math.log(9 + math.e) - one.correct)
    if split == "published":
        assert not any(one.val_total for one in found) and sum(one.total for one in found) == 360


@pytest.mark.parametrize("together", [1, 8])
def test_clients_without_training_or_test_samples(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, together: int
) -> None:
    """They are warned of; a network that is never tested sees no empty batch, which `x.view(len(x), -1)` refuses."""
    without = {"train": [0, 5], "val": [0, 3, 5], "test": [3]}

    def dealt(*given: Any) -> Any:
        partition, parts = make_partition(*given), {}
        for name, clients in without.items():
            shards = partition.parts[name]
            kept = ~np.isin(shards.owner, clients)
            parts[name] = make_shards(shards.index[kept], shards.owner[kept], partition.num_clients)
        return replace(partition, **parts)

    forward = SplitNet.forward

    def refusing(net: SplitNet, x_B: Tensor) -> Tensor:
        return forward(net, x_B.view(len(x_B), -1).view(x_B.shape))

    monkeypatch.setattr("raysim.runs.plan.make_partition", dealt)
    monkeypatch.setattr(SplitNet, "forward", refusing)
    result = run(loaded("rounds=1", "clients.participation=1", f"training.together={together}"), quiet=True)
    assert [text.split()[0] for text in caplog.messages if "clients hold no" in text] == ["2", "1", "3"]
    assert result.summary["participants_per_round"] == 8 - len(without["train"])
    rows = Run(result.folder).clients.query("client == 3")
    assert rows["total"].isna().all() or (rows["total"] == 0).all()
    assert len(Run(result.folder).client(3).predictions("test")) == 0


def test_flops_are_those_of_the_layers(workplace: Path) -> None:
    # One client with the 64-32-10 MLP: 64*32 + 32*10 multiply-adds forward, 2 operations each; backward repeats the
    # second layer twice and the first once (no gradient of the images): 2*(2*2368 + 2048 ... ) per sample.
    _, memory = quiet_run(
        "clients={count: 1, models: [digits_mlp64]}", "algorithm={name: standalone}", "data.partition={name: iid}"
    )
    rows = [row for row in memory.clients if row.round == 1]
    forward, first = 2 * (64 * 32 + 32 * 10), 2 * 64 * 32
    assert rows[0].flops == rows[0].train_samples * (3 * forward - first)


def test_global_test_set(workplace: Path) -> None:
    _, memory = quiet_run("data.split=published", "evaluation.global_test=true", "data.partition={name: iid}")
    values = memory.rounds[3]
    assert 0 < values["accuracy/global"] <= 1
    rows = [row for row in memory.clients if row.round == 3]
    assert values["accuracy/global"] == pytest.approx(np.mean([row.global_accuracy for row in rows]))
    # By default the initial networks are tested on it, too.
    assert all(row.global_accuracy is not None for row in memory.clients if row.round == 0)
    # 360 published test images: every accuracy on them is a multiple of 1/360.
    assert all(math.isclose(row.global_accuracy * 360, round(row.global_accuracy * 360)) for row in rows)


def test_the_global_test_set_has_rounds_of_its_own(workplace: Path) -> None:
    """It is tested after every other round and after the last, not before round 1; nothing else of a result changes."""
    sets = ["data.split=published", "evaluation.global_test=true", "data.partition={name: iid}"]
    sets += ["training.together=2", "clients.models=[digits_mlp64]"]
    every, all_rounds = quiet_run(*sets)
    seldom, some_rounds = quiet_run(*sets, "evaluation.global_every=2")
    assert seldom.state_digest == every.state_digest
    for t, values in enumerate(some_rounds.rounds):
        if t == 1:
            assert "accuracy/global" not in values
        elif t > 0:
            assert values["accuracy/global"] == all_rounds.rounds[t]["accuracy/global"]
        assert values["accuracy/all"] == all_rounds.rounds[t]["accuracy/all"]
    assert {row.round for row in some_rounds.clients if row.global_accuracy is not None} == {2, 3}
    assert seldom.summary["final"]["accuracy/global"] == every.summary["final"]["accuracy/global"]


def test_what_is_no_message_is_told_with_its_hook(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Standalone, "server_send", lambda *_: {"w": torch.ones(2)})
    with pytest.raises(HookError, match=r"Standalone.server_send.* failed in round 1\b.*@message"):
        quiet_run("algorithm={name: standalone}")


def test_a_failing_hook_says_where_and_keeps_what_was_done(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Standalone, client: Any, down: None) -> None:
        client.fit(lambda net, batch, given: net(batch.x).mean())
        if client.t == 2:
            raise KeyError("oh")

    monkeypatch.setattr(Standalone, "client_update", broken)
    with pytest.raises(HookError, match=r"Standalone.client_update of client \d failed in round 2 .*KeyError: 'oh'"):
        quiet_run("algorithm={name: standalone}")
    (folder,) = (workplace / "runs" / "tiny").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "KeyError" in summary["error"]
    assert summary["rounds"] == 1
    assert pq.read_table(folder / "rounds.parquet")["round"].to_pylist() == [0, 1]
    assert "KeyError" in (folder / "logs" / "error.txt").read_text()


def test_nan_uploads_are_left_out_and_named(workplace: Path, finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysim.algorithms.lg_fedavg import LGFedAvg
    from raysim.core import Header

    update = LGFedAvg.client_update

    def poisoned(self: LGFedAvg, client: Any, down: Any) -> Header:
        up = update(self, client, down)
        if client.t == 1 and client.id == poison:
            up.w["bias"][0] = float("nan")
        return up

    poison = int(finished.clients.query("round == 1 and participated")["client"].iloc[0])
    monkeypatch.setattr(LGFedAvg, "client_update", poisoned)
    result, memory = quiet_run("algorithm={name: lg_fedavg}")
    assert result.summary["rejected_uploads"] == 1
    assert all(math.isfinite(memory.rounds[t]["server/header_norm"]) for t in (1, 2, 3))


def test_clients_that_diverge_are_named_once_and_counted(workplace: Path, caplog: pytest.LogCaptureFixture) -> None:
    sets = ("rounds=2", "algorithm.name=lg_fedavg", "clients.models=[digits_mlp64]", "training.lr=1e20")
    given = loaded(*sets, training={"batch_size": 32})
    result = run(given, quiet=True)
    uploads = 2 * 4
    clients = Run(result.folder).clients
    first = ", ".join(map(str, sorted(set(clients.query("round == 1 and participated")["client"]))))
    assert sum(text.startswith("round 1:") and f"clients {first} " in text for text in caplog.messages) == 1
    assert sum("all uploads" in text for text in caplog.messages) == 2
    trained = set(clients.query("participated")["client"])
    assert result.summary["diverged_clients"] == len(trained)
    assert result.summary["rejected_uploads"] == result.summary["uploads"] == uploads


def test_checkpoints_hold_every_state(finished: Run) -> None:
    store = CheckpointStore.open(open_storage(finished.folder / "checkpoints"))
    assert [checkpoint.round for checkpoint in store.kept] == [2, 3]
    checkpoint = store.latest()
    assert checkpoint is not None
    rows = finished.clients
    took_part = sorted(map(int, rows.query("participated")["client"].unique()))
    states = {
        k: state
        for file in checkpoint.client_files
        for k, state in read_clients(read_file(store.storage, file), file.clients).items()
    }
    assert sorted(states) == took_part
    # The weights in it measure as the run's last rows say.
    checked = Scenario.of(loaded())
    plan, data = make_plan(checked)
    host = ClientWorker(plan, data.raw())
    for k, state in states.items():
        host.states.open(k).load_state_dict(state)
    latest = rows.groupby("client")["correct"].last()
    assert {k: one.correct for k, one in host.evaluation.evaluate([(k,) for k in took_part], "whole").items()} == {
        k: latest[k] for k in took_part
    }
    assert read_server(read_file(store.storage, checkpoint.server))[0].tensors.keys() == {"w.weight", "w.bias"}
