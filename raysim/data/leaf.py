"""Read FEMNIST and Shakespeare, whose samples belong to users, from LEAF's JSON files or the Hugging Face hub's tables.

LEAF's files contain {"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}. For FEMNIST, x is 784 numbers from
0 (ink) to 1 (paper); for Shakespeare, x is 80 characters and y is the character that follows.
Caldas et al., https://arxiv.org/abs/1812.01097

Shapes: M samples of one data set, L characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError
from raysim.data.conversions import to_owners
from raysim.data.files import find_files
from raysim.data.sources import Decoded, Source, naming
from raysim.data.specs import DatasetSpec, Files
from raysim.data.tables import read_tables, text_pieces

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's alphabet. All other characters share one additional token, which is also an additional class."""
SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LENGTH = 80
COLUMNS = ("x", "y", "character_id")


def find_leaf(spec: DatasetSpec, base: Path) -> Source | None:
    """Return the JSON files, or else the tables, in a sub-folder named after the data set; None if there are none."""
    for folder in (base / name for name in spec.folders):
        for kind in ("json", "parquet", "csv"):
            if folder.is_dir() and any(folder.rglob(f"*.{kind}")):
                return find_files(kind, Files((str(folder),)))
    return None


def read_leaf(spec: DatasetSpec, source: Source) -> Decoded:
    """Decode all samples, labels and user ids. Raises ScenarioError."""
    names = tuple(SYMBOLS) if spec.name == "femnist" else (*CHARACTERS, "other")
    if spec.name == "femnist" and source.format != "json":
        return read_tables(source, Files((), label="character", features=("image",), by="writer_id"), names)
    decoded = _read(spec, source)
    return replace(decoded, class_names=names, vocabulary=0 if spec.name == "femnist" else len(names))


def _read(spec: DatasetSpec, source: Source) -> Decoded:
    values, labels, ids, num_train = [], [], [], 0
    seen: set[tuple[bool, str]] = set()  # (whether it is a training file, user)
    for path in source.train + source.test:
        with naming(path):
            for x, y, id_B in _users(path) if source.format == "json" else text_pieces(path, COLUMNS):
                user = (path in source.train, id_B[0])
                if source.format == "json" and user in seen:
                    raise ScenarioError(
                        f"{path}: user {id_B[0]} is also in another file; delete those of other runs of LEAF"
                    )
                seen.add(user)
                values.append(_ink(x) if spec.name == "femnist" else _tokens(x, path))
                labels.append(np.asarray(y, np.int64) if spec.name == "femnist" else _tokens(y, path, 1)[:, 0])
                ids.append(np.asarray(id_B))
                num_train += len(y) if path in source.train else 0
    if not num_train:
        raise ScenarioError(f"{source.folder}: the files contain no training samples")
    owner_M, owners = to_owners(np.concatenate(ids))
    label_M = np.concatenate(labels).astype(np.int64)
    return Decoded(np.concatenate(values), label_M, num_train, (), owner_M=owner_M, owners=owners)


def _users(path: Path) -> Iterator[tuple[Any, Any, list[str]]]:
    """Yield (x, y, ids) of each user in a file, except users without samples."""
    for user, own in json.loads(path.read_text())["user_data"].items():
        x, y = own["x"], own["y"]
        if len(x) != len(y):
            raise ScenarioError(f"{path}: user {user} has {len(x)} samples, but {len(y)} labels")
        if y:
            yield x, y, [user] * len(y)


def _ink(x: Any) -> NDArray[np.uint8]:
    """Convert x to images of 28 x 28 grey pixels, uint8 [B, 28, 28, 1]."""
    return np.rint(255 * np.asarray(x, np.float64)).astype(np.uint8).reshape(-1, 28, 28, 1)


def _tokens(x: Any, path: Path, length: int = LENGTH) -> NDArray[np.uint8]:
    """Convert texts of equal length to tokens: the position of each character in the alphabet."""
    if wrong := [one for one in x if not isinstance(one, str) or len(one) != length]:
        raise ScenarioError(f"{path}: the value {wrong[0]!r} is not a text of {length} characters")
    code_ML = np.array(list(x), dtype=f"<U{length}").view(np.uint32).reshape(-1, length)
    place = np.full(0x110000, len(CHARACTERS), np.uint8)
    place[[ord(one) for one in CHARACTERS]] = range(len(CHARACTERS))
    return place[code_ML]
