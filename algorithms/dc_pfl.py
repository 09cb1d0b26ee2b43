"""DC-PFL: FedGH, with a pull towards global class means at clients, and a header that is refitted on virtual samples.

Tang, Yu, Tang, Ren, Li, Li. IJCAI 2024. https://doi.org/10.24963/ijcai.2024/551
A participant replaces its header with the server's, trains its whole network with a penalty that pulls each
representation towards the global mean of its class, and sends mean, covariance and count of each class it owns. The
server trains its header on the clients' class means, pools a Gaussian per class, and trains the header again on samples
from these Gaussians.

Shapes: C classes, S classes one client owns, K classes whose global mean is known, D representation width, N samples
of one client, B batch, R rows of a factor F of a covariance F^T F, G virtual samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from raysim.core import (
    Algorithm,
    Batch,
    Client,
    ClientId,
    Count,
    NonNegative,
    NonNegativeInt,
    OutputOf,
    Positive,
    Server,
    Weights,
    message,
    weights,
)
from raysim.core.ops import by_class, class_means, cross_entropy, header_step


@message
class Global:
    """The global header, and the known global class means."""

    w: Weights  # weight [C, D] and bias [C] of the header
    class_K: Tensor | None  # ids of the known classes, int32, ascending; None: clients do not use means (lambda_ = 0)
    mean_KD: Tensor | None

    def counted(self) -> "Global":
        """Count C*D + C + K*D numbers; like the paper's formula, this omits the ids of known classes."""
        return Global(self.w, None, self.mean_KD)


