"""The benchmark beside FLUTE deals images as its docstring says, and needs a checkout only to run FLUTE."""

from __future__ import annotations

from pathlib import Path

import beside_flute
import numpy as np
import torch
import yaml

import raysim
from raysim.common.inputs import image

LABELS = np.arange(70_000) % 10


def test_clients_have_two_classes_and_unequal_numbers_of_images() -> None:
    parts = beside_flute.deal(LABELS)
    sizes = np.array([len(train) + len(test) for train, test in parts])
    assert (len(parts), sizes.min()) == (1000, 10)
    assert 60 < sizes.mean() < 78
    assert 80 < sizes.std() < 135
    for k, (train, test) in enumerate(parts):
        mine = np.concatenate([train, test])
        assert set(LABELS[mine]) == {k % 10, (k + 1) % 10}
        assert len(set(mine.tolist())) == len(mine)
        assert len(test) == len(mine) // 10


def test_the_model_has_7850_parameters_and_logits_between_0_and_1() -> None:
    net = beside_flute.Sigmoid(10, image(1, 28, 28), 784)
    assert sum(weight.numel() for weight in net.parameters()) == 7850
    logits = net(100 * torch.randn(4, 1, 28, 28))
    assert bool(((logits >= 0) & (logits <= 1)).all())


def test_raysims_scenario_is_valid(tmp_path: Path) -> None:
    command = beside_flute.write_raysim(tmp_path, beside_flute.deal(LABELS), None, 100)
    content = yaml.safe_load(Path(command[-1]).read_text())
    scenario = raysim.Scenario.load(content)
    assert (scenario.clients.number, scenario.rounds, scenario.evaluation.every) == (1000, 100, 20)
    assert scenario.clients.number * scenario.clients.participation == 10


def test_flutes_files_are_links_and_its_images_are_the_same(tmp_path: Path) -> None:
    checkout, folder = tmp_path / "checkout", tmp_path / "folder"
    task = checkout / "experiments" / "cv_lr_mnist"
    task.mkdir(parents=True)
    (task / "config.yaml").write_text("server_config: {max_iteration: 100}")
    folder.mkdir()
    command = beside_flute.write_flute(folder, checkout, "python", 3)
    assert yaml.safe_load((folder / "rounds-3.yaml").read_text()) == {"server_config": {"max_iteration": 3}}
    assert str(folder / "rounds-3.yaml") in command
    assert (folder / "core").readlink() == checkout / "core"

    pixels = np.array([0, 255, 51], np.uint8).repeat(784).reshape(3, 28, 28, 1)
    parts = [(np.array([1]), np.array([0])), (np.array([2, 1]), np.array([], np.int64))]
    beside_flute.write_images(folder / "images.npz", pixels, np.array([7, 8, 9]), parts)
    reader: dict[str, object] = {}
    exec(beside_flute.READ.replace("images.npz", str(folder / "images.npz")), reader)
    read = reader["of"]("train")  # type: ignore[operator]
    assert read["num_samples"] == [1, 2]
    assert read["user_data_label"]["1"].tolist() == [9, 8]
    assert np.allclose(read["user_data"]["1"][:, 0], [0.2, 1.0])
