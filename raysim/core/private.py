"""The mean of a round's uploads with Gaussian noise at the server, and uploads that only this mean may read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Sealed:
    """A tensor of an upload that only a private mean may read, stored as a clipped change of the received tensor."""

    change: Tensor
    reference: Tensor | None  # the tensor that the client received; None: the tensor itself is the change

    def __getattr__(self, name: str) -> NoReturn:
        raise TypeError(
            f"an upload is read outside of server.mean and server.class_mean (.{name}); with `privacy` at the server, "
            "only these may read uploads, because everything else would get past the noise"
        )


@dataclass
class PrivateMean:
    """The sum of the clipped uploads and of Gaussian noise, divided by the expected number of uploads.

    The number of uploads would itself reveal something, so the sum is divided by the number that is expected of a
    round; all clients count alike.
    """

    std: float  # standard deviation of the noise in the sum: noise multiplier times clip
    share: float  # q, the expected share of the clients in a round
    clients: Collection[int]  # all clients that can take part
    rng: torch.Generator
    sent: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # what clients get in this round, for a round without uploads

    def mean(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the private mean of tensors by name. parts: the tensors of each upload.

        Tensors of integers are those of the first upload.
        """
        first: Mapping[str, Any] = parts[0] if parts else {name: Sealed(one, one) for name, one in self.sent.items()}
        expected = self.share * len(self.clients)
        mean = {}
        for name, one in first.items():
            if not isinstance(one, Sealed):
                mean[name] = one
                continue
            total = torch.zeros(one.change.shape, dtype=torch.float64)
            for part in parts:
                total += part[name].change.double()
            change = (total + self._noise(total.shape)) / expected
            mean[name] = (change if one.reference is None else one.reference.double() + change).to(one.change.dtype)
        return mean

    def class_mean(
        self, rows: Mapping[int, Any], classes: Mapping[int, Tensor], num_classes: int, width: int
    ) -> tuple[Tensor, Tensor]:
        """Return the private mean of each class's rows, and the classes that at least one client has.

        rows: of each upload, [S, D], in the order of its client's classes. classes: of all clients.
        """
        owners_C = torch.zeros(num_classes, dtype=torch.float64)
        for k in self.clients:
            owners_C[classes[k]] += 1
        sum_CD = torch.zeros(num_classes, width, dtype=torch.float64)
        for k, row_SD in rows.items():
            sum_CD[classes[k]] += row_SD.change.double()
        known_C = owners_C > 0
        expected_C = torch.where(known_C, self.share * owners_C, 1.0)
        mean_CD = (sum_CD + self._noise(sum_CD.shape)) / expected_C[:, None]
        return torch.where(known_C[:, None], mean_CD, 0.0).float(), known_C

    def _noise(self, shape: torch.Size) -> Tensor:
        return self.std * torch.randn(shape, generator=self.rng, dtype=torch.float64)
