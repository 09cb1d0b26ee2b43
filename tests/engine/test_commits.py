"""Commits: what is written is read back bit for bit, deaths leave a whole one behind, damage is named."""

from __future__ import annotations

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raysim.core.messages import weights
from raysim.core.state import freeze
from raysim.engine import commits as module
from raysim.engine.commits import CommitError, Commits, client_parts, read_server, server_part
from raysim.engine.store import LocalStore, RemoteStore, Store, open_store


def state_of(k: int, t: int, size: int = 6) -> dict[str, torch.Tensor]:
    """Distinct for each client and round."""
    return {"w": torch.full((size,), 100.0 * t + k), "steps": torch.tensor(t)}


def add(commits: Commits, t: int, changed: list[int], size: int = 6) -> None:
    """Write and commit round `t` as a run does."""
    parts = []
    for part, data in client_parts(t, ((k, state_of(k, t, size)) for k in changed)):
        commits.store.write(part.name, data)
        parts.append(part)
    server, data = server_part(t, freeze({"round": t}), {"flops": []})
    commits.store.write(server.name, data)
    commits.add(t, parts, server, {"best": 0.1 + 0.2})


def held(commits: Commits) -> tuple[int, dict[int, int]]:
    """(round of the latest commit, client -> the round whose state it has there)."""
    commit = commits.latest()
    assert commit is not None
    assert read_server(commits.server(commit))[0].tree == ["dict", [[["value", "round"], ["value", commit.round]]]]
    return commit.round, {k: int(state["steps"]) for part in commits.clients(commit) for k, state in part.items()}


