"""The keys of a scenario file as typed classes, with each key's meaning, default and range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from raysim.common.results import Scalar, written
from raysim.core.fields import Count, Fraction, NonNegative, NonNegativeInt, Positive, Range, in_words
from raysim.core.robust import MIXINGS, RULES
from raysim.data.partition import PARTITIONS
from raysim.engine.learning_rate import SCHEDULES
from raysim.engine.policies.asynchronous import DISCOUNTS
from raysim.engine.policies.attacks import ATTACKS
from raysim.engine.policies.placement import NodeOrder
from raysim.engine.policies.sampling import SELECTIONS
from raysim.engine.policies.system import DISTRIBUTIONS
from raysim.scenario.deciding import DECIDING

if TYPE_CHECKING:
    from raysim.core.algorithm import AnyAlgorithm as Method

    Named = Any
else:
    Method = Named = Annotated[dict[str, Any], "a mapping of `name` and its fields, such as {name: NAME}"]
"""A section whose `name` chooses a class. In the file it is a mapping, and in a scenario an object of the class."""


@dataclass(frozen=True)
class Choices:
    """The classes among which the `name` of a section chooses."""

    classes: Mapping[str, type]
    hook: str = ""
    """The method that a user's own class must define; empty if the section accepts no class of the user."""


Auto = Literal["auto"]
_SOME = "a list of at least 1 entry, each"
OUTPUT = "runs"
"""The default of `output`, in the current folder."""

AtLeastOne = Annotated[int, Range(ge=1, le=1_000_000_000)]
Seed = Annotated[int, Range(ge=0, le=2**63 - 1)]


class Section(BaseModel):
    """Base class of all sections, which refuses wrong types and unknown keys."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class Normalise(Section):
    """Normalisation of pixels or features before a network reads them: (value - mean) / std."""

    mean: Annotated[list[float], Field(min_length=1), f"{_SOME} a number"]
    """One number per channel or feature, or one for all features. With three numbers for grey images, the grey channel
    is repeated to three channels."""
    std: Annotated[list[Positive], Field(min_length=1), f"{_SOME} {in_words(Positive)}"]
    """As many numbers as `mean` has."""
    scaled: bool = True
    """Whether `mean` and `std` refer to pixels scaled to [0, 1]; `false`: to pixels from 0 to 255."""


class Public(Section):
    """Public data that the server and all clients have, for methods that use it: a share of the clients' data set, or
    another data set."""

    share: Annotated[float, Range(gt=0, lt=1)] | None = None
    """Share of the training samples to use as public data, drawn at random; no client gets these samples. `samples`
    may limit their number; clients get the rest."""
    name: str | None = None
    """Name of another published data set, with samples of the same shape. Its labels are not used."""
    samples: AtLeastOne | None = None
    """Maximum number of public samples, drawn at random; `null`: no limit."""


class SplitShares(Section):
    """Shares of a client's samples of each class for training, validation and test; the sum is 1."""

    train: Annotated[float, Range(gt=0, lt=1)]
    val: Annotated[float, Range(ge=0, lt=1)] = 0.0
    test: Annotated[float, Range(gt=0, lt=1)]


