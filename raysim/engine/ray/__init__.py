"""The backend on Ray: the pool of actors, calls to them, the session, checkpoints.

Ray reads one environment variable when it is imported, so it is set here; `session.connect` sets all others.
"""

import os

# raysim reports an actor's death in one line; Ray's log monitor would print a page.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
