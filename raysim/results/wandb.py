"""The tracker for Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raysim.common.results import ClientRow, RunCard, Status


@dataclass
class Wandb:
    """A run in Weights & Biases; needs the extra `wandb`, and `wandb login` unless `mode` is offline.

    Its id is raysim's run id, so a resumed run continues it. Its local files are in the folder `wandb` of the current
    folder, or of the folder in the environment variable WANDB_DIR; `wandb sync` uploads those of an offline run.
    """

    project: str | None = None
    """Project. `null`: the scenario's name."""
    entity: str | None = None
    """User or team. `null`: the default of the account."""
    mode: Literal["online", "offline"] | None = None
    """`offline`: only write local files. `null`: the environment variable WANDB_MODE, else online."""

    def __post_init__(self) -> None:
        self._run: Any = None

    def open(self, card: RunCard) -> None:
        """Create or continue the run."""
        import wandb

        self._run = wandb.init(
            project=self.project or card.name,
            entity=self.entity,
            mode=self.mode,
            id=card.run_id,
            resume="allow",
            reinit="create_new",  # the user's program may have another active run
            name=f"{card.label} {card.run_id}",
            config=dict(card.parameters),
            # `dir` is not set to the run folder, because local files of wandb contain links, which a run folder must
            # not.
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Log the metrics of round `t` at step `t`. Weights & Biases ignores a step that it already has."""
        self._run.log(dict(values), step=t)

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Add the status and the digest of the state to the run's summary, and end the run."""
        if self._run is not None:
            self._run.summary.update({"status": status, "state_digest": summary.get("state_digest")})
            self._run.finish(exit_code=0 if status == "finished" else 1)
