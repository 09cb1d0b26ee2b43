"""Mutated input of every kind: nothing outside of one folder changes, nothing ends in a traceback.

    python -m tests.attacks [COUNT] [KIND ...]     # COUNT (500) mutants of each kind, or only of those named

The exit code is 1 where a mutant fails, takes more than 60 s of a processor, or makes this process grow by more than
4 GiB. Every mutant is made from its number, so a failing one can be repeated. `tests/test_attacks.py` runs some of
each kind.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.attacks.data_files import DataAttack
from tests.attacks.harness import MEMORY, SLOWEST_S, Attack, attack, report
from tests.attacks.job_logs import attack_job
from tests.attacks.names import NamesAttack
from tests.attacks.own_code import OwnCodeAttack
from tests.attacks.run_folders import FolderAttack

KINDS: dict[str, Callable[[Path], Attack]] = {
    "data-files": lambda place: DataAttack(),
    "job-logs": lambda place: attack_job,
    "names": NamesAttack,
    "run-folders": lambda place: FolderAttack(place / "real"),
    "own-code": OwnCodeAttack,
}
"""How to make an attack of each kind, given a folder for what its mutants share."""


def main(words: list[str]) -> int:
    count = int(words[0]) if words else 500
    failed = False
    for kind in words[1:] or KINDS:
        with tempfile.TemporaryDirectory(prefix="attacks-") as name:
            outcome = attack(count, KINDS[kind](Path(name)), Path(name))
        print(f"{count} {kind}: ", *report(outcome), sep="\n  ", flush=True)
        failed |= bool(outcome.failures) or outcome.slowest_s > SLOWEST_S or outcome.grown_mib > MEMORY / 2**20
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
