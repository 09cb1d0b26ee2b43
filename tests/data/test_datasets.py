"""Loading: every layout gives the same arrays, every damage one sentence, the cache only speed."""

from __future__ import annotations

import layouts
import numpy as np
import pytest

from raysim.common.errors import ScenarioError
from raysim.data.datasets import load_dataset
from raysim.data.specs import DATASETS


def test_digits_are_sixteenths_of_full_ink():
    data = load_dataset("digits")
    assert data.raw_M.shape == (1797, 8, 8, 1) and data.raw_M.dtype == np.uint8
    assert data.num_train == 1437 and data.num_classes == 10 and data.label_M.dtype == np.int64
    assert set(np.unique(data.raw_M)) == {round(value * 255 / 16) for value in range(17)}
    spec = DATASETS["digits"]
    scaled = data.raw_M / 255
    assert abs(scaled.mean() - spec.mean[0]) < 1e-3 and abs(scaled.std() - spec.std[0]) < 1e-3
    assert data.digest == load_dataset("digits").digest


@pytest.mark.large  # it decodes 70,000 images
def test_real_fashion_mnist_cold_and_cached(data_root, monkeypatch, tmp_path):
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path))
    monkeypatch.setenv("RAYSIM_DATA", data_root)
    cold = load_dataset("fashion_mnist", download=False)
    monkeypatch.setattr("raysim.data.datasets._decode", lambda *_: pytest.fail("decoded again"))
    preload = load_dataset("fashion_mnist", download=False)
    assert cold.digest == preload.digest and cold.class_names == preload.class_names
    assert cold.raw_M.shape == (70_000, 28, 28, 1) and cold.num_train == 60_000
    assert np.bincount(cold.label_M[:60_000]).tolist() == [6000] * 10
    assert np.bincount(cold.label_M[60_000:]).tolist() == [1000] * 10
    assert not preload.raw_M.flags.writeable and not cold.raw_M.flags.writeable
    assert "parquet files in" in preload.source


def test_several_files_in_order_and_all_needed(alone):
    image = layouts.pixels(9, (3, 32, 32))
    for number, rows in enumerate((slice(0, 4), slice(4, 7))):
        path = alone / "cifar10" / f"train-{number:05d}-of-00002-0123456789abcdef.parquet"
        layouts.parquet(path, image[rows], [0, 1, 2, 3][: len(image[rows])])
    layouts.parquet(alone / "cifar10" / "test-00000-of-00001.parquet", image[7:], [8, 9])
    data = load_dataset("cifar10", str(alone))
    assert np.array_equal(data.raw_M, image) and data.num_train == 7
    assert data.label_M.tolist() == [0, 1, 2, 3, 0, 1, 2, 8, 9] and data.class_names[9] == "9"
    path.unlink()
    with pytest.raises(ScenarioError, match="2 files"):
        load_dataset("cifar10", str(alone))


def test_torchvision_folders(alone, monkeypatch):
    image, label = layouts.fashion_torchvision(alone)
    data = load_dataset("fashion_mnist", str(alone))
    assert np.array_equal(data.raw_M, image) and np.array_equal(data.label_M, label)
    assert data.num_train == 7 and data.class_names[0] == "T-shirt/top"
    image, label = layouts.cifar_torchvision(alone, monkeypatch)
    data = load_dataset("cifar100", str(alone))
    assert np.array_equal(data.raw_M, image) and np.array_equal(data.label_M, label)
    assert data.num_train == 6 and data.class_names[99] == "kind 99"


def test_torchvision_files_that_are_not_the_published_ones_are_never_unpickled(alone, monkeypatch):
    layouts.cifar_torchvision(alone, monkeypatch)
    monkeypatch.setattr("pickle.load", lambda *args, **kwargs: pytest.fail("unpickled an unknown file"))
    path = alone / "cifar-100-python" / "train"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ScenarioError) as error:
        load_dataset("cifar100", str(alone))
    assert str(path.parent) in str(error.value) and "corrupted" in str(error.value)


@pytest.mark.parametrize(("name", "end"), [("mnist", "-idx{rank}-ubyte.gz"), ("fashion_mnist", ".idx{rank}-ubyte")])
def test_idx_files(alone, name, end):
    image, label = layouts.idx(alone / "root" / name, name="{part}-{what}" + end)
    data = load_dataset(name, str(alone / "root"))
    assert np.array_equal(data.raw_M, image) and np.array_equal(data.label_M, label)
    assert data.raw_M.shape == (11, 28, 28, 1) and data.num_train == 7 and "idx files in" in data.source
    assert load_dataset(name, str(alone / "root"), "idx").digest == data.digest


