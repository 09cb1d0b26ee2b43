"""What methods share that average models, adapters aside: by which weights the server averages, and what travels.

The means of other messages are in the methods' own files; bytes that papers print are in `tests/engine/test_bytes.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raysim.algorithms.apfl import APFL
from raysim.algorithms.ditto import Ditto
from raysim.algorithms.fedala import FedALA
from raysim.algorithms.fedapen import FedAPEN
from raysim.algorithms.fedavg import FedAvg
from raysim.algorithms.fedbabu import FedBABU
from raysim.algorithms.fedclassavg import FedClassAvg
from raysim.algorithms.feddbe import FedDBE
from raysim.algorithms.fedmrl import FedMRL
from raysim.algorithms.fedper import FedPer
from raysim.algorithms.fedprox import FedProx
from raysim.algorithms.fedrep import FedRep
from raysim.algorithms.fml import FML
from raysim.algorithms.lg_fedavg import LGFedAvg
from raysim.algorithms.pfedmoe import PFedMoE
from raysim.contract.toy import toy_model
from raysim.contract.trial import Trial
from raysim.core import Extractor, Header, Model, Server, Task
from raysim.core.messages import wire_size

TASK = Task(4, 8, ("norm",), toy_model)


@pytest.mark.parametrize(
    ("algorithm", "message", "mean"),
    [
        # Clients with one and three samples send 0 and 4: (1 * 0 + 3 * 4) / 4 by sample counts, else (0 + 4) / 2.
        (FedAvg(), Model, 3.0),
        (FedProx(), Model, 3.0),
        (FedALA(), Model, 3.0),
        (FML(), Model, 3.0),
        (FML(agg="uniform"), Model, 2.0),
        (FedMRL(), Model, 3.0),
        (FedMRL(agg="uniform"), Model, 2.0),
        (FedAPEN(), Model, 2.0),
        (APFL(), Model, 2.0),
        (APFL(agg="weighted"), Model, 3.0),
        (Ditto(), Model, 2.0),
        (Ditto(agg="weighted"), Model, 3.0),
        (FedPer(), Extractor, 3.0),
        (FedBABU(), Extractor, 3.0),
        (FedBABU(**FedBABU.profiles["official"]), Extractor, 2.0),
        (FedRep(), Extractor, 2.0),
        (FedRep(**FedRep.profiles["official"]), Extractor, 3.0),
        (LGFedAvg(), Header, 3.0),
        (LGFedAvg(**LGFedAvg.profiles["official"]), Header, 2.0),
        (PFedMoE(), Extractor, 3.0),
        (PFedMoE(agg="uniform"), Extractor, 2.0),
    ],
    ids=str,
)
def test_models_are_averaged_alike_or_by_sample_counts(algorithm: Any, message: Any, mean: float) -> None:
    server: Server[Any] = Server(TASK, torch.Generator(), {0: 1, 1: 3, 2: 1000}, 1, None)
    algorithm.server_update(server, {k: message({"weight": torch.tensor([v])}) for k, v in ((0, 0.0), (1, 4.0))})
    state = server.state if isinstance(server.state, dict) else server.state.w
    assert state["weight"].tolist() == [mean]


# The toy's `norm`: a convolution of 3 * 9 + 3, BatchNorm of 3 + 3, as many running statistics and a counter of 8 bytes,
# a layer of 12 * 8 + 8, and a header of 8 * 4 + 4. `flat`: a layer of 16 * 8 + 8 and the same header.
HEADER = 4 * (8 * 4 + 4)
EXTRACTOR = 4 * (3 * 9 + 3 + 4 * 3 + 12 * 8 + 8) + 8
FLAT = 4 * (16 * 8 + 8)


@pytest.mark.parametrize(
    ("algorithm", "size"),
    [
        (FedAvg(), EXTRACTOR + HEADER),
        (FedProx(), EXTRACTOR + HEADER),
        (FedALA(), EXTRACTOR + HEADER),
        (APFL(), EXTRACTOR + HEADER),
        (Ditto(), EXTRACTOR + HEADER),
        (FedDBE(), EXTRACTOR + HEADER + 4 * 8),  # and the mean of the representations
        (FedPer(), EXTRACTOR),
        (FedBABU(), EXTRACTOR),
        (FedRep(header_epochs=1), EXTRACTOR),
        (PFedMoE(small="flat"), FLAT),
        (FML(small="flat"), FLAT + HEADER),
        (FedAPEN(small="flat"), FLAT + HEADER),
        (LGFedAvg(), HEADER),
        (FedClassAvg(), HEADER),
    ],
    ids=str,
)
def test_bytes_of_every_message(algorithm: Any, size: int) -> None:
    assert {wire_size(msg).bytes for _, _, msg in Trial(algorithm).run(2).sent} == {size}
