"""The contract of an algorithm as executable checks: `check_algorithm(MyMethod())` reports the first broken rule.

It runs the algorithm for a few rounds on the in-process backend, in a toy task (`toy.py`): a handful of clients with
three architectures. It takes seconds on one CPU, without Ray. An algorithm declares exceptions in attributes; no
algorithm is exempt by name: `one_architecture` (whole models are exchanged), `static_downlink` (the server's messages,
and so the uploads, may stay the same) and `scheduled` (results depend on the number of rounds).
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from raysim.common.errors import RaysimError
from raysim.contract.definition import defined, fields_read, frozen, picklable
from raysim.contract.exposed import exposed
from raysim.contract.repeatable import any_order, deterministic, resumable, scheduled, trained_together
from raysim.contract.rounds import (
    averages,
    class_gap,
    connected,
    learns,
    logits,
    messages_move,
    one_client,
    runs,
    single_samples,
    stale_uploads,
)
from raysim.contract.toy import SEED
from raysim.contract.trial import ContractError
from raysim.core.algorithm import Algorithm, AnyAlgorithm
from raysim.core.seeds import global_seed
from raysim.core.torch_workarounds import one_thread

__all__ = ["CLAUSES", "ContractError", "check_algorithm", "check_clause"]


def check_algorithm(algorithm: AnyAlgorithm) -> None:
    """Check every clause in turn. Raises `ContractError` for the first broken clause.

    All global random states, and torch's number of threads, stay unchanged.

    >>> import raysim
    >>> from raysim.algorithms.standalone import Standalone
    >>> raysim.check_algorithm(Standalone())  # every clause holds
    """
    if not isinstance(algorithm, Algorithm):
        cls = algorithm if inspect.isclass(algorithm) else type(algorithm)
        given = f"the class {cls.__name__}" if inspect.isclass(algorithm) else f"a value of type {cls.__name__}"
        example = cls.__name__ if issubclass(cls, Algorithm) else "MyMethod"
        raise TypeError(
            f"check_algorithm needs an algorithm, but was given {given}; pass an object, such as {example}()"
        )
    for name in CLAUSES:
        check_clause(name, algorithm)


def check_clause(name: str, algorithm: AnyAlgorithm) -> None:
    """Check one clause. Raises `ContractError` if it is broken or a hook raises an exception."""
    try:
        with one_thread(), _random_states_kept():
            CLAUSES[name](algorithm)
    except ContractError:
        raise
    except RaysimError as error:
        raise ContractError(algorithm, name, str(error)) from error


@contextmanager
def _random_states_kept() -> Iterator[None]:
    """Seed torch's global generators inside a block, and afterwards restore those of NumPy, Python and torch."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with global_seed(SEED, "contract"):
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


CLAUSES: dict[str, Callable[[AnyAlgorithm], None]] = {
    clause.__name__: clause
    for clause in (
        defined,
        picklable,
        runs,
        logits,
        frozen,
        fields_read,
        deterministic,
        any_order,
        resumable,
        scheduled,
        trained_together,
        learns,
        messages_move,
        connected,
        one_client,
        single_samples,
        class_gap,
        averages,
        stale_uploads,
        exposed,
    )
}
"""Name -> clause, in the order of the checks. A clause takes an algorithm and raises `ContractError` if broken."""