class Data(Section):
    """The data set, and how its samples are divided among the clients."""

    name: str
    """Name of the data set; see `raysim list datasets`."""
    path: str | Annotated[list[str], Field(min_length=1, max_length=2), "a list of 1 or 2, each text"] | None = None
    """Your own files, for the data sets parquet, csv, images and numpy: a file or a folder; or a list of two, first the
    train part and then the test part. In a single folder, files or sub-folders whose names begin with train are the
    train part. Those whose names begin with test are the test part; if there are none, those whose names begin with
    val. If no name begins with train, all files are the train part. Like all paths, this path is
    relative to the folder of the file that contains it, or to the current folder if `--set` gives it."""
    label: str = "label"
    """Column of the labels in your own Parquet or CSV files: whole numbers or text. Whole numbers from 0 are class ids;
    the different texts, or other whole numbers, become the classes, in sorted order."""
    features: str | list[str] | None = None
    """Columns of the features in your own Parquet or CSV files, or patterns such as `px_*`. `null`: the column of
    images if there is one, else all columns except label and id."""
    size: AtLeastOne | None = None
    """Side in pixels to which your own images are resized; `null`: no resizing, all images must have the same size."""
    root: str | None = None
    """Folder that contains the data set, itself or in a sub-folder with the data set's name. Default: the folder in the
    environment variable RAYSIM_DATA, then the cache: ~/.cache/raysim/data, or `data` in the folder in RAYSIM_CACHE."""
    format: Literal["auto", "parquet", "torchvision", "idx", "folder"] = "auto"
    """Layout of the files; `auto` tries all of them."""
    partition: Annotated[Named, Choices(PARTITIONS, "shares")] = Field(default_factory=lambda: {"name": "iid"})
    """How samples are divided among clients: `name` and that partition's fields; see `raysim list partitions`."""
    split: Literal["auto", "pooled811", "pfedhn", "published", "listed"] | SplitShares = "auto"
    """Which of a client's samples are for training and which for testing. `pooled811`: divide all samples among the
    clients, then split each client's samples of a class 8:1:1, rounded so that training comes first and test second.
    With few samples per client and class, clients therefore have fewer validation samples than test samples. `{train:
    0.75, test: 0.25}`, and `val`: the same with other shares. `pfedhn`:
    split the published training part 4:1 into training and validation samples, and test on the published test part.
    `published`: train and test on the published parts. `listed`: as in the file of the partition `listed`. `auto`:
    `published` with the partition `hks`, `listed` with `listed`, otherwise `pooled811`. For your own files, the train
    part and the test part count as published."""
    augment: bool = False
    """Augment training batches with random flips, crops and erasing."""
    normalise: Normalise | None = None
    """Normalisation, (value - mean) / std. For images: one `mean` and one `std` per channel; three of each for grey
    images also repeat the grey channel to three channels. Set `scaled: false` if `mean` and `std` refer to pixels from
    0 to 255 instead of 0 to 1. For features: one `mean` and one `std` per feature, or one for all features. `null`: the
    constants of the data set; for your own files, statistics of training samples."""
    public: Public | None = None
    """Public data that the server and all clients have: `{share: 0.1}` of this data set, or another data set by its
    `name`. `null`: no public data; methods that need it refuse to run."""


Trait = Annotated[
    Positive | Annotated[list[Positive], Field(min_length=1)] | dict[str, Any] | None,
    "a number greater than 0, a list of them, {name: uniform, low, high}, {name: log_normal, median, sigma} or null",
    Choices(DISTRIBUTIONS),
]
Wait = Annotated[
    NonNegative | Annotated[list[NonNegative], Field(min_length=1)] | dict[str, Any] | None,
    "a number of at least 0, a list of them, {name: uniform, low, high}, {name: log_normal, median, sigma} or null",
    Choices(DISTRIBUTIONS),
]
Share = Annotated[
    Fraction | Annotated[list[Fraction], Field(min_length=1)] | dict[str, Any] | None,
    "a number from 0 to 1, a list of them, {name: uniform, low, high} or null",
    Choices(DISTRIBUTIONS),
]


