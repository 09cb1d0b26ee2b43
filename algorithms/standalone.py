"""Standalone: every client trains alone, and nothing is sent. It is the baseline for all other methods.

The papers call it Standalone or Local-T. Only the sampled participants train in a round, so every client trains for as
many epochs as with the method that is compared with it.
"""

from dataclasses import dataclass
from typing import ClassVar

from raysim.core import Algorithm, Client
from raysim.core.ops import cross_entropy


@dataclass(frozen=True)
class Standalone(Algorithm[None, None, None]):
    """Every client trains alone; nothing is sent."""

    paper: ClassVar[str] = "The baseline of most papers: local training without communication"
    stale_uploads = True

    def client_update(self, client: Client, down: None) -> None:
        client.fit(cross_entropy)  # Eq. A
