"""A user's own files: each kind in three lines of YAML, what is found in them, and what becomes of it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raysim.common.errors import ScenarioError
from raysim.data.datasets import load_dataset
from raysim.data.files import find_files
from raysim.data.leaf import CHARACTERS
from raysim.data.specs import Files
from raysim.runs.plan import RunData
from raysim.runs.run import Run, run
from tests.data import layouts
from tests.data.own import checked, features, image_folder, leaf, scenario, table


def assembled(data: dict, **changes: object) -> RunData:
    return RunData.of(checked(data, **changes))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_of_numbers(workplace: Path, kind: str) -> None:
    table(workplace / f"mine.{kind}")
    made = assembled({"name": kind, "path": f"mine.{kind}", "features": ["b", "[ac]"]})
    spec, raw_M = made.scenario.dataset, made.dataset.raw_M
    x, y = features()
    assert str(spec.input_spec) == "3 features" and (spec.num_classes, spec.train_size, spec.test_size) == (3, 60, 0)
    assert raw_M.dtype == np.float32 and np.allclose(raw_M, x[:, [1, 0, 2]], rtol=1e-6)  # in the order asked for
    assert np.array_equal(made.dataset.label_M, y) and made.dataset.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("folders", "counts"),
    [
        (("train/cat", "train/dog", "test/cat", "val/dog"), (2, 1)),
        (("train/train_station", "train/cat", "test/train_station"), (2, 1)),
        (("train_station", "train_interior", "kitchen"), (3, 0)),
    ],
)
def test_parts_of_images(folders: tuple[str, ...], counts: tuple[int, int], tmp_path: Path) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.png").write_bytes(b"")
    source = find_files("images", Files((str(tmp_path),)))
    assert (len(source.train), len(source.test)) == counts


def test_an_index_that_pandas_wrote_is_no_feature(workplace: Path) -> None:
    table(workplace / "mine.csv")
    pd.read_csv("mine.csv").to_csv("indexed.csv")
    with pytest.raises(ScenarioError, match="that pandas wrote"):
        assembled({"name": "csv", "path": "indexed.csv"})
    assembled({"name": "csv", "path": "indexed.csv", "features": ["a", "b", "c"]})


def test_a_train_and_a_test_part(workplace: Path) -> None:
    table(workplace / "set" / "train-a.csv", 30)
    table(workplace / "set" / "train-b.csv", 10, seed=1)
    table(workplace / "set" / "test.csv", 20, seed=2)
    table(workplace / "set" / "val.csv", 6, seed=3)  # not read: there is a test part
    whole = assembled({"name": "csv", "path": "set", "features": "[abc]", "split": "published"})
    spec = whole.scenario.dataset
    assert (spec.train_size, spec.test_size) == (40, 20)
    assert np.allclose(spec.mean, whole.dataset.raw_M[:40].mean(0), rtol=1e-5)  # of the train part alone
    two = assembled({"name": "csv", "path": ["set/train-a.csv", "set/test.csv"], "features": "[abc]"})
    assert (two.scenario.dataset.train_size, two.scenario.dataset.test_size) == (30, 20)
    assert sum(map(len, (two.partition.train.index, two.partition.val.index, two.partition.test.index))) == 50


@pytest.mark.parametrize(
    "data", [{"name": "csv", "path": "mine.csv", "features": "[abc]"}, {"name": "numpy", "path": "mine.npz"}]
)
def test_a_single_file_is_normalised_by_its_training_samples(data: dict[str, Any], workplace: Path) -> None:
    table(workplace / "mine.csv")
    image, label = layouts.pixels(60, (3, 8, 8)), features()[1]
    np.savez("mine.npz", x=image, y=label)
    made = scenario(data, clients={"count": 2, "models": ["mlp_s" if data["name"] == "csv" else "hks_resnet8"]})
    first = run({**made, "rounds": 1}, quiet=True)
    x = torch.cat([first.client(k).data.train.x for k in range(2)])  # [M, F] or [M, C, H, W]
    over = tuple(axis for axis in range(x.dim()) if axis != 1)
    assert torch.allclose(x.mean(over), torch.zeros(3), atol=1e-5)
    assert torch.allclose(x.std(over, correction=0), torch.ones(3), atol=1e-5)
    assert first.resume(["rounds=2"], quiet=True).state_digest == run(made, quiet=True).state_digest


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([False, True, True], ("0", "1")),
        ([0, 3, 1], ("0", "1", "2", "3")),  # whole numbers from 0 are class ids
        ([-1, 1, 1], ("-1", "1")),
        ([974.0, 2996.0, 999.0], ("974", "999", "2996")),
    ],
)
def test_numbers_as_labels(labels: list[Any], names: tuple[str, ...], workplace: Path) -> None:
    table(workplace / "mine.csv", 60, label=labels * 20)
    table(workplace / "mine.parquet", 60, label=labels * 20)
    np.savez("mine.npz", x=features()[0], y=labels * 20)
    for kind, path in (("csv", "mine.csv"), ("parquet", "mine.parquet"), ("numpy", "mine.npz")):
        data = load_dataset(kind, files=Files((path,), features=("a",) if kind != "numpy" else ()))
        assert data.class_names == names
        assert [data.class_names[y] for y in data.label_M[:3]] == [str(int(label)) for label in labels]


def test_a_cifar10_of_the_hub(workplace: Path) -> None:
    """Three lines of YAML: images in struct<bytes, path>, names of the classes in the file's metadata."""
    image, label, names = layouts.pixels(14, (3, 32, 32)), np.arange(14) % 10, [f"kind {n}" for n in range(10)]
    layouts.parquet(workplace / "hub/plain_text/train-00000-of-00001.parquet", image[:9], label[:9], names=names)
    layouts.parquet(workplace / "hub/plain_text/test-00000-of-00001.parquet", image[9:], label[9:], names=names)
    made = assembled(
        {"name": "parquet", "path": "hub"},
        clients={"count": 2, "models": ["cnn5", "hks_resnet8"]} | {"feature_dim": 20},
    )
    assert np.array_equal(made.dataset.raw_M, image) and made.dataset.class_names == tuple(names)
    spec = made.scenario.dataset
    assert (spec.train_size, spec.test_size, str(spec.input_spec)) == (9, 5, "3x32x32 images")
    assert np.allclose(spec.mean, (image[:9] / 255).mean((0, 1, 2))) and np.allclose(
        spec.std, (image[:9] / 255).std((0, 1, 2))
    )


