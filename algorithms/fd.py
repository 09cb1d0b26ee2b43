"""FD: clients exchange the mean logits of each class. Each client learns from the mean of all other clients.

Jeong, Oh, Kim, Park, Bennis, Kim. 2018. https://arxiv.org/abs/1811.11479 (HKS calls it FedDistill)
While a participant trains, it distils from the global mean logits of each sample's class; then it sends the mean logits
of each class it owns. The server averages them, and sends each contributor the mean without its own part.

Shapes: C classes, S classes one client owns, K of them with a teacher, N samples of one client, B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.core import Algorithm, Batch, Client, ClientId, NonNegative, OutputOf, Server, message
from raysim.core.ops import by_class, class_means, cross_entropy, kl


@message
class Teachers:
    """The mean logits of those of the receiver's classes for which a mean is known."""

    class_K: Tensor | None  # ids of these classes, int32, ascending; None only for counting the message
    teacher_KC: Tensor

    def counted(self) -> "Teachers":
        """Count K*C numbers (K = S once all means are known). As in the paper's formula, class ids do not count."""
        return Teachers(None, self.teacher_KC)

    def table(self, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return teacher_CC by class id, with zeros for classes without a teacher, and known_C (bool)."""
        assert self.class_K is not None
        return by_class(self.class_K, self.teacher_KC, num_classes)


@message
class ClassLogits:
    """Mean logits of each of a client's classes, by ascending class id."""

    logits_SC: Tensor


@dataclass
class Table:
    """The server's state: the latest mean of each class, and the last uploads, to leave out each client's own."""

    class_S: dict[ClientId, Tensor]  # the classes of each client, in the order of the rows of its messages
    mean_CC: Tensor  # row c: mean logits of class c
    known_C: Tensor  # bool: whether a client has sent this class
    sum_CC: Tensor  # float64: sum of the last round's uploads
    count_C: Tensor  # int64: number of the last round's uploads with this class
    last: dict[ClientId, Tensor]  # [S, C] each: uploads of the last round


@dataclass(frozen=True)
class FD(Algorithm[Teachers, ClassLogits, Table]):
    """Federated distillation by class-mean logits."""

    paper: ClassVar[str] = "Jeong et al., 2018, https://arxiv.org/abs/1811.11479"
    stale_uploads = True
    state_of_samples: ClassVar[bool] = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"leave_one_out": False, "collect": "last_epoch", "rebuild": True},
    }

    gamma: NonNegative = 1.0
    """Weight of the distillation loss, added to the classification loss; 0 omits it."""
    leave_one_out: bool = True
    """Subtract a client's own logits from the means that it gets, if it took part in the last round; it gets no teacher
    for a class that only it sent. `false`: send the same means to all clients, as HtFLlib does."""
    distillation: Literal["kl", "squared_error", "raw_logits"] = "kl"
    """The distance between a sample's logits and its teacher. `kl`: KL divergence from the teacher's softmax; its
    gradient is that of the cross-entropy in PFLlib from 2024-04-22 to 2025-11-29. `squared_error`: mean squared
    difference of the logits, as in PFLlib before these dates. `raw_logits`: cross-entropy with the teacher's logits as
    targets, as in PFLlib after these dates; this loss has no lower bound."""
    collect: Literal["eval_pass", "last_epoch"] = "eval_pass"
    """The logits to average and send: those of an additional pass in eval mode after training, or those of the training
    steps in the last epoch."""
    rebuild: bool = False
    """Drop the mean of a class that no participant sent in a round, as HtFLlib does."""

    def server_start(self, server: Server[Table], registrations: Mapping[ClientId, Any]) -> Table:
        num_classes = server.task.num_classes
        return Table(
            class_S=dict(server.classes),
            mean_CC=torch.zeros(num_classes, num_classes),
            known_C=torch.zeros(num_classes, dtype=torch.bool),
            sum_CC=torch.zeros(num_classes, num_classes, dtype=torch.float64),
            count_C=torch.zeros(num_classes, dtype=torch.int64),
            last={},
        )

    def server_send(self, server: Server[Table], to: ClientId) -> Teachers | None:
        state, class_S = server.state, server.state.class_S[to]
        teacher_SC, known_S = state.mean_CC[class_S], state.known_C[class_S]
        if self.leave_one_out and to in state.last:
            # Eq. C. If only one client has a class, M_c - 1 is 0. The division 0/0 is probably why papers print "-" for
            # FD.
            others_S = state.count_C[class_S] - 1
            sum_SC = state.sum_CC[class_S] - state.last[to].double()
            teacher_SC, known_S = (sum_SC / others_S.clamp(min=1)[:, None]).float(), others_S > 0
        if not bool(known_S.any()):
            return None
        return Teachers(class_S[known_S].int(), teacher_SC[known_S])

    def client_update(self, client: Client, down: Teachers | None) -> ClassLogits:
        given = None if down is None or not self.gamma else down.table(client.task.num_classes)
        row_NC = client.complete(client.fit(self.loss, given), client.net)
        _, logits_SC, _ = class_means(row_NC, client.data.y)  # Eq. A
        return ClassLogits(logits_SC)

    def loss(self, net: Any, batch: Batch, given: tuple[Tensor, Tensor] | None) -> Tensor | tuple[Tensor, Tensor]:
        """CE + gamma * distance(teacher of the sample's class, z); with `last_epoch`, also return the logits z.

        given: teacher_CC, and known_C (bool). A sample of a class without a teacher adds 0 to the second term; the
        divisor is still the whole batch.
        """
        logits_BC = net(batch.x)
        total = cross_entropy(lambda _: logits_BC, batch, None)
        if given is not None:
            teacher_CC, known_C = given
            distance_B = self.distance(logits_BC, teacher_CC[batch.y])
            # Eq. D
            total = total + self.gamma * batch.mean(known_C[batch.y] * distance_B)
        return (total, logits_BC) if self.collect == "last_epoch" else total

    def distance(self, logits_BC: Tensor, teacher_BC: Tensor) -> Tensor:
        """Return the distillation loss of each sample, [B]."""
        # Eq. E
        if self.distillation == "squared_error":
            return (logits_BC - teacher_BC).square().mean(1)
        if self.distillation == "raw_logits":
            return -(teacher_BC * F.log_softmax(logits_BC, 1)).sum(1)
        return kl(logits_BC, teacher_BC)

    def server_update(self, server: Server[Table], ups: Mapping[ClientId, ClassLogits]) -> None:
        state = server.state
        sum_CC, count_C = torch.zeros_like(state.sum_CC), torch.zeros_like(state.count_C)
        for k, up in ups.items():
            sum_CC[state.class_S[k]] += up.logits_SC.double()
            count_C[state.class_S[k]] += 1
        seen_C = count_C > 0
        if self.rebuild:
            state.mean_CC.zero_()
            state.known_C.zero_()
        # Eq. B
        state.mean_CC[seen_C] = (sum_CC[seen_C] / count_C[seen_C, None]).float()
        state.known_C |= seen_C
        state.sum_CC, state.count_C = sum_CC, count_C
        state.last = {k: up.logits_SC for k, up in ups.items()}
        server.log("known_classes", float(state.known_C.sum()))
        server.log("single_holder_classes", float((count_C == 1).sum()))

    def exposed(self, client: Client, up: ClassLogits) -> OutputOf:
        return OutputOf(client.net, up.logits_SC)