class Clients(Section):
    """The clients, their architectures, and how many take part in a round."""

    count: Annotated[int, Range(ge=1, le=1_000_000)] | Auto
    """Number of clients; `auto`: the number of clients that the partition (`natural` or `listed`) makes."""
    participation: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of all clients that take part in a round, rounded down to a whole number; each round draws them anew."""
    selection: Annotated[Named, Choices(SELECTIONS, "select")] = Field(default_factory=lambda: {"name": "uniform"})
    """How a round's participants are drawn: `name` and that policy's fields. `uniform`: all clients are equally likely;
    `by_samples`: clients with more training samples are more likely; `fastest`: draw `candidates` times as many clients
    as are needed, uniformly, and take those that compute fastest."""
    oversample: Annotated[float, Range(ge=1)] = 1.0
    """Factor by which more clients are selected than the round needs: with 1.5, a round that needs 10 clients selects
    15. The round uses the 10 that finish first in virtual time; the others keep the state that they had before the
    round. Needs `system`."""
    deadline_s: Positive | None = None
    """Deadline of a round in virtual seconds. The round does not use participants that finish later; they keep the
    state that they had before the round. `null`: no deadline. Needs `system`."""
    models: Annotated[list[str], Field(min_length=1), f"{_SOME} text"]
    """Names of the architectures; client k gets models[k % len(models)]. See `raysim list models`."""
    feature_dim: AtLeastOne | Auto = "auto"
    """Width of the representation that all architectures share; `auto`: their native width."""
    held_out: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Share of the clients that never take part, drawn once. They are tested as new clients: `accuracy/held_out`. Needs
    `evaluation.clients: all`."""
    independent_init: bool = False
    """Draw initial weights per client instead of once per architecture."""

    @property
    def number(self) -> int:
        """The number of clients: `count`, known once the scenario is checked."""
        assert isinstance(self.count, int)
        return self.count


class System(Section):
    """The clients' devices and connections, for virtual time: flops / flops_per_s + bytes / bandwidth + latency_s.

    Each key is one number for all clients, a list (client k gets entry k % length, as in clients.models), or a
    distribution, from which each client gets one value for the whole run.
    """

    flops_per_s: Trait = None
    """Floating-point operations per second. `null`: computing takes no time."""
    up_mbit_per_s: Trait = None
    """Megabits (10^6) per second from client to server. `null`: uploads take no time."""
    down_mbit_per_s: Trait = None
    """Megabits (10^6) per second from server to client. `null`: downloads take no time."""
    latency_s: Wait = None
    """Seconds that a client round takes in addition to computing and sending. `null`: 0."""
    availability: Share = None
    """The probability that a client can be selected in a round. `null`: 1."""
    dropout: Share = None
    """The probability that a selected client does not finish the round; it then keeps the state that it had before.
    `null`: 0."""
    trace: str | None = None
    """A CSV or Parquet file with the column `client`, columns for any of the keys above, and one row per client. A run
    records its SHA-256, so that it can be resumed only with the same content."""


class Adversary(Section):
    """Malicious clients, which deviate from the method."""

    clients: Annotated[float, Range(gt=0, lt=1)] | str
    """The malicious clients: a share of all, drawn with the seed of cohorts, or ranges of ids such as "0-3,7"."""
    attack: Annotated[Named, Choices(ATTACKS, "change")]
    """The attack of the malicious clients: `name` and that attack's fields. See `raysim list attacks`."""


class Aggregator(Section):
    """A rule that replaces the mean of uploads at the server, to tolerate malicious clients."""

    rule: Annotated[Named, Choices(RULES, "combine")]
    """The rule: `name` and its fields. See `raysim list rules`."""
    mixing: Annotated[Named | None, Choices(MIXINGS, "mix")] = None
    """Preprocessing of the uploads before the rule: `name` and its fields; see `raysim list mixings`. `null`: none."""


class Privacy(Section):
    """Differential privacy of clients: uploads are clipped, noise is added, and the loss of privacy is accounted."""

    clip: Positive
    """Maximum Euclidean norm of the difference between an upload and the message that the client received; a larger
    difference is scaled down."""
    noise_multiplier: NonNegative
    """Standard deviation of the Gaussian noise, as a multiple of `clip`."""
    noise_at: Literal["server", "client"] = "server"
    """Where noise is added: to a round's sum at the server, or to each upload at its client."""
    delta: Annotated[float, Range(gt=0, lt=1)]
    """The delta for which epsilon is reported."""
    accountant: Literal["rdp", "pld"] = "rdp"
    """The method by which dp-accounting composes the rounds: Renyi divergence, or the distribution of the privacy loss,
    which gives a tighter epsilon."""


