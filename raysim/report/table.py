"""The table at the end of a run: its main results for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeGuard

from raysim.common.results import Scalar, Summary, written
from raysim.common.text import one_line
from raysim.report.units import human_bytes, human_flops, human_seconds, per_cent


def print_closing_table(summary: Summary, file: TextIO | None = None) -> None:
    """Print a run's summary, by default on standard output, one line per value; long lines are not wrapped, so that
    paths can be copied.

    Entries that are missing or null are not shown. `nothing_to_do` and `completed` print a line on standard error.
    """
    from rich.console import Console
    from rich.text import Text

    if how := summary.get("nothing_to_do"):
        done = f"; {how}"
    else:
        done = "; plots and MLflow are complete now" if summary.get("completed") else ""
    if done:
        ended = "it ended early" if summary.get("ended_early") else f"all {summary['rounds']} rounds are done"
        text = f"{summary['folder']}: this run is finished: {ended}{done}"
        print(text, file=sys.stderr)
    entries = summary_rows(summary)
    width = max((len(name) for name, _ in entries), default=0)
    lines = [Text.assemble(" ", (name.ljust(width), "dim"), f"   {value}") for name, value in entries]
    Console(file=file).print(Text("\n").join([Text(), *lines, Text()]), soft_wrap=True)


def summary_rows(summary: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the table's rows as text, each a name and a value. See `Summary` for its entries.

    A summary may come from a job's log or from another user's folder, so values of an unexpected type are not shown.
    """
    final, seconds = _numbers(summary.get("final")), _numbers(summary.get("seconds"))
    overrides = summary.get("overrides")
    items = overrides.items() if isinstance(overrides, Mapping) else ()
    overridden = written((key, value) for key, value in items if isinstance(value, Scalar))
    summary = {key: value for key, value in summary.items() if isinstance(value, str | int | float)}
    method = summary.get("method") or summary.get("algorithm")  # a run of an earlier raysim has no method
    entries = [
        ("scenario", _joined(summary.get("scenario"), method, _seed(summary))),
        ("overridden", " ".join(overridden)),
        ("rounds", _rounds(summary)),
        ("ended early", str(summary.get("ended_early") or "")),
        ("clients", _clients(summary)),
        ("accuracy, all clients", _all(final)),
        ("accuracy, took part", _took_part(final, summary.get("clients"))),
        ("accuracy, current", _current(final)),
        ("accuracy, worst tenth", _one(final, "accuracy/worst_decile", per_cent)),
        ("accuracy, participants", _one(final, "accuracy/participants", per_cent)),
        ("accuracy, before training", _one(final, "accuracy/participants_before", per_cent)),
        ("accuracy, whole test set", _one(final, "accuracy/global", per_cent)),
        ("accuracy, best round", _in_round(final, "accuracy/best", summary.get("best_round"), "test")),
        (
            "accuracy at best val.",
            _in_round(final, "accuracy/at_best_val", summary.get("best_val_round"), "validation"),
        ),
        ("sent per participant", _per_participant(summary)),
        ("total communication", _one(final, "comm/total_bytes", human_bytes)),
        ("total computation", _one(final, "compute/total_flops", _computation)),
        ("virtual time", _one(final, "time/virtual_total_s", human_seconds)),
        ("time", _time(seconds, final)),
        ("time by phase", _phases(seconds)),
        ("restarts", _restarts(final)),
        ("diverged clients", _diverged(summary)),
        ("uploads left out", _left_out(summary)),
        ("dropped out or late", _dropped(summary)),
        ("state", str(summary.get("state_digest") or "")[:12]),
        ("results", str(summary.get("folder") or "")),
        ("MLflow", str(summary.get("mlflow") or "")),
    ]
    return [(name, one_line(value, 5000)) for name, value in entries if value]


def _computation(flops: float) -> str:
    # A method whose hooks train by loops of their own, such as one over `client.data.shuffled`, has 0 operations.
    uncounted = "" if flops else "; those of client hooks outside fit, outputs and add_flops are not counted"
    return f"{human_flops(flops)}{uncounted}"


def _phases(seconds: Mapping[str, float]) -> str:
    others = ("total", "before_resume")
    phases = ", ".join(f"{name} {human_seconds(s)}" for name, s in seconds.items() if name not in others)
    return f"{phases} (summed over clients, which may run in parallel)" if phases else ""


def _numbers(value: object) -> Mapping[str, float]:
    values = value if isinstance(value, Mapping) else {}
    return {name: number for name, number in values.items() if _is_number(number)}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < 1e300  # nor NaN or infinite


def _joined(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part)


