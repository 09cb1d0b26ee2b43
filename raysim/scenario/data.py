"""Checks of a scenario's data: form of samples, number of clients, public samples, and digests."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from raysim.common.errors import RaysimError, ScenarioError
from raysim.common.files import reason
from raysim.common.inputs import image
from raysim.common.suggestions import suggest
from raysim.data.partition import Listed, Natural, check_partition, check_split, default_split, given_count
from raysim.data.partition_counts import Split
from raysim.data.specs import DATASETS, DatasetSpec, Files, of_files
from raysim.plugins.registry import named
from raysim.results.units import plural
from raysim.scenario.origin import Key
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.schema import Normalise, SplitShares
from raysim.scenario.yaml_text import shown

if TYPE_CHECKING:
    from raysim.data.datasets import Dataset


class DataFacts(NamedTuple):
    """Facts about a scenario's data that are known before partitioning."""

    dataset: DatasetSpec  # as networks read it
    split: Split  # name of the split, or shares of training, validation and test samples
    files: Files | None  # settings of a user's own data; None: a published data set
    public_size: int  # P, the number of public samples
    held_back: int  # number of training samples among the public samples, which no client gets


def with_data(parsed: ParsedScenario) -> tuple[ParsedScenario, DataFacts]:
    """Look up the data; return the scenario with its split and number of clients, and facts about its data.

    Raises `ScenarioError` where the partition cannot work with the data set, the clients or the public data.
    """
    given, partition = parsed.data, parsed.data.partition
    chosen = default_split(partition) if given.split == "auto" else given.split
    split = split_of(parsed, chosen)
    try:
        read = read_data(parsed)
        stored = read.spec if read else DATASETS[given.name]
        dataset = _normalised(stored, given.normalise)
        number = number_of_clients(parsed, read, dataset, split)
        public_size, held_back = public_samples(parsed, stored)
        num_train = dataset.train_size - held_back
        with_test = num_train + dataset.test_size
        check_partition(partition, split, dataset.num_classes, number, num_train, with_test, dataset.name)
        files = files_of(parsed)
    except ScenarioError as error:  # these functions know the key, but not the file or override that sets it
        if not error.key:
            raise
        raise parsed.origin.error(tuple(error.key.split(".")), error.reason, kind=type(error)) from None
    places = {"path": [*files.path]} if files and files.path else {}
    named = {"split": chosen} if given.split == "auto" else {}
    parsed = parsed.with_choices(data={**places, **named}, clients={"count": number})
    return parsed, DataFacts(dataset, split, files, public_size, held_back)


def split_of(parsed: ParsedScenario, split: str | SplitShares) -> Split:
    """Return the name of a split, or its shares (train, val, test). Raises `ScenarioError` unless they sum to 1."""
    if not isinstance(split, SplitShares):
        return split
    shares = split.train, split.val, split.test
    if abs(sum(shares) - 1) > 1e-9:
        raise parsed.origin.error(
            ("data", "split"),
            f"the shares of train, val and test have the sum {sum(shares):g}; give shares with the sum 1",
        )
    return shares


def files_of(parsed: ParsedScenario) -> Files | None:
    """Return the settings of a user's own data; None for a published data set. Raises `ScenarioError`."""
    data = parsed.data
    own = data.name not in DATASETS
    spec = of_files(data.name) if own else DATASETS[data.name]
    given = data.model_dump(include={"path", "label", "features", "size"})
    for key, value in given.items():
        if key not in spec.keys and value != type(data).model_fields[key].default:
            raise ScenarioError(
                f"{shown(value)} given, but {data.name} does not use this key; remove it", key=f"data.{key}"
            )
    by = data.partition.by if isinstance(data.partition, Natural) else None
    if own:
        return Files((), by=by)
    if not spec.keys:
        return None
    if data.path is None:
        raise ScenarioError("is missing; give the path of your files", key="data.path")
    path, features = (
        (value,) if isinstance(value, str) else tuple(value or ()) for value in (data.path, data.features)
    )
    return Files(path, data.label, features, data.size, by)


