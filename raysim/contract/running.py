"""Clauses about a run as a whole: it learns, it sends what it has learned, and it handles unusual data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.contract.compare import identical, visible_tensors
from raysim.contract.toy import FOUR, GAP, ContractError, Labels, Toy
from raysim.core.algorithm import AnyAlgorithm, ClientId, overrides
from raysim.core.messages import nonfinite

MAX_ROUNDS = 24
"""Rounds within which a method must send a message: some methods begin with local training only."""


def runs(algorithm: AnyAlgorithm) -> None:
    """Every hook runs without an exception, on four clients of different sizes."""
    Toy(algorithm, "runs").run(2)


def learns(algorithm: AnyAlgorithm) -> None:
    """In eight rounds on an easy task the loss falls by at least a tenth and the accuracy rises."""
    toy = Toy(algorithm, "learns").start()
    loss_before, accuracy_before = toy.score()
    for t in range(1, 9):
        toy.round(t)
    loss, accuracy = toy.score()
    # `not <`, so that NaN breaks the clause. A tenth, since merely receiving a header may help a little.
    if not loss < 0.9 * loss_before or not accuracy > accuracy_before:
        raise toy.broken(
            f"in 8 rounds the loss must fall by more than 10% and the accuracy must rise, but the loss went from "
            f"{loss_before:.3g} to {loss:.3g} and the accuracy from {accuracy_before:.0%} to {accuracy:.0%}",
            "check that client_update calls client.fit, and that the loss trains the network (is its sign right?); if "
            "only the settings are too slow for this task, pass others, as in check_algorithm(MyMethod(rate=0.1))",
        )


def messages_move(algorithm: AnyAlgorithm) -> None:
    """Messages in both directions change from round to round, unless the algorithm declares `static_downlink`."""
    if algorithm.static_downlink:
        return
    toy = Toy(algorithm, "messages_move").run(4)
    for k in toy.samples:
        if count := _standing_still(toy, "server_send", k):
            raise toy.broken(
                f"server_send returned the same values for client {k} in {count} rounds",
                "change these values in server_update. If they are meant to be constant, set static_downlink = True. "
                "If server_update uses an optimizer, check that the optimizer updates the parameters that server_send "
                "reads",
            )
        if count := _standing_still(toy, "client_update", k):
            raise toy.broken(
                f"client_update returned the same values for client {k} in {count} rounds",
                "upload values that local training changes, and send constant values once, from client_register",
            )


def _standing_still(toy: Toy, hook: str, k: ClientId) -> int:
    """Return how many messages a hook sent to or from a client, if several and all equal; otherwise 0."""
    sent = [msg for name, client, msg in toy.sent if name == hook and client == k and msg is not None]
    # Round numbers and ids are ignored: they may change, or stay the same, without any learning.
    learnt = [[leaf for leaf in pytree.tree_leaves(m) if _is_float(leaf)] or pytree.tree_leaves(m) for m in sent]
    return len(sent) if len(sent) > 1 and all(identical(later, learnt[0]) for later in learnt[1:]) else 0


def connected(algorithm: AnyAlgorithm) -> None:
    """Receivers use the messages: with other values in them, the run has another result."""
    for hook, side in (("client_update", "the server"), ("server_send", "any client")):
        toy = Toy(algorithm, "connected").start()
        for t in range(1, MAX_ROUNDS + 1):
            before = toy.fork()
            if any(name == hook and msg is not None for name, _, msg in toy.round(t).sent):
                break
        else:
            if hook == "client_update" and overrides(type(algorithm), "server_update"):
                problem = f"server_update is overridden, but client_update returned no message in {MAX_ROUNDS} rounds"
                raise toy.broken(problem, f"return a message from client_update within {MAX_ROUNDS} rounds")
            if overrides(type(algorithm), hook) and hook == "server_send":
                problem = f"server_send is overridden, but returned no message in {MAX_ROUNDS} rounds"
                raise toy.broken(problem, f"return a message within {MAX_ROUNDS} rounds, or remove server_send")
            continue
        if hook == "client_update" and algorithm.static_downlink:
            continue
        if hook == "client_update" and not overrides(type(algorithm), "server_update"):
            raise toy.broken(
                "client_update returns a message, but the class does not override server_update",
                "override server_update, or return None from client_update",
            )
        if not _differs(before, hook, t):
            raise toy.broken(
                f"the values that {hook} returns have no effect on {side}",
                "use the uploads `ups` in server_update to compute the new server.state"
                if hook == "client_update"
                else "load the values into client.net in client_receive, or use `down` in client_update",
            )


def _differs(before: Toy, hook: str, t: int) -> bool:
    """Return whether three rounds from `t` on differ if the messages of this hook hold other values."""
    plain, other = before.fork(), before.fork()
    other.tamper = lambda name, msg: pytree.tree_map(_another, msg) if name == hook else msg
    for later in range(t, t + 3):
        plain.round(later)
        try:
            other.round(later)
        except ContractError:  # a hook failed on the changed values, so it read them
            return True
        if plain.states() != other.states() or plain.server.values != other.server.values:
            return True
    return False


def _another(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        ramp = torch.linspace(0.5, 1.5, leaf.numel(), dtype=leaf.dtype).reshape(leaf.shape)
        return leaf * ramp + ramp
    if isinstance(leaf, Tensor) and leaf.dtype == torch.bool:
        return ~leaf
    return leaf if leaf is None else leaf + 1


def one_client(algorithm: AnyAlgorithm) -> None:
    """A federation of one client runs and stays finite."""
    _finite(algorithm, "one_client", FOUR[:1], ([0], [0], [0]))


def single_samples(algorithm: AnyAlgorithm) -> None:
    """Two clients with a single training sample each run and stay finite."""
    _finite(algorithm, "single_samples", ([0], [3]), ([0, 1], [0, 1]))


def class_gap(algorithm: AnyAlgorithm) -> None:
    """Classes that no client holds, in one round or in all, cause no error, NaN or infinity."""
    _finite(algorithm, "class_gap", GAP, ([0, 1], [0, 1, 2], [0, 1], [2], [0]))


def _finite(algorithm: AnyAlgorithm, clause: str, labels: Labels, cohorts: Sequence[Sequence[ClientId]]) -> None:
    toy = Toy(algorithm, clause, labels).start()
    for t, cohort in enumerate(cohorts, 1):
        already = len(toy.sent)
        toy.round(t, cohort)
        remedy = "divide by a count only where the count is positive, and leave out terms without samples"
        for name, k, msg in toy.sent[already:]:
            if nonfinite(msg):
                raise toy.broken(f"{name} returns NaN or infinity for client {k} in round {t}", remedy)
        for k, net in toy.nets.items():
            if nonfinite(dict(net.state_dict())):
                raise toy.broken(f"the network of client {k} contains NaN or infinity after round {t}", remedy)
        if nonfinite(visible_tensors(toy.server.state)):
            raise toy.broken(f"server.state contains NaN or infinity after round {t}", remedy)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