class Asynchronous(Section):
    """Rounds that end with the first uploads to arrive. Later uploads count in a later round. Times are virtual."""

    buffer: Count
    """Number of uploads that end a round. `clients.participation` sets how many clients train at the same time."""
    discount: Annotated[Named, Choices(DISCOUNTS, "factor")] = Field(default_factory=lambda: {"name": "polynomial"})
    """Discount of stale uploads: `name` and its fields. See `raysim list discounts`."""
    rate: Annotated[float, Range(gt=0, le=1)] = 1.0
    """The server's step size: a factor for the change in every upload."""


class Seeds(Section):
    """Separate seeds: each replaces `seed` for one source of randomness, so that only this source varies."""

    data: Seed | None = None
    """Seed of the partition and of the draw of public samples. `null`: `seed`."""
    weights: Seed | None = None
    """Seed of the initial weights. `null`: `seed`."""
    cohorts: Seed | None = None
    """Seed of selection, availability, dropout and stragglers, and of the clients' devices and connections. `null`:
    `seed`."""


class Selected(Section):
    """The clients that `models` or `clients` selects."""

    models: list[str] | None = None
    """Select the clients with these architectures."""
    clients: str | None = None
    """Select the clients in these ranges of ids, for example "0-9,12"."""


class TrainingOverride(Selected):
    """Training settings of the clients that `models` or `clients` selects; `null`: as in section `training`."""

    epochs: AtLeastOne | None = None
    steps: AtLeastOne | None = None
    batch_size: AtLeastOne | None = None
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    lr: Positive | None = None
    momentum: Annotated[float, Range(ge=0, lt=1)] | None = None
    nesterov: bool | None = None
    weight_decay: NonNegative | None = None
    clip: Positive | None = None


class Stragglers(Section):
    """Participants that do not finish their local epochs, as in FedProx's paper.

    The seed of cohorts, the round and the client decide who is a straggler and for how many epochs it trains.
    """

    share: Annotated[float, Range(gt=0, le=1)]
    """Probability that a participant is a straggler, drawn anew in each round."""


class Training(Section):
    """Local training of every client, for all algorithms."""

    epochs: AtLeastOne = 1
    """Passes over the client's training samples per client round."""
    steps: AtLeastOne | None = None
    """Number of steps per client round. It replaces `epochs`, and is the same for all clients, whatever their numbers
    of samples. Epochs that a method sets for parts of a round, as Ditto, FedRep, FedMD and HKS do, still apply.
    `null`: use `epochs`."""
    batch_size: AtLeastOne = 64
    """Samples per step."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimizer; its state is created anew in each client round. `adamw`: Adam with decoupled weight decay."""
    lr: Positive = 0.01
    """Learning rate."""
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Momentum of SGD; Adam does not use it."""
    nesterov: bool = False
    """Nesterov's momentum; needs SGD with a `momentum` greater than 0."""
    weight_decay: NonNegative = 0.0
    """L2 penalty added to the gradient. `adamw`: each step multiplies the weights by 1 - lr * weight_decay instead."""
    clip: Positive | None = None
    """Maximum norm of a step's gradient; a gradient with a larger norm is scaled down. `null`: no limit."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format in which networks compute losses and gradients (`torch.autocast`). Parameters, messages and
    evaluation are float32 in any case. In `float32`, torch rounds the inputs of convolutions and recurrent layers to
    TF32 on NVIDIA GPUs since Ampere. `bfloat16` is faster on CPUs and GPUs with instructions for it; `raysim launch
    --dry-run` measures how long a training step takes with it. It also applies to networks that the server trains with
    `Server.fit`. `float16` needs GPUs and scales the loss."""
    cuda_graphs: bool = True
    """Record training steps on NVIDIA GPUs and replay them. Small networks train several times as fast, with the same
    bits. Steps are not recorded with Adam or float16, with a loss that reads a value from the GPU or draws random
    numbers on the CPU, or if the process uses more than 1 GiB of the GPU. Set `false` if a loss or network counts its
    calls."""
    overrides: list[TrainingOverride] = Field(default_factory=list)
    """Other settings per architecture or client range, such as `{models: [vit_small], optimizer: adamw, lr: 0.001}`;
    the first override that matches a client applies. `schedule` and `stragglers` apply to all clients. A server that
    trains uses the settings outside the overrides."""
    stragglers: Stragglers | None = None
    """Participants that train for fewer epochs, as in FedProx's paper. With `{share: 0.5}`, each participant of a round
    is a straggler with probability 0.5, and a straggler trains for a number of epochs that is drawn uniformly from 1 to
    its `epochs`. Epochs that are fields of the method do not change. `null`: none."""
    together: AtLeastOne | dict[str, AtLeastOne] | Auto = "auto"
    """Number of clients of one architecture that one call trains (`torch.func.vmap`), or a mapping of architectures to
    numbers. Unsupported cases fall back to sequential training, with a warning. `auto`: 32 for networks that train
    faster this way on a CPU, which are perceptrons of up to 30,000 parameters, digits_cnn_s with batches of up to 64,
    and digits_cnn_m with batches of up to 16; 1 for all other networks. If a round has fewer than 8 clients of an
    architecture, they are trained one by one; a number below 8 lowers this limit to that number. The number of clients
    per call changes the rounding of results, so `resolved.yaml` records it."""
    schedule: Annotated[Named, Choices(SCHEDULES, "factor")] = Field(default_factory=lambda: {"name": "constant"})
    """The learning rate over the rounds: `name` and that schedule's fields; `constant`, `step` or `cosine`, each with
    an optional `warmup`. The schedule does not change learning rates that are fields of the method."""


