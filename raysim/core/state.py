"""State of clients and server as named tensors, for digests, moves and storage."""

from __future__ import annotations

import copy
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from raysim.common.modules import PACKAGE, plain_module

_LEAVES = (nn.Module, Tensor, bool, int, float, str, NoneType)


def state_tensors(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Return every tensor and number inside `state`, by dotted path, in a fixed order.

    Supports tensors, modules, dataclasses without optimizers, mappings, lists and tuples, numbers, strings and `None`.
    Raises `TypeError` with the path of any other object, which could be neither checkpointed nor compared.
    """
    tensors: dict[str, Tensor] = {}
    for path, part in _leaves(state, prefix):
        inside = part.state_dict().items() if isinstance(part, nn.Module) else [("", part)]
        for name, value in inside:
            full = (_joined(path, name) if name else path) or "value"
            if value is not None and full in tensors:
                raise TypeError(f"two values of the state have the same path {full}; rename one of them")
            if value is not None:
                tensors[full] = _tensor_of(value)
    return tensors


def _tensor_of(value: Tensor | bool | int | float | str) -> Tensor:
    """Return a leaf of a state as a tensor: text as its bytes, whole numbers as int64, other numbers as float64."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, str):
        return torch.tensor(list(value.encode()), dtype=torch.uint8)
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


Form = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Names, shapes and types of a module's parameters and buffers."""


def form_of(state: Mapping[str, Tensor]) -> Form:
    """Return the names, shapes and types of a state_dict."""
    return {name: (value.shape, value.dtype) for name, value in state.items()}


def forms_in(state: Any) -> dict[str, Form]:
    """Return the form of every module inside a state, by its path."""
    return {path: form_of(module.state_dict()) for path, module in modules_in(state).items()}


def check_savable(state: Any, forms: Mapping[str, Form]) -> None:
    """Raise `TypeError` if a state cannot be saved, or would differ after it is restored.

    forms: of the modules that the state had before round 1, which a restored state can have. Two values with the same
    path are not looked for; `state_tensors` finds them.
    """
    for path, part in _leaves(state, ""):
        place = path or "its top level"
        if isinstance(part, nn.Module):
            if path not in forms:
                raise TypeError(
                    f"the state has a {type(part).__name__} at {place}, where it had no module before round 1; create "
                    "all modules in server_start"
                )
            if changed := dict(form_of(part.state_dict()).items() ^ forms[path].items()):
                raise TypeError(
                    f"the state's module at {place} has another {min(changed)} than before round 1; keep the shapes "
                    "and types of the module that server_start created"
                )
        elif isinstance(part, Tensor) and part.grad_fn is not None:
            raise TypeError(
                f"the tensor at {place} of the state is connected to the tensors that it was computed from; store "
                "tensor.detach()"
            )


def check_shared(state: Any) -> None:
    """Raise `TypeError` if two values of a state share memory, because they would not share it after a restore.

    One tensor may stand at several places. Tensors that are not contiguous are not examined.
    """
    spans: list[tuple[int, int, Any, str]] = []  # (first byte, last byte, owner, path) of each tensor
    for path, part in _leaves(state, ""):
        values = part.state_dict().values() if isinstance(part, nn.Module) else [part]
        # A module at two paths would be restored as two modules.
        owner = path if isinstance(part, nn.Module) else id(part)
        for value in values:
            if (
                isinstance(value, Tensor)
                and value.layout is torch.strided
                and value.is_contiguous()
                and value.data_ptr()  # a tensor on the device `meta` has the address 0
                and value.nbytes
            ):
                spans.append((value.data_ptr(), value.data_ptr() + value.nbytes, owner, path))
    end, last, before = 0, None, ""
    for first, after, owner, path in sorted(spans, key=lambda span: span[:2]):
        if first < end and owner != last:
            raise TypeError(
                f"the values at {before or 'its top level'} and {path or 'its top level'} of the state share memory, "
                "but those of a restored state would not; store only one of them, or a clone"
            )
        if after > end:
            end, last, before = after, owner, path


def drop_gradients(state: Any) -> None:
    """Remove the gradients inside a state, because they are not saved."""
    for _, part in _leaves(state, ""):
        if isinstance(part, nn.Module):
            part.zero_grad(set_to_none=True)
        elif isinstance(part, Tensor) and part.is_leaf:
            part.grad = None


def digest(state: Any) -> str:
    """Return the SHA-256 (hex) over names, types, shapes and bytes of `state_tensors(state)`."""
    sha = hashlib.sha256()
    for name, tensor in state_tensors(state).items():
        sha.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        sha.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def combined_digest(digests: Mapping[Any, str]) -> str:
    """Return one SHA-256 (hex) over several digests, in key order."""
    sha = hashlib.sha256()
    for key in sorted(digests):
        sha.update(f"{key}={digests[key]};".encode())
    return sha.hexdigest()


@dataclass(frozen=True)
class Serialized:
    """A state, split into structure and tensors so that it can be stored without pickle."""

    tree: Any  # nested lists for JSON; each begins with its kind
    tensors: dict[str, Tensor]  # copies, by the dotted paths of `state_tensors`


def serialize(state: Any) -> Serialized:
    """Split a state for storage. `deserialize` restores it bit for bit, also strides of tensors without gaps.

    A tensor at several places is restored as one tensor; other shared memory is not (`check_shared`). Supports the same
    types as `state_tensors`. Raises `TypeError` with the path of any other object.
    """
    state_tensors(state)  # raises for unsupported objects, and for two parts with the same path
    tensors: dict[str, Tensor] = {}
    seen: dict[int, list[Any]] = {}

    def node(part: Any, path: str) -> Any:
        if part is None:
            return None
        if isinstance(part, Tensor):
            if id(part) not in seen:
                name = path or "value"
                tensors[name] = part.detach().cpu().clone(memory_format=torch.contiguous_format)
                # Strides are stored, because another memory layout may select another kernel, which changes the last
                # digits.
                stride = None if part.is_contiguous() or not _dense(part) else list(part.stride())
                seen[id(part)] = ["tensor", name, stride, part.requires_grad, isinstance(part, nn.Parameter)]
            return seen[id(part)]
        if isinstance(part, bool | int | float | str):
            return ["value", part]
        if isinstance(part, nn.Module):
            tensors.update({_joined(path, name): value.cpu().clone() for name, value in part.state_dict().items()})
            return ["module", path, [_joined(path, name) for name in part.state_dict()]]
        if isinstance(part, Mapping):
            pairs = [[node(key, ""), node(value, _joined(path, str(key)))] for key, value in part.items()]
            return ["dict", pairs]
        if isinstance(part, list | tuple):
            inner = [node(value, _joined(path, str(i))) for i, value in enumerate(part)]
            if hasattr(part, "_fields"):
                return ["named", _class_name(type(part)), inner]
            return ["list" if isinstance(part, list) else "tuple", inner]
        held = [[field.name, node(getattr(part, field.name), _joined(path, field.name))] for field in fields(part)]
        return ["dataclass", _class_name(type(part)), held]

    return Serialized(node(state, ""), tensors)


def deserialize(frozen: Serialized, template: Any, modules: Collection[str]) -> Any:
    """Restore a state from the result of `serialize`.

    template: a state of the same algorithm, for example the one before round 1; modules of the restored state are
    copies of the template's modules at the same path, with the stored values. modules: names of the Python modules
    (besides this package) whose classes may be created. Raises `ValueError` if a class or a module is not available.
    """
    return _Restoring(frozen.tensors, modules_in(template), modules).part(frozen.tree)


@dataclass
class _Restoring:
    """Restores a state from the nodes of `Serialized.tree`."""

    tensors: Mapping[str, Tensor]
    places: Mapping[str, nn.Module]  # the template's modules by path
    modules: Collection[str]
    made: dict[str, Tensor] = field(default_factory=dict)  # restored tensors, for those that stand at several places

    def part(self, node: Any) -> Any:
        if node is None:
            return None
        kind, *rest = node
        if kind == "tensor":
            return self._tensor(*rest)
        if kind == "value":
            return rest[0]
        if kind == "module":
            return self._module(*rest)
        if kind == "dict":
            return {self.part(key): self.part(value) for key, value in rest[0]}
        if kind in {"list", "tuple"}:
            inner = [self.part(value) for value in rest[0]]
            return inner if kind == "list" else tuple(inner)
        return self._object(*rest)

    def _tensor(self, name: str, stride: list[int] | None, grad: bool, parameter: bool) -> Tensor:
        if name not in self.made:
            value = self.tensors[name].clone()
            if stride is not None:
                value = torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value)
            self.made[name] = nn.Parameter(value, grad) if parameter else value.requires_grad_(grad)
        return self.made[name]

    def _module(self, path: str, names: list[str]) -> nn.Module:
        if path not in self.places:
            raise ValueError(
                f"the saved state has a module at {path or 'its top level'}, but the initial state has none there; "
                "create all modules in server_start"
            )
        module = copy.deepcopy(self.places[path])
        module.load_state_dict({name.removeprefix(f"{path}."): self.tensors[name] for name in names})
        return module

    def _object(self, class_name: str, parts: list[Any]) -> Any:
        """Create a dataclass or a named tuple."""
        cls: Any = _class_of(class_name, self.modules)
        if hasattr(cls, "_fields"):
            return cls._make(self.part(value) for value in parts)
        fields = getattr(cls, "__dataclass_fields__", {})
        if lacking := [name for name, _ in parts if name not in fields]:
            raise ValueError(f"the saved {class_name} has the field {lacking[0]}, which the class no longer has")
        state = object.__new__(cls)
        for name, value in parts:
            object.__setattr__(state, name, self.part(value))
        return state


