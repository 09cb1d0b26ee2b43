"""The contract of an algorithm as a program: `check_algorithm(MyMethod())` says which rule it breaks, and where.

It runs the algorithm for a few rounds in a toy world (`toy.py`: C = 4 classes, D = 8, images of 4 x 4 pixels, a handful
of clients with three architectures) and compares what the hooks did with what they may do. Seconds on one CPU, no Ray.
What an algorithm cannot meet it says in an attribute, never by its name: `one_architecture` (whole models are
exchanged) and `static_downlink` (what the server sends is meant never to change).

Shapes: N samples of one client, B batch, C classes, D representation width, H x W pixels.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from raysim.core.algorithm import AnyAlgorithm, ClientId
from raysim.core.compare import (
    differing,
    fingerprint,
    identical,
    modules_in,
    other_random_states,
    random_states_kept,
    visible_tensors,
)
from raysim.core.data import Batch
from raysim.core.fields import settings_fields
from raysim.core.fit import FitJob, FitResult, fit_one, loss_and_rows
from raysim.core.messages import counted, nonfinite, pack, unpack, weights, wire_size
from raysim.core.meter import FlopMeter
from raysim.core.state import Frozen, freeze, modules_of, state_tensors, thaw
from raysim.core.toy import FOUR, GAP, SEED, C, ContractError, Labels, Toy, ToyTransform, toy_samples, toy_seed


def check_algorithm(algorithm: AnyAlgorithm) -> None:
    """Check every clause in turn. Raises `ContractError` at the first that is broken.

    All global random states are left as they were.
    """
    for clause in CLAUSES.values():
        clause(algorithm)


# -- what an algorithm object is ---------------------------------------------------------------------


def frozen(algorithm: AnyAlgorithm) -> None:
    """A frozen dataclass, and no hook changes it or its class."""
    cls = type(algorithm)
    if not is_dataclass(cls) or "__dataclass_fields__" not in vars(cls) or not _is_frozen(cls):
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
    def watch(toy: Toy, name: str, who: ClientId | None, msg: Any) -> Iterator[None]:
        before = attributes()
        yield
        for attribute in differing(before, attributes()):
            raise toy.broken(f"{name} changes {attribute}", "keep state in client.net or server.state")

    Toy(algorithm, "frozen", watch=watch).run(2)


def picklable(algorithm: AnyAlgorithm) -> None:
    """The algorithm and its packed messages survive pickle, and the algorithm survives copying."""
    for way, copied in (
        ("pickle", lambda: pickle.loads(pickle.dumps(algorithm))),
        ("copy", lambda: copy.deepcopy(algorithm)),
    ):
        try:
            same = bool(copied() == algorithm)
        except Exception as error:
            raise ContractError(
                algorithm, "picklable", f"{way} fails ({error})", "keep plain settings in its fields, no open objects"
            ) from error
        if not same:
            raise ContractError(
                algorithm, "picklable", f"its {way} is not equal to it", "keep settings that compare with == in fields"
            )
    toy = Toy(algorithm, "picklable").run(1)
    for name, k, msg in toy.sent:
        packed = pack(msg)
        try:
            back = pickle.loads(pickle.dumps(packed))
        except Exception as error:
            raise toy.broken(
                f"what {name} returns for client {k} cannot be pickled ({error})",
                "a message holds tensors and numbers, in a class at the top of a module",
            ) from error
        if not identical(unpack(back), unpack(packed)):
            raise toy.broken(
                f"what {name} returns for client {k} comes back from pickle as something else",
                "a message holds tensors and numbers only",
            )


def documented(algorithm: AnyAlgorithm) -> None:
    """File, class and every field say what they are, and `paper` says where it comes from."""
    cls = type(algorithm)

    def lacks(what: str, remedy: str) -> ContractError:
        return ContractError(algorithm, "documented", f"it lacks {what}", remedy)

    if not ast.get_docstring(_tree(algorithm, "documented")):
        raise lacks("a docstring at the top of its file", "say the idea, the citation and the protocol there")
    # A dataclass without a docstring is given its signature as one.
    if not cls.__doc__ or cls.__doc__.startswith(f"{cls.__name__}("):
        raise lacks("a docstring under its class", "say in one sentence what it does")
    if not cls.paper:
        raise lacks("a paper", 'write paper: ClassVar[str] = "authors, venue, address"')
    for info in settings_fields(cls):
        if not info.doc:
            raise lacks(f"a docstring under its field {info.name}", "say below the field what it means")


def imports(algorithm: AnyAlgorithm) -> None:
    """Its file needs raysim.core, torch, numpy, scipy and the standard library, and names no device."""
    for node in ast.walk(_tree(algorithm, "imports")):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
            if node.module == "raysim":
                names = [f"raysim.{alias.name}" for alias in node.names]
        line = getattr(node, "lineno", 0)
        for name in names:
            root = name.split(".")[0]
            allowed = root in {"torch", "numpy", "scipy", "__future__"} | sys.stdlib_module_names
            if not allowed and name != "raysim.core" and not name.startswith("raysim.core."):
                raise ContractError(
                    algorithm,
                    "imports",
                    f"its file imports {name} in line {line}",
                    "import only raysim.core, torch, numpy, scipy and the standard library",
                )
        if isinstance(node, ast.Attribute) and node.attr == "num_rounds" and not algorithm.scheduled:
            raise ContractError(
                algorithm,
                "imports",
                f"its file reads num_rounds in line {line}",
                "say scheduled: ClassVar[bool] = True, as a run of it cannot go on for more rounds than it was given",
            )
        device = _names_device(node)
        if device:
            raise ContractError(
                algorithm,
                "imports",
                f"its file says {device} in line {line}",
                "leave devices to the engine, which runs each hook with the right one as the default",
            )


def losses(algorithm: AnyAlgorithm) -> None:
    """Losses reduce with `batch.mean`, read trained tensors through `net`, and take no number out of a tensor."""
    for function in ast.walk(_tree(algorithm, "losses")):
        if isinstance(function, ast.FunctionDef) and (function.name == "loss" or function.name.endswith("_loss")):
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr in ("item", "tolist", "numpy"):
                    raise ContractError(
                        algorithm,
                        "losses",
                        f"{function.name} calls .{node.attr}() in line {node.lineno}",
                        "keep a loss in tensors from end to end, so that clients can be trained together",
                    )

    def checked(job: FitJob) -> FitResult:
        batches = list(job.batches)
        if batches:
            _check_loss(toy, job, batches[0])
        return fit_one(replace(job, batches=batches))

    toy = Toy(algorithm, "losses", trainer=checked)
    toy.run(2)


def _check_loss(toy: Toy, job: FitJob, batch: Batch) -> None:
    """The loss of a batch, with and without two samples of padding, on a copy of the network."""
    net, name = copy.deepcopy(job.net).eval(), getattr(job.loss, "__name__", "loss")
    ones = torch.ones(len(batch.y))

    def loss(seen: Batch, draw: int) -> Tensor:
        with toy_seed("loss", draw):
            return loss_and_rows(replace(job, net=net), seen)[0]

    plain, again = loss(batch, 0), loss(batch, 1)
    trained = [weight for weight in job.net.parameters() if weight.requires_grad]
    outside = torch.autograd.grad(plain, trained, allow_unused=True, retain_graph=True)
    if any(gradient is not None for gradient in outside):
        raise toy.broken(
            f"the loss {name} reads weights of client.net from outside its argument `net`",
            "read every trained tensor through `net`",
        )
    if not torch.equal(plain, again):
        return  # it draws random numbers, and would draw others for a longer batch
    two = torch.arange(2) % len(batch.y)
    padded = Batch(
        torch.cat([batch.x, 1 - batch.x[two]]),
        torch.cat([batch.y, batch.y[two]]),
        torch.cat([batch.index, batch.index[two]]),
        torch.cat([ones, torch.zeros(2)]),
        None if batch.second is None else torch.cat([batch.second, 1 - batch.second[two]]),
    )
    if not torch.allclose(loss(padded, 0), plain, rtol=1e-4, atol=1e-6):
        raise toy.broken(
            f"the loss {name} changes when a batch is padded with samples of weight 0",
            "reduce per-sample losses with batch.mean(...), and not with .mean() or a default reduction",
        )


# -- what hooks may touch ----------------------------------------------------------------------------


def messages(algorithm: AnyAlgorithm) -> None:
    """Messages are `@message` dataclasses or None; they arrive as they were sent and weigh what their tensors do."""
    toy = Toy(algorithm, "messages").run(2)
    for name, k, msg in toy.sent:
        if msg is None:
            continue
        place = f"what {name} returns for client {k}"
        if not is_dataclass(msg) or isinstance(msg, type) or type(msg) not in pytree.SUPPORTED_NODES:
            raise toy.broken(
                f"{place} is a {type(msg).__name__}", "return a dataclass that is declared with @message, or None"
            )
        if not _is_frozen(type(msg)):
            raise toy.broken(f"{place} can be changed", "declare it with @message, which freezes it")
        leaves = [leaf for leaf in pytree.tree_leaves(msg) if leaf is not None]
        for leaf in leaves:
            if not isinstance(leaf, Tensor | bool | int | float):
                raise toy.broken(f"{place} holds a {type(leaf).__name__}", "send tensors and numbers only")
        if not identical(unpack(pack(msg)), msg):
            raise toy.broken(f"{place} does not arrive as it was sent", "send plain dense tensors and numbers")
        if not isinstance(counted(msg), type(msg)):
            raise toy.broken(f"`counted` of {place} is no {type(msg).__name__}", "return the same message, counted so")
        leaves = pytree.tree_leaves(counted(msg))
        size = sum(leaf.nbytes if isinstance(leaf, Tensor) else 8 for leaf in leaves if leaf is not None)
        if wire_size(msg).bytes != size:
            raise toy.broken(
                f"{place} weighs {wire_size(msg).bytes} bytes instead of {size}", "send plain dense tensors"
            )


def own_state_only(algorithm: AnyAlgorithm) -> None:
    """A client hook changes its own client and nothing else, a server hook the server and nothing else."""

    @contextmanager
    def watch(toy: Toy, name: str, who: ClientId | None, msg: Any) -> Iterator[None]:
        before = toy.states()
        yield
        for changed in differing(before, toy.states()):
            if changed != (f"client {who}" if who is not None else "the server's state"):
                place = name + (f" of client {who}" if who is not None else "")
                raise toy.broken(f"{place} changes {changed}", "a hook may change only its own client or server")

    Toy(algorithm, "own_state_only", watch=watch).run(2)


def down_untouched(algorithm: AnyAlgorithm) -> None:
    """`client_receive` and `client_update` leave the server's message as it is; other clients share it."""
    _untouched(algorithm, "down_untouched", ("client_receive", "client_update"), "down", "copy what you want to change")