class Evaluation(Section):
    """When clients are evaluated, which clients, and on which samples."""

    every: AtLeastOne = 1
    """Number of rounds between evaluations of participants; the last round is always evaluated."""
    when: Literal["after_update", "after_receive", "both"] = "after_update"
    """Evaluate participants after their local training, or after they received the server's message and before local
    training. `both`: at both times; the accuracy before training is `accuracy/participants_before`, all others are
    those after training."""
    clients: Literal["participants", "all"] = "participants"
    """`all`: in addition, test every client, whether it took part or not, with the message that the server would send
    it next: `accuracy/all_current`. Clients receive it on copies of their networks, so no other result changes."""
    all_every: AtLeastOne | None = None
    """Number of rounds between tests of all clients (`clients: all`), a multiple of `every`; all clients are always
    tested before the first and after the last round. Default: whenever participants are evaluated."""
    fine_tune: NonNegativeInt = 0
    """Epochs for which a client of `clients.held_out` trains, by the method's own `client_update`, between receiving
    the server's message and its test. Everything that it learns is dropped."""
    global_test: bool = False
    """Also evaluate participants on the whole published test set; needs data.split published or pfedhn."""
    global_every: AtLeastOne | None = None
    """Number of rounds between evaluations on the whole published test set, a multiple of `every`; the last round is
    always evaluated, the initial networks are not. Default: evaluate whenever participants are evaluated, and before
    the first round (those results are only in clients.parquet)."""


class Init(Section):
    """Begin with the state of another run, instead of new weights.

    That run must have as many clients as this one, with the same models. Every client begins with its own network of
    that run. If both runs have the same method, the server begins with that run's server state. If the methods differ,
    the server begins with the model of that run's server, if it has a model (as FedAvg's server does) that this run's
    method can use. Otherwise the server begins with new weights; in round 1, weights from the server replace the
    corresponding weights that the clients took from the other run. The run folder keeps a copy of the other run's
    state, so resuming does not need the other run.
    """

    run: str
    """The other run: its folder, or its id if it is below `runs` in the current folder. Its data must be available."""
    round: Literal["last", "best_val"] = "last"
    """The state to begin with. `last`: the state of the latest checkpoint. `best_val`: the state after the best round
    by validation; the other run must have `checkpoint.keep: [last, best_val]`."""
    digest: str | None = None
    """SHA-256 that the state must have. A run records it, so that its `resolved.yaml` can only begin with the same
    state."""


if TYPE_CHECKING:
    Metric = str
else:
    Metric = Literal[tuple(DECIDING)]
"""A metric that may end a run or choose tuned values."""


