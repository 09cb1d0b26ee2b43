"""A user's own data files: find them, and divide them into train part and test part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from raysim.common.errors import ScenarioError
from raysim.common.text import expanded
from raysim.data.sources import IMAGE_SUFFIXES, Source, refuse_missing_shards
from raysim.data.specs import Files

SUFFIXES = {"parquet": {".parquet"}, "csv": {".csv"}, "images": IMAGE_SUFFIXES, "numpy": {".npz"}, "json": {".json"}}
METADATA = "metadata.csv"
"""Name of a file with more columns about the images in its folder, as on the Hugging Face hub."""
PART = re.compile(r"(train|test|validation|valid|val)(?:ing|set)?(?![A-Za-z])", re.IGNORECASE)
"""Matches the beginning of the name of a file or folder with one part of the data, such as train2 or testing. It does
not match a longer word, such as values."""


def find_files(kind: str, settings: Files) -> Source:
    """Return the files of a user's own data set, divided into train part and test part. Raises ScenarioError."""
    places = [place_of(path) for path in settings.path]
    parts = [_listed(kind, path) for path in settings.path]
    if len(places) == 2:
        (train, test), folder = parts, places[0].parent
    else:
        folder = places[0] if places[0].is_dir() else places[0].parent
        train, test = _parts(kind, parts[0], folder)
    if twice := set(train) & set(test):
        raise ScenarioError(
            f"{min(twice)} is given as training data and as test data; give different files", key="data.path"
        )
    for part in (train, test):
        refuse_missing_shards(part)
    tables = [path for place in places for path in place.rglob(METADATA)] if kind == "images" and settings.by else []
    return Source(kind, folder, train, test, tuple(sorted(tables)))


def place_of(path: str) -> Path:
    """Return a user's path as an absolute path."""
    return expanded(path).absolute()


def _listed(kind: str, path: str) -> tuple[Path, ...]:
    place, suffixes = place_of(path), SUFFIXES[kind]
    what = f"{'/'.join(sorted(suffixes))} file"
    if place.is_file() and kind != "images":
        if place.suffix.lower() not in suffixes:
            raise ScenarioError(f"{path} given; give a {what}, or a folder that contains such files", key="data.path")
        return (place,)
    if not place.is_dir():
        state = f"is not a folder; give a folder of {what}s" if place.exists() else "does not exist; correct the path"
        raise ScenarioError(f"{path} {state}", key="data.path")
    named = (file for file in place.rglob("*") if file.suffix.lower() in suffixes)
    if not (files := tuple(sorted(one for one in named if not _hidden(one.relative_to(place)) and not one.is_dir()))):
        raise ScenarioError(f"{path} contains no {what}; give another folder, or another data.name", key="data.path")
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def part_of(kind: str, inside: Sequence[str]) -> tuple[str, int]:
    """Return the part (train, test, val) named in a path, and the position of that name in it; "", -1: none.

    The folder that contains an image is the image's class, such as train_station, unless its whole name is a part's.
    The name of an image itself says nothing: trains/train_1.png is the first picture of a train.
    """
    for place, name in enumerate(inside[:-1] if kind == "images" else inside):
        match = PART.match(name)
        is_class = kind == "images" and place == len(inside) - 2
        if match and (not is_class or match[0] == name):
            return "val" if match[1].lower().startswith("val") else match[1].lower(), place
    return "", -1


def _parts(kind: str, files: Iterable[Path], folder: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Divide files into train part and test part by file or folder names that begin with train, test or val.

    Files for val are the test part if there are no files for test. If no name begins with train, all files are the
    train part.
    """
    parts: dict[str, list[Path]] = {"train": [], "test": [], "val": [], "": []}
    for path in files:
        part, _ = part_of(kind, path.relative_to(folder).parts)
        parts[part].append(path)
    if not parts["train"]:
        return tuple(sorted(path for part in parts.values() for path in part)), ()
    return tuple(parts["train"]), tuple(parts["test"] or parts["val"])
