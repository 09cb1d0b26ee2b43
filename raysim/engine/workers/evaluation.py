"""Tests of clients' networks: on their own test and validation samples, and on the published test set.

Shapes: G clients of a group, M samples of its largest client, B of these samples, C classes, U samples that all clients
share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.common.errors import RunError
from raysim.common.text import cause
from raysim.core.algorithm import ClientId
from raysim.core.torch_workarounds import eval_mode, lacks_memory
from raysim.engine.metrics import by_class
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import Coverage
from raysim.engine.policies.placement import Group
from raysim.engine.records import ClientEvaluation
from raysim.engine.workers.client_samples import ClientSamples, Ints
from raysim.engine.workers.hooks import errors_from, set_threads
from raysim.engine.workers.states import ClientStates
from raysim.grouped.together import outputs_together

EVALUATION_BATCH = 512
"""Number of samples in one forward pass."""

Outputs = Callable[[Ints], Tensor]
"""Positions of samples [G, M], with one row per client of a group -> logits [G, M, C]."""


class Score(NamedTuple):
    """The results of one network on test samples and on validation samples."""

    correct: int
    loss_sum: float  # over the test samples
    val_correct: int
    predicted_M: Ints  # predicted classes of the test samples


class ClientTester:
    """Tests the clients of one worker, without changing their states."""

    def __init__(self, plan: Plan, states: ClientStates, samples: ClientSamples) -> None:
        self.plan, self.states, self.samples = plan, states, samples
        # (architecture, threads) -> logits of `plan.shared_tests`, [U, C]. The number of threads can change the last
        # bits.
        self.untrained_logits: dict[tuple[str, int], Tensor] = {}

    def evaluate(self, groups: Iterable[Group], coverage: Coverage) -> dict[ClientId, ClientEvaluation]:
        """Test clients in their current state, each group by one call."""
        evaluations: dict[ClientId, ClientEvaluation] = {}
        for group in groups:
            evaluations |= self._together(group, coverage) if len(group) > 1 else self._one_by_one(group, coverage)
        return evaluations

    def evaluate_one(self, k: ClientId, coverage: Coverage) -> ClientEvaluation:
        """Test one client in its current state."""
        start = perf_counter()
        set_threads(self.plan, k)
        with (
            nullcontext() if self.states.is_untrained(k) else self.states.reading(k) as net,
            errors_from("the test", "forward", k, model=self.plan.arch(k)),
            torch.inference_mode(),
        ):
            outputs = partial(self._untrained_outputs, k) if net is None else partial(self._outputs, net)
            return self._evaluated((k,), coverage, outputs, start)[k]

    def _one_by_one(self, group: Group, coverage: Coverage) -> dict[ClientId, ClientEvaluation]:
        return {k: self.evaluate_one(k, coverage) for k in group}

    def _together(self, group: Group, coverage: Coverage) -> dict[ClientId, ClientEvaluation]:
        start = perf_counter()
        set_threads(self.plan, group[0])
        with torch.no_grad(), ExitStack() as opened:
            nets = [opened.enter_context(self.states.reading(k)) for k in group]
            try:
                return self._evaluated(group, coverage, partial(self._stacked_outputs, nets), start)
            except Exception as error:
                if not lacks_memory(error):  # evaluate one by one to identify the failing client
                    return self._one_by_one(group, coverage)
                raise RunError(
                    f"the test of {len(group)} clients with model {self.plan.arch(group[0])} by one call failed "
                    f"({cause(error)}); set fewer actors per GPU, or a smaller training.together"
                ) from error

    def _evaluated(
        self, group: Group, coverage: Coverage, outputs: Outputs, start: float
    ) -> dict[ClientId, ClientEvaluation]:
        """Compute a group's tests from its networks' outputs. The time is divided equally among the clients."""
        plan = self.plan
        test, val = ([part.of(k) for k in group] for part in (plan.test, plan.val))
        own = self._scores(outputs, test, val)
        published: list[float] | list[None] = [None] * len(group)
        if coverage == "whole" and plan.global_test is not None:
            scores = self._scores(outputs, [plan.global_test] * len(group), [part[:0] for part in val])
            published = [score.correct / len(plan.global_test) for score in scores]
        share_s = (perf_counter() - start) / len(group)
        evaluations = {}
        for k, score, global_accuracy, test_M, val_M in zip(group, own, published, test, val, strict=True):
            f1, balanced, class_correct = by_class(plan.labels[test_M], score.predicted_M, plan.num_classes)
            evaluations[k] = ClientEvaluation(
                score.correct, len(test_M), score.loss_sum, score.val_correct, len(val_M), global_accuracy, share_s,
                f1, balanced, class_correct,
            )  # fmt: skip
        return evaluations

    def _scores(self, outputs: Outputs, test: Sequence[Ints], val: Sequence[Ints]) -> list[Score]:
        """Return the score of each client of a group. test, val: positions of its samples."""
        tested_G = [len(test_M) for test_M in test]
        each = [np.concatenate(parts) for parts in zip(test, val, strict=True)]
        position_GM = _filled(each)
        logits_GMC = outputs(position_GM)
        loss_G = self._loss_sums(logits_GMC, position_GM, tested_G)
        predicted_GM = logits_GMC.argmax(2).cpu().numpy()
        right_GM = predicted_GM == self.plan.labels[position_GM]
        return [
            Score(
                int(np.count_nonzero(right_M[:tested])),
                loss,
                int(np.count_nonzero(right_M[tested : len(position_M)])),
                predicted_M[:tested],
            )
            for position_M, tested, loss, right_M, predicted_M in zip(
                each, tested_G, loss_G, right_GM, predicted_GM, strict=True
            )
        ]

    def _loss_sums(self, logits_GMC: Tensor, position_GM: Ints, tested_G: Sequence[int]) -> list[float]:
        """Return each client's sum of losses on its test samples, which are the first in its row."""
        if len(tested_G) == 1:  # this takes fewer calls than the loop below, which adds in another order
            (tested,) = tested_G
            label_M = self.samples.labels(position_GM[0, :tested])
            return [float(F.cross_entropy(logits_GMC[0, :tested].double(), label_M, reduction="sum"))]
        label_M = self.samples.labels(position_GM.ravel())
        loss_GM = F.cross_entropy(logits_GMC.double().flatten(0, 1), label_M, reduction="none").view(position_GM.shape)
        place_M = torch.arange(position_GM.shape[1], device=loss_GM.device)
        untested_GM = place_M >= torch.tensor(tested_G, device=loss_GM.device)[:, None]
        return loss_GM.masked_fill(untested_GM, 0.0).sum(1).tolist()

    # -- outputs -----------------------------------------------------------------------------------

    def _outputs(self, net: nn.Module, position_GM: Ints) -> Tensor:
        """Return the outputs of a single network (G = 1)."""
        if not position_GM.size:  # some networks fail for a batch without samples
            return torch.zeros(1, 0, self.plan.num_classes, device=self.samples.device)
        batches = self.samples.at(position_GM[0]).in_order(EVALUATION_BATCH)
        with eval_mode(net), self._default_device():
            return torch.cat([net(batch.x) for batch in batches]).unsqueeze(0)

    def _default_device(self) -> AbstractContextManager[Any]:
        """Return a context in which torch's default device is this worker's device, as in hooks.

        In it, a network may create tensors without naming a device.
        """
        device = self.samples.device
        return nullcontext() if device.type == "cpu" else device

    def _untrained_outputs(self, k: ClientId, position_GM: Ints) -> Tensor:
        """Return the outputs of a client that never took part, shared with all such clients of its architecture.

        If clients share samples, each sample is computed once instead of once for each of 100,000 clients.
        """
        shared_U, key = self.plan.shared_tests, (self.plan.arch(k), torch.get_num_threads())
        if shared_U is None:
            return self._fresh_outputs(k, position_GM)
        if key not in self.untrained_logits:
            self.untrained_logits[key] = self._fresh_outputs(k, shared_U[None])[0]
        place_M = torch.from_numpy(np.searchsorted(shared_U, position_GM[0])).to(self.samples.device)
        return self.untrained_logits[key].index_select(0, place_M).unsqueeze(0)

    def _fresh_outputs(self, k: ClientId, position_GM: Ints) -> Tensor:
        with self.states.reading(k) as net:
            return self._outputs(net, position_GM)

    def _stacked_outputs(self, nets: Sequence[nn.Module], position_GM: Ints) -> Tensor:
        """Return the outputs of several clients by one call."""
        outputs = []
        for begin in range(0, max(1, position_GM.shape[1]), EVALUATION_BATCH):
            position_GB = position_GM[:, begin : begin + EVALUATION_BATCH]
            x_GB = self.samples.at(position_GB.ravel()).x.unflatten(0, position_GB.shape)
            with self._default_device():
                outputs.append(outputs_together(nets, x_GB))
        return torch.cat(outputs, 1)


def _filled(each: Sequence[Ints]) -> Ints:
    """Return rows of different lengths as one array, padded with zeros."""
    rows = np.zeros((len(each), max(map(len, each))), np.int64)
    for row, values in zip(rows, each, strict=True):
        row[: len(values)] = values
    return rows
