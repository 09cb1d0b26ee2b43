"""What an upload exposes of a client's samples: the three answers that `Algorithm.exposed` may give.

`raysim attack` builds the attacker's model of the client from the answer.
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
    """The upload tells parameters after local training. The server knew them before, so it knows a gradient."""

    part: nn.Module  # of `client.net`, or all of it
    after: Weights  # parameters of `part` by name, as the upload tells them; NaN: a number that it does not tell
    loss: Loss | None = None  # what trains these parameters, if it is simpler than the loss given to `client.fit`


@dataclass(frozen=True)
class OutputOf:
    """The upload tells what a function of `client.net` gives for the client's only sample."""

    function: Callable[[Tensor], Tensor]  # sample [1, ...] -> [1, ...], differentiable
    value: Tensor  # as the upload tells it, in any shape


@dataclass(frozen=True)
class Unexposed:
    """The upload tells nothing that `raysim attack` could match with a single sample."""

    reason: str  # goes on after the method's name: "uploads logits of public samples only"


Exposed = UpdateOf | OutputOf | Unexposed


def known_at(where: Tensor, value: Tensor, like: Tensor) -> Tensor:
    """A tensor of the shape of `like` of which only the entries at `where` are known: NaN elsewhere."""
    known = torch.full_like(like, torch.nan)
    known[where] = value
    return known
