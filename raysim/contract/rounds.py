"""Clauses about a few rounds: hooks run, values stay finite, the method learns, and its messages matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raysim.common.errors import RaysimError
from raysim.contract.definition import MAX_ROUNDS
from raysim.contract.toy import FOUR, C, Labels
from raysim.contract.trial import ContractError, Trial
from raysim.core.algorithm import AnyAlgorithm, ClientId, overrides
from raysim.core.messages import leaves, mapped, nonfinite
from raysim.core.robust import RobustMean
from raysim.core.state import state_tensors
from raysim.engine.policies.asynchronous import Flight, Polynomial, UploadBuffer
from raysim.engine.records import NonFiniteUpload

GAP: Labels = ([0, 1] * 4, [1, 0] * 3, [2] * 5)
"""Labels of clients. No client holds class 3, and only the last client holds class 2."""


def runs(algorithm: AnyAlgorithm) -> None:
    """Every hook runs with any set of participants, and the engine accepts all messages, networks and states."""
    _stays_finite(algorithm, "runs", FOUR, ([0, 1, 2, 3], [1, 2], [3], [0, 3]))


def logits(algorithm: AnyAlgorithm) -> None:
    """The network from `client_model` predicts one row of C logits per sample."""
    trial = Trial(algorithm).run(1)
    for k, net in trial.nets.items():
        x_BCHW = trial.samples[k].x[:3]
        with torch.no_grad():
            output = net.eval()(x_BCHW)
        if not isinstance(output, Tensor) or output.shape != (3, C) or not output.is_floating_point():
            got = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            text = f"the network from client_model outputs {got} for a batch of 3 samples; return logits (3, {C}) from"
            raise ContractError(algorithm, "logits", f"{text} the network's `forward`")


def one_client(algorithm: AnyAlgorithm) -> None:
    """A federation of one client runs, and all its values stay finite."""
    _stays_finite(algorithm, "one_client", FOUR[:1], ([0], [0], [0]))


def single_samples(algorithm: AnyAlgorithm) -> None:
    """A federation of two clients with one training sample each runs, and all its values stay finite."""
    _stays_finite(algorithm, "single_samples", ([0], [3]), ([0, 1], [0, 1]))


def class_gap(algorithm: AnyAlgorithm) -> None:
    """Classes that no client holds, in one round or in all rounds, cause no error and no NaN or infinity."""
    _stays_finite(algorithm, "class_gap", GAP, ([0, 1], [0, 1, 2], [0, 1], [2], [0]))


def _stays_finite(algorithm: AnyAlgorithm, clause: str, labels: Labels, cohorts: Sequence[Sequence[ClientId]]) -> None:
    remedy = "divide by a count only where the count is positive, and leave out terms without samples"
    trial = Trial(algorithm, labels, counts=clause == "runs")
    for t, cohort in enumerate(cohorts, 1):
        already = len(trial.sent)
        trial.round(t, cohort)
        trial.backend.count_no_operations()  # other clauses find a hook that fails while its operations are counted
        for name, k, msg in trial.sent[already:]:
            if isinstance(msg, NonFiniteUpload) or nonfinite(msg):
                text = f"{name} returns NaN or infinity for client {k} in round {t}; {remedy}"
                raise ContractError(algorithm, clause, text)
        states = {f"the network of client {k}": net.state_dict() for k, net in trial.nets.items()}
        states["server.state"] = state_tensors(trial.server.state)
        for name, state in states.items():
            if nonfinite(dict(state)):
                raise ContractError(algorithm, clause, f"{name} contains NaN or infinity after round {t}; {remedy}")


def learns(algorithm: AnyAlgorithm) -> None:
    """In eight rounds of an easy task, the loss falls by at least a tenth, and the accuracy rises."""
    trial = Trial(algorithm)
    loss_before, accuracy_before = trial.score()
    loss, accuracy = trial.run(8).score()
    # `not <` also refuses NaN. The loss must fall by a tenth, because receiving a header alone may lower it slightly.
    if not loss < 0.9 * loss_before or not accuracy > accuracy_before:
        raise ContractError(
            algorithm,
            "learns",
            f"in 8 rounds the loss must fall by more than 10% and the accuracy must rise, but the loss went from "
            f"{loss_before:.3g} to {loss:.3g} and the accuracy from {accuracy_before:.0%} to {accuracy:.0%}; check "
            "that client_update calls client.fit, and that the loss trains the network (is its sign right?); if only "
            "the settings are too slow for this task, pass others, as in check_algorithm(MyMethod(rate=0.1))",
        )


def messages_move(algorithm: AnyAlgorithm) -> None:
    """Messages in both directions change from round to round; `static_downlink` exempts those of the server."""
    if algorithm.static_downlink:
        return
    remedies = {
        "server_send": "change these values in server_update. If they are meant to be constant, set static_downlink = "
        "True. If server_update uses an optimizer, check that it updates the parameters that server_send reads",
        "client_update": "upload values that local training changes, and send constant values once, from "
        "client_register",
    }
    trial = Trial(algorithm).run(4)
    for hook, remedy in remedies.items():
        for k in trial.samples:
            sent = [_learnt(msg) for name, to, msg in trial.sent if (name, to) == (hook, k) and msg is not None]
            if len(sent) > 1 and all(_equal(later, sent[0]) for later in sent[1:]):
                text = f"{hook} returned the same values for client {k} in {len(sent)} rounds; {remedy}"
                raise ContractError(algorithm, "messages_move", text)


def _learnt(msg: Any) -> list[Any]:
    """Return the floating-point tensors of a message: round numbers and ids change even if nothing is learned."""
    return [leaf for leaf in leaves(msg) if isinstance(leaf, Tensor) and leaf.is_floating_point()] or [*leaves(msg)]


def _equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, other, strict=True)
    )


@dataclass(frozen=True)
class Nothing:
    """An aggregation rule that ignores the uploads and returns zeros."""

    def combine(self, row_KP: Tensor) -> Tensor:
        return torch.zeros(row_KP.shape[1], dtype=row_KP.dtype)


def averages(algorithm: AnyAlgorithm) -> None:
    """A method with `averages` reads uploads only through the server's means, so that a rule can replace them."""
    if algorithm.averages == "nothing":
        return

    def other_values(hook: str, msg: Any) -> Any:
        return mapped(Tensor, _other_floats, msg) if hook == "client_update" else msg

    robust = RobustMean(Nothing())
    plain, tampered = (Trial(algorithm, robust=robust, tamper=tamper).run(2) for tamper in (None, other_values))
    if plain.states()["server.state"] != tampered.states()["server.state"]:
        text = "a rule of `aggregator` would not protect the server, because server_update also reads uploads elsewhere"
        remedy = "combine uploads only with server.mean or server.class_mean, or do not declare `averages`"
        raise ContractError(algorithm, "averages", f"{text}; {remedy}")


