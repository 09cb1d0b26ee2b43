"""Workarounds for torch, each with its reason and the condition under which it can be deleted."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from operator import is_
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd


@contextmanager
def _without_triton() -> Iterator[None]:
    """Let an import run as if Triton were not installed.

    Reason: torch's operation counter imports Triton to recognise its kernels. That takes 7 MB in every process, and
    no kernel here is Triton's. Without it the counter logs a warning, which is silenced.
    Delete when: importing `torch.utils.flop_counter` leaves `triton` out of `sys.modules`.
    """
    log = logging.getLogger("torch.utils.flop_counter")
    level, absent = log.level, "triton" not in sys.modules
    if absent:
        sys.modules["triton"] = None  # type: ignore[assignment]
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        if absent:
            del sys.modules["triton"]


with _without_triton():
    from torch.utils import flop_counter
    from torch.utils.flop_counter import FlopCounterMode as FlopCounterMode


def _exempt_from_compilation() -> None:
    """Exempt the dispatch function of torch's operation counter from compilation.

    Reason: torch imports its compiler only to mark this function, which takes 2 s and 140 MB in every process. A
    function that is already marked stays as it is. If a version of torch has the function elsewhere, counting works but
    costs the import.
    Delete when: a `FlopCounterMode` that has counted leaves `torch._dynamo` out of `sys.modules`.
    """
    for mode in vars(flop_counter).values():
        dispatch = vars(mode).get("__torch_dispatch__") if isinstance(mode, type) else None
        function = getattr(dispatch, "__wrapped__", None)
        if function is not None and not hasattr(function, "__dynamo_disable"):
            function.__dict__["__dynamo_disable"] = function


_exempt_from_compilation()


def _count_attention_on_cpus() -> None:
    """Make torch's operation counter count attention on a CPU with the formula for GPUs.

    Reason: torch has no formula for the CPU's kernel and counts it as 0 operations: 5 % too few for `vit_small`.
    Delete when: `flop_registry` contains `aten._scaled_dot_product_flash_attention_for_cpu`.
    """
    registry, kernel = flop_counter.flop_registry, "_scaled_dot_product_flash_attention"
    for end in ("", "_backward"):
        formula = registry.get(getattr(torch.ops.aten, kernel + end))
        if formula is not None:  # if a version of torch lacks the formula, attention is not counted
            registry.setdefault(getattr(torch.ops.aten, f"{kernel}_for_cpu{end}"), formula)


_count_attention_on_cpus()


def _without_vmap_warning() -> None:
    """Silence the warning of `torch.func.vmap` about operations without a batching rule.

    Reason: it comes once per process. Where warnings are errors, the first group of a process would be trained one by
    one, the next ones together, with other rounding. Delete when: pooling under vmap does not warn.
    """
    with suppress(AttributeError):  # if a version of torch has no such switch, the warning stays
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]


_without_vmap_warning()


@contextmanager
def one_thread() -> Iterator[None]:
    """Make torch use one thread during a block, then restore the caller's number of threads.

    Reason: on small tensors, the threads of a parallel region wait for each other. Beside other work on the machine,
    training a small network with all threads takes up to 60 times as long.
    Delete when: torch computes small tensors in the calling thread, whatever the number of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def is_batched(tensor: Tensor) -> bool:
    """Return whether a tensor is one client's part of a batched tensor, inside `torch.func.vmap`.

    Reason: some operations have no batching rule and are decomposed in Python; torch has no public function for this.
    Delete when: `torch.nn.functional.cross_entropy` under vmap takes as long as its parts do, and leaves `sympy` out of
    `sys.modules`: its import takes 0.4 s in every process.
    """
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def without_default_device(device: torch.device) -> AbstractContextManager[None]:
    """Make the calls inside a block ignore a default device that `with device:` set outside the block.

    Reason: with a default device, every call of torch passes through Python. On an H100, this takes a quarter of the
    time of a small network's step. Delete when: a default device costs nothing.
    """
    return _NOTHING if device.type == "cpu" else torch._C.DisableTorchFunction()


_NOTHING = nullcontext()


def repeatable_attention(device: torch.device) -> AbstractContextManager[None]:
    """Make torch compute attention by matrix products during a block on a CUDA device.

    Reason: the gradients of torch's faster kernels are repeatable only if operations without a deterministic kernel are
    errors; with `warn_only=True`, torch warns and adds in any order. Delete when: `warn_only` does not matter to them.
    """
    if device.type != "cuda":
        return _NOTHING
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)


