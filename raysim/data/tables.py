"""Read Parquet and CSV files by their columns: a label, optionally an id, and features, tokens or images.

Shapes: M samples of one data set, B rows of a piece of a file, F features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError
from raysim.common.text import few
from raysim.data.conversions import Images, to_classes, to_features, to_owners, to_tokens, to_whole
from raysim.data.sources import Decoded, Source, naming
from raysim.data.specs import DatasetSpec, Files

_PIECE = 1 << 24
"""Number of values that are decoded at a time, which take 128 MiB in double precision."""
_IMAGES = 256
"""Number of encoded images that are read at a time."""
_CSV_BLOCK = 1 << 25


@dataclass
class _Columns:
    """The columns of a table: the kind of samples, the features, the label and the id."""

    kind: Literal["image", "list", "numbers"]
    features: list[str]
    label: str
    by: str | None

    @property
    def all(self) -> list[str]:
        """All columns that are read, without repetition."""
        return list(dict.fromkeys([*self.features, self.label, *([self.by] if self.by else [])]))

    @property
    def rows_at_a_time(self) -> int:
        """The number of rows of a Parquet file that are decoded at a time."""
        return _IMAGES if self.kind == "image" else max(1, _PIECE // len(self.all))


@dataclass
class _Read:
    """The values, labels and ids that were read so far, in pieces."""

    value: list[NDArray[Any]] = field(default_factory=list)
    label: list[NDArray[Any]] = field(default_factory=list)
    id: list[NDArray[Any]] = field(default_factory=list)


def read_published(spec: DatasetSpec, source: Source) -> Decoded:
    """Decode the Parquet files of a published data set, in the layout of the Hugging Face hub. Raises ScenarioError."""
    with naming(source.train[0]):
        schema = pq.read_schema(source.train[0])
    image, label = (
        next((name for name in names if name in schema.names), names[-1])
        for names in (spec.image_columns, spec.label_columns)
    )
    names = _class_names(schema, label) or tuple(map(str, range(spec.num_classes)))
    return read_tables(source, Files((), label, (image,)), names)


def read_tables(source: Source, settings: Files, names: tuple[str, ...] = ()) -> Decoded:
    """Decode all samples, labels and ids. names: the classes; default: the names in the files.

    Raises ScenarioError for a damaged or unsuitable file.
    """
    paths = source.train + source.test
    num_rows = {path: _rows(path) for path in paths} if source.format == "parquet" else {}
    read, images, num_train = _Read(), Images(sum(num_rows.values()), settings.size), 0
    columns: _Columns | None = None
    for path in paths:
        start, file_columns = 0, None
        for schema, table in _pieces(path, settings):
            if file_columns is None:
                file_columns = _columns(path, schema, settings)
                columns = columns or file_columns
                if (file_columns.kind, file_columns.features) != (columns.kind, columns.features):
                    raise ScenarioError(
                        f"{path} has the feature columns {few(file_columns.features)}, but {paths[0]} has "
                        f"{few(columns.features)}; give all files the same columns, in the same order and with the "
                        "same types"
                    )
                names = _one_list(path, names, _class_names(schema, settings.label))
            with naming(path):
                _read_piece(path, start, table, columns or file_columns, read, images)
            if read.label and (read.label[-1].dtype.kind == "U") != (read.label[0].dtype.kind == "U"):
                raise ScenarioError(
                    f"{path} has labels of another type than {paths[0]}, so equal labels could become different "
                    "classes; use whole numbers in all files, or text in all files",
                    key="data.label",
                )
            start += table.num_rows
        num_train += start if path in source.train else 0
    assert columns is not None
    if not read.label or not num_train:
        which = " training" if read.label else ""
        raise ScenarioError(f"{source.folder}: the files contain no{which} rows; give files with samples in data.path")
    pa.default_memory_pool().release_unused()  # release the memory that Arrow used to read the files
    vocabulary = 0
    if columns.kind == "image":
        raw_M: NDArray[Any] = images.raw_MHWC
    elif columns.kind == "list":
        raw_M, vocabulary = _stacked(read.value, paths[0], columns.features[0])
    else:
        raw_M = np.concatenate(read.value)
    label_M, names = to_classes(read.label, source.folder, names)
    owner_M, owners = to_owners(np.concatenate(read.id) if read.id else None)
    return Decoded(raw_M, label_M, num_train, names, vocabulary, owner_M=owner_M, owners=owners)


def text_pieces(path: Path, names: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield the values of the named columns for one piece of the file's rows after another; those of CSV are text."""
    if path.suffix.lower() == ".csv":
        as_text = pacsv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, pa.string()))
        with pacsv.open_csv(
            path, parse_options=pacsv.ParseOptions(newlines_in_values=True), convert_options=as_text
        ) as reader:
            for batch in reader:
                yield [batch.column(name).to_pylist() for name in names]
        return
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(names))
            yield [table.column(name).to_pylist() for name in names]


