"""Writes tiny data sets in the layouts that raysim reads, for the tests."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def pixels(count: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    channels, height, width = shape
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def encoded(pixel_HWC: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixel_HWC[..., 0] if pixel_HWC.shape[2] == 1 else pixel_HWC).save(out, kind)
    return out.getvalue()


def parquet(path, images, labels, column="img", label="label", names=None, group=4):
    """One Parquet file in the layout of the Hugging Face hub. `images`: arrays or encoded bytes or None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": encoded(one) if isinstance(one, np.ndarray) else one, "path": None} for one in images]
    table = pa.table(
        {
            column: pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            label: pa.array(labels, pa.int64() if all(isinstance(x, int | np.integer) for x in labels) else None),
        }
    )
    if names is not None:
        features = {label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=group)
    return path


def fashion_parquet(folder, train=9, test=5):
    """A tiny Fashion-MNIST in Parquet files; returns pixels and labels."""
    image, label = pixels(train + test, (1, 28, 28)), np.arange(train + test) % 10
    names = [f"thing {number}" for number in range(10)]
    for part, rows in (("train", slice(0, train)), ("test", slice(train, None))):
        parquet(folder / f"{part}-00000-of-00001.parquet", image[rows], label[rows], "image", names=names)
    return image, label


def fashion_torchvision(folder, train=7, test=4):
    """A tiny Fashion-MNIST as torchvision stores it."""
    return idx(folder / "FashionMNIST" / "raw", train, test)


def idx(folder, train=7, test=4, name="{part}-{what}-idx{rank}-ubyte"):
    """A tiny MNIST or Fashion-MNIST in IDX files, compressed if `name` ends in .gz; returns pixels and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    image, label = pixels(train + test, (1, 28, 28)), (np.arange(train + test) % 10).astype(np.uint8)
    for part, rows in (("train", slice(0, train)), ("t10k", slice(train, None))):
        count = len(label[rows])
        for what, rank, head, content in (
            ("images", 3, struct.pack(">4I", 0x803, count, 28, 28), image[rows]),
            ("labels", 1, struct.pack(">2I", 0x801, count), label[rows]),
        ):
            data = head + content.tobytes()
            path = folder / name.format(part=part, what=what, rank=rank)
            path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return image, label


def cifar_torchvision(folder, monkeypatch, train=6, test=3):
    """A tiny CIFAR-100 as torchvision stores it; torchvision is made to expect its checksums."""
    from torchvision.datasets import CIFAR100

    base = folder / "cifar-100-python"
    base.mkdir(parents=True)
    image, label = pixels(train + test, (3, 32, 32)), np.arange(train + test)

    def write(name, content):
        (base / name).write_bytes(pickle.dumps(content, protocol=2))
        return hashlib.md5((base / name).read_bytes()).hexdigest()

    def part(rows):
        flat = image[rows].transpose(0, 3, 1, 2).reshape(-1, 3072)
        return {"data": flat, "fine_labels": label[rows].tolist()}

    monkeypatch.setattr(CIFAR100, "train_list", [["train", write("train", part(slice(0, train)))]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", write("test", part(slice(train, None)))]])
    names = {"fine_label_names": [f"kind {number}" for number in range(100)]}
    monkeypatch.setattr(CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": write("meta", names)})
    return image, label


def tiny_tree(folder, original: bool, classes=200):
    """A Tiny-ImageNet of one train image and one validation image per class."""
    image, lines = pixels(2, (3, 64, 64)), []
    jpeg = [encoded(one, "JPEG") for one in image]
    grey = encoded(image[0][..., :1], "JPEG")  # some of the published images are grey
    for number in range(classes):
        name = f"n{number:08d}"
        train = folder / "train" / name / ("images" if original else "")
        train.mkdir(parents=True)
        (train / f"{name}_0.JPEG").write_bytes(grey if number == 3 else jpeg[0])
        val = folder / "val" / ("images" if original else name)
        val.mkdir(parents=True, exist_ok=True)
        (val / f"val_{classes - number}.JPEG").write_bytes(jpeg[1])
        lines.append(f"val_{classes - number}.JPEG\t{name}\t0\t0\t62\t62\n")
    if original:
        (folder / "val" / "val_annotations.txt").write_text("".join(lines))