@message
class ClassStatistics:
    """A client's statistics per class: count, mean and covariance of the representations.

    A covariance is sent as a factor F [min(n, D), D] with F^T F = covariance, because pooling and sampling need F. The
    message size counts the covariance's triangle instead, D*(D+1)/2 numbers, because all factors of one covariance
    describe the same Gaussian.
    """

    class_S: Tensor  # int32: ids of the client's classes, ascending
    count_S: Tensor  # int32: number of training samples of each class
    mean_SD: Tensor
    factor_RD: Tensor | None  # the factors of all classes, concatenated by rows; None: no refit at the server

    def counted(self) -> "ClassStatistics":
        """Count S * (D + D*(D+1)/2 + 2) numbers, of which 2 are class id and sample count.

        Without covariances, the message is counted as it is.
        """
        if self.factor_RD is None:
            return self
        num_classes, width = self.mean_SD.shape
        triangle = self.factor_RD.to("meta").new_empty(num_classes * width * (width + 1) // 2)
        return ClassStatistics(self.class_S, self.count_S, self.mean_SD, triangle)

    def gaussians(self) -> "list[Gaussian]":
        """Return one Gaussian per class. Without covariances, the factors are empty."""
        factor_RD = self.mean_SD[:0] if self.factor_RD is None else self.factor_RD
        # The ranks are not sent, because they follow from the counts.
        ranks = [0 if self.factor_RD is None else min(n, self.mean_SD.shape[1]) for n in self.count_S.tolist()]
        return [
            Gaussian(*parts) for parts in zip(self.count_S.tolist(), self.mean_SD, factor_RD.split(ranks), strict=True)
        ]


class Gaussian(NamedTuple):
    """The number, mean and covariance of samples."""

    size: int  # number of samples
    mean_D: Tensor
    factor_RD: Tensor  # F with F^T F = covariance, whose divisor is size - 1; zero for a single sample


@dataclass(frozen=True)
class DCPFL(Algorithm[Global, ClassStatistics, Global]):
    """One global header. Clients pull representations to global class means; the server refits on virtual ones."""

    paper: ClassVar[str] = "Tang et al., IJCAI 2024, https://doi.org/10.24963/ijcai.2024/551"
    stale_uploads = True

    lambda_: NonNegative = 0.1
    """Weight of the pull towards the global class means; 0 omits the pull and sends no means (the paper's w/o AL)."""
    squared: bool = False
    """Use the squared distance to the class mean instead of the distance."""
    header_lr: Positive = 0.01
    """Learning rate of the server's step on each client's class means."""
    virtual_samples: NonNegativeInt = 1000
    """Number of virtual representations for the refit, over all classes; 0 omits the refit (the paper's w/o GC)."""
    refit_epochs: Count = 10
    """Passes of the refit over the virtual representations."""
    refit_lr: Positive = 0.01
    """Learning rate of the refit."""
    refit_batch: Count = 64
    """Batch size of the refit."""
    stale: Literal["keep", "drop"] = "keep"
    """What happens to the global mean of a class that no participant of a round has: it is kept, or dropped."""
    relu_samples: bool = False
    """Set negative entries of virtual representations to 0; real ones come from a ReLU and have none."""

    def server_start(self, server: Server[Global], registrations: Mapping[ClientId, Any]) -> Global:
        w = weights(server.task.new_header())
        if not self.lambda_:
            return Global(w, None, None)
        return Global(w, torch.empty(0, dtype=torch.int32), torch.empty(0, server.task.feature_dim))

    def server_send(self, server: Server[Global], to: ClientId) -> Global:
        return server.state

    def client_receive(self, client: Client, down: Global) -> None:
        client.net.header.load_state_dict(down.w)

    def client_update(self, client: Client, down: Global | None) -> ClassStatistics:
        assert down is not None
        if down.class_K is None or down.mean_KD is None or not len(down.class_K):
            client.fit(cross_entropy)
        else:
            client.fit(self.pulled_loss, by_class(down.class_K, down.mean_KD, client.task.num_classes))
        feature_ND = client.outputs(client.net.features)
        if self.virtual_samples:
            client.add_flops(2.0 * len(feature_ND) * feature_ND.shape[1] ** 2)  # operations of the covariances
        return class_statistics(feature_ND, client.data.y, covariance=self.virtual_samples > 0)

    def pulled_loss(self, net: Any, batch: Batch, given: tuple[Tensor, Tensor]) -> Tensor:
        """Cross-entropy plus lambda times the distance to the global mean of the sample's class, a scalar.

        given: mean_CD, and known_C (bool). A sample of a class without a known mean adds 0 to the second term; the
        divisor is still the whole batch.
        """
        mean_CD, known_C = given
        feature_BD = net.features(batch.x)
        pull_B = (feature_BD - mean_CD[batch.y]).square().sum(1)
        if not self.squared:
            pull_B = (pull_B + 1e-12).sqrt()  # the gradient of sqrt at 0 is infinite
        per_sample_B = F.cross_entropy(net.header(feature_BD), batch.y, reduction="none")
        # Eq. A
        return batch.mean(per_sample_B + self.lambda_ * known_C[batch.y] * pull_B)

    def server_update(self, server: Server[Global], ups: Mapping[ClientId, ClassStatistics]) -> None:
        header = {name: w.clone().requires_grad_() for name, w in server.state.w.items()}
        loss = torch.zeros(())
        for up in ups.values():
            # Eq. 8 and Eq. 9
            loss = header_step(header, up.mean_SD, up.class_S.long(), self.header_lr)
        server.log("header_loss", loss.item())

        held: dict[int, list[Gaussian]] = {}
        for up in ups.values():
            for c, gaussian in zip(up.class_S.tolist(), up.gaussians(), strict=True):
                held.setdefault(c, []).append(gaussian)
        classes = sorted(held)
        draws = shares([sum(part.size for part in held[c]) for c in classes], self.virtual_samples)
        mean_D, virtual_D, trace = {}, [], 0.0
        for c, num_draws in zip(classes, draws, strict=True):
            # Classes are pooled one by one: all factors in float64 would need twice the memory of all uploads.
            pooled = pool(held[c])
            mean_D[c] = pooled.mean_D.float()
            trace += float(pooled.factor_RD.square().sum())
            virtual_D.append(draw(pooled, num_draws, server.rng))
        if self.virtual_samples:
            server.log("covariance_trace", trace / len(classes))
            label_G = torch.repeat_interleave(torch.tensor(classes), torch.tensor(draws))
            server.log("refit_loss", self._refit(header, torch.cat(virtual_D).float(), label_G, server.rng))
        w = {name: value.detach() for name, value in header.items()}
        server.state = Global(w, *self._known(server.state, mean_D))

    def exposed(self, client: Client, up: ClassStatistics) -> OutputOf:
        # In the attack, the client has one sample, so its covariance is zero and exposes nothing more.
        return OutputOf(client.net.features, up.mean_SD)

    def _refit(self, header: Weights, virtual_GD: Tensor, label_G: Tensor, rng: torch.Generator) -> float:
        """Train the header on virtual representations; return the mean loss of the last epoch."""
        if self.relu_samples:
            virtual_GD = virtual_GD.relu()
        loss_sum = torch.zeros(())
        for _ in range(self.refit_epochs):
            loss_sum = torch.zeros(())
            for index in torch.randperm(len(label_G), generator=rng).split(self.refit_batch):
                # Eq. 12; `index_select` is several times faster than virtual_GD[index].
                loss = header_step(header, virtual_GD.index_select(0, index), label_G[index], self.refit_lr)
                loss_sum += loss * len(index)
        return loss_sum.item() / len(label_G)

    def _known(self, before: Global, fresh: Mapping[int, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Return class_K and mean_KD for the next broadcast."""
        if not self.lambda_:
            return None, None
        old: dict[int, Tensor] = {}
        if self.stale == "keep" and before.class_K is not None and before.mean_KD is not None:
            old = dict(zip(before.class_K.tolist(), before.mean_KD, strict=True))
        known = old | dict(fresh)
        classes = sorted(known)
        return torch.tensor(classes, dtype=torch.int32), torch.stack([known[c] for c in classes])


def class_statistics(feature_ND: Tensor, label_N: Tensor, covariance: bool) -> ClassStatistics:
    """Return counts, means and, if `covariance`, factors of covariances per class, computed in float64."""
    class_S, mean_SD, count_S = class_means(feature_ND, label_N)  # Eq. 6
    if not covariance:
        return ClassStatistics(class_S.int(), count_S.int(), mean_SD, None)
    factors = []
    for c in class_S:
        value_ND = feature_ND[label_N == c].double()
        # Eq. B
        factor_RD = (value_ND - value_ND.mean(0)) / max(len(value_ND) - 1, 1) ** 0.5
        if len(factor_RD) > factor_RD.shape[1]:
            factor_RD = torch.linalg.qr(factor_RD, mode="r").R
        factors.append(factor_RD.to(feature_ND.dtype))
    return ClassStatistics(class_S.int(), count_S.int(), mean_SD, torch.cat(factors))


def pool(parts: Sequence[Gaussian]) -> Gaussian:
    """Pool Gaussians: return the moments of all their samples together, in float64.

    The rows of the factor follow (n-1) Sigma = sum (n_k-1) Sigma_k + sum n_k (mu_k - mu)(mu_k - mu)^T, which is
    centred, so that no large numbers cancel. The last line of Eq. 11 has n_k instead of n_k - 1, which inflates the
    covariance.
    """
    size = sum(part.size for part in parts)
    # Eq. 10. The only division comes last, so that integers stay exact.
    mean_D = torch.stack([part.size * part.mean_D.double() for part in parts]).sum(0) / size
    rows = []
    for part in parts:
        # Eq. 11
        rows.append(part.factor_RD.double() * ((part.size - 1) / max(size - 1, 1)) ** 0.5)
        rows.append((part.mean_D.double() - mean_D)[None] * (part.size / max(size - 1, 1)) ** 0.5)
    return Gaussian(size, mean_D, torch.cat(rows))


def shares(counts: Sequence[int], total: int) -> list[int]:
    """Split `total` in proportion to `counts` by largest remainder; of equal remainders, the first wins."""
    whole = sum(counts)
    found = [total * n // whole for n in counts]  # Eq. C
    # `sorted` is stable, and integer remainders have no rounding errors, so ties are exact.
    by_remainder = sorted(range(len(counts)), key=lambda i: -(total * counts[i] % whole))
    for i in by_remainder[: total - sum(found)]:
        found[i] += 1
    return found


def draw(gaussian: Gaussian, num_draws: int, rng: torch.Generator) -> Tensor:
    """Draw samples [num_draws, D] in float64. The covariance may be singular, as it is for fewer than D samples."""
    if not num_draws:
        return gaussian.mean_D.new_empty(0, len(gaussian.mean_D))
    noise_GR = torch.randn(num_draws, len(gaussian.factor_RD), generator=rng, dtype=torch.float64)
    # Eq. D
    return gaussian.mean_D + noise_GR @ gaussian.factor_RD
