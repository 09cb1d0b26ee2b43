"""The program of a job on the head node. It checks versions, then acts as `raysim launch`, `resume` or `sweep`.

    python -m raysim.jobs.entry CLIENT [SCENARIO [--sweep] | --resume RUN [--code-changed]] [--set KEY=VALUE]...

CLIENT is the result of `versions` where the job was submitted. Ray runs the program in the folder that `submit`
shipped, and removes that folder some time after the job. So all relative paths (those of the scenario, and the run to
resume) are relative to `~/raysim`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from raysim.common.installed import installed

RESUME = "raysim submit --resume"
"""The command with which users resume a job's run; the run folder is appended."""

STOP_S = 12
"""Seconds that Ray waits between SIGTERM and SIGKILL to stop a job. Its default of 3 is too short to close a run."""

ROUND_DEADLINE_S = 5.0
"""Seconds that a round may continue after SIGTERM. The rest of `STOP_S` is for closing the run."""


def main(args: list[str] | None = None) -> int:
    """Run the job; return the exit code that `raysim launch` would return."""
    parser = argparse.ArgumentParser(prog="raysim.jobs.entry")
    parser.add_argument("client")
    parser.add_argument("scenario", nargs="?")
    parser.add_argument("--set", dest="sets", action="append", default=[])
    parser.add_argument("--resume", dest="run")
    parser.add_argument("--code-changed", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args(args)
    if options.client != versions():
        here = f"the cluster has {versions()}, but the job was submitted with {options.client}"
        return _fail(f"{here}: use the same versions on both", 2)
    signal.signal(signal.SIGTERM, _interrupt)
    _repeat_sigterm()
    try:
        return _work(options)
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process is about to end


def versions() -> str:
    """Return the versions that must be equal on the submitting machine and on the cluster."""
    python, ray = (".".join(version.split(".")[:2]) for version in (sys.version, installed("ray")))
    return f"Python {python} and Ray {ray}"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _repeat_sigterm() -> None:
    """Send SIGTERM to this process again, `ROUND_DEADLINE_S` after the first SIGTERM.

    The first SIGTERM ends a run after its round, and Ray sends no second one before SIGKILL. The repetition interrupts
    a round that takes minutes, while there is still time to write the results. A run that is closing ignores it
    (`runs.signals`), so the repetition can interrupt only rounds.
    """
    received, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)  # Python then writes the number of every signal to `wakeup`

    def repeat() -> None:
        while os.read(received, 1) != bytes([signal.SIGTERM]):
            pass
        time.sleep(ROUND_DEADLINE_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=repeat, name="repeat-sigterm", daemon=True).start()


def _work(options: argparse.Namespace) -> int:
    # Imported here, because these modules need torch and other packages, while `main` must first report other versions.
    from raysim.common.errors import RaysimError

    path = None if options.scenario is None else Path(options.scenario).absolute()
    home = Path.home() / "raysim"
    home.mkdir(exist_ok=True)
    os.chdir(home)
    try:
        if options.sweep and path is not None:
            return _sweep(path, options.sets)
        return _run(path, options)
    except RaysimError as error:
        if trace := getattr(error, "trace", ""):
            print(trace, file=sys.stderr)
        return _fail(str(error), error.exit_code)


def _run(path: Path | None, options: argparse.Namespace) -> int:
    """Run a scenario, or resume a run, named by its folder or by its id below ./runs."""
    from raysim.jobs.job_log import JobLogTracker, report
    from raysim.results.table import print_closing_table
    from raysim.runs.find import find_run
    from raysim.runs.run import Run, run

    trackers = [JobLogTracker()]
    if path is None:
        folder = find_run(options.run)
        report(run_folder=folder)
        result = Run(folder).resume(
            options.sets, trackers=trackers, resume_command=RESUME, code_changed=options.code_changed
        )
    else:
        result = run(path, sets=options.sets, trackers=trackers, resume_command=RESUME)
    print_closing_table(result.summary)
    return 0


def _sweep(path: Path, sets: list[str]) -> int:
    """Run a sweep on the job's cluster."""
    from raysim.jobs.job_log import report
    from raysim.study.definition import load_sweep
    from raysim.study.display import run_and_show

    sweep = load_sweep(path, sets=sets)
    report(run_folder=sweep.output, sweep=True)
    return run_and_show(sweep)


def _fail(text: str, code: int) -> int:
    print(f"raysim: {text}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
