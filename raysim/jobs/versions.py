"""Version check of a job's client and cluster. Imports only packages that every Ray cluster has."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields

from raysim.common.requirements import fits, installed, requirements

VARIABLE = "RAYSIM_CLIENT_VERSIONS"
"""Environment variable of a job: the client's versions in the form of `Versions.text`."""

REMEDY = "install raysim's requirements on the cluster, in the environment in which `ray start` runs"


@dataclass(frozen=True)
class Versions:
    """Versions of the packages on one machine; "" for a package that is not installed."""

    python: str  # major.minor
    ray: str
    torch: str
    raysim: str

    @classmethod
    def here(cls) -> Versions:
        """The versions in this process."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return cls(python, installed("ray"), installed("torch"), installed("raysim"))

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse the output of `Versions.text`; a missing version is ""."""
        versions = dict(item.partition("=")[::2] for item in text.split())
        return cls(**{field.name: versions.get(field.name, "") for field in fields(cls)})

    def text(self) -> str:
        """Format the versions for an environment variable: "python=3.11 ray=2.60.0 torch=2.12.1 raysim=0.1.0"."""
        return " ".join(f"{name}={version}" for name, version in asdict(self).items())


def release(version: str) -> str:
    """The major and minor version, such as "2.60" for "2.60.0"."""
    return ".".join(version.split(".")[:2])


def incompatibility(client: Versions, cluster: Versions) -> str:
    """Why a job cannot run on the cluster, as one sentence; "" if it can."""
    if not cluster.ray:
        return f"`python` on the cluster ({sys.executable}) has no Ray: {REMEDY}"
    if client.python != cluster.python:
        return (
            f"the cluster has Python {cluster.python}, but the job was submitted with Python {client.python}: use the "
            "same version on both"
        )
    if release(client.ray) != release(cluster.ray):
        return ray_incompatibility(client.ray, cluster.ray)
    if client.raysim != cluster.raysim:
        sent = f"the job was sent with raysim {client.raysim}, but Python on the cluster finds"
        if not cluster.raysim:
            return f"{sent} no raysim: check the cluster's PYTHONPATH"
        return f"{sent} raysim {cluster.raysim}: remove this other version from the cluster's PYTHONPATH"
    lacking = missing()
    if lacking:
        return f"the cluster lacks {', '.join(lacking)}: {REMEDY}"
    return ""


def ray_incompatibility(client: str, cluster: str) -> str:
    """The error message for different releases of Ray."""
    return (
        f"the cluster has Ray {cluster}, but the job is submitted with Ray {client}: install ray=={cluster} where you "
        f"submit, or ray=={client} on the cluster"
    )


def warning(client: Versions, cluster: Versions) -> str:
    """A warning that results may differ because of torch's version; "" if the versions are equal."""
    here, there = client.torch.partition("+")[0], cluster.torch.partition("+")[0]
    if here == there:
        return ""
    return (
        f"the cluster has torch {there}, but the job was submitted with torch {here}: results may differ in the last "
        "digits"
    )


def missing() -> list[str]:
    """The requirements of raysim that this process lacks, such as "mlflow<4,>=3.7"."""
    lacking = [one for one in requirements() if not (version := installed(one.name)) or not fits(one, version)]
    return [f"{one.name}{one.specifier}" for one in lacking]
