"""Checkpoints: what is written is read back bit for bit, deaths leave a whole one behind, damage is named."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysim.core.messages import weights
from raysim.core.state import serialize
from raysim.engine.checkpoint.format import client_files, read_clients, read_file, read_server, server_file
from raysim.engine.checkpoint.storage import Storage, open_storage
from raysim.engine.checkpoint.store import AUTO_INTERVAL_S, CheckpointManager, CheckpointStore, DamagedCheckpointError
from raysim.engine.records import SavedFiles


def state_of(k: int, t: int, size: int = 6) -> dict[str, torch.Tensor]:
    """Distinct for each client and round."""
    return {"w": torch.full((size,), 100.0 * t + k), "steps": torch.tensor(t)}


def add(store: CheckpointStore, t: int, changed: list[int], size: int = 6) -> None:
    """Write and checkpoint round `t` as a run does."""
    parts = []
    for part, data in client_files(t, ((k, state_of(k, t, size)) for k in changed)):
        store.storage.write(part.name, data)
        parts.append(part)
    server, data = server_file(t, serialize({"round": t}), {"flops": {}})
    store.storage.write(server.name, data)
    store.add(t, parts, server, {"best": 0.1 + 0.2})


def held(store: CheckpointStore) -> tuple[int, dict[int, int]]:
    """(round of the latest checkpoint, client -> the round whose state it has there)."""
    checkpoint = store.latest()
    assert checkpoint is not None
    steps: dict[int, int] = {}

    def read(files: SavedFiles, storage: Storage) -> None:
        clients, server = files
        assert checkpoint is not None
        tree = ["dict", [[["value", "round"], ["value", checkpoint.round]]]]
        assert read_server(read_file(storage, server))[0].tree == tree
        for file in clients:
            states = read_clients(read_file(storage, file), file.clients)
            steps.update({k: int(state["steps"]) for k, state in states.items()})

    try:
        store.restore(checkpoint, read)
    except DamagedCheckpointError as error:
        store.damage.append(str(error))
        return held(store)
    return checkpoint.round, steps


@pytest.fixture(params=["folder", "fsspec"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A folder, and an address of fsspec."""
    storage = open_storage(
        tmp_path / "checkpoints" if request.param == "folder" else f"memory://{tmp_path}/checkpoints"
    )
    storage.make()
    return storage


def test_unchanged_clients_keep_their_file_and_old_checkpoints_go(storage: Storage) -> None:
    store = CheckpointStore.open(storage)
    assert store.latest() is None
    add(store, 1, [0, 1, 2], size=1 << 18)  # each of 1 MiB: a file of its own
    add(store, 2, [1], size=1 << 18)
    add(store, 3, [1], size=1 << 18)
    assert held(CheckpointStore.open(storage)) == (3, {0: 1, 1: 3, 2: 1})
    assert storage.names() == [
        "checkpoint-000002.json",
        "checkpoint-000003.json",
        "clients-000001-00000.safetensors",
        "clients-000001-00002.safetensors",
        "clients-000002-00001.safetensors",
        "clients-000003-00001.safetensors",
        "server-000002.safetensors",
        "server-000003.safetensors",
    ]
    assert CheckpointStore.open(storage).kept[-1].facts == {"best": 0.1 + 0.2}


def test_what_a_death_left_goes_with_the_next_checkpoint(storage: Storage) -> None:
    store = CheckpointStore(storage)
    add(store, 1, [0, 1])
    for name in ("clients-000002-00000.safetensors", "server-000002.safetensors", ".checkpoint-000002.json.part"):
        storage.write(name, b"half")
    storage.write("notes.txt", b"not ours")
    again = CheckpointStore.open(storage)
    assert held(again) == (1, {0: 1, 1: 1})
    add(again, 3, [0])
    assert not [name for name in storage.names() if "000002" in name]
    assert "notes.txt" in storage.names()


def test_what_is_being_written_for_the_next_checkpoint_stays(storage: Storage) -> None:
    store = CheckpointStore(storage)
    ((part, data),) = client_files(2, [(0, state_of(0, 2))])
    storage.write(part.name, data)  # an actor is ahead of the checkpoint of round 1
    add(store, 1, [0, 1])
    assert part.name in storage.names()
    server, data = server_file(2, serialize({"round": 2}), {"flops": {}})
    storage.write(server.name, data)
    store.add(2, [part], server, {})
    assert held(CheckpointStore.open(storage)) == (2, {0: 2, 1: 1})


def test_every_truncation_is_named_and_the_checkpoint_before_is_usable(tmp_path: Path) -> None:
    whole = CheckpointStore(open_storage(tmp_path / "whole"))
    whole.storage.make()
    add(whole, 1, [0, 1, 2])
    add(whole, 2, [0, 1, 2])
    rng = random.Random(1)
    latest = ["clients-000002-00000.safetensors", "server-000002.safetensors", "checkpoint-000002.json"]
    for trial in range(60):
        copy = tmp_path / f"copy{trial}"
        shutil.copytree(tmp_path / "whole", copy)
        name = latest[trial % 3]
        data = (copy / name).read_bytes()
        if trial % 2:
            (copy / name).write_bytes(data[: rng.randrange(len(data))])
        else:  # a flipped bit, which the size does not show
            at = rng.randrange(len(data))
            (copy / name).write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        store = CheckpointStore.open(open_storage(copy))
        assert held(store) == (1, {0: 1, 1: 1, 2: 1}), name
        (sentence,) = store.damage
        assert name in sentence
        assert "\n" not in sentence
        shutil.rmtree(copy)


def test_without_an_interval_a_checkpoint_is_due_every_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("raysim.engine.checkpoint.store.perf_counter", lambda: clock.now)
    store = CheckpointStore(open_storage(tmp_path))
    manager = CheckpointManager(store, every=None, rounds=9, begun_s=clock.now)
    assert AUTO_INTERVAL_S == 60
    found = []
    for clock.now, t in ((1059.0, 1), (1060.0, 2), (1061.0, 3), (1119.0, 4), (1121.0, 5), (1122.0, 9)):
        found.append(manager.due(t))
        if found[-1]:
            manager.begin()
    assert found == [False, True, False, False, True, True]  # the last round is always saved


DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


def test_tied_and_strange_tensors_come_back(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Conv2d(2, 2, 3))
    net[1].weight = net[0].bias
    for i, dtype in enumerate(DTYPES):
        net.register_buffer(f"b{i}", torch.arange(5).to(dtype))
    net.register_buffer("scalar", torch.tensor(2.5))
    net.register_buffer("empty", torch.zeros(0, 3))
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    state: dict[str, Any] = net.state_dict()
    ((part, data),) = client_files(4, [(3, state)])
    assert (part.clients, part.size) == ((3,), len(data))
    back = read_clients(data, [3])[3]
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)
    assert read_clients(data, [4]) == {4: {}}
    assert weights(net).keys() == back.keys()
