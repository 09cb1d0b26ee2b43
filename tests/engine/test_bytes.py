"""Bytes of real messages against the figures that the papers print; floats are 4 bytes, 1 KB is 1024 bytes."""

from __future__ import annotations

import pytest

from raysim.algorithms.dc_pfl import DCPFL
from raysim.algorithms.fedgh import FedGH
from raysim.algorithms.fedral import FedRAL
from raysim.algorithms.fedssa import FedSSA
from raysim.algorithms.hks import HKS
from raysim.algorithms.lg_fedavg import LGFedAvg
from raysim.algorithms.standalone import Standalone
from tests.engine.sizes import KB, one_round, sizes


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


def test_fedssa() -> None:
    for of_round in sizes(FedSSA(), 10, 2, rounds=2):
        for up, down, up_params, _ in of_round:
            assert up == down == 4 * 2 * 501 and up_params == 2 * 501  # the header's rows of two classes


@pytest.mark.parametrize(("blocks", "published_kb"), [(100, 9.77), (125, 7.81), (25, 39.06)])
def test_fedral(blocks: int, published_kb: float) -> None:
    first, later = sizes(FedRAL(blocks=blocks), 10, 2, rounds=2)
    assert {down for _, down, _, _ in first} == {4 * 500 * 500}  # the whole matrix
    for up, down, up_params, _ in later:
        assert up == down == 4 * 500**2 // blocks and up_params == 500**2 // blocks
        assert up / KB == pytest.approx(published_kb, abs=5e-3)  # FedRAL Table 4 counts one way


def test_dc_pfl() -> None:
    num_classes, per_client = 10, 2
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
