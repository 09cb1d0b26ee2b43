"""The contract of an algorithm as a program: `check_algorithm(MyMethod())` reports the rule that it breaks, and where.

It runs the algorithm for a few rounds in a toy task (`toy.py`: C = 4 classes, D = 8, images of 4 x 4 pixels, a handful
of clients with three architectures) and checks that hooks did only what they may do. It takes seconds on one CPU,
without Ray. An algorithm declares exceptions in attributes; no algorithm is exempt by name: `one_architecture` (whole
models are exchanged) and `static_downlink` (the server's messages, and so the uploads, may stay the same).

Shapes: N samples of one client, B batch, C classes, D representation width, H x W pixels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from raysim.contract.exposed import exposed
from raysim.contract.hooks import down_untouched, losses, messages, own_state_only, ups_untouched
from raysim.contract.repeatable import (
    any_order,
    deterministic,
    logits,
    server_state_visible,
    state_dict_is_all,
)
from raysim.contract.running import (
    class_gap,
    connected,
    learns,
    messages_move,
    one_client,
    runs,
    single_samples,
)
from raysim.contract.settings import fields_read
from raysim.contract.source import defined, documented, frozen, imports, picklable
from raysim.contract.together import trained_together
from raysim.contract.toy import ContractError
from raysim.core.algorithm import Algorithm, AnyAlgorithm
from raysim.core.torch_workarounds import one_thread

__all__ = ["CLAUSES", "ContractError", "check_algorithm"]


@one_thread()
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
    for clause in CLAUSES.values():
        clause(algorithm)


CLAUSES: dict[str, Callable[[AnyAlgorithm], None]] = {
    clause.__name__: clause
    for clause in (
        defined,
        runs,
        frozen,
        picklable,
        documented,
        fields_read,
        imports,
        messages,
        own_state_only,
        down_untouched,
        ups_untouched,
        deterministic,
        any_order,
        logits,
        state_dict_is_all,
        server_state_visible,
        losses,
        trained_together,
        learns,
        messages_move,
        connected,
        one_client,
        single_samples,
        class_gap,
        exposed,
    )
}
"""Every clause by name, in the order of the checks: each takes an algorithm and raises `ContractError` if broken."""