def stale_uploads(algorithm: AnyAlgorithm) -> None:
    """A method that declares `stale_uploads` runs with uploads of earlier rounds, and stays finite.

    It cannot show that a stale upload means the same to the server as a fresh one, for example the same samples.
    """
    if not algorithm.stale_uploads:
        return
    asynchronous = UploadBuffer(buffer=2, discount=Polynomial())
    trial, flight = Trial(algorithm, asynchronous=asynchronous, participants=len(FOUR)), Flight()
    for t in range(1, 7):
        needed_s = 1.0 if t % 2 else 100.0  # in every second round, new clients are slow, so only stale uploads count
        seconds = {k: needed_s for k in trial.samples if k not in flight.arrivals}
        timing = asynchronous.timing(flight, t, seconds)
        flight = timing.flight or flight
        trial.round(t, sorted(seconds), timing)
        if nonfinite(dict(state_tensors(trial.server.state))):
            text = f"server.state contains NaN or infinity after stale uploads in round {t}; do not declare it"
            raise ContractError(algorithm, "stale_uploads", text)


def _other_floats(value: Tensor) -> Tensor:
    return _another(value) if value.is_floating_point() else value


def connected(algorithm: AnyAlgorithm) -> None:
    """Receivers use the messages: if the values in a message are changed, so is the result."""
    cls = type(algorithm)
    expected = {"client_update": "server_update", "server_send": "client_receive"}  # hook -> hook of the receiver
    missing = {hook for hook, receiver in expected.items() if overrides(cls, hook) or overrides(cls, receiver)}
    if not overrides(cls, "server_update"):
        missing.discard("client_update")
    trial, states, last = Trial(algorithm), [], MAX_ROUNDS
    for t in range(1, MAX_ROUNDS + 1):
        states.append(_result(trial.round(t)))
        sent = {hook for hook, _, msg in trial.sent if msg is not None}
        if last == MAX_ROUNDS and missing <= sent:
            last = t + 2
        if t >= last:
            break
    for hook in sorted(missing - sent):
        text = f"{hook} returned no message in {MAX_ROUNDS} rounds, but {expected[hook]} needs one; return a message"
        raise ContractError(algorithm, "connected", text)
    if "client_update" in sent and not overrides(cls, "server_update"):
        text = "client_update returns a message, but the class does not override server_update; override it"
        raise ContractError(algorithm, "connected", f"{text}, or return None from client_update")
    remedies = {
        "client_update": "use the uploads `ups` in server_update to compute the new server.state",
        "server_send": "load the values into client.net in client_receive, or use `down` in client_update",
    }
    for hook in sorted(sent):
        ignored = hook == "client_update" and algorithm.static_downlink
        if not ignored and not _matters(algorithm, hook, states):
            text = f"the values that {hook} returns have no effect on the receiver; {remedies[hook]}"
            raise ContractError(algorithm, "connected", text)


def _matters(algorithm: AnyAlgorithm, hook: str, states: Sequence[Any]) -> bool:
    """Return whether changing all values in the messages of `hook` gives other states than `states`."""
    trial = Trial(algorithm, tamper=lambda name, msg: mapped(Tensor, _another, msg) if name == hook else msg)
    try:
        return any(_result(trial.round(t)) != state for t, state in enumerate(states, 1))
    except RaysimError:  # a hook failed on the changed values, which shows that it read them
        return True


def _result(trial: Trial) -> Any:
    return trial.states(), trial.report.server.values


def _another(value: Tensor) -> Tensor:
    if value.is_floating_point():
        ramp = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).reshape(value.shape)
        return value * ramp + ramp
    return ~value if value.dtype == torch.bool else value + 1
