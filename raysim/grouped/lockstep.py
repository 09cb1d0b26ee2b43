"""Runs several functions in lockstep. The hooks of several clients wait in `Client.fit` for each other this way.

A piece of work is a plain function that calls `ask` on the way. Each runs in a greenlet, with its own stack in the same
thread, so hooks need no changes. Only one runs at a time; they take turns in the given order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from greenlet import getcurrent, greenlet

from raysim.core.accelerator import random_state, set_random_state

T = TypeVar("T")
Answer = Callable[[list[Any]], Sequence[Any]]
"""Function from the questions of all pieces of work, in order, to their answers."""


def ask(question: Any) -> Any:
    """Ask a question inside a piece of work, wait until the others have asked or ended, and return the answer."""
    hub = getcurrent().parent
    assert hub is not None
    return hub.switch(question)


def in_lockstep(works: Sequence[Callable[[], T]], answer: Answer) -> list[T]:
    """Run pieces of work until each asks a question or ends, answer all questions at once, and repeat until all end.

    Each piece has its own state of torch's global generators: its draws affect neither the other pieces nor the caller.
    Raises the first exception of a piece; the other pieces then end where they wait.
    """
    results: dict[int, T] = {}
    lets = [greenlet(work) for work in works]
    asked: dict[int, Any] = dict.fromkeys(range(len(works)))
    state: dict[int, list[torch.Tensor]] = {}
    before = random_state()
    try:
        while asked:
            questions: dict[int, Any] = {}
            for i, reply in asked.items():
                if i in state:
                    set_random_state(state[i])
                got = lets[i].switch(reply) if i in state else lets[i].switch()
                if lets[i].dead:
                    results[i] = got
                else:
                    questions[i], state[i] = got, random_state()
            replies = answer(list(questions.values())) if questions else ()
            asked = dict(zip(questions, replies, strict=True))
    finally:
        for let in lets:
            if let:  # the work has begun, but has not ended
                let.throw()
        set_random_state(before)
    return [results[i] for i in range(len(works))]