@contextmanager
def waits_for_device() -> Iterator[list[str]]:
    """Yield a list to which each wait of the CPU for a CUDA device inside the block adds an entry.

    Reason: torch reports such waits as warnings only. `warnings.catch_warnings` would make Python repeat every warning
    that it has shown before, so filters and display are replaced directly. Delete when: torch has a function for this.
    """
    found: list[str] = []
    show, mode = warnings.showwarning, torch.cuda.get_sync_debug_mode()

    def note(message: Warning | str, *args: Any, **options: Any) -> None:
        if "called a synchronizing CUDA operation" in str(message):
            found.append(str(message))
        else:
            show(message, *args, **options)

    filters = [
        ("always", re.compile("called a synchronizing CUDA operation"), UserWarning, None, 0),
        ("ignore", re.compile("Synchronization debug mode is a prototype"), UserWarning, None, 0),
    ]
    warnings.filters[:0] = filters  # type: ignore[index]
    warnings.showwarning = note
    try:
        torch.cuda.set_sync_debug_mode("warn")
        yield found
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        warnings.showwarning = show
        for one in filters:
            warnings.filters.remove(one)  # type: ignore[attr-defined]


class Sgd:
    """SGD with momentum and weight decay, by torch's own fused kernel.

    Reason: `torch.optim.SGD` does the same arithmetic, but its first step in a process imports torch's compiler, which
    takes 1.7 s and 70 MB in every actor and is never used here.
    Delete when: the first step of `torch.optim.SGD(..., fused=True)` leaves `torch._dynamo` out of `sys.modules`.
    """

    def __init__(
        self, parameters: Sequence[Tensor], lr: float, momentum: float, weight_decay: float, nesterov: bool = False
    ) -> None:
        self.parameters, self.lr, self.weight_decay = parameters, lr, weight_decay
        self.momentum, self.nesterov = momentum, nesterov
        self.buffers: dict[Tensor, Tensor] = {}  # parameter -> its momentum, after its first update

    @property
    def param_groups(self) -> list[dict[str, Sequence[Tensor]]]:
        """The parameters, in the form that `torch.amp.GradScaler` expects."""
        return [{"params": self.parameters}]

    def zero_grad(self) -> None:
        """Discard all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        fresh: list[Tensor] = []
        moving: list[Tensor] = []
        for parameter in self.parameters:
            if parameter.grad is not None:
                (moving if parameter in self.buffers else fresh).append(parameter)
        for ready in (fresh, moving):
            if not ready:
                continue
            buffers: list[Tensor | None] = [self.buffers.get(parameter) for parameter in ready]
            sgd(
                ready,
                [grad for parameter in ready if (grad := parameter.grad) is not None],
                buffers,
                # One pass over the weights instead of one per term makes a step on a CPU 1.1 to 1.3 times as fast.
                fused=True,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                lr=self.lr,
                dampening=0.0,
                nesterov=self.nesterov,
                maximize=False,
            )
            if self.momentum:
                self.buffers.update(zip(ready, cast(list[Tensor], buffers), strict=True))


Place = tuple[dict[str, Tensor | None], str]


class _Structure:
    """The modules inside a network, and where its tensors are stored. It holds no reference to the network itself.

    Attributes:
        inner: the modules inside the network.
        overrides_train: whether a module overrides `train` and so decides for those inside it.
        places: parameter names, then buffer names -> the places that hold the tensor: several if it is shared.
    """

    def __init__(self, net: nn.Module) -> None:
        modules = [*net.modules()]
        self.inner = modules[1:]
        self.overrides_train = any(type(one).train is not nn.Module.train for one in modules)
        self._children = [(one._modules, [*one._modules.values()]) for one in modules]
        self.places: dict[str, list[Place]] = {}
        names: dict[int, str] = {}
        for kind in ("_parameters", "_buffers"):
            for prefix, module in net.named_modules():
                held: dict[str, Tensor | None] = getattr(module, kind)
                for name, value in held.items():
                    if value is not None:
                        full = names.setdefault(id(value), f"{prefix}.{name}" if prefix else name)
                        self.places.setdefault(full, []).append((held, name))

    @property
    def is_current(self) -> bool:
        """Whether the network still has these modules; a hook may replace one, as in `client.net.header = ...`."""
        return all(len(now) == len(before) and all(map(is_, now.values(), before)) for now, before in self._children)


_structures: WeakKeyDictionary[nn.Module, _Structure] = WeakKeyDictionary()


def _structure_of(net: nn.Module) -> _Structure:
    known = _structures.get(net)
    if known is None or not known.is_current:
        known = _structures[net] = _Structure(net)
    return known


def named_tensors(net: nn.Module) -> dict[str, Tensor]:
    """Return name -> tensor of a network's parameters, then its buffers; shared tensors occur once.

    Reason: torch walks through all modules at every call, which takes as long as a step of a small network. Here the
    walk is done once, and again after a module was assigned. Delete when: `named_parameters` of a perceptron takes a
    few microseconds.
    """
    places = _structure_of(net).places
    return {full: value for full, [(held, name), *_] in places.items() if (value := held[name]) is not None}


@contextmanager
def tensors_replaced(net: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace tensors of a network inside a block. tensors: the new tensors by the names of `named_tensors`.

    Reason: `torch.func.functional_call` works for a network's `forward` only, not for its parts, takes as long as a
    step of a small network, and does not restore a module that the network uses twice. Delete when: none of this
    is true.
    """
    places = _structure_of(net).places
    before = named_tensors(net)
    try:
        for full, value in tensors.items():
            for held, name in places[full]:
                held[name] = value
        yield
    finally:
        for full in tensors:
            for held, name in places[full]:
                held[name] = before[full]


