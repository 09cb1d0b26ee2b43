"""Files of a user's own that cannot be used: one sentence each, exit code 2, nothing begun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from raysim.cli.main import main
from tests.data.own import image_folder, scenario, table

Data = dict[str, Any]
Case = Callable[[], Data]
CSV: Data = {"name": "csv", "path": "mine.csv"}
PARQUET: Data = {"name": "parquet", "path": "mine.parquet"}
NUMPY: Data = {"name": "numpy", "path": "mine.npz"}
IMAGES: Data = {"name": "images", "path": "pets", "size": 8}
BY_USER: Data = {"partition": {"name": "natural", "by": "user"}}
ABC: Data = {"features": "[abc]"}


def csv(*lines: str, **data: Any) -> Case:
    def write() -> Data:
        Path("mine.csv").write_text("\n".join(lines) + ("\n" if lines else ""))
        return {**CSV, **data}

    return write


def npz(**arrays: Any) -> Case:
    def write() -> Data:
        np.savez("mine.npz", **{name: np.asarray(value) for name, value in arrays.items()})
        return NUMPY

    return write


def good(**data: Any) -> Case:
    """A table that is as it must be, and wrong words about it."""

    def write() -> Data:
        table(Path("mine.csv"), 24)
        return {**CSV, **ABC, **data}

    return write


def images(spoil: Callable[[Path], object] = lambda folder: None, **data: Any) -> Case:
    def write() -> Data:
        spoil(image_folder(Path("pets")))
        return {**IMAGES, **data}

    return write


def no_images() -> Data:
    Path("nothing").mkdir()
    return {**IMAGES, "path": "nothing"}


def other_labels() -> Data:
    for part, labels in (("train", ["no", "yes"] * 30), ("test", [0, 1] * 30)):
        table(Path(f"{part}.parquet"), label=labels)
    return {**PARQUET, **ABC, "path": ["train.parquet", "test.parquet"]}


def listed(path: str = "mine.parquet", **columns: Any) -> Case:
    def write() -> Data:
        found = {"client": [0, 1], "part": ["train", "test"], "sample": [0, 1], **columns}
        pq.write_table(pa.table({key: value for key, value in found.items() if value is not None}), "mine.parquet")
        table(Path("mine.csv"), 4, label=[0, 1, 0, 1])
        return {**CSV, **ABC, "partition": {"name": "listed", "path": path}}

    return write


ROWS = ("a,b,label", "1,2,0", "3,4,1")

CASES: dict[str, tuple[Case, str]] = {
    # Tables
    "no such file": (lambda: CSV, "data.path"),
    "labels of another type in another file": (other_labels, "test.parquet"),
    "no such label": (csv(*ROWS, label="kind"), "'kind'"),
    "text where numbers must be": (csv("a,b,label", "1,x,0", "3,y,1"), "column b"),
    "a number is missing": (csv(*ROWS, "5,,0"), "row 3, column b"),
    "no such id column": (csv(*ROWS, **BY_USER), "'user'"),
    "no test part": (good(split="published"), "data.split"),
    # Arrays
    "more samples than labels": (npz(x=np.zeros((3, 2)), y=[0, 1]), "x has 3 samples"),
    "channels first": (npz(x=np.zeros((2, 3, 8, 8), np.uint8), y=[0, 1]), "(2, 3, 8, 8)"),
    # Images
    "mixed sizes": (images(size=None), "data.size"),
    "an image that is none": (images(lambda folder: (folder / "dog" / "3.png").write_text("woof")), "3.png"),
    "no images": (no_images, ".png"),
    # Clients listed in a file
    "no such list": (listed(path="other.parquet"), "other.parquet"),
    "a sample that there is not": (listed(sample=[0, 4]), "sample 4"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence(case: str, workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write, word = CASES[case]
    Path("mine.yaml").write_text(yaml.safe_dump(scenario(write())))
    with pytest.raises(SystemExit) as ended:
        main(["validate", "mine.yaml"])
    told = capfd.readouterr().err
    assert ended.value.code == 2, told
    assert told.count("\n") == 1 and told.startswith("raysim: "), told
    assert word in told, told


def test_files_of_more_than_the_memory(
    workplace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump(scenario(good()())))
    monkeypatch.setattr("raysim.data.datasets.available_memory", lambda: 10)
    with pytest.raises(SystemExit):
        main(["validate", "mine.yaml"])
    assert "memory" in capfd.readouterr().err
