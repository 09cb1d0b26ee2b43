"""Load a data set: a published one by name, from this machine or the network, or a user's own.

Shapes: M samples of one data set (the published train part, then the test part); an image has H x W pixels, C channels.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from raysim.common.errors import ScenarioError, UnavailableError
from raysim.common.folders import cache_root
from raysim.common.memory import available_memory
from raysim.common.text import cause, expanded
from raysim.data import cache, folders, leaf, sources
from raysim.data.files import find_files, place_of
from raysim.data.specs import DATASETS, DatasetSpec, Files, of_files
from raysim.data.statistics import completed, with_statistics
from raysim.data.tables import read_published, read_tables
from raysim.plugins.registry import named

Format = Literal["auto", "parquet", "torchvision", "idx", "folder"]
_FORMATS = tuple(form for form in get_args(Format) if form != "auto")
_STALL_S = 20.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(sources.Decoded):
    """A whole data set. The arrays are read-only: they may be a map of a file, shared by every process."""

    spec: DatasetSpec
    """Specification of the data set; values that are not published come from its files."""
    source: str
    """Origin of the data, in words."""
    digest: str
    """The SHA-256, in hex, of samples, labels, ids, their order, and the beginning of the test part."""

    @property
    def name(self) -> str:
        """The name of the data set, as in `data.name`."""
        return self.spec.name

    def __len__(self) -> int:
        return len(self.label_M)

    @property
    def num_classes(self) -> int:
        """The number of classes, including classes without samples."""
        return len(self.class_names)


def load_dataset(
    name: str,
    root: str | None = None,
    format: Format = "auto",
    download: bool = True,
    files: Files | None = None,
    verify: bool = True,
) -> Dataset:
    """Load the data set `name`: a key of DATASETS, or a function of the user. files: settings of the user's own data.

    A published data set is searched in `root`, or if `root` is None, in the folder RAYSIM_DATA and then in the cache
    folder (`~/.cache/raysim/data`). In each folder, its sub-folder with the data set's name is tried first, then the
    folder itself. If none has it, torchvision downloads it into the cache folder, unless `download` is off.
    Decoded samples are cached on disk. verify: whether to compare cached samples with their digest, which requires
    reading all of them.

    Raises ScenarioError if the data set is not found, damaged, or cannot be downloaded, and KeyError if it is unknown.
    """
    if name not in DATASETS and (reference := named("datasets", name)) is not None:
        return _of_function(reference.get(), reference.name, files or Files(()))
    spec = DATASETS[name]
    if spec.keys:
        assert files is not None
        return _load(spec, find_files(name, files), files, verify)
    if not spec.folders:
        return _digits(spec)
    formats = _FORMATS if format == "auto" else (format,)
    for base in _bases(root):
        with sources.naming(base):
            source = sources.find(spec, base, formats) if spec.train_size else leaf.find_leaf(spec, base)
            if source:
                return _load(spec, source, verify=verify)
    wanted = sources.looked_for(spec, formats)
    if not wanted:
        raise ScenarioError(f"{name} is not published as {format}; set data.format to auto", key="data.format")
    problem = ""
    if root is None and spec.torchvision and "torchvision" in formats:
        problem = _download(spec) if download else "it was not downloaded, because `download` is False"
        # Search again even after a failed download, because another process may have downloaded the data meanwhile.
        if source := sources.find(spec, _download_folder(), ("torchvision",)):
            return _load(spec, source)
        problem += "; a machine with internet access would download it"
    kind, key = (UnavailableError, "data.name") if root is None else (ScenarioError, "data.root")
    raise kind(
        f"{name} was not found in {' or '.join(map(str, _bases(root)))}; set data.root or the environment variable "
        f"RAYSIM_DATA to a folder that contains {wanted}{f' ({problem})' if problem else ''}",
        key=key,
    )


@lru_cache(maxsize=1)  # a run loads its data twice: to check the scenario, and to partition the data
def _of_function(load: Callable[[], Any], name: str, files: Files) -> Dataset:
    decoded = with_statistics(folders.read_function(load, files, Path(name)))
    return _read_only(completed(of_files(name), decoded), decoded, name)


@lru_cache(maxsize=1000)
def present_digest(name: str, root: str | None, format: Format, files: Files | None) -> str:
    """Return the digest of a data set's files in their present state; samples in the disk cache are not read.

    Raises ScenarioError if it cannot be read.
    """
    if name not in DATASETS and (reference := named("datasets", name)) is not None:
        return _of_function.__wrapped__(reference.get(), reference.name, files or Files(())).digest
    return load_dataset(name, root, format, download=False, files=files, verify=False).digest


def forget() -> None:
    """Clear the caches, so that user functions are called again and files are examined again: they may have changed."""
    _of_function.cache_clear()
    present_digest.cache_clear()


def missing(name: str, root: str | None = None, format: Format = "auto") -> bool:
    """Return whether `load_dataset` would have to download a data set, because none of the searched folders has it."""
    if name not in DATASETS:
        return False  # the user's own data is never downloaded
    spec = DATASETS[name]
    formats = _FORMATS if format == "auto" else (format,)
    return bool(spec.folders and spec.train_size) and not any(
        sources.find(spec, base, formats) for base in _bases(root)
    )


def _bases(root: str | None) -> list[Path]:
    if root is not None:
        return [place_of(root)]
    named = os.environ.get("RAYSIM_DATA")
    return ([expanded(named)] if named else []) + [_download_folder()]


def _download_folder() -> Path:
    return cache_root() / "data"


def _load(spec: DatasetSpec, source: sources.Source, files: Files | None = None, verify: bool = True) -> Dataset:
    with sources.naming(source.folder):
        key = cache.cache_key(spec.name, source, files)
    cached = cache.load(key, verify)
    if cached is None:
        _refuse_too_large(source)
        decoded = _decode(spec, source, files)
        cache.save(key, decoded)
        # Use the cached copy from the disk, if there is one, because the system can reclaim the memory of a mapped
        # file.
        cached = cache.load(key) or (decoded, cache.digest_of(decoded))
    decoded, digest = cached
    return _read_only(spec if spec.train_size else completed(spec, decoded), decoded, str(source), digest)


def _refuse_too_large(source: sources.Source) -> None:
    """Raise ScenarioError if the files exceed the memory, because decoded samples need even more memory."""
    num_bytes, available = sum(path.stat().st_size for path in source.files), available_memory()
    if num_bytes > available:
        raise ScenarioError(
            f"{source} have {num_bytes / 1e9:.3g} GB, but {available / 1e9:.3g} GB of memory are available; give fewer "
            "or smaller files"
        )


def _decode(spec: DatasetSpec, source: sources.Source, files: Files | None) -> sources.Decoded:
    if spec.train_size:
        read_files = read_published if source.format == "parquet" else sources.read
        return sources.checked(spec, source, read_files(spec, source))
    if files is None:
        return with_statistics(leaf.read_leaf(spec, source))
    read = {"parquet": read_tables, "csv": read_tables, "images": folders.read_images, "numpy": folders.read_numpy}
    return with_statistics(read[spec.name](source, files))


def _read_only(spec: DatasetSpec, decoded: sources.Decoded, source: str, digest: str = "") -> Dataset:
    decoded.raw_M.setflags(write=False)
    decoded.label_M.setflags(write=False)
    return Dataset(**vars(decoded), spec=spec, source=source, digest=digest or cache.digest_of(decoded))


def _digits(spec: DatasetSpec) -> Dataset:
    # Read the file of load_digits directly, because importing scikit-learn would delay the first run by 1.5 s.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn is not None and sklearn.submodule_search_locations
    table = np.loadtxt(
        Path(sklearn.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", delimiter=","
    )
    ink_MHW, label_M = table[:, :64].reshape(-1, 8, 8), table[:, 64]
    # Spread the 17 levels of ink over 256 levels; different levels remain different.
    raw_M = np.rint(ink_MHW * 255 / 16).astype(np.uint8)[..., None]
    decoded = sources.Decoded(
        raw_M, label_M.astype(np.int64), spec.train_size, tuple(str(c) for c in range(spec.num_classes))
    )
    return _read_only(spec, decoded, "scikit-learn's load_digits (first 1,437 as train, last 360 as test)")


def _download(spec: DatasetSpec) -> str:
    """Let torchvision download into the cache folder. Return the problem in a few words; "" after success."""
    from torchvision import datasets

    assert spec.torchvision is not None and spec.torchvision_folder is not None
    cls = getattr(datasets, spec.torchvision)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL_S)  # torchvision sets no timeout, so a stalled transfer would hang for ever
    try:
        _download_folder().mkdir(parents=True, exist_ok=True)
        # Download into a temporary folder first, so that an interrupted download does not look like a damaged data set.
        with tempfile.TemporaryDirectory(dir=_download_folder(), prefix=".download-") as aside:
            cls(aside, download=True)
            top = Path(spec.torchvision_folder).parts[0]
            (Path(aside) / top).replace(_download_folder() / top)
    except Exception as error:
        return f"the download failed ({cause(error)})"
    finally:
        socket.setdefaulttimeout(before)
    return ""
