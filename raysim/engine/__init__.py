"""Rounds, placement, both backends."""

import os

# Ray reads these when it is imported. Of an actor's death raysim itself says what is known, in one line.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
# What a dead actor was asked for besides is of no interest to anybody.
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
