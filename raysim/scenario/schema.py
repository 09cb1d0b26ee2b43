"""A whole run as typed objects: every key of a scenario file, its meaning, default and range."""

from __future__ import annotations

from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from raysim.common.text import expanded
from raysim.core.fields import Fraction, NonNegative, Positive, Range, in_words
from raysim.scenario.declared import Declaration

if TYPE_CHECKING:
    Named = Any
else:
    Named = dict[str, Any]
"""A section whose `name` chooses a class: its keys in a parsed scenario, an object of the class in a `Scenario`."""

Auto = Literal["auto"]
_SOME = "a list of at least 1 entry, each"
NAME_FORM = "letters, digits, dots, dashes and underscores, beginning with a letter or digit"
AtLeastOne = Annotated[int, Range(ge=1, le=1_000_000_000)]
Seed = Annotated[int, Range(ge=0, le=2**63 - 1)]


class Section(BaseModel):
    """Strict and closed: a wrong type or an unknown key is an error, never a guess."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class Normalise(Section):
    """What becomes of a pixel or feature before a network reads it: less the mean, divided by the deviation."""

    mean: Annotated[list[float], Field(min_length=1), f"{_SOME} a number"]
    """A number per channel, or feature. Three of them for grey images: the image is repeated to three channels."""
    std: Annotated[list[Positive], Field(min_length=1), f"{_SOME} {in_words(Positive)}"]
    """A number per channel, or feature."""
    scaled: bool = True
    """Pixels are scaled to [0, 1] before; `false`: they are 0 to 255."""


class Public(Section):
    """Data that the server and all clients have, for methods that use it: a share of this data set, or another one."""

    share: Annotated[float, Range(gt=0, lt=1)] | None = None
    """Share of the training samples that is held back, drawn at random; no client gets one of them."""
    name: str | None = None
    """Another published data set, whose samples must have the shape of this one's. Its labels are not used."""
    samples: AtLeastOne | None = None
    """At most so many of them, drawn at random; `null`: all."""


class Data(Section):
    """What is learned from, and how it is dealt to the clients."""

    name: str
    """The data set: see `raysim list datasets`."""
    path: str | list[str] | None = None
    """Your own files (data sets parquet, csv, images, numpy): a file or a folder, or a list of two, the train part and
    the test part. In a folder, files or sub-folders whose names begin with train and test, or val, are these parts;
    where there is no such name, all files are one part. Relative to the current folder, as all paths."""
    label: str = "label"
    """Column of the labels in your own Parquet or CSV files: whole numbers from 0, or text, in sorted order."""
    features: str | list[str] | None = None
    """Columns of the features in your own Parquet or CSV files, or patterns such as `px_*`. `null`: a column of images
    if there is one, else all columns but those of label and id."""
    size: AtLeastOne | None = None
    """Side in pixels to which your own images are resized; `null`: they all have one size."""
    root: str | None = None
    """Folder that holds it. Default: the environment variable RAYSIM_DATA, then the cache in the home folder."""
    format: Literal["auto", "parquet", "torchvision", "folder"] = "auto"
    """How the files are laid out; `auto` looks for every layout it knows."""
    partition: Named = Field(default_factory=lambda: {"name": "iid"})
    """How samples are dealt to clients: `name` and that partition's fields; see `raysim list partitions`."""
    split: Literal["auto", "pooled811", "pfedhn", "published", "listed"] = "auto"
    """Which samples become a client's training and test samples. `pooled811`: all samples are dealt, then
    split 8:1:1 per client and class. `pfedhn`: published training and test samples dealt apart, 4:1:1.
    `published`: published training samples train, published test samples test. `listed`: as the file of partition
    listed says. `auto`: what the partition asks for. Of your own files, the test part is the published one."""
    augment: bool = False
    """Augment training batches with random flips, crops and erasing."""
    normalise: Normalise | None = None
    """How pixels become numbers, (pixel - mean) / std: a `mean` and a `std` per channel, three for grey images that are
    to have three channels; `scaled: false`: of pixels from 0 to 255, not 0 to 1. Of features: a `mean` and a `std` for
    each, or one for all. `null`: the data set's own; of your own files, those of the train part."""
    public: Public | None = None
    """Data that the server and all clients have: `{share: 0.1}` of this data set, or another one by its `name`. `null`:
    none; methods that need some say so."""


