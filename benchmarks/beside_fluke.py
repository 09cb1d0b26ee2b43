"""The same federated learning in raysim and in fluke-fl, a public library, side by side.

scikit-learn's digits, 20 clients with 5 of the 10 classes each, all in every round, a 64-32-10 perceptron, plain SGD.
Both sides get the same lists of samples, pixels, initial weights, batch size, learning rate, epochs and weights of the
average. Each side shuffles its own batches, or, with --same-batches, both take raysim's: then two methods that compute
the same differ only by rounding.

    pip install fluke-fl==0.8.1          # in an environment of its own, together with raysim
    python benchmarks/beside_fluke.py    # about 4 minutes of one core
    python benchmarks/beside_fluke.py fedavg fedrep --seeds 1..5 --same-batches

Printed are mean test accuracies in per cent over clients, each tested on its own test samples:

    current   after the last round, each client with what the server then sends. raysim: accuracy/all_current;
              fluke: the evaluation "pre-fit" at the end of the run, when every client has received once more
    trained   each client after its local training in the last round. raysim: accuracy/all; fluke: "post-fit" of that
              round. Ditto and APFL: the personal models

After ± is the standard deviation over seeds. within: whether the mean difference is at most the larger standard
deviation of the two sides. weights: with --same-batches, the largest difference, over seeds, between a weight of a
client's network after its last training and the same weight on the other side.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import itertools
import statistics
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from listed import write_listed
from torch import Tensor, nn

import raysim
from raysim.core.seeds import global_seed, seeded
from raysim.data.datasets import load_dataset
from raysim.data.partition import PARTITIONS, make_partition
from raysim.data.specs import DATASETS
from raysim.data.transform import transform_of
from raysim.models import build_model
from raysim.runs.opened import OpenedRun

DATASET, MODEL, WIDTH = "digits", "digits_mlp64", 32
CLASSES_PER_CLIENT = 5
MEASURES = ("current", "trained")


@dataclass(frozen=True)
class Setting:
    """What both sides share."""

    clients: int = 20
    rounds: int = 20
    epochs: int = 2
    batch_size: int = 10
    lr: float = 0.05
    same_batches: bool = False


@dataclass(frozen=True)
class Method:
    """A method on both sides, with settings that mean the same. E: `Setting.epochs`."""

    ours: Mapping[str, Any]  # the section `algorithm` of a scenario
    theirs: str  # fluke's module and class
    client: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of fluke's client; "E": the epochs
    server: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of fluke's server
    travels: Literal["all", "extractor", "header", "nothing"] = "all"  # the part of the network that fluke's server has
    passes: int = 1  # number of trainings of E epochs in a client round
    swapped: bool = False  # fluke does its two trainings in the other order
    measures: tuple[str, ...] = MEASURES
    part: str | None = ""  # the part of raysim's network that fluke's client tests; None: fluke has no such network
    differs: str = ""  # known differences


METHODS: dict[str, Method] = {
    "fedavg": Method({"name": "fedavg"}, "fedavg.FedAVG", server={"weighted": True}),
    "fedprox": Method({"name": "fedprox", "mu": 1.0}, "fedprox.FedProx", {"mu": 1.0}, {"weighted": True}),
    "fedper": Method({"name": "fedper"}, "fedper.FedPer", server={"weighted": True}, travels="extractor"),
    "fedrep": Method(
        {"name": "fedrep", "header_epochs": "E", "agg": "uniform"},
        "fedrep.FedRep",
        {"tau": "E"},
        {"weighted": False},
        travels="extractor",
        passes=2,
    ),
    "lg_fedavg": Method({"name": "lg_fedavg"}, "lg_fedavg.LGFedAVG", server={"weighted": True}, travels="header"),
    "ditto": Method(
        {"name": "ditto", "lambda_": 0.1, "agg": "uniform"},
        "ditto.Ditto",
        {"tau": "E", "lam": 0.1},
        {"weighted": False},
        passes=2,
        swapped=True,
        part="personal",
        differs="fluke trains the global model first, raysim the personal one; neither reads the result of the other.",
    ),
    "apfl": Method(
        {"name": "apfl", "alpha": 0.5, "adaptive": False, "mix": "parameters", "agg": "uniform"},
        "apfl.APFL",
        {"lam": 0.5},
        {"weighted": False, "tau": 1},
        measures=("trained",),  # fluke tests the mixture of the last training, whatever the client has received since
        part=None,
        differs=(
            "in fluke no gradient reaches the personal model, because the loss is that of a copy of the mixture. After "
            "local training the mixture replaces the personal model, which is thus a moving average of local models."
        ),
    ),
    "fedproto": Method(
        {"name": "fedproto", "lambda_": 1.0, "agg": "uniform", "prototypes": "last_epoch"},
        "fedproto.FedProto",
        {"n_protos": 10, "lam": 1.0},
        {"n_protos": 10},
        travels="nothing",
        measures=("trained",),
        differs=(
            "a prototype is the mean representation over all local epochs in fluke, over the last one in raysim. Both "
            "sides are tested with the clients' own classifiers; fluke's own evaluation would choose the nearest of "
            "the client's own prototypes, and leave out clients without samples of class 0."
        ),
    ),
}


@dataclass(frozen=True)
class Dealt:
    """The training and the test samples of every client, as positions in the data set."""

    train: tuple[tuple[int, ...], ...]
    test: tuple[tuple[int, ...], ...]

    def write(self, path: Path) -> None:
        """Write the file that partition `listed` reads."""
        write_listed(path, self.train, self.test)


def deal(clients: int, seed: int) -> Dealt:
    """Deal the digits to clients of five classes each: 80 % for training, 20 % for tests."""
    data = load_dataset(DATASET, None)
    setting = PARTITIONS["pathological"](classes_per_client=CLASSES_PER_CLIENT)
    num_classes = DATASETS[DATASET].num_classes
    dealt = make_partition(data.label_M, data.num_train, num_classes, clients, setting, "pooled811", seed)

    def of(shards: Any, k: int) -> list[int]:
        return shards.of(k).tolist()

    # No method here looks at validation samples, so they are tests too.
    test = tuple(tuple(sorted(of(dealt.test, k) + of(dealt.val, k))) for k in range(clients))
    return Dealt(tuple(tuple(of(dealt.train, k)) for k in range(clients)), test)


def initial_net(seed: int) -> Any:
    """Return the perceptron with the weights that every client of a raysim run starts from."""
    spec = DATASETS[DATASET]
    with global_seed(seed, "init", MODEL):
        return build_model(MODEL, num_classes=spec.num_classes, input_spec=spec.input_spec, feature_dim=WIDTH)


def initial_header(seed: int) -> nn.Linear:
    """Return the header that LG-FedAvg's server starts from in raysim, which is not the clients'."""
    with global_seed(seed, "server_start", 0, -1):
        return nn.Linear(WIDTH, DATASETS[DATASET].num_classes)


def orders(seed: int, k: int, samples: int, method: Method, epochs: int) -> Iterator[Tensor]:
    """Yield the order of client k's samples in every epoch of every round of a raysim run, as fluke asks for them."""
    for t in itertools.count(1):
        rng = seeded(seed, "client", t, k)
        trainings = [[torch.randperm(samples, generator=rng) for _ in range(epochs)] for _ in range(method.passes)]
        for training in reversed(trainings) if method.swapped else trainings:
            yield from training


