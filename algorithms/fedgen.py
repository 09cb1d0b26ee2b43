"""FedGen: the server trains a generator of representations with the clients' headers; clients also train on its output.

Zhu, Hong, Zhou. ICML 2021. https://arxiv.org/abs/2105.10056
A participant takes the server's header and generator, trains on its own data, and trains its header on generated
representations of labels that the last participants had. It sends its header and label counts. The server averages the
headers and trains the generator so that the participants' headers classify each of its representations as the label
for which it was generated. Extractors stay at the clients, so that their architectures may differ.

Shapes: N samples, B batch, C classes, D representation width, K participants, E = noise numbers + C.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.core import (
    Algorithm,
    Batch,
    Client,
    ClientId,
    Count,
    LocalTraining,
    NonNegative,
    Positive,
    Server,
    Task,
    UpdateOf,
    Weights,
    message,
    tensors,
    weights,
)
from raysim.core.fields import Range
from raysim.core.ops import cross_entropy, kl, weighted_mean

MOST_NUMBERS = 2**28
"""Maximum number of values that are generated at once in a round: 1 GiB."""


@message
class Broadcast:
    """The server's header and generator, and the probability of each label in draws."""

    header: Weights
    generator: Weights | None  # None: nothing is generated in this round
    label_C: Tensor | None  # probabilities, whose sum is 1


@message
class Upload:
    """A client's header, and its number of samples of each class."""

    header: Weights
    count_C: Tensor  # int32


class Generator(nn.Module):
    """A network from a row of noise and a label to a representation."""

    def __init__(self, inputs: int, hidden: int, width: int) -> None:
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, width)

    def forward(self, x_BE: Tensor) -> Tensor:
        """The representations [B, D]."""
        # Eq. A
        return self.out(self.norm(self.hidden(x_BE)).relu())


