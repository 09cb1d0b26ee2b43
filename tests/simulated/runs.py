"""Runs whose outcome is compared between devices: `python -m tests.simulated.runs DEVICE METHOD [KEY=VALUE...]`.

Each is a process of its own, since torch keeps the simulated device for as long as the process lives.
"""

from __future__ import annotations

import json
import sys
import traceback

from raysim.engine.inprocess import InProcessBackend
from tests.engine.scenarios import loaded, of_method, outcome


def main() -> None:
    """Print the outcome of a run of each method, or its error, as one line of JSON."""
    device, methods, *sets = sys.argv[1:]
    for method in methods.split(","):
        try:
            digest, rows, rounds = outcome(loaded(*of_method(method), *sets), InProcessBackend(device))
            found = [digest, str(rows), str(rounds)]
        except Exception:
            found = [traceback.format_exc()]
        print(json.dumps([method, *found]), flush=True)


if __name__ == "__main__":
    main()