def ups_untouched(algorithm: AnyAlgorithm) -> None:
    """`server_update` leaves the uploads as they are."""
    _untouched(algorithm, "ups_untouched", ("server_update",), "ups", "sum into a new tensor, for example a clone")


def _untouched(algorithm: AnyAlgorithm, clause: str, hooks: Sequence[str], what: str, remedy: str) -> None:
    @contextmanager
    def watch(toy: Toy, name: str, who: ClientId | None, msg: Any) -> Iterator[None]:
        before = fingerprint(msg) if name in hooks else ""
        yield
        if name in hooks and fingerprint(msg) != before:
            raise toy.broken(f"{name} changes `{what}`", remedy)

    Toy(algorithm, clause, watch=watch).run(2)


# -- one seed, one result ----------------------------------------------------------------------------


def deterministic(algorithm: AnyAlgorithm) -> None:
    """The same seeds give the same states and messages, bit for bit, whatever other generators are at.

    In the second run operations are counted too, which runs each piece of work once more and must leave no trace.
    """
    with random_states_kept(SEED):
        first = Toy(algorithm, "deterministic").run(2)
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        second = Toy(pickle.loads(pickle.dumps(algorithm)), "deterministic", meter=FlopMeter()).run(2)
    for (name, k, one), (_, _, other) in zip(first.sent, second.sent, strict=True):
        if not identical(one, other):
            raise first.broken(
                f"{name} of client {k} sends something else when the run is repeated",
                "draw random numbers with torch in the hook, from client.rng or from server.rng",
            )
    for changed in differing(first.states(), second.states()):
        raise first.broken(
            f"{changed} ends up different when the run is repeated",
            "draw random numbers with torch in the hook, from client.rng or from server.rng",
        )


