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
NUMPY: Data = {"name": "numpy", "path": "mine.npz"}
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


def mixed_images() -> Data:
    image_folder(Path("pets"))
    return {"name": "images", "path": "pets"}


def listed_too_far() -> Data:
    pq.write_table(pa.table({"client": [0, 1], "part": ["train", "test"], "sample": [0, 4]}), "mine.parquet")
    table(Path("mine.csv"), 4, label=[0, 1, 0, 1])
    return {**CSV, **ABC, "partition": {"name": "listed", "path": "mine.parquet"}}


ROWS = ("a,b,label", "1,2,0", "3,4,1")

CASES: dict[str, tuple[Case, str]] = {
    # Tables
    "no such file": (lambda: CSV, "data.path"),
    "no such label": (csv(*ROWS, label="kind"), "'kind'"),
    "text where numbers must be": (csv("a,b,label", "1,x,0", "3,y,1"), "column b"),
    "no such id column": (csv(*ROWS, **BY_USER), "'user'"),
    "no test part": (csv(*ROWS, split="published"), "data.split"),
    # Arrays
    "more samples than labels": (npz(x=np.zeros((3, 2)), y=[0, 1]), "x has 3 samples"),
    "channels first": (npz(x=np.zeros((2, 3, 8, 8), np.uint8), y=[0, 1]), "(2, 3, 8, 8)"),
    # Images
    "mixed sizes": (mixed_images, "data.size"),
    # Clients listed in a file
    "a sample that there is not": (listed_too_far, "sample 4"),
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
