"""Loads a data set: a published one by name, from wherever it is on this machine or from the network, or a user's own.

Shapes: M samples of one data set (the published train part, then the test part); an image has H x W pixels, C channels.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError, UnavailableError
from raysim.common.folders import cache_root
from raysim.common.text import expanded
from raysim.data import cache, folders, leaf, sources
from raysim.data.files import find_files, place_of
from raysim.data.specs import DATASETS, DatasetSpec, Files, of_files, spec_for
from raysim.data.statistics import completed, with_statistics
from raysim.data.tables import read_tables
from raysim.plugins.references import named

Format = Literal["auto", "parquet", "torchvision", "folder"]
_PROBE_S = 5.0
_STALL_S = 30.0


@dataclass(frozen=True, eq=False)
class Dataset:
    """A whole data set. The arrays are read-only: they may be a map of a file, shared by every process."""

    spec: DatasetSpec
    """With what its files say, where that is no published constant."""
    decoded: sources.Decoded
    source: str
    """Where it came from, in words."""

    @property
    def name(self) -> str:
        """As `data.name` gives it."""
        return self.spec.name

    @property
    def raw_M(self) -> NDArray[Any]:
        """[M, ...] as stored: uint8 images [M, H, W, C], float32 features, or whole numbers as tokens."""
        return self.decoded.raw_M

    @property
    def label_M(self) -> NDArray[np.int64]:
        """Class ids."""
        return self.decoded.label_M

    @property
    def num_train(self) -> int:
        """Samples [0, num_train) are the published train part, the others the published test part."""
        return self.decoded.num_train

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order of the class ids."""
        return self.decoded.class_names

    def __len__(self) -> int:
        return len(self.label_M)

    @property
    def num_classes(self) -> int:
        """How many classes there are, present in the labels or not."""
        return len(self.class_names)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of samples, labels and any ids, their order, and where the test part begins."""
        return cache.digest_of(self.decoded)


def load_dataset(
    name: str,
    root: str | None = None,
    format: Format = "auto",
    download: bool = True,
    files: Files | None = None,
    verify: bool = True,
) -> Dataset:
    """The data set called `name` (a key of DATASETS). files: of a user's own; what follows is of the published ones.

    Looked for in `root`, or else in the folder RAYSIM_DATA, then in the cache folder
    (`~/.cache/raysim/data`); in each of them in a sub-folder with the data set's name, then in the folder
    itself. If it is in none, torchvision downloads it into the cache folder, unless `download` is off.
    Decoded samples are cached for the next time. verify: whether a cached one is compared with its digest, for which
    all samples are read.

    Raises ScenarioError, one sentence, if the data set is unknown, not found, damaged, or cannot be
    downloaded.
    """
    if name not in DATASETS and (reference := named("datasets", name)) is not None:
        return _of_function(reference.get(), reference.name, files or Files(()))
    spec = spec_for(name)
    if format not in get_args(Format):
        raise ScenarioError(f"{format!r} given, but allowed are {', '.join(get_args(Format))}", key="data.format")
    if spec.keys:
        if files is None:
            raise ScenarioError("is required and was not given", key="data.path")
        return _load(spec, find_files(name, files), files, verify)
    if not spec.folders:
        return _digits(spec)
    formats = ("parquet", "torchvision", "folder") if format == "auto" else (format,)
    for base in _bases(root):
        with sources.one_sentence(base):
            source = sources.find(spec, base, formats) if spec.train_size else leaf.find_leaf(spec, base)
            if source:
                return _load(spec, source, verify=verify)
    wanted = sources.looked_for(spec, formats)
    if root is not None:
        place = place_of(root, "data.root")
        state = "" if place.is_dir() else " (no such folder)"
        raise ScenarioError(
            f"no {name} in {place}{state}: looked there and in its sub-folders {', '.join(spec.folders)} for {wanted}",
            key="data.root",
        )
    problem = "download is off" if spec.torchvision else "it cannot be downloaded automatically"
    if download and spec.torchvision and "torchvision" in formats:
        problem = _download(spec)
        if not problem and (source := sources.find(spec, _download_folder(), ("torchvision",))):
            return _load(spec, source)
    variable = os.environ.get("RAYSIM_DATA")
    in_variable = f" in {variable}, which RAYSIM_DATA names," if variable else ""
    raise UnavailableError(
        f"{name} was not found{in_variable} and {problem}: give its folder as data.root, or in the environment "
        f"variable RAYSIM_DATA, or put it into {_download_folder()}"
        f"{' on a connected machine, where it downloads by itself' if spec.torchvision else ''}; "
        f"accepted there: {wanted}",
        key="data.name",
    )


@lru_cache(maxsize=1)  # a run looks at its data twice: to check the scenario, and to deal it
def _of_function(load: Callable[[], Any], name: str, files: Files) -> Dataset:
    decoded = with_statistics(folders.read_function(load, files, Path(name)))
    return _read_only(completed(of_files(name), decoded), decoded, name)


def missing(name: str, root: str | None = None, format: Format = "auto") -> bool:
    """Whether a data set is in none of the places where `load_dataset` looks before it downloads."""
    spec = spec_for(name)
    formats = ("parquet", "torchvision", "folder") if format == "auto" else (format,)
    return bool(spec.folders and spec.train_size) and not any(
        sources.find(spec, base, formats) for base in _bases(root)
    )


def _bases(root: str | None) -> list[Path]:
    if root is not None:
        return [place_of(root, "data.root")]
    named = os.environ.get("RAYSIM_DATA")
    return ([expanded(named)] if named else []) + [_download_folder()]


def _download_folder() -> Path:
    return cache_root() / "data"


def _load(spec: DatasetSpec, source: sources.Source, files: Files | None = None, verify: bool = True) -> Dataset:
    key = cache.cache_key(spec.name, source, files)
    decoded = cache.load(key, verify)
    if decoded is None:
        decoded = _decode(spec, source, files)
        cache.save(key, decoded)
        # From here on the copy on disk, if there is one: a map of a file is memory that the system can have back.
        decoded = cache.load(key) or decoded
    return _read_only(spec if spec.train_size else completed(spec, decoded), decoded, str(source))


def _decode(spec: DatasetSpec, source: sources.Source, files: Files | None) -> sources.Decoded:
    if spec.train_size:
        return sources.read(spec, source)
    if files is None:
        return with_statistics(leaf.read_leaf(spec, source))
    read = {"parquet": read_tables, "csv": read_tables, "images": folders.read_images, "numpy": folders.read_numpy}
    return with_statistics(read[spec.name](source, files))


def _read_only(spec: DatasetSpec, decoded: sources.Decoded, source: str) -> Dataset:
    decoded.raw_M.setflags(write=False)
    decoded.label_M.setflags(write=False)
    return Dataset(spec, decoded, source)


def _digits(spec: DatasetSpec) -> Dataset:
    # The file that load_digits reads, without importing scikit-learn: that takes 1.5 s of a first run's start.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn is not None
    assert sklearn.submodule_search_locations
    table = np.loadtxt(
        Path(sklearn.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", delimiter=","
    )
    ink_MHW, label_M = table[:, :64].reshape(-1, 8, 8), table[:, 64]
    # Sixteenths of full ink become the nearest of 256 levels; no two levels fall together.
    raw_M = np.rint(ink_MHW * 255 / 16).astype(np.uint8)[..., None]
    decoded = sources.Decoded(
        raw_M, label_M.astype(np.int64), spec.train_size, tuple(str(c) for c in range(spec.num_classes))
    )
    return _read_only(spec, decoded, "scikit-learn's load_digits (first 1,437 as train, last 360 as test)")


def _download(spec: DatasetSpec) -> str:
    """Let torchvision download into the cache folder. Returns what went wrong in a few words, or nothing."""
    from torchvision import datasets

    assert spec.torchvision is not None and spec.torchvision_folder is not None
    cls = getattr(datasets, spec.torchvision)
    url = cls.url if hasattr(cls, "url") else cls.mirrors[0] + cls.resources[0][0]
    if not _reachable(url):
        return f"{url.split('/')[2]}, where it would be downloaded from, does not answer"
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL_S)  # torchvision sets none: a stalled transfer would hang for ever
    try:
        _download_folder().mkdir(parents=True, exist_ok=True)
        # Into a folder aside first: a download that breaks off must not look like a damaged data set later.
        with tempfile.TemporaryDirectory(dir=_download_folder(), prefix=".download-") as aside:
            cls(aside, download=True)
            top = Path(spec.torchvision_folder).parts[0]
            (Path(aside) / top).replace(_download_folder() / top)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"its download failed ({lines[0]})"
    finally:
        socket.setdefaulttimeout(before)
    return ""


def _reachable(url: str) -> bool:
    """Whether the server of `url` answers at all within seconds, through a proxy if one is configured."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_PROBE_S).close()
    except urllib.error.HTTPError as error:
        error.close()  # a refusal of HEAD is an answer
    except Exception:
        return False
    return True
