"""Training settings that depend on other sections: the learning rate over the rounds, and the size of groups."""

from __future__ import annotations

from raysim.common.errors import RunError
from raysim.data.specs import DatasetSpec
from raysim.engine.learning_rate import SCHEDULES, RateSchedule, factor_of
from raysim.models import MODELS, TOGETHER
from raysim.scenario.named import named_settings
from raysim.scenario.parse import ParsedScenario


def schedule_of(parsed: ParsedScenario) -> RateSchedule:
    """Return the learning-rate schedule. Raises `ScenarioError` if it does not exist or fails for one of the rounds."""
    key = ("training", "schedule")
    schedule: RateSchedule = named_settings(
        parsed.training.schedule, key, SCHEDULES, parsed.origin, parsed.own_code, "factor"
    )
    for t in range(1, parsed.rounds + 1):
        try:
            factor_of(schedule, t, parsed.rounds)
        except RunError as error:
            raise parsed.origin.error(key, str(error)) from error
    return schedule


def together_of(parsed: ParsedScenario, dataset: DatasetSpec, feature_dim: int) -> dict[str, int]:
    """Return how many clients one call trains, by architecture.

    Raises `ScenarioError` for an unknown architecture, or if another key requires that each client trains alone.
    """
    given, failure = parsed.training.together, parsed.failure
    names = dict.fromkeys(parsed.clients.models[: parsed.clients.number])
    if isinstance(given, dict):
        for name in given.keys() - names:
            raise parsed.origin.error(
                ("training", "together"),
                f"{name} given, which is not among clients.models; allowed: {', '.join(names)}",
            )
    # Groups must depend on the scenario and the cohort alone, not on which clients fail or exceed the time limit.
    by_client = {
        "failure.max_failed_fraction": failure.max_failed_fraction > 0,
        "failure.client_timeout_s": failure.client_timeout_s is not None,
    }
    reason = next((key for key, by_itself in by_client.items() if by_itself), None)
    if given == "auto":
        task = dataset.input_spec, feature_dim, dataset.num_classes, parsed.training.batch_size
        known = MODELS.keys() if not reason else ()
        return {name: TOGETHER if name in known and MODELS[name].stacks(*task) else 1 for name in names}
    sizes = {name: given.get(name, 1) if isinstance(given, dict) else given for name in names}
    if reason and max(sizes.values()) > 1:
        raise parsed.origin.error(
            ("training", "together"),
            f"{max(sizes.values())} given, but {reason} requires that each client trains alone; allowed: 1 or auto",
            cause=tuple(reason.split(".")),
        )
    return sizes
