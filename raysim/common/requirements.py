"""The packages that raysim requires, and the installed versions. Imports only packages that every Ray cluster has."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def requirements() -> list[Requirement]:
    """Return raysim's requirements, without those of its extras."""
    from packaging.requirements import Requirement  # comes with Ray

    every = [Requirement(text) for text in metadata.requires("raysim") or ()]
    return [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]


def installed(package: str) -> str:
    """Return the version of a package without importing it; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def fits(one: Requirement, version: str) -> bool:
    """Whether a version of a package is one that raysim supports; pre-releases count as versions."""
    return one.specifier.contains(version, prereleases=True)