def _rows(path: Path) -> int:
    with naming(path), pq.ParquetFile(path) as file:
        return int(file.metadata.num_rows)


def _pieces(path: Path, settings: Files) -> Iterator[tuple[Any, Any]]:
    """Yield (schema of a file, piece of its rows)."""
    if path.suffix.lower() == ".csv":
        as_text = {settings.by: pa.string()} if settings.by else {}  # ids are text, so that 007 does not become 7
        with naming(path):
            # Each row must fit into a block of the CSV reader, and each block adds one piece to every column.
            table = pacsv.read_csv(
                path,
                read_options=pacsv.ReadOptions(block_size=_CSV_BLOCK),
                convert_options=pacsv.ConvertOptions(column_types=as_text),
            )
        if not table.num_rows:
            raise ScenarioError(f"{path} has no rows below its header")
        yield table.schema, table
        return
    with naming(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        columns = _columns(path, file.schema_arrow, settings)
        yield file.schema_arrow, file.schema_arrow.empty_table()
        for batch in file.iter_batches(columns.rows_at_a_time, columns=columns.all):
            yield file.schema_arrow, pa.Table.from_batches([batch])


def _columns(path: Path, schema: Any, settings: Files) -> _Columns:
    """Return the columns to read. Raises ScenarioError."""
    type_of = dict(zip(schema.names, schema.types, strict=True))
    for key, name in (("data.label", settings.label), ("data.partition.by", settings.by)):
        if name is not None and name not in type_of:
            raise ScenarioError(f"{path} has no column {name!r}; its columns are {few(schema.names)}", key=key)
    names = _feature_names(path, schema.names, settings)
    images = [name for name in names if _is_image(type_of[name])]
    lists = [name for name in names if _is_list(type_of[name])]
    if images and not settings.features:
        names = images  # the other columns describe the image, and are not features
    if len(names) == 1 and (images or lists):
        return _Columns("image" if images else "list", names, settings.label, settings.by)
    if images or lists:
        raise ScenarioError(
            f"{path}: the columns {few(names)} cannot be features together; give one column of images, one column of "
            "lists, or columns of numbers",
            key="data.features",
        )
    for name in names:
        kind = type_of[name]
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise ScenarioError(
                f"{path}: column {name} has type {kind}, but features must be numbers; correct the values, or list "
                "only numeric columns in data.features",
                key="data.features",
            )
    return _Columns("numbers", names, settings.label, settings.by)


def _feature_names(path: Path, present: Sequence[str], settings: Files) -> list[str]:
    """Return the columns of features: those that `features` selects, else all but label and id. Raises ScenarioError.

    present: all columns of the file.
    """
    if not settings.features:
        names = [name for name in present if name not in (settings.label, settings.by)]
        if index := [name for name in names if name in ("", "Unnamed: 0") or name.startswith("__index_level_")]:
            raise ScenarioError(
                f"{path}: column {index[0]!r} is an index that pandas wrote; list the columns of features",
                key="data.features",
            )
        return names
    chosen: dict[str, None] = {}
    for pattern in settings.features:
        matching = [pattern] if pattern in present else [name for name in present if fnmatchcase(name, pattern)]
        if not matching:
            raise ScenarioError(
                f"{pattern!r} given, but {path} has no such column; its columns are {few(present)}",
                key="data.features",
            )
        chosen.update(dict.fromkeys(matching))
    if settings.label in chosen:
        raise ScenarioError(
            f"the label column {settings.label!r} cannot be a feature; give names or patterns that do not match it",
            key="data.features",
        )
    return list(chosen)


def _is_image(kind: Any) -> bool:
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return is_bytes or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _read_piece(path: Path, start: int, table: Any, columns: _Columns, read: _Read, images: Images) -> None:
    if not table.num_rows:
        return
    for name in columns.all:
        if columns.kind != "image" or name not in columns.features:
            _refuse_gaps(path, start, table.column(name), name)
    if columns.kind == "image":
        column = table.column(columns.features[0]).combine_chunks()
        encoded = column.field("bytes") if pa.types.is_struct(column.type) else column
        for row, one in enumerate(encoded.to_pylist(), start + 1):
            images.add(one, f"{path}: image {row}")
    elif columns.kind == "list":
        read.value.append(_nested(path, table.column(columns.features[0]).combine_chunks(), columns.features[0]))
    else:
        value_BF = np.stack([table.column(name).to_numpy() for name in columns.features], axis=1)
        read.value.append(to_features(value_BF, columns.features, f"{path}{f', after row {start}' if start else ''}"))
    read.label.append(_label(path, start, table.column(columns.label), columns.label))
    if columns.by:
        text_B = np.asarray(table.column(columns.by).cast(pa.string()).to_numpy())
        _refuse_empty_text(path, start, text_B, columns.by)
        read.id.append(text_B)


def _refuse_gaps(path: Path, start: int, column: Any, name: str) -> None:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise ScenarioError(f"{path}: row {start + row + 1}, column {name} is empty; every row needs a value")


def _refuse_empty_text(path: Path, start: int, text_B: NDArray[Any], name: str) -> None:
    if (row_E := np.flatnonzero(text_B == "")).size:
        raise ScenarioError(f"{path}: row {start + row_E[0] + 1}, column {name} is empty; every row needs a value")


def _label(path: Path, start: int, column: Any, name: str) -> NDArray[Any]:
    """Return a piece of the labels as whole numbers or text. Raises ScenarioError for labels of another type."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_integer(kind):
        return np.asarray(column.to_numpy())
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return to_whole(column.to_numpy(), f"{path}: column {name}", "data.label")
    if _is_text(kind):
        text_B = column.cast(pa.large_string()).to_numpy()
        _refuse_empty_text(path, start, text_B, name)
        return np.asarray(text_B.astype(str))
    one_hot = "; of one-hot labels, write the argmax" if _is_list(kind) else ""
    text = f"{path}: column {name} has type {kind}; labels must be whole numbers or text{one_hot}"
    raise ScenarioError(text, key="data.label")


def _nested(path: Path, column: Any, name: str) -> NDArray[Any]:
    """Convert (nested) lists of numbers, of equal length, to an array. Raises ScenarioError for other lists."""
    if not _is_list(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    length_B = column.value_lengths().to_numpy(zero_copy_only=False)
    if (length_B != length_B[0]).any():
        raise ScenarioError(f"{path}: all lists in column {name} must have the same length")
    inner = _nested(path, column.flatten(), name)
    return inner.reshape(len(length_B), int(length_B[0]), *inner.shape[1:])


def _stacked(parts: Sequence[NDArray[Any]], path: Path, name: str) -> tuple[NDArray[Any], int]:
    """Join pieces of lists: flat lists of whole numbers become tokens, all other lists features.

    Returns the samples, and the size of the vocabulary of tokens, else 0.
    """
    with naming(path):
        value_M = np.concatenate(parts)
    if not value_M[0].size:
        raise ScenarioError(f"{path}: the lists in column {name} are empty")
    if value_M.dtype.kind in "iu" and value_M.ndim == 2:
        return to_tokens(value_M, f"{path}: column {name}")
    return to_features(value_M, (), f"{path}: column {name}"), 0


def _class_names(schema: Any, label: str) -> tuple[str, ...]:
    """Return the names of the numbered classes in the Hugging Face hub's metadata; empty if there are none."""
    try:
        if pa.types.is_integer(schema.field(label).type):
            features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
            return tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):
        pass
    return ()


def _one_list(path: Path, known: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the classes, which must equal those of earlier files (`known`). Raises ScenarioError."""
    if known and names and names != known:
        raise ScenarioError(
            f"{path} has the class names {few(names)}, but the files before it have {few(known)}, so equal labels "
            "could mean different classes; give all files the same class names, in the same order"
        )
    return known or names
