"""A run folder that another person made: nothing outside of it is read, written or removed, and a sentence says why."""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from raysim.common.errors import RunError, ScenarioError
from raysim.core.state import Serialized, deserialize, serialize
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.progress import Progress
from raysim.runs.identity import Identity
from raysim.runs.resume import run_scenario
from raysim.tracking.store import check_recorded, check_uri

RUN_ID = "20261121-101500-ab12"
FACTS: dict[str, Any] = {
    "run_id": RUN_ID,
    "tracking": "sqlite:////x/mlflow.db",
    "checkpoints": "checkpoints",
    "dataset_digest": "a",
    "partition_digest": "b",
    "versions": {},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder as far as it is looked at before its scenario, and what an attacker is after."""
    run = tmp_path / "runs" / "tiny" / RUN_ID
    for name in ("plots", "logs", "checkpoints"):
        (run / name).mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(FACTS))
    (run / "logs" / ".lock").write_text("")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "thesis.tex").write_text("thesis")
    return run


@pytest.mark.parametrize(
    "name", ["plots", "logs", "checkpoints", "logs/.lock", "run.json", "new", "plots/accuracy.png"]
)
@pytest.mark.parametrize("target", ["victim", "victim/thesis.tex", "nowhere"])
def test_links_are_refused(folder: Path, name: str, target: str, tmp_path: Path) -> None:
    path = folder / name
    if path.exists():
        path.rename(tmp_path / "old")
    path.symlink_to(tmp_path / target)
    with pytest.raises(ScenarioError, match=rf"/{name} is a link, but a run folder must not contain links"):
        run_scenario(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: os.mkfifo(run / "rounds.parquet"), "rounds.parquet is neither a file nor a folder"),
        (lambda run: (run / "summary.json").mkdir(), "summary.json is a folder, so"),
        (lambda run: ((run / "plots").rmdir(), (run / "plots").write_text("")), "plots is a file, so"),
    ],
)
def test_other_things_than_files_are_refused(folder: Path, change: Callable[[Path], object], told: str) -> None:
    change(folder)
    with pytest.raises(ScenarioError, match=told):
        run_scenario(folder)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"run_id": "../x"}, r"run_id: '../x' is not a run id"),
        ({"run_id": ["x"]}, r"cannot be read \(run_id: Input should be a valid string\)"),
        ({"versions": []}, r"cannot be read \(versions: "),
        ({"versions": {"raysim": 1}}, r"cannot be read \(versions: raysim: "),
        ({"code": 7}, r"cannot be read \(code: "),
        *(
            (
                {"checkpoints": place},
                r"checkpoints: .* given; allowed: 'checkpoints', .*, or an absolute path",
            )
            for place in (
                *("/etc", "..", "../checkpoints", ".", "", "plots", f"../{RUN_ID}", f"{RUN_ID}"),
                *(f"/etc/../x/{RUN_ID}", f"/etc/x/{RUN_ID}/", f"/../{RUN_ID}", "s3://bucket", f"s3://../{RUN_ID}"),
            )
        ),
    ],
)
def test_what_run_json_may_say(folder: Path, facts: dict[str, Any], told: str) -> None:
    (folder / "run.json").write_text(json.dumps({**FACTS, **facts}))
    with pytest.raises(ScenarioError, match=told):
        Identity.of(folder)


@pytest.mark.parametrize("text", ["null", "[]", "7", "{", "[" * 99999, '"x"', "\0"])
def test_a_run_json_that_is_none(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text)
    with pytest.raises(ScenarioError, match=r"run\.json cannot be read"):
        Identity.of(folder)


@pytest.mark.parametrize("place", [f"/far/tiny/{RUN_ID}", f"s3://bucket/runs/tiny/{RUN_ID}", "checkpoints"])
def test_checkpoints_elsewhere_are_this_runs(folder: Path, place: str) -> None:
    (folder / "run.json").write_text(json.dumps({**FACTS, "checkpoints": place}))
    assert Identity.of(folder).checkpoints == place


def test_passwords_that_an_earlier_raysim_kept_are_gone(folder: Path) -> None:
    old = {"tracking": "http://me:secret@host", "checkpoints": f"s3://me:secret@bucket/tiny/{RUN_ID}"}
    (folder / "run.json").write_text(json.dumps({**FACTS, **old}))
    found = Identity.of(folder)
    assert (found.tracking, found.checkpoints) == ("http://host", f"s3://bucket/tiny/{RUN_ID}")


def manifest(folder: Path, **changes: Any) -> None:
    server = ["server-000001.safetensors", 1, 1]
    body = {"format": 3, "round": 1, "parts": [["clients-000001-00000.safetensors", 1, 1, [0]]], "server": server}
    text = json.dumps({**body, "facts": {}, **changes})
    outer = {"crc32": zlib.crc32(text.encode()), "checkpoint": text}
    (folder / "checkpoints" / "checkpoint-000001.json").write_text(json.dumps(outer))


@pytest.mark.parametrize(
    "changes",
    [
        *({"parts": [[name, 1, 1, [0]]]} for name in ("../../x", "/etc/x", "x", "clients-000001-00000.safetensors\n")),
        {"parts": [["clients-000001-00000.safetensors", 1, 1, [-1]]]},
        {"parts": [["clients-000001-00000.safetensors", "1", 1, [0]]]},
        {"parts": [["clients-000001-00000.safetensors", 1, 1, 7]]},
        {"parts": [[None, 1, 1, [0]]]},
        {"parts": {"a": 1}},
        {"server": ["../../victim/thesis.tex", 1, 1]},
        {"server": [["x"], 1, 1]},
        {"facts": []},
        {"round": True},
    ],
    ids=repr,
)
def test_manifests_name_the_engines_files_only(folder: Path, changes: dict[str, Any]) -> None:
    storage = open_storage(folder / "checkpoints")
    manifest(folder)
    assert len(CheckpointStore.open(storage).kept) == 1
    manifest(folder, **changes)
    found = CheckpointStore.open(storage)
    assert found.kept == []
    assert found.damage == [f"{storage.where}/checkpoint-000001.json is damaged"]


@pytest.mark.parametrize("data", [b"[" * 99999, b"[]", b"7", b'{"checkpoint": 7, "crc32": 0}', b"\xff"])
def test_manifests_that_are_none(folder: Path, data: bytes) -> None:
    (folder / "checkpoints" / "checkpoint-000001.json").write_bytes(data)
    assert CheckpointStore.open(open_storage(folder / "checkpoints")).damage


@pytest.mark.parametrize(
    "changes",
    [{"totals": []}, {"best": {"a": "b"}}, {"client_rounds": "7"}, {"stale": "x"}, {"before_s": None}, {"final": 7}],
)
def test_how_a_run_stood_has_its_types(changes: dict[str, Any]) -> None:
    facts = json.loads(json.dumps(Progress(t=3, stale={1}).facts()))
    progress = Progress()
    progress.resume(3, facts, {})
    assert (progress.t, progress.stale) == (3, {1})
    with pytest.raises(RunError, match="the checkpoint of round 3 has no valid progress record"):
        Progress().resume(3, {**facts, **changes}, {})


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        # a module's import is not its own
        (["named", "raysim.core.state:torch.Tensor", []], "but none of the modules "),
        (["named", "raysim.core.state:copy.Error", [["value", "x"]]], "but none of the modules "),
        (
            ["named", "raysim.core.state:Serialized", [["value", 1], ["value", 2]]],
            "as a named tuple, but the class is no longer a named tuple; use the version",
        ),
        (
            ["dataclass", "raysim.core.state:Serialized", [["__class__", ["value", 1]]]],
            "with the field __class__, which the class no longer has; use the version",
        ),
        (["dataclass", "raysim.common.errors:RaysimError", []], "but none of the modules "),
    ],
)
def test_a_servers_state_makes_no_other_objects(tree: Any, why: str) -> None:
    with pytest.raises(ValueError, match=f"state contains an object of class {tree[1]},? {why}"):
        deserialize(Serialized(tree, {}), None, ["raysim.algorithms.fedgh"])
    kept = serialize({"a": torch.ones(2)})
    assert torch.equal(deserialize(kept, None, [])["a"], torch.ones(2))


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "cookies.db") as database:
        database.execute("CREATE TABLE cookies (name TEXT)")
    database.close()
    with pytest.raises(ScenarioError, match="is not an MLflow database"):
        check_uri(f"sqlite:///{tmp_path}/cookies.db")


def test_a_store_that_a_folder_names(workplace: Path, monkeypatch: pytest.MonkeyPatch, tracking_store: str) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    here = f"sqlite:///{workplace}/mlflow.db"
    assert check_recorded(here) == here  # where a run would be tracked anyway
    with pytest.raises(
        ScenarioError, match=r"new\.db, which does not exist; to track it elsewhere, name the store with"
    ):
        check_recorded(f"sqlite:///{workplace}/new.db")
    (workplace / "old.db").touch()
    assert check_recorded(f"sqlite:///{workplace}/old.db") == f"sqlite:///{workplace}/old.db"
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    with pytest.raises(
        ScenarioError,
        match=r"^MLFLOW_TRACKING_PASSWORD is not sent to the MLflow server http://evil, .* name the store",
    ):
        check_recorded("http://evil")


def test_a_file_with_a_password_is_not_for_a_server_that_a_folder_names(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("URI", "USERNAME", "PASSWORD", "TOKEN", "AUTH"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    monkeypatch.setenv("HOME", str(workplace))
    (workplace / ".mlflow").mkdir()
    (workplace / ".mlflow" / "credentials").write_text("[mlflow]\nmlflow_tracking_password = secret\n")
    with pytest.raises(ScenarioError, match=r"\.mlflow/credentials is not sent to the MLflow server http://evil, "):
        check_recorded("http://evil")
