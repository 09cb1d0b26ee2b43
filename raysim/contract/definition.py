"""Clauses about an algorithm's class and its settings."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from raysim.common.errors import RaysimError
from raysim.contract.trial import ContractError, Trial, disguised
from raysim.core.algorithm import AnyAlgorithm, Task
from raysim.core.fields import Range, settings_fields
from raysim.plugins.class_check import class_mistake

MAX_ROUNDS = 24
"""Number of rounds in which hooks must read every setting and send a message: some methods begin with a warm-up."""


def defined(algorithm: AnyAlgorithm) -> None:
    """The class is a dataclass, its hooks have the right arguments, and no method name is a misspelled hook."""
    if mistake := class_mistake(type(algorithm)):
        raise ContractError(algorithm, "defined", mistake)


def picklable(algorithm: AnyAlgorithm) -> None:
    """The algorithm can be pickled and unpickled, as raysim does to copy it to every process."""
    try:
        same = bool(pickle.loads(pickle.dumps(algorithm)) == algorithm)
    except Exception as error:
        text = f"the algorithm cannot be pickled ({error}); use only plain values, such as numbers, as settings"
        raise ContractError(algorithm, "picklable", text) from error
    if not same:
        text = "the algorithm is not equal to its pickled copy; use only settings whose values can be compared with =="
        raise ContractError(algorithm, "picklable", text)


def frozen(algorithm: AnyAlgorithm) -> None:
    """No hook changes the algorithm or its class, because every process has its own copy of them."""
    cls = type(algorithm)

    def attributes() -> dict[str, Any]:
        own = {f"self.{name}": value for name, value in vars(algorithm).items()}
        of_class = {
            f"{cls.__name__}.{name}": value
            for name, value in vars(cls).items()
            if not name.startswith(("__", "_abc_")) and not callable(value)
        }
        return {name: repr(value) for name, value in (own | of_class).items()}

    before = attributes()
    Trial(algorithm).run(2)
    for name, value in attributes().items():
        if before.get(name) != value:
            raise ContractError(
                algorithm, "frozen", f"a hook changes {name}; keep state in buffers of client.net or in server.state"
            )


def fields_read(algorithm: AnyAlgorithm) -> None:
    """Hooks read every field that a scenario can set, with the given settings or after one of them is changed.

    Reading a field in `check`, which only refuses settings, does not count.
    """
    cls = type(algorithm)
    names = [info.name for info in settings_fields(cls)]
    unread = set(names)
    read, last = _names_read(algorithm, unread, MAX_ROUNDS)
    unread -= read
    for rounds in (last, MAX_ROUNDS):
        for variant in _variants(algorithm):
            if not unread:
                return
            with suppress(RaysimError):  # a hook may refuse the changed setting
                unread -= _names_read(variant, unread, rounds)[0]
    if unread:
        name = min(unread, key=names.index)
        inherited = name not in inspect.get_annotations(cls)
        drop = f"redeclare {name} as a ClassVar, so that it is not a setting" if inherited else "remove the field"
        raise ContractError(
            algorithm,
            "fields_read",
            f"no hook reads the field {name!r} in {MAX_ROUNDS} rounds; use self.{name} in a hook or in a loss that is "
            f"passed to client.fit, or {drop}",
        )


def _names_read(algorithm: AnyAlgorithm, wanted: set[str], rounds: int) -> tuple[set[str], int]:
    """Return which of the wanted fields hooks read in `rounds` rounds, and the last round that added a field."""
    names_read: set[str] = set()

    class WithWatchedSettings(type(algorithm)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            names_read.update(wanted if name == "__dict__" else [name])
            return super().__getattribute__(name)

        def check(self, task: Task) -> None:
            algorithm.check(task)

    trial = Trial(disguised(algorithm, WithWatchedSettings))
    last = 1
    for t in range(1, rounds + 1):
        before = wanted & names_read
        if before == wanted:
            break
        trial.round(t)
        if wanted & names_read != before:
            last = t
    return wanted & names_read, last


def _variants(algorithm: AnyAlgorithm) -> Iterator[AnyAlgorithm]:
    """Yield copies with one field changed, because hooks read some fields only if another one has certain values."""
    for info in settings_fields(type(algorithm)):
        for value in _others(info.hint, getattr(algorithm, info.name)):
            try:
                other = replace(algorithm, **{info.name: value})
            except Exception:  # `__post_init__` may refuse the value by any exception
                continue
            yield other


def _others(hint: Any, value: Any) -> list[Any]:
    """Return other values for a field with this annotation; none for text and containers."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        others = list(args)
    elif origin in (Union, UnionType):
        others = [None] if NoneType in args else []
        others += [other for arg in args for other in _others(arg, value)]
    elif hint is bool:
        others = [False, True]
    elif origin is Annotated:
        ranges = [extra for extra in args[1:] if isinstance(extra, Range)]
        others = [other for other in _others(args[0], value) if all(one.holds(other) for one in ranges)]
    elif hint in (int, float):
        number = value if isinstance(value, int | float) else 1
        others = [hint(other) for other in (2 * number, number / 2, 1, 0)]
    else:
        others = []
    return [other for other in dict.fromkeys(others) if other != value]
