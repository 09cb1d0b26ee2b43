"""Requirements of the metrics that may end a run (`stop.metric`) or choose tuned values (`tune.select`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from raysim.scenario.schema import Evaluation


class Deciding(NamedTuple):
    """How a metric is measured."""

    part: Literal["train", "val", "test"]  # the part of the samples that measures it
    needs: Literal["", "global_test", "clients"] = ""  # key of `evaluation` that must be set; "": none
    of_all: bool = False  # whether it is an accuracy of all clients on their own samples


DECIDING: Mapping[str, Deciding] = {
    "accuracy/val": Deciding("val", of_all=True),
    "accuracy/val_current": Deciding("val", "clients", of_all=True),
    "accuracy/all": Deciding("test", of_all=True),
    "accuracy/all_current": Deciding("test", "clients", of_all=True),
    "accuracy/participants": Deciding("test"),
    "accuracy/global": Deciding("test", "global_test"),
    "loss/train": Deciding("train"),
    "loss/test": Deciding("test"),
}


def missing_setting(metric: str, evaluation: Evaluation) -> str:
    """Return a missing setting that the metric requires, such as "evaluation.clients: all"; "" if none is missing."""
    needs = DECIDING[metric].needs
    if needs == "global_test" and not evaluation.global_test:
        return "evaluation.global_test: true"
    return "evaluation.clients: all" if needs == "clients" and evaluation.clients != "all" else ""


def rounds_between(metric: str, evaluation: Evaluation) -> int:
    """Return the number of rounds between two measurements of a metric."""
    of = DECIDING[metric]
    if of.part == "train":
        return 1
    often = {"global_test": evaluation.global_every, "clients": evaluation.all_every, "": None}[of.needs]
    return often or evaluation.every
