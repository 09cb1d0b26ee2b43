"""What a resumed run must share with the run that it resumes: scenario, data, partition, code and checkpoints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from raysim.common.errors import ScenarioError
from raysim.common.results import Scalar, written
from raysim.common.text import expanded, is_name, redacted
from raysim.core.own_code import OwnCode
from raysim.core.schedule import factor_of
from raysim.engine.checkpoint.store import Checkpoint, CheckpointStore
from raysim.runs.code import RAYSIM, UNKNOWN, Code
from raysim.scenario.check import schedule_of
from raysim.scenario.load import CODE, Loaded, load_scenario
from raysim.scenario.schema import FREE, Scenario, decides

_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")

_FOLDERS = ("logs", "plots", "checkpoints", CODE)
_FILES = (
    "run.json", "scenario.yaml", "resolved.yaml", "summary.json", "rounds.parquet", "clients.parquet", "clients.arrows",
    "partition.parquet", "plots/partition.png", "plots/accuracy.png", "logs/.lock", "logs/error.txt",
)  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """What a run is known by, besides its scenario: `run.json` in its folder."""

    run_id: str
    tracking: str  # MLflow's address, resolved
    checkpoints: str  # address of its checkpoints; one that is relative begins at the run folder, which may be moved
    dataset_digest: str
    partition_digest: str
    versions: Mapping[str, str]
    code: Code = field(default_factory=Code)
    code_changes: Sequence[Mapping[str, Any]] = ()  # for each --code-changed: after which round, and what changed
    overrides: Mapping[str, Scalar] = field(default_factory=dict)  # what `--set` gave so far, with dotted keys

    @classmethod
    def of(cls, folder: Path) -> Identity:
        """Of an existing run. Raises `ScenarioError` when there is none, or it is not as raysim writes it."""
        try:
            found = TypeAdapter(cls).validate_json((folder / "run.json").read_bytes(), strict=True)
        except FileNotFoundError:
            raise ScenarioError(
                f"{folder} contains no run.json: it is not a run folder, or the run never started"
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise ScenarioError(f"{folder / 'run.json'} cannot be read ({where}{first['msg']})") from None
        except OSError as error:
            raise ScenarioError(f"{folder / 'run.json'} cannot be read ({error})") from None
        if not _RUN_ID.fullmatch(found.run_id):
            raise ScenarioError(f"{folder / 'run.json'}: run_id: {found.run_id!r} is not a run id")
        if not _is_of_run(found.checkpoints, found.run_id):
            raise ScenarioError(
                f"{folder / 'run.json'}: checkpoints: {found.checkpoints!r} given; allowed: 'checkpoints', in the run "
                f"folder, or a folder <name>/{found.run_id} of this run alone"
            )
        # An earlier raysim kept passwords.
        return replace(found, tracking=redacted(found.tracking), checkpoints=redacted(found.checkpoints))

    def checkpoints_of(self, folder: Path) -> str:
        """The address of the checkpoints of the run in `folder`."""
        return self.checkpoints if "://" in self.checkpoints else str(folder / self.checkpoints)

    def json(self) -> str:
        """As the file's text."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def refuse_other_data(self, folder: Path, dataset: str, partition: str) -> None:
        """Raises `ScenarioError` when the samples or their partition are not those of the run."""
        for what, had, has in (
            ("data set", self.dataset_digest, dataset),
            ("partition", self.partition_digest, partition),
        ):
            if had != has:
                raise ScenarioError(
                    f"{folder}: its {what} had the digest {had[:12]}, the present one has {has[:12]}; "
                    "resuming or inspecting a run requires its original data"
                )

    def refuse_other_code(self, folder: Path, now: Code) -> None:
        """Raises `ScenarioError` when the method, or what computes it, is not as it was."""
        if changes := self.code.changes(now):
            raise ScenarioError(
                f"{folder} cannot be resumed: its code has changed since: {', '.join(changes)}; to "
                "resume it with the new code, give --code-changed (code_changed=True in Python)"
            )

    def with_code(self, now: Code, t: int) -> Identity:
        """The identity of a run that is resumed after round `t` with the code as it is now."""
        changes = self.code.changes(now)
        noted = [*self.code_changes, {"after_round": t, "files": changes}] if changes else self.code_changes
        # Without a checkpoint everything is computed anew, with one code.
        return replace(self, code=now, code_changes=noted if t >= 0 else ())

    def code_facts(self) -> dict[str, Any]:
        """The method's code and its changes, as `summary.json` has them."""
        return {**asdict(self.code), "changes": list(self.code_changes)}

    def warnings(self, versions: Mapping[str, str], now: Code) -> list[str]:
        """What may make the rest of a resumed run differ, a sentence each. versions, now: of this process."""
        other = [
            f"{name} {had} there, {versions[name]} here"
            for name, had in self.versions.items()
            if versions.get(name, had) != had
        ]
        found = []
        if other:
            found.append(
                f"different versions than at the start of the run ({', '.join(other)}): last digits may differ"
            )
        if changes := self.code.changes(now):
            found.append(f"code changed from this round on: {', '.join(changes)}")
        return found if self.code.files else [*found, UNKNOWN]


