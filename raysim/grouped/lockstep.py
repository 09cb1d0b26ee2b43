"""Run several functions in lockstep: how the hooks of several clients wait for each other in `Client.fit`.

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
"""Questions, in the order of the pieces of work -> one answer for each."""


def ask(question: Any) -> Any:
    """Ask a question from inside a piece of work: wait until all others ask or have ended, then return the answer."""
    hub = getcurrent().parent
    assert hub is not None
    return hub.switch(question)


def in_lockstep(works: Sequence[Callable[[], T]], answer: Answer) -> list[T]:
    """Run pieces of work to their next question, answer all questions at once, and so on until all have ended.

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
            if let:  # it has begun, but not ended
                let.throw()
        set_random_state(before)
    return [results[i] for i in range(len(works))]