@pytest.fixture(params=["folder", "fsspec"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A folder, and an address of fsspec."""
    return open_store(tmp_path / "commits" if request.param == "folder" else f"memory://{tmp_path}/commits")


def test_unchanged_clients_keep_their_file_and_old_commits_go(store: Store) -> None:
    commits = Commits.open(store)
    assert commits.latest() is None
    add(commits, 1, [0, 1, 2], size=1 << 18)  # each of 1 MiB: a file of its own
    add(commits, 2, [1], size=1 << 18)
    add(commits, 3, [1], size=1 << 18)
    assert held(Commits.open(store)) == (3, {0: 1, 1: 3, 2: 1})
    assert store.names() == [
        "clients-000001-00000.safetensors",
        "clients-000001-00002.safetensors",
        "clients-000002-00001.safetensors",
        "clients-000003-00001.safetensors",
        "commit-000002.json",
        "commit-000003.json",
        "server-000002.safetensors",
        "server-000003.safetensors",
    ]
    assert Commits.open(store).kept[-1].facts == {"best": 0.1 + 0.2}


def test_small_clients_share_a_file(store: Store) -> None:
    commits = Commits(store)
    add(commits, 1, list(range(50)))
    add(commits, 2, [7, 8])
    assert len(store.names()) == 2 + 2 + 2
    assert held(commits) == (2, {**dict.fromkeys(range(50), 1), 7: 2, 8: 2})


def test_what_a_death_left_goes_with_the_next_commit(store: Store) -> None:
    commits = Commits(store)
    add(commits, 1, [0, 1])
    for name in ("clients-000002-00000.safetensors", "server-000002.safetensors", ".commit-000002.json.part"):
        store.write(name, b"half")
    store.write("notes.txt", b"not ours")
    again = Commits.open(store)
    assert held(again) == (1, {0: 1, 1: 1})
    add(again, 3, [0])
    assert not [name for name in store.names() if "000002" in name]
    assert "notes.txt" in store.names()


def test_every_truncation_is_named_and_the_commit_before_is_usable(tmp_path: Path) -> None:
    whole = Commits(LocalStore(tmp_path / "whole"))
    add(whole, 1, [0, 1, 2])
    add(whole, 2, [0, 1, 2])
    rng = random.Random(1)
    latest = ["clients-000002-00000.safetensors", "server-000002.safetensors", "commit-000002.json"]
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
        commits = Commits.open(LocalStore(copy))
        assert held(commits) == (1, {0: 1, 1: 1, 2: 1}), name
        (sentence,) = commits.damage
        assert name in sentence
        assert "\n" not in sentence
        shutil.rmtree(copy)


def test_a_file_that_both_commits_need(tmp_path: Path) -> None:
    commits = Commits(LocalStore(tmp_path))
    add(commits, 1, [0, 1])
    add(commits, 2, [])
    (tmp_path / "clients-000001-00000.safetensors").unlink()
    again = Commits.open(LocalStore(tmp_path))
    assert again.latest() is None
    assert len(again.damage) == 2


class Full(LocalStore):
    """A disk that is full from some file on."""

    def publish(self, name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(self.path / name))


def test_a_full_disk_keeps_the_commit_before(tmp_path: Path) -> None:
    add(Commits(LocalStore(tmp_path)), 1, [0])
    commits = Commits.open(Full(tmp_path))
    with pytest.raises(CommitError, match=r"round 2 .*no space left on device.* last whole commit is that of round 1"):
        add(commits, 2, [0])
    assert held(Commits.open(LocalStore(tmp_path))) == (1, {0: 1})


def test_a_manifest_of_another_version_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORMAT", 99)
    add(Commits(LocalStore(tmp_path)), 1, [0])
    monkeypatch.undo()
    commits = Commits.open(LocalStore(tmp_path))
    assert (commits.kept, len(commits.damage)) == ([], 1)


def test_tied_and_strange_tensors_come_back(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Conv2d(2, 2, 3))
    net[1].weight = net[0].bias
    for i, dtype in enumerate(module._DTYPES):
        net.register_buffer(f"b{i}", torch.arange(5).to(dtype))
    net.register_buffer("scalar", torch.tensor(2.5))
    net.register_buffer("empty", torch.zeros(0, 3))
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    state: dict[str, Any] = net.state_dict()
    ((part, content),) = client_parts(4, [(3, state)])
    data = content.tobytes()
    assert (part.clients, part.size) == ((3,), len(data))
    back = module.read_clients(data, [3])[3]
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)
    assert module.read_clients(data, [4]) == {4: {}}
    assert weights(net).keys() == back.keys()


def test_space_is_used_again_and_holds_what_was_written_last(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    commits = Commits(store)
    wide, narrow = (1 << 18) + 1000, 1 << 18
    for t in range(1, 12):
        add(commits, t, [0, 1, t % 3], size=wide if t % 2 else narrow)
        seen = {k: t - (t - k) % 3 for k in range(3)} | {0: t, 1: t}
        assert held(Commits.open(store)) == (t, {k: r for k, r in seen.items() if r >= 1})
        assert len(list(store.spare.iterdir()) if store.spare.exists() else []) <= module.SPARE * 3
    inodes = {path.stat().st_ino for path in store.spare.iterdir()}
    add(commits, 12, [0, 1], size=narrow)
    assert inodes & {path.stat().st_ino for path in tmp_path.glob("clients-000012-*")}
    store.tidy()
    assert held(Commits.open(store))[0] == 12
    assert not store.spare.exists()
    add(commits, 13, [0])
    assert held(Commits.open(store))[0] == 13


def test_a_spare_file_goes_to_one_writer_only(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for i in range(8):
        store.write(f"clients-{i:06d}-00000", bytes([i]) * 1000)
    store.recycle([f"clients-{i:06d}-00000" for i in range(8)], keep=8)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: store.write(f"new-{i}", bytes([100 + i]) * (950 + i)), range(12)))
    assert {name: store.read(name) for name in store.names()} == {
        f"new-{i}": bytes([100 + i]) * (950 + i) for i in range(12)
    }
    assert not list(store.spare.iterdir())


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
    assert open_store("file:///tmp/x") == LocalStore(Path("/tmp/x"))
    assert isinstance(open_store("memory://x/y/"), RemoteStore)
    with pytest.raises(OSError, match="nonsense"):
        open_store("nonsense://x")


def test_manifests_are_plain_json(tmp_path: Path) -> None:
    add(Commits(LocalStore(tmp_path)), 1, [0])
    outer = json.loads((tmp_path / "commit-000001.json").read_text())
    assert json.loads(outer["commit"])["round"] == 1