@dataclass(frozen=True)
class FedGen(Algorithm[Broadcast, Upload, Broadcast]):
    """Share headers, which also train on representations from a generator at the server."""

    paper: ClassVar[str] = "Zhu et al., ICML 2021, https://arxiv.org/abs/2105.10056"
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {
            "alpha": 10.0,
            "beta": 10.0,
            "decay": 0.98,
            "untrained": False,
            "agg": "weighted",
            "labels": "uniform",
            "noise": "uniform",
            "ensemble": "losses",
            "diversity": 1.0,
        },
    }

    alpha: NonNegative = 1.0
    """Weight of the generated representations in a client's loss."""
    beta: NonNegative = 0.0
    """Weight of the distance between a client's predictions for its samples and for generated representations with the
    same labels. This term is only in the released code."""
    decay: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Factor by which `alpha`, `beta` and `generator_lr` change in every round."""
    untrained: bool = True
    """Clients learn from the untrained generator in round 1. `false`: they learn from it from round 2 on (the released
    code)."""
    agg: Literal["uniform", "weighted"] = "uniform"
    """Weights of headers in the mean: all equal (the paper), or by sample counts (the released code)."""
    labels: Literal["counts", "uniform"] = "counts"
    """How labels are drawn: in proportion to the last participants' samples, or uniformly from each participant's
    labels (the released code)."""
    noise: Literal["normal", "uniform"] = "normal"
    """Distribution of the generator's noise: standard normal (the paper), or uniform in [0, 1) (the released code)."""
    ensemble: Literal["logits", "losses"] = "logits"
    """What the generator minimises: the loss of the participants' mean logits (the paper), or the mean of their losses,
    weighted by each participant's number of samples of the label (the released code)."""
    diversity: NonNegative = 0.0
    """Weight of a loss that makes representations of different noise differ (the released code)."""
    noise_dim: Count = 32
    """Number of noise values per representation."""
    hidden_dim: Count = 256
    """Width of the generator's hidden layer."""
    generator_steps: Count = 50
    """Steps of Adam on the generator in every round."""
    generator_batch: Annotated[int, Range(ge=2)] = 32
    """Number of representations per step."""
    generator_lr: Positive = 0.0003
    """Learning rate of the generator."""
    generator_decay: NonNegative = 0.01
    """Weight decay of the generator."""

    def check(self, task: Task) -> None:
        per_sample, width = self.noise_dim + task.num_classes, self.hidden_dim
        inputs, weights = self.generator_steps * self.generator_batch, width * (per_sample + task.feature_dim)
        for fields, what, numbers in (
            (
                "generator_steps, generator_batch and noise_dim",
                "the generator's inputs of a round",
                inputs * per_sample,
            ),
            ("hidden_dim, noise_dim and clients.feature_dim", "the generator's weights", weights),
        ):
            if numbers > MOST_NUMBERS:
                gib = f"{numbers / 2**28:.1f} GiB"
                raise ValueError(f"{fields}: {what} take {gib}, but at most 1 GiB is allowed; reduce one of these keys")

    def server_start(self, server: Server[Broadcast], registrations: Mapping[ClientId, Any]) -> Broadcast:
        num_classes = server.task.num_classes
        header = weights(server.task.new_header())
        return Broadcast(header, weights(self.generator(server.task)), torch.full((num_classes,), 1 / num_classes))

    def server_send(self, server: Server[Broadcast], to: ClientId) -> Broadcast:
        if server.t == 1 and not self.untrained:
            return Broadcast(server.state.header, None, None)
        return server.state

    def client_receive(self, client: Client, down: Broadcast) -> None:
        client.net.header.load_state_dict(down.header)

    def client_update(self, client: Client, down: Broadcast | None) -> Upload:
        assert down is not None
        client.fit(self.loss, self.generated(client, down))
        return Upload(weights(client.net.header), client.data.y.bincount(minlength=client.task.num_classes).int())

    def generated(self, client: Client, down: Broadcast) -> tuple[Tensor, ...] | None:
        """Return a representation and a label for each sample, on which a client also trains; see `loss`."""
        if down.generator is None or down.label_C is None:
            return None
        generator = self.generator(client.task)
        generator.load_state_dict(down.generator)
        generator.eval()
        size, num_classes = len(client.data), client.task.num_classes
        label_N = torch.multinomial(down.label_C, size, replacement=True)
        drawn = [label_N, client.data.y] if self.beta else [label_N]
        rows = [self.inputs(self.draw(torch.empty(size, self.noise_dim)), y_N, num_classes) for y_N in drawn]
        with torch.no_grad():
            latents = [generator(row_NE) for row_NE in rows]
        client.add_flops(2.0 * size * len(rows) * sum(w.numel() for w in generator.parameters()))
        share = self.decay ** (client.t - 1)
        return latents[0].new_tensor(share), label_N, *latents

    def loss(self, net: Any, batch: Batch, given: tuple[Tensor, ...] | None) -> Tensor:
        """The cross-entropy of the samples, plus that of a generated representation per sample.

        given: the present share of alpha and beta, label_N, latent_ND, and, with beta, the representations [N, D] that
        were generated of the samples' own labels.
        """
        logits_BC = net(batch.x)
        total = cross_entropy(lambda _: logits_BC, batch, None)
        if given is None:
            return total
        share, label_N, latent_ND, *same = given
        made = Batch(latent_ND[batch.index], label_N[batch.index], batch.index, batch.weight)
        # Eq. B
        total = total + share * self.alpha * cross_entropy(net.header, made, None)
        for same_ND in same:
            # Eq. C
            total = total + share * self.beta * batch.mean(kl(logits_BC, net.header(same_ND[batch.index])))
        return total

    def server_update(self, server: Server[Broadcast], ups: Mapping[ClientId, Upload]) -> None:
        weighted = self.agg == "weighted"
        # Eq. D
        header = weighted_mean((server.num_samples[k] if weighted else 1, up.header) for k, up in ups.items())
        count_KC = torch.stack([up.count_C for up in ups.values()]).float()
        total_C = count_KC.sum(0)
        # Eq. E
        label_C = F.normalize(total_C if self.labels == "counts" else (total_C > 0).float(), p=1, dim=0)
        assert server.state.generator is not None
        generator = self.generator(server.task)
        generator.load_state_dict(server.state.generator)
        size = self.generator_steps * self.generator_batch
        label_N = torch.multinomial(label_C, size, replacement=True, generator=server.rng)
        noise_N = self.draw(torch.empty(size, self.noise_dim), server.rng)
        data = tensors(self.inputs(noise_N, label_N, len(label_C)), label_N)
        headers = [torch.stack([up.header[name] for up in ups.values()]) for name in ("weight", "bias")]
        given = (*headers, count_KC / total_C.clamp(min=1))
        server.fit(generator, self.generator_loss, given, data=data, local=self.training(server.t))
        made_ND = server.outputs(generator, data)
        hits_N = F.linear(made_ND, header["weight"], header["bias"]).argmax(1) == label_N
        server.log("generated_accuracy", float(hits_N.float().mean()))
        server.state = Broadcast(header, weights(generator), label_C)

    def exposed(self, client: Client, up: Upload) -> UpdateOf:
        return UpdateOf(client.net.header, up.header)

    def generator_loss(self, net: Any, batch: Batch, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The loss of the participants' headers for generated representations.

        given: their weight_KCD and bias_KC, and share_KC, the share of each class's samples that a participant has.
        """
        weight_KCD, bias_KC, share_KC = given
        latent_BD = net(batch.x)
        logits_KBC = latent_BD @ weight_KCD.transpose(1, 2) + bias_KC[:, None]
        if self.ensemble == "logits":
            # Eq. F
            total = cross_entropy(lambda _: logits_KBC.mean(0), batch, None)
        else:
            loss_BK = F.cross_entropy(
                logits_KBC.permute(1, 2, 0), batch.y[:, None].expand(-1, len(bias_KC)), reduction="none"
            )
            # Eq. G
            total = batch.mean((share_KC[:, batch.y].T * loss_BK).sum(1))
        if self.diversity:
            total = total + self.diversity * alike(batch.x[:, : self.noise_dim], latent_BD)
        return total

    def generator(self, task: Task) -> Generator:
        """Return a new generator."""
        return Generator(self.noise_dim + task.num_classes, self.hidden_dim, task.feature_dim)

    def training(self, t: int) -> LocalTraining:
        """Return the training settings of the generator in a round."""
        lr = self.generator_lr * self.decay ** (t - 1)
        return LocalTraining(1, self.generator_batch, "adam", lr, weight_decay=self.generator_decay)

    def draw(self, noise: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Fill a tensor with noise, and return it."""
        return noise.normal_(generator=rng) if self.noise == "normal" else noise.uniform_(generator=rng)

    def inputs(self, noise_NE: Tensor, label_N: Tensor, num_classes: int) -> Tensor:
        """Return noise and label of each representation, as the input of the generator."""
        return torch.cat([noise_NE, F.one_hot(label_N, num_classes).to(noise_NE.dtype)], 1)


def alike(noise_BE: Tensor, latent_BD: Tensor) -> Tensor:
    """Return the similarity of representations with different noise: at most 1, if all are equal."""
    noise_BB = (noise_BE[:, None] - noise_BE).square().mean(2)
    latent_BB = (latent_BD[:, None] - latent_BD).abs().mean(2)
    # Eq. H
    return (-(noise_BB * latent_BB).mean()).exp()
