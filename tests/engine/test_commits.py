"""Commits: what is written is read back bit for bit, deaths leave a whole one behind, damage is named."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from raysim.core.messages import weights
from raysim.core.state import serialize
from raysim.engine.checkpoint import format as module
from raysim.engine.checkpoint import store as store_module
from raysim.engine.checkpoint.format import CheckpointFile, client_files, read_server, server_file
from raysim.engine.checkpoint.storage import LocalStorage, RemoteStorage, Storage, open_storage, page_aligned
from raysim.engine.checkpoint.store import CheckpointError, CheckpointStore
from raysim.engine.checkpoint.writer import BackgroundWriter


def state_of(k: int, t: int, size: int = 6) -> dict[str, torch.Tensor]:
    """Distinct for each client and round."""
    return {"w": torch.full((size,), 100.0 * t + k), "steps": torch.tensor(t)}


def add(store: CheckpointStore, t: int, changed: list[int], size: int = 6) -> None:
    """Write and checkpoint round `t` as a run does."""
    parts = []
    for part, data in client_files(t, ((k, state_of(k, t, size)) for k in changed)):
        store.storage.write(part.name, data)
        parts.append(part)
    server, data = server_file(t, serialize({"round": t}), {"flops": []})
    store.storage.write(server.name, data)
    store.add(t, parts, server, {"best": 0.1 + 0.2})


def held(store: CheckpointStore) -> tuple[int, dict[int, int]]:
    """(round of the latest checkpoint, client -> the round whose state it has there)."""
    checkpoint = store.latest()
    assert checkpoint is not None
    assert read_server(store.server(checkpoint))[0].tree == [
        "dict",
        [[["value", "round"], ["value", checkpoint.round]]],
    ]
    return checkpoint.round, {k: int(state["steps"]) for part in store.clients(checkpoint) for k, state in part.items()}


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


def test_small_clients_share_a_file(storage: Storage) -> None:
    store = CheckpointStore(storage)
    add(store, 1, list(range(50)))
    add(store, 2, [7, 8])
    assert len(storage.names()) == 2 + 2 + 2
    assert held(store) == (2, {**dict.fromkeys(range(50), 1), 7: 2, 8: 2})


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
    server, data = server_file(2, serialize({"round": 2}), {"flops": []})
    storage.write(server.name, data)
    store.add(2, [part], server, {})
    assert held(CheckpointStore.open(storage)) == (2, {0: 2, 1: 1})


def test_every_truncation_is_named_and_the_checkpoint_before_is_usable(tmp_path: Path) -> None:
    whole = CheckpointStore(LocalStorage(tmp_path / "whole"))
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
        store = CheckpointStore.open(LocalStorage(copy))
        assert held(store) == (1, {0: 1, 1: 1, 2: 1}), name
        (sentence,) = store.damage
        assert name in sentence
        assert "\n" not in sentence
        shutil.rmtree(copy)


def test_a_file_that_both_checkpoints_need(tmp_path: Path) -> None:
    store = CheckpointStore(LocalStorage(tmp_path))
    add(store, 1, [0, 1])
    add(store, 2, [])
    (tmp_path / "clients-000001-00000.safetensors").unlink()
    again = CheckpointStore.open(LocalStorage(tmp_path))
    assert again.latest() is None
    assert len(again.damage) == 2


class Full(LocalStorage):
    """A disk that is full from some file on."""

    def publish(self, name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(self.path / name))


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    add(CheckpointStore(LocalStorage(tmp_path)), 1, [0])
    store = CheckpointStore.open(Full(tmp_path))
    with pytest.raises(
        CheckpointError, match=r"round 2 .*no space left on device.* last whole checkpoint is that of round 1"
    ):
        add(store, 2, [0])
    assert held(CheckpointStore.open(LocalStorage(tmp_path))) == (1, {0: 1})


def test_a_manifest_of_another_version_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "FORMAT", 99)
    add(CheckpointStore(LocalStorage(tmp_path)), 1, [0])
    monkeypatch.undo()
    store = CheckpointStore.open(LocalStorage(tmp_path))
    assert (store.kept, len(store.damage)) == ([], 1)


def test_tied_and_strange_tensors_come_back(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Conv2d(2, 2, 3))
    net[1].weight = net[0].bias
    for i, dtype in enumerate(module._DTYPES):
        net.register_buffer(f"b{i}", torch.arange(5).to(dtype))
    net.register_buffer("scalar", torch.tensor(2.5))
    net.register_buffer("empty", torch.zeros(0, 3))
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    state: dict[str, Any] = net.state_dict()
    ((part, content),) = client_files(4, [(3, state)])
    data = content.tobytes()
    assert (part.clients, part.size) == ((3,), len(data))
    back = module.read_clients(data, [3])[3]
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)
    assert module.read_clients(data, [4]) == {4: {}}
    assert weights(net).keys() == back.keys()


@pytest.mark.parametrize("size", [0, 1, 4096, 300_000, 3 << 20])
@pytest.mark.parametrize("how", ["aligned", "not aligned", "bytes"])
def test_whatever_is_written_is_there(tmp_path: Path, size: int, how: str) -> None:
    data = page_aligned(size + 1)[1:] if how == "not aligned" else page_aligned(size)
    data[:] = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    storage = LocalStorage(tmp_path)
    storage.write("one", page_aligned(size + 9000))  # longer, and not to show through
    storage.write("one", data.tobytes() if how == "bytes" else data)
    assert storage.read("one") == data.tobytes()


@pytest.mark.parametrize("refused", ["opened", "written"])
def test_a_disk_that_cannot_be_written_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    seen = []

    def open_(place: Path, flags: int, mode: int = 0o777) -> int:
        seen.append(bool(flags & os.O_DIRECT))
        if flags & os.O_DIRECT and refused == "opened":
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(place, flags, mode)

    def write(handle: int, data: memoryview) -> int:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return written(handle, data)

    opened, written = os.open, os.write
    monkeypatch.setattr(os, "open", open_)
    if refused == "written":
        monkeypatch.setattr(os, "write", write)
    data = page_aligned(1 << 20)
    data[:] = 5
    storage = LocalStorage(tmp_path)
    storage.write("one", data)
    assert seen[0]
    monkeypatch.undo()
    assert storage.read("one") == data.tobytes()


def test_a_writer_works_behind_and_bounds_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.engine.checkpoint.writer.IN_FLIGHT", 2500)
    gate, most = Event(), [0]

    class Slow(LocalStorage):
        def write(self, name: str, data: Any) -> None:
            gate.wait(120)
            most[0] = max(most[0], writer.waiting)
            super().write(name, data)

    writer, storage = BackgroundWriter(), Slow(tmp_path)
    parts = [CheckpointFile(f"{i}", 1000, i) for i in range(6)]
    for part in parts[:2]:
        writer.write(3, storage, part, np.full(1000, part.checksum, np.uint8))
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(lambda: [writer.write(4, storage, part, np.zeros(1000, np.uint8)) for part in parts[2:]])
        time.sleep(0.2)
        assert not rest.done()  # there is no room for more
        gate.set()
        rest.result(20)
    assert (writer.written(3), writer.written(4)) == (parts[:2], parts[2:])
    assert writer.written(3) == []
    assert most[0] <= 2500
    assert storage.read("1") == b"\1" * 1000
    writer.write(
        5, storage, CheckpointFile("huge", 9000, 0), np.zeros(9000, np.uint8)
    )  # alone, more than may wait is allowed
    assert [part.name for part in writer.written(5)] == ["huge"]


def test_a_writer_tells_of_a_disk_that_is_full(tmp_path: Path) -> None:
    class NoRoom(LocalStorage):
        def write(self, name: str, data: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", name)

    writer = BackgroundWriter()
    writer.write(1, NoRoom(tmp_path), CheckpointFile("a", 10, 0), np.zeros(10, np.uint8))
    with pytest.raises(OSError, match="No space left"):
        writer.written(1)
    writer.write(2, NoRoom(tmp_path), CheckpointFile("a", 10, 0), np.zeros(10, np.uint8))
    writer.wait()
    assert writer.written(2) == []
    assert writer.waiting == 0


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3 * 4096, 50_001])
def test_a_checksum_shows_every_flipped_bit_and_every_block_out_of_place(size: int) -> None:
    rng = np.random.default_rng(size)
    data = rng.integers(0, 256, size, dtype=np.uint8)
    told = module.checksum(data)
    assert told == module.checksum(data.tobytes())
    for at in rng.integers(0, 8 * size, 200 if size else 0).tolist():
        wrong = data.copy()
        wrong[at // 8] ^= 1 << at % 8
        assert module.checksum(wrong) != told
    if size >= 2 * 4096:
        wrong = data.copy()
        wrong[:4096], wrong[4096:8192] = data[4096:8192], data[:4096]
        assert module.checksum(wrong) != told
        wrong[:8192] = np.concatenate([data[:4096], data[:4096]])  # what was there before
        assert module.checksum(wrong) != told


def test_addresses() -> None:
    assert open_storage("file:///tmp/x") == LocalStorage(Path("/tmp/x"))
    assert isinstance(open_storage("memory://x/y/"), RemoteStorage)
    with pytest.raises(OSError, match="nonsense"):
        open_storage("nonsense://x")


def test_manifests_are_plain_json(tmp_path: Path) -> None:
    add(CheckpointStore(LocalStorage(tmp_path)), 1, [0])
    outer = json.loads((tmp_path / "checkpoint-000001.json").read_text())
    assert json.loads(outer["checkpoint"])["round"] == 1
