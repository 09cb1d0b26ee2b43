"""Writes small data sets of a user's own, and scenarios on them, for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from raysim.scenario.scenario import Scenario
from tests.data.layouts import encoded, pixels

MODEL = {"parquet": "mlp_s", "csv": "mlp_s", "images": "mobilenet", "numpy": "mlp_s"}


def scenario(data: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A scenario of two rounds on some data; two clients, or as many as the partition makes."""
    own_count = data.get("partition", {}).get("name") in ("natural", "listed")
    return {
        "name": "own",
        "rounds": 2,
        "backend": "in_process",
        "algorithm": {"name": "fedgh"},
        "data": data,
        "clients": {"count": "auto" if own_count else 2, "models": [MODEL.get(data["name"], "mobilenet")]},
        **changes,
    }


def checked(data: dict[str, Any], **changes: Any) -> Scenario:
    return Scenario.load(scenario(data, **changes))


def features(rows: int = 60, width: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of different scales, and labels that follow from them: [rows, width], [rows]."""
    x = np.random.default_rng(seed).normal(size=(rows, width)) * 10.0 ** np.arange(width)
    return x, (x[:, 0] > 0).astype(int) + (x[:, 0] > 0.7)


def table(path: Path, rows: int = 60, users: int = 4, seed: int = 0, label: Any = None) -> Path:
    """A CSV or Parquet file with columns user, a, b, c and label."""
    x, y = features(rows, seed=seed)
    user = [f"u{row % users}" for row in range(rows)]
    columns = {"user": user, "a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": y.tolist() if label is None else label}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path, row_group_size=16)
    else:
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        path.write_text("\n".join(lines) + "\n")
    return path


def image_folder(folder: Path, sizes: tuple[tuple[int, int], ...] = ((12, 10), (9, 16)), grey: bool = False) -> Path:
    """Three PNG or JPEG files in each of two folders; sizes: (width, height), in turn."""
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            width, height = sizes[i % len(sizes)]
            one = pixels(1, (1 if grey or i == 1 else 3, height, width), seed=10 * number + i)[0]
            kind = "PNG" if i else "JPEG"
            (folder / name / f"{i}.{kind.lower()}").write_bytes(encoded(one, kind))
    return folder


def leaf(folder: Path, kind: str, users: int = 3, samples: int = 5) -> Path:
    """FEMNIST or Shakespeare in LEAF's JSON layout, with a train and a test file."""
    rng = np.random.default_rng(0)
    for part, count in (("train", samples), ("test", 2)):
        data = {}
        for user in range(users):
            if kind == "femnist":
                x = (rng.integers(0, 256, (count, 784)) / 255).tolist()
                y = rng.integers(0, 62, count).tolist()
            else:
                x = ["".join(rng.choice(list("To be, or not"), 80)) for _ in range(count)]
                y = [text[0] for text in x]
            data[f"w{user}"] = {"x": x, "y": y}
        path = folder / kind / part / "all_data_0.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"users": list(data), "num_samples": [count] * users, "user_data": data}))
    return folder


def write_page_files(folder: Path) -> None:
    """Write the files that the examples of docs/own_data.md read."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 20)).astype("float32")
    readings = pd.DataFrame(x, columns=[f"sensor_{i}" for i in range(20)])
    readings["state"] = np.where(x[:, 0] + x[:, 1] > 0, "on", "off")
    readings["user"] = [f"user-{row % 30:02}" for row in range(300)]
    readings.to_parquet(folder / "readings.parquet")
    readings.drop(columns="user").to_csv(folder / "readings.csv", index=False)
    user = readings["user"].to_numpy(dtype=str)
    np.savez(folder / "readings.npz", x=x, y=(x[:, 0] > 0).astype(int), user=user)
    np.savez(folder / "sentences.npz", x=rng.integers(0, 50, (300, 12)), y=rng.integers(0, 3, 300))
    images = [f"pets/{name}/{i}.jpg" for name in ("cat", "dog") for i in range(20)]
    images += [f"wards/{ward}/{name}/{i}.png" for ward in "abc" for name in ("healthy", "ill") for i in range(4)]
    for name in images:
        side = int(rng.integers(20, 40))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (side, side + 5, 3), dtype=np.uint8)).save(folder / name)
    photos = [name.removeprefix("pets/") for name in images if name.startswith("pets/")]
    owners = [f"owner-{row % 5}" for row in range(len(photos))]
    pd.DataFrame({"file_name": photos, "owner": owners}).to_csv(folder / "pets" / "metadata.csv", index=False)
