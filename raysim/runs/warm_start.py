"""Makes a run begin with the clients' and the server's state of another run (`init`)."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from raysim.common.errors import RunError, ScenarioError
from raysim.engine.initial import Initial
from raysim.engine.plan import Plan
from raysim.engine.take_over import take_over
from raysim.engine.workers.server import receives
from raysim.runs.find import find_run
from raysim.runs.opened import OpenedRun
from raysim.runs.plan import RunData
from raysim.scenario.schema import Init


def warm_start(plan: Plan, data: RunData) -> tuple[Plan, RunData]:
    """Return the plan and data of a run with the initial state that its scenario names; unchanged without `init`.

    The scenario of the data then records the other run's folder and the state's digest. Raises `ScenarioError` if the
    other run has no intact state, the state does not fit this run's clients, or its digest is not the one that the
    scenario gives.
    """
    scenario = data.scenario
    if (init := scenario.init) is None:
        return plan, data
    try:
        folder = find_run(init.run)
        initial, notes = _taken(folder, init, plan, data)
    except (ScenarioError, RunError) as error:
        text = error.reason if isinstance(error, ScenarioError) else str(error)
        raise scenario.origin.error(("init", "run"), text) from error
    digest = initial.digest
    if init.digest not in (None, digest):
        raise scenario.origin.error(
            ("init", "run"),
            f"{folder} has changed: its state has the digest {digest[:12]}, but init.digest is {init.digest}; restore "
            "the run, or remove init.digest to begin with the current state of that run",
        )
    scenario = scenario.with_choices(init={"run": str(folder), "digest": digest})
    return replace(plan, initial=initial), replace(data, scenario=scenario, notes=(*data.notes, *notes))


def _taken(folder: Path, init: Init, plan: Plan, data: RunData) -> tuple[Initial, tuple[str, ...]]:
    """Return the initial state from the other run in `folder`, and warnings about it."""
    source = OpenedRun.of(folder)
    # The digests are compared here, because the backend takes the data.
    had, have = ((one.dataset.digest, one.partition.digest) for one in (source.data, data))
    _refuse_other_clients(source, plan)
    # An earlier checkpoint must not replace a damaged one, and `checkpoint` skips damaged manifests.
    checkpoint = source.checkpoint(None if init.round == "last" else init.round)
    if source.store.damage:
        raise ScenarioError(f"{source.folder}: {source.store.damage[-1]}; restore that file")
    same_method = source.method == data.scenario.algorithm_name
    if same_method and had != have and plan.algorithm.state_of_samples:
        raise ScenarioError(
            f"the clients of {folder} have different samples than the clients of this run, but the server's state of "
            f"{source.method} refers to samples or classes; set data, and seed or seeds.data, as in that run, or "
            "choose a run of another method"
        )
    with source.backend(range(plan.num_clients), checkpoint) as backend:
        initial = take_over(backend, plan, same_method)
    notes = []
    if had != have:
        notes.append(f"init: the clients of the run {folder} have different samples than the clients of this run")
    if same_method and (differing := _differing_settings(source.plan, plan)):
        notes.append(
            f"init: settings of {source.method} differ from those of the run {folder}: {'; '.join(differing)}. What "
            "the server's state already contains was computed with that run's settings"
        )
    if not same_method and not initial.models and receives(plan.algorithm):
        notes.append(
            f"init: the server of this run begins with new weights, because the server of {folder} ({source.method}) "
            "has no model that this run's method can use. In round 1, weights from the server replace the "
            f"corresponding weights that the clients took from {folder}"
        )
    return initial, tuple(notes)


def _refuse_other_clients(source: OpenedRun, plan: Plan) -> None:
    had, has = source.plan, plan
    if had.num_clients != has.num_clients:
        raise ScenarioError(
            f"{source.folder} has {had.num_clients} clients, but this run has {has.num_clients}; "
            f"set clients.count to {had.num_clients}. If the partition decides the number of clients, choose another "
            "partition"
        )
    for k in range(has.num_clients):
        if had.arch(k) != has.arch(k):
            raise ScenarioError(
                f"client {k} has model {had.arch(k)} in {source.folder}, but {has.arch(k)} in this run; "
                "set clients.models as in that run"
            )


def _differing_settings(source: Plan, plan: Plan) -> list[str]:
    """Return the settings in which the method differs from the same method in the other run."""
    settings = [field.name for field in fields(plan.algorithm) if field.init]  # fields that are not derived from others
    had, has = ({key: getattr(one, key, None) for key in settings} for one in (source.algorithm, plan.algorithm))
    return [f"{key}: {has[key]} (there: {had[key]})" for key in settings if has[key] != had[key]]
