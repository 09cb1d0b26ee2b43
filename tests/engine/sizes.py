"""The sizes of real messages, as the metering of a run counts them."""

from __future__ import annotations

from functools import partial

import numpy as np

from raysim.common.inputs import image
from raysim.core.algorithm import AnyAlgorithm
from raysim.core.fit import LocalTraining
from raysim.data.partition import Pathological, make_partition
from raysim.data.specs import DATASETS
from raysim.data.transform import ImageTransform
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.run import run_round
from raysim.models.cnn import mlp
from raysim.models.split import SplitNet

KB = 1024


def small_net(name: str, num_classes: int) -> SplitNet:
    """One layer from 3 x 4 x 4 pixels to a representation of CNN-5's width: no message that is measured has others."""
    return mlp(num_classes, image(3, 4, 4), 500, hidden=())


Sizes = list[tuple[int, int, int, int]]
"""(up bytes, down bytes, up params, down params) of every client in one round."""


def sizes(algorithm: AnyAlgorithm, num_classes: int, classes_per_client: int, rounds: int = 1) -> list[Sizes]:
    """What ten clients whose representations are as wide as CNN-5's send and receive, round by round."""
    label_M = np.repeat(np.arange(num_classes, dtype=np.int64), 20)
    raw_M = np.zeros((len(label_M), 4, 4, 3), dtype=np.uint8)
    partition = make_partition(label_M, len(label_M), num_classes, 10, Pathological(classes_per_client), "pooled811", 0)
    plan = Plan(
        algorithm=algorithm,
        seed=0,
        num_classes=num_classes,
        feature_dim=500,
        models=("small",),
        build_model=partial(small_net, num_classes=num_classes),
        transform=ImageTransform.of(DATASETS["cifar10"], augment=False),
        local=LocalTraining(),
        train=partition.train,
        val=partition.val,
        test=partition.test,
        threads=(1,),
        labels=label_M,
    )
    backend = InProcessBackend()
    try:
        backend.start(plan, lambda: raw_M)
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