class EarlyStop(Section):
    """Conditions under which a run ends before its last round.

    The conditions are checked only after rounds that are multiples of `evaluation.every`. If `evaluation.global_every`
    or `evaluation.all_every` is set, the round must be a multiple of this number, too. A run that ends after round 30
    has the same state and results as a run with `rounds: 30`. Exception: if the learning rate (`training.schedule` is
    `cosine`) or the method (such as FedKD) depends on `rounds`, state and results equal those of the full run after
    round 30.
    """

    metric: Metric = "accuracy/val"
    """Metric whose values end the run. All metrics except `accuracy/val`, `accuracy/val_current` and `loss/train` use
    test samples, so a result selected by them is optimistic."""
    patience: AtLeastOne | None = None
    """End the run after this many rounds without an improvement of the metric. `null`: never."""
    target: float | None = None
    """End the run when the metric reaches this value: at least this accuracy, or at most this loss. `null`: never."""
    min_rounds: AtLeastOne = 1
    """Never end the run before this round."""


class Override(Selected):
    """Resources of the clients that `models` or `clients` selects."""

    actors: AtLeastOne | Auto = "auto"
    clients_per_actor: AtLeastOne | Auto = "auto"
    cpus_per_actor: Positive | None = None
    gpus_per_actor: NonNegative | Auto | None = None


class Resources(Section):
    """Actors, CPUs, GPUs and memory for the clients. Only two keys can change a result: `cpus_per_actor`, because the
    number of threads can change a sum, and `gpus_per_actor`, which decides whether clients train on a GPU."""

    actors: AtLeastOne | Auto = "auto"
    """Number of client actors; `auto`: as many as the CPUs and GPUs allow, at most one per participant. On a cluster
    with an autoscaler, a number requests nodes for these actors; `auto` uses the nodes that are present."""
    clients_per_actor: AtLeastOne | Auto = "auto"
    """Pin this many clients to each actor; 1: one actor per client; `auto`: pack the clients, and move them when that
    is worth it. Clients that train together (`training.together`) train at the actor of the first of them."""
    cpus_per_actor: Positive = 1.0
    """CPUs per actor. The number of threads that train a client is this number rounded down, but at least 1."""
    gpus_per_actor: NonNegative | Auto = "auto"
    """GPUs per actor: 0.25 places four actors on a GPU; `auto` shares the GPUs among all actors, or uses the CPU if
    there is no GPU."""
    placement: NodeOrder = "spread"
    """On a cluster: spread the actors over the nodes, or fill one node after another."""
    head: bool = True
    """On a cluster: whether client actors may run on the head node, which also runs Ray's own services."""
    memory_gb: Positive | Auto = "auto"
    """GB of memory on each machine for the clients' states. If the states of all clients need more, they are kept on
    the disk of the run folder, and in memory only while they are used. `auto`: half of the machine's memory."""
    overrides: list[Override] = Field(default_factory=list)
    """Other resources per architecture or client range; the first override that matches a client applies."""


class Tracking(Section):
    """Tracking in MLflow (store, experiment and tags of a run), and other trackers."""

    uri: str | None = None
    """Tracking server or store. Default: the environment variable MLFLOW_TRACKING_URI, then sqlite:///mlflow.db in the
    current folder."""
    experiment: str | None = None
    """Name of the experiment. Default: the scenario's name."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the run."""
    also: Annotated[list[str | dict[str, Any]], "a list whose entries are text or mappings with a `name`"] = Field(
        default_factory=list
    )
    """Trackers besides the run folder and MLflow: `tensorboard`, `wandb`, or your own, such as `./mine.py:JsonLines`. A
    tracker with options is a mapping, such as `{name: wandb, project: mine}`. See `raysim list trackers`."""


class Checkpointing(Section):
    """Checkpoints of all client and server state, from which a run continues after any interruption."""

    every: Annotated[int, Range(ge=0)] | Auto = "auto"
    """Number of rounds between checkpoints, which are also saved after the last round and at Ctrl-C; `auto`: about one
    checkpoint per minute; 0: no checkpoints."""
    keep: list[Literal["last", "best_val"]] = ["last"]
    """Checkpoints that are kept. `last`, which is required: the last two, from which a run continues. `best_val`: also
    the state after the round (1 or later) with the greatest `accuracy/val` so far, saved whenever that improves."""
    folder: str | None = None
    """Folder of the checkpoints, or an address for fsspec, such as s3://bucket/runs. Default: in the run folder."""


