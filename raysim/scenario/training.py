"""Training settings that depend on other sections: schedule, overrides of some clients, and the size of groups."""

from __future__ import annotations

from collections.abc import Mapping

from raysim.common.errors import HookError, RunError
from raysim.data.specs import DatasetSpec
from raysim.engine.learning_rate import SCHEDULES, RateSchedule, factor_of
from raysim.models import MODELS, TOGETHER
from raysim.scenario.named import named_settings
from raysim.scenario.origin import Key
from raysim.scenario.overrides import clients_of
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.schema import Selected, Training


def schedule_of(parsed: ParsedScenario) -> RateSchedule:
    """Return the learning-rate schedule. Raises `ScenarioError` if it does not exist or fails for one of the rounds."""
    key = ("training", "schedule")
    schedule: RateSchedule = named_settings(
        parsed.training.schedule, key, SCHEDULES, parsed.origin, parsed.own_code, "factor"
    )
    for t in range(1, parsed.rounds + 1):
        try:
            factor_of(schedule, t, parsed.rounds)
        except HookError:
            raise
        except RunError as error:
            raise parsed.origin.error(key, str(error)) from error
    return schedule


def own_training_of(parsed: ParsedScenario) -> dict[int, Training]:
    """Return the training settings of each client that an override selects.

    Raises `ScenarioError` when an override selects no client or changes nothing, or for impossible settings.
    """
    training = parsed.training
    _refuse_nesterov(parsed, training, ("training",))
    steps = training.steps is not None or any(one.steps is not None for one in training.overrides)
    if steps and training.stragglers is not None:
        raise parsed.origin.error(
            ("training", "stragglers"),
            "stragglers train for fewer epochs, but `steps` takes the place of epochs; remove one of them",
            cause=("training", "steps"),
        )
    own: dict[int, Training] = {}
    *chosen_by, _ = clients_of(parsed, "training", training.overrides)
    for i, (override, clients) in enumerate(zip(training.overrides, chosen_by, strict=True)):
        key: Key = ("training", "overrides", str(i))
        names = type(override).model_fields.keys() - Selected.model_fields.keys()
        changes = {name: getattr(override, name) for name in names if getattr(override, name) is not None}
        if not changes:
            raise parsed.origin.error(
                key, "this override changes no setting; set one, such as `lr`, or remove the override"
            )
        if not clients:
            raise parsed.origin.error(
                key,
                "this override applies to no client: either it selects none, or earlier overrides already select all "
                "its clients; move it before the earlier ones, or remove it",
            )
        settings = training.model_copy(update=changes)
        _refuse_nesterov(parsed, settings, key)
        own |= dict.fromkeys(clients, settings)
    return own


def _refuse_nesterov(parsed: ParsedScenario, training: Training, key: Key) -> None:
    if training.nesterov and training.optimizer != "sgd":
        raise parsed.origin.error(
            (*key, "nesterov"),
            f"true given, but the optimizer is {training.optimizer}; set `nesterov` to false, or `optimizer` to sgd",
        )
    if training.nesterov and not training.momentum:
        raise parsed.origin.error((*key, "nesterov"), "true given, but momentum is 0; set `momentum` greater than 0")


def together_of(
    parsed: ParsedScenario, dataset: DatasetSpec, feature_dim: int, own: Mapping[int, Training]
) -> dict[str, int]:
    """Return how many clients one call trains, by architecture. own: the settings of clients with an override.

    Raises `ScenarioError` for an unknown architecture, or if another key requires that each client trains alone.
    """
    given, failure = parsed.training.together, parsed.failure
    names = dict.fromkeys(parsed.clients.models[: parsed.clients.number])
    if isinstance(given, dict) and (unknown := [name for name in given if name not in names]):
        raise parsed.origin.error(
            ("training", "together"),
            f"{unknown[0]} given, which is not among clients.models; allowed: {', '.join(names)}",
        )
    # Groups must depend on the scenario and the cohort alone, not on which clients fail or exceed the time limit.
    by_client = {
        "failure.max_failed_fraction": failure.max_failed_fraction > 0,
        "failure.client_timeout_s": failure.client_timeout_s is not None,
    }
    reason = next((key for key, by_itself in by_client.items() if by_itself), None)
    if given == "auto":
        task = dataset.input_spec, feature_dim, dataset.num_classes
        size = dict.fromkeys(names, parsed.training.batch_size)  # the largest of each architecture
        for k, training in own.items():
            name = parsed.clients.models[k % len(parsed.clients.models)]
            size[name] = max(size[name], training.batch_size)
        # One call cannot train several clients in float16, see `Stack`.
        known = MODELS.keys() if not reason and parsed.training.precision != "float16" else ()
        return {name: TOGETHER if name in known and MODELS[name].stacks(*task, size[name]) else 1 for name in names}
    sizes = {name: given.get(name, 1) if isinstance(given, dict) else given for name in names}
    if reason and max(sizes.values()) > 1:
        raise parsed.origin.error(
            ("training", "together"),
            f"{max(sizes.values())} given, but {reason} requires that each client trains alone; set this key to 1 or "
            f"auto, or remove {reason}",
            cause=tuple(reason.split(".")),
        )
    return sizes
