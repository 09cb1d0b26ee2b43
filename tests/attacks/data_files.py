"""Attack `launch` with data files of a user's own: damaged, of other types, or of sizes that do not fit into memory."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image

from tests.attacks.harness import Outcome, limited, run_command, values
from tests.data.own import image_folder, scenario

Data = dict[str, Any]
Kind = Callable[[random.Random], Data]


class DataAttack:
    """`launch --dry-run`, and sometimes a run of one round, on data files that are made from the mutant's number."""

    def __init__(self) -> None:
        import raysim.runs.start  # noqa: F401  # before the limit: Torch's libraries take much address space

    def __call__(self, number: int, root: Path, outcome: Outcome) -> None:
        """One mutant."""
        rng = random.Random(f"data {number}")
        cache = {"RAYSIM_CACHE": str(root / "here" / "cache")}
        with chdir(root / "here"), patch.dict("os.environ", cache), limited():
            data = rng.choice(KINDS)(rng)
            whole = scenario(data, rounds=1, algorithm={"name": "fedavg"})
            if rng.random() < 0.25:
                _damage(rng)
            if rng.random() < 0.25:
                _key(rng, data, root)
            Path("mine.yaml").write_text(yaml.safe_dump(whole))
            words = [] if rng.random() < 0.15 else ["--dry-run"]
            run_command(outcome, "launch", "launch", "mine.yaml", *words)