Trait = Annotated[
    Positive | Annotated[list[Positive], Field(min_length=1)] | dict[str, Any],
    "a number greater than 0, a list of them, or {name: uniform, low, high} or {name: log_normal, median, sigma}",
]
Wait = Annotated[
    NonNegative | Annotated[list[NonNegative], Field(min_length=1)] | dict[str, Any],
    "a number at least 0, a list of them, or {name: uniform, low, high} or {name: log_normal, median, sigma}",
]
Share = Annotated[
    Fraction | Annotated[list[Fraction], Field(min_length=1)] | dict[str, Any],
    "a number from 0 to 1, a list of them, or {name: uniform, low, high}",
]


class Clients(Section):
    """Who takes part."""

    count: Annotated[int, Range(ge=1, le=1_000_000)] | Auto
    """Number of clients; `auto`: as many as partition natural or listed makes."""
    participation: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of the clients that takes part in each round, drawn anew each time."""
    selection: Named = Field(default_factory=lambda: {"name": "uniform"})
    """How a round's participants are drawn: `name` and that policy's fields. `uniform`; `by_samples`: clients with more
    training samples are likelier; `fastest`: of `candidates` times as many, drawn uniformly, those that compute
    fastest."""
    oversample: Annotated[float, Range(ge=1)] = 1.0
    """Select so many times the participants; the first to finish in virtual time count, the others stay as they were.
    Needs `system`."""
    deadline_s: Positive | None = None
    """Virtual seconds after which a participant counts no more, and stays as it was; `null`: any. Needs `system`."""
    models: Annotated[list[str], Field(min_length=1), f"{_SOME} text"]
    """Architectures; client k gets models[k % len(models)]. See `raysim list models`."""
    feature_dim: AtLeastOne | Auto = "auto"
    """Width of the representation that all architectures share; `auto`: their native one."""
    independent_init: bool = False
    """Draw initial weights per client instead of once per architecture."""

    @property
    def number(self) -> int:
        """`count`, which is known once the scenario is checked."""
        assert isinstance(self.count, int)
        return self.count


class System(Section):
    """The clients' devices and connections, for virtual time: flops / flops_per_s + bytes / bandwidth + latency_s.

    Each key is one number for all, a list (client k gets entry k % length, as of clients.models), or a distribution
    from which each client gets a value once. docs/system.md has more.
    """

    flops_per_s: Trait | None = None
    """Floating-point operations per second. `null`: computing takes no time."""
    up_mbit_per_s: Trait | None = None
    """Megabits (10^6) per second from client to server. `null`: uploads take no time."""
    down_mbit_per_s: Trait | None = None
    """Megabits (10^6) per second from server to client. `null`: downloads take no time."""
    latency_s: Wait | None = None
    """Seconds that a client's part of a round takes besides. `null`: none."""
    availability: Share | None = None
    """The probability that a client can be selected in a round. `null`: 1."""
    dropout: Share | None = None
    """The probability that a selected client never finishes the round; it stays as it was. `null`: 0."""
    trace: str | None = None
    """A CSV or Parquet file with the column `client` and any of the keys above, a row for each client."""
    trace_sha256: str | None = None
    """SHA-256 that the trace file must have. A run notes it, so that it is resumed with the same file only."""


class Seeds(Section):
    """Seeds of parts of a run, other than `seed`, to vary one source of randomness alone."""

    data: Seed | None = None
    """Which samples each client holds. `null`: `seed`."""
    weights: Seed | None = None
    """Initial weights. `null`: `seed`."""
    cohorts: Seed | None = None
    """Who is selected, available and drops out, and which device each client has. `null`: `seed`."""


