"""The closing table of a run, with its main results for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from raysim.common.results import Summary, written
from raysim.results.units import human_bytes, human_flops, human_seconds, per_cent


def print_closing_table(summary: Summary, file: TextIO | None = None) -> None:
    """Print a run's summary, by default on standard output, one line per value. Long lines are not wrapped, so that
    users can copy paths.

    Entries that are missing or null are not shown. `nothing_to_do` and `completed` print a line on standard error.
    """
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
    print("", *(f" {name:<{width}}   {value}" for name, value in entries), "", sep="\n", file=file)


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the table's rows, (name, value), as text. `Summary` explains the entries."""
    seed = f"seed {summary['seed']}" if "seed" in summary else ""

    def counted(key: str, after: str) -> str:
        return f"{summary[key]}{after}" if summary.get(key) else ""

    rows = [
        # The summary of an earlier raysim has no entry `method`.
        ("scenario", _joined(summary.get("scenario"), summary.get("method") or summary.get("algorithm"), seed)),
        ("overridden", " ".join(written((summary.get("overrides") or {}).items()))),
        ("rounds", _rounds(summary)),
        ("ended early", summary.get("ended_early")),
        ("clients", _clients(summary)),
        *_results(summary),
        ("restarts", summary.get("restarts")),
        (
            "diverged clients",
            counted("diverged_clients", f" of {summary.get('clients')}: the last loss or upload was NaN or infinite"),
        ),
        ("uploads left out", counted("rejected_uploads", f" of {summary.get('uploads')} (NaN or infinity)")),
        ("dropped out or late", counted("dropped_clients", " client rounds")),
        ("state", (summary.get("state_digest") or "")[:12]),
        ("results", summary.get("folder")),
        ("MLflow", summary.get("mlflow")),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _results(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows with accuracies and costs; a value that the run lacks is empty."""
    final = {name: value for name, value in (summary.get("final") or {}).items() if value is not None}

    def shown(metric: str, human: Callable[[float], str] = per_cent, after: str = "") -> str:
        return f"{human(final[metric])}{after}" if metric in final else ""

    def mean(metric: str, after: str) -> str:
        std = final.get(f"{metric}_std")
        return shown(metric, after=after if std is None else f" ± {100 * std:.1f} (mean ± std){after}")

    absent, pooled = final.get("engine/absent_clients"), shown("accuracy/all_current_pooled", after=" pooled, ")
    took_part = f", without the {absent or 0:.0f} of {summary.get('clients')} clients that have not taken part yet"
    current = f", {pooled}each client after it received the server's current message"
    # The operations are 0 if all hooks train by loops of their own, for example over `client.data.shuffled`.
    uncounted = "; those of client hooks outside fit, outputs and add_flops are not counted"
    operations = final.get("compute/total_flops")
    return [
        ("accuracy, all clients", mean("accuracy/all", ", each client as it was last tested")),
        ("accuracy, took part", shown("accuracy/took_part", after=took_part) if absent else ""),
        ("accuracy, current", mean("accuracy/all_current", current)),
        ("accuracy, new clients", shown("accuracy/held_out", after=", which never take part")),
        ("accuracy, worst tenth", shown("accuracy/worst_decile")),
        ("accuracy, participants", shown("accuracy/participants")),
        ("accuracy, before training", shown("accuracy/participants_before")),
        ("accuracy, whole test set", shown("accuracy/global")),
        ("accuracy, best round", shown("accuracy/best", after=_chosen_round(summary.get("best_round"), "test"))),
        (
            "accuracy at best val.",
            shown("accuracy/at_best_val", after=_chosen_round(summary.get("best_val_round"), "validation")),
        ),
        ("epsilon", shown("privacy/epsilon", "{:.3f}".format)),
        ("sent per participant", _per_participant(summary)),
        ("total communication", shown("comm/total_bytes", human_bytes)),
        ("total computation", shown("compute/total_flops", human_flops, "" if operations else uncounted)),
        ("virtual time", shown("time/virtual_total_s", human_seconds)),
        *_times(summary.get("seconds") or {}, final.get("time/total_s")),
    ]


def _joined(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part)


def _rounds(summary: Mapping[str, Any]) -> str:
    done, asked, status = summary.get("rounds"), summary.get("rounds_asked"), summary.get("status")
    text = "" if done is None else str(done)
    if text and asked is not None and asked != done:
        text += f" of {asked}"
    return _joined(text, None if status == "finished" and text else status)


def _clients(summary: Mapping[str, Any]) -> str:
    each, malicious = summary.get("participants_per_round"), len(summary.get("malicious_clients") or ())
    return _joined(summary.get("clients"), each and f"{each} per round", malicious and f"{malicious} of them malicious")


def _chosen_round(t: int | None, samples: str) -> str:
    return "" if t is None else f" in round {t}, which has the greatest {samples} accuracy of all clients"


def _per_participant(summary: Mapping[str, Any]) -> str:
    sizes = (("up", summary.get("up_bytes_per_participant")), ("down", summary.get("down_bytes_per_participant")))
    sent = ", ".join(f"{human_bytes(size)} {way}" for way, size in sizes if size is not None)
    return f"{sent} per round" if sent else ""


def _times(seconds: Mapping[str, float], rounds: float | None) -> list[tuple[str, str]]:
    """Return the rows with times. rounds: seconds of all rounds; a resumed run's `total` contains a part of them."""
    total = seconds.get("total")
    time = "" if total is None else human_seconds(total)
    if total is not None and rounds is not None:
        since = " since the run was resumed" if seconds.get("before_resume") or rounds > total else ""
        time += f"{since} without data, plots and MLflow, {human_seconds(rounds)} for all rounds"
    phases = {name: s for name, s in seconds.items() if name not in ("total", "before_resume")}
    by_phase = ", ".join(f"{name} {human_seconds(s)}" for name, s in phases.items())
    return [
        ("time", time),
        ("time by phase", f"{by_phase} (summed over clients, which may run in parallel)" if by_phase else ""),
    ]
