"""Clauses about an algorithm's object and its file: frozen, picklable, documented, with allowed imports only.

The clause `defined` repeats the checks of `raysim.contract.definition`, which `raysim launch` makes as well. The other
clauses are for methods that will be shared: a run does not need a docstring.
"""

from __future__ import annotations

import ast
import pickle
from collections.abc import Collection, Iterator
from contextlib import contextmanager
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
    if "__dataclass_fields__" not in vars(cls):  # with @dataclass it is frozen, or Python refuses it below `Algorithm`
        raise ContractError(
            algorithm,
            "frozen",
            f"the class {cls.__name__} is not a frozen dataclass",
            "put @dataclass(frozen=True) above the class",
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
            algorithm,
            "picklable",
            f"the algorithm cannot be pickled ({error})",
            "use only plain values, such as numbers and strings, as settings",
        ) from error
    if not same:
        raise ContractError(
            algorithm,
            "picklable",
            "the algorithm is not equal to its pickled copy",
            "use only settings whose values can be compared with ==",
        )
    toy = Toy(algorithm, "picklable").run(1)
    for name, k, msg in toy.sent:
        packed = pack(msg)
        try:
            same = identical(unpack(pickle.loads(pickle.dumps(packed))), unpack(packed))
        except Exception as error:
            raise toy.broken(
                f"the return value of {name} for client {k} cannot be pickled ({error})",
                "send only tensors and numbers, and define message classes at the top level of a module",
            ) from error
        if not same:
            raise toy.broken(
                f"the return value of {name} for client {k} is not equal to its pickled copy",
                "send only tensors and numbers",
            )


def documented(algorithm: AnyAlgorithm) -> None:
    """The file, the class and every field have a docstring, and `paper` names the source."""
    cls = type(algorithm)

    def undocumented(problem: str, remedy: str) -> ContractError:
        return ContractError(algorithm, "documented", problem, remedy)

    if not ast.get_docstring(tree(algorithm, "documented")):
        raise undocumented(
            "the algorithm's file has no docstring",
            "begin the file with a docstring that explains the idea, cites the paper and describes the protocol",
        )
    # Python makes the signature the docstring of a dataclass without one.
    if not cls.__doc__ or cls.__doc__.startswith(f"{cls.__name__}("):
        raise undocumented("the class has no docstring", "describe the method in a docstring of one sentence")
    if not cls.paper:
        raise undocumented("the class names no paper", 'write paper: ClassVar[str] = "authors, venue, address"')
    for info in settings_fields(cls):
        if not info.doc:
            raise undocumented(f"the field {info.name} has no docstring", "explain the field in a docstring below it")


def imports(algorithm: AnyAlgorithm) -> None:
    """The file imports only allowed modules and names no device.

    Allowed are raysim.core, torch, numpy, scipy, the standard library and the modules of base classes.

    The files of its base classes are checked as well.
    """
    bases = algorithm_bases(type(algorithm))
    tree(algorithm, "imports")  # raises if the file cannot be read
    for base in bases:
        if (source := source_tree(base)) is not None:
            owner = "the algorithm's file" if base is bases[0] else f"the file of its base class {base.__name__}"
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
                    "import only raysim.core, torch, numpy, scipy, the standard library and the modules that define "
                    "the algorithm's base classes",
                )
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute) and node.attr == "num_rounds" and not algorithm.scheduled:
            raise has(
                f"reads num_rounds in line {node.lineno}",
                "declare scheduled: ClassVar[bool] = True; it tells raysim that a run of this method depends on "
                "num_rounds, and so cannot be resumed with more rounds",
            )
        if device := _names_device(node):
            raise has(
                f"uses {device} in line {getattr(node, 'lineno', 0)}",
                "do not name a device: raysim sets the default device of each hook",
            )


def tree(algorithm: AnyAlgorithm, clause: str) -> ast.Module:
    """Return the parsed file that contains the algorithm's class. Raises `ContractError` if it cannot be read."""
    parsed = source_tree(type(algorithm))
    if parsed is None:
        problem = "the algorithm's source code cannot be read"
        raise ContractError(algorithm, clause, problem, "define the class in a Python file")
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
