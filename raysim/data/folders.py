"""Read a user's own image folder with one sub-folder per class, or arrays x and y from NumPy files or a function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError
from raysim.common.text import few
from raysim.data.conversions import Images, to_classes, to_features, to_owners, to_tokens, to_whole
from raysim.data.files import METADATA, part_of, place_of
from raysim.data.sources import Decoded, Source, naming
from raysim.data.specs import Files
from raysim.plugins.calling import failing

FOLDER = "folder"
"""Value of `by` for images whose ids are names of folders."""


def read_images(source: Source, settings: Files) -> Decoded:
    """Read images whose class is the name of their folder, with classes in sorted order. Raises ScenarioError."""
    paths = source.train + source.test
    images = Images(len(paths), settings.size)
    for path in paths:
        if len(_below(path, settings, bool(source.test))) < 2:
            remedy = "put the images of each class into one sub-folder"
            if settings.by == FOLDER:
                remedy = "put each image into <client>/<class>/"
            raise ScenarioError(f"{path} is not in the folder of a class; {remedy}")
        with naming(path):
            images.add(path.read_bytes(), str(path))
    label_M, names = to_classes([np.array([path.parent.name for path in paths])], source.folder)
    owner_M, owners = to_owners(_ids(source, settings) if settings.by else None)
    return Decoded(images.raw_MHWC, label_M, len(source.train), names, owner_M=owner_M, owners=owners)


def _ids(source: Source, settings: Files) -> NDArray[Any]:
    """Return each image's id: the folder above its class folder, or its value in column `by` of a metadata.csv."""
    paths, by = source.train + source.test, settings.by
    if by == FOLDER:
        return np.array([_client_folder(path, source, settings) for path in paths])
    assert by is not None
    import pandas as pd  # imported here, because few data sets need it

    id_of: dict[Path, str] = {}
    for table in source.extra:
        with naming(table):
            rows = pd.read_csv(table, usecols=["file_name", by], dtype=str, keep_default_na=False)
        for name, one in zip(rows["file_name"], rows[by], strict=True):
            if not one or id_of.setdefault(table.parent / name, one) != one:
                raise ScenarioError(f"{table}: image {name} has no or two values of {by}; give each image one value")
    if unknown := [path for path in paths if path not in id_of]:
        raise ScenarioError(
            f"no {METADATA} has a row for the image {unknown[0]}; add a row with its file_name and {by} to one in the "
            "image's folder or above it, or set data.partition.by to folder and put the images into <client>/<class>/",
            key="data.partition.by",
        )
    return np.array([id_of[path] for path in paths])


def _below(path: Path, settings: Files, has_parts: bool) -> tuple[str, ...]:
    """Return an image's path below `data.path`, or, with `has_parts`, below its part's folder (train, test or val)."""
    roots = [place_of(root) for root in settings.path]
    inside = path.relative_to(next(root for root in roots if path.is_relative_to(root))).parts
    return inside[part_of("images", (*inside[:-1], ""))[1] + 1 :] if has_parts and len(roots) == 1 else inside


def _client_folder(path: Path, source: Source, settings: Files) -> str:
    """Return the client of an image whose path, below `data.path` or a part's folder, is <client>/<class>/<image>."""
    folders = _below(path, settings, True)
    if len(folders) != 3 and not source.test and part_of("images", path.relative_to(source.folder).parts)[0] != "train":
        # If no folder is called train, test-1 in test-1/<class> is a client, not a part.
        folders = _below(path, settings, False)
    if len(folders) != 3:
        raise ScenarioError(
            f"'folder' given, but {path} is not in a folder <client>/<class>; put each image into "
            "<client>/<class>/ below data.path, or below its folders train and test",
            key="data.partition.by",
        )
    return folders[0]