@pytest.mark.parametrize("where", ["mnist/mnist", ""])
def test_mnist_in_the_layouts_of_the_hub_and_torchvision(alone, where):
    image, label = layouts.fashion_parquet(alone / "root" / where)
    parquet = load_dataset("mnist", str(alone / "root"))
    assert np.array_equal(parquet.raw_M, image) and np.array_equal(parquet.label_M, label)
    assert parquet.num_train == 9 and parquet.class_names[3] == "thing 3"
    image, label = layouts.idx(alone / "other" / "MNIST" / "raw")
    data = load_dataset("mnist", str(alone / "other"))
    assert np.array_equal(data.raw_M, image) and data.class_names[3] == "3 - three"


@pytest.mark.parametrize("original", [True, False])
def test_tiny_imagenet_trees(alone, original):
    layouts.tiny_tree(alone / "tiny-imagenet-200", original)
    data = load_dataset("tiny_imagenet", str(alone))
    assert data.raw_M.shape == (400, 64, 64, 3) and data.num_train == 200
    assert np.array_equal(data.label_M[:200], np.arange(200))
    assert np.array_equal(np.sort(data.label_M[200:]), np.arange(200))
    if original:  # val_1 belongs to the last class, and val_1 sorts first
        assert data.label_M[200] == 199
    grey = data.raw_M[3]
    assert (grey[..., 0] == grey[..., 1]).all() and data.class_names[7] == "n00000007"


def test_tiny_imagenet_parquet(alone):
    image = layouts.pixels(5, (3, 64, 64))
    for part, rows in (("train", slice(0, 3)), ("valid", slice(3, 5))):
        layouts.parquet(
            alone / "data" / f"{part}-00000-of-00001.parquet", image[rows], [199, 198, 199][: len(image[rows])], "image"
        )
    data = load_dataset("tiny_imagenet", str(alone))
    assert np.array_equal(data.raw_M, image) and data.num_train == 3


def test_missing_data_names_where_they_may_be(alone):
    with pytest.raises(ScenarioError, match=r"data\.root") as error:
        load_dataset("cifar100", str(alone))
    assert all(word in str(error.value) for word in [str(alone), "train-*.parquet", "cifar-100-python"])
    with pytest.raises(ScenarioError) as error:
        load_dataset("cifar10")
    words = ["data.root", "RAYSIM_DATA", str(alone / "cache" / "data"), "internet access"]
    assert all(word in str(error.value) for word in words)


def test_download_lands_in_the_cache_folder_and_is_found_again(alone, monkeypatch):
    from torchvision import datasets

    calls = []

    class Fake(datasets.FashionMNIST):
        def download(self):
            calls.append(self.root)
            if len(calls) == 1:
                raise RuntimeError("the line went dead\nsecond line")
            layouts.fashion_torchvision(type(alone)(self.root))

    Fake.__name__ = "FashionMNIST"
    monkeypatch.setattr(datasets, "FashionMNIST", Fake)
    with pytest.raises(ScenarioError, match="line went dead"):
        load_dataset("fashion_mnist")
    assert len(load_dataset("fashion_mnist")) == len(load_dataset("fashion_mnist", download=False)) == 11
    assert len(calls) == 2
    assert [path.name for path in (alone / "cache" / "data").iterdir()] == ["FashionMNIST"]


def test_environment_then_cache_folder(alone, monkeypatch):
    image, _ = layouts.fashion_parquet(alone / "cache" / "data" / "fashion_mnist")
    monkeypatch.setenv("RAYSIM_DATA", str(alone / "elsewhere"))
    assert np.array_equal(load_dataset("fashion_mnist").raw_M, image)
    layouts.fashion_torchvision(alone / "elsewhere")
    assert len(load_dataset("fashion_mnist")) == 11


def decoded_files(alone):
    return sorted((alone / "cache" / "decoded").iterdir())


def test_cache_is_used_and_follows_the_source(alone, monkeypatch):
    layouts.fashion_parquet(alone / "root")
    first = load_dataset("fashion_mnist", str(alone / "root"))
    assert [path.suffix for path in decoded_files(alone)] == [".npy", ".npz"]
    with monkeypatch.context() as patch:
        patch.setattr("raysim.data.datasets._decode", lambda *args: pytest.fail("decoded again"))
        again = load_dataset("fashion_mnist", str(alone / "root"))
    assert again.digest == first.digest and again.num_train == first.num_train
    assert np.array_equal(again.label_M, first.label_M) and again.class_names == first.class_names
    layouts.fashion_parquet(alone / "root", train=12)
    assert load_dataset("fashion_mnist", str(alone / "root")).num_train == 12


def test_cache_that_cannot_be_written_is_only_slower(alone, monkeypatch):
    layouts.fashion_parquet(alone / "root")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.save", full)
    assert len(load_dataset("fashion_mnist", str(alone / "root"))) == 14
    assert decoded_files(alone) == []
