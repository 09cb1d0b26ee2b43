"""Preview of a run: the placement, and estimates of time and memory from a few measured steps."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from raysim.core.data import Batch
from raysim.core.fit import FitJob, LocalTraining, fit_one
from raysim.core.ops import cross_entropy
from raysim.core.torch_workarounds import one_thread, set_training
from raysim.data.datasets import load_dataset, missing
from raysim.engine.policies.placement import ClusterResources, Layout, check_fits
from raysim.models import MODELS
from raysim.models.split import example
from raysim.plugins.calling import hook_error
from raysim.runs.machine import attach, find_machine, layout_of, placement
from raysim.runs.plan import evaluations_of, make_plan
from raysim.runs.warm_start import warm_start
from raysim.scenario.scenario import Scenario
from raysim.scenario.trackers import check_packages


@dataclass(frozen=True)
class ModelCost:
    """The cost of an architecture with certain training settings, measured on this machine."""

    name: str
    batch_size: int
    clients: int
    params: int
    steps: float  # mean number of steps per client round; the last batch of an epoch may have fewer samples
    step_s: float  # seconds of a training step on one thread of this machine's CPU
    test_s: float  # seconds of the test of a sample on one thread of this machine's CPU


@dataclass(frozen=True)
class Preview:
    """The facts and estimates that `raysim launch --dry-run` prints."""

    machine: ClusterResources
    layout: Layout
    notes: tuple[str, ...]
    models: tuple[ModelCost, ...]
    tests_s: float  # estimated seconds of all tests of the run, on one thread of this machine's CPU
    total_s: float  # estimated seconds of the run, on this machine's CPU


def preview(scenario: Scenario) -> Preview:
    """Plan the run and measure two training steps per architecture on this machine's CPU.

    Raises `ScenarioError` when the plan does not fit, or the run of `init` does not.
    """
    check_packages(scenario)
    scenario.own_code.activate()
    machine = find_machine(scenario)
    layout = layout_of(scenario, machine)
    notes = list(layout.notes)
    if attach(scenario):
        from raysim.engine.ray import session

        nodes = session.nodes(scenario.resources.head)
        if not machine.growing:
            check_fits(layout, nodes, scenario.resources.placement)
        notes += placement(scenario, layout, nodes)
    data, dataset, count = scenario.data, scenario.dataset, scenario.clients.number
    if missing(data.name, data.root, data.format):
        if data.root is not None or not scenario.dataset.torchvision or data.format not in ("auto", "torchvision"):
            load_dataset(data.name, data.root, data.format, download=False)  # raises the same error as a run would
        notes.append(f"the data set {data.name} is not on this machine; a run will try to download it")
        # Approximate numbers of samples per client.
        samples, tested = dataset.train_size / count, dataset.test_size / count
    else:
        plan, planned = warm_start(*make_plan(scenario, machine))
        notes += planned.notes
        samples, tested = len(plan.train.index) / count, (len(plan.val.index) + len(plan.test.index)) / count
    early = ("the times are for all rounds, but `stop` may end the run earlier",) if scenario.may_end_early else ()
    models = tuple(
        _measure(scenario, name, local, clients, samples) for (name, local), clients in _kinds(scenario).items()
    )
    client_round_s = sum(model.step_s * model.steps * model.clients for model in models) / count
    tests_s = sum(model.test_s * model.clients for model in models) / count * _samples_tested(scenario, tested)
    lanes = 1 if scenario.backend == "in_process" else min(layout.num_actors, machine.cpus, scenario.participants)
    total_s = (client_round_s * scenario.participants * scenario.rounds + tests_s) / lanes
    return Preview(machine, layout, (*scenario.warnings, *early, *notes), models, tests_s, total_s)


def check_code(scenario: Scenario) -> None:
    """Test a scenario's own code as `preview` does, without planning a run. Raises `ScenarioError`."""
    check_packages(scenario)
    scenario.own_code.activate()
    for (name, local), clients in _kinds(scenario).items():
        if name not in MODELS:
            _measure(scenario, name, local, clients, 1)


def _samples_tested(scenario: Scenario, own: float) -> float:
    """Return the number of samples in all tests of a run. own: test and validation samples of a client."""
    evaluations = evaluations_of(scenario)
    seen = {None: 0.0, "own": own, "whole": own}
    if scenario.evaluation.global_test:
        seen["whole"] += scenario.dataset.test_size
    before_round_1 = scenario.clients.number * seen["whole" if evaluations.global_every is None else "own"]
    rounds = range(1, evaluations.rounds + 1)
    after_training = scenario.participants * sum(seen[evaluations.coverage(t)] for t in rounds)
    evaluated = sum(evaluations.coverage(t) is not None for t in rounds)
    before_training = scenario.participants * own * evaluated if scenario.evaluation.when == "both" else 0.0
    all_clients = scenario.clients.number * own * sum(evaluations.tests_all(t) for t in (0, *rounds))
    return before_round_1 + after_training + before_training + all_clients


def client_memory_mb(scenario: Scenario) -> float:
    """Return the size of all clients' weights, in MiB."""
    models, total = scenario.clients.models, 0
    for name, clients in Counter(models[k % len(models)] for k in range(scenario.clients.number)).items():
        # raysim's own models are built on the meta device, where tensors have no memory. A custom model may read its
        # weights from a file, which does not work there.
        with torch.random.fork_rng(devices=[]), torch.device("meta" if name in MODELS else "cpu"):
            total += clients * sum(p.nbytes for p in scenario.build(name).parameters())
    return total / 2**20


def samples_mb(scenario: Scenario) -> float:
    """Return the size of all samples of the data set as stored, in MiB."""
    dataset = scenario.dataset
    return (dataset.train_size + dataset.test_size) * dataset.input_spec.stored_bytes / 2**20


def _kinds(scenario: Scenario) -> Counter[tuple[str, LocalTraining]]:
    """Return the number of clients with each architecture and training settings."""
    models, local, own = scenario.clients.models, scenario.local, scenario.own_local
    return Counter((models[k % len(models)], own.get(k, local)) for k in range(scenario.clients.number))


@one_thread()
def _measure(scenario: Scenario, name: str, local: LocalTraining, clients: int, samples: float) -> ModelCost:
    """Measure a step and a test. local: the settings of `clients` clients with `samples` training samples each."""
    size, stragglers = local.batch_size, scenario.stragglers
    if local.precision == "float16":  # float16 on a CPU is too slow to measure
        local = replace(local, precision="float32")
    model = scenario.build(name).to(memory_format=torch.channels_last)
    batch = Batch(example(scenario.dataset.input_spec, size), torch.zeros(size, dtype=torch.int64), torch.arange(size))
    try:
        for _ in range(2):  # the first step is a warm-up
            start = perf_counter()
            fit_one(FitJob(model, cross_entropy, None, [batch], local))
            step_s = perf_counter() - start
        set_training(model, False)
        with torch.inference_mode():
            for _ in range(2):
                start = perf_counter()
                model(batch.x)
                test_s = (perf_counter() - start) / size
    except Exception as error:
        if name in MODELS:
            raise
        raise hook_error(f"{name}: a training step fails", error, "clients.models") from error
    epochs = local.epochs if stragglers is None else stragglers.mean(local.epochs)
    steps = epochs * math.ceil(samples / size) if local.steps is None else local.steps
    params = sum(p.numel() for p in model.parameters())
    return ModelCost(name, size, clients, params, steps, step_s, test_s)
