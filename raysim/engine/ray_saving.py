"""A commit on its way from the actors to its store, while they go on with the next round."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import ray

from raysim.engine.backend import Files
from raysim.engine.commits import Bytes, Part
from raysim.engine.ray_crew import Crew, Member
from raysim.engine.store import Store

PATIENCE_S = 0.2
"""How long a commit waits for the next round to begin, behind whose work it is asked for."""

LONG_ROUND_S = 20.0
"""Rounds that take so long have their commit whole before the next one's work. What an actor has not written by then,
`writer.IN_FLIGHT` at most, costs it a second; behind that work the commit would wait for a whole long round."""


class Saving:
    """The files of one commit: begun when this is made, written when what `with_server` returns was called.

    An actor that reaches the store writes its clients itself; the files of any other are written here.
    """

    def __init__(self, t: int, store: Store, crew: Crew) -> None:
        """Have all clients written as they are now, after round `t`."""
        self.t, self.store, self.crew = t, store, crew
        self.where = f"the commit of round {t}"
        self._begun: list[tuple[Member, Any]] = []  # when its files are ready to be written
        self._relayed: list[Any] = []  # files of those that do not reach the store
        self._asked: list[Any] = []  # answers of the others: the files, written
        self._lock, self._done = threading.Lock(), threading.Event()  # of asking
        for host in crew.hosts:
            if here := self._reachable(host):
                self._begun.append((host, host.actor.save.remote(t, here)))
            elif crew.far:
                self._relayed.append(host.actor.relay_at_once.remote(t))
            else:
                # A few files at a time: all clients of a node may be more than the object store can hold.
                some = {"num_returns": "streaming", "_generator_backpressure_num_objects": 4}
                self._relayed.append(host.actor.relay.options(**some).remote(t))

    def ask(self) -> None:
        """Ask the actors, once: an answer waits for the disk, so the question is best queued behind other work."""
        with self._lock:
            if not self._done.is_set():
                self._asked = [host.actor.saved.remote(self.t) for host, _ in self._begun]
                self._done.set()

    def with_server(self) -> Files:
        """Have the server written, too, once it has done what it was asked before; what is returned waits for all."""
        return partial(self._files, self.crew.server.actor.save.remote(self.t, self._reachable(self.crew.server)))

    def _files(self, server: Any) -> tuple[list[Part], Part]:
        calls = self.crew.calls
        parts: list[Part] = []
        # First: who relays stands still until its files are taken, and others may wait for a client of its.
        while self._relayed:
            answer = self._relayed.pop(0)
            if self.crew.far:
                parts += [self._written(one) for one in calls.get(answer, self.where)]
            else:
                parts += calls.told(partial(self._all_written, answer), self.where)
        calls.get([begun for _, begun in self._begun], self.where)
        # Called behind the rounds; when no round follows, nobody else asks.
        self._done.wait(PATIENCE_S)
        self.ask()
        answers = calls.in_time(self._asked, self.where)
        parts += [part for written in calls.get(answers, self.where) for part in written]
        return sorted(parts, key=lambda part: part.name), self._written(calls.get(server, self.where))

    def _reachable(self, member: Member) -> Store | None:
        # What is a folder of this machine is not one of another.
        return self.store if self.store.everywhere or member.node == self.crew.here else None

    def _all_written(self, stream: Any) -> list[Part]:
        return [self._written(ray.get(ref)) for ref in stream]

    def _written(self, saved: tuple[Part, Bytes | None]) -> Part:
        """The file of a commit, written here if the actor could not."""
        part, data = saved
        if data is not None:
            self.store.write(part.name, data)
        return part