def test_a_column_of_lists(workplace: Path) -> None:
    columns = {"label": [0, 1, 0, 1], "x": [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0], [1.0, 1.0]], "t": [[1, 2, 299]] * 4}
    pq.write_table(pa.table(columns), "mine.parquet")
    floats = load_dataset("parquet", files=Files(("mine.parquet",), features=("x",)))
    assert str(floats.spec.input_spec) == "2 features" and floats.raw_M.tolist() == columns["x"]
    tokens = load_dataset("parquet", files=Files(("mine.parquet",), features=("t",)))
    assert str(tokens.spec.input_spec) == "3 tokens of a vocabulary of 300" and tokens.raw_M.dtype == np.int32


def test_a_folder_of_images_of_mixed_sizes(workplace: Path) -> None:
    image_folder(workplace / "pets")
    data = load_dataset("images", files=Files(("pets",), size=8))
    assert data.raw_M.shape == (6, 8, 8, 3) and data.class_names == ("cat", "dog")
    assert data.label_M.tolist() == [0, 0, 0, 1, 1, 1]
    assert (data.raw_M[1, ..., 0] == data.raw_M[1, ..., 2]).all()  # one that is grey among colour
    image_folder(workplace / "grey", sizes=((8, 8),), grey=True)
    assert load_dataset("images", files=Files(("grey",))).raw_M.shape == (6, 8, 8, 1)
    image_folder(workplace / "parts" / "train")
    image_folder(workplace / "parts" / "val")
    assert load_dataset("images", files=Files(("parts",), size=8)).num_train == 6