def read_data(parsed: ParsedScenario) -> Dataset | None:
    """Read the data set if only its files define its samples; else return None. Raises `ScenarioError`."""
    given, names = parsed.data, DATASETS
    own = given.name not in names and named("datasets", given.name) is not None
    if own:
        parsed.own_code.activate()
    elif given.name not in names:
        raise ScenarioError(
            f"unknown data set {given.name!r}{suggest(given.name, names)} (available: {', '.join(names)})",
            key="data.name",
        )
    files = files_of(parsed)
    if not own and names[given.name].train_size:
        return None
    from raysim.data.datasets import load_dataset  # imported here, because it imports Arrow and Pillow

    return load_dataset(given.name, given.root, given.format, files=files, verify=False)


def number_of_clients(parsed: ParsedScenario, data: Dataset | None, dataset: DatasetSpec, split: Split) -> int:
    """Return the number of clients, from the scenario or from the partition.

    Raises `ScenarioError` when `clients.count` is another number, or 'auto' for a partition that works with any number.
    """
    count, partition = parsed.clients.count, parsed.data.partition
    name = parsed.resolved["data"]["partition"]["name"]
    owner_M = data.owner_M if data else np.zeros(0, np.int64)
    if isinstance(partition, Natural) and not len(owner_M):
        raise ScenarioError(
            f"partition 'natural' needs client ids, but {dataset.name} has none; for your own files, set "
            "data.partition.by to the column or array of client ids",
            key="data.partition.name",
        )
    sizes = dataset.train_size, dataset.train_size + dataset.test_size
    check_split(partition, split, *sizes, dataset.name)
    made = given_count(partition, split, *sizes, owner_M)
    if made is None:
        if isinstance(count, int):
            return count
        raise ScenarioError(
            f"'auto' given, but partition {name} does not decide the number of clients; give a whole number",
            key="clients.count",
        )
    if count not in ("auto", made):
        raise ScenarioError(
            f"{count} given, but partition {name} makes {made} clients; set this key to {made} or auto",
            key="clients.count",
        )
    return made


def public_samples(parsed: ParsedScenario, dataset: DatasetSpec) -> tuple[int, int]:
    """Return the number of public samples, and the number of training samples among them, which no client gets.

    Raises `ScenarioError` when the section `data.public` is invalid.
    """
    public = parsed.data.public
    if public is None:
        return 0, 0
    if (public.share is None) == (public.name is None):
        raise ScenarioError("give either `share` (of this data set) or `name` (of another data set)", key="data.public")
    if public.name is not None:
        others = {
            name: one.train_size
            for name, one in DATASETS.items()
            # The clients' own samples must not be public. The shape of a user's own samples is not known here.
            if name != parsed.data.name
            and one.train_size
            and (one.input_spec == dataset.input_spec or not dataset.train_size)
        }
        size = others.get(public.name, 0)
        if not size:
            raise ScenarioError(
                f"{public.name!r} given{suggest(public.name, others)}; allowed: another published data set of a fixed "
                f"size, with samples of the same shape: {', '.join(others) or 'none'}",
                key="data.public.name",
            )
        return min(size, public.samples or size), 0
    if isinstance(parsed.data.partition, Natural | Listed):
        name = parsed.resolved["data"]["partition"]["name"]
        raise ScenarioError(
            f"{public.share:g} given, but partition {name} fixes which samples each client has, so raysim cannot set "
            "a share aside; remove `share`, and set data.public.name to another data set",
            key="data.public.share",
        )
    assert public.share is not None
    held = round(public.share * dataset.train_size)
    if not 0 < held < dataset.train_size:
        raise ScenarioError(
            f"{public.share:g} given, so {held} of {dataset.train_size} training samples would be public; choose a "
            "share that gives at least one public sample and leaves at least one for the clients",
            key="data.public.share",
        )
    size = held if public.samples is None else min(held, public.samples)
    return size, size


