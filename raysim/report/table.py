"""The table at the end of a run: its main results for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from raysim.common.results import Summary, written
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


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the table's rows as text, each a name and a value. See `Summary` for its entries."""
    final = {name: value for name, value in (summary.get("final") or {}).items() if value is not None}
    seconds = summary.get("seconds") or {}
    method = summary.get("method") or summary.get("algorithm")  # a run of an earlier raysim has no method
    seed = f"seed {summary['seed']}" if "seed" in summary else ""

    def shown(metric: str, human: Callable[[float], str] = per_cent) -> str:
        return human(final[metric]) if metric in final else ""

    entries = [
        ("scenario", _joined(summary.get("scenario"), method, seed)),
        ("overridden", " ".join(written((summary.get("overrides") or {}).items()))),
        ("rounds", _rounds(summary)),
        ("ended early", summary.get("ended_early")),
        ("clients", _clients(summary)),
        ("accuracy, all clients", _suffixed(_mean(final, "accuracy/all"), ", each client as it was last tested")),
        ("accuracy, took part", _took_part(final, summary.get("clients"))),
        ("accuracy, current", _current(final)),
        ("accuracy, worst tenth", shown("accuracy/worst_decile")),
        ("accuracy, participants", shown("accuracy/participants")),
        ("accuracy, before training", shown("accuracy/participants_before")),
        ("accuracy, whole test set", shown("accuracy/global")),
        ("accuracy, best round", _in_round(shown("accuracy/best"), summary.get("best_round"), "test")),
        (
            "accuracy at best val.",
            _in_round(shown("accuracy/at_best_val"), summary.get("best_val_round"), "validation"),
        ),
        ("sent per participant", _per_participant(summary)),
        ("total communication", shown("comm/total_bytes", human_bytes)),
        ("total computation", shown("compute/total_flops", _computation)),
        ("virtual time", shown("time/virtual_total_s", human_seconds)),
        ("time", _time(seconds, final)),
        ("time by phase", _phases(seconds)),
        ("restarts", f"{final['engine/restarts']:.0f}" if final.get("engine/restarts") else ""),
        ("diverged clients", _diverged(summary)),
        ("uploads left out", _left_out(summary)),
        ("dropped out or late", _suffixed(summary.get("dropped_clients"), " client rounds")),
        ("state", (summary.get("state_digest") or "")[:12]),
        ("results", summary.get("folder")),
        ("MLflow", summary.get("mlflow")),
    ]
    return [(name, str(value)) for name, value in entries if value]


def _joined(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part)


def _suffixed(value: object, suffix: str) -> str:
    return f"{value}{suffix}" if value else ""


def _computation(flops: float) -> str:
    # A method whose hooks train by loops of their own, such as one over `client.data.shuffled`, has 0 operations.
    uncounted = "" if flops else "; those of client hooks outside fit, outputs and add_flops are not counted"
    return f"{human_flops(flops)}{uncounted}"


def _phases(seconds: Mapping[str, float]) -> str:
    others = ("total", "before_resume")
    phases = ", ".join(f"{name} {human_seconds(s)}" for name, s in seconds.items() if name not in others)
    return _suffixed(phases, " (summed over clients, which may run in parallel)")


def _rounds(summary: Mapping[str, Any]) -> str:
    done, asked, status = summary.get("rounds"), summary.get("rounds_asked"), summary.get("status")
    text = "" if done is None else str(done)
    if text and asked is not None and asked != done:
        text += f" of {asked}"
    return _joined(text, None if status == "finished" and text else status)


def _clients(summary: Mapping[str, Any]) -> str:
    malicious = _suffixed(len(summary.get("malicious_clients") or ()), " of them malicious")
    each = _suffixed(summary.get("participants_per_round"), " per round")
    return _joined(summary.get("clients"), each, malicious)


def _mean(final: Mapping[str, float], metric: str) -> str:
    """A mean accuracy over clients, with its standard deviation if that is known; empty if it was not measured."""
    if metric not in final:
        return ""
    mean, std = per_cent(final[metric]), final.get(f"{metric}_std")
    return mean if std is None else f"{mean} ± {100 * std:.1f} (mean ± std)"


def _took_part(final: Mapping[str, float], clients: object) -> str:
    """The accuracy without the clients that have not taken part yet; empty if all have."""
    absent, mean = final.get("engine/absent_clients"), final.get("accuracy/took_part")
    if not absent or mean is None:
        return ""
    of = "" if clients is None else f" of {clients}"
    how = (
        "" if "accuracy/all_current" in final else "; for the current model on all clients, set evaluation.clients: all"
    )
    return f"{per_cent(mean)}; {absent:.0f}{of} clients have not taken part yet, and are left out here{how}"


def _current(final: Mapping[str, float]) -> str:
    mean, pooled = _mean(final, "accuracy/all_current"), final.get("accuracy/all_current_pooled")
    how = "each client after it received the server's current message"
    return _joined(mean, None if pooled is None else f"{per_cent(pooled)} pooled", how) if mean else ""


def _diverged(summary: Mapping[str, Any]) -> str:
    how = f" of {summary.get('clients')}: the last loss or upload was NaN or infinite; the accuracies include these "
    return _suffixed(summary.get("diverged_clients"), f"{how}clients")


def _left_out(summary: Mapping[str, Any]) -> str:
    count = summary.get("rejected_uploads")
    if count and count == summary.get("uploads"):
        return f"all {count} (NaN or infinity); the server received no usable upload"
    return _suffixed(count, " (NaN or infinity)")


def _in_round(text: str, t: object, chosen: str) -> str:
    """A test accuracy of all clients in the round that was chosen. chosen: the samples that chose it."""
    which = f"test accuracy of all clients in round {t}, which has the greatest {chosen} accuracy"
    return f"{text}, {which}" if text and t is not None else text


def _per_participant(summary: Mapping[str, Any]) -> str:
    sizes = (("up", summary.get("up_bytes_per_participant")), ("down", summary.get("down_bytes_per_participant")))
    return _suffixed(", ".join(f"{human_bytes(size)} {way}" for way, size in sizes if size is not None), " per round")


def _time(seconds: Mapping[str, float], final: Mapping[str, float]) -> str:
    total, rounds = seconds.get("total"), final.get("time/total_s")
    if total is None or rounds is None:
        return "" if total is None else human_seconds(total)
    # In a resumed run, `rounds` includes the rounds before the resume, and `total` does not.
    if seconds.get("before_resume") or rounds > total:
        return f"{human_seconds(total)} since the run was resumed; all its rounds together took {human_seconds(rounds)}"
    rest = f"{human_seconds(total - rounds)} before and after them"
    return f"{human_seconds(total)} ({human_seconds(rounds)} for rounds, {rest}), without data, plots and MLflow"
