"""The interface between engine and algorithms: the class `Algorithm` and the arguments of its hooks.

Each round calls four hooks in this order; three more run once:

    once:        client_model   client_register   server_start
    each round:  server_send -> client_receive -> client_update -> server_update

`exposed` is not part of a run: `examples/leaks.py` calls it to find out what an upload exposes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from raysim.common.errors import ScenarioError
from raysim.common.text import quoted
from raysim.core.client_flops import fit_flops, sample_flops
from raysim.core.data import Samples, Shuffled
from raysim.core.exposed import Exposed
from raysim.core.fields import check_settings
from raysim.core.fit import Bounds, FitJob, LocalTraining, Loss, Trainer, fit_one, has_batchnorm, training_only
from raysim.core.messages import Weights
from raysim.core.meter import ClientStats, FlopMeter
from raysim.core.ops import weighted_mean
from raysim.core.private import PrivateMean
from raysim.core.robust import RobustMean
from raysim.core.torch_workarounds import eval_mode

ClientId = int
Down = TypeVar("Down")  # server -> client message
Up = TypeVar("Up")  # client -> server message
State = TypeVar("State")  # the server's state between rounds


class SplitModel(Protocol):
    """Every model in raysim: a feature extractor of any shape, then a linear header."""

    header: nn.Linear  # weight [C, D], bias [C]

    def features(self, x: Tensor) -> Tensor:
        """The representation [B, D] of samples [B, ...]."""

    def __call__(self, x: Tensor) -> Tensor:
        """The logits [B, C] of samples [B, ...]."""


def pixels(x_BCHW: Tensor) -> Tensor:
    """Encode each sample [C, H, W] or [F] as its flattened values minus their mean over the sample."""
    flat_Bh = x_BCHW.flatten(1)
    return flat_Bh - flat_Bh.mean(1, keepdim=True)


def only_pixels(name: str) -> Callable[[Tensor], Tensor]:
    """Return `pixels`, the only encoder of a task by default; any other name raises `ValueError`."""
    if name != "pixels":
        raise ValueError(f"encoder: {name} is not available; allowed: pixels")
    return pixels


@dataclass(frozen=True)
class Task:
    """The task that all clients and the server know before training.

    >>> from raysim.algorithms.standalone import Standalone
    >>> from raysim.contract.trial import Trial
    >>> task = Trial(Standalone()).task
    >>> task.num_classes, task.feature_dim, task.architectures
    (4, 8, ('flat', 'norm', 'deep'))
    >>> task.new_header()
    Linear(in_features=8, out_features=4, bias=True)
    """

    num_classes: int  # C
    feature_dim: int  # D, the same for every architecture
    architectures: tuple[str, ...]  # distinct architectures of the clients, in order of first use
    model: Callable[..., Any]
    """name -> a fresh SplitModel with the initial weights that its clients share. Further strings name a purpose with
    separate weights; `feature_dim` replaces D as the width of the representation."""
    num_rounds: int = 1  # T
    encoder: Callable[[str], Any] = only_pixels
    """name -> a fixed function from normalised images [B, C, H, W] to [B, h]. Raises `ValueError` for a name that
    is unknown, not available on this machine, or unsuitable for the samples."""
    public: Samples | None = None
    """Data that all clients and the server have (`data.public`), if any; labels outside the task's classes are -1."""
    trained: tuple[str, ...] = ()
    """Architectures of which `model` returns the trained model of another run's server instead of a new model. It is
    only set at the server of a run that begins with another run's state (`init`)."""

    def new_header(self) -> nn.Linear:
        """Return a header with new weights [C, D]; the server of a run with `init` gets that of the trained model."""
        if self.trained:
            header: nn.Linear = self.model(self.trained[0]).header
            return header
        return nn.Linear(self.feature_dim, self.num_classes)

    def smallest(self) -> str:
        """Return the architecture with the fewest parameters (the first if equal), the default of `small_model`."""
        return min(self.architectures, key=lambda name: sum(weight.numel() for weight in self.model(name).parameters()))

    def small_model(self, name: str | None, feature_dim: int | None = None) -> Any:
        """Return a new model that all clients share in addition to their own: of architecture `name`, or the smallest.

        Its initial weights are the same for all clients, but differ from those of the clients' own models of that
        architecture, since two equal networks would stay equal. feature_dim: width of its representation; None: D.
        Raises `ValueError` if the task has no such architecture, or if its width cannot be set.
        """
        name = self.smallest() if name is None else name
        width = {} if feature_dim is None else {"feature_dim": feature_dim}
        try:
            model = self.model(name, "small", **width)
        except (ValueError, ScenarioError) as error:
            raise ValueError(f"small: {error}") from None
        if feature_dim is not None and model.header.in_features != feature_dim:
            raise ValueError(
                f"small: the representation of {name} has {model.header.in_features} dimensions instead of the "
                f"requested {feature_dim}; choose a model whose width can be set"
            )
        return model