def test_numpy_arrays_are_what_their_type_says(workplace: Path) -> None:
    y, rng = np.arange(6) % 2, np.random.default_rng(0)
    for x, text in (
        (rng.integers(0, 256, (6, 8, 9), dtype=np.uint8), "1x8x9 images"),
        (rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8), "3x8x8 images"),
        (rng.normal(size=(6, 4, 5)), "4x5 features"),
        (np.array([[1, 2, 3]] * 6), "3 tokens of a vocabulary of 4"),
    ):
        np.savez("mine.npz", x=x, y=y)
        assert str(load_dataset("numpy", files=Files(("mine.npz",))).spec.input_spec) == text


def test_the_clients_are_the_ids(workplace: Path) -> None:
    table(workplace / "mine.parquet", 62, users=4)
    data = {"name": "parquet", "path": "mine.parquet", "partition": {"name": "natural", "by": "user"}}
    made = assembled(data)
    assert made.scenario.clients.number == 4
    assert made.scenario.resolved["clients"]["count"] == 4
    assert made.partition.ids == ("u0", "u1", "u2", "u3")
    for k, shard in enumerate(made.partition.train.of(k) for k in range(4)):
        assert (shard % 4 == k).all()  # row r is of user r % 4
    rows = made.partition.table(made.dataset.label_M).to_pandas()
    assert sorted(rows["sample"]) == list(range(62)) and (rows["id"] == "u" + rows["client"].astype(str)).all()
    assert rows.groupby("client")["part"].value_counts().unstack().to_numpy().min() >= 1
    few = assembled({**data, "partition": {"name": "natural", "by": "user", "min_samples": 16, "max_clients": 1}})
    assert len(few.partition.ids) == 1 and few.partition.ids[0] in ("u0", "u1")  # those with 16 rows, not 15


def test_natural_with_published_parts(workplace: Path) -> None:
    table(workplace / "train.csv", 12, users=3)
    table(workplace / "test.csv", 4, users=2, seed=1)
    given = {"name": "csv", "path": ["train.csv", "test.csv"], "split": "published"}
    made = assembled({**given, "partition": {"name": "natural", "by": "user"}})
    assert made.partition.ids == ("u0", "u1")  # u2 has nothing to be tested on
    assert made.partition.train.of(1).tolist() == [1, 4, 7, 10] and made.partition.test.of(1).tolist() == [13, 15]


def test_a_run_is_replayed_from_its_partition(workplace: Path) -> None:
    table(workplace / "mine.csv", 80, users=3)
    data = {"name": "csv", "path": "mine.csv", "features": "[abc]", "partition": {"name": "natural", "by": "user"}}
    first = run(scenario(data), quiet=True)
    listed = {"name": "listed", "path": str(first.folder / "partition.parquet")}
    again = run(scenario({**data, "partition": listed}), quiet=True)
    assert again.state_digest == first.state_digest
    final = ("accuracy/all", "accuracy/val", "comm/total_bytes")
    assert [again.summary["final"][key] for key in final] == [first.summary["final"][key] for key in final]
    # A run goes on with its files, wherever they are now, and with no others.
    (workplace / "mine.csv").rename("moved.csv")
    table(workplace / "mine.csv", 79, users=3)
    with pytest.raises(ScenarioError, match="digest"):
        Run(first.folder).resume(sets=["rounds=3"], quiet=True)
    assert Run(first.folder).resume(sets=["rounds=3", "data.path=moved.csv"], quiet=True).summary["rounds"] == 3


