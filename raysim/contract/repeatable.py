"""Clauses about repeatability: one seed gives one result, in any order of clients and from saved states."""

from __future__ import annotations

import copy
import json
import pickle
import random

import numpy as np
import torch
from torch import Tensor, nn

from raysim.contract.compare import differing, identical, random_states_kept
from raysim.contract.toy import SEED, C, Toy, ToyTransform, toy_samples
from raysim.core.algorithm import AnyAlgorithm
from raysim.core.messages import weights
from raysim.core.meter import FlopMeter
from raysim.core.state import Serialized, deserialize, modules_in, modules_of, serialize


def deterministic(algorithm: AnyAlgorithm) -> None:
    """The same seeds give the same states and messages, bit for bit, in any state of NumPy's and Python's generators.

    The second run also counts operations, which runs each piece of work once more and must change nothing.
    """
    with random_states_kept(SEED):
        first = Toy(algorithm, "deterministic").run(2)
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        second = Toy(pickle.loads(pickle.dumps(algorithm)), "deterministic", meter=FlopMeter()).run(2)
    remedy = (
        "in hooks, draw random numbers only with torch, client.rng or server.rng, and use neither the time nor values "
        "that an earlier run may have left in global variables or default arguments"
    )
    for (name, k, one), (_, _, other) in zip(first.sent, second.sent, strict=True):
        if not identical(one, other):
            problem = f"the return value of {name} for client {k} differs when the run is repeated with the same seed"
            raise first.broken(problem, remedy)
    for changed in differing(first.states(), second.states()):
        raise first.broken(f"{changed} differs when the run is repeated with the same seed", remedy)


def any_order(algorithm: AnyAlgorithm) -> None:
    """The result does not depend on which client of a round runs first."""
    forward, backward = Toy(algorithm, "any_order").run(2), Toy(algorithm, "any_order").run(2, reverse=True)
    for changed in differing(forward.states(), backward.states()):
        raise forward.broken(
            f"{changed} depends on the order in which clients run",
            "in client hooks, use only the arguments of the hook, and no global variables",
        )


def state_dict_is_all(algorithm: AnyAlgorithm) -> None:
    """A client's `state_dict` is its whole state: loaded into a fresh `client_model`, the run continues as before."""
    first = Toy(algorithm, "state_dict_is_all").run(2)
    remedy = "store all state of a client in parameters or buffers of the network that client_model returns"
    second = Toy(pickle.loads(pickle.dumps(algorithm)), "state_dict_is_all")
    for k, net in second.nets.items():
        try:
            net.load_state_dict(weights(first.nets[k]))
        except RuntimeError as error:
            text = " ".join(str(error).split())
            problem = f"a new network from client_model cannot load the state_dict of client {k} ({text})"
            raise first.broken(problem, remedy) from None
    second.server.state, second.forms = copy.deepcopy(first.server.state), first.forms
    first.round(3)
    second.round(3)
    for changed in differing(first.states(), second.states()):
        raise first.broken(f"{changed} is not the same if the run restarts from the clients' state_dicts", remedy)


def server_state_visible(algorithm: AnyAlgorithm) -> None:
    """The server's whole state is in `server.state`, in types that can be stored and restored."""
    toy = Toy(algorithm, "server_state_visible").run(2)
    serialized = serialize(toy.server.state)
    for module in (inner for outer in modules_in(toy.server.state).values() for inner in outer.modules()):
        hidden = {name for name, value in vars(module).items() if isinstance(value, Tensor)}
        hidden |= module._non_persistent_buffers_set
        if hidden:
            raise toy.broken(
                f"the tensor {type(module).__name__}.{min(hidden)} in server.state is not in the module's state_dict",
                "register the tensor as a parameter or a persistent buffer",
            )
    second = Toy(algorithm, "server_state_visible").start()
    stored = Serialized(json.loads(json.dumps(serialized.tree)), serialized.tensors)
    remedy = "create all modules in server_start, and define dataclasses at the top level of the algorithm's file"
    try:
        second.server.state = deserialize(stored, second.server.state, modules_of(algorithm))
    except ValueError as error:
        raise toy.broken(f"a saved server.state cannot be restored ({error})", remedy) from None
    second.nets = copy.deepcopy(toy.nets)
    toy.round(3)
    second.round(3)
    for changed in differing(toy.states(), second.states()):
        raise toy.broken(f"{changed} is not the same if the run restarts from a saved server.state", remedy)


def logits(algorithm: AnyAlgorithm) -> None:
    """`client_model` returns an `nn.Module` that can be copied and has a `forward` that returns logits [B, C]."""
    toy = Toy(algorithm, "logits")
    for net in toy.nets.values():
        if not isinstance(net, nn.Module):
            raise toy.broken(f"client_model returns a value of type {type(net).__name__}", "return an nn.Module")
    toy.run(1)
    for k, trained in toy.nets.items():
        for size in (1, 3):
            x = ToyTransform().plain(toy_samples([0, 1, 2][:size], k).raw_N)
            with torch.no_grad():
                logit_BC = copy.deepcopy(trained).eval()(x)
            if not isinstance(logit_BC, Tensor) or logit_BC.shape != (size, C) or not logit_BC.is_floating_point():
                output = f"value of type {type(logit_BC).__name__}"
                if isinstance(logit_BC, Tensor):
                    output = f"tensor of shape {tuple(logit_BC.shape)} and type {logit_BC.dtype}"
                raise toy.broken(
                    f"the network from client_model outputs a {output} for a batch of size {size}",
                    "return floating-point logits from the network's `forward`; their shape must be [B, C], which is "
                    f"({size}, {C}) for this batch",
                )
