"""FD: clients exchange the mean logits of each class and are taught by everybody else's.

Jeong, Oh, Kim, Park, Bennis, Kim. 2018. https://arxiv.org/abs/1811.11479 (HKS calls it FedDistill)
A participant distils from the global mean logits of each sample's class while it trains, and sends the mean logits of
each class it owns. The server averages them; who contributed to a mean gets it without its own part.

Shapes: C classes, S classes one client owns, K of them that have a teacher, N samples of one client, B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from raysim.core import Algorithm, Batch, Client, ClientId, NonNegative, Server, message
from raysim.core.ops import class_means, cross_entropy, kl


@message
class Joined:
    """Told once: which classes a client owns. Later rows are in their order, so that no message repeats them."""

    class_S: Tensor  # int64, ascending


@message
class Teachers:
    """Mean logits of the receiver's classes, as far as there are any."""

    class_K: Tensor | None  # int32, ascending; None only where the message is counted
    teacher_KC: Tensor

    def counted(self) -> "Teachers":
        """K*C numbers, with K = S once all is known. The formula leaves out which are known, so nor do we count it."""
        return Teachers(None, self.teacher_KC)


@message
class ClassLogits:
    """Mean logits of each class that a client owns, in ascending order of the classes."""

    logits_SC: Tensor


@dataclass
class Table:
    """What the server keeps: the latest mean of each class, and the last round's uploads to take a client out again."""

    class_S: dict[ClientId, Tensor]
    mean_CC: Tensor  # row c: mean logits of class c
    known_C: Tensor  # bool: somebody has sent this class
    sum_CC: Tensor  # float64: of the last round's uploads
    count_C: Tensor  # int64: how many of them have the class
    last: dict[ClientId, Tensor]  # [S, C] each: the last round's uploads


@dataclass(frozen=True)
class FD(Algorithm[Teachers, ClassLogits, Table]):
    """Federated distillation by class-mean logits."""

    paper: ClassVar[str] = "Jeong et al., 2018, https://arxiv.org/abs/1811.11479"
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"leave_one_out": False, "collect": "last_epoch", "rebuild": True},
    }

    gamma: NonNegative = 1.0
    """Weight of the distillation beside the classification loss; 0 leaves it out."""
    leave_one_out: bool = True
    """Who took part in the last round gets means without its own logits, and no teacher for a class that it alone
    sent; `false`: everybody gets the plain means, as in HtFLlib."""
    collect: Literal["eval_pass", "last_epoch"] = "eval_pass"
    """Which logits are averaged and sent: those of a pass in eval mode after training, or those that the last epoch's
    training steps gave, which cost nothing."""
    rebuild: bool = False
    """Forget the mean of a class that no participant sent in a round, as HtFLlib does."""

    def client_register(self, client: Client) -> Joined:
        return Joined(client.data.y.unique())

    def server_start(self, server: Server[Table], registrations: Mapping[ClientId, Joined]) -> Table:
        num_classes = server.task.num_classes
        return Table(
            class_S={k: registration.class_S for k, registration in registrations.items()},
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
            # M_c - 1 is 0 where it was alone: unguarded, that 0/0 is why the papers report "-" for FD.
            others_S = state.count_C[class_S] - 1
            sum_SC = state.sum_CC[class_S] - state.last[to].double()
            teacher_SC, known_S = (sum_SC / others_S.clamp(min=1)[:, None]).float(), others_S > 0
        if not bool(known_S.any()):
            return None
        return Teachers(class_S[known_S].int(), teacher_SC[known_S])

    def client_update(self, client: Client, down: Teachers | None) -> ClassLogits:
        given = None if down is None or not self.gamma else teacher_table(down, client.task.num_classes)
        row_NC = client.fit(self.loss, given)
        if row_NC is None:
            row_NC = client.outputs(client.net)
        unseen_N = row_NC.isnan().any(1)
        if bool(unseen_N.any()):  # left out of training: BatchNorm takes no batch of one sample
            row_NC = torch.where(unseen_N[:, None], client.outputs(client.net), row_NC)
        _, logits_SC, _ = class_means(row_NC, client.data.y)
        return ClassLogits(logits_SC)

    def loss(self, net: Any, batch: Batch, given: tuple[Tensor, Tensor] | None) -> Tensor | tuple[Tensor, Tensor]:
        """CE + gamma * KL(softmax(teacher of the sample's class) || softmax(z)); with `last_epoch` the logits z too.

        given: teacher_CC, and known_C (bool). A sample of a class without a teacher adds 0 to the second term, which is
        divided by the whole batch all the same.
        """
        logits_BC = net(batch.x)
        total = cross_entropy(lambda _: logits_BC, batch, None)
        if given is not None:
            teacher_CC, known_C = given
            kl_B = kl(logits_BC, teacher_CC[batch.y])
            total = total + self.gamma * batch.mean(known_C[batch.y] * kl_B)
        return (total, logits_BC) if self.collect == "last_epoch" else total

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
        state.mean_CC[seen_C] = (sum_CC[seen_C] / count_C[seen_C, None]).float()
        state.known_C |= seen_C
        state.sum_CC, state.count_C = sum_CC, count_C
        state.last = {k: up.logits_SC for k, up in ups.items()}
        server.log("known_classes", float(state.known_C.sum()))
        server.log("single_holder_classes", float((count_C == 1).sum()))


def teacher_table(down: Teachers, num_classes: int) -> tuple[Tensor, Tensor]:
    """The teachers by class id: teacher_CC, zero where there is none, and known_C (bool)."""
    assert down.class_K is not None
    teacher_CC = down.teacher_KC.new_zeros(num_classes, down.teacher_KC.shape[1])
    known_C = torch.zeros_like(teacher_CC[:, 0], dtype=torch.bool)
    teacher_CC[down.class_K.long()], known_C[down.class_K.long()] = down.teacher_KC, True
    return teacher_CC, known_C
