"""The initial state of a run that begins with the state of another run: see `Init` in `raysim/scenario/schema.py`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import nn

from raysim.core.algorithm import ClientId, Task
from raysim.core.messages import Weights
from raysim.core.state import Serialized, digest, form_of
from raysim.engine.tensor_files import contiguous_copies, metadata_of

Packed = NDArray[np.uint8]
"""A state_dict as a safetensors array. Ray shares arrays between the processes of a node, but not tensors."""


@dataclass(frozen=True)
class Initial:
    """Initial weights of every client and, if they fit, of the server. Picklable.

    A worker reads the weights of a client when it creates the client, so the state before round 1 needs no checkpoint.
    """

    states: tuple[Packed, ...]  # the different states of clients, each once
    of: tuple[int, ...]  # client k begins with states[of[k]]
    whole: bool  # True: each state is that of a client's whole network; False: of the client's own model in it
    models: Mapping[str, Packed] = field(default_factory=dict)  # architecture -> model in the other server's state
    tree: str | None = None  # structure of the server's `Serialized` state, in JSON; None: the server's state is new
    tensors: Packed | None = None  # tensors of the server's state

    def load(self, k: ClientId, net: nn.Module) -> None:
        """Give client k's new network its initial weights."""
        state = unpacked(self.states[self.of[k]])
        target = net if self.whole else part_with(net, state)
        assert target is not None, f"{type(net).__name__} has no model of the client's architecture"
        target.load_state_dict({**target.state_dict(), **state})

    def server_task(self, task: Task) -> Task:
        """Return the task for the server, whose `model` returns the trained model of an architecture, if there is one.

        Models with a purpose or a width of their own stay fresh.
        """
        return replace(task, model=partial(self._model, task.model), trained=tuple(self.models))

    def _model(self, fresh: Any, name: str, *key: int | str, **width: int) -> Any:
        model = fresh(name, *key, **width)
        if name in self.models and not key and not width:
            model.load_state_dict(unpacked(self.models[name]))
        return model

    @property
    def server(self) -> Serialized | None:
        """The server's state; None: the method creates a new state."""
        if self.tree is None or self.tensors is None:
            return None
        return Serialized(json.loads(self.tree), unpacked(self.tensors))

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the initial state of all clients and the server, whatever the checkpoint's format."""
        each = [digest(unpacked(state)) for state in self.states]
        parts: dict[str, Any] = {"clients": [each[i] for i in self.of], "whole": self.whole}
        parts["models"] = {name: digest(unpacked(model)) for name, model in self.models.items()}
        if self.server is not None:
            parts["server"] = [digest(self.server.tensors), self.tree]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def file(self) -> bytes:
        """Return the content of a file, which `parse` can read."""
        parts = {f"state/{i}": state for i, state in enumerate(self.states)}
        parts |= {f"model/{name}": model for name, model in self.models.items()}
        if self.tensors is not None:
            parts["server"] = self.tensors
        tensors = {name: torch.from_numpy(part.copy()) for name, part in parts.items()}
        facts = {"of": self.of, "whole": self.whole, "tree": self.tree}
        return save(tensors, {name: json.dumps(value) for name, value in facts.items()})

    @classmethod
    def parse(cls, data: bytes) -> Initial:
        """Return the object that `file` wrote."""
        facts = metadata_of(data)
        parts = {name: part.numpy() for name, part in load(data).items()}
        count = sum(name.startswith("state/") for name in parts)
        models = {name.removeprefix("model/"): part for name, part in parts.items() if name.startswith("model/")}
        states = tuple(parts[f"state/{i}"] for i in range(count))
        of = tuple(map(int, json.loads(facts["of"])))
        whole, tree = (json.loads(facts[name]) for name in ("whole", "tree"))
        return cls(states, of, whole, models, tree, parts.get("server"))


def packed(state: Weights) -> Packed:
    """Return a state_dict as a safetensors array."""
    return np.frombuffer(save(contiguous_copies(state)), np.uint8)


def unpacked(state: Packed) -> Weights:
    """Return the state_dict that `packed` stored."""
    return load(state.tobytes())


def part_with(net: nn.Module, model: Weights) -> nn.Module | None:
    """Return the network or the first module in it whose tensors have a model's names, shapes and types.

    A method may put the client's model into a network of its own, or add buffers to the model. None: there is no such
    part.
    """
    wanted = form_of(model)
    for part in (net, *net.children()):
        if wanted.items() <= form_of(part.state_dict()).items():
            return part
    return None


def own_model(net: nn.Module) -> nn.Module | None:
    """Return the model of the client's own architecture inside the client's network; None if there is none.

    A method that keeps several models holds this one first.
    """
    return next((module for module in (net, *net.children()) if hasattr(module, "features")), None)