def with_epochs(arguments: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """Replace "E" by the number of epochs."""
    return {name: setting.epochs if value == "E" else value for name, value in arguments.items()}


class Result(NamedTuple):
    """What one side of one run gives."""

    accuracy: dict[str, float]  # measure -> per cent
    weights_NP: Tensor | None  # the P weights of each client's network after its last training
    digest: str = ""  # raysim's digest of the final state


def run_raysim(method: Method, setting: Setting, seed: int, dealt: Dealt, folder: Path) -> Result:
    """Run raysim's side, with its files in a folder."""
    dealt.write(folder / "listed.parquet")
    content = {
        "name": "beside_fluke",
        "seed": seed,
        "rounds": setting.rounds,
        "output": str(folder / "runs"),
        "backend": "in_process",
        "algorithm": with_epochs(method.ours, setting),
        "data": {"name": DATASET, "partition": {"name": "listed", "path": str(folder / "listed.parquet")}},
        "clients": {"count": setting.clients, "participation": 1.0, "models": [MODEL], "feature_dim": WIDTH},
        "training": {"epochs": setting.epochs, "batch_size": setting.batch_size, "lr": setting.lr},
        "evaluation": {"every": setting.rounds, "clients": "all"},
        "tracking": {"uri": f"sqlite:///{folder / 'mlflow.db'}"},
    }
    run = raysim.run(content, quiet=True)
    last = run.summary["final"]
    found = {"current": last["accuracy/all_current"], "trained": last["accuracy/all"]}
    weights_NP = None
    if method.part is not None:
        opened = OpenedRun.of(run.folder)
        nets = [net for _, net in opened.networks(range(setting.clients), opened.checkpoint(), keep=True)]
        weights_NP = torch.stack([_flat(net.get_submodule(method.part)) for net in nets])
    assert run.state_digest is not None
    return Result({name: 100 * found[name] for name in method.measures}, weights_NP, run.state_digest)


def _flat(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


class Heard:
    """What fluke's clients tell their observers: fluke's own evaluations, and that a training has ended."""

    def __init__(self, rounds: int, clients: Sequence[Any]) -> None:
        self.rounds, self.clients = rounds, clients
        self.told: dict[tuple[str, int], list[float]] = defaultdict(list)  # phase and round -> accuracy of each client
        self.classified: list[float] = []  # accuracy of each client's own classifier after the last training
        self.weights: list[Tensor] = []  # each client's weights after the last training

    def client_evaluation(self, round: int, client_id: int, phase: str, evals: Mapping[str, float]) -> None:
        self.told[phase, round].append(evals["accuracy"])

    def end_fit(self, round: int, client_id: int, model: nn.Module, loss: float) -> None:
        if round == self.rounds:
            net = self.clients[client_id].local_model  # the personal one, if the client has two
            x, y = self.clients[client_id].test_set.tensors
            with torch.no_grad():
                self.classified.append(float((net(x).argmax(1) == y).double().mean()))
            self.weights.append(_flat(net))


class NoFlukeError(Exception):
    """fluke cannot be imported; the message is one sentence."""


def fluke(module: str) -> Any:
    """Import a module of fluke, or, with an empty name, the package. Raises `NoFlukeError`."""
    try:
        return import_module(f"fluke.{module}" if module else "fluke")
    except ModuleNotFoundError as error:
        if error.name == "fluke":
            raise NoFlukeError(
                "fluke-fl is not installed; install it beside raysim, in an environment of its own: "
                "pip install fluke-fl==0.8.1"
            ) from None
        raise NoFlukeError(f"fluke-fl cannot be imported without {error.name}; install it too") from None


def fluke_net(seed: int) -> Any:
    """Return the perceptron of `initial_net`, as fluke's kind of network."""
    net = initial_net(seed)
    return fluke("nets").EncoderHeadNet(net.extractor, net.header)


def fluke_samples(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the normalised images and the labels of samples."""
    data = load_dataset(DATASET, None)
    index = np.asarray(indices)
    image = transform_of(DATASETS[DATASET], augment=False).plain(torch.tensor(data.raw_M[index]))
    return image.contiguous(), torch.tensor(data.label_M[index]).long()


def fluke_clients(method: Method, setting: Setting, seed: int, dealt: Dealt) -> list[Any]:
    """Create fluke's clients, each with a copy of the initial network and its own samples."""
    base = fluke("data").FastDataLoader

    class InOrder(base):  # type: ignore[misc, valid-type]
        """Gives the samples of each epoch in a given order."""

        def __iter__(self) -> Any:
            if not hasattr(self, "given"):
                self.given = self.tensors
            order = next(self.orders)
            self.tensors = [tensor[order] for tensor in self.given]
            return super().__iter__()

    algorithm = _algorithm(method)
    optimizer = fluke("config").OptimizerConfigurator({"name": "SGD", "lr": setting.lr})
    settings = with_epochs(method.client, setting)
    num_labels = DATASETS[DATASET].num_classes
    clients = []
    for k in range(setting.clients):
        # skip_singleton drops a last batch of one sample, which raysim trains on.
        same = {"num_labels": num_labels, "skip_singleton": False}
        kind = InOrder if setting.same_batches else base
        size, own = setting.batch_size, not setting.same_batches
        train = kind(*fluke_samples(dealt.train[k]), batch_size=size, shuffle=own, **same)
        train.orders = orders(seed, k, len(dealt.train[k]), method, setting.epochs)
        test = base(*fluke_samples(dealt.test[k]), batch_size=len(dealt.test[k]), shuffle=False, **same)
        client = algorithm.get_client_class(algorithm)(
            index=k,
            model=fluke_net(seed),
            train_set=train,
            test_set=test,
            optimizer_cfg=optimizer,
            loss_fn=nn.CrossEntropyLoss(),
            local_epochs=setting.epochs,
            **settings,
        )
        clients.append(client)
    return clients


def _algorithm(method: Method) -> Any:
    module, name = method.theirs.split(".")
    return getattr(fluke(f"algorithms.{module}"), name)


def run_fluke(method: Method, setting: Setting, seed: int, dealt: Dealt) -> Result:
    """Run fluke's side."""
    environment = fluke("").FlukeENV()
    evaluation = fluke("evaluation")
    accuracy = evaluation.Accuracy(task="multiclass", num_classes=DATASETS[DATASET].num_classes, top_k=1)
    environment.set_seed(seed)
    environment.set_eval_cfg(pre_fit=True, post_fit=True, locals=False, server=False)
    environment.set_evaluator(evaluation.ClassificationEval(1, DATASETS[DATASET].num_classes, accuracy=accuracy))
    algorithm = _algorithm(method)
    clients = fluke_clients(method, setting, seed, dealt)
    net = fluke_net(seed)
    part = {"all": net, "extractor": net.encoder, "header": initial_header(seed), "nothing": None}[method.travels]
    server = algorithm.get_server_class(algorithm)(model=part, test_set=None, clients=clients, **method.server)
    learning = algorithm(setting.clients, None, None, clients=clients, server=server)
    heard = Heard(setting.rounds, clients)
    for client in clients:
        client.attach(heard)
    with contextlib.redirect_stdout(io.StringIO()):  # its progress bars
        learning.run(setting.rounds, 1.0)
    own = method.travels != "nothing"
    accuracies = {
        "current": heard.told["pre-fit", -1],
        "trained": heard.told["post-fit", setting.rounds] if own else heard.classified,
    }
    assert all(len(accuracies[name]) == setting.clients for name in method.measures)
    weights_NP = None if method.part is None else torch.stack(heard.weights)
    return Result({name: 100 * statistics.fmean(accuracies[name]) for name in method.measures}, weights_NP)


class Pair(NamedTuple):
    """One measure of one method with one seed on both sides: a row of the CSV file."""

    method: str
    measure: str
    batches: str  # own or same
    seed: int
    raysim: float  # per cent
    fluke: float
    weights: float | None  # the largest difference of a weight; None: other batches, or networks of another kind
    digest: str  # of raysim's final state


def beside(names: Sequence[str], setting: Setting, seeds: Sequence[int]) -> list[Pair]:
    """Run both sides of the methods with every seed."""
    pairs: list[Pair] = []
    for seed in seeds:
        dealt = deal(setting.clients, seed)
        for name in names:
            with tempfile.TemporaryDirectory(prefix="raysim-beside-") as folder:
                ours = run_raysim(METHODS[name], setting, seed, dealt, Path(folder))
            theirs = run_fluke(METHODS[name], setting, seed, dealt)
            away = None
            if setting.same_batches and ours.weights_NP is not None and theirs.weights_NP is not None:
                away = float((ours.weights_NP - theirs.weights_NP).abs().max())
            batches = "same" if setting.same_batches else "own"
            for measure, accuracy in ours.accuracy.items():
                pairs.append(Pair(name, measure, batches, seed, accuracy, theirs.accuracy[measure], away, ours.digest))
                print(
                    f"seed {seed}: {name}, {measure}: {accuracy:.2f}, {theirs.accuracy[measure]:.2f}", file=sys.stderr
                )
    return pairs


@dataclass(frozen=True)
class Row:
    """One line of the table, over seeds."""

    mean: tuple[float, float]  # raysim, fluke
    spread: tuple[float, float]  # standard deviations
    difference: tuple[float, float]  # raysim minus fluke with the same seed: mean, standard deviation
    weights: float | None

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Row:
        """Summarise one measure of one method; at least two seeds."""
        sides = [one.raysim for one in pairs], [one.fluke for one in pairs]
        paired = [one.raysim - one.fluke for one in pairs]
        return cls(
            (statistics.fmean(sides[0]), statistics.fmean(sides[1])),
            (statistics.stdev(sides[0]), statistics.stdev(sides[1])),
            (statistics.fmean(paired), statistics.stdev(paired)),
            max((one.weights for one in pairs if one.weights is not None), default=None),
        )

    @property
    def within(self) -> bool:
        """Whether the mean difference is at most the larger spread."""
        return abs(self.difference[0]) <= max(self.spread)


def table(pairs: Sequence[Pair]) -> str:
    """Return the table in Markdown; all of it in per cent, except `weights`."""
    lines = [
        "| method | measure | raysim | fluke | raysim minus fluke | within | weights |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: |",
    ]
    of_line: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for one in pairs:
        of_line[one.method, one.measure].append(one)
    for (name, measure), some in of_line.items():
        row = Row.of(some)
        ours, theirs = (f"{mean:.2f} ± {spread:.2f}" for mean, spread in zip(row.mean, row.spread, strict=True))
        paired = f"{_signed(row.difference[0])} ± {row.difference[1]:.2f}"
        weights = "-" if row.weights is None else f"{row.weights:.0e}"
        lines.append(
            f"| {name} | {measure} | {ours} | {theirs} | {paired} | {'yes' if row.within else 'no'} | {weights} |"
        )
    return "\n".join(lines)


def _signed(value: float) -> str:
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def write(pairs: Sequence[Pair], path: Path) -> None:
    """Write the rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(Pair._fields)
        rows.writerows(pairs)


def read(path: Path) -> list[Pair]:
    """Read what `write` has written."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Pair(
                row["method"],
                row["measure"],
                row["batches"],
                int(row["seed"]),
                float(row["raysim"]),
                float(row["fluke"]),
                float(row["weights"]) if row["weights"] else None,
                row["digest"],
            )
            for row in csv.DictReader(file)
        ]


def _seeds(text: str) -> list[int]:
    first, dots, last = text.partition("..")
    seeds = list(range(int(first), int(last) + 1)) if dots else [int(part) for part in text.split(",")]
    if len(seeds) < 2:
        raise argparse.ArgumentTypeError(f"{text} given; give at least two seeds, such as 1..3")
    return seeds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"of {', '.join(METHODS)}; default: all")
    parser.add_argument("--seeds", type=_seeds, default="1..3", help="such as 1..3 or 1,5; default: 1..3")
    parser.add_argument("--rounds", type=int, default=Setting.rounds, help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=Setting.epochs, help="default: %(default)s")
    parser.add_argument("--same-batches", action="store_true", help="raysim's batches on both sides")
    parser.add_argument("--csv", type=Path, help="write the results with each seed to this file")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.methods if name not in METHODS]:
        parser.error(f"{unknown[0]} given; choose from {', '.join(METHODS)}")
    names = given.methods or list(METHODS)
    setting = Setting(rounds=given.rounds, epochs=given.epochs, same_batches=given.same_batches)
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fluke reads a deprecated property of its own
            fluke("")
            pairs = beside(names, setting, given.seeds)
    except NoFlukeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(pairs))
    print(*(f"- {name}: {METHODS[name].differs}" for name in names if METHODS[name].differs), sep="\n")
    if given.csv:
        write(pairs, given.csv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
