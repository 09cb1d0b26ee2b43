"""Several pieces of work, each as far as it comes alone, then all together: how clients' hooks meet in `Client.fit`.

A piece of work is a plain function that calls `ask` in the middle. Each runs in a greenlet: a stack of its own in the
same thread, so that hooks need not know of it. No two run at a time; they take turns in the order given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from greenlet import getcurrent, greenlet

T = TypeVar("T")
Answer = Callable[[list[Any]], Sequence[Any]]
"""What is asked for, in the order of the pieces of work -> an answer to each."""


def ask(question: Any) -> Any:
    """From inside a piece of work: wait until all others ask or have ended, and return the answer to the question."""
    hub = getcurrent().parent
    assert hub is not None
    return hub.switch(question)


def in_lockstep(works: Sequence[Callable[[], T]], answer: Answer) -> list[T]:
    """Run pieces of work to their next question, answer all questions at once, and so on until all have ended.

    Each has torch's global generators to itself: what one draws does not move another's, nor the caller's. Raises what
    the first of them raises; the others then end where they stand.
    """
    results: dict[int, T] = {}
    lets = [greenlet(work) for work in works]
    asked: dict[int, Any] = dict.fromkeys(range(len(works)))
    state: dict[int, list[torch.Tensor]] = {}
    before = _random_state()
    try:
        while asked:
            questions: dict[int, Any] = {}
            for i, reply in asked.items():
                if i in state:
                    _set_random_state(state[i])
                got = lets[i].switch(reply) if i in state else lets[i].switch()
                if lets[i].dead:
                    results[i] = got
                else:
                    questions[i], state[i] = got, _random_state()
            replies = answer(list(questions.values())) if questions else ()
            asked = dict(zip(questions, replies, strict=True))
    finally:
        for let in lets:
            if let and not let.dead:
                let.throw()
        _set_random_state(before)
    return [results[i] for i in range(len(works))]


def _random_state() -> list[torch.Tensor]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def _set_random_state(state: list[torch.Tensor]) -> None:
    torch.set_rng_state(state[0])
    if state[1:]:
        torch.cuda.set_rng_state_all(state[1:])