def read_numpy(source: Source, settings: Files) -> Decoded:
    """Read arrays x, y and, if `by` names one, the array of ids, without unpickling. Raises ScenarioError."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("x", "y", settings.by) if name}
    num_train = 0
    for path in source.train + source.test:
        arrays = _arrays(path, tuple(parts), settings)
        for name, array in arrays.items():
            if parts[name] and array.dtype.kind != parts[name][0].dtype.kind:
                raise ScenarioError(
                    f"{path}: array {name} has type {array.dtype}, but in another file it has type "
                    f"{parts[name][0].dtype}; use the same type in all files"
                )
            parts[name].append(array)
        num_train += len(arrays["y"]) if path in source.train else 0
    return _decoded(parts, num_train, settings, source.train[0], source.folder)


def read_function(load: Callable[[], Any], settings: Files, where: Path) -> Decoded:
    """Read the arrays x, y and optionally ids, and the optional number `num_train`, that the user's function returns.

    Raises ScenarioError.
    """
    names = [name for name in ("x", "y", settings.by) if name]
    with failing(f"function {where} fails"):
        returned = load()
    if not isinstance(returned, Mapping) or not returned.keys() >= set(names):
        raise ScenarioError(f"function {where} must return a mapping with the arrays {' and '.join(names)}")
    with failing(f"function {where} returned values that are not arrays, or no whole number num_train"):
        arrays = {name: np.asarray(returned[name]) for name in names}
        num_train = operator.index(returned.get("num_train", len(arrays["y"])))
    for name, array in arrays.items():
        if array.dtype == object and all(isinstance(value, str) for value in array.flat):
            arrays[name] = array.astype(str)  # a text column of pandas has objects
    arrays["y"] = _labels(arrays["y"], where)
    _check_arrays(arrays, where, settings)
    if not 1 <= num_train <= len(arrays["y"]):
        raise ScenarioError(
            f"function {where} returned num_train {num_train}; return the number of training samples, 1 to "
            f"{len(arrays['y'])}"
        )
    return _decoded({name: [array] for name, array in arrays.items()}, num_train, settings, where, where)


def _decoded(parts: Mapping[str, list[NDArray[Any]]], num_train: int, settings: Files, x: Path, y: Path) -> Decoded:
    """Convert arrays to a decoded data set. x, y: the paths that errors about samples and labels name."""
    with naming(x):
        x_M = np.concatenate(parts["x"])
    raw_M, vocabulary = _samples(x_M, x)
    label_M, names = to_classes(parts["y"], y)
    owner_M, owners = to_owners(np.concatenate(parts[settings.by]) if settings.by else None)
    return Decoded(raw_M, label_M, num_train, names, vocabulary, owner_M=owner_M, owners=owners)


def _arrays(path: Path, names: tuple[str, ...], settings: Files) -> dict[str, NDArray[Any]]:
    with naming(path), np.load(path, allow_pickle=False) as file:
        if missing := [name for name in names if name not in file.files]:
            raise ScenarioError(f"{path} has no array {missing[0]}; its arrays are {few(file.files) or 'none'}")
        arrays = {name: np.asarray(file[name]) for name in names}
    arrays["y"] = _labels(arrays["y"], path)
    _check_arrays(arrays, path, settings)
    return arrays


def _labels(y_M: NDArray[Any], path: Path) -> NDArray[Any]:
    """Convert booleans and floats such as 1.0 to whole numbers. Raises ScenarioError for other floats or dimensions."""
    if y_M.ndim == 2 and y_M.shape[1] > 1:
        raise ScenarioError(
            f"{path}: array y has shape {y_M.shape}; give one label per sample; of one-hot labels, give "
            "y.argmax(axis=1)"
        )
    return to_whole(y_M, f"{path}: array y") if y_M.ndim == 1 and y_M.dtype.kind in "fb" else y_M


def _check_arrays(arrays: Mapping[str, NDArray[Any]], path: Path, settings: Files) -> None:
    for name in [name for name in arrays if name != "x" or name == settings.by]:
        array = arrays[name]
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise ScenarioError(
                f"{path}: array {name} has type {array.dtype} and shape {array.shape}; give one whole number or one "
                "text per sample"
            )
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(sizes.values())) > 1 or not sizes["y"]:
        text = ", ".join(f"{name} has {size} samples" for name, size in sizes.items())
        raise ScenarioError(f"{path}: {text}; give all arrays the same number of samples, at least one")
    if settings.by and arrays[settings.by].dtype.kind == "U" and (arrays[settings.by] == "").any():
        position = int((arrays[settings.by] == "").argmax())
        raise ScenarioError(f"{path}: {settings.by}[{position}] is empty; give every sample an id")


def _samples(x_M: NDArray[Any], path: Path) -> tuple[NDArray[Any], int]:
    """Return x as samples, and the size of their vocabulary if they are tokens, else 0.

    uint8 [M, H, W] or [M, H, W, C] are images, other whole numbers [M, L] are tokens, floats [M, ...] are features.
    Raises ScenarioError for any other array.
    """
    if x_M.dtype == np.uint8 and x_M.ndim in (3, 4):
        x_MHWC = x_M if x_M.ndim == 4 else x_M[..., None]
        if x_MHWC.shape[3] in (1, 3) and x_MHWC[0].size:
            return x_MHWC, 0
    elif x_M.dtype.kind in "iu" and x_M.ndim == 2 and x_M.shape[1]:
        return to_tokens(x_M, f"{path}: x")
    elif x_M.dtype.kind == "f" and x_M.ndim > 1 and x_M[0].size:
        return to_features(x_M, (), f"{path}: x"), 0
    raise ScenarioError(
        f"{path}: array x has type {x_M.dtype} and shape {x_M.shape}; give M images as uint8 (M, H, W) or "
        "(M, H, W, 1 or 3), texts of L tokens as whole numbers (M, L), or features as floats (M, ...)"
    )