def _normalised(dataset: DatasetSpec, given: Normalise | None) -> DatasetSpec:
    """Return the data set with the mean and deviation of the section `data.normalise`, if there is one."""
    if given is None:
        return dataset
    reads = dataset.input_spec
    if reads.kind == "tokens":
        raise ScenarioError(
            f"{dataset.name} has {reads}, which cannot be normalised; remove this section", key="data.normalise"
        )
    if reads.kind == "features" and not given.scaled:
        raise ScenarioError(
            f"false given, but {dataset.name} has {reads} instead of pixels; set this key to true",
            key="data.normalise.scaled",
        )
    channels = (reads.shape[0], 3) if reads.shape[0] == 1 else (reads.shape[0],)
    if reads.kind == "features":
        channels = (1, reads.size)
    for name, numbers in (("mean", given.mean), ("std", given.std)):
        if len(numbers) not in channels or len(numbers) != len(given.mean):
            raise ScenarioError(
                f"{plural(len(numbers), 'number')} given; for {dataset.name}, give "
                f"{' or '.join(map(str, channels))} numbers, and as many for `std` as for `mean`",
                key=f"data.normalise.{name}",
            )
    unit = 1 if given.scaled else 255
    mean, std = (tuple(number / unit for number in numbers) for numbers in (given.mean, given.std))
    if reads.kind == "image":
        reads = image(len(mean), *reads.shape[1:])
    return replace(dataset, input_spec=reads, mean=mean, std=std)


def input_digests(parsed: ParsedScenario) -> dict[str, str]:
    """Return path -> SHA-256 for the files of `inputs`, of a partition, and of a trace.

    Raises `ScenarioError` if one of them cannot be read.
    """
    resolved = parsed.resolved
    partition = resolved["data"]["partition"]
    given: dict[Key, list[str | None]] = {
        ("inputs",): resolved["inputs"] or [],
        ("data", "partition", "path"): [partition["path"]] if partition["name"] == "listed" else [],
        ("system", "trace"): [(resolved["system"] or {}).get("trace")],
    }
    digests = {}
    for key, paths in given.items():
        for path in filter(None, paths):
            try:
                digests[path] = _digest(Path(path))
            except OSError as error:
                text = f"{path} given, but it cannot be read ({reason(error)}); correct the path, or restore the file"
                raise parsed.origin.error(key, text) from None
    return digests


def data_digests(parsed: ParsedScenario) -> tuple[str, str | None] | None:
    """Return the digests of the data set, and of another data set with public data (None without one).

    Return None if they are not known here, because a file is missing or damaged.
    """
    from raysim.data.datasets import present_digest  # imported here, because it imports Arrow and Pillow

    data = parsed.data
    public = data.public.name if data.public else None
    try:
        parsed.own_code.activate()
        digest = present_digest(data.name, data.root, data.format, files_of(parsed))
        return digest, None if public is None else present_digest(public, data.root, data.format, None)
    except RaysimError:  # the user's own loader raises a `HookError` if a file is missing
        return None


def _digest(place: Path) -> str:
    """Return the SHA-256 of a file, or over the names and digests of all files in a folder. Raises `OSError`."""
    if place.is_dir():
        inside = (f"{file.relative_to(place)} {_digest(file)}" for file in sorted(place.rglob("*")) if file.is_file())
        return hashlib.sha256("\n".join(inside).encode(errors="surrogateescape")).hexdigest()
    now = place.stat()
    return _of_file(place, now.st_size, now.st_mtime_ns)


@lru_cache(maxsize=10_000)
def _of_file(path: Path, size: int, changed_ns: int) -> str:
    """Return the SHA-256 of a file. It is read again only if its size or modification time has changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