def find_run(text: str, output: Path = Path("runs")) -> Path:
    """The run folder of this path, or of this run id below `output`. Raises `ScenarioError` when there is none."""
    path = expanded(text)
    if path.is_dir():
        return path.absolute()
    found = sorted(output.glob(f"*/{text}")) if "/" not in text else []
    if len(found) == 1:
        return found[0].absolute()
    known = sorted((p.parent for p in output.glob("*/*/run.json")), key=lambda p: p.name)
    latest = f"; the latest run here: {known[-1]}" if known else ""
    raise ScenarioError(f"{text} given, but there is no such run folder and no such run below {output}{latest}")


def run_scenario(folder: Path, sets: Sequence[str] = (), *, code_changed: bool = False) -> Loaded:
    """The scenario of an existing run, with `--set` overrides.

    Raises `ScenarioError`, before any of it runs, when the user's own code in the folder is not what the run noted,
    unless `code_changed`.
    """
    if not folder.is_dir():
        raise ScenarioError(f"{folder} given, but there is no such run folder")
    refuse_strange_files(folder)
    identity = Identity.of(folder)

    def trust(code: OwnCode) -> None:
        noted = Code({RAYSIM: "", **identity.code.files})
        if not code_changed:
            replace(identity, code=noted).refuse_other_code(
                folder, replace(noted, files={**noted.files, **code.digests})
            )

    return load_scenario(folder / "resolved.yaml", sets, trust=trust)


def refuse_strange_files(folder: Path) -> None:
    """Raises `ScenarioError` unless a run folder holds files and folders only, and those of raysim are what they were.

    Another user may have made it: through a link, raysim would read and write files that are in no run folder.
    """
    for where, folders, files in os.walk(folder):
        for path in (Path(where, name) for name in (*folders, *files)):
            if path.is_symlink():
                raise ScenarioError(f"{path} is a link, and a run folder must not contain links; copy the file instead")
            if not (path.is_file() or path.is_dir()):
                raise ScenarioError(f"{path} is neither a file nor a folder; remove it to resume the run")
    for names, expected in ((_FOLDERS, False), (_FILES, True)):
        for path in (folder / name for name in names):
            if path.exists() and path.is_file() != expected:
                raise ScenarioError(f"{path} is a {'folder' if expected else 'file'}, so {folder} is no run folder")


def refuse_incompatible(folder: Path, checkpoint: Checkpoint, scenario: Scenario) -> None:
    """Raises `ScenarioError` when a checkpoint is of later rounds, or other clients, than the run has."""
    if checkpoint.round > scenario.rounds:
        raise ScenarioError(
            f"{folder} cannot be resumed: it has a checkpoint of round {checkpoint.round}, but {scenario.rounds} rounds"
        )
    clients = [k for part in checkpoint.client_files for k in part.clients]
    if strange := [k for k in clients if k >= scenario.clients.number]:
        raise ScenarioError(
            f"{folder} cannot be resumed: its checkpoint holds client {strange[0]}, but it has "
            f"{scenario.clients.number} clients"
        )


