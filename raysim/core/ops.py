"""Functions that several algorithms share. Only `header_step` changes its arguments.

Shapes: N samples, B batch, C classes, D representation width, S classes that one client owns, K any of the classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.core.data import Batch
from raysim.core.messages import Weights
from raysim.core.precision import as_float32
from raysim.core.torch_workarounds import is_batched


def cross_entropy(net: Any, batch: Batch, given: Any) -> Tensor:
    """The plain classification loss, a scalar; `given` is ignored.

    >>> from raysim.core import Batch
    >>> batch = Batch(torch.zeros(2, 3), torch.tensor([0, 1]), torch.arange(2))
    >>> cross_entropy(torch.nn.Identity(), batch, None)  # log 3, of three equal logits
    tensor(1.0986)
    """
    logits_BC = net(batch.x)
    if is_batched(logits_BC):
        logits_BC = as_float32(logits_BC)  # autocast does the same for `F.cross_entropy`
        right_B = logits_BC.gather(1, batch.y[:, None]).squeeze(1)
        return batch.mean(logits_BC.logsumexp(1) - right_B)
    if batch.weight is None:  # the result is the same, with one operation fewer in each direction
        return F.cross_entropy(logits_BC, batch.y)
    return batch.mean(F.cross_entropy(logits_BC, batch.y, reduction="none"))


def kl(logits_BC: Tensor, teacher_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(softmax(teacher / T) || softmax(logits / T)) of each sample, [B], from logits.

    No gradient reaches the teacher. Summed over classes, not multiplied by T^2.

    >>> kl(torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log())  # 3/4 log(3/2) + 1/4 log(1/2)
    tensor([0.1308])
    """
    log_teacher_BC = F.log_softmax(teacher_BC.detach() / temperature, dim=1)
    log_student_BC = F.log_softmax(logits_BC / temperature, dim=1)
    return (log_teacher_BC.exp() * (log_teacher_BC - log_student_BC)).sum(1)


def header_step(
    header: Weights, value_ND: Tensor, label_N: Tensor, lr: float, absent_C: Tensor | None = None
) -> Tensor:
    """Take one step of plain SGD, in place, on the mean cross-entropy of a linear layer; return the previous loss.

    header: weight [C, D] and bias [C], both with requires_grad. absent_C: classes (bool) left out of the softmax.
    It replaces `torch.optim.SGD`, whose first step in a process imports torch's compiler: 2 s and 70 MB.

    >>> header = {"weight": torch.zeros(2, 1, requires_grad=True), "bias": torch.zeros(2, requires_grad=True)}
    >>> header_step(header, torch.ones(1, 1), torch.tensor([0]), lr=1.0)
    tensor(0.6931)
    >>> header["bias"].tolist()
    [0.5, -0.5]
    """
    logits_NC = F.linear(value_ND, header["weight"], header["bias"])
    if absent_C is not None:
        logits_NC = logits_NC.masked_fill(absent_C, -torch.inf)
    loss = F.cross_entropy(logits_NC, label_N)
    gradients = torch.autograd.grad(loss, list(header.values()))
    with torch.no_grad():
        for parameter, gradient in zip(header.values(), gradients, strict=True):
            parameter.add_(gradient, alpha=-lr)
    return loss.detach()


def class_means(value_ND: Tensor, label_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean row of each class that occurs.

    Returns (class_S int64 ascending, mean_SD in value_ND's type, count_S int64). Sums over samples are in float64.

    >>> class_S, mean_SD, count_S = class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([2, 2, 0]))
    >>> class_S.tolist(), mean_SD.tolist(), count_S.tolist()
    ([0, 2], [[5.0], [2.0]], [1, 2])
    """
    class_S, position_N, count_S = torch.unique(label_N, return_inverse=True, return_counts=True)
    sum_SD = torch.zeros(len(class_S), value_ND.shape[1], dtype=torch.float64, device=value_ND.device)
    sum_SD.index_add_(0, position_N, value_ND.double())
    return class_S, (sum_SD / count_S[:, None]).to(value_ND.dtype), count_S


def by_class(class_K: Tensor, row_KD: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Scatter rows of some classes to all classes: table_CD, with zeros for missing classes, and known_C (bool).

    >>> table_CD, known_C = by_class(torch.tensor([2]), torch.tensor([[7.0]]), 3)
    >>> table_CD.tolist(), known_C.tolist()
    ([[0.0], [0.0], [7.0]], [False, False, True])
    """
    table_CD = row_KD.new_zeros(num_classes, row_KD.shape[1])
    known_C = torch.zeros_like(table_CD[:, 0], dtype=torch.bool)
    table_CD[class_K.long()], known_C[class_K.long()] = row_KD, True
    return table_CD, known_C


def weighted_mean(parts: Iterable[tuple[float, Weights]]) -> Weights:
    """Return `sum(n_k * w_k) / sum(n_k)` per tensor, summed in the given order, in float64.

    Integer tensors (BatchNorm's batch counter) are taken from the first part, not averaged.
    Raises `ValueError` when there are no parts or all weights are zero.

    >>> weighted_mean([(1, {"w": torch.tensor([0.0])}), (3, {"w": torch.tensor([4.0])})])
    {'w': tensor([3.])}
    """
    listed = list(parts)
    total = sum(weight for weight, _ in listed)
    if not total:
        raise ValueError("weighted_mean: the weights sum to 0; pass at least one part with a positive weight")
    mean: Weights = {}
    for name, first in listed[0][1].items():
        if not first.is_floating_point():
            mean[name] = first.clone()
            continue
        acc = torch.zeros(first.shape, dtype=torch.float64, device=first.device)
        for weight, tensors in listed:
            acc += tensors[name].double() * (weight / total)
        mean[name] = acc.to(first.dtype)
    return mean
