"""The backend on Ray: the pool of actors, calls to them, the session, checkpoints; and the workers of sweeps.

This file sets the one environment variable that Ray reads when it is imported. `session.connect` sets those of every
run, and `local_cluster.start` those of a Ray that raysim starts.
"""

import os

# raysim reports an actor's death in one line, so Ray's log monitor should not print a page about it.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
