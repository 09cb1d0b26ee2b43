"""t-SNE of representations, and where pictures go."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from raysim.common.errors import ScenarioError
from raysim.inspection.tsne import _panel, draw_tsne, embed
from raysim.report.figures import picture_file
from raysim.runs.run import Run
from tests.cli.command import run

Runs = Callable[..., Run]


def test_what_lies_apart_stays_apart() -> None:
    rng = np.random.default_rng(0)
    blobs = np.concatenate([rng.normal(centre, 0.1, (20, 8)) for centre in (0, 5)]).astype(np.float32)
    plane = embed(blobs)
    assert plane.shape == (40, 2) and np.array_equal(plane, embed(blobs))
    nearest = np.square(plane[:, None] - plane[None]).sum(2) + np.diag(np.full(40, np.inf))
    assert ((nearest.argmin(1) < 20) == (np.arange(40) < 20)).all()


def test_too_few_or_not_finite() -> None:
    with pytest.raises(ScenarioError, match=r"^3 samples given; t-SNE needs at least 4: "):
        embed(np.zeros((3, 2), np.float32))
    with pytest.raises(ScenarioError, match="contain NaN or infinity"):
        embed(np.full((9, 2), np.nan, np.float32))


def test_two_runs_side_by_side(runs: Runs, tmp_path: Path) -> None:
    folders = [runs("fedgh", "rounds=1").folder, runs("fedproto", "rounds=1").folder]
    one = draw_tsne(folders[:1], [0, 5], "test", tmp_path / "one.svg").read_text()
    two = draw_tsne(folders, [0, 5], "test", tmp_path / "two.svg").read_text()
    assert "client 0" in two and "client 5" in two
    assert two.count("after round 1") == 2 * one.count("after round 1") == 2


def test_markers_are_clients_and_colours_are_classes() -> None:
    drawn = []
    axes = SimpleNamespace(scatter=lambda x, y, c, marker, **_: drawn.append((marker, x.tolist(), y.tolist(), c)))
    one = SimpleNamespace(client_N=np.array([4, 7, 4]), label_N=np.array([0, 1, 1]))
    plane_N2 = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    _panel(axes, one, plane_N2, {0: "red", 1: "blue"}, {4: "o", 7: "s"})  # type: ignore[arg-type]
    assert drawn == [("o", [1.0, 3.0], [10.0, 30.0], ["red", "blue"]), ("s", [2.0], [20.0], ["blue"])]


def test_runs_with_other_classes_are_refused(runs: Runs, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The legend and the matrix have one list of class names."""
    rows = [f"{i % 12},{i % 7},{i % 5},class{i % 12}" for i in range(600)]
    (tmp_path / "twelve.csv").write_text("\n".join(["a,b,c,label", *rows]) + "\n")
    data = {"name": "csv", "path": str(tmp_path / "twelve.csv"), "partition": {"name": "iid"}}
    other = runs("fedgh", "rounds=1", data=data, clients={"count": 4, "participation": 1.0, "models": ["mlp_s"]})
    folders = [runs("fedgh", "rounds=1").folder, other.folder]
    for given in (folders, folders[::-1]):
        with pytest.raises(ScenarioError, match="the classes of this run differ from those of the first run; draw it"):
            draw_tsne(given, [0], "test", tmp_path / "x.svg")
        words = ["plot", *map(str, given), "--kind", "confusion", "-o", str(tmp_path / "x.svg")]
        code, _, error = run(capfd, *words)
        assert code == 2 and "the classes of this run differ from those of the first run; draw it" in error
    assert not (tmp_path / "x.svg").exists()


def test_the_file_is_asked_for_first(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"^-o: tsne given; give a file that ends in .png, .svg, .pdf$"):
        picture_file("tsne")
    with pytest.raises(ScenarioError, match=r"^-o: .*x.png given, but there is no folder "):
        draw_tsne(["nowhere"], [0], "test", tmp_path / "missing" / "x.png")
    with pytest.raises(ScenarioError, match="13 given; allowed: at most 12"):
        draw_tsne(["nowhere"], list(range(13)), "test", tmp_path / "x.png")


def test_a_run_may_replace_its_checkpoints_while_its_picture_is_drawn(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runs("fedgh", "rounds=1").folder
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)

    def embedded(value_ND: np.ndarray, seed: int) -> np.ndarray:
        for part in (copy / "checkpoints").glob("clients-*"):
            part.unlink()
        return np.zeros((len(value_ND), 2), np.float32)

    monkeypatch.setattr("raysim.inspection.tsne.embed", embedded)
    assert "after round 1" in draw_tsne([copy], [0, 5], "test", tmp_path / "one.svg").read_text()
