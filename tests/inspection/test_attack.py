"""Gradient inversion: PSNR by hand, transmissions as the methods make them, and that the attack works where it can."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.algorithms.hks import HKS, Logits, Teachers
from raysim.common.errors import RunError, ScenarioError
from raysim.core.algorithm import Client
from raysim.core.exposed import OutputOf, UpdateOf
from raysim.core.messages import unpack
from raysim.inspection.attack import Attack, Attacked, _unrelated, attack, draw_attack, invert, psnr
from raysim.inspection.transmission import Knowledge, Transmission, attack_spec, attackable, transmit
from raysim.plugins.registry import algorithm_class, algorithm_names
from raysim.runs.opened import OpenedRun
from raysim.runs.run import Run
from tests.conftest import REPOSITORY
from tests.engine.scenarios import METHODS

Runs = Callable[..., Run]
ONE = "clients.models=[digits_mlp64]"


def test_psnr_by_hand() -> None:
    zero, tenth = np.zeros((2, 2, 3)), np.full((2, 2, 3), 0.1)
    assert psnr(zero, tenth) == pytest.approx(20)
    assert psnr(zero, tenth, "pfllib") == pytest.approx(24.7712, abs=1e-4)
    assert psnr(zero, zero + 1) == pytest.approx(0)
    half = zero.copy()
    half[0] = 1  # half of all values are off by 1: MSE 1/2
    assert psnr(half, zero) == pytest.approx(3.0103, abs=1e-4)
    assert psnr(zero, zero) == float("inf")
    assert psnr(np.array([[[255]]], np.uint8) / 255, np.zeros((1, 1, 1))) == 0


def test_noise_and_uniform_pixels_have_the_known_level() -> None:
    rng = np.random.default_rng(0)
    grey = np.full(100_000, 0.5)
    assert psnr(grey, rng.uniform(size=100_000)) == pytest.approx(10 * np.log10(12), abs=0.05)  # variance 1/12
    assert psnr(rng.uniform(size=100_000), rng.uniform(size=100_000)) == pytest.approx(10 * np.log10(6), abs=0.05)


def test_all_levels_have_one_convention() -> None:
    # Errors of 0.1 and 1 are 20 and 0 dB; PFLlib's convention adds 10 log10(3) = 4.7712 dB.
    zero = np.zeros((2, 2, 3), np.float32)
    one = Attacked(0, 0, zero, zero + np.float32(0.1), zero + 1, 0.0)
    found = Attack("r", 3, "white", "pfllib", (one,), 0.0)
    assert (found.mean, found.start) == (pytest.approx(24.7712, abs=1e-4), pytest.approx(4.7712, abs=1e-4))
    # Clients have images 0 and 2, which differ by 51 / 255 = 0.2: 10 log10(1 / 0.04) = 13.9794 dB.
    image_MHWC = np.array([0, 255, 51], np.uint8)[:, None, None, None]
    for convention, level in (("psnr", 13.9794), ("pfllib", 18.7506)):
        rng = np.random.default_rng(0)
        assert _unrelated(image_MHWC, np.array([0, 2]), convention, rng) == pytest.approx(level, abs=1e-4)


def transmission(
    runs: Runs, method: str, knowledge: Knowledge = "white", *sets: str
) -> tuple[Transmission, Tensor, Tensor]:
    """What a client of a tiny run sends for one of its images, that image as networks read it, and its label [1, C]."""
    run = OpenedRun.of(runs(method, "rounds=2", ONE, *sets).folder)
    spec = attack_spec(run.spec)
    with run.backend([1], run.checkpoint(), spec) as backend:
        found = transmit(backend, 3, 1, 4, knowledge)
    x = replace(run.samples(1, "train"), transform=spec.transform).subset(torch.tensor([4]))
    return found, x.x, F.one_hot(x.y, spec.num_classes).float()


FIELDS = {
    "hks": ["algorithm.warmup=1"],
    "fedral": ["algorithm.blocks=8"],
    "feddf": ["data.public.share=0.1"],
    "fedgkt": ["clients.models=[digits_resnet]"],
}


ATTACKED = [
    name
    for name in algorithm_names()
    if get_type_hints(algorithm_class(name).exposed)["return"] in (UpdateOf, OutputOf)
]


@pytest.mark.parametrize("method", [param for param in METHODS if param.id in ATTACKED])
def test_an_attacker_who_knows_all_sends_what_was_seen(runs: Runs, method: str) -> None:
    seen, x, label = transmission(runs, method, "white", *FIELDS.get(method, []))
    sent_E = seen.send(x, label).detach()
    assert sent_E.shape == seen.seen_E.shape and float(seen.seen_E.abs().max()) > 1e-4
    # Of FedKD's update the server gets what is left after its compression.
    error = (sent_E - seen.seen_E).square().sum() / seen.seen_E.square().sum()
    assert float(error) < (0.06 if method == "fedkd" else 1e-6)
    other = seen.send(torch.zeros_like(x), label).detach()
    assert float((other - seen.seen_E).square().sum() / seen.seen_E.square().sum()) > 1e-3


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("fedavg", 64 * 32 + 32 + 32 * 10 + 10),
        ("lg_fedavg", 32 * 10 + 10),
        ("fedssa", 32 + 1),  # the row of the image's class
        ("fedral", 32 * 32 // 8),
        ("fd", 10),
        ("fedproto", 32),
        ("dc_pfl", 32),
    ],
)
def test_how_many_numbers_are_seen(runs: Runs, method: str, count: int) -> None:
    assert len(transmission(runs, method, "white", *FIELDS.get(method, []))[0].seen_E) == count


@pytest.mark.parametrize("method", ["fedavg", "fml", "fedproto"])
def test_what_a_blind_attacker_knows(runs: Runs, method: str) -> None:
    seen, x, label = transmission(runs, method, "blind")
    error = float((seen.send(x, label) - seen.seen_E).detach().square().sum() / seen.seen_E.square().sum())
    if method == "fedavg":  # the server knows the whole model
        assert error < 1e-6
    else:
        assert error > 1e-3


@pytest.mark.parametrize("method", ["fml", "fedkd", "fedapen"])
def test_gradients_reach_the_image_through_teachers(runs: Runs, method: str) -> None:
    seen, x, label = transmission(runs, method)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

    def value(step: float) -> Tensor:
        return seen.send(moved + step * direction, label).square().sum()

    moved = (x + 0.1 * direction).requires_grad_()
    (gradient,) = torch.autograd.grad(value(0.0), moved)
    numeric = (value(1e-3) - value(-1e-3)).item() / 2e-3
    assert float((gradient * direction).sum()) == pytest.approx(numeric, rel=0.02)


def test_the_attacked_image_is_trained_with_its_own_teacher(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has a row for each of the client's samples; training on one of them uses its row."""
    run = OpenedRun.of(runs("hks", "rounds=2", ONE, *FIELDS["hks"]).folder)
    received, update = [], HKS.client_update

    def updating(self: HKS, client: Client, down: Teachers | None) -> Logits | None:
        received.append(down)
        return update(self, client, down)

    monkeypatch.setattr(HKS, "client_update", updating)
    with run.backend([1], run.checkpoint(), attack_spec(run.spec)) as backend:
        broadcast = backend.send(3, [1])
        teacher_NC = unpack(broadcast.messages[broadcast.of[1] or 0]).teacher_NC
        transmit(backend, 3, 1, 4, "white")
    assert len(teacher_NC) > 4 and torch.equal(received[0].teacher_NC, teacher_NC[[4]])


