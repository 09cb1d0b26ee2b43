"""`raysim plot`: every kind from real runs, and one sentence where a run lacks the data."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from raysim.common.errors import ScenarioError
from raysim.results import figures as style
from raysim.runs.opened import OpenedRun
from raysim.runs.run import Run
from raysim.study.pictures import KINDS
from raysim.study.pictures import plot as draw
from tests.cli.command import run
from tests.study.runs import make_run

Runs = Callable[..., Run]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    saved: list[Figure] = []
    save = style.save_picture

    def keep(figure: Figure, file: Path) -> Path:
        saved.append(figure)
        return save(figure, file)

    monkeypatch.setattr(style, "save_picture", keep)
    return saved


def plot(folders: Sequence[Path], kind: str, file: Path, metric: str = "accuracy/all") -> None:
    style.save_picture(draw(list(map(str, folders)), kind, metric=metric), file)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(capfd: pytest.CaptureFixture[str], runs: Runs, tmp_path: Path, kind: str) -> None:
    folders = [str(runs(method).folder) for method in ("fedgh", "standalone")]
    file = tmp_path / f"{kind}.pdf"
    assert run(capfd, "plot", *folders, "--kind", kind, "-o", str(file)) == (0, f"{file}\n", "")
    assert file.read_bytes()[:4] == b"%PDF"


def test_what_is_drawn_is_what_was_measured(runs: Runs, tmp_path: Path, figures: list[Figure]) -> None:
    both = [runs(method) for method in ("fedgh", "standalone")]
    folders = [one.folder for one in both]
    plot(folders, "virtual-time", tmp_path / "a.png")
    lines = figures[-1].axes[0].lines
    assert [line.get_label() for line in lines] == ["fedgh", "standalone"]
    for line, one in zip(lines, both, strict=True):
        shown = one.rounds.dropna(subset=["accuracy/all"]).fillna({"time/virtual_total_s": 0})
        assert line.get_xdata() == pytest.approx(shown["time/virtual_total_s"])
        assert line.get_ydata() == pytest.approx(shown["accuracy/all"])
    plot(folders[:1], "clients", tmp_path / "a.png")
    last = both[0].clients.dropna(subset=["accuracy"]).groupby("client").last()["accuracy"]
    bars = {round(bar.get_x() + 0.4): bar.get_height() for bar in figures[-1].axes[0].patches}
    assert bars == pytest.approx(last.to_dict())
    plot(folders[:1], "curves", tmp_path / "a.png")
    assert len(figures[-1].axes[0].lines) == 3  # all clients, the worst tenth of them, participants


def test_a_study_has_a_band_per_variant_and_short_names_of_architectures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], figures: list[Figure]
) -> None:
    for method, seed in product(("fedgh", "fd"), (1, 2, 3)):
        folder = make_run(tmp_path / "study" / f"{method}{seed}", method, seed, accuracy=(0.1, seed / 10))
    table = pq.read_table(folder / "clients.parquet").to_pandas()
    table["model"] = table["model"].map({"a": "models/net.py:Net", "b": "cnn1"})
    table.to_parquet(folder / "clients.parquet")
    for kind in ("curves", "boxes"):
        code, _, error = run(capfd, "plot", str(tmp_path / "study"), "--kind", kind, "-o", str(tmp_path / "a.png"))
        assert (code, error) == (0, "")
        axes = figures[-1].axes[0]
        if kind == "boxes":
            assert [tick.get_text() for tick in axes.get_xticklabels()] == ["fd", "fedgh"]
        else:
            assert {line.get_label(): line.get_ydata()[-1] for line in axes.lines} == pytest.approx(
                {"fd": 0.2, "fedgh": 0.2}
            )
            assert len(axes.collections) == 2  # bands
    plot([folder], "clients", tmp_path / "a.png")
    assert figures[-1].axes[0].get_legend_handles_labels()[1] == ["Net", "cnn1"]


def test_the_confusion_matrix_pools_all_clients(runs: Runs) -> None:
    """Its rows are the test samples of each class; its diagonal is what the run counted as correct."""
    one = runs()
    opened = OpenedRun.of(one.folder)
    count_CC = opened.confusion("test", opened.checkpoint())
    assert count_CC.sum(1).tolist() == one.classes["total"].tolist()
    assert np.diag(count_CC).tolist() == one.classes["correct"].tolist()
    by_client = [one.client(k).predictions("test") for k in range(8)]
    wrong = sum(((each["label"] == 3) & (each["predicted"] == 8)).sum() for each in by_client)
    assert count_CC[3, 8] == wrong


def test_a_run_in_progress(tmp_path: Path) -> None:
    """Its last rows are in clients.arrows, which may be cut off, and nothing is tested before the first round."""
    folder = make_run(tmp_path / "a")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "status": "running"}))
    (folder / "clients.parquet").unlink()
    (folder / "clients.arrows").write_bytes(b"")
    plot([folder], "curves", tmp_path / "a.png")
    with pytest.raises(ScenarioError, match=r"no values of accuracy/all "):
        plot([folder], "boxes", tmp_path / "b.png")
    (folder / "rounds.parquet").unlink()
    with pytest.raises(ScenarioError, match=r"no round is done yet"):
        plot([folder], "curves", tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()