def count_hooks(modules: Iterable[nn.Module]) -> int:
    """Return the number of torch hooks, such as forward hooks, that are registered on modules.

    Reason: torch keeps them in private attributes. Delete when: `nn.Module` has a public list of its hooks.
    """
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        + len(module._backward_hooks) + len(module._backward_pre_hooks)
        for module in modules
    )  # fmt: skip


def set_training(net: nn.Module, training: bool) -> None:
    """Do the same as `net.train(training)`, faster.

    Reason: torch walks through all modules, and sets the attribute through `nn.Module.__setattr__`, which takes a
    noticeable part of a small model's round. Delete when: `nn.Module.train` does neither.
    """
    structure = _structure_of(net)
    if structure.overrides_train:
        net.train(training)
        return
    for module in (net, *structure.inner):
        if module.training is not training:
            object.__setattr__(module, "training", training)


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error reports full memory. Such an error depends on the machine, unlike a failure of a client.

    Reason: torch has a class for a full GPU, but raises a plain `RuntimeError` if it gets no memory on a CPU.
    Delete when: torch raises `MemoryError` or `torch.OutOfMemoryError` then.
    """
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return full or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


@contextmanager
def countable(net: nn.Module) -> Iterator[None]:
    """Make a network compute with operations that torch's counter knows inside a block, although they are slower.

    Reason: torch computes a GRU on a GPU and an LSTM on any device by one operation, and so attention with an even
    number of heads in eval mode on a CPU; its counter has no formula for these and counts 0. Results may differ in
    their last bits, so the block must only count. Delete when: the counter counts an `nn.LSTM`, and an
    `nn.TransformerEncoderLayer` in eval mode, without this.
    """
    if not any(isinstance(one, nn.RNNBase | nn.MultiheadAttention) for one in (net, *_structure_of(net).inner)):
        yield
        return
    cudnn: Any = torch.backends.cudnn  # mypy takes its settings for objects of torch
    mkldnn: Any = torch.backends.mkldnn
    mha = torch.backends.mha
    before = cudnn.enabled, mkldnn.enabled, mha.get_fastpath_enabled()
    try:
        cudnn.enabled, mkldnn.enabled = False, False
        mha.set_fastpath_enabled(False)
        yield
    finally:
        cudnn.enabled, mkldnn.enabled = before[:2]
        mha.set_fastpath_enabled(before[2])


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Set a network to eval mode inside a block, and then restore the mode of each of its modules."""
    before = [(module, module.training) for module in (net, *_structure_of(net).inner)]
    set_training(net, False)
    try:
        yield
    finally:
        set_training(net, before[0][1])  # a module that overrides `train` may have to undo its changes
        for module, training in before:
            if module.training is not training:
                object.__setattr__(module, "training", training)
