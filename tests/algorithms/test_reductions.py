"""Methods with what they add switched off are the methods they build on, bit for bit, on the contract's toy task."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from raysim.algorithms.apfl import APFL
from raysim.algorithms.dc_pfl import DCPFL
from raysim.algorithms.ditto import Ditto
from raysim.algorithms.fd import FD
from raysim.algorithms.fedavg import FedAvg
from raysim.algorithms.fedcache import FedCache
from raysim.algorithms.fedclassavg import FedClassAvg
from raysim.algorithms.feddf import FedDF
from raysim.algorithms.fedgen import FedGen
from raysim.algorithms.fedgh import FedGH
from raysim.algorithms.fedgkt import FedGKT
from raysim.algorithms.fedmd import FedMD
from raysim.algorithms.fedproto import FedProto
from raysim.algorithms.fedprox import FedProx
from raysim.algorithms.fedral import FedRAL
from raysim.algorithms.fedrolex import FedRolex
from raysim.algorithms.fedssa import FedSSA
from raysim.algorithms.fedtgp import FedTGP
from raysim.algorithms.fml import FML
from raysim.algorithms.heterofl import HeteroFL
from raysim.algorithms.hks import HKS
from raysim.algorithms.lg_fedavg import LGFedAvg
from raysim.algorithms.protonorm import ProtoNorm
from raysim.algorithms.standalone import Standalone
from raysim.contract.toy import FOUR
from raysim.contract.trial import Trial
from raysim.core import Weights, weights

ALONE = ((0,) * 7, (1,) * 9, (2,) * 5, (3,) * 8)
"""Labels of clients that share no class."""

ONE = ((0, 1, 2, 3) * 5,)
"""Labels of a single client."""

COHORTS = ([0, 1, 2, 3], [1, 3], [0, 2, 3])

NORM: dict[str, Any] = {"models": ("norm",)}
"""One architecture, with BatchNorm."""

REDUCED: list[tuple[Any, Any, Any, dict[str, Any]]] = [
    (FedAvg(), None, Standalone(), {"labels": ONE}),
    (FedAvg(avg_bn_buffers=False), None, Standalone(), {"labels": ONE}),
    (FedProx(mu=0.0), FedProx(mu=1.0), FedAvg(), NORM),
    (FedProx(mu=0.0, avg_bn_buffers=False), FedProx(mu=1.0), FedAvg(avg_bn_buffers=False), NORM),
    (FedDF(distill_epochs=0), FedDF(), FedAvg(), NORM),
    (HeteroFL(agg="weighted", masked=False), HeteroFL(), FedAvg(), NORM),
    (FedRolex(step=0), FedRolex(), HeteroFL(), {}),
    (APFL(alpha=1.0, adaptive=False, mix="predictions"), APFL(), Standalone(), {}),
    (Ditto(lambda_=0.0), Ditto(), Standalone(), {}),
    (FML(a=1.0, b=1.0), FML(), Standalone(), {}),
    (FedRAL(init="zeros", train_matrix=False), FedRAL(init="zeros"), Standalone(), {}),
    (FedSSA(mu0=0.0, fuse_first=False), FedSSA(), Standalone(), {"labels": ALONE}),
    (FD(gamma=0.0), FD(), Standalone(), {}),
    (FD(gamma=0.0, collect="last_epoch"), FD(), Standalone(), {}),
    (FedProto(lambda_=0.0, prototypes="last_epoch"), FedProto(), Standalone(), {}),
    (FedProto(lambda_=0.0, inference="nearest", nearest="all"), FedProto(), Standalone(), {}),
    (FedTGP(lambda_=0.0, server_epochs=2), FedTGP(server_epochs=2), Standalone(), {}),
    (ProtoNorm(lambda_=0.0), ProtoNorm(scale=2.0), FedProto(lambda_=0.0), {}),
    (FedCache(alpha=0.0), FedCache(), Standalone(), {}),
    (HKS(alpha=0.0, warmup=1), HKS(warmup=1), Standalone(), {}),
    (HKS(alpha=0.0, warmup=1, logits="eval_pass"), HKS(warmup=1), Standalone(), {}),
    (FedMD(digest_epochs=0), FedMD(), Standalone(), {}),
    (FedGKT(alpha=0.0), FedGKT(), Standalone(), {}),
    (FedClassAvg(rho=0.0, contrastive=False), FedClassAvg(), LGFedAvg(), {}),
    (FedGen(alpha=0.0, agg="weighted", generator_steps=2), FedGen(generator_steps=2), LGFedAvg(), {}),
    (DCPFL(lambda_=0.0, virtual_samples=0), DCPFL(), FedGH(server_mode="per_client"), {}),
]
"""(the method with its addition switched off, the same with it, or None, the method that it builds on, the task)"""


@cache
def after(algorithm: Any, labels: Any = None, models: tuple[str, ...] | None = None) -> Trial:
    trial = Trial(algorithm, labels or FOUR, models)
    for t, cohort in enumerate(COHORTS, 1):
        trial.round(t, [k for k in cohort if k in trial.samples])
    return trial


def own(net: Any) -> Weights:
    """Return the weights of the model that a client predicts with, which a method may keep beside other networks."""
    return weights(getattr(net, "model", getattr(net, "personal", net)))


@pytest.mark.parametrize(("off", "on", "like", "task"), REDUCED, ids=[str(row[0]) for row in REDUCED])
def test_reduction(off: Any, on: Any, like: Any, task: dict[str, Any]) -> None:
    found = after(off, **task)
    same = {**task, "models": found.task.architectures}
    expected = after(like, **same)
    for k, net in expected.nets.items():
        mine, theirs = own(found.nets[k]), own(net)
        assert all(mine[name].equal(weight) for name, weight in theirs.items()), k
    if on is not None:
        assert not own(after(on, **same).nets[0])["header.weight"].equal(own(expected.nets[0])["header.weight"])