@dataclass(slots=True)  # Python then refuses attributes that raysim would not keep
class Client:
    """One client, as its algorithm sees it.

    Only `net` is kept between rounds, and of `net` only its parameters and persistent buffers. Setting an attribute
    that is not listed below raises `AttributeError`.

    The loss of `fit` must read every trained tensor through its argument `net` and every per-client tensor through
    `given` or `batch`, so that the engine may train many clients with one call, and must change none of them. To count
    operations, the engine may call it once more for each batch size; the count is then used for all clients of the
    architecture. On a CUDA device, the engine may call it for the first batches only, and then repeat its operations on
    the device (`training.cuda_graphs`). So neither the loss nor the network may use values of Python that change from
    batch to batch, such as a counter. For a batch from which nothing is to be learned, it returns
    `net(batch.x).sum() * 0`.

    >>> from raysim.algorithms.standalone import Standalone
    >>> from raysim.contract.trial import Trial
    >>> from raysim.core.ops import cross_entropy
    >>> client = Trial(Standalone()).client(0, t=1)  # with 16 samples; D = 8
    >>> client.fit(cross_entropy)
    >>> client.outputs(client.net.features).shape
    torch.Size([16, 8])
    """

    id: ClientId
    task: Task
    data: Samples  # training samples of the client
    net: Any  # the network that `client_model` returned
    local: LocalTraining
    rng: torch.Generator  # on the CPU; seeded in each round by run seed, round and client
    t: int = 0  # round, counted from 1
    arch: str = ""  # name of its architecture
    stats: ClientStats = field(default_factory=ClientStats)
    meter: FlopMeter | None = None  # counts operations; None: they are not counted
    trainer: Trainer = fit_one

    def fit(
        self,
        loss: Loss,
        given: Any = None,
        *,
        epochs: int | None = None,
        data: Samples | None = None,
        two_views: bool = False,
        rates: Mapping[str, float] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
        only: Collection[str] | None = None,
    ) -> Tensor | None:
        """Minimise `loss(net, batch, given)` over the local data, with the `training` settings of the scenario.

        epochs: replaces the scenario's `epochs` and `steps`. data: replaces `client.data`. two_views: fill
        `batch.second` with another augmentation of the same samples. rates: learning rates of some parameters of `net`,
        by name; the others use the scenario's; for all, `dict.fromkeys(dict(client.net.named_parameters()), 0.1)`.
        bounds: least and greatest value of some parameters after every step, by name. only: names of the parameters to
        train; the others stay unchanged.

        If the loss returns (scalar, rows) with rows [B, ...], `fit` returns each sample's last row: [N, ...] in data
        order, detached; NaN for samples that the loss never saw (with BatchNorm, a last batch of one sample is left
        out). Else it returns None.

        Raises `ValueError` if `rates`, `bounds` or `only` name anything but a parameter of `net`, or if no batch's loss
        depends on the trained parameters; torch raises `RuntimeError` for a loss without a gradient.
        """
        data = self.data if data is None else data
        batches = _batches(self.net, data, self.local, self.rng, epochs, two_views)
        with training_only(self.net, only):
            rates, bounds = {} if rates is None else rates, {} if bounds is None else bounds
            job = FitJob(self.net, loss, given, batches, self.local, len(data), rates, bounds)
            result = self.trainer(job)
            if self.meter is not None:
                self.stats.flops += fit_flops(self, self.meter, loss, given, batches)
        self.stats.loss_sum += result.loss_sum
        self.stats.samples += result.samples
        self.stats.alone_because = self.stats.alone_because or result.alone_because
        self.stats.single_sample = self.stats.single_sample or (batches.drop_single and len(data) == 1)
        return result.rows

    @torch.no_grad()
    def outputs(self, f: Callable[[Tensor], Tensor], data: Samples | None = None) -> Tensor:
        """Apply `f` to the local data (or `data`) in data order, without augmentation, in eval mode: [N, ...].

        Operations per sample are counted once for all clients of an architecture.
        """
        data = self.data if data is None else data
        with eval_mode(self.net):
            output = torch.cat([f(batch.x) for batch in data.in_order(self.local.batch_size)])
            if self.meter is not None:
                self.stats.flops += len(data) * sample_flops(self, self.meter, f, data)
        return output

    def complete(self, row: Tensor | None, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Fill missing rows of `row` [N, ...], as returned by `fit`, with `outputs(f)`; all rows if `row` is None.

        With BatchNorm, training leaves out a last batch of one sample.
        """
        if row is None:
            return self.outputs(f)
        unseen_N = row.isnan().flatten(1).any(1) if row.dim() > 1 else row.isnan()
        if not bool(unseen_N.any()):
            return row
        return torch.where(unseen_N.view(-1, *[1] * (row.dim() - 1)), self.outputs(f), row)

    def add_flops(self, flops: float) -> None:
        """Count operations outside `fit` and `outputs`, 2 per multiply-add."""
        if self.meter is not None:
            self.stats.flops += flops

    def log(self, name: str, value: float) -> None:
        """Log a value of this client in this round; the participants' mean is tracked as `client/<name>`.

        If a name is logged twice in a round, the last value counts. Raises `ValueError` for an invalid name.
        """
        self.stats.values[metric_name(name)] = float(value)


def drops_single(net: nn.Module, data: Samples, local: LocalTraining) -> bool:
    """Return whether training skips a last batch of one sample, because BatchNorm cannot train on it."""
    # `has_batchnorm` is the slower test, because it visits all modules of the network.
    return len(data) % local.batch_size == 1 and has_batchnorm(net)


def _batches(
    net: nn.Module,
    data: Samples,
    local: LocalTraining,
    rng: torch.Generator,
    epochs: int | None,
    two_views: bool = False,
) -> Shuffled:
    """Return the batches of one training. epochs: replaces the epochs and steps of `local`."""
    steps = local.steps if epochs is None else None
    epochs = local.epochs if epochs is None else epochs
    return data.shuffled(local.batch_size, epochs, rng, drops_single(net, data, local), two_views, steps)


@dataclass(slots=True)  # Python then refuses attributes that raysim would not keep
class Server(Generic[State]):
    """The server, as its algorithm sees it. Only `state` is kept between rounds.

    Setting an attribute that is not listed below raises `AttributeError`.

    >>> from raysim.algorithms.standalone import Standalone
    >>> from raysim.contract.trial import Trial
    >>> server = Trial(Standalone()).server
    >>> server.num_samples
    {0: 16, 1: 13, 2: 14, 3: 12}
    >>> server.log("norm", 2.5)  # tracked as server/norm
    """

    task: Task
    rng: torch.Generator  # on the CPU; seeded in each round by run seed and round
    num_samples: Mapping[ClientId, int] = field(default_factory=dict)  # n_k, known before round 1
    t: int = 0  # round, counted from 1
    state: State = field(default=None)  # type: ignore[assignment]
    values: dict[str, float] = field(default_factory=dict)
    local: LocalTraining = field(default_factory=LocalTraining)  # the training settings of clients
    # client -> ids of the classes in its data, int64, ascending
    classes: Mapping[ClientId, Tensor] = field(default_factory=dict)
    arch: Mapping[ClientId, str] = field(default_factory=dict)  # name of each client's architecture
    robust: RobustMean | None = None  # the rule of the section `aggregator`, which replaces the mean of uploads
    private: PrivateMean | None = None  # the mean with noise, from the section `privacy`; uploads are then sealed

    def mean(self, parts: Mapping[ClientId, Weights], weighted: bool = True) -> Weights:
        """Return the mean of the clients' tensors as `ops.weighted_mean` does, or the result of the aggregation rule.

        weighted: by the clients' numbers of samples; False: all are equal. A rule of `aggregator`, and `privacy` at the
        server, treat them as equal.

        >>> from raysim.core.algorithm import Server
        >>> server = Server(task=None, rng=torch.Generator(), num_samples={0: 1, 1: 3})
        >>> server.mean({0: {"w": torch.tensor([0.0])}, 1: {"w": torch.tensor([4.0])}})
        {'w': tensor([3.])}
        """
        if self.private is not None:
            return self.private.mean([*parts.values()])
        if self.robust is None:
            return weighted_mean((self.num_samples[k] if weighted else 1, part) for k, part in parts.items())
        return self.robust.of_weights([*parts.values()], self.rng)

    @property
    def combine_values(self) -> Callable[[Tensor], Tensor] | None:
        """The rule that replaces the mean of each value over the clients that have it; None: no rule.

        A function of the clients' values [K, ...], NaN where a client has none, that returns one value each, [...].
        """
        robust = self.robust
        return None if robust is None else lambda value_K: robust(value_K, self.rng)

    def class_mean(
        self,
        rows: Mapping[ClientId, Tensor],
        counts: Mapping[ClientId, Tensor] | None = None,
        width: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the mean of each class's rows over the clients that have it, and which classes a client has.

        rows: of each client, [S, D]: one row per class of `server.classes`. counts: weights of these rows, [S]; None:
        all are equal. width: of a row; None: D. Returns (mean_CD, zero for a class that no client has; known_C, bool).
        Sums are in float64. With `aggregator`, its rule takes the place of each mean, without the counts.
        """
        if self.private is not None:
            width = self.task.feature_dim if width is None else width
            return self.private.class_mean(rows, self.classes, self.task.num_classes, width)
        first = next(iter(rows.values()))
        sum_CD = torch.zeros(self.task.num_classes, first.shape[1], dtype=torch.float64)
        weight_C = torch.zeros(self.task.num_classes, dtype=torch.float64)
        class_S = {k: self.classes[k] for k in rows}
        for k, row_SD in rows.items():
            count_S = torch.ones(len(row_SD)) if counts is None else counts[k]
            sum_CD[class_S[k]] += count_S.double()[:, None] * row_SD.double()
            weight_C[class_S[k]] += count_S.double()
        known_C = weight_C > 0
        mean_CD = (sum_CD / torch.where(known_C, weight_C, 1.0)[:, None]).to(first.dtype)
        if self.robust is not None:
            for c in known_C.nonzero()[:, 0]:
                of_class = [row_SD[class_S[k] == c] for k, row_SD in rows.items()]
                mean_CD[c] = self.robust(torch.cat(of_class), self.rng).to(first.dtype)
        return mean_CD, known_C

    def fit(
        self,
        net: nn.Module,
        loss: Loss,
        given: Any = None,
        *,
        data: Samples,
        epochs: int | None = None,
        local: LocalTraining | None = None,
    ) -> Tensor | None:
        """Minimise `loss(net, batch, given)` over `data`, as `Client.fit` does over a client's data.

        net: made by `task.model`, or kept in `state`. data: `task.public`, or `tensors(x, y)` of what clients sent.
        local: replaces the clients' training settings, except their precision. Returns the rows of the loss, if any.
        """
        # The server computes on the CPU, where float16 takes a hundred times as long as float32.
        precision = self.local.precision if self.local.precision == "bfloat16" else "float32"
        local = replace(self.local if local is None else local, precision=precision)
        batches = _batches(net, data, local, self.rng, epochs)
        return fit_one(FitJob(net, loss, given, batches, local, len(data))).rows

    @torch.no_grad()
    def outputs(self, net: nn.Module, data: Samples, f: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Apply `f` (default: the network) to `data` in order, without augmentation, in eval mode: [N, ...]."""
        with eval_mode(net):
            return torch.cat([(f or net)(batch.x) for batch in data.in_order(self.local.batch_size)])

    def log(self, name: str, value: float) -> None:
        """Log a value of this round as `server/<name>`. If a name is logged twice, the last value is tracked.

        Raises `ValueError` for an invalid name.
        """
        self.values[metric_name(name)] = float(value)


_METRIC = re.compile(r"[\w -]+([/.:][\w -]+)*")
"""The form of names that are valid for an MLflow metric, a table column and a file."""


def metric_name(name: str) -> str:
    """Return the name of a logged value. Raises `ValueError` if it is not a valid metric name."""
    if not isinstance(name, str) or len(name) > 100 or not _METRIC.fullmatch(name):
        raise ValueError(
            f"log: the name {quoted(name)} is invalid; allowed: at most 100 letters, digits, spaces, `_` and `-`; "
            "a slash, a dot or a colon may separate parts, as in accuracy/val"
        )
    return name


@dataclass(frozen=True)
class Algorithm(ABC, Generic[Down, Up, State]):
    """One federated algorithm: hyper-parameters in fields, behaviour in hooks.

    >>> from raysim.core import Algorithm, Header, weights
    >>> from raysim.core.ops import cross_entropy, weighted_mean
    >>> @dataclass(frozen=True)
    ... class MeanHeader(Algorithm[Header, Header, Header | None]):
    ...     def server_send(self, server, to):
    ...         return server.state  # None in round 1: nothing is sent
    ...     def client_receive(self, client, down):
    ...         client.net.header.load_state_dict(down.w)
    ...     def client_update(self, client, down):
    ...         client.fit(cross_entropy)
    ...         return Header(weights(client.net.header))
    ...     def server_update(self, server, ups):
    ...         server.state = Header(weighted_mean((server.num_samples[k], up.w) for k, up in ups.items()))
    >>> from raysim.contract.trial import Trial
    >>> trial = Trial(MeanHeader()).run(2)  # two rounds of four clients
    >>> [sum(hook == name and message is not None for hook, _, message in trial.sent)
    ...  for name in ("server_send", "client_update")]
    [4, 8]

    An algorithm object is frozen and is copied to every process: a `client_*` hook may change only its client, a
    `server_*` hook only its server. Round t runs, for each sampled client, server_send -> client_receive ->
    client_update, and then server_update once. Hooks draw random numbers from torch's global generator (seeded
    by the engine before each hook, keyed by hook, round and client) or from `client.rng` and `server.rng`. These
    two are CPU generators, so a client, which may be on a GPU, draws from its own with
    `torch.rand(3, generator=client.rng, device="cpu").to(x.device)`.

    Fields outside their `Range` or choices raise `ValueError` at construction.
    """

    paper: ClassVar[str] = ""  # citation and address
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Presets of fields, by name, besides the defaults, which follow the paper. `official` follows the authors'
    released code. A scenario chooses a preset with `profile`; fields that the scenario sets itself take precedence."""
    scheduled: ClassVar[bool] = False  # True: the method depends on the total number of rounds
    one_architecture: ClassVar[bool] = False  # True: all clients need one architecture
    public_data: ClassVar[bool] = False  # True: the method needs `task.public`
    two_views: ClassVar[str] = ""
    """The setting that makes local training compare two augmented views of each sample (`client.fit(two_views=True)`).
    Without `data.augment`, the views are equal; raysim then warns, unless the setting is false."""
    averages: ClassVar[Literal["nothing", "uploads", "values"]] = "nothing"
    """`uploads`: `server_update` reads uploads only through `server.mean` or `server.class_mean`, so a rule of
    `aggregator` can replace the mean. `values`: `server_update` averages each value over the clients that have it; only
    rules for single values can replace this mean."""
    stale_uploads: ClassVar[bool] = False
    """True: `server_update` accepts an upload some rounds after its client trained, in a run with `asynchronous`. If
    the upload has the form of the message that the client received, raysim applies its change to the current
    message."""
    state_of_samples: ClassVar[bool] = False
    """True: the server's state refers to public samples, or to the clients' samples or classes. Another run of this
    method can then begin with the state (`init`) only if its clients have the same samples."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def static_downlink(self) -> bool:
        """Whether the server's messages may stay the same in all rounds. Default: no."""
        return False

    def check(self, task: Task) -> None:
        """Raise `ValueError` if these settings cannot work for this task. Default: accept every task."""

    # -- once --------------------------------------------------------------------------------------
    def client_model(self, model: Any, task: Task) -> nn.Module:
        """Return the network that a client keeps, trains and predicts with. Default: `model`, its own architecture."""
        return model

    def client_register(self, client: Client) -> Any:
        """Return the message that a client sends once, before round 1. Default: no message."""
        return None

    def server_start(self, server: Server[State], registrations: Mapping[ClientId, Any]) -> State:
        """Return the server's state before round 1. Default: no state."""
        return None  # type: ignore[return-value]

    # -- every round -------------------------------------------------------------------------------
    def server_send(self, server: Server[State], to: ClientId) -> Down | None:
        """Return the message to the participant `to`. Default: no message.

        Keep a message that does not depend on `to` ready in `server.state`: messages that share storage are
        transferred once.
        """
        return None

    def client_receive(self, client: Client, down: Down) -> None:
        """Load the server's message before training; the client may be evaluated after this hook."""

    @abstractmethod
    def client_update(self, client: Client, down: Down | None) -> Up | None:
        """Train locally and return the upload (`None`: no upload)."""

    def server_update(self, server: Server[State], ups: Mapping[ClientId, Up]) -> None:
        """Update `server.state` from the uploads, which come in client-id order. Default: ignore them."""

    # -- afterwards, for `examples/leaks.py` -------------------------------------------------------
    def exposed(self, client: Client, up: Up) -> Exposed | None:
        """Return what `up` exposes of the only sample in `client.data`. Default: undeclared, so attacks are not run.

        `client.net` is the network as the client received it, or with other private weights. Change neither argument.
        """
        return None


AnyAlgorithm = Algorithm[Any, Any, Any]


def overrides(cls: type[AnyAlgorithm], hook: str) -> bool:
    """Return whether a method defines this optional hook."""
    return getattr(cls, hook) is not getattr(Algorithm, hook)