def any_order(algorithm: AnyAlgorithm) -> None:
    """The result does not depend on which client of a round runs first."""
    forward, backward = Toy(algorithm, "any_order").run(2), Toy(algorithm, "any_order").run(2, reverse=True)
    for changed in differing(forward.states(), backward.states()):
        raise forward.broken(
            f"{changed} depends on the order in which clients run",
            "let client hooks read and write nothing but their client and their message",
        )


def torch_random_only(algorithm: AnyAlgorithm) -> None:
    """Hooks leave the global random states of numpy and of Python alone."""

    @contextmanager
    def watch(toy: Toy, name: str, who: ClientId | None, msg: Any) -> Iterator[None]:
        before = other_random_states()
        yield
        for library, state in other_random_states().items():
            if state != before[library]:
                raise toy.broken(
                    f"{name} draws from the global generator of {library}",
                    "draw with torch (seeded before each hook), from client.rng or from server.rng",
                )

    with random_states_kept(SEED):
        Toy(algorithm, "torch_random_only", watch=watch).run(2)


def state_dict_is_all(algorithm: AnyAlgorithm) -> None:
    """A client is its `state_dict`: loaded into a fresh `client_model`, it goes on exactly as it would have."""
    first = Toy(algorithm, "state_dict_is_all").run(2)
    remedy = "register what must live on as a parameter or buffer of the network that client_model returns"
    second = Toy(pickle.loads(pickle.dumps(algorithm)), "state_dict_is_all")
    for k, net in second.nets.items():
        try:
            net.load_state_dict(weights(first.nets[k]))
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise first.broken(f"client {k}'s state_dict does not fit a fresh client_model ({text})", remedy) from None
    second.server.state = copy.deepcopy(first.server.state)
    first.round(3)
    second.round(3)
    for changed in differing(first.states(), second.states()):
        raise first.broken(f"{changed} ends up different when clients go on from their state_dict", remedy)


