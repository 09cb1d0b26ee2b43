"""Aggregation rules that replace the mean of uploads, because some uploads may be malicious.

They treat all uploads alike, whatever the clients' numbers of samples are. Shapes: K uploads, P values of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol

from raysim.core.fields import Range

if TYPE_CHECKING:  # torch takes a second to import, and commands that only look up names of rules do not need it
    import torch
    from torch import Tensor

Number = Annotated[int, Range(ge=0, le=1_000_000)]


class Rule(Protocol):
    """A rule: a frozen dataclass whose fields are the keys of `aggregator.rule`."""

    def combine(self, row_KP: Tensor) -> Tensor:
        """Combine the uploads, float64 [K, P], into one, [P]. K is at least 1, and may differ between rounds."""


@dataclass(frozen=True)
class Median:
    """The median of each value over the uploads (Yin et al., ICML 2018, https://arxiv.org/abs/1803.01498)."""

    per_value: ClassVar[bool] = True

    def combine(self, row_KP: Tensor) -> Tensor:
        """See `Rule`. NaN: an upload that lacks this value."""
        sorted_KP, count_P = _sorted(row_KP)
        below_P, above_P = (count_P - 1).clamp(min=0) // 2, count_P // 2
        return (sorted_KP.gather(0, below_P[None]) + sorted_KP.gather(0, above_P[None]))[0] / 2


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each value after its smallest and greatest ones are removed (Yin et al., arXiv 1803.01498)."""

    malicious: Number
    """How many of the smallest and how many of the greatest values to leave out; of few uploads, fewer."""
    per_value: ClassVar[bool] = True

    def combine(self, row_KP: Tensor) -> Tensor:
        """See `Rule`. NaN: an upload that lacks this value."""
        sorted_KP, count_P = _sorted(row_KP)
        import torch

        trimmed_P = ((count_P - 1) // 2).clamp(max=self.malicious)
        place_K1 = torch.arange(len(row_KP))[:, None]
        kept_KP = (place_K1 >= trimmed_P) & (place_K1 < count_P - trimmed_P)
        return sorted_KP.masked_fill(~kept_KP, 0.0).sum(0) / kept_KP.sum(0)


@dataclass(frozen=True)
class Krum:
    """The upload that is nearest to its K - malicious - 2 nearest neighbours (Blanchard et al., NeurIPS 2017)."""

    malicious: Number
    """How many of a round's uploads are assumed to be malicious."""

    def combine(self, row_KP: Tensor) -> Tensor:
        """See `Rule`."""
        return row_KP[int(krum_scores(row_KP, self.malicious).argmin())]


@dataclass(frozen=True)
class MultiKrum:
    """The mean of the K - malicious uploads with the smallest Krum scores (Blanchard et al., NeurIPS 2017)."""

    malicious: Number
    """How many of a round's uploads are assumed to be malicious."""

    def combine(self, row_KP: Tensor) -> Tensor:
        """See `Rule`."""
        kept = krum_scores(row_KP, self.malicious).argsort(stable=True)[: max(1, len(row_KP) - self.malicious)]
        return row_KP[kept.sort().values].mean(0)


@dataclass(frozen=True)
class NormClipping:
    """The mean of the uploads, after uploads that are far from their median are moved towards the median."""

    def combine(self, row_KP: Tensor) -> Tensor:
        """See `Rule`."""
        center_P = Median().combine(row_KP)
        norm_K = (row_KP - center_P).norm(dim=1)
        bound = Median().combine(norm_K[:, None])
        factor_K = (bound / norm_K).where(norm_K > bound, 1.0)
        return center_P + (factor_K[:, None] * (row_KP - center_P)).mean(0)


class Mixing(Protocol):
    """Mixing before a rule: a frozen dataclass whose fields are the keys of `aggregator.mixing`."""

    def mix(self, row_KP: Tensor, rng: torch.Generator) -> Tensor:
        """Return the rows [any number, P] that the rule gets instead of these rows."""


@dataclass(frozen=True)
class Bucketing:
    """Means of uploads that are put into buckets at random (Karimireddy et al., ICLR 2022, arXiv 2006.09365)."""

    size: Annotated[int, Range(ge=1, le=1_000_000)] = 2
    """Uploads in a bucket; the last bucket may have fewer."""

    def mix(self, row_KP: Tensor, rng: torch.Generator) -> Tensor:
        """See `Mixing`."""
        import torch

        order_K = torch.randperm(len(row_KP), generator=rng)
        return torch.stack([row_KP[bucket].mean(0) for bucket in order_K.split(self.size)])


@dataclass(frozen=True)
class NearestNeighbourMixing:
    """Each upload becomes the mean of the K - malicious uploads nearest to it (Allouah et al., AISTATS 2023)."""

    malicious: Number
    """How many of a round's uploads are assumed to be malicious."""

    def mix(self, row_KP: Tensor, rng: torch.Generator) -> Tensor:
        """See `Mixing`."""
        import torch

        near_KM = distances(row_KP).argsort(dim=1, stable=True)[:, : max(1, len(row_KP) - self.malicious)]
        return torch.stack([row_KP[near_M.sort().values].mean(0) for near_M in near_KM])


RULES: dict[str, type] = {
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "multi_krum": MultiKrum,
    "norm_clipping": NormClipping,
}
"""Name in a scenario -> rule. A custom rule is named as `./mine.py:Mine`, and so is a custom mixing."""

MIXINGS: dict[str, type] = {"bucketing": Bucketing, "nearest_neighbour": NearestNeighbourMixing}


@dataclass(frozen=True)
class RobustMean:
    """A rule in place of a mean, and the mixing before it."""

    rule: Rule
    mixing: Mixing | None = None

    def __call__(self, row_KP: Tensor, rng: torch.Generator) -> Tensor:
        """Combine rows of any shape, [K, ...], into one, [...], in float64."""
        flat_KP = row_KP.double().flatten(1)
        mixed_KP = flat_KP if self.mixing is None else self.mixing.mix(flat_KP, rng)
        return self.rule.combine(mixed_KP).reshape(row_KP.shape[1:])

    def of_weights(self, parts: list[dict[str, Tensor]], rng: torch.Generator) -> dict[str, Tensor]:
        """Combine the floating-point tensors of all parts, one row per part; other tensors come from the first."""
        import torch

        names = [name for name, tensor in parts[0].items() if tensor.is_floating_point()]
        row_KP = torch.stack([torch.cat([part[name].double().flatten() for name in names]) for part in parts])
        sizes = [parts[0][name].numel() for name in names]
        combined = dict(zip(names, self(row_KP, rng).split(sizes), strict=True))
        return {
            name: combined[name].reshape(tensor.shape).to(tensor.dtype) if name in combined else tensor
            for name, tensor in parts[0].items()
        }


def krum_scores(row_KP: Tensor, malicious: int) -> Tensor:
    """Return each row's sum of squared distances to its K - malicious - 2 nearest neighbours, [K]."""
    near = max(1, len(row_KP) - malicious - 2)
    return distances(row_KP).sort(1).values[:, 1 : 1 + near].square().sum(1)  # the nearest row is the row itself


def distances(row_KP: Tensor) -> Tensor:
    """Return the Euclidean distances between all rows, [K, K]; each row's distance to itself is the smallest."""
    import torch

    gap_KK = torch.cdist(row_KP, row_KP, compute_mode="donot_use_mm_for_euclid_dist")
    return gap_KK.fill_diagonal_(-1.0)


def _sorted(row_KP: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values of each column in ascending order, NaN last, and the number of values that are not NaN, [P]."""
    return row_KP.sort(0).values, (~row_KP.isnan()).sum(0)