def refuse_differences(folder: Path, loaded: Loaded, code_changed: bool = False) -> None:
    """Raises `ScenarioError`, naming the keys, when the scenario would not give the same result as the run's own."""
    before = run_scenario(folder, code_changed=code_changed)
    had, has = before.flat(), loaded.flat()
    differing = [
        key for key in dict.fromkeys([*had, *has]) if had.get(key) != has.get(key) and not _free(key, before, loaded)
    ]
    if differing:
        named = [f"{key} ({_shown(had.get(key))} there, {_shown(has.get(key))} here)" for key in differing]
        place = loaded.origin.of(tuple(differing[0].split(".")))
        raise ScenarioError(
            f"{place}: {folder} was run with different settings: {', '.join(named)}; a resumed run may "
            f"change only {', '.join(FREE)} and have more rounds"
        )


def refuse_lost_checkpoints(folder: Path, store: CheckpointStore, summary: Mapping[str, Any]) -> None:
    """Raises `ScenarioError` when a run's summary names a checkpoint, but there is none at all: it would begin anew."""
    saved = summary.get("checkpoint")
    if store.kept or store.damage or not isinstance(saved, Mapping) or saved.get("round") is None:
        return
    raise ScenarioError(
        f"{folder} cannot be resumed: its summary.json says that a checkpoint of round {saved['round']} was saved in "
        f"{saved.get('folder')}, but there is none in {store.storage.where}; restore it there, or start again "
        "with `raysim launch`"
    )


def _is_of_run(checkpoints: str, run_id: str) -> bool:
    """Whether checkpoints are in the run folder, or in a folder that can hold nothing but this run's."""
    if checkpoints == "checkpoints":
        return True
    parts = checkpoints.split("/")
    whole = checkpoints.startswith("/") or "://" in checkpoints
    return whole and checkpoints.isprintable() and ".." not in parts and is_name(parts[-2]) and parts[-1] == run_id


def how_to_continue(loaded: Loaded, resume_line: str) -> str:
    """How the user of a finished run gets more rounds, as the rest of a sentence. resume_line: resumes the run."""
    rounds = loaded.scenario.rounds
    if _may_have_more_rounds(loaded, rounds, rounds + 1):
        return f"to run more rounds: {resume_line} --set rounds=N, where N is greater than {rounds}"
    return "its learning rate or its method depends on the total number of rounds, so launch a new run for more rounds"


def _may_have_more_rounds(loaded: Loaded, had: int, have: int) -> bool:
    """Whether the first `had` rounds of `have` are the same as those of a run with `had` rounds.

    They are not if the method or the learning rate depends on the total number of rounds.
    """
    schedule = schedule_of(loaded)
    same = all(factor_of(schedule, t, had) == factor_of(schedule, t, have) for t in range(1, had + 1))
    return have > had and same and not loaded.declared.scheduled


def _free(key: str, before: Loaded, now: Loaded) -> bool:
    if key == "rounds":
        return _may_have_more_rounds(now, before.scenario.rounds, now.scenario.rounds)
    if key in ("data.path", "data.partition.path"):  # a file may be moved: its digest is compared
        return True
    return not decides(key)


def label(algorithm: str, seed: int, overrides: Mapping[str, Scalar]) -> str:
    """What tells a run from others: method, seed, and what was overridden of what decides the result.

    Such as "fedgh-s1 lr=0.1 data=cifar10"; at most 120 characters, since names have little room.
    """
    short = [
        (key.removesuffix(".name").rpartition(".")[2], value)
        for key, value in overrides.items()
        if key not in ("algorithm.name", "seed") and decides(key)
    ]
    text = " ".join([f"{algorithm}-s{seed}", *written(short)])
    return text if len(text) <= 120 else f"{text[:119]}…"


def _shown(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).strip().removesuffix("...").strip()