@pytest.mark.parametrize("name", ["femnist", "shakespeare"])
def test_leaf(workplace: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf(workplace, name)
    model = {"femnist": "mobilenet", "shakespeare": "gru"}[name]
    clients = {"count": "auto", "models": [model]}
    data = {"name": name, "root": str(workplace), "partition": {"name": "natural"}, "split": "published"}
    made = assembled(data, clients=clients)
    spec = made.scenario.dataset
    assert (spec.train_size, spec.test_size, made.partition.ids) == (15, 6, ("w0", "w1", "w2"))
    assert [len(made.partition.test.of(k)) for k in range(3)] == [2, 2, 2]
    if name == "femnist":
        assert (str(spec.input_spec), spec.num_classes) == ("1x28x28 images", 62)
        assert made.dataset.class_names[10] == "A"
    else:
        assert (str(spec.input_spec), spec.num_classes) == ("80 tokens of a vocabulary of 81", 81)
        assert np.array_equal(made.dataset.label_M, made.dataset.raw_M[:, 0])  # y is the first character, in the tests
        assert {CHARACTERS[token] for token in np.unique(made.dataset.raw_M)} == set("To be, or not")


def test_femnist_of_the_hub(workplace: Path) -> None:
    image = layouts.pixels(6, (1, 28, 28))
    cells = [{"bytes": layouts.encoded(one), "path": None} for one in image]
    columns = {
        "image": pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "writer_id": ["f1", "f0", "f1", "f0", "f1", "f0"],
        "hsf_id": [0] * 6,
        "character": [3, 61, 0, 3, 10, 4],
    }
    (workplace / "femnist" / "data").mkdir(parents=True)
    pq.write_table(pa.table(columns), "femnist/data/train-00000-of-00001.parquet")
    data = load_dataset("femnist", str(workplace))
    assert np.array_equal(data.raw_M, image) and data.label_M.tolist() == columns["character"]
    assert data.owners == ("f0", "f1") and data.owner_M.tolist() == [1, 0, 1, 0, 1, 0]
    assert data.num_classes == 62 and data.spec.test_size == 0


def test_shakespeare_of_the_hub(workplace: Path) -> None:
    (workplace / "shakespeare").mkdir()
    text = ("Is this a dagger, " * 5)[:80]
    rows = [("x", "character_id", "y"), (text, "MACBETH", "w"), (text[:79] + "é", "MACBETH", '"')]
    rows.append((text[:78] + '\n"', "SEYTON", "n"))
    with (workplace / "shakespeare" / "shakespeare.csv").open("w") as file:
        csv.writer(file).writerows(rows)
    data = load_dataset("shakespeare", str(workplace))
    assert data.raw_M.shape == (3, 80) and data.owners == ("MACBETH", "SEYTON")
    assert [data.class_names[y] for y in data.label_M] == ["w", '"', "n"]
    assert data.raw_M[1, -1] == len(CHARACTERS) and CHARACTERS[data.raw_M[2, 78]] == "\n"  # an unknown character


def test_unknown_ids_and_counts_are_refused(workplace: Path) -> None:
    table(workplace / "mine.csv", 40, users=4)
    data = {"name": "csv", "path": "mine.csv", "features": "[abc]", "partition": {"name": "natural", "by": "user"}}
    with pytest.raises(ScenarioError, match=r"clients\.count: 7 given"):
        checked(data, clients={"count": 7, "models": ["mlp_s"]})
    with pytest.raises(ScenarioError, match=r"clients\.count: 'auto' given"):
        checked({**data, "partition": {"name": "iid"}}, clients={"count": "auto", "models": ["mlp_s"]})


@pytest.mark.parametrize("by", ["folder", "user"])
def test_the_clients_of_images(by: str, workplace: Path) -> None:
    """By the folders above the classes, or by the column of a metadata.csv beside the images."""
    image_folder(Path("pets/u1"))
    image_folder(Path("pets/u2"))
    names = sorted(str(path.relative_to("pets")) for path in Path("pets").rglob("*.*"))
    rows = [f"{name},v{int(name[1]) - 1}" for name in names]
    Path("pets/metadata.csv").write_text("\n".join(["file_name,user", *reversed(rows)]))
    made = assembled({"name": "images", "path": "pets", "size": 8, "partition": {"name": "natural", "by": by}})
    assert made.partition.ids == (("u1", "u2") if by == "folder" else ("v0", "v1"))
    for k, shards in ((k, shards) for shards in made.partition.parts.values() for k in range(2)):
        assert set(shards.index[shards.owner == k].tolist()) <= set(range(6 * k, 6 * k + 6))
    assert sum(len(shards.index) for shards in made.partition.parts.values()) == 12
