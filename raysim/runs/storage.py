"""The place of a run's checkpoints: a folder or an address that fsspec knows."""

from __future__ import annotations

from raysim.common.errors import ScenarioError
from raysim.common.files import reason
from raysim.engine.checkpoint.storage import Storage, open_storage


def checkpoint_storage(address: str) -> Storage:
    """Open the storage at an address. Raises `ScenarioError` if it cannot be used."""
    try:
        return open_storage(address)
    except OSError as error:
        raise ScenarioError(
            f"{address} cannot be used ({reason(error)}); choose a folder, or install the package that fsspec needs "
            "for this address",
            key="checkpoint.folder",
        ) from None


def try_storage(address: str) -> None:
    """Check that checkpoints can be written to an address, before the run writes anything. Raises `ScenarioError`."""
    storage = checkpoint_storage(address)
    try:
        storage.make()
        storage.publish(".try", b"raysim")
        storage.remove(".try")
    except OSError as error:
        raise ScenarioError(
            f"{address} cannot be written ({reason(error)}); choose a writable folder or address",
            key="checkpoint.folder",
        ) from None
