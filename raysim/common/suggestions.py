"""Suggestions for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ELSEWHERE = {
    "learning_rate": "lr",
    "local_epochs": "epochs",
    "num_clients": "count",
    "num_rounds": "rounds",
    "global_rounds": "rounds",
    "communication_rounds": "rounds",
    "join_ratio": "participation",
    "sample_fraction": "participation",
    "grad_clip": "clip",
}
"""Names of keys in other tools and in papers -> names in raysim."""


def suggest(given: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar name, ignoring case; "" if no name is similar."""
    known = {name.lower(): name for name in names}
    word = given.lower()
    near = [known[name] for name in (word, ELSEWHERE.get(word.replace("-", "_"))) if name in known]
    near += [known[name] for name in difflib.get_close_matches(word, known, n=1, cutoff=0.6)]
    if len(word) > 2:
        near += [name for lower, name in known.items() if lower.startswith(word)]
    return f"; did you mean {near[0]!r}?" if near else ""
