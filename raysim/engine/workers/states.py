"""Storage of clients' states as bytes in a file. A state is in a network only while its client is used.

A client's state is a row of the file: the memory of its network's parameters and buffers, bit for bit. A few networks
of each architecture are filled with one client's row after another, so a client costs no Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from operator import is_

import numpy as np
import torch
from torch import Tensor, UntypedStorage, nn

from raysim.common.errors import RunError
from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights
from raysim.core.state import form_of
from raysim.core.torch_workarounds import count_hooks
from raysim.engine.workers.state_files import Row, Rows, StateFiles

ALIGNMENT = 64  # bytes, the same as torch's: another alignment may select another kernel


class Shell:
    """A network whose parameters and buffers are in one block of memory. One client after another uses it.

    Tensors keep their shapes and strides, and tensors that shared memory still share it.

    Attributes:
        block: the memory: first the client's row, then the buffers that a state_dict leaves out.
        row: the part of `block` that is the client's state.
        state: the network's state_dict; valid while the shell is intact.
    """

    def __init__(self, net: nn.Module) -> None:
        """net: a new network, which only this shell may use."""
        self.net = net
        parameters = self.net.named_parameters(remove_duplicate=False)
        known = {name for name, _ in (*parameters, *self.net.named_buffers(remove_duplicate=False))}
        if unknown := self.net.state_dict().keys() - known:
            raise RunError(
                f"{type(self.net).__name__}: its state_dict holds {min(unknown)}, which is neither a parameter nor a "
                "buffer; remove it, because a client's network may contain only parameters and buffers"
            )
        self.form = form_of(self.net.state_dict())
        self.modules = [*self.net.modules()]
        self.hooks = count_hooks(self.modules)
        # A method may replace these parameters, buffers and submodules of a module.
        self.parts = [part for one in self.modules for part in (one._parameters, one._buffers, one._modules)]
        self.values = [value for part in self.parts for value in part.values()]
        tensors = list({id(value): value for value in self.values if isinstance(value, Tensor)}.values())
        self.grads = [(tensor, tensor.requires_grad) for tensor in tensors if isinstance(tensor, nn.Parameter)]
        kept = _storages(value for value in self.net.state_dict().values() if isinstance(value, Tensor))
        storages = kept | _storages(tensors)
        ends = [0, *accumulate(padded(storage.nbytes()) for storage in storages.values())]
        self.block: Row = torch.empty(ends[-1], dtype=torch.uint8, device="cpu").numpy()
        self.row = self.block[: ends[len(kept)]]
        self.remote: list[tuple[Tensor, Tensor]] = []  # on a GPU: (bytes on the GPU, the same bytes in `block`)
        places: dict[int, UntypedStorage] = {}
        for (pointer, storage), begin in zip(storages.items(), ends, strict=False):
            there = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            here = torch.frombuffer(self.block[begin : begin + storage.nbytes()], dtype=torch.uint8)
            here.copy_(there)
            if storage.device.type == "cpu":
                places[pointer] = here.untyped_storage()
            else:
                self.remote.append((there, here))
        for tensor in tensors:
            if (place := places.get(tensor.untyped_storage().data_ptr())) is not None:
                whole = torch.empty(0, dtype=tensor.dtype)
                tensor.data = whole.set_(place, tensor.storage_offset(), tensor.shape, tensor.stride())
        self.state = self.net.state_dict()
        self.pointers = [(tensor, tensor.data_ptr()) for tensor in tensors]

    def load(self, state: Weights) -> None:
        """Load a state as `load_state_dict` of the network does, but three times as fast."""
        if form_of(state) == self.form:
            for name, value in self.state.items():
                value.copy_(state[name])
        else:
            self.net.load_state_dict(state)  # raises an error with the reason why it does not fit

    def filled(self) -> None:
        """Update the network from `block`, and reset gradients and modes that the previous client has changed."""
        for there, here in self.remote:
            there.copy_(here)
        for parameter, requires_grad in self.grads:
            parameter.grad = None
            if parameter.requires_grad is not requires_grad:
                parameter.requires_grad_(requires_grad)
        for module in self.modules:
            if not module.training:
                module.training = True

    def collected(self) -> None:
        """Update `block` from the network."""
        for there, here in self.remote:
            here.copy_(there)

    @property
    def intact(self) -> bool:
        """Whether the network still uses the tensors of `block`; a method may have replaced them."""
        values = [value for part in self.parts for value in part.values()]
        return (
            len(values) == len(self.values)
            and all(map(is_, values, self.values))
            and all(tensor.data_ptr() == pointer for tensor, pointer in self.pointers)
        )

    @property
    def is_hooked(self) -> bool:
        """Whether a method left a torch hook on the network, which would affect the next client."""
        return count_hooks(self.modules) > self.hooks


class ClientStates:
    """The states of the clients that a worker holds.

    Attributes:
        held: clients that have a row; all others are in their initial state.
        unsaved: clients that changed since the last checkpoint.
    """

    def __init__(
        self,
        models: Sequence[str],
        clients: int,
        make: Callable[[str], nn.Module],
        own: Callable[[ClientId], nn.Module] | None = None,
        files: StateFiles | None = None,
    ) -> None:
        """The architectures; client k has models[k % len(models)].

        make: makes the network of an architecture, with the clients' common initial weights.
        own: makes the network of a client, if initial weights differ between clients.
        files: where to keep rows; default: new files.
        """
        self.models, self.clients, self.make, self.own = models, clients, make, own
        self.held: set[ClientId] = set()
        self.unsaved: set[ClientId] = set()
        self.opened: dict[ClientId, Shell] = {}
        self.free: dict[str, list[Shell]] = {arch: [] for arch in models}
        self.first: dict[str, Row] = {}  # architecture -> row of a client in its initial state
        self.files = files or StateFiles()

    def arch(self, k: ClientId) -> str:
        """Return the architecture of client k."""
        return self.models[k % len(self.models)]

    def is_untrained(self, k: ClientId) -> bool:
        """Return whether client k is in the initial state that all clients of its architecture share.

        It never is if every client draws its own initial weights.
        """
        return not (self.own or k in self.held or k in self.opened)

    # -- networks ----------------------------------------------------------------------------------

    def open(self, k: ClientId) -> nn.Module:
        """Return the network of client k, for use until `close` or `undo`; if it is open already, the same network."""
        if k not in self.opened:
            shell = self._shell(self.arch(k))
            kept = len(shell.row) if k in self.held else 0
            if kept:
                self.rows.read(self._begin(k), shell.row)
            shell.block[kept:] = self.first[self.arch(k)][kept:]
            shell.filled()
            if k not in self.held and self.own is not None:
                shell.load(self.own(k).state_dict())
            self.opened[k] = shell
        return self.opened[k].net

    def close(self, k: ClientId) -> None:
        """Store the present state of an open client's network, and close the client."""
        shell = self.opened.pop(k)
        if shell.is_hooked:
            raise RunError(
                f"client {k} with model {self.arch(k)}: the method left a torch hook, such as a forward hook, on the "
                "client's network, which other clients use too; call remove() of the handle that torch returned"
            )
        if not shell.intact:
            net, form, shell = shell.net, shell.form, self._shell(self.arch(k))
            if (present := form_of(net.state_dict())) != form:
                name = min(name for name, _ in present.items() ^ form.items())
                raise RunError(
                    f"client {k} with model {self.arch(k)}: a hook added or removed {name} in the client's network, or "
                    "changed its shape or type; create all parameters, buffers and modules in client_model"
                )
            shell.load(net.state_dict())
        shell.collected()
        self.put(k, shell.row)
        self.unsaved.add(k)
        self.free[self.arch(k)].append(shell)

    def undo(self, k: ClientId) -> None:
        """Close an open client, and drop changes of its network."""
        shell = self.opened.pop(k)
        if shell.intact and not shell.is_hooked:
            self.free[self.arch(k)].append(shell)

    @contextmanager
    def changing(self, k: ClientId) -> Iterator[nn.Module]:
        """Yield the network of client k, and store its state after the block, unless the block raises."""
        net = self.open(k)
        try:
            yield net
        except BaseException:
            self.undo(k)
            raise
        self.close(k)

    @contextmanager
    def reading(self, k: ClientId) -> Iterator[nn.Module]:
        """Yield the network of client k; changes are dropped."""
        was_open = k in self.opened
        net = self.open(k)
        try:
            yield net
        finally:
            if not was_open:
                self.undo(k)

    def state(self, k: ClientId) -> Weights:
        """Return a copy of the state_dict of client k."""
        with self.reading(k) as net:
            shell = self.opened[k]
            state = shell.state if shell.intact else net.state_dict()
            return {name: value.clone() for name, value in state.items()}

    def load(self, k: ClientId, state: Weights) -> None:
        """Set the state_dict of client k."""
        with self.changing(k):
            self.opened[k].load(state)

    # -- rows --------------------------------------------------------------------------------------

    def row(self, k: ClientId) -> Row | None:
        """Return a copy of the row of client k; None if the client is in its initial state."""
        if k not in self.held:
            return None
        row: Row = np.empty(self._size(k), dtype=np.uint8)
        self.rows.read(self._begin(k), row)
        return row

    def put(self, k: ClientId, row: Row | None) -> None:
        """Set the row of client k; None: reset it to its initial state."""
        if row is None:
            self.held.discard(k)
        elif len(row) != self._size(k):
            raise RunError(
                f"client {k} with model {self.arch(k)}: its state has {len(row)} bytes, but {self._size(k)} on this "
                "actor's device; set training.together to 1, or the same gpus_per_actor for all clients of this model"
            )
        else:
            self.rows.write(self._begin(k), row)
            self.held.add(k)

    @cached_property
    def rows(self) -> Rows:
        """The file of the rows."""
        return self.files.rows(self.begins[-1])

    # -- inside ------------------------------------------------------------------------------------

    @torch.inference_mode(False)  # a network that a test creates is trained later
    def _shell(self, arch: str) -> Shell:
        """Return an unused shell of an architecture."""
        if self.free[arch]:
            return self.free[arch].pop()
        shell = Shell(self.make(arch))
        if arch not in self.first:
            self.first[arch] = shell.block.copy()
        return shell

    def _size(self, k: ClientId) -> int:
        return self.sizes[k % len(self.models)]

    def _begin(self, k: ClientId) -> int:
        """Return the position of client k's row in the file."""
        place = k % len(self.models)
        return self.begins[place] + k // len(self.models) * padded(self.sizes[place])

    @cached_property
    def sizes(self) -> list[int]:
        """Size of a row in bytes, for each of `models`."""
        used, size = self.models[: self.clients], {}
        for arch in dict.fromkeys(used):
            shell = self._shell(arch)
            size[arch] = len(shell.row)
            self.free[arch].append(shell)
        return [size[arch] for arch in used]

    @cached_property
    def begins(self) -> list[int]:
        """Positions in the file at which the rows of each of `models` begin, and the end of all rows."""
        counts = [-(-(self.clients - place) // len(self.models)) for place in range(len(self.sizes))]
        return [0, *accumulate(n * padded(size) for n, size in zip(counts, self.sizes, strict=True))]


def padded(size: int) -> int:
    """Return `size`, rounded up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _storages(tensors: Iterable[Tensor]) -> dict[int, UntypedStorage]:
    """Return address -> storage of tensors; each storage occurs once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage for storage in storages if storage.nbytes()}
