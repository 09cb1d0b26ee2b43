"""What the tests of trackers share: a run card, client rows, and an MLflow database that is there already."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raysim.common.results import ClientRow, RunCard
from tests.conftest import empty_database


@pytest.fixture(autouse=True)
def _no_tracking_uri(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_card() -> Callable[..., RunCard]:
    def make(folder: Path, **changes: object) -> RunCard:
        parameters = {f"algorithm.field{i}": i for i in range(130)}
        parameters |= {"data.augment": True, "engine.gpus": None, "notes": "x" * 7000}  # type: ignore[dict-item]
        card: dict[str, object] = {
            "name": "quick",
            "run_id": "r1",
            "folder": folder,
            "parameters": parameters,
            "tags": {"algorithm": "fedgh"},
            "dataset": "digits",
            "dataset_source": "scikit-learn",
            "dataset_digest": "d" * 64,
            "partition_digest": "p" * 64,
            "num_samples": 1797,
            "num_clients": 20,
            "label": "fedgh-s1",
            "facts": {"scenario": "quick", "run_id": "r1", "seed": 1, "folder": str(folder)},
        }
        return RunCard(**{**card, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_rows() -> Callable[[int, int], list[ClientRow]]:
    def make(t: int, count: int) -> list[ClientRow]:
        return [
            ClientRow(
                round=t,
                client=client,
                model="cnn1",
                participated=client % 2 == 0,
                accuracy=0.5,
                correct=9,
                total=18,
                loss=1.25,
                val_correct=7,
                val_total=9,
                global_accuracy=None,
                train_loss=0.75 if client % 2 == 0 else None,
                train_samples=64,
                up_bytes=2**40,
                down_bytes=5,
                up_params=3,
                down_params=1,
                flops=1e12,
                train_s=0.5,
                evaluate_s=0.25,
            )
            for client in range(count)
        ]

    return make


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> str:
    shutil.copy(empty_database(tmp_path_factory), tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"