def server_state_visible(algorithm: AnyAlgorithm) -> None:
    """All that the server keeps is in `server.state`, in forms that can be stored and put together again."""
    toy = Toy(algorithm, "server_state_visible").run(2)
    try:
        state_tensors(toy.server.state)
    except TypeError as error:
        raise toy.broken(f"server.state cannot be stored ({error})", "keep it in those forms") from None
    extra = set(vars(toy.server)) - {field.name for field in fields(toy.server)}
    if extra:
        raise toy.broken(f"a server hook sets server.{min(extra)}", "keep everything in server.state")
    for module in modules_in(toy.server.state):
        hidden = {name for name, value in vars(module).items() if isinstance(value, Tensor)}
        hidden |= module._non_persistent_buffers_set
        if hidden:
            raise toy.broken(
                f"{type(module).__name__}.{min(hidden)} in server.state is not in its state_dict",
                "register it as a parameter or a persistent buffer",
            )
    second = Toy(algorithm, "server_state_visible").start()
    apart = freeze(toy.server.state)
    stored = Frozen(json.loads(json.dumps(apart.tree)), apart.tensors)
    remedy = "keep modules where server_start puts them, and dataclasses at the top of the algorithm's file"
    try:
        second.server.state = thaw(stored, second.server.state, modules_of(algorithm))
    except ValueError as error:
        raise toy.broken(f"server.state cannot be put together again ({error})", remedy) from None
    second.nets = copy.deepcopy(toy.nets)
    toy.round(3)
    second.round(3)
    for changed in differing(toy.states(), second.states()):
        raise toy.broken(f"{changed} ends up different when the server goes on from a stored server.state", remedy)


def logits(algorithm: AnyAlgorithm) -> None:
    """`client_model` gives an `nn.Module` that can be copied, whose forward gives logits [B, C]."""
    toy = Toy(algorithm, "logits")
    for net in toy.nets.values():
        if not isinstance(net, nn.Module):
            raise toy.broken(f"client_model returns a {type(net).__name__}", "return an nn.Module")
    toy.run(1)
    for k, trained in toy.nets.items():
        for size in (1, 3):
            x = ToyTransform().plain(toy_samples([0, 1, 2][:size], k).raw_NHWC)
            with torch.no_grad():
                found = copy.deepcopy(trained).eval()(x)
            if not isinstance(found, Tensor) or found.shape != (size, C) or not found.is_floating_point():
                shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
                raise toy.broken(
                    f"the network of client_model gives {shape} for {size} images",
                    f"its forward returns logits [B, C], here ({size}, {C})",
                )


# -- how a run goes ----------------------------------------------------------------------------------


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


# -- helpers -----------------------------------------------------------------------------------------


def _is_frozen(cls: type) -> bool:
    return bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _tree(algorithm: AnyAlgorithm, clause: str) -> ast.Module:
    """The parsed file that holds the algorithm's class."""
    try:
        file = inspect.getsourcefile(type(algorithm))
        assert file is not None
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, TypeError, AssertionError):
        raise ContractError(algorithm, clause, "its source cannot be read", "put the algorithm into a file") from None


def _names_device(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute) and node.attr == "cuda":
        return ".cuda"
    if isinstance(node, ast.Attribute) and node.attr == "device" and isinstance(node.value, ast.Name):
        return "torch.device" if node.value.id == "torch" else ""
    if isinstance(node, ast.keyword) and node.arg == "device":
        # Tensors on `meta` have a shape and no values: for what a message is counted as.
        return "" if isinstance(node.value, ast.Constant) and node.value.value == "meta" else "device="
    return ""


CLAUSES: dict[str, Callable[[AnyAlgorithm], None]] = {
    clause.__name__: clause
    for clause in (
        frozen,
        picklable,
        documented,
        imports,
        messages,
        own_state_only,
        down_untouched,
        ups_untouched,
        torch_random_only,
        deterministic,
        any_order,
        logits,
        state_dict_is_all,
        server_state_visible,
        absent_unchanged,
        losses,
        learns,
        downlink_moves,
        one_client,
        single_samples,
        class_gap,
    )
}
"""Every clause by name, in the order they are checked: each takes an algorithm and raises `ContractError`."""
