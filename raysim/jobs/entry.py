"""Program of a job, on the head node: checks versions, then acts as `raysim launch`, `resume` or `sweep`.

    python -m raysim.jobs.entry [SCENARIO] [--set KEY=VALUE]... [--sweep | --resume RUN [--code-changed]]

Ray runs it in the folder that `submit` shipped, and removes that folder some time after the job. So all relative paths
(those of the scenario, and the run to resume) are relative to `~/raysim`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.jobs.stopping import stoppable
from raysim.jobs.versions import VARIABLE, Versions, incompatibility, warning

if TYPE_CHECKING:
    from raysim.jobs.job_log import JobLogTracker
    from raysim.runs.run import Run
    from raysim.scenario.parse import ParsedScenario


RESUME = "raysim submit --resume"
"""The user's command to resume a job's run; the run folder follows it."""


def main(args: list[str] | None = None) -> int:
    """Run the job; returns its exit code, as `raysim launch` does."""
    parser = argparse.ArgumentParser(prog="raysim.jobs.entry")
    parser.add_argument("scenario", nargs="?")
    parser.add_argument("--set", dest="sets", action="append", default=[])
    parser.add_argument("--resume", dest="run")
    parser.add_argument("--code-changed", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args(args)
    client, cluster = Versions.parse(os.environ.get(VARIABLE, "")), Versions.here()
    problem = incompatibility(client, cluster)
    if problem:
        return _fail(problem, 2)
    if note := warning(client, cluster):
        print(f"note: {note}", file=sys.stderr, flush=True)
    if options.sweep:
        return _stoppable(partial(_sweep, options.scenario, options.sets))
    return _stoppable(partial(_run, options.scenario, options.sets, options.run, options.code_changed))


def home() -> Path:
    """Return the base folder of a job's relative paths, and create it if missing. Raises `ScenarioError`."""
    from raysim.common.errors import ScenarioError

    try:
        folder = Path.home() / "raysim"
        folder.mkdir(exist_ok=True)
    except (OSError, RuntimeError) as error:
        reason = str(getattr(error, "strerror", None) or error).lower()
        text = f"cannot create ~/raysim on the head node ({reason}): set HOME to a writable folder there"
        raise ScenarioError(text) from None
    return folder


def _stoppable(work: Callable[[Callable[[], None]], int]) -> int:
    try:
        with stoppable() as closing:
            return work(closing.set)
    except KeyboardInterrupt:
        return _fail("stopped", 130)


def _run(
    scenario: str | None, sets: Sequence[str], run_: str | None, code_changed: bool, closing: Callable[[], None]
) -> int:
    # Imported here: these need torch and other packages, and `incompatibility` must report missing ones first.
    from raysim.common.errors import RaysimError
    from raysim.jobs.job_log import JobLogTracker
    from raysim.report.table import print_closing_table
    from raysim.runs.run import run
    from raysim.scenario.parse import parse_scenario

    try:
        path = None if scenario is None else Path(scenario).absolute()
        os.chdir(home())
        parsed = None if path is None else parse_scenario(path, sets)
        tracker = JobLogTracker(closing)
        if run_ is None:
            assert parsed is not None
            result = run(parsed, trackers=[tracker], resume_command=RESUME)
        else:
            result = _resume(run_, parsed, sets, code_changed, tracker)
    except RaysimError as error:
        if trace := getattr(error, "trace", ""):
            print(trace, file=sys.stderr)
        return _fail(str(error), error.exit_code)
    print_closing_table(result.summary)
    return 0


def _sweep(file: str, sets: Sequence[str], closing: Callable[[], None]) -> int:
    """Run a sweep on the job's cluster."""
    from raysim.common.errors import RaysimError
    from raysim.jobs.job_log import report_sweep
    from raysim.sweeps.definition import load_sweep
    from raysim.sweeps.display import run_and_show

    try:
        path = Path(file).absolute()
        os.chdir(home())
        sweep = load_sweep(path, sets=sets)
        report_sweep(sweep.output, sweep.name)
        return run_and_show(sweep)
    except RaysimError as error:
        return _fail(str(error), error.exit_code)


def _resume(
    place: str, scenario: ParsedScenario | None, sets: Sequence[str], code_changed: bool, tracker: JobLogTracker
) -> Run:
    """Resume the run in the folder `place`, or with the id `place` below the scenario's `output`."""
    from raysim.common.errors import ScenarioError
    from raysim.runs.find import find_run
    from raysim.runs.run import Run

    output = Path("runs").absolute() if scenario is None else scenario.settings.output_folder
    try:
        folder = find_run(place, output)
    except ScenarioError as error:
        raise ScenarioError(f"--resume: {error} (on the head node)") from None
    run = Run(folder).resume(
        sets, scenario=scenario, trackers=[tracker], resume_command=RESUME, code_changed=code_changed
    )
    if run.summary.get("nothing_to_do"):
        tracker.report_folder(folder, str(run.summary["run_id"]))
    return run


def _fail(text: str, code: int) -> int:
    print(f"raysim: {text}", file=sys.stderr, flush=True)
    return code


def _exit(code: int) -> None:
    """Exit at once: the run has written everything, and an interpreter with torch takes seconds to finalize."""
    ray = sys.modules.get("ray")
    if ray is not None:
        ray.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit(main())
