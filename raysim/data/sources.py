"""Find a published data set in a folder, and decode torchvision's files, IDX files or a tree of images.

Parquet files are decoded by raysim/data/tables.py.

The error of a library becomes a ScenarioError with the file in front.

Shapes: M images of one data set, H x W pixels, C channels.
"""

from __future__ import annotations

import gzip
import io
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raysim.common.errors import ScenarioError
from raysim.common.text import cause
from raysim.data.specs import DatasetSpec

IMAGE_SUFFIXES = {".jpeg", ".jpg", ".png"}
_SHARD = re.compile(r"-(\d+)-of-(\d+)")
_IDX_NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True)
class Source:
    """The files of a data set, before any of them is decoded."""

    format: str
    folder: Path
    train: tuple[Path, ...]
    test: tuple[Path, ...]
    extra: tuple[Path, ...] = ()

    def __str__(self) -> str:
        return f"{self.format} files in {self.folder}"

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the decoded samples depend on."""
        return self.train + self.test + self.extra


@dataclass(frozen=True, eq=False)
class Decoded:
    """A whole data set in memory: the published train part, followed by the published test part."""

    raw_M: NDArray[Any]
    """The samples [M, ...] as stored: uint8 images [M, H, W, C], float32 features, or whole numbers as tokens."""
    label_M: NDArray[np.int64]
    """The class ids [M]."""
    num_train: int
    """The size of the published train part, which comes first."""
    class_names: tuple[str, ...]
    """The names of the classes, in the order of their ids."""
    vocabulary: int = 0
    """The number of different tokens; 0: no tokens."""
    mean_F: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """The mean of the train part; empty if the data set has no test part, or has published constants."""
    std_F: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    owner_M: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The position of each sample's id in `owners`; empty if samples have no ids."""
    owners: tuple[str, ...] = ()
    """The ids, ascending."""


def find(spec: DatasetSpec, base: Path, formats: tuple[str, ...]) -> Source | None:
    """Return the files of the first format found in a sub-folder named after the data set or in `base`; None: no files.

    Raises ScenarioError if some files of the data set are missing.
    """
    base = base.resolve()
    for folder in [base / name for name in spec.folders] + [base]:
        for form in formats:
            if source := _FIND[form](spec, folder):
                return source
    return None


def looked_for(spec: DatasetSpec, formats: tuple[str, ...]) -> str:
    """Describe the files that `find` accepts; empty if the data set is not published in any of `formats`."""
    if not spec.train_size:
        return "LEAF's JSON files, or the Parquet or CSV files of the Hugging Face hub"
    words = {
        "parquet": f"Parquet files (train-*.parquet and {spec.test_prefixes[0]}-*.parquet)",
        "torchvision": f"torchvision's folder {spec.torchvision_folder}" if spec.torchvision else "",
        "idx": "the four IDX files (such as train-images-idx3-ubyte or its .gz)" if spec.idx else "",
        "folder": "image folders (train/<class>/*.JPEG and val)" if spec.image_folder else "",
    }
    return " or ".join(words[form] for form in formats if words[form])


def read(spec: DatasetSpec, source: Source) -> Decoded:
    """Decode all samples and labels of files in another format than Parquet. Raises ScenarioError."""
    return _READ[source.format](spec, source)


def checked(spec: DatasetSpec, source: Source, decoded: Decoded) -> Decoded:
    """Return a published data set if it has the published shape and classes. Raises ScenarioError."""
    channels, height, width = spec.input_spec.shape
    shape, label_M = decoded.raw_M.shape, decoded.label_M
    fits = shape[1:] == (height, width, channels) and len(label_M) == shape[0] and 0 < decoded.num_train < shape[0]
    if not fits or not 0 <= label_M.min() <= label_M.max() < spec.num_classes == len(decoded.class_names):
        sizes = "x".join(map(str, shape[1:]))
        raise ScenarioError(
            f"{source.folder} has {decoded.num_train} training images among {shape[0]} of {sizes}, {len(label_M)} "
            f"labels and {len(decoded.class_names)} classes, but {spec.name} has images of {height}x{width}x{channels} "
            f"in {spec.num_classes} classes, for training and for testing; replace the files by the published ones"
        )
    return decoded


def _find_parquet(spec: DatasetSpec, folder: Path) -> Source | None:
    for sub in (folder, folder / "data", folder / "plain_text"):
        train = tuple(sorted(sub.glob("train-*.parquet")))
        if not train:
            continue
        tests = (tuple(sorted(sub.glob(f"{prefix}*-*.parquet"))) for prefix in spec.test_prefixes)
        test = next((shards for shards in tests if shards), ())
        for files in (train, test):
            refuse_missing_shards(files)
        return Source("parquet", sub, train, test)
    return None


def refuse_missing_shards(files: tuple[Path, ...]) -> None:
    """Raise ScenarioError if the name of the first file, such as train-00000-of-00002, implies missing files."""
    shard = _SHARD.search(files[0].name) if files else None
    if shard and int(shard[2]) != len(files):
        first = files[0]
        raise ScenarioError(
            f"{first.parent}: {first.name} belongs to a set of {int(shard[2])} files, but the folder holds {len(files)}"
            "; restore the complete set, and remove files of other sets"
        )


def _find_torchvision(spec: DatasetSpec, folder: Path) -> Source | None:
    if spec.torchvision_folder is None or not (folder / spec.torchvision_folder).is_dir():
        return None
    if spec.idx:
        return _idx_source("torchvision", folder / spec.torchvision_folder)
    files = sorted(path for path in (folder / spec.torchvision_folder).iterdir() if path.is_file())
    return Source("torchvision", folder, tuple(files), ())


