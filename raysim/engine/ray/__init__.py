"""Rounds, placement, both backends."""

import os
from pathlib import Path

# Ray reads these when it is imported. Of an actor's death raysim itself says what is known, in one line.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
# What a dead actor was asked for besides is of no interest to anybody.
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
# A record of every task, for a dashboard: 2 MB per hundred rounds in Ray's control store. A Ray of our own has none.
if not os.environ.get("RAY_ADDRESS"):
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
# `ray start` asks for a token where there is one, which who joins must then show, too.
if os.environ.get("RAY_ADDRESS") and (
    {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or (Path.home() / ".ray" / "auth_token").exists()
):
    os.environ.setdefault("RAY_AUTH_MODE", "token")
