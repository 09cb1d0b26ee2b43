"""Rules against combinations that cannot run. Each is a function that raises `ScenarioError` with one sentence.

The rules in `BEFORE` check the keys before the data are looked up; those in `AFTER` check the whole scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from raysim.common.errors import HookError, RunError, ScenarioError, UnavailableError
from raysim.common.text import holds_secret
from raysim.data.partition_counts import pooled
from raysim.engine.learning_rate import factor_of
from raysim.plugins.calling import failing
from raysim.results.store import PASSWORD, USER
from raysim.scenario.data import input_digests
from raysim.scenario.deciding import DECIDING, missing_setting
from raysim.scenario.origin import Key
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.trackers import check_trackers

if TYPE_CHECKING:
    from raysim.scenario.scenario import Scenario


def refuse_secrets(parsed: ParsedScenario) -> None:
    """Refuse secrets in the scenario, because run folder and MLflow would show them."""
    sentence = (
        "the address contains a user name, password or token, which the run folder and MLflow would show; remove it. "
        f"MLflow reads {USER} and {PASSWORD} from the environment, and fsspec reads variables such as AWS_ACCESS_KEY_ID"
    )
    for name, value in parsed.flat().items():
        if isinstance(value, str) and holds_secret(value):
            raise parsed.origin.error(tuple(name.split(".")), sentence)
    if any(map(holds_secret, parsed.text.splitlines())):  # it may be in a comment
        raise ScenarioError(sentence)


def refuse_remote_output(parsed: ParsedScenario) -> None:
    """Refuse an address as the place for run folders."""
    if "://" in parsed.output:
        raise parsed.origin.error(
            ("output",),
            f"{parsed.output} given, but run folders are local; set `output` to a local folder. If you want "
            "checkpoints at this address, set checkpoint.folder to it; the results of a sweep can also be copied to "
            "an address",
        )


def refuse_augmentation(scenario: Scenario) -> None:
    """Refuse augmentation of samples that are not images."""
    dataset = scenario.dataset
    if scenario.data.augment and dataset.input_spec.kind != "image":
        raise scenario.origin.error(
            ("data", "augment"),
            f"augmentation needs images, but {dataset.name} has {dataset.input_spec}; set data.augment to false",
        )


def refuse_global_test(scenario: Scenario) -> None:
    """Refuse tests on the published test set if clients train on its samples."""
    evaluation, origin = scenario.evaluation, scenario.origin
    listed = scenario.split == "listed"
    if evaluation.global_test and (listed or pooled(scenario.split)):
        train = "may also train" if listed else "also train"
        choose = "choose another partition and set" if listed else "set"
        raise origin.error(
            ("evaluation", "global_test"),
            f"true given, but with data.split {scenario.split}, clients {train} on samples of the published "
            f"test set; {choose} data.split to published or pfedhn, or set this key to false",
        )


NEEDS: Mapping[str, tuple[str, str]] = {
    "clients.deadline_s": ("system", "the section `system`"),
    "clients.oversample": ("system", "the section `system`"),
    "clients.held_out": ("evaluation.clients", "evaluation.clients: all, because these clients are only tested"),
    "asynchronous": ("system", "the section `system` with at least flops_per_s"),
    "evaluation.fine_tune": ("clients.held_out", "clients.held_out, because other clients are not fine-tuned"),
    "evaluation.global_every": ("evaluation.global_test", "evaluation.global_test: true"),
    "evaluation.all_every": ("evaluation.clients", "evaluation.clients: all"),
}
"""Key -> another key without which it has no effect, and the words for that key."""


def refuse_missing_keys(parsed: ParsedScenario) -> None:
    """Refuse a key that has no effect without another key."""
    for key, (needed, words) in NEEDS.items():
        if (given := parsed.first_set(key)) and not parsed.first_set(needed):
            raise parsed.origin.error(given, f"this key needs {words}; set it, too")


def refuse_unusable_intervals(parsed: ParsedScenario) -> None:
    """Refuse an interval that is no multiple of `evaluation.every`."""
    evaluation = parsed.evaluation
    for key in ("global_every", "all_every"):
        interval = getattr(evaluation, key)
        if interval is not None and interval % evaluation.every:
            raise parsed.origin.error(
                ("evaluation", key),
                f"{interval} given, which must be a multiple of evaluation.every ({evaluation.every})",
            )


def refuse_unusable_stop(scenario: Scenario) -> None:
    """Refuse `stop` without a condition, or with a metric that the run does not measure."""
    stop, origin = scenario.stop, scenario.origin
    if stop is None:
        return
    if stop.patience is None and stop.target is None:
        raise origin.error(("stop",), "give `patience`, `target`, or both")
    if setting := missing_setting(stop.metric, scenario.evaluation):
        raise origin.error(("stop", "metric"), f"{stop.metric} needs {setting}; set it")
    if DECIDING[stop.metric].part == "val":
        _require_validation(scenario, ("stop", "metric"), stop.metric)
    if stop.target is not None and stop.metric.startswith("accuracy/") and not 0 < stop.target <= 1:
        raise origin.error(
            ("stop", "target"),
            f"{stop.target:g} given, but {stop.metric} is an accuracy; allowed: greater than 0 and at most 1",
        )


def refuse_unusable_keep(scenario: Scenario) -> None:
    """Refuse `checkpoint.keep` without `last`, or with `best_val` if validation or checkpoints are switched off."""
    checkpoint, origin, key = scenario.checkpoint, scenario.origin, ("checkpoint", "keep")
    if "last" not in checkpoint.keep:
        raise origin.error(key, "'last' is missing, but resuming a run needs it; give [last] or [last, best_val]")
    if "best_val" not in checkpoint.keep:
        return
    if checkpoint.every == 0:
        raise origin.error(
            key,
            "best_val given, but checkpoint.every is 0, so no state is saved; set checkpoint.every to auto, or remove "
            "best_val",
            cause=("checkpoint", "every"),
        )
    _require_validation(scenario, key, "best_val")


def _require_validation(scenario: Scenario, key: Key, what: str) -> None:
    if scenario.split == "published":
        raise scenario.origin.error(
            key,
            f"{what} needs validation samples, but with `data.split: published`, clients have none; remove it or, "
            "unless the partition is hks, set data.split to pooled811 or pfedhn",
            cause=("data", "split"),
        )


def refuse_unsuited_algorithm(scenario: Scenario) -> None:
    """Refuse several architectures, or missing public data, if the algorithm does not support that."""
    name = scenario.algorithm_name
    if scenario.algorithm.one_architecture and len(scenario.architectures) > 1:
        raise scenario.origin.error(
            ("clients", "models"),
            f"{len(scenario.architectures)} architectures given ({', '.join(scenario.architectures)}), but "
            f"{name} averages networks of one architecture; give one architecture, or choose another method",
            cause=("algorithm", "name"),
        )
    if scenario.algorithm.public_data and scenario.data.public is None:
        raise scenario.origin.error(
            ("data", "public"),
            f"{name} needs public data; set data.public to {{share: 0.1}} or {{name: DATASET}}",
            cause=("algorithm", "name"),
        )


def refuse_unsuited_held_out(scenario: Scenario) -> None:
    """Refuse held-out clients if the method requires every client to register."""
    if not scenario.clients.held_out:
        return
    from raysim.core.algorithm import overrides

    if overrides(type(scenario.algorithm), "client_register"):
        raise scenario.origin.error(
            ("clients", "held_out"),
            f"every client of {scenario.method} registers with the server before round 1, so none is new to it; remove "
            "the key, or choose another method",
            cause=("algorithm", "name"),
        )


def refuse_unsuited_aggregator(scenario: Scenario) -> None:
    """Refuse an aggregation rule if the method computes no suitable mean, or if a round has too few uploads for it."""
    robust, origin, name, averages = scenario.robust, scenario.origin, scenario.method, scenario.algorithm.averages
    if robust is None:
        return
    key = ("aggregator", "rule")
    if averages == "nothing":
        raise origin.error(
            key,
            f"{name} does not average uploads, so no rule can take the place of a mean; remove the section "
            "`aggregator`, or choose a method that averages, such as fedavg or fedproto",
            cause=("algorithm", "name"),
        )
    whole = [one for one in (robust.rule, robust.mixing) if one and not getattr(one, "per_value", False)]
    if averages == "values" and whole:
        raise origin.error(
            key,
            f"{type(whole[0]).__name__} given, which compares whole uploads, but clients of {name} send parts of "
            "different sizes; choose median or trimmed_mean, without `mixing`",
            cause=("algorithm", "name"),
        )
    assumed = max(getattr(one, "malicious", 0) for one in (robust.rule, robust.mixing))
    if 2 * assumed >= scenario.participants:
        raise origin.error(
            key,
            f"malicious: {assumed} given, but only {scenario.participants} clients take part in a round; give less "
            "than half of them",
        )


def refuse_unaccounted_noise(scenario: Scenario) -> None:
    """Refuse noise whose epsilon cannot be computed."""
    privacy, origin = scenario.client_privacy, scenario.origin
    if privacy is None:
        return
    if privacy.noise_multiplier and find_spec("dp_accounting") is None:
        raise origin.error(
            ("privacy",),
            "needs the package dp-accounting; install raysim with the extra `privacy`",
            kind=UnavailableError,
        )
    deciding = "clients.deadline_s", "clients.oversample", "system.availability", "failure.max_failed_fraction"
    if privacy.central and (key := scenario.first_set(*deciding)):
        raise origin.error(
            key,
            "one client decides whether another one counts, which no account of noise at the server covers; remove "
            "this key, or set privacy.noise_at to client",
            cause=("privacy", "noise_at"),
        )
    if privacy.accountant == "pld" and privacy.central and privacy.sampling == "uniform":
        raise origin.error(
            ("privacy", "accountant"),
            "pld given, but it cannot account for a fixed number of participants; choose rdp, or the selection poisson",
        )


def refuse_unprotected_messages(scenario: Scenario) -> None:
    """Refuse noise if a method sends or reads values that are not clipped and noised."""
    privacy, origin, algorithm = scenario.client_privacy, scenario.origin, scenario.algorithm
    if privacy is None:
        return
    from raysim.core.algorithm import overrides

    if overrides(type(algorithm), "client_register"):
        raise origin.error(
            ("privacy",),
            f"clients of {scenario.method} send a message before round 1, which would be neither clipped nor noised; "
            "choose another method",
            cause=("algorithm", "name"),
        )
    if privacy.central and algorithm.averages != "uploads":
        raise origin.error(
            ("privacy", "noise_at"),
            f"server given, but {scenario.method} also reads single uploads, which would get past the noise; set "
            "noise_at to client, or choose a method that averages, such as fedavg or fedproto",
            cause=("algorithm", "name"),
        )
    if privacy.central and scenario.robust is not None:
        raise origin.error(
            ("aggregator",),
            "a rule is no sum, and only noise in a sum is accounted; remove the section, or set privacy.noise_at to "
            "client",
            cause=("privacy", "noise_at"),
        )


def refuse_unsuited_asynchrony(scenario: Scenario) -> None:
    """Refuse asynchronous rounds if the method cannot use stale uploads, or if other keys also end rounds."""
    buffered, origin = scenario.buffered, scenario.origin
    if buffered is None:
        return
    if not scenario.algorithm.stale_uploads:
        raise origin.error(
            ("asynchronous",),
            f"{scenario.method} cannot take an upload that belongs to an earlier round; remove the section, or choose "
            "another method",
            cause=("algorithm", "name"),
        )
    if key := scenario.first_set("clients.deadline_s", "clients.oversample", "failure.max_failed_fraction", "privacy"):
        raise origin.error(key, "this key is not possible with asynchronous rounds; remove it", cause=("asynchronous",))
    if buffered.buffer > scenario.participants:
        raise origin.error(
            ("asynchronous", "buffer"),
            f"{buffered.buffer} given, but only {scenario.participants} clients take part at once; give at most "
            "that number, or a greater clients.participation",
        )


def ask_algorithm(scenario: Scenario) -> None:
    """Call the algorithm's method `check`, which may refuse the task. Raises `ScenarioError`."""
    with failing(f"{type(scenario.algorithm).__name__}.check fails", "algorithm"):
        try:
            scenario.algorithm.check(scenario.task)
        except UnavailableError as error:
            raise scenario.origin.error(("algorithm",), str(error), kind=UnavailableError) from None
        except ValueError as error:
            raise scenario.origin.error(("algorithm",), str(error)) from None


def refuse_failing_schedule(parsed: ParsedScenario) -> None:
    """Refuse a learning-rate schedule that fails for one of the rounds."""
    for t in range(1, parsed.rounds + 1):
        try:
            factor_of(parsed.training.schedule, t, parsed.rounds)
        except HookError:
            raise
        except RunError as error:
            raise parsed.origin.error(("training", "schedule"), str(error)) from error


BEFORE: Sequence[Callable[[ParsedScenario], None]] = (
    refuse_secrets,
    refuse_remote_output,
    refuse_failing_schedule,
    refuse_missing_keys,
    refuse_unusable_intervals,
)

AFTER: Sequence[Callable[[Scenario], object]] = (
    input_digests,
    refuse_augmentation,
    refuse_global_test,
    refuse_unusable_stop,
    refuse_unusable_keep,
    refuse_unsuited_algorithm,
    refuse_unsuited_held_out,
    refuse_unsuited_aggregator,
    refuse_unaccounted_noise,
    refuse_unprotected_messages,
    refuse_unsuited_asynchrony,
    ask_algorithm,
    check_trackers,
)