def _find_idx(spec: DatasetSpec, folder: Path) -> Source | None:
    return _idx_source("idx", folder) if spec.idx else None


def _idx_source(form: str, folder: Path) -> Source | None:
    files = _idx_files(folder)
    return Source(form, folder, files[:2], files[2:]) if files else None


def _idx_files(folder: Path) -> tuple[Path, ...]:
    """Return the four IDX files in a folder: train images, train labels, test images, test labels; () if none exists.

    A file may be compressed (`.gz`); if both exist, the other one is returned. Raises `ScenarioError` if some are
    missing.
    """
    found = {name: _idx_file(folder, name) for name in _IDX_NAMES}
    files = tuple(path for path in found.values() if path is not None)
    if files and len(files) < len(_IDX_NAMES):
        missing = ", ".join(f"{name}-ubyte" for name, path in found.items() if path is None)
        raise ScenarioError(f"{folder}: lacks {missing} (or .gz); restore all four IDX files")
    return files


def _idx_file(folder: Path, name: str) -> Path | None:
    written = (f"{name}-ubyte", f"{name.replace('-idx', '.idx')}-ubyte")  # an unpacked archive has the second form
    paths = (folder / f"{stem}{end}" for stem in written for end in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def _find_folder(spec: DatasetSpec, folder: Path) -> Source | None:
    if not spec.image_folder or not (folder / "train").is_dir() or not (folder / "val").is_dir():
        return None
    train, test = (
        tuple(sorted(path for path in (folder / part).rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES))
        for part in ("train", "val")
    )
    return Source("folder", folder, train, test, tuple((folder / "val").glob("val_annotations.txt")))


def _decode(encoded: bytes, channels: int) -> NDArray[np.uint8]:
    """Decode the pixels [H, W, C] of an image. In a colour data set, a grey image is repeated to all channels."""
    image = Image.open(io.BytesIO(encoded)).convert("RGB" if channels == 3 else "L")
    return np.asarray(image).reshape(image.height, image.width, channels)


def _read_idx(spec: DatasetSpec, source: Source) -> Decoded:
    from torchvision import datasets

    parts = []
    for path in source.files:
        with naming(path):
            parts.append(_idx_array(path))
    train_MHW, train_M, test_MHW, test_M = parts
    image_MHWC = np.concatenate([train_MHW, test_MHW])[..., None]
    label_M = np.concatenate([train_M, test_M]).astype(np.int64)
    names = getattr(datasets, spec.torchvision or "").classes
    return Decoded(image_MHWC, label_M, len(train_M), tuple(map(str, names)))


def _idx_array(path: Path) -> NDArray[np.uint8]:
    """Return the array in an IDX file, which is a header followed by one byte per pixel or label.

    The header is the type (0x08: bytes), the number of dimensions, and the dimensions as big-endian 32-bit integers.
    """
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    begin = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:begin])
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _read_torchvision(spec: DatasetSpec, source: Source) -> Decoded:
    if spec.idx:  # torchvision's reader would prefer a file training.pt, if there is one
        return _read_idx(spec, source)
    from torchvision import datasets

    assert spec.torchvision is not None and spec.torchvision_folder is not None
    cls = getattr(datasets, spec.torchvision)
    # raysim unpickles no file except CIFAR's, which torchvision reads. These bytes are safe because they are the
    # publisher's: torchvision compares checksums before it unpickles.
    with naming(source.folder / spec.torchvision_folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns about the age of CIFAR's files
        parts = [cls(str(source.folder), train=train, download=False) for train in (True, False)]
    image_MHWC = np.ascontiguousarray(np.concatenate([part.data for part in parts]))
    label_M = np.concatenate([np.asarray(part.targets, np.int64) for part in parts])
    return Decoded(image_MHWC, label_M, len(parts[0].data), tuple(map(str, parts[0].classes)))


def _read_folder(spec: DatasetSpec, source: Source) -> Decoded:
    def by_folder(path: Path) -> str:
        return path.relative_to(source.folder).parts[1]

    names = tuple(sorted({by_folder(path) for path in source.train}))
    listed: dict[str, str] = {}
    for path in source.extra:
        with naming(path):
            listed = {cell[0]: cell[1] for cell in (line.split("\t") for line in path.read_text().splitlines())}
    files = source.train + source.test
    number = {name: position for position, name in enumerate(names)}
    label_M = np.empty(len(files), np.int64)
    channels, height, width = spec.input_spec.shape
    image_MHWC = np.empty((len(files), height, width, channels), np.uint8)
    for row, path in enumerate(files):
        name = listed.get(path.name, by_folder(path)) if row >= len(source.train) else by_folder(path)
        if name not in number:
            raise ScenarioError(f"{path}: its class {name} has no folder in {source.folder / 'train'}")
        label_M[row] = number[name]
        with naming(path):
            image_MHWC[row] = _decode(path.read_bytes(), channels)
    return Decoded(image_MHWC, label_M, len(source.train), names)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Convert any error of a library into a ScenarioError that begins with the file."""
    try:
        yield
    except (ScenarioError, MemoryError):
        raise
    except Exception as error:
        raise ScenarioError(f"{path}: {cause(error)}") from error


_FIND = {"parquet": _find_parquet, "torchvision": _find_torchvision, "idx": _find_idx, "folder": _find_folder}
_READ = {"torchvision": _read_torchvision, "idx": _read_idx, "folder": _read_folder}
