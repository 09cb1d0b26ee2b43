"""The data that the trackers of a run receive when it begins and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raysim.common.results import RunCard, Summary, written
from raysim.common.text import shortened
from raysim.engine.progress import Progress
from raysim.runs.code import versions
from raysim.runs.identity import Identity
from raysim.runs.plan import RunData
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import decides, short_overrides


def card_of(scenario: Scenario, data: RunData, identity: Identity, folder: Path, first_round: int = 0) -> RunCard:
    """Return the card that trackers receive when a run begins. first_round: the first round that they receive."""
    able = set(np.flatnonzero(data.partition.train.size_N).tolist()) - scenario.held_out  # clients that can take part
    dataset, public = data.dataset, data.public.digest if data.public else ""
    # The tag of overrides omits keys with their own tags, and keys that do not affect the result.
    tagged = ("algorithm.name", "seed")
    deciding = [(key, value) for key, value in identity.overrides.items() if key not in tagged and decides(key)]
    overridden = " ".join(written(deciding))
    label = " ".join([f"{scenario.method}-s{scenario.seed}", *short_overrides(identity.overrides).values()])
    return RunCard(
        name=scenario.name,
        run_id=identity.run_id,
        folder=folder,
        parameters=scenario.flat(),
        tags={
            "algorithm": scenario.method,
            "dataset": dataset.name,
            "partition": scenario.resolved["data"]["partition"]["name"],
            "clients": str(scenario.clients.number),
            "seed": str(scenario.seed),
            **({"overridden": overridden} if overridden else {}),
            **identity.code.tags(),
        },
        dataset=dataset.name,
        dataset_source=dataset.source,
        dataset_digest=data.digest,
        partition_digest=data.partition.digest,
        num_samples=len(dataset.label_M),
        num_clients=scenario.clients.number,
        label=shortened(label, 120),  # names have little room in figures
        facts={
            "scenario": scenario.name,
            "algorithm": scenario.algorithm_name,
            "method": scenario.method,
            "run_id": identity.run_id,
            "seed": scenario.seed,
            "overrides": identity.overrides,
            "backend": scenario.backend,
            "rounds_asked": scenario.rounds,
            "clients": scenario.clients.number,
            **({} if scenario.malicious is None else {"malicious_clients": sorted(scenario.malicious.clients)}),
            **({"held_out_clients": sorted(scenario.held_out)} if scenario.held_out else {}),
            "participants_per_round": min(scenario.participants, len(able)),
            "dataset": {"name": dataset.name, "source": dataset.source, "digest": dataset.digest},
            **({"public_digest": public} if public else {}),  # digest of another data set with public samples
            "partition_digest": data.partition.digest,
            "inputs": data.inputs,
            "versions": versions(),
            "code": identity.code_facts(),
            "folder": str(folder),
        },
        first_round=first_round,
    )


def summary_of(progress: Progress, checkpoint: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> Summary:
    """Return the summary that trackers receive when a run ends. checkpoint: the last one. facts: of this process."""
    client_rounds = max(1, progress.client_rounds)
    up, down = sum(progress.up_components.values()), sum(progress.down_components.values())
    return {
        "rounds": progress.rounds,
        "ended_early": progress.ended_early or None,
        "best_round": progress.best_round,
        "best_val_round": progress.best_val_round,
        "best_val": None if progress.best_val_round is None else progress.best_val,
        "final": dict(progress.final),
        "up_bytes_per_participant": up / client_rounds,
        "down_bytes_per_participant": down / client_rounds,
        "up_bytes_by_field": progress.up_components,
        "down_bytes_by_field": progress.down_components,
        "uploads": progress.uploads,
        "rejected_uploads": progress.rejected,
        "diverged_clients": len(progress.diverged),
        "failed_clients": progress.failed,
        "dropped_clients": int(progress.totals.get("dropped", 0)),
        "restarts": progress.restarts,
        "checkpoint": checkpoint,
        "state_digest": facts.get("state_digest"),
        "error": facts.get("error"),
        "actors": facts.get("actors", 0),
        "startup": facts.get("startup"),
        "seconds": {"total": facts["seconds"], "before_resume": progress.before_s, **progress.seconds},
    }