class Training(Section):
    """How every client trains locally, whatever the algorithm."""

    epochs: AtLeastOne = 1
    """Passes over the client's training samples per turn."""
    batch_size: AtLeastOne = 64
    """Samples per step."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer; it starts anew each turn."""
    lr: Positive = 0.01
    """Learning rate."""
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Momentum of SGD; Adam, with moments of its own, does not use it."""
    weight_decay: NonNegative = 0.0
    """L2 penalty added to the gradient."""
    clip: Positive | None = None
    """Greatest norm of a step's gradient; longer ones are scaled down. `null`: no limit."""
    together: AtLeastOne | dict[str, AtLeastOne] | Auto = "auto"
    """How many clients of one architecture one call trains (`torch.func.vmap`), or a number per architecture; what a
    call cannot do for several is done one by one, which is told. `auto`: 32 of what is faster so on a CPU, which are
    perceptrons of up to 30,000 parameters, digits_cnn_s with batches of up to 64, digits_cnn_m of up to 16; 1 of any
    other network. Where a round has fewer than 8 clients of an architecture, they are trained one by one, unless a
    smaller number is given. It changes results by rounding, so `resolved.yaml` has it."""
    schedule: Named = Field(default_factory=lambda: {"name": "constant"})
    """The learning rate over the rounds: `name` and that schedule's fields; `constant`, `step` or `cosine`. Rates that
    are a method's own fields stay as they are."""


class Evaluation(Section):
    """What is measured, and when."""

    every: AtLeastOne = 1
    """Measure after every so many rounds (and after the last)."""
    when: Literal["after_update", "after_receive"] = "after_update"
    """Measure participants after their local training, or after they took in the server's message and before it."""
    global_test: bool = False
    """Also measure participants on the whole published test set (data.split published or pfedhn)."""
    global_every: AtLeastOne | None = None
    """Measure that after every so many rounds (and after the last, not before the first); a multiple of `every`.
    Default: whenever participants are measured, and before the first round."""


class EarlyStop(Section):
    """When a run ends before its last round. Rounds in which clients are not tested do not count.

    The state and results are those of a run with that many rounds.
    """

    metric: Literal[
        "accuracy/val", "accuracy/all", "accuracy/participants", "accuracy/global", "loss/train", "loss/test"
    ] = "accuracy/val"
    """The metric that decides. All but `accuracy/val` and `loss/train` use test samples: a result that they select is
    optimistic."""
    patience: AtLeastOne | None = None
    """End after so many rounds without an improvement of the metric. `null`: never."""
    target: float | None = None
    """End when the metric reaches this value: at least this accuracy, or at most this loss. `null`: never."""
    min_rounds: AtLeastOne = 1
    """Never end before this round."""


class Override(Section):
    """Other resources for some of the clients."""

    models: list[str] | None = None
    """The clients with these architectures."""
    clients: str | None = None
    """The clients in these ranges of ids, for example "0-9,12"."""
    actors: AtLeastOne | Auto = "auto"
    clients_per_actor: AtLeastOne | Auto = "auto"
    cpus_per_actor: Positive | None = None
    gpus_per_actor: NonNegative | Auto | None = None


class Resources(Section):
    """Where the clients live. Never changes a result, `cpus_per_actor` apart (threads can change a sum)."""

    actors: AtLeastOne | Auto = "auto"
    """Client actors; `auto`: as many as the CPUs and GPUs allow, at most one per participant."""
    clients_per_actor: AtLeastOne | Auto = "auto"
    """Pin so many clients to each actor, 1 for one actor per client; `auto` packs them and moves them when it pays.
    Clients that train together (`training.together`) do so at the first one's actor."""
    cpus_per_actor: Positive = 1.0
    """CPUs of an actor; its whole part (at least 1) is the number of threads that train a client."""
    gpus_per_actor: NonNegative | Auto = "auto"
    """GPUs of an actor, 0.25 for four actors on a GPU; `auto` shares what there is and else uses the CPU."""
    placement: Literal["spread", "pack"] = "spread"
    """On a cluster: spread actors over its nodes, or fill one node after another."""
    head: bool = True
    """On a cluster: whether client actors may live on the head node, which also runs Ray's own services."""
    memory_gb: Positive | Auto = "auto"
    """GB of memory on each machine that the clients' states may take. If those of all clients are more, they are kept
    on the disk of the run's folder instead, and in memory while they are used. `auto`: half of the machine's memory."""
    overrides: list[Override] = Field(default_factory=list)
    """Other resources per architecture or client range; the first that matches a client counts."""