def _column(rng: random.Random, rows: int) -> Any:
    """Values of one column, of any type."""
    draw = np.random.default_rng(rng.randrange(2**32))
    choices: list[Callable[[], Any]] = [
        lambda: pa.array(draw.normal(size=rows)),
        lambda: pa.array(draw.normal(size=rows).astype("float16")),
        lambda: pa.array(draw.integers(0, 3, rows)),
        lambda: pa.array([f"u{i % 5}" for i in range(rows)]),
        lambda: pa.array([rng.choice(["", "é", "\x1b[2J", "a\0b", "x" * 999]) for _ in range(rows)]),
        lambda: pa.array([b"\xff\xfe", b""] * (rows // 2), pa.binary()),
        lambda: pa.array([[1, 2]] * rows),
        lambda: pa.array([[1] * (i % 3) for i in range(rows)]),
        lambda: pa.array([[[1.0, 2.0]]] * rows),
        lambda: pa.array([None] * rows),
        lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        lambda: pa.array([float("nan")] * rows),
        lambda: pa.array([{"bytes": b"no image", "path": "x"}] * rows),
        lambda: pa.array([{"bytes": 1}] * rows),
        lambda: pa.array([True, False] * (rows // 2)),
        lambda: pa.array(range(rows), pa.timestamp("s")),
        lambda: pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
        lambda: pa.array([[]] * rows, pa.list_(pa.int64())),
    ]
    return rng.choice(choices)()


def _parquet(rng: random.Random) -> Data:
    rows = rng.choice([2, 40, 40, 40, 200])
    names = rng.choice(
        [["a", "b"], ["a"], ["a", "\x1b[2J"], ["", "."], [f"c{i}" for i in range(rng.choice([3, 2000]))]]
    )
    columns = {name: pa.array(np.random.default_rng(0).normal(size=rows)) for name in names}
    columns["label"] = pa.array([i % 2 for i in range(rows)])
    columns["user"] = pa.array([f"u{i % 4}" for i in range(rows)])
    for name in rng.sample(list(columns), rng.choice([0, 1, 1, 2])):
        columns[name] = _column(rng, rows)
    pq.write_table(pa.table(columns), "mine.parquet", row_group_size=rng.choice([1, 16, 10**6]))
    return {"name": "parquet", "path": "mine.parquet", "features": rng.choice([None, names, "*", names[:1]])} | _by(rng)


def _many_rows(rng: random.Random) -> Data:
    """Hundreds of millions of equal values in a few MB."""
    piece = pa.table({"a": pa.array(np.zeros(1 << 20)), "label": pa.array(np.zeros(1 << 20, np.int64))})
    with pq.ParquetWriter("mine.parquet", piece.schema) as writer:
        for _ in range(rng.choice([10, 300])):
            writer.write_table(piece)
    return {"name": "parquet", "path": "mine.parquet"}


def _csv(rng: random.Random, changes: tuple[int, ...] = (0, 1, 3)) -> Data:
    """A table in which so many cells have another value."""
    cells = ["1", "-1", "0.5", "", "nan", "inf", "1e400", "x", '"', '"a\nb"', "9" * 40, "é", "\0", "\x1b[2J"]
    lines = ["a,b,user,label"] + [f"{i * 0.5},{-i},u{i % 4},{i % 2}" for i in range(40)]
    for _ in range(rng.choice(changes)):
        row = rng.randrange(len(lines))
        parts = lines[row].split(",")
        parts[rng.randrange(len(parts))] = rng.choice(cells)
        lines[row] = ",".join(parts if rng.random() < 0.9 else parts[:-1])
    Path("mine.csv").write_text("\n".join(lines))
    return {"name": "csv", "path": "mine.csv", "features": ["a", "b"]} | _by(rng)


def _images(rng: random.Random) -> Data:
    sides = rng.choice([(12, 10), (9, 16), (1, 1), (8, 8)])
    for place in rng.choice([["pets"], ["pets/u1", "pets/u2"], ["pets/train", "pets/test"]]):
        image_folder(Path(place), (sides, (8, 8)), rng.random() < 0.3)
    files = sorted(path for path in Path("pets").rglob("*") if path.is_file())
    if rng.random() < 0.2:
        large = Image.new(rng.choice(["L", "RGB"]), (rng.choice([9000, 10_000, 14_000]), 9000))
        large.save(files[0].with_suffix(".png"))
    if rng.random() < 0.2:
        Image.new(rng.choice(["P", "LA", "I;16", "1"]), (8, 8)).save(files[0].with_suffix(".png"))
    if rng.random() < 0.6:
        ids = rng.choices(["a", "b", "", "\x1b"], [20, 20, 1, 1], k=len(files))
        rows = [f"{path.relative_to('pets')},{one}" for path, one in zip(files, ids, strict=True)]
        header = rng.choice(["file_name,user", "file_name,user", "file_name", "file,user", "file_name,user,user"])
        Path("pets/metadata.csv").write_text("\n".join([header, *rows[rng.choice([0, 0, 1]) :]]))
    data: Data = {"name": "images", "path": "pets", "size": rng.choice([8, 8, 8, None, 1, 300, 20_000, 100_000])}
    by = rng.choice(["user", "folder", None, ""])
    return data | ({"partition": {"name": "natural", "by": by}} if rng.random() < 0.6 else {})


def _numpy(rng: random.Random) -> Data:
    draw = np.random.default_rng(0)
    x: Any = [
        draw.normal(size=(40, 3)), draw.integers(0, 9, (40, 5)), draw.integers(0, 255, (40, 8, 8), np.uint8),
        np.zeros((40, 0)), np.float64(1), np.array([None] * 40), np.array(["a"] * 40), np.zeros((40, 3), complex),
        np.full((40, 2), np.nan), np.full((40, 2), -1), np.zeros((40, 3), "float16"), np.zeros((40, 3), "M8[s]"),
        np.zeros(40, [("a", "i4")]), np.zeros((40, 2**26 // 40), np.uint8),
    ]  # fmt: skip
    y: Any = [
        np.arange(40) % 2,
        np.zeros(40),
        np.array(["a", "b"] * 20),
        np.full(40, 2**64 - 1, np.uint64),
        np.zeros(3),
    ]
    arrays = {
        "x": x[rng.choice([0, 0, 1, 2, rng.randrange(len(x))])],
        "y": y[rng.choice([0, 0, rng.randrange(len(y))])],
    }
    arrays["user"] = rng.choice([np.arange(40) % 4, np.array(["a", ""] * 20), np.zeros((40, 2))])
    np.savez("mine.npz", **arrays)
    with zipfile.ZipFile("mine.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        if rng.random() < 0.1:
            archive.writestr("z", "no array")
    what = rng.choice(["", "", "", "member", "shape", "zeros"])
    if what:
        with zipfile.ZipFile("mine.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("y.npy", _npy(np.arange(40) % 2))
            if what == "member":
                archive.writestr("x", "no array")
            elif what == "shape":  # a header that promises more than follows
                archive.writestr("x.npy", _npy(np.zeros((40, 3))).replace(b"(40, 3)", b"(40,39)"))
            else:
                with archive.open("x.npy", "w", force_zip64=True) as file:
                    file.write(_npy(np.zeros((40, 3))).replace(b"(40, 3), }", b"(40, 9999999), }")[:128])
                    for _ in range(rng.choice([1, 64])):
                        file.write(bytes(1 << 24))
    return {"name": "numpy", "path": "mine.npz"} | _by(rng)


def _npy(array: Any) -> bytes:
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


def _listed(rng: random.Random) -> Data:
    data = _csv(rng, changes=(0,))  # readable, so that the list is read
    columns: Data = {"client": [0, 0, 1, 1], "part": ["train", "test"] * 2, "sample": [0, 1, 2, 3]}
    columns |= {"label": [0, 1, 0, 1]} if rng.random() < 0.5 else {}
    for name in rng.sample(list(columns), rng.choice([0, 1, 2])):
        columns[name] = _column(rng, 4)
    pq.write_table(pa.table(columns), "list.parquet")
    return data | {"partition": {"name": "listed", "path": "list.parquet"}}


def _by(rng: random.Random) -> Data:
    """A partition by ids, or none."""
    by = rng.choice(["user", "user", "a", "label", "none"])
    return {"partition": {"name": "natural", "by": by}} if rng.random() < 0.5 else {}


def _damage(rng: random.Random) -> None:
    """Other bytes in one of the files."""
    path = rng.choice([path for path in sorted(Path().rglob("*")) if path.is_file()])
    if path.stat().st_size > 1 << 24:
        return
    held = bytearray(path.read_bytes())
    what = rng.randrange(4)
    if what == 0:
        held = held[: rng.randrange(len(held) + 1)]
    elif what == 1:
        held += rng.randbytes(100)
    elif what == 2:
        held = bytearray(rng.randbytes(rng.randrange(2000)))
    else:
        for _ in range(rng.randrange(1, 20)):
            if held:
                held[rng.randrange(len(held))] = rng.randrange(256)
    path.write_bytes(bytes(held))


def _key(rng: random.Random, data: Data, root: Path) -> None:
    """Another value of a key of the section `data`."""
    key = rng.choice(["path", "label", "features", "size", "split", "partition"])
    with suppress(ValueError):
        value = rng.choice(values(root))
        yaml.safe_load(yaml.safe_dump(value))
        if key == "partition" and "partition" in data:
            data["partition"][rng.choice(["by", "path", "min_samples", "max_clients"])] = value
        else:
            data[key] = value


KINDS: tuple[Kind, ...] = (
    _parquet, _parquet, _parquet, _csv, _csv, _images, _images, _images, _numpy, _numpy, _listed, _listed, _many_rows,
)  # fmt: skip
