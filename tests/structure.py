"""The repository's own files, for the tests that look at all of them."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LISTED = [
    "raysim", "algorithms", "examples", "tests", "benchmarks", "cluster", "scenarios", "docs",
    "README.md", "CONTRIBUTING.md",
]  # fmt: skip


def files(*suffixes: str) -> list[Path]:
    """Return the repository's own files with these suffixes, relative to it."""
    found = []
    for name in LISTED:
        place = REPOSITORY / name
        paths = place.rglob("*") if place.is_dir() else [place]
        found += [path.relative_to(REPOSITORY) for path in paths if path.suffix in suffixes and path.is_file()]
    return sorted(set(found))
