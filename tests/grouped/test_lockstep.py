"""Pieces of work that meet where they ask."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raysim.grouped.lockstep import ask, in_lockstep


def test_all_stand_at_their_question_before_any_is_answered() -> None:
    seen: list[Any] = []

    def work(name: str, questions: int) -> str:
        for i in range(questions):
            seen.append(f"{name} asks {i}")
            seen.append(f"{name} hears {ask((name, i))}")
        return name.upper()

    def answer(questions: list[Any]) -> list[str]:
        seen.append(questions)
        return [f"{name}{i}" for name, i in questions]

    # b asks once only, c never.
    assert in_lockstep([lambda: work("a", 2), lambda: work("b", 1), lambda: work("c", 0)], answer) == ["A", "B", "C"]
    assert seen == [
        "a asks 0", "b asks 0", [("a", 0), ("b", 0)],
        "a hears a0", "a asks 1", "b hears b0", [("a", 1)],
        "a hears a1",
    ]  # fmt: skip


def test_each_draws_as_if_it_were_alone() -> None:
    def work(seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        first = torch.rand(()).item()
        ask(None)
        return first, torch.rand(()).item()

    def both(questions: list[Any]) -> list[Any]:
        torch.rand(5)  # the answer may draw, too
        return questions

    alone = [in_lockstep([lambda seed=seed: work(seed)], both)[0] for seed in (1, 2)]  # type: ignore[misc]
    assert in_lockstep([lambda: work(1), lambda: work(2)], both) == alone
    torch.manual_seed(2)
    assert alone[1] == (torch.rand(()).item(), torch.rand(()).item())


def test_an_error_ends_all_and_is_raised() -> None:
    ended: list[str] = []

    def waiting() -> None:
        try:
            ask("anything")
        finally:
            ended.append("the one that waits")

    def failing() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_lockstep([waiting, failing], lambda questions: questions)
    assert ended == ["the one that waits"]