class Tracking(Section):
    """MLflow."""

    uri: str | None = None
    """Tracking server or store. Default: the variable MLFLOW_TRACKING_URI, then sqlite:///mlflow.db here."""
    experiment: str | None = None
    """Name of the experiment. Default: the scenario's name."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the run."""


class Checkpoint(Section):
    """Checkpoints: all client and server state, written so that a run can go on from there, whatever ended it."""

    every: Annotated[int, Range(ge=0)] | Auto = "auto"
    """Checkpoints after every so many rounds, after the last, and at Ctrl-C; `auto`: about once a minute; 0: never."""
    folder: str | None = None
    """Where: a folder or an address that fsspec knows, such as s3://bucket/runs. Default: in the run folder."""


class Failure(Section):
    """What happens when something fails."""

    max_failed_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Share of a round's participants that may fail (an exception in the method, or the time limit) without
    ending the run; the round goes on without them, and they stay as they were."""
    client_timeout_s: Positive | None = None
    """Seconds that a client's turn may take; `null`: any. Time is not repeatable: a run that needs this may differ
    from another."""
    max_attempts: AtLeastOne = 5
    """How often the run goes back to its last checkpoint, after an actor or node died, without getting further."""


class Settings(Section):
    """Every key of a scenario."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100), f"text: {NAME_FORM}"]
    """Names the run's folder and, by default, its MLflow experiment."""
    seed: Seed = 1
    """Decides every random draw; the same seed gives the same result on any number of actors."""
    seeds: Seeds = Seeds()
    rounds: AtLeastOne
    """Rounds of communication."""
    backend: Literal["ray", "in_process"] = "ray"
    """Where clients run: Ray actors, or this process (to step through; same results)."""
    output: str = "runs"
    """Folder of the run folders."""
    algorithm: Named
    """The method: `name` and its own fields; see `raysim list algorithms` and `raysim describe NAME`."""
    data: Data
    clients: Clients
    system: System | None = None
    """The clients' devices and connections, for virtual time; `null`: no virtual time. See `raysim describe system`."""
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    stop: EarlyStop | None = None
    """When the run ends before its last round; `null`: never. See `raysim describe stop`."""
    resources: Resources = Resources()
    tracking: Tracking = Tracking()
    checkpoint: Checkpoint = Checkpoint()
    failure: Failure = Failure()

    def seed_of(self, what: Literal["data", "weights", "cohorts"]) -> int:
        """The seed of one source of randomness."""
        own: int | None = getattr(self.seeds, what)
        return self.seed if own is None else own

    @property
    def output_folder(self) -> Path:
        """Where run folders go, absolute."""
        return expanded(self.output).absolute()

    def results_folder(self, name: str | None = None) -> Path:
        """The folder in which a command keeps its results, below `output`.

        name: of the sweep that runs the scenario; default: the scenario's own name, for single runs.
        """
        return self.output_folder / (self.name if name is None else name)


FREE = ("name", "backend", "output", "resources", "tracking", "checkpoint", "failure", "data.root", "data.format")
"""Keys, with all below them, that say where and how a run takes place, not what comes out."""


def decides(key: str) -> bool:
    """Whether a key of the scenario, dotted, decides what comes out of a run."""
    return not any(key == free or key.startswith(f"{free}.") for free in FREE)


@cache  # pydantic looks through every loaded module for the source of a new model: 60 ms
def settings_model(declaration: Declaration) -> type[BaseModel]:
    """A strict pydantic model with the fields of a settings class, ranges and meanings included."""
    fields: dict[str, Any] = {}
    for info in declaration.fields:
        default = ... if info.default is MISSING else info.default
        fields[info.name] = (info.hint, Field(default, description=info.doc))
    return create_model(declaration.name, __base__=Section, **fields)
