"""Files of a user's own that cannot be used: one sentence each, exit code 2, nothing begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from raysim.cli.main import main
from tests.data import layouts
from tests.data.own import image_folder, leaf, scenario, table

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


def parquet(columns: dict[str, Any], **data: Any) -> Case:
    def write() -> Data:
        pq.write_table(pa.table(columns), "mine.parquet")
        return {**PARQUET, **data}

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


def flat_test(folder: Path) -> None:
    """Test images without labels, as some competitions give them."""
    for name in ("cat", "dog"):
        (folder / name).rename(folder.with_name(name))
        (folder / "train").mkdir(exist_ok=True)
        folder.with_name(name).rename(folder / "train" / name)
    (folder / "test").mkdir()
    (folder / "train" / "cat" / "0.jpeg").rename(folder / "test" / "0.jpeg")


def empty() -> Data:
    Path("nothing").mkdir()
    return {**CSV, "path": "nothing"}


def other_labels() -> Data:
    for part, labels in (("train", ["no", "yes"] * 30), ("test", [0, 1] * 30)):
        table(Path(f"{part}.parquet"), label=labels)
    return {**PARQUET, **ABC, "path": ["train.parquet", "test.parquet"]}


def truncated() -> Data:
    file = table(Path("mine.parquet"))
    file.write_bytes(file.read_bytes()[:300])
    return {**PARQUET, **ABC}


def a_shard_is_missing() -> Data:
    table(Path("set/train-00000-of-00002.parquet"))
    return {**PARQUET, **ABC, "path": "set"}


def other_columns() -> Data:
    Path("set").mkdir()
    Path("set/train.csv").write_text("a,b,c,label\n1,2,3,0\n")
    Path("set/test.csv").write_text("a,b,d,label\n1,2,3,1\n")
    return {**CSV, "path": "set"}


def a_user_in_two_files() -> Data:
    folder = leaf(Path("root"), "femnist")
    first = folder / "femnist" / "train" / "all_data_0.json"
    (first.parent / "all_data_1.json").write_bytes(first.read_bytes())
    return {"name": "femnist", "root": "root"}


def leaf_with(own: Any) -> Case:
    def write() -> Data:
        (folder := Path("root/femnist/train")).mkdir(parents=True)
        (folder / "all_data.json").write_text(json.dumps(own))
        return {"name": "femnist", "root": "root"}

    return write


def listed(path: str = "mine.parquet", **columns: Any) -> Case:
    def write() -> Data:
        found = {"client": [0, 1], "part": ["train", "test"], "sample": [0, 1], **columns}
        pq.write_table(pa.table({key: value for key, value in found.items() if value is not None}), "mine.parquet")
        table(Path("mine.csv"), 4, label=[0, 1, 0, 1])
        return {**CSV, **ABC, "partition": {"name": "listed", "path": path}}

    return write


def metadata(*lines: str) -> Case:
    def write() -> Data:
        image_folder(Path("pets"))
        Path("pets/metadata.csv").write_text("\n".join(lines) + "\n")
        return {**IMAGES, "partition": {"name": "natural", "by": "user"}}

    return write


ROWS = ("a,b,label", "1,2,0", "3,4,1")

CASES: dict[str, tuple[Case, *tuple[str, ...]]] = {
    # Tables
    "no such file": (lambda: CSV, "data.path: "),
    "no path": (lambda: {"name": "csv"}, "data.path: is missing; give the path of your files"),
    "another suffix": (good(path="own.py"), "data.path: "),
    "three paths": (good(path=["mine.csv"] * 3), "data.path: 3 paths given; give one file or folder, or two"),
    "the same file to train and test": (good(path=["mine.csv"] * 2), "is given as training data and as test data"),
    "an empty folder": (empty, "nothing contains no .csv file"),
    "labels of another type in another file": (
        other_labels,
        "data.label: ",
        "test.parquet has labels of another type than ",
        "so equal labels could become different classes; use whole numbers in all files, or text in all files",
    ),
    "an empty file": (csv(), "mine.csv: Empty CSV file"),
    "a header alone": (csv("a,b,label"), "mine.csv has no rows below its header"),
    "ragged rows": (
        csv(*ROWS, "5,6"),
        "mine.csv: CSV parse error",
    ),
    "no such label": (csv(*ROWS, label="kind"), "mine.csv has no column 'kind'; its columns are a, b, label"),
    "no such feature": (good(features=["a", "z*"]), "data.features: 'z*' given, but "),
    "the label as feature": (good(features="*"), "data.features: the label column 'label' cannot be a feature"),
    "no feature at all": (csv("label", "0", "1"), "data.features: "),
    "text where numbers must be": (
        csv("a,b,label", "1,x,0", "3,y,1"),
        "column b has type string",
    ),
    "a number is missing": (csv(*ROWS, "5,,0"), "mine.csv: row 3, column b is empty; every row needs a value"),
    "NaN features": (
        parquet({"a": [1.0, float("nan")], "label": [0, 1]}),
        "row 2, column a holds nan; features must be finite",
    ),
    "labels that are fractions": (csv("a,label", "1,1.0", "2,1.5"), "data.label: ", "1.5", "classification only"),
    "labels that are missing": (parquet({"a": [1, 2], "label": [1.0, float("nan")]}), "the value nan"),
    "labels that are one-hot": (parquet({"a": [1, 2], "label": [[0, 1], [1, 0]]}), "data.label: ", "argmax"),
    "labels that are prices": (
        csv("a,label", *(f"{i},{1000 + 10 * i}" for i in range(50))),
        "50 different numbers from 1000 to 1490 for 50 samples",
        "classification only",
    ),
    "an empty label": (csv("a,label", "1,x", "2,"), "row 2, column label is empty"),
    "a label as large as an id": (
        csv("a,label", "1,0", "2,90210"),
        "2 different numbers from 0 to 90210 for 2 samples",
    ),
    "one class": (csv("a,label", "1,x", "2,x"), "all 2 labels are x; give data of at least two classes"),
    "empty ids": (
        csv("user,a,label", "u,1,0", ",2,1", **BY_USER),
        "row 2, column user is empty",
    ),
    "no such id column": (csv(*ROWS, **BY_USER), "mine.csv has no column 'user'; its columns are"),
    "ids of too few samples": (
        csv("user,a,label", "u,1,0", "v,2,1", **BY_USER),
        "no id has a training sample, a test sample and at least 2 samples in total (number of ids: 2; samples of the "
        "largest id: 1)",
    ),
    "natural without ids": (
        good(partition={"name": "natural"}),
        "data.partition.name: partition 'natural' needs client ids, but `by` is not set; set data.partition.by to",
    ),
    "no test part": (good(split="published"), "data.split: published given, but csv has no test part"),
    "no test part, by ids": (
        good(split="published", **BY_USER),
        "data.split: published given, but csv has no test part",
    ),
    "a key of another kind": (
        good(size=8),
        "data.size: 8 given, but the data set csv does not use this key; remove it",
    ),
    "augmented features": (good(augment=True), "data.augment: augmentation needs images, but csv has 3 features"),
    "constants that do not fit": (
        good(normalise={"mean": [0, 0], "std": [1, 1]}),
        "2 numbers given; for csv, give 1 or 3",
    ),
    "other columns in the test part": (other_columns, "test.csv has the feature columns a, b, d, but "),
    "a truncated Parquet file": (truncated, "mine.parquet: "),
    "a missing shard": (
        a_shard_is_missing,
        "train-00000-of-00002.parquet belongs to a set of 2 files, but the folder holds 1;",
    ),
    "a label out of range": (
        lambda: (
            layouts.parquet(Path("mine.parquet"), layouts.pixels(2, (3, 8, 8)), [0, 2], names=["x", "y"]) and PARQUET
        ),
        "labels range from 0 to 2, but the file names 2 classes",
    ),
    "an image that is missing": (
        lambda: layouts.parquet(Path("mine.parquet"), [*layouts.pixels(1, (3, 8, 8)), None], [0, 1]) and PARQUET,
        "image 2 is missing",
    ),
    "ragged lists": (
        parquet({"x": [[1, 2], [3]], "label": [0, 1]}),
        "all lists in column x must have the same length",
    ),
    "tokens below 0": (parquet({"x": [[1], [-1]], "label": [0, 1]}), "token -1 given; allowed: 0 to "),
    "lists beside numbers": (
        parquet({"x": [[1], [2]], "a": [1, 2], "label": [0, 1]}),
        "the columns x, a cannot be features together; give one column of images, one column of lists, or columns of",
    ),
    # Arrays
    "no array y": (npz(x=np.zeros((2, 2))), "mine.npz has no array y; its arrays are x"),
    "ids that are the samples": (
        lambda: {**npz(x=np.zeros((4, 2)), y=[0, 1, 0, 1])(), "partition": {"name": "natural", "by": "x"}},
        "array x has type float64 and shape (4, 2); give one whole number or one text per sample",
    ),
    "more samples than labels": (
        npz(x=np.zeros((3, 2)), y=[0, 1]),
        "x has 3 samples, y has 2 samples; give all arrays the same number",
    ),
    "NaN in an array": (
        npz(x=[[0.0], [np.nan]], y=[0, 1]),
        "mine.npz: x: row 2 holds nan; features must be finite",
    ),
    "an array of labels that are fractions": (npz(x=np.zeros((2, 2)), y=[0.5, 1.0]), "0.5", "classification only"),
    "an array of one-hot labels": (npz(x=np.zeros((2, 2)), y=[[0, 1], [1, 0]]), "shape (2, 2)", "y.argmax(axis=1)"),
    "two labels per sample": (
        npz(x=np.zeros((2, 2)), y=[[0], [1]]),
        "y has type int64 and shape (2, 1); give one whole",
    ),
    "channels first": (
        npz(x=np.zeros((2, 3, 8, 8), np.uint8), y=[0, 1]),
        "x has type uint8 and shape (2, 3, 8, 8); give",
    ),
    # Images
    "mixed sizes": (images(size=None), "; set data.size to resize all images to one size"),
    "an image that is none": (
        images(lambda folder: (folder / "dog" / "3.png").write_text("woof")),
        "3.png: cannot identify image",
    ),
    "an image that is a link to nothing": (
        images(lambda folder: (folder / "cat" / "9.png").symlink_to("gone.png")),
        "No such file",
        "cat/9.png",
    ),
    "an image outside the classes": (
        images(lambda folder: (folder / "cat" / "0.jpeg").rename("pets/0.png")),
        "is not in the folder of a class; put the images of each class into one sub-folder",
    ),
    "an image that is directly in the folder of a part": (
        images(flat_test),
        "pets/test/0.jpeg is not in the folder of a class; put the images of each class into one sub-folder",
    ),
    "an image with 16 bits per channel": (
        images(lambda folder: Image.fromarray(np.full((9, 9), 40000, np.uint16)).save(folder / "cat" / "x.png")),
        "x.png has image mode I;16",
    ),
    "images by folders that are none": (
        images(partition={"name": "natural", "by": "folder"}),
        "data.partition.by: 'folder' given, but ",
    ),
    "images by a column of no file": (
        images(**BY_USER),
        "data.partition.by: user given, but ",
    ),
    "images by a column that there is not": (
        metadata("file_name,owner", "cat/0.jpeg,a"),
        "has no column 'user'; its columns are file_name, owner",
    ),
    "an image with two ids": (
        metadata("file_name,user", "cat/0.jpeg,a", "cat/0.jpeg,b"),
        "metadata.csv: image cat/0.jpeg has two values of user; give each image one value",
    ),
    "an image without an id": (
        metadata("file_name,user", "cat/0.jpeg,a"),
        "cat/1.png; add a row with its file_name and user",
    ),
    "an id that is empty": (metadata("file_name,user", "cat/0.jpeg,"), "row 1 has no value for file_name or user"),
    "no images": (lambda: {**empty(), **IMAGES, "path": "nothing"}, "contains no .jpeg/.jpg/.png file"),
    "a file in place of a folder": (
        lambda: table(Path("mine.csv")) and {**IMAGES, "path": "mine.csv"},
        "mine.csv is not a folder; give a folder of .jpeg/.jpg/.png files",
    ),
    # FEMNIST
    "a user in two files": (a_user_in_two_files, "user w0 is also in "),
    "another JSON": (leaf_with({"users": []}), "is not in LEAF's format"),
    "x and y of two lengths": (
        leaf_with({"user_data": {"u": {"x": [], "y": [1]}}}),
        "for user u, x has length 0 but y has length 1; give one label per sample",
    ),
    # Listed
    "no such list": (
        listed(path="other.parquet"),
        "other.parquet does not exist",
    ),
    "a list that is none": (
        listed(path="mine.csv"),
        "mine.csv: ",
    ),
    "a list without parts": (listed(part=None), "has no column part; its columns are client, sample"),
    "an unknown part": (listed(part=["train", "dev"]), "contains the part 'dev'; allowed: train, val, test"),
    "a sample that there is not": (listed(sample=[0, 4]), "contains sample 4; allowed: 0 to 3"),
    "a sample twice": (listed(client=[0, 0], sample=[1, 1]), "lists the same sample twice for one client"),
    "the published test part, dealt": (
        lambda: {**listed()(), "global_test": True},
        "evaluation.global_test: true given, but with `data.split: listed`, clients may also train on",
    ),
    "nothing to train on": (listed(part=["val", "test"]), "has no training samples"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence(case: str, workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write, *sentences = CASES[case]
    data = write()
    evaluation = {"global_test": data.pop("global_test", False)}
    Path("mine.yaml").write_text(yaml.safe_dump(scenario(data, evaluation=evaluation)))
    with pytest.raises(SystemExit) as ended:
        main(["validate", "mine.yaml"])
    told = capfd.readouterr().err
    assert ended.value.code == 2, told
    assert told.count("\n") == 1 and told.startswith("raysim: "), told
    assert all(sentence in told for sentence in sentences), told


def test_a_list_of_other_data(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Labels are compared once the data is read."""
    Path("mine.yaml").write_text(yaml.safe_dump(scenario(listed()())))
    table(Path("mine.parquet"))
    pq.write_table(
        pa.table({"client": [0, 0], "part": ["train", "test"], "sample": [0, 1], "label": [1, 1]}), "mine.parquet"
    )
    with pytest.raises(SystemExit) as ended:
        main(["launch", "mine.yaml"])
    told = capfd.readouterr().err
    assert ended.value.code == 2 and "gives sample 0 the label 1, but in the data set it has label 0" in told
    assert not list(workplace.rglob("summary.json"))


def test_files_of_more_than_the_memory(
    workplace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump(scenario(good()())))
    monkeypatch.setattr("raysim.data.datasets.available_memory", lambda: 10)
    with pytest.raises(SystemExit):
        main(["validate", "mine.yaml"])
    assert "memory" in capfd.readouterr().err