def modules_of(algorithm: object) -> set[str]:
    """Return the names of the modules that define an algorithm, and of those that may define classes of its state."""
    own = {cls.__module__ for cls in type(algorithm).__mro__ if cls.__module__ not in {"builtins", "abc", "typing"}}
    # Classes of the state may come from the user's files and from raysim's methods. `list` copies the names, because a
    # tracker's thread may import modules at the same time.
    return own | {name for name in list(sys.modules) if name.startswith((f"{PACKAGE}.", "raysim.algorithms."))}


def check_classes(state: Any, modules: Collection[str]) -> None:
    """Raise `ValueError` if a state contains an object whose class `deserialize` would refuse."""
    parts = _parts(state)
    if parts is not None and (is_dataclass(state) or hasattr(state, "_fields")):
        _class_of(_class_name(type(state)), modules)
    for _, part in parts or ():
        check_classes(part, modules)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _dense(tensor: Tensor) -> bool:
    """Return whether elements neither overlap nor leave gaps, so that `empty_strided` can recreate the layout."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _class_name(cls: type) -> str:
    return f"{plain_module(cls.__module__)}:{cls.__qualname__}"


def _class_of(name: str, modules: Collection[str]) -> Any:
    """Return the class with this name, which one of the given modules or this package must define.

    A file must not create other objects. The check of the name refuses classes that those modules only import, such as
    `raysim.core.data:np.memmap`.
    """
    module, _, qualname = name.partition(":")
    named = {plain_module(name): name for name in modules}.get(module, "")
    member: Any = sys.modules.get(module if module.startswith(f"{__package__}.") else named)
    for step in qualname.split("."):
        member = getattr(member, step, None)
    if not isinstance(member, type) or _class_name(member) != name:
        raise ValueError(
            f"the state contains an object of class {name}, but none of the modules "
            f"{', '.join(sorted(modules))} defines this class; define it at the top level of the algorithm's file"
        )
    return member


def modules_in(state: Any) -> dict[str, nn.Module]:
    """Return path -> module for every module inside a state that is not inside another module."""
    return {path: part for path, part in _leaves(state, "") if isinstance(part, nn.Module)}


def _leaves(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, object) for every object inside a state that has no parts; a module counts as one object.

    Raises `TypeError` for an object that a state must not contain.
    """
    if isinstance(state, _LEAVES):
        yield path, state
        return
    parts = _parts(state)
    if parts is None:
        raise TypeError(_unsupported(state, path or "its top level"))
    for name, part in parts:
        yield from _leaves(part, _joined(path, name))


def _parts(state: Any) -> list[tuple[str, Any]] | None:
    """Return the names and parts of a dict (in a fixed order), list, tuple or dataclass; None for any other object."""
    if type(state) in (dict, OrderedDict):  # other mappings would be restored as a dict
        return [(str(key), state[key]) for key in sorted(state, key=lambda key: (str(type(key)), key))]
    if isinstance(state, list | tuple):
        return [(str(i), part) for i, part in enumerate(state)]
    if is_dataclass(state) and not isinstance(state, type):
        return [(field.name, getattr(state, field.name)) for field in fields(state)]
    return None


def _unsupported(part: Any, place: str) -> str:
    """Return a description of the problem with an object that a state must not contain."""
    kind = f"the state contains a {type(part).__name__} at {place}"
    if isinstance(part, torch.optim.Optimizer):
        return f"{kind}; store its state_dict(), and load it into a new optimizer in each round"
    if isinstance(part, Mapping):
        return f"{kind}; use a dict, because a restored state has only dicts"
    return f"{kind}; use only tensors, modules, dataclasses, dicts, lists, numbers and strings"
