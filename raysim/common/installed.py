"""The installed versions of packages. Imports only the standard library."""

from __future__ import annotations

from importlib import metadata


def installed(package: str) -> str:
    """Return the version of a package without importing it; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
