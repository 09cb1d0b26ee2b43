"""The three kinds of declaration that `Algorithm.exposed` may return for an upload.

`examples/leaks.py` builds the attacker's model of the client from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysim.core.fit import Loss
from raysim.core.messages import Weights


@dataclass(frozen=True)
class UpdateOf:
    """The upload contains trained parameters. The server knew their earlier values, so it learns a gradient.

    >>> from raysim.core import UpdateOf
    >>> def exposed(self, client, up):  # of a method that uploads its header
    ...     return UpdateOf(client.net.header, up.w)
    """

    part: nn.Module  # a module of `client.net`, or all of it
    after: Weights  # name -> parameter of `part` after training; NaN: a number that is not sent
    loss: Loss | None = None  # a simpler loss of these parameters than the loss given to `client.fit`


@dataclass(frozen=True)
class OutputOf:
    """The upload contains the output of a function of `client.net` for the client's only sample.

    >>> from raysim.core import OutputOf
    >>> def exposed(self, client, up):  # of a method that uploads the mean representation of each class
    ...     return OutputOf(client.net.features, up.mean_SD)
    """

    function: Callable[[Tensor], Tensor]  # sample [1, ...] -> [1, ...], differentiable
    value: Tensor  # the output in the upload, in any shape


@dataclass(frozen=True)
class Unexposed:
    """The upload contains nothing that an attack could match with a single sample.

    >>> from raysim.core import Unexposed
    >>> def exposed(self, client, up):  # of FedMD
    ...     return Unexposed("uploads logits of public samples only")
    """

    reason: str  # continues a sentence after the method's name: "uploads logits of public samples only"


Exposed = UpdateOf | OutputOf | Unexposed


def known_at(where: Tensor | tuple[slice, ...], value: Tensor, like: Tensor) -> Tensor:
    """Return a tensor like `like` with `value` at the positions `where`, and NaN, meaning not sent, elsewhere."""
    known = torch.full_like(like, torch.nan)
    known[where] = value
    return known
