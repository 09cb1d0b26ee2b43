"""A job's own program, on the head node: see that everything fits, then run the scenario as `raysim launch` would.

    python -m raysim.jobs.entry SCENARIO [--set KEY=VALUE]...

Ray runs it in the folder that was shipped, which Ray removes some time after the job. So paths that are relative in the
scenario (`output`, `data.root`, a SQLite store) mean `~/raysim` here.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from raysim.jobs.versions import VARIABLE, Versions, caution, misfit

INSIST_S = 7.0
"""How long a round may go on after the job was asked to stop, in seconds; Ray kills after `submit.STOP_S`."""


def main(args: list[str] | None = None) -> int:
    """Run the job; returns its exit code, those of `raysim launch`."""
    parser = argparse.ArgumentParser(prog="raysim.jobs.entry")
    parser.add_argument("scenario")
    parser.add_argument("--set", dest="sets", action="append", default=[])
    given = parser.parse_args(args)
    client, cluster = Versions.parse(os.environ.get(VARIABLE, "")), Versions.here()
    problem = misfit(client, cluster)
    if problem:
        return _say(problem, 2)
    if note := caution(client, cluster):
        print(f"note: {note}", file=sys.stderr, flush=True)
    return _launch(given.scenario, given.sets)


def home() -> Path:
    """The folder that a job's relative paths are in, made if need be. Raises `ScenarioError`."""
    from raysim.core.errors import ScenarioError

    try:
        folder = Path.home() / "raysim"
        folder.mkdir(exist_ok=True)
    except (OSError, RuntimeError) as error:
        reason = str(getattr(error, "strerror", None) or error).lower()
        raise ScenarioError(f"~/raysim cannot be made on the head node ({reason}): set HOME there") from None
    return folder


def _launch(scenario: str, sets: list[str]) -> int:
    # Only now: all of these bring torch and others, whose absence was to be told in a sentence.
    from rich.console import Console

    from raysim.core.errors import RaysimError
    from raysim.jobs.marks import Marks
    from raysim.launch.run import run
    from raysim.report.table import closing_table
    from raysim.scenario.load import load_scenario

    try:
        loaded = load_scenario(scenario, sets)
        os.chdir(home())
        result = run(loaded, trackers=[Marks(ending=_insist(INSIST_S).set)])
    except KeyboardInterrupt:
        return _say("stopped", 130)
    except RaysimError as error:
        if trace := getattr(error, "trace", ""):
            print(trace, file=sys.stderr)
        return _say(str(error), error.exit_code)
    Console(width=160).print(closing_table(result.summary))
    return 0


def _insist(after_s: float) -> threading.Event:
    """Repeat a SIGTERM once after so many seconds, unless the event is set by then.

    The first one ends a run after its round, and Ray sends no other before it kills: a round that takes minutes is
    to be cut off while there is still time to write what was done.
    """
    ending = threading.Event()
    arrived, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)  # Python writes the number of every signal to it

    def watch() -> None:
        while os.read(arrived, 1) != bytes([signal.SIGTERM]):
            pass
        if not ending.wait(after_s):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="insist", daemon=True).start()
    return ending


def _say(text: str, code: int) -> int:
    print(f"raysim: {text}", file=sys.stderr, flush=True)
    return code


def _leave(code: int) -> None:
    """End at once: all is written, and taking an interpreter with torch apart takes seconds of the time to stop."""
    ray = sys.modules.get("ray")
    if ray is not None:
        ray.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
