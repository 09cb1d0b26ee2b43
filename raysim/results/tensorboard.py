"""The tracker for TensorBoard: event files in the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysim.common.results import ClientRow, RunCard, Status


@dataclass
class TensorBoard:
    """Event files in the sub-folder `tensorboard` of the run folder; needs the extra `tensorboard`.

    A resumed run purges the rounds that are computed again, so TensorBoard shows each round once.
    """

    def __post_init__(self) -> None:
        self._writer: Any = None

    def open(self, card: RunCard) -> None:
        """Create an event file."""
        from torch.utils.tensorboard import SummaryWriter

        folder = card.folder / "tensorboard"
        purge = card.first_round if folder.exists() else None
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Write the metrics of round `t` at step `t`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, t)
        self._writer.flush()

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
