"""Attack `resume`: run folders that another person changed."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import zlib
from collections.abc import Callable
from contextlib import ExitStack, chdir, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.attacks.harness import Outcome, run_command, snapshot, values

Mutation = Callable[[random.Random, Path], None]


class FolderAttack:
    """`resume` on run folders that another person made from a real one, which was interrupted before its last round."""

    def __init__(self, place: Path) -> None:
        from raysim.runs.run import run
        from tests.engine.scenarios import loaded

        class Cut:
            def open(self, card: Any) -> None: ...

            def close(self, status: Any, summary: Any) -> None: ...

            def log(self, t: int, values: Any, clients: Any) -> None:
                if t == 3:
                    raise KeyboardInterrupt

        place.mkdir()
        with self._alone(place):
            sets = ["clients.count=4", "clients.models=[digits_mlp64]", "checkpoint.every=1", "data.augment=false"]
            try:
                run(loaded(*sets), quiet=True, trackers=[Cut()])
            except KeyboardInterrupt:
                (self.folder,) = (place / "runs" / "tiny").iterdir()
        (place / "mlflow.db").touch()  # where the run says that it is tracked

    def __call__(self, number: int, root: Path, outcome: Outcome) -> None:
        """One mutant."""
        rng = random.Random(f"folder {number}")
        folder = root / "here" / self.folder.name
        shutil.copytree(self.folder, folder)
        for _ in range(rng.choice([1, 1, 2])):
            rng.choice(MUTATIONS)(rng, folder)
        before = snapshot(root, folder)
        with self._alone(root / "here"):
            run_command(outcome, "resume", "resume", str(folder), "--quiet")
        if snapshot(root, folder) != before:
            raise AssertionError("something outside of the run folder changed")

    @staticmethod
    def _alone(place: Path) -> ExitStack:
        """In `place`, without MLflow, whose database and artifacts are outside, and with empty pictures."""

        def no_picture(*given: Any, **_: Any) -> None:
            next(arg for arg in given if isinstance(arg, Path)).write_bytes(b"")

        stack = ExitStack()
        stack.enter_context(chdir(place))
        stack.enter_context(patch("raysim.runs.execution.MlflowTracker", _NoMlflow))
        for name in ("draw_heatmap", "plot_accuracy"):
            stack.enter_context(patch(f"raysim.runs.execution.{name}", no_picture))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        stack.enter_context(patch.dict(os.environ, environment, clear=True))
        return stack


class _NoMlflow:
    """`MlflowTracker` that tracks nothing."""

    where = ""
    run_id = experiment_id = run_path = None

    def __init__(self, uri: str, *rest: object, **more: object) -> None:
        self.uri = uri
        self.warnings: list[str] = []

    def resume(self, rounds: Any) -> None:
        for row in rounds:
            _ = int(row["round"]), [float(value) for value in row.values()]

    def __getattr__(self, name: str) -> Any:
        return lambda *rest, **more: None


def _in_json(rng: random.Random, value: Any, root: Path) -> Any:
    """JSON in which something is something else."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _in_json(rng, value[key], root)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _in_json(rng, value[at], root), *value[at + 1 :]]
    return rng.choice(values(root))


def _root(folder: Path) -> Path:
    return folder.parent.parent


def _json_file(name: str) -> Mutation:
    def mutate(rng: random.Random, folder: Path) -> None:
        path = folder / name
        if not path.is_file() or path.is_symlink():
            return
        if rng.random() < 0.15:
            path.write_bytes(
                rng.choice([b"", b"null", b"[]", b"{", b"[" * 100_000, b"\xff\xfe", b'"x"', rng.randbytes(99)])
            )
            return
        with suppress(ValueError):  # another mutation was here
            path.write_text(json.dumps(_in_json(rng, json.loads(path.read_text()), _root(folder))))

    return mutate


def _manifest(rng: random.Random, folder: Path) -> None:
    """A manifest whose checksum is right."""
    names = sorted((folder / "checkpoints").glob("checkpoint-*.json"))
    if not names:
        return
    path = rng.choice(names)
    try:
        body = json.loads(json.loads(path.read_text())["checkpoint"])
    except (ValueError, TypeError, KeyError, OSError):
        return
    if rng.random() < 0.3 and isinstance(body, dict):
        body["round"] = rng.choice([10**6, 10**12, 3, 0, -1])
        path = path.with_name(f"checkpoint-{body['round']:06d}.json")
    text = json.dumps(_in_json(rng, body, _root(folder)) if rng.random() < 0.9 else rng.choice(values(_root(folder))))
    path.write_text(json.dumps({"crc32": zlib.crc32(text.encode()), "checkpoint": text}))


def _removed(rng: random.Random, folder: Path) -> None:
    """A manifest that names what is to be removed with the next checkpoint."""
    for path in sorted((folder / "checkpoints").glob("checkpoint-*.json")):
        try:
            body = json.loads(json.loads(path.read_text())["checkpoint"])
            body["parts"].append([f"{'../' * rng.randrange(1, 5)}victim/thesis.tex", 10, 0, []])
        except (ValueError, TypeError, KeyError, OSError):
            return
        text = json.dumps(body)
        path.write_text(json.dumps({"crc32": zlib.crc32(text.encode()), "checkpoint": text}))


