"""NewMethod: the idea in two sentences.

Authors. Venue, year. Address.
Every participant trains its whole network and sends its header; the server averages headers. Replace this.

Shapes: C classes, D representation width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from raysim.core import Algorithm, Client, ClientId, Header, Server, UpdateOf, weights
from raysim.core.fields import Fraction
from raysim.core.ops import cross_entropy, weighted_mean


@dataclass(frozen=True)
class NewMethod(Algorithm[Header, Header, Header]):
    """What the method does, in one sentence.

    The three types are the message that the server sends, the message that a client sends, and `server.state`.
    """

    paper: ClassVar[str] = "authors, venue, address"

    step: Fraction = 1.0
    """How far the server's header moves towards the mean of the participants' headers; 1: it becomes this mean."""

    def server_start(self, server: Server[Header], registrations: Mapping[ClientId, Any]) -> Header:
        return Header(weights(server.task.new_header()))

    def server_send(self, server: Server[Header], to: ClientId) -> Header:
        return server.state

    def client_receive(self, client: Client, down: Header) -> None:
        client.net.header.load_state_dict(down.w)

    def client_update(self, client: Client, down: Header | None) -> Header:
        client.fit(cross_entropy)
        return Header(weights(client.net.header))

    def server_update(self, server: Server[Header], ups: Mapping[ClientId, Header]) -> None:
        mean = weighted_mean((server.num_samples[k], up.w) for k, up in ups.items())
        server.state = Header(weighted_mean([(1 - self.step, server.state.w), (self.step, mean)]))

    def exposed(self, client: Client, up: Header) -> UpdateOf:
        """What the server learns from one upload, for attacks such as `examples/leaks.py`."""
        return UpdateOf(client.net.header, up.w)