def _seed(summary: Mapping[str, object]) -> str:
    return f"seed {summary['seed']}" if "seed" in summary else ""


def _one(final: Mapping[str, Any], metric: str, human: Callable[[float], str]) -> str:
    value = final.get(metric)
    return "" if value is None else human(value)


def _rounds(summary: Mapping[str, object]) -> str:
    done, asked = summary.get("rounds"), summary.get("rounds_asked")
    status = summary.get("status")
    text = "" if done is None else str(done)
    if text and asked is not None and asked != done:
        text += f" of {asked}"
    return _joined(text, None if status == "finished" and text else status)


def _clients(summary: Mapping[str, object]) -> str:
    count, participants = summary.get("clients"), summary.get("participants_per_round")
    each = None if participants is None else f"{participants} per round"
    malicious = summary.get("malicious_clients")
    return _joined(count, each, f"{len(malicious)} of them malicious" if isinstance(malicious, list) else None)


def _mean(final: Mapping[str, Any], metric: str) -> str:
    """A mean accuracy over clients, with its standard deviation if that is known; empty if it was not measured."""
    mean, std = _one(final, metric, per_cent), final.get(f"{metric}_std")
    return f"{mean} ± {100 * std:.1f} (mean ± std)" if mean and std is not None else mean


def _all(final: Mapping[str, Any]) -> str:
    mean = _mean(final, "accuracy/all")
    return f"{mean}, each client as it was last tested" if mean else ""


def _took_part(final: Mapping[str, Any], clients: object) -> str:
    """The accuracy without the clients that have not taken part yet; empty if all have."""
    absent, mean = final.get("engine/absent_clients"), _one(final, "accuracy/took_part", per_cent)
    if not absent or not mean:
        return ""
    of = "" if clients is None else f" of {clients}"
    how = (
        "" if "accuracy/all_current" in final else "; for the current model on all clients, set evaluation.clients: all"
    )
    return f"{mean}; {absent:.0f}{of} clients have not taken part yet, and are left out here{how}"


def _current(final: Mapping[str, Any]) -> str:
    mean, pooled = _mean(final, "accuracy/all_current"), _one(final, "accuracy/all_current_pooled", per_cent)
    how = "each client after it received the server's current message"
    return _joined(mean, pooled and f"{pooled} pooled", how) if mean else ""


def _diverged(summary: Mapping[str, object]) -> str:
    count, clients = summary.get("diverged_clients"), summary.get("clients")
    if not count:
        return ""
    of = f"{count} of {clients}" if clients is not None else f"{count}"
    return f"{of}: the last loss or upload was NaN or infinite; the accuracies include these clients"


def _left_out(summary: Mapping[str, object]) -> str:
    count, uploads = summary.get("rejected_uploads"), summary.get("uploads")
    if not count:
        return ""
    if count == uploads:
        return f"all {count} (NaN or infinity); the server received no usable upload"
    return f"{count} (NaN or infinity)"


def _dropped(summary: Mapping[str, object]) -> str:
    count = summary.get("dropped_clients")
    return f"{count} client rounds" if count else ""


def _in_round(final: Mapping[str, Any], metric: str, t: object, chosen: str) -> str:
    """A test accuracy of all clients in the round that was chosen. chosen: the samples that chose it."""
    text = _one(final, metric, per_cent)
    which = f"test accuracy of all clients in round {t}, which has the greatest {chosen} accuracy"
    return f"{text}, {which}" if text and t is not None else text


def _per_participant(summary: Mapping[str, object]) -> str:
    sizes = (("up", summary.get("up_bytes_per_participant")), ("down", summary.get("down_bytes_per_participant")))
    shown = [f"{human_bytes(size)} {way}" for way, size in sizes if _is_number(size)]
    return f"{', '.join(shown)} per round" if shown else ""


def _time(seconds: Mapping[str, float], final: Mapping[str, float]) -> str:
    total, rounds = seconds.get("total"), final.get("time/total_s")
    if total is None or rounds is None:
        return "" if total is None else human_seconds(total)
    # In a resumed run, `rounds` includes the rounds before the resume, and `total` does not.
    if seconds.get("before_resume") or rounds > total:
        return f"{human_seconds(total)} since the run was resumed; all its rounds together took {human_seconds(rounds)}"
    rest = f"{human_seconds(total - rounds)} before and after them"
    return f"{human_seconds(total)} ({human_seconds(rounds)} for rounds, {rest}), without data, plots and MLflow"


def _restarts(final: Mapping[str, Any]) -> str:
    count = final.get("engine/restarts")
    return f"{count:.0f}" if count else ""
