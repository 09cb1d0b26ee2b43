"""`make_plan` turns a scenario, its data and the resources of this machine or cluster into the plan of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raysim.common.errors import HookError, RunError
from raysim.data.shards import Partition
from raysim.data.statistics import normalised_by
from raysim.data.transform import transform_of
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import EvaluationSchedule
from raysim.engine.policies.placement import ClusterResources, Layout, lay_out
from raysim.engine.policies.sampling import SELECTIONS
from raysim.engine.policies.stopping import StoppingRule
from raysim.runs.data import RunData
from raysim.runs.machine import find_machine, refuse_float16_on_cpu
from raysim.scenario.deciding import DECIDING
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario


def make_plan(
    scenario: Scenario, machine: ClusterResources | None = None, *, rounds_left: bool = True
) -> tuple[Plan, RunData]:
    """Plan the actors, read and partition the data, and return the plan of the run with its data.

    machine: the resources for the actors; default: those of the cluster that RAY_ADDRESS names, else of this machine.
    rounds_left: False for a run that has all its rounds; no actors are planned for it. Raises `ScenarioError`, one
    sentence.
    """
    layout = _layout(scenario, machine) if rounds_left else None
    data = RunData.of(scenario)
    plan = _plan(scenario, data, layout)
    if rounds_left:
        if scenario.resolved["clients"]["selection"]["name"] not in SELECTIONS:
            _try_selection(scenario, plan)
        _refuse_unmeasured(scenario, data.partition)
    return plan, data


def _layout(scenario: Scenario, machine: ClusterResources | None) -> Layout:
    layout = lay_out(scenario.requests, machine or find_machine(scenario), scenario.participants)
    refuse_float16_on_cpu(scenario, layout)
    if scenario.backend == "in_process":
        layout = replace(layout, groups=tuple(replace(group, actors=0) for group in layout.groups))
    return layout


def _plan(scenario: Scenario, data: RunData, layout: Layout | None) -> Plan:
    dataset, partition, evaluation, failure = data.dataset, data.partition, scenario.evaluation, scenario.failure
    threads = dict.fromkeys(range(scenario.clients.number), 1)
    for group in layout.groups if layout else ():
        threads |= dict.fromkeys(group.clients, group.threads)
    published = np.arange(dataset.num_train, len(dataset.label_M), dtype=np.int64)
    normalised = normalised_by(scenario.dataset, dataset.raw_M, np.unique(partition.train.index))
    return Plan(
        algorithm=scenario.algorithm,
        seed=scenario.seed,
        num_rounds=scenario.rounds,
        num_classes=scenario.dataset.num_classes,
        feature_dim=scenario.feature_dim,
        models=tuple(scenario.clients.models),
        build_model=scenario.build,
        transform=transform_of(normalised, scenario.data.augment),
        local=scenario.local,
        own_local=scenario.own_local,
        stragglers=scenario.stragglers,
        schedule=scenario.training.schedule,
        together=scenario.together,
        train=partition.train,
        val=partition.val,
        test=partition.test,
        labels=dataset.label_M,
        public=data.public and (data.public.raw_P, data.public.label_P),
        encoder=scenario.task.encoder,
        participants=scenario.participants,
        participation=scenario.participation,
        malicious=scenario.malicious,
        robust=scenario.robust,
        privacy=scenario.client_privacy,
        asynchronous=scenario.buffered,
        independent_init=scenario.clients.independent_init,
        weights_seed=scenario.seeds.weights,
        evaluate_when=evaluation.when,
        evaluations=evaluations_of(scenario),
        global_test=published if evaluation.global_test else None,
        stopping=stopping_rule(scenario),
        max_failed_fraction=failure.max_failed_fraction,
        max_attempts=failure.max_attempts,
        client_timeout_s=failure.client_timeout_s,
        own_code=scenario.own_code,
        threads=tuple(threads[k] for k in range(scenario.clients.number)),
        layout=layout,
    )


def evaluations_of(scenario: Scenario) -> EvaluationSchedule:
    """Return the rounds after which clients are tested."""
    given = scenario.evaluation
    all_every = (given.all_every or given.every) if given.clients == "all" else None
    return EvaluationSchedule(scenario.rounds, given.every, given.global_every, all_every)


def stopping_rule(scenario: ParsedScenario) -> StoppingRule | None:
    """Return the rule for ending the run early; None: the run does all its rounds."""
    return None if scenario.stop is None else StoppingRule(**scenario.stop.model_dump())


def _refuse_unmeasured(scenario: Scenario, partition: Partition) -> None:
    """Raise `ScenarioError` if `stop` or `checkpoint.keep` uses a metric for which no client has samples."""
    if scenario.stop is not None:
        metric, deciding = scenario.stop.metric, DECIDING[scenario.stop.metric]
        of_clients = deciding.part != "train" and deciding.needs != "global_test"
        if of_clients and not len(partition.parts[deciding.part].index):
            samples = {"val": "validation", "test": "test"}[deciding.part]
            raise scenario.origin.error(
                ("stop", "metric"),
                f"{metric} given, but no client has {samples} samples; give clients {samples} samples, or set another "
                "metric",
            )
    if "best_val" in scenario.checkpoint.keep and not len(partition.val.index):
        raise scenario.origin.error(
            ("checkpoint", "keep"),
            "best_val given, but no client has validation samples; give clients more samples, or give [last]",
        )


def _try_selection(scenario: Scenario, plan: Plan) -> None:
    """Check that a custom selection policy works for round 1. Raises `ScenarioError`."""
    try:
        first, again = (list(plan.cohort(1)) for _ in range(2))
        if first != again:
            name = type(scenario.participation.selection).__name__
            raise RunError(
                f"round 1: {name}.select returns other clients when it is called again with the same arguments; draw "
                "random numbers only from `rng`, and keep no state"
            )
    except HookError:
        raise
    except RunError as error:
        raise scenario.origin.error(("clients", "selection"), str(error)) from error