def _server(rng: random.Random, folder: Path) -> None:
    """A server's state of other classes and shapes, which the manifests agree with."""
    for path in sorted((folder / "checkpoints").glob("server-*.safetensors")):
        if not path.is_file():  # an earlier mutation made it a pipe or a link to nothing
            return
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        try:
            header = json.loads(data[8 : 8 + size])
            what = rng.choice(["tree", "tree", "facts", "header"])
            if what == "header":
                header = _in_json(rng, header, _root(folder))
            else:
                inner = _in_json(rng, json.loads(header["__metadata__"][what]), _root(folder))
                if rng.random() < 0.3:
                    evil = rng.choice(
                        ["raysim.core.state:torch.nn.Module", "raysim.algorithms.fedgh:torch.Tensor", "os:system"]
                    )
                    inner = ["named", evil, [["value", "touch x"]]]
                header["__metadata__"][what] = json.dumps(inner)
        except (ValueError, TypeError, KeyError):
            return
        text = json.dumps(header).encode()
        data = len(text).to_bytes(8, "little") + text + data[8 + size :]
        path.write_bytes(data)
        for manifest in (folder / "checkpoints").glob("checkpoint-*.json"):
            try:
                body = json.loads(json.loads(manifest.read_text())["checkpoint"])
                if body["server"][0] == path.name:
                    body["server"] = [path.name, len(data), zlib.crc32(data)]
            except (ValueError, TypeError, KeyError, LookupError, OSError):
                continue
            text = json.dumps(body).encode()
            manifest.write_text(json.dumps({"crc32": zlib.crc32(text), "checkpoint": text.decode()}))


def _link(rng: random.Random, folder: Path) -> None:
    """A link where something is, or will be."""
    known = [path for path in folder.rglob("*") if not path.is_symlink()]
    new = [
        "plots",
        "logs/error.txt",
        "plots/accuracy.png",
        "clients.parquet",
        "a/b/c",
        "checkpoints/.checkpoint-000003.json.part",
    ]
    new += ["checkpoints/clients-000003-00000.safetensors", "checkpoints/server-000003.safetensors"]
    path = rng.choice([*known, *(folder / name for name in new)])
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    victim = _root(folder) / "victim"
    path.symlink_to(
        rng.choice([victim / "thesis.tex", victim, victim / "folder", Path("../../victim/x"), Path("/dev/zero")])
    )


def _kind(rng: random.Random, folder: Path) -> None:
    """A pipe, a socket, a folder or a file where something else is."""
    path = rng.choice([path for path in folder.rglob("*") if not path.is_symlink()] or [folder / "x"])
    was_file = path.is_file()
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    what = rng.randrange(3)
    if what == 0:
        os.mkfifo(path)
    elif what == 1 and len(str(path)) < 100:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif was_file:
        path.mkdir()
    else:
        path.write_text("x")


def _bytes(rng: random.Random, folder: Path) -> None:
    """A file with other bytes."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    if not files:
        return
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    what = rng.randrange(4)
    if what == 0:
        data = data[: rng.randrange(len(data) + 1)]
    elif what == 1:
        data += rng.randbytes(100)
    elif what == 2:
        data = bytearray(rng.randbytes(rng.randrange(2000)))
    else:
        for _ in range(rng.randrange(1, 20)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data))


def _table(rng: random.Random, folder: Path) -> None:
    """Rows of other types, numbers and names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {
        "round": rng.choice([[0, 1, 2, 3], [2**62] * 4, ["x"] * 4, [None] * 4, [-1, 0, 1, 2], [[1]] * 4])
    }
    for name in rng.sample(["accuracy/all", "time/total_s", "\x1b[2J", "client", "total", "correct", "a" * 999], 4):
        columns[name] = rng.choice([[0.5] * 4, ["x"] * 4, [None] * 4, [[1.0]] * 4, [10**18] * 4, [float("nan")] * 4])
    name = rng.choice(["rounds.parquet", "clients.parquet", "clients.arrows"])
    path = folder / name
    if path.is_dir() or path.is_symlink():
        return
    table = pa.table(columns)
    if name.endswith("parquet"):
        pq.write_table(table, path)
    else:
        with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)


def _scenario(rng: random.Random, folder: Path) -> None:
    """A scenario of which a key says something else."""
    import yaml

    path = folder / "resolved.yaml"
    try:
        scenario = yaml.safe_load(path.read_text())
        if rng.random() < 0.1:
            path.write_bytes(rng.choice([b"", b"\xff", b"a: &a [*a]", b"[" * 3000, b"&a [x]: 1"]))
            return
        places = [
            v for v in values(_root(folder)) if v != f"sqlite:///{_root(folder)}/victim/new.db"
        ]  # it is asked for
        key = rng.choice(list(scenario))
        if isinstance(scenario[key], dict) and scenario[key]:
            scenario[key][rng.choice(list(scenario[key]))] = rng.choice(places)
        else:
            scenario[key] = rng.choice(places)
        path.write_text(yaml.safe_dump(scenario))
    except (ValueError, TypeError, OSError, yaml.YAMLError):
        pass


def _closing(rng: random.Random, folder: Path) -> None:
    """A run of which only the closing is left, and other rows."""
    with suppress(ValueError, TypeError, OSError):
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "status": "closing", "rounds": 3}))
        if rng.random() < 0.7:
            _table(rng, folder)


def _more(rng: random.Random, folder: Path) -> None:
    """Files that were not asked for."""
    for i in range(rng.choice([1, 50])):
        name = rng.choice(
            [f".x.{i}.abcdefgh", f"checkpoint-{i:06d}.json", f"clients-{i:06d}-00000.safetensors", f"x{i}\x1b[2J"]
        )
        try:
            (folder / rng.choice(["", "checkpoints", "logs"]) / name).write_bytes(b"x")
        except OSError:
            return


MUTATIONS: tuple[Mutation, ...] = (
    _json_file("run.json"), _json_file("run.json"), _json_file("summary.json"), _manifest, _manifest, _manifest,
    _removed, _server, _server, _link, _link, _kind, _bytes, _bytes, _table, _scenario, _more,
    _closing,
)  # fmt: skip