def test_the_attack_works_where_it_can_and_not_where_it_cannot(runs: Runs, tmp_path: Path) -> None:
    found = attack(runs("fedavg", "rounds=2", ONE).folder, pairs=3)
    assert (found.round, len(found.images)) == (3, 3)
    assert found.start < 10 and found.unrelated < 12
    assert found.mean > found.unrelated + 15
    assert sorted(found.psnrs)[1] > 30  # the median image is there to the eye
    again = attack(runs("fedavg", "rounds=2", ONE).folder, pairs=1)
    assert np.array_equal(again.images[0].image_HWC, found.images[0].image_HWC)
    assert draw_attack(found, tmp_path / "attack.png").read_bytes().startswith(b"\x89PNG")


def test_what_an_attack_on_a_run_is_made_of(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image has its own start; strangers are clients' images; the attacker knows what the caller says."""
    found: dict[str, Any] = {"seeds": [], "knowledge": []}

    def inverted(seen: Any, spec: Any, shape_HWC: tuple[int, ...], seed: int) -> Any:
        found["seeds"].append(seed)
        return np.zeros(shape_HWC), np.ones(shape_HWC), 0.5

    def transmitted(backend: Any, t: int, k: int, sample: int, knowledge: str) -> None:
        found["knowledge"].append((t, knowledge))

    def unrelated(image_MHWC: Any, index: Any, convention: str, rng: Any) -> float:
        found["index"], found["convention"] = index, convention
        return 7.0

    for name, double in (("invert", inverted), ("transmit", transmitted), ("_unrelated", unrelated)):
        monkeypatch.setattr(f"raysim.inspection.attack.{name}", double)
    result = runs("fedproto", "rounds=1")
    made = attack(result.folder, pairs=3, seed=5, knowledge="blind", convention="pfllib")
    assert found["seeds"] == [5, 6, 7] and found["knowledge"] == [(2, "blind")] * 3
    spec = OpenedRun.of(result.folder).spec
    assert np.array_equal(found["index"], spec.train.index) and found["convention"] == "pfllib"
    assert (made.round, made.knowledge, made.convention, made.unrelated) == (2, "blind", "pfllib", 7.0)
    assert all(one.start_HWC.max() == 0 and one.image_HWC.min() == 1 for one in made.images)
    again = attack(result.folder, pairs=3, seed=6)
    assert [one.sample for one in again.images] != [one.sample for one in made.images]


@pytest.mark.parametrize(("second", "best"), [(0.7, (0, 0.48)), (0.2, (1, 0.2))])
def test_the_best_of_all_random_starts_is_the_result(
    monkeypatch: pytest.MonkeyPatch, second: float, best: tuple[int, float]
) -> None:
    # The first start gets to 0.5 and then to 0.48, more than 0.9 * 0.5: it is stuck, and the third call starts anew.
    steps, starts = [[0.5, 0.48], [second], *[[0.9]] * 5], iter(range(9))

    class Scripted:
        def __init__(self, *given: Any) -> None:
            self.number, self.least = next(starts), math.inf
            self.image_HWC, self.left = np.full((1, 1, 1), self.number), iter(steps[self.number])

        def step(self) -> None:
            self.least = min(self.least, next(self.left))

    monkeypatch.setattr("raysim.inspection.attack._Descent", Scripted)
    monkeypatch.setattr("raysim.inspection.attack.OUTER", 3)
    monkeypatch.setattr("raysim.inspection.attack.STUCK", 0.9)
    seen: Any = SimpleNamespace(seen_E=torch.ones(2))
    start_HWC, image_HWC, distance = invert(seen, None, (1, 1, 1))  # type: ignore[arg-type]
    assert (start_HWC.item(), image_HWC.item(), distance) == (0, *best)


def test_a_given_round_is_attacked_although_the_usual_one_is_kept(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.inspection.attack.ROUND", 1)
    monkeypatch.setattr("raysim.inspection.attack.transmit", lambda *given: None)
    image_HWC = np.zeros((8, 8, 1), np.float32)
    monkeypatch.setattr("raysim.inspection.attack.invert", lambda *given: (image_HWC, image_HWC, 0.5))
    folder = runs("fedproto", "rounds=2", "checkpoint.every=1").folder
    assert {1, 2} <= {kept.round for kept in OpenedRun.of(folder).store.kept}
    # The clients train in the round after the one whose state they have.
    assert [attack(folder, pairs=1, round=t).round for t in (None, 2, 1)] == [2, 3, 2]


def test_originals_are_what_clients_train_on(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.inspection.attack.OUTER", 1)
    result = runs("fedproto", "rounds=1")
    found = attack(result.folder, pairs=4, seed=3)
    run = OpenedRun.of(result.folder)
    for one in found.images:
        assert one.sample in run.spec.train.of(one.client)
        assert np.array_equal(np.round(one.original_HWC * 255), run.raw_M[one.sample])


def test_batchnorm_is_left_out_where_it_cannot_train(runs: Runs) -> None:
    def architectures(method: str, *sets: str) -> set[str]:
        run = OpenedRun.of(runs(method, "rounds=1", *sets).folder)
        return {run.spec.arch(k) for k in attackable(run, run.checkpoint())}

    assert architectures("lg_fedavg") == {"digits_mlp64", "digits_cnn_s"}
    assert architectures("fedgh") == {"digits_mlp64", "digits_cnn_s", "digits_resnet"}
    assert architectures("fedcache") == {"digits_mlp64", "digits_cnn_s"}  # it sends what training steps gave
    with pytest.raises(ScenarioError, match=r"^FedAvg cannot be attacked in round 2: .* BatchNorm, which .*; "):
        attack(runs("fedavg", "rounds=1", "clients.models=[digits_resnet]").folder)


def test_methods_that_send_nothing_are_refused(runs: Runs) -> None:
    with pytest.raises(ScenarioError, match=r"^Standalone uploads nothing in round 2; choose another --round, "):
        attack(runs("standalone", "rounds=1").folder)
    with pytest.raises(ScenarioError, match=r"^HKS uploads nothing in round 2; choose another --round, "):
        attack(runs("hks", "rounds=1", "algorithm.warmup=9").folder)
    public = "data.public.share=0.1"
    with pytest.raises(ScenarioError, match=r"^FedMD uploads logits of public samples only; attack a run of another m"):
        attack(runs("fedmd", "rounds=1", public).folder)


def test_an_update_of_a_whole_network_tells_its_architecture(runs: Runs) -> None:
    # The smallest architecture could not hold these weights.
    models = "clients.models=[digits_mlp64,digits_mlp128]"
    result = runs("feddf", "rounds=1", "data.public.share=0.1", models)
    run = OpenedRun.of(result.folder)
    spec = attack_spec(run.spec)
    with run.backend([1], run.checkpoint(), spec) as backend:
        blind, white = (transmit(backend, 2, 1, 4, knowledge) for knowledge in ("blind", "white"))
    x, label = torch.rand(1, 1, 8, 8), torch.ones(1, 10) / 10
    assert torch.equal(blind.send(x, label), white.send(x, label))


# -- methods in files of users -------------------------------------------------------------------------

OWN = '''"""A method that shares extractors."""

from raysim.core import *
from raysim.core.exposed import *
from raysim.core.messages import Model
from raysim.core.ops import cross_entropy, weighted_mean
from dataclasses import dataclass


@dataclass(frozen=True)
class SharedExtractor(Algorithm):
    """Clients train their headers first, then the extractor, which is averaged."""

    def server_start(self, server, registrations):
        return Model(weights(server.task.model(server.task.architectures[0]).extractor))

    def server_send(self, server, to):
        return server.state

    def client_receive(self, client, down):
        client.net.extractor.load_state_dict(down.w)

    def client_update(self, client, down):
        for part, other in ((client.net.header, client.net.extractor), (client.net.extractor, client.net.header)):
            part.requires_grad_(True), other.requires_grad_(False)
            client.fit(cross_entropy)
        return Model(weights(client.net.extractor))

    def server_update(self, server, ups):
        server.state = Model(weighted_mean((1.0, up.w) for up in ups.values()))
'''
PAGE = (REPOSITORY / "docs" / "own_code.md").read_text(encoding="utf-8")
UPDATE, OUTPUT = (indent(block, "    ") for block in re.findall(r"^```python\n(def exposed.*?)^```", PAGE, re.M | re.S))
DECLARED = UPDATE.replace("net.header", "net.extractor")


def own(tmp_path: Path, text: str) -> str:
    path = tmp_path / f"own_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("knowledge", ["white", "blind"])
def test_a_method_of_a_user_declares_what_it_exposes(runs: Runs, tmp_path: Path, knowledge: Knowledge) -> None:
    method = own(tmp_path, OWN + DECLARED)
    seen, x, label = transmission(runs, method, knowledge)
    assert len(seen.seen_E) == 64 * 32 + 32
    sent_E = seen.send(x, label).detach()
    error = (sent_E - seen.seen_E).square().sum() / seen.seen_E.square().sum()
    assert float(error) < 1e-6 if knowledge == "white" else float(error) > 1e-3


def test_an_output_of_a_method_of_a_user(runs: Runs, tmp_path: Path) -> None:
    text = (
        "from dataclasses import dataclass\n"
        "from raysim.algorithms.fedgh import FedGH\n"
        "from raysim.core import OutputOf\n"
        "@dataclass(frozen=True)\nclass Mine(FedGH):\n    'FedGH, changed.'\n"
    )
    seen, x, label = transmission(runs, own(tmp_path, text + OUTPUT))
    assert len(seen.seen_E) == 32 and not seen.uses_label
    torch.testing.assert_close(seen.send(x, label), seen.seen_E)


def test_an_own_method_is_attacked(runs: Runs, tmp_path: Path) -> None:
    found = attack(runs(own(tmp_path, OWN + DECLARED), "rounds=2", ONE).folder, pairs=2)
    assert found.mean > found.unrelated + 10


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (OWN, r"SharedExtractor does not declare what its uploads expose; implement the hook `exposed`, as in the t"),
        (
            OWN.replace("part.requires_grad_(True), other.requires_grad_(False)", "pass") + DECLARED,
            r"SharedExtractor calls client.fit 2 times to train the parameters that its upload reveals, but the attack",
        ),
        (
            OWN + UPDATE,
            r"SharedExtractor calls client.fit 0 times to train the parameters",
        ),
    ],
    ids=["undeclared", "two-calls", "another-part"],
)
def test_methods_that_cannot_be_attacked_are_refused(runs: Runs, tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        attack(runs(own(tmp_path, text), "rounds=1", ONE).folder, pairs=1)


def test_an_error_in_a_declaration_names_the_hook(runs: Runs, tmp_path: Path) -> None:
    text = OWN + UPDATE.replace("up.w", "up.weights")
    with pytest.raises(RunError, match=r"SharedExtractor.exposed of client \d failed: .*no attribute 'weights'"):
        attack(runs(own(tmp_path, text), "rounds=1", ONE).folder, pairs=1)
