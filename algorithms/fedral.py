"""FedRAL: all clients train a square matrix between extractor and header, and only its diagonal blocks are sent.

Yi, Yu, Wang, Liu, Li. Federated Representation Angle Learning, ICCV 2025.
A participant adds the product of each representation with the matrix to the representation, trains extractor, matrix
and header together, and sends the diagonal blocks of the matrix. The server averages them; entries outside all blocks
become zero.

Shapes: B batch, D representation width, E entries of the matrix in a message.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from raysim.core import Algorithm, Client, ClientId, Positive, Server, Task, UpdateOf, message
from raysim.core.exposed import known_at
from raysim.core.ops import cross_entropy

SIDE = 5
"""Default side of a block. With a width of 500 on CIFAR-100, this gives the 2,500 numbers of the paper."""


@message
class Matrix:
    """Entries of the square matrix, row by row: all entries, or those inside the blocks."""

    entry_E: Tensor
    blocks: tuple[int, ...] = ()  # numbers of blocks, whose masks' union is sent; (): one number for all clients


class Angled(nn.Module):
    """A client's own model, with the square matrix between extractor and header."""

    def __init__(self, model: Any, width: int, inference: str, train_matrix: bool) -> None:
        super().__init__()
        self.model = model
        self.inference = inference
        self.matrix_DD = nn.Parameter(torch.zeros(width, width), requires_grad=train_matrix)
        self.blocks: Tensor
        self.register_buffer("blocks", torch.ones((), dtype=torch.int64))  # number of blocks of this client
        self.received_DD: Tensor
        if inference == "global":
            self.register_buffer("received_DD", torch.zeros(width, width))

    def features(self, x: Tensor) -> Tensor:
        """Return the representation [B, D], before the matrix."""
        return self.model.features(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        feature_BD = self.features(x)
        matrix_DD: Tensor | None = self.matrix_DD
        if not self.training:
            matrix_DD = self.matrix_of_predictions()
        if matrix_DD is not None:
            feature_BD = feature_BD + feature_BD @ matrix_DD  # Eq. A
        return self.model.header(feature_BD)

    def matrix_of_predictions(self) -> Tensor | None:
        """Return the matrix with which the client predicts; None: no matrix."""
        if self.inference == "none":
            return None
        if self.inference == "global":
            return self.received_DD
        if self.inference == "sparse":
            return self.matrix_DD * block_mask(len(self.matrix_DD), int(self.blocks))
        return self.matrix_DD


@dataclass(frozen=True)
class FedRAL(Algorithm[Matrix, Matrix, Matrix]):
    """Share the diagonal blocks of a trainable matrix A. The header reads f + f A for a representation f."""

    paper: ClassVar[str] = "Yi et al., ICCV 2025: Federated Representation Angle Learning"
    stale_uploads = True

    blocks: Annotated[
        int | list[int] | dict[str, int] | None,
        "a whole number, a list of whole numbers, a mapping of architectures to whole numbers, or null",
    ] = None
    """Number of diagonal blocks, of side width / blocks, that a client sends: one number, a list (client k has
    blocks[k % length]), or a number per architecture. `null`: blocks of side 5, or of the next smaller divisor of the
    width."""
    init: Literal["uniform", "zeros", "xavier", "normal"] = "uniform"
    """Distribution of the server's initial matrix: uniform within +-1/sqrt(width), zeros, Xavier uniform, or normal."""
    init_std: Positive | None = None
    """Standard deviation of `init: normal`; `null`: 1/sqrt(width)."""
    matrix_lr: Positive | None = None
    """Learning rate of the matrix (the paper's eta_A); `null`: `training.lr`, because both are 0.01 in the paper."""
    agg: Literal["weighted", "naive"] = "weighted"
    """`weighted`: the mean by sample counts, with zero for entries that a client does not send (Eq. 7). `naive`: the
    plain mean over the clients that send the entry."""
    inference: Literal["dense", "sparse", "global", "none"] = "dense"
    """The matrix with which a client predicts. `dense`: its own. `sparse`: only the blocks of its own. `global`: the
    server's, as received last. `none`: no matrix."""
    train_matrix: bool = True
    """Train the matrix. `false`: keep the matrix that the server sends."""

    @property
    def static_downlink(self) -> bool:
        return not self.train_matrix

    def check(self, task: Task) -> None:
        width = task.feature_dim
        if isinstance(self.blocks, dict):
            unknown = [name for name in task.architectures if name not in self.blocks]
            if unknown:
                raise ValueError(f"blocks: no number given for the model {unknown[0]}; give one for every model")
        if self.blocks == []:
            raise ValueError("blocks: an empty list given; give one number, or one for every model")
        for blocks in self._numbers(task):
            if blocks < 1 or width % blocks:
                divisors = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
                raise ValueError(f"blocks: {blocks} does not divide the feature dimension {width}; allowed: {divisors}")

    def client_model(self, model: Any, task: Task) -> nn.Module:
        return Angled(model, task.feature_dim, self.inference, self.train_matrix)

    def server_start(self, server: Server[Matrix], registrations: Mapping[ClientId, Any]) -> Matrix:
        width = server.task.feature_dim
        matrix_DD = torch.zeros(width, width)
        if self.init == "uniform":
            matrix_DD.uniform_(-(width**-0.5), width**-0.5)
        elif self.init == "xavier":
            nn.init.xavier_uniform_(matrix_DD)
        elif self.init == "normal":
            matrix_DD.normal_(std=self.init_std or width**-0.5)
        return Matrix(matrix_DD.flatten())

    def server_send(self, server: Server[Matrix], to: ClientId) -> Matrix:
        return server.state

    def client_receive(self, client: Client, down: Matrix) -> None:
        net: Angled = client.net
        matrix_DD = self._dense(down, client.task)
        with torch.no_grad():
            net.matrix_DD.copy_(matrix_DD)
            net.blocks.fill_(self._blocks(client))
            if self.inference == "global":
                net.received_DD.copy_(matrix_DD)

    def client_update(self, client: Client, down: Matrix | None) -> Matrix:
        client.fit(cross_entropy, rates={} if self.matrix_lr is None else {"matrix_DD": self.matrix_lr})
        matrix_DD = client.net.matrix_DD.detach()
        # Eq. C
        return Matrix(matrix_DD[block_mask(len(matrix_DD), self._blocks(client))])

    def server_update(self, server: Server[Matrix], ups: Mapping[ClientId, Matrix]) -> None:
        width = server.task.feature_dim
        sum_DD = torch.zeros(width, width, dtype=torch.float64)
        count_DD = torch.zeros(width, width)
        total = sum(server.num_samples[k] for k in ups)
        numbers = []
        for k, up in ups.items():
            blocks = width * width // len(up.entry_E)  # width^2 / blocks entries were sent
            mask_DD = block_mask(width, blocks)
            weight = server.num_samples[k] / total if self.agg == "weighted" else 1.0
            # Eq. 7. For Eq. D, the sum is divided by the number of senders further below.
            sum_DD[mask_DD] += weight * up.entry_E.double()
            count_DD += mask_DD
            numbers.append(blocks)
        mean_DD = sum_DD if self.agg == "weighted" else sum_DD / count_DD.clamp(min=1)
        mean_DD = mean_DD.float()
        sent = mean_DD[count_DD > 0]
        server.state = Matrix(sent, tuple(sorted(set(numbers))) if isinstance(self.blocks, list | dict) else ())
        server.log("matrix_norm", float(torch.linalg.vector_norm(sent)))

    def exposed(self, client: Client, up: Matrix) -> UpdateOf:
        matrix_DD = client.net.matrix_DD
        mask_DD = block_mask(len(matrix_DD), self._blocks(client))
        return UpdateOf(client.net, {"matrix_DD": known_at(mask_DD, up.entry_E, like=matrix_DD)})

    def _dense(self, msg: Matrix, task: Task) -> Tensor:
        """Return the matrix [D, D] of a message, with zeros outside the sent blocks."""
        width = task.feature_dim
        if len(msg.entry_E) == width * width:
            return msg.entry_E.view(width, width)
        numbers = msg.blocks or tuple(self._numbers(task))
        union_DD = torch.stack([block_mask(width, blocks) for blocks in numbers]).any(0)
        matrix_DD = torch.zeros(width, width)
        matrix_DD[union_DD] = msg.entry_E
        return matrix_DD

    def _blocks(self, client: Client) -> int:
        """Return m_k, the number of blocks that this client sends."""
        if isinstance(self.blocks, dict):
            return self.blocks[client.arch]
        numbers = self._numbers(client.task)
        return numbers[client.id % len(numbers)]

    def _numbers(self, task: Task) -> list[int]:
        """Return every number of blocks that clients in this task can have."""
        if self.blocks is None:
            side = max(side for side in range(1, SIDE + 1) if task.feature_dim % side == 0)
            return [task.feature_dim // side]
        if isinstance(self.blocks, dict):
            return [self.blocks[name] for name in task.architectures]
        return self.blocks if isinstance(self.blocks, list) else [self.blocks]


def block_mask(width: int, blocks: int) -> Tensor:
    """Return the mask [D, D] of a matrix's diagonal blocks.

    Entry (i, j) is in a block if floor(i * blocks / width) = floor(j * blocks / width).
    """
    block_D = torch.arange(width) * blocks // width
    # Eq. B
    return block_D[:, None] == block_D[None, :]
