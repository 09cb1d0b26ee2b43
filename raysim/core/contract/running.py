"""How a run goes: it learns, it sends what it learnt, and odd data does not break it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.core.algorithm import AnyAlgorithm, ClientId
from raysim.core.compare import differing, identical, visible_tensors
from raysim.core.messages import nonfinite
from raysim.core.toy import FOUR, GAP, Labels, Toy


def runs(algorithm: AnyAlgorithm) -> None:
    """Every hook runs without an exception, on four clients of different sizes."""
    Toy(algorithm, "runs").run(2)


def absent_unchanged(algorithm: AnyAlgorithm) -> None:
    """A client that takes no part in a round is as it was, and can come back."""
    toy = Toy(algorithm, "absent_unchanged").start()
    for t, cohort in enumerate(([0, 1], [1, 2], [3], [0, 3]), 1):
        before = toy.states()
        toy.round(t, cohort)
        for changed in differing(before, toy.states()):
            if changed != "the server's state" and int(changed.split()[-1]) not in cohort:
                raise toy.broken(
                    f"{changed} changes in a round that client takes no part in",
                    "let hooks change only the client they are given",
                )


def learns(algorithm: AnyAlgorithm) -> None:
    """Over some rounds on an easy task the loss falls, by a tenth at least, and the accuracy rises."""
    toy = Toy(algorithm, "learns").start()
    loss_before, accuracy_before = toy.score()
    for t in range(1, 9):
        toy.round(t)
    loss, accuracy = toy.score()
    # `not <`, so that NaN counts as broken. A tenth: a header that is merely received may be a little better.
    if not loss < 0.9 * loss_before or not accuracy > accuracy_before:
        raise toy.broken(
            f"in 8 rounds the loss went from {loss_before:.3g} to {loss:.3g} and the accuracy from "
            f"{accuracy_before:.0%} to {accuracy:.0%}",
            "client_update should call client.fit with a loss whose gradient reaches the network",
        )


def downlink_moves(algorithm: AnyAlgorithm) -> None:
    """What the server sends changes from round to round, unless the algorithm says `static_downlink`."""
    if getattr(algorithm, "static_downlink", False):
        return
    toy = Toy(algorithm, "downlink_moves").run(4)
    for k in toy.samples:
        sent = [msg for name, who, msg in toy.sent if name == "server_send" and who == k and msg is not None]
        if len(sent) < 2:
            continue
        # Numbers such as the round, and ids, move or stand still for reasons of their own.
        learnt = [[leaf for leaf in pytree.tree_leaves(m) if _is_float(leaf)] or pytree.tree_leaves(m) for m in sent]
        if all(identical(later, learnt[0]) for later in learnt[1:]):
            raise toy.broken(
                f"server_send gave client {k} the same values in {len(sent)} rounds",
                "server_update must change what is sent (does its optimizer own those parameters?), or the "
                "algorithm says static_downlink = True",
            )


def one_client(algorithm: AnyAlgorithm) -> None:
    """A federation of one client runs and stays finite."""
    _finite(algorithm, "one_client", FOUR[:1], ([0], [0], [0]))


def single_samples(algorithm: AnyAlgorithm) -> None:
    """Two clients with a single training sample each run and stay finite."""
    _finite(algorithm, "single_samples", ([0], [3]), ([0, 1], [0, 1]))


def class_gap(algorithm: AnyAlgorithm) -> None:
    """A class that nobody holds, in a round or ever, does no harm."""
    _finite(algorithm, "class_gap", GAP, ([0, 1], [0, 1, 2], [0, 1], [2], [0]))


def _finite(algorithm: AnyAlgorithm, clause: str, labels: Labels, cohorts: Sequence[Sequence[ClientId]]) -> None:
    toy = Toy(algorithm, clause, labels).start()
    for t, cohort in enumerate(cohorts, 1):
        already = len(toy.sent)
        toy.round(t, cohort)
        remedy = "divide by counts only where they are positive, and mask terms that have nothing to say"
        for name, k, msg in toy.sent[already:]:
            if nonfinite(msg):
                raise toy.broken(f"{name} of client {k} sends a NaN or infinity in round {t}", remedy)
        for k, net in toy.nets.items():
            if nonfinite(dict(net.state_dict())):
                raise toy.broken(f"client {k} holds a NaN or infinity after round {t}", remedy)
        if nonfinite(list(visible_tensors(toy.server.state))):
            raise toy.broken(f"server.state holds a NaN or infinity after round {t}", remedy)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