class Failure(Section):
    """Failures of clients, actors and nodes that a run survives."""

    max_failed_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Share of a round's participants, including late ones, that may fail (an exception in the method, or the time
    limit) without ending the run; the round continues without them, and they keep the state that they had before it.
    Lack of memory always ends the run, because it depends on the number of actors."""
    client_timeout_s: Positive | None = None
    """Time limit of a client round in seconds; `null`: no limit. Timing is not repeatable: two runs in which clients
    exceed the limit may differ. In a sweep whose cells run in parallel, and in `raysim.run` outside the main thread, a
    client is not interrupted: it fails when its round ends."""
    max_attempts: AtLeastOne = 5
    """Maximum number of times that the run may return to its last checkpoint, because an actor or node died, without
    completing another round in between."""


class Settings(Section):
    """Every key of a scenario."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100),
        "up to 100 letters, digits, dots, dashes and underscores, beginning with a letter or digit",
    ]
    """Name of the scenario, of the folder with its runs and, by default, of its MLflow experiment."""
    seed: Seed = 1
    """Seed of every random draw; the same seed gives the same result on any number of actors."""
    seeds: Seeds = Seeds()
    rounds: AtLeastOne
    """Number of communication rounds."""
    backend: Literal["ray", "in_process"] = "ray"
    """Where clients run: in Ray actors, or in this process, for debugging; both give the same results."""
    output: str | None = None
    """Folder that contains all run folders. Default: `runs` in the current folder. For a sweep, also an fsspec address
    such as `s3://bucket/runs`, to which it copies its results."""
    algorithm: Method
    """The method: `name` and its own fields; see `raysim list algorithms` and `raysim describe NAME`."""
    data: Data
    clients: Clients
    system: System | None = None
    """The clients' devices and connections, for virtual time; `null`: no virtual time. See `raysim describe system`."""
    adversary: Adversary | None = None
    """Malicious clients; `null`: none. See `raysim describe adversary`."""
    aggregator: Aggregator | None = None
    """A rule in place of the mean of uploads; `null`: the method's mean. See `raysim describe aggregator`."""
    privacy: Privacy | None = None
    """Differential privacy of clients; `null`: none. See `raysim describe privacy`."""
    asynchronous: Asynchronous | None = None
    """Asynchronous rounds; `null`: none. See `raysim describe asynchronous`."""
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    inputs: list[str] | None = None
    """Files that your own code reads, such as pretrained weights, or folders of them. Their SHA-256 digests count like
    that of the data: a run records them and is resumed only with the same content, and a sweep runs a cell again after
    a change. `null`: none."""
    init: Init | None = None
    """Begin with the state of another run; `null`: new weights. See `raysim describe init`."""
    stop: EarlyStop | None = None
    """Conditions under which the run ends before its last round; `null`: none. See `raysim describe stop`."""
    resources: Resources = Resources()
    tracking: Tracking = Tracking()
    checkpoint: Checkpointing = Checkpointing()
    failure: Failure = Failure()


FREE = (
    "name",
    "backend",
    "output",
    "resources",
    "tracking",
    "checkpoint",
    "failure",
    "data.root",
    "data.format",
    "training.cuda_graphs",
)
"""Keys that affect where and how a run executes, but not its result; keys below them are included."""


def decides(key: str) -> bool:
    """Return whether a dotted key of the scenario affects the result of a run."""
    return not any(key == free or key.startswith(f"{free}.") for free in FREE)


def short_overrides(overrides: Mapping[str, Scalar]) -> dict[str, str]:
    """Return key -> part of a name, such as "lr=0.1", for overrides that affect the result, except method and seed."""
    return {
        key: " ".join(written([(key.removesuffix(".name").rpartition(".")[2], value)]))
        for key, value in overrides.items()
        if key not in ("algorithm.name", "seed") and decides(key)
    }
