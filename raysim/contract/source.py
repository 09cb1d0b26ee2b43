"""Clauses about an algorithm's object and its file: frozen, picklable, documented, with allowed imports only.

The clause `defined` repeats the checks of `raysim.contract.definition`, which `raysim launch` makes as well. The other
clauses are for methods that will be shared: a run does not need a docstring.
"""

from __future__ import annotations

import ast
import pickle
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

from raysim.common.modules import imports_of, is_allowed
from raysim.contract.compare import differing, fingerprint, identical
from raysim.contract.definition import algorithm_bases, first_slip, source_tree
from raysim.contract.toy import ContractError, Toy
from raysim.core.algorithm import AnyAlgorithm, ClientId
from raysim.core.fields import settings_fields
from raysim.core.messages import pack, unpack


def defined(algorithm: AnyAlgorithm) -> None:
    """Every hook is called and every field is a setting: nothing in the class is silently ignored."""
    if slip := first_slip(type(algorithm)):
        raise ContractError(algorithm, "defined", slip.problem, slip.remedy)


def frozen(algorithm: AnyAlgorithm) -> None:
    """The algorithm is a frozen dataclass, and no hook changes it or its class."""
    cls = type(algorithm)
    if not is_dataclass(cls) or "__dataclass_fields__" not in vars(cls) or not is_frozen(cls):
        raise ContractError(
            algorithm, "frozen", f"{cls.__name__} is no frozen dataclass", "put @dataclass(frozen=True) above it"
        )

    def attributes() -> dict[str, str]:
        own = {f"self.{name}": fingerprint(value) for name, value in vars(algorithm).items()}
        of_class = {
            f"{cls.__name__}.{name}": fingerprint(value)
            for name, value in vars(cls).items()
            if not name.startswith(("__", "_abc_")) and not callable(value)
        }
        return own | of_class

    @contextmanager
    def watch(toy: Toy, name: str, client: ClientId | None, msg: Any) -> Iterator[None]:
        before = attributes()
        yield
        for attribute in differing(before, attributes()):
            raise toy.broken(f"{name} changes {attribute}", "keep state in client.net or server.state")

    Toy(algorithm, "frozen", watch=watch).run(2)


def picklable(algorithm: AnyAlgorithm) -> None:
    """The algorithm and its packed messages survive pickle."""
    try:
        same = bool(pickle.loads(pickle.dumps(algorithm)) == algorithm)
    except Exception as error:
        raise ContractError(
            algorithm, "picklable", f"pickle fails ({error})", "keep plain settings in its fields, no open objects"
        ) from error
    if not same:
        raise ContractError(
            algorithm, "picklable", "it differs from its pickled copy", "keep settings that compare with == in fields"
        )
    toy = Toy(algorithm, "picklable").run(1)
    for name, k, msg in toy.sent:
        packed = pack(msg)
        try:
            same = identical(unpack(pickle.loads(pickle.dumps(packed))), unpack(packed))
        except Exception as error:
            raise toy.broken(
                f"the return value of {name} for client {k} cannot be pickled ({error})",
                "a message holds tensors and numbers, in a class at the top of a module",
            ) from error
        if not same:
            raise toy.broken(
                f"the return value of {name} for client {k} comes back from pickle as something else",
                "a message holds tensors and numbers only",
            )


def documented(algorithm: AnyAlgorithm) -> None:
    """The file, the class and every field have a docstring, and `paper` names the source."""
    cls = type(algorithm)

    def lacks(what: str, remedy: str) -> ContractError:
        return ContractError(algorithm, "documented", f"it lacks {what}", remedy)

    if not ast.get_docstring(tree(algorithm, "documented")):
        raise lacks("a docstring at the top of its file", "add one with the idea, the citation and the protocol")
    # Python makes the signature the docstring of a dataclass without one.
    if not cls.__doc__ or cls.__doc__.startswith(f"{cls.__name__}("):
        raise lacks("a docstring under its class", "add one sentence that describes the method")
    if not cls.paper:
        raise lacks("a paper", 'write paper: ClassVar[str] = "authors, venue, address"')
    for info in settings_fields(cls):
        if not info.doc:
            raise lacks(f"a docstring under its field {info.name}", "add one below the field that explains its meaning")


def imports(algorithm: AnyAlgorithm) -> None:
    """The file imports only allowed modules and names no device.

    Allowed are raysim.core, torch, numpy, scipy, the standard library and the modules of base classes.

    The files of its base classes are checked as well.
    """
    bases = algorithm_bases(type(algorithm))
    tree(algorithm, "imports")  # raises if the file cannot be read
    for base in bases:
        if (source := source_tree(base)) is not None:
            owner = "its file" if base is bases[0] else f"the file of its base class {base.__name__}"
            _check_imports(algorithm, source, owner, {one.__module__ for one in bases})


def _check_imports(algorithm: AnyAlgorithm, source: ast.Module, owner: str, of_bases: Collection[str]) -> None:
    def has(what: str, remedy: str) -> ContractError:
        return ContractError(algorithm, "imports", f"{owner} {what}", remedy)

    for module, names, line in imports_of(source):
        # A name that is imported from a package may be a module.
        parts = [f"{module}.{name}" for name in names] if module in {"raysim", "raysim.algorithms"} else [module]
        for name in parts:
            if not is_allowed(name) and name not in of_bases:
                raise has(
                    f"imports {name} in line {line}",
                    "import only raysim.core, torch, numpy, scipy, the standard library and modules of base classes",
                )
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute) and node.attr == "num_rounds" and not algorithm.scheduled:
            raise has(
                f"reads num_rounds in line {node.lineno}",
                "declare scheduled: ClassVar[bool] = True, because its runs cannot be extended by more rounds",
            )
        if device := _names_device(node):
            raise has(
                f"uses {device} in line {getattr(node, 'lineno', 0)}",
                "name no device: the engine sets the default device of each hook",
            )


def is_frozen(cls: type) -> bool:
    return bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def tree(algorithm: AnyAlgorithm, clause: str) -> ast.Module:
    """Return the parsed file that contains the algorithm's class. Raises `ContractError` if it cannot be read."""
    parsed = source_tree(type(algorithm))
    if parsed is None:
        raise ContractError(algorithm, clause, "its source cannot be read", "put the algorithm into a file")
    return parsed


def _names_device(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute) and node.attr in {"cuda", "xpu"}:
        return f".{node.attr}"
    if isinstance(node, ast.Attribute) and node.attr == "device" and isinstance(node.value, ast.Name):
        return "torch.device" if node.value.id == "torch" else ""
    if isinstance(node, ast.Call):
        keywords = {one.arg: one.value for one in node.keywords}
        device = keywords.get("device")
        # Tensors on `meta` have a shape and no values; `counted` of a message may use them. A draw from `client.rng`, a
        # CPU generator, must be on the CPU on every device.
        allowed = {"meta", "cpu"} if "generator" in keywords else {"meta"}
        return "" if device is None or (isinstance(device, ast.Constant) and device.value in allowed) else "device="
    return ""
