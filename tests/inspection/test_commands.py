"""`raysim tsne`, `raysim attack` and `raysim tree` as commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from raysim import InputSpec
from raysim.models import build_model
from raysim.runs.opened import OpenedRun
from raysim.runs.run import Run
from tests.cli.command import run

Runs = Callable[..., Run]


def test_attack(capfd: pytest.CaptureFixture[str], runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.inspection.attack.OUTER", 1)
    picture = tmp_path / "attack.png"
    folder = str(runs("fedgh", "rounds=1").folder)
    code, out, error = run(capfd, "attack", folder, "--pairs", "2", "--knowledge", "blind", "-o", str(picture))
    assert (code, error) == (0, "image 1 of 2\nimage 2 of 2\n")
    assert "round 2, from the state after round 1, blind attacker, 2 images" in out
    assert "mean PSNR of reconstructed images " in out and "PSNR of unrelated images " in out
    assert out.splitlines()[-1] == str(picture) and picture.exists()


def test_tree(capfd: pytest.CaptureFixture[str], runs: Runs, tmp_path: Path) -> None:
    result = runs("hks", "algorithm.warmup=1")
    client = int(result.clients.query("participated")["client"].iloc[0])
    sample = int(OpenedRun.of(result.folder).spec.train.of(client)[0])
    picture = tmp_path / "tree.png"
    code, out, error = run(capfd, "tree", str(result.folder), "--sample", str(sample), "-o", str(picture))
    assert (code, error) == (0, "")
    assert f"after round 3: sample {sample} of client {client}, " in out and "predicted class" in out
    assert picture.exists()


def test_export(capfd: pytest.CaptureFixture[str], runs: Runs, tmp_path: Path) -> None:
    result = runs("fedgh")
    code, out, error = run(capfd, "export", str(result.folder), "-o", str(tmp_path / "networks"))
    assert (code, out, error) == (0, f"{tmp_path / 'networks'}\n", "")
    count = len(set(result.partition["client"]))
    assert len(list((tmp_path / "networks").iterdir())) == count
    for k in (0, count - 1):
        with safe_open(tmp_path / "networks" / f"client-{k}.safetensors", "pt") as file:
            facts, found = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert (facts["client"], facts["round"], facts["num_classes"]) == (str(k), "3", "10")
        net = build_model(
            facts["architecture"],
            num_classes=10,
            input_spec=InputSpec("image", (1, 8, 8)),
            feature_dim=int(facts["feature_dim"]),
        )
        net.load_state_dict(found)
        x = result.client(k).data.test.x
        assert torch.equal(net.eval()(x), result.client(k).network(x))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tsne", "nowhere", "-o", "x.png"], "raysim: nowhere is neither a run folder nor the id of a run"),
        (["tsne", "nowhere", "--clients", "0;5"], "'0;5' given; give client ids separated by commas, such as 0,5,9"),
        (
            ["attack", "nowhere", "-o", "x.bmp"],
            "raysim: -o: x.bmp given; give a file that ends in .png, .svg, .pdf",
        ),
        (["attack", "nowhere", "--pairs", "0"], "--pairs"),
        (["attack", "nowhere", "--knowledge", "all"], "'all' is not one of 'white', 'blind'"),
        (["tree", "nowhere"], "Missing option '--sample'"),
        (["tree", "nowhere", "--sample", "-1"], "--sample"),
    ],
)
def test_bad_input(capfd: pytest.CaptureFixture[str], workplace: Path, words: list[str], sentence: str) -> None:
    code, out, error = run(capfd, *words)
    assert (code, out) == (2, "") and sentence in error
    assert not list(workplace.iterdir())


def test_a_client_that_is_not_there(capfd: pytest.CaptureFixture[str], runs: Runs, workplace: Path) -> None:
    code, _, error = run(capfd, "tsne", str(runs().folder), "--clients", "0,8")
    assert code == 2 and error.startswith("raysim: client 8 given, but ") and error.endswith("has clients 0 to 7\n")
    assert not list(workplace.iterdir())
