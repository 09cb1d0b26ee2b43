"""Records of a run besides its results: `run.json`, the scenario, the initial state, checkpoints."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from raysim.common.errors import ScenarioError
from raysim.common.files import check_format, reason
from raysim.common.results import RunCard, Scalar, written
from raysim.common.text import shortened
from raysim.engine.checkpoint.storage import Storage, local_folder, open_storage
from raysim.engine.checkpoint.store import CheckpointStore
from raysim.engine.initial import Initial
from raysim.plugins.own_code import CODE, OwnCode
from raysim.runs.code import Code, versions
from raysim.runs.plan import RunData
from raysim.scenario.parse import ParsedScenario, parse_scenario
from raysim.scenario.schema import short_overrides

FORMAT = 1
"""The format of run folders that this version writes."""

INSIDE = "checkpoints"
"""The address of checkpoints inside the run folder."""


@dataclass(frozen=True)
class Identity:
    """A run's id, addresses, digests and versions, which `run.json` in its folder contains."""

    run_id: str
    tracking: str  # address of MLflow's store, resolved
    checkpoints: str  # address of the checkpoints, absolute or relative to the run folder, which may move
    dataset_digest: str
    partition_digest: str
    versions: Mapping[str, str]
    code: Code
    # One entry per --code-changed: changed files, and the last round before.
    code_changes: Sequence[Mapping[str, Any]] = ()
    overrides: Mapping[str, Scalar] = field(default_factory=dict)  # dotted key -> value of all `--set` so far
    init: Mapping[str, str | None] | None = None  # run and digest of the initial state, as in the section `init`
    inputs: Mapping[str, str] = field(default_factory=dict)  # result of `input_digests`
    format: int = FORMAT  # format of the run folder; folders older than this key lack it

    @classmethod
    def new(cls, data: RunData, tracking: str) -> Identity:
        """Return the identity of a new run. Raises `ScenarioError` if checkpoints cannot be written."""
        scenario = data.scenario
        run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        checkpoints = INSIDE
        if folder := scenario.checkpoint.folder:
            checkpoints = f"{local_folder(folder) or folder.rstrip('/')}/{scenario.name}/{run_id}"
            if scenario.checkpoint.every != 0:
                checkpoint_storage(checkpoints, new=True)
        return cls(
            run_id,
            tracking,
            checkpoints,
            data.digest,
            data.partition.digest,
            versions(),
            Code.of(scenario.algorithm, scenario.own_code),
            overrides=scenario.overrides,
            init=None if scenario.init is None else scenario.init.model_dump(mode="json"),
            inputs=data.inputs,
        )

    @classmethod
    def of(cls, folder: Path) -> Identity:
        """Read the identity of an existing run. Raises `ScenarioError` if `run.json` is missing or invalid."""
        path = folder / "run.json"
        try:
            content = path.read_bytes()
            check_format(path, json.loads(content), FORMAT)
            return TypeAdapter(cls).validate_json(content, strict=True)
        except FileNotFoundError:
            raise ScenarioError(
                f"{folder} contains no run.json: it is not a run folder, or the run never started; give the folder of "
                "a run, or launch the scenario again"
            ) from None
        except (OSError, json.JSONDecodeError, ValidationError) as error:
            raise ScenarioError(f"{path} cannot be read ({error})") from None

    def checkpoints_of(self, folder: Path) -> str:
        """Return the address of the checkpoints of the run in this folder."""
        return self.checkpoints if "://" in self.checkpoints else str(folder / self.checkpoints)

    def json(self) -> str:
        """Return the content of `run.json`."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def refuse_other_data(self, folder: Path, data: RunData) -> None:
        """Raise `ScenarioError` if samples, partition or other input files differ from those of the run."""
        for what, had, has in (
            ("data set", self.dataset_digest, data.digest),
            ("partition", self.partition_digest, data.partition.digest),
        ):
            if had != has:
                raise ScenarioError(
                    f"{folder}: the {what} of this run had the digest {had[:12]}, but now it has {has[:12]}; "
                    "resuming or inspecting a run requires its original data; to train on other data, start a new run "
                    "(a sweep starts it by itself)"
                )
        had_files = [*self.inputs.values()]  # only digests are compared, because files may have moved
        if had_files != [*data.inputs.values()]:
            others = ", ".join(path for path, digest in data.inputs.items() if digest not in had_files)
            raise ScenarioError(
                f"{folder}: {others or 'the list `inputs`'} has changed since this run began; resuming or inspecting "
                "a run requires its original files; to use other files, start a new run (a sweep starts it by itself)"
            )

    def refuse_other_code(self, folder: Path, now: Code) -> None:
        """Raise `ScenarioError` if the code of the method or of raysim has changed."""
        if changes := self.code.changes(now):
            raise ScenarioError(
                f"{folder}: the code of this run has changed: {', '.join(changes)}; restore it (the run uses the "
                f"copies of your own files in its folder {CODE}) or resume the run with the new code by `raysim resume "
                "--code-changed` (code_changed=True in Python); a sweep starts it again if you delete its folder"
            )

    def with_code(self, now: Code, t: int) -> Identity:
        """Return the identity of a run that is resumed after round `t` with the present code."""
        changes = self.code.changes(now)
        noted = [*self.code_changes, {"after_round": t, "files": changes}] if changes else self.code_changes
        # Without a checkpoint, all rounds are computed again by the present code.
        return replace(self, code=now, code_changes=noted if t >= 0 else ())

    def card(self, data: RunData, folder: Path, first_round: int = 0) -> RunCard:
        """Return the card that trackers receive when a run begins. first_round: the first round that they receive."""
        scenario, dataset, public = data.scenario, data.dataset, data.public.digest if data.public else ""
        short = short_overrides(self.overrides)
        overridden = " ".join(written((key, self.overrides[key]) for key in short))
        label = " ".join([f"{scenario.method}-s{scenario.seed}", *short.values()])
        return RunCard(
            name=scenario.name,
            run_id=self.run_id,
            folder=folder,
            parameters=scenario.flat(),
            tags={
                "algorithm": scenario.method,
                "dataset": dataset.name,
                "partition": scenario.resolved["data"]["partition"]["name"],
                "clients": str(scenario.clients.number),
                "seed": str(scenario.seed),
                **({"overridden": overridden} if overridden else {}),
                **self.code.tags(),
            },
            dataset=dataset.name,
            dataset_source=dataset.source,
            dataset_digest=data.digest,
            partition_digest=data.partition.digest,
            num_samples=len(dataset.label_M),
            num_clients=scenario.clients.number,
            label=shortened(label, 120),  # names have little room in figures
            facts={
                "scenario": scenario.name,
                "algorithm": scenario.algorithm_name,
                "method": scenario.method,
                "run_id": self.run_id,
                "seed": scenario.seed,
                "overrides": self.overrides,
                "backend": scenario.backend,
                "rounds_asked": scenario.rounds,
                "clients": scenario.clients.number,
                **({} if scenario.malicious is None else {"malicious_clients": sorted(scenario.malicious.clients)}),
                **({"held_out_clients": sorted(scenario.held_out)} if scenario.held_out else {}),
                "participants_per_round": min(scenario.participants, data.able),
                "dataset": {"name": dataset.name, "source": dataset.source, "digest": dataset.digest},
                **({"public_digest": public} if public else {}),  # of the public data set, if it is another one
                "partition_digest": data.partition.digest,
                "inputs": data.inputs,
                "versions": versions(),
                "code": {**asdict(self.code), "changes": list(self.code_changes)},
                "folder": str(folder),
            },
            first_round=first_round,
        )

    def warnings(self, now: Code) -> list[str]:
        """Return one warning per reason why the rest of a resumed run may differ. now: the code of this process."""
        have = versions()
        other = [
            f"{name} {had} before, {have[name]} now"
            for name, had in self.versions.items()
            if have.get(name, had) != had
        ]
        texts = []
        if other:
            texts.append(
                f"versions or the processor differ from those at the start of the run ({', '.join(other)}): "
                "results may differ slightly"
            )
        if changes := self.code.changes(now):
            texts.append(f"the run continues with changed code: {', '.join(changes)}")
        return texts


def run_scenario(folder: Path, sets: Sequence[str] = (), *, code_changed: bool = False) -> ParsedScenario:
    """Read the scenario of an existing run, with `--set` overrides.

    Raises `ScenarioError` if the user's own code in the folder differs from the digests in `run.json`, before any of
    that code runs. code_changed: allow the difference.
    """
    identity = Identity.of(folder)

    def trust(code: OwnCode) -> None:
        if not code_changed:
            now = replace(identity.code, files={**identity.code.files, **code.digests})
            identity.refuse_other_code(folder, now)

    return parse_scenario(folder / "resolved.yaml", sets, trust=trust)


INITIAL = "init.safetensors"
"""File in a run folder with the state from another run (`init`), because that run may be deleted."""


def initial_of(folder: Path, scenario: ParsedScenario) -> Initial | None:
    """Read the initial state of the run in this folder; None if it began with new weights.

    scenario: of the run. Raises `ScenarioError` if the file is missing or differs from the recorded digest.
    """
    if scenario.init is None:
        return None
    path = folder / INITIAL
    again = "restore this file, or start a new run with `raysim launch`"
    try:
        initial = Initial.parse(path.read_bytes())
    except OSError as error:
        raise ScenarioError(f"cannot read the run's initial state from {path} ({reason(error)}); {again}") from None
    if initial.digest != scenario.init.digest:
        raise ScenarioError(f"{path} is damaged: it differs from the initial state that the run recorded; {again}")
    return initial


def checkpoints_of(folder: Path) -> CheckpointStore:
    """Open the checkpoints of the run in this folder."""
    return CheckpointStore.open(checkpoint_storage(Identity.of(folder).checkpoints_of(folder)))


def checkpoint_storage(address: str, new: bool = False) -> Storage:
    """Open the storage at an address. Raises `ScenarioError` if it cannot be used.

    new: also check that it can be written, before the run has done anything.
    """
    try:
        storage = open_storage(address)
        if new:
            storage.make()
            storage.publish(".try", b"raysim")
            storage.remove(".try")
    except OSError as error:
        raise ScenarioError(
            f"{address} cannot be used ({reason(error)}); choose a folder or address that can be written, or install "
            "the package that fsspec needs for this address",
            key="checkpoint.folder",
        ) from None
    return storage
