"""Bytes of real messages against the figures that the papers print; floats are 4 bytes, 1 KB is 1024 bytes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from algorithms.dc_pfl import DCPFL
from algorithms.fedgh import FedGH
from algorithms.fedral import FedRAL
from algorithms.fedssa import FedSSA
from algorithms.hks import HKS
from algorithms.lg_fedavg import LGFedAvg
from algorithms.standalone import Standalone
from raysim.core.algorithm import AnyAlgorithm
from raysim.core.fit import LocalTraining
from raysim.data.partition import Pathological, make_partition
from raysim.data.transform import transform_for
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.run import run_round
from raysim.engine.spec import RunSpec
from raysim.models import build_model

KB = 1024


Sizes = list[tuple[int, int, int, int]]
"""(up bytes, down bytes, up params, down params) of every client in one round."""


def sizes(algorithm: AnyAlgorithm, num_classes: int, classes_per_client: int, rounds: int = 1) -> list[Sizes]:
    """What ten clients with CNN-5 on images of CIFAR's shape send and receive, round by round."""
    label_M = np.repeat(np.arange(num_classes, dtype=np.int64), 20)
    image_MHWC = np.zeros((len(label_M), 32, 32, 3), dtype=np.uint8)
    partition = make_partition(label_M, len(label_M), num_classes, 10, Pathological(classes_per_client), "pooled811", 0)
    spec = RunSpec(
        algorithm=algorithm,
        seed=0,
        num_classes=num_classes,
        feature_dim=500,
        models=("cnn5",),
        build_model=partial(build_model, num_classes=num_classes, image_shape=(3, 32, 32), feature_dim=500),
        transform=transform_for("cifar10", augment=False),
        local=LocalTraining(),
        train=partition.train,
        val=partition.val,
        test=partition.test,
        threads=(1,),
        labels=label_M,
        image_shape_HWC=(32, 32, 3),
    )
    backend = InProcessBackend()
    try:
        backend.start(spec, lambda: image_MHWC)
        reports = [run_round(backend, t, range(10)) for t in range(1, rounds + 1)]
    finally:
        backend.close()
    return [
        [
            (client_report.up.bytes, client_report.down.bytes, client_report.up.params, client_report.down.params)
            for client_report in report.client_reports.values()
        ]
        for report in reports
    ]


def one_round(algorithm: AnyAlgorithm, num_classes: int, classes_per_client: int, rounds: int = 1) -> Sizes:
    """`sizes` of the last round."""
    return sizes(algorithm, num_classes, classes_per_client, rounds)[-1]


@pytest.mark.parametrize(("num_classes", "per_client", "published_kb"), [(10, 2, 39.1406), (100, 10, 391.4063)])
def test_lg_fedavg(num_classes: int, per_client: int, published_kb: float) -> None:
    for up, down, up_params, down_params in one_round(LGFedAvg(), num_classes, per_client):
        assert up == down == 4 * (500 * num_classes + num_classes)
        assert (up + down) / KB == pytest.approx(published_kb, abs=5e-5)  # FedGH Table 3 prints 39.14 and 391.41
        assert up_params == down_params == 501 * num_classes


@pytest.mark.parametrize(("num_classes", "per_client", "published_kb"), [(10, 2, 23.4453), (100, 10, 214.8828)])
def test_fedgh(num_classes: int, per_client: int, published_kb: float) -> None:
    for up, down, up_params, down_params in one_round(FedGH(), num_classes, per_client):
        assert up == 4 * per_client * (500 + 1)  # a mean and a label per class
        assert down == 4 * (500 * num_classes + num_classes)
        # The paper counts labels, and leaves out the header's bias.
        assert (up + down - 4 * num_classes) / KB == pytest.approx(published_kb, abs=5e-5)  # 23.45 and 214.88
        assert (up_params, down_params) == (501 * per_client, 501 * num_classes)


@pytest.mark.parametrize(("num_classes", "per_client"), [(10, 2), (100, 10)])
def test_fedssa(num_classes: int, per_client: int) -> None:
    for of_round in sizes(FedSSA(), num_classes, per_client, rounds=2):
        for up, down, up_params, _ in of_round:
            assert up == down == 4 * per_client * 501 and up_params == per_client * 501


@pytest.mark.parametrize(("blocks", "published_kb"), [(100, 9.77), (125, 7.81), (25, 39.06)])
def test_fedral(blocks: int, published_kb: float) -> None:
    first, later = sizes(FedRAL(blocks=blocks), 10, 2, rounds=2)
    assert {down for _, down, _, _ in first} == {4 * 500 * 500}  # the whole matrix
    for up, down, up_params, _ in later:
        assert up == down == 4 * 500**2 // blocks and up_params == 500**2 // blocks
        assert up / KB == pytest.approx(published_kb, abs=5e-3)  # FedRAL Table 4 counts one way


@pytest.mark.parametrize(("num_classes", "per_client"), [(10, 2), (100, 10)])
def test_dc_pfl(num_classes: int, per_client: int) -> None:
    first, later = sizes(DCPFL(), num_classes, per_client, rounds=2)
    header = 4 * 501 * num_classes
    assert {down for _, down, _, _ in first} == {header}  # no class mean is known
    for up, down, _, _ in later:
        # Mean, symmetric covariance counted once, count and label of each class; all classes have a holder.
        assert up == 4 * per_client * (500 + 500 * 501 // 2 + 2)
        assert down == header + 4 * 500 * num_classes


def test_hks() -> None:
    method = HKS(warmup=1)
    for up, down, up_params, _ in one_round(method, 10, 2, rounds=2):
        # 200 images in ten clients, 8:1:1; every training sample has a row of logits each way.
        assert up == down == 4 * up_params and up_params % 10 == 0 and 100 < up_params < 200


def test_standalone_sends_nothing() -> None:
    assert set(one_round(Standalone(), 10, 2)) == {(0, 0, 0, 0)}
