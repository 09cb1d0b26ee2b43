"""`Identity`: a run's id, addresses, digests and versions, which a resumed run is compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from raysim.common.errors import ScenarioError
from raysim.common.files import check_format
from raysim.common.results import RunCard, Scalar, written
from raysim.plugins.own_code import CODE
from raysim.runs.code import UNKNOWN, Code, versions
from raysim.runs.data import RunData
from raysim.scenario.scenario import Scenario
from raysim.scenario.schema import decides, short_overrides

FORMAT = 1
"""The format of run folders that this version writes."""

INSIDE = "checkpoints"
"""The address of checkpoints that are in the run folder."""


@dataclass(frozen=True)
class Identity:
    """A run's id, addresses, digests and versions: the content of `run.json` in its folder."""

    run_id: str
    tracking: str  # MLflow's address, resolved
    checkpoints: str  # address of the checkpoints; relative to the run folder, which may be moved, or absolute
    dataset_digest: str
    partition_digest: str
    versions: Mapping[str, str]
    code: Code = field(default_factory=Code)
    code_changes: Sequence[Mapping[str, Any]] = ()  # for each --code-changed: last round before, changed files
    overrides: Mapping[str, Scalar] = field(default_factory=dict)  # dotted keys and values of all `--set` so far
    init: Mapping[str, str | None] | None = None  # the run that it began with, as in the scenario, with its digest
    inputs: Mapping[str, str] | None = None  # see `input_digests`; None: an earlier raysim did not record them

    format: int = FORMAT  # of the run folder; without an entry, it is from before formats were numbered

    @classmethod
    def of(cls, folder: Path) -> Identity:
        """Read the identity of an existing run. Raises `ScenarioError` when `run.json` is missing or invalid."""
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
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise ScenarioError(f"{path} cannot be read ({where}{first['msg']})") from None
        except (OSError, json.JSONDecodeError) as error:
            raise ScenarioError(f"{path} cannot be read ({error})") from None

    def checkpoints_of(self, folder: Path) -> str:
        """Return the address of the checkpoints of the run in `folder`."""
        return self.checkpoints if "://" in self.checkpoints else str(folder / self.checkpoints)

    def json(self) -> str:
        """Return the text of `run.json`."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def refuse_other_data(self, folder: Path, data: RunData) -> None:
        """Raise `ScenarioError` if the samples, their partition or other input files are not those of the run."""
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
        inputs = data.inputs
        had_files = [*(inputs if self.inputs is None else self.inputs).values()]  # the files may have been moved
        if had_files != [*inputs.values()]:
            others = ", ".join(path for path, digest in inputs.items() if digest not in had_files)
            raise ScenarioError(
                f"{folder}: {others or 'the list `inputs`'} has changed since this run began; resuming or inspecting "
                "a run requires its original files; to use other files, start a new run (a sweep starts it by itself)"
            )

    def refuse_other_code(self, folder: Path, now: Code, *, inspecting: bool = False) -> None:
        """Raise `ScenarioError` if the code of the method, or of raysim, has changed.

        inspecting: the run is not resumed, and `now` is the user's own code, of which the run folder has copies.
        """
        if changes := self.code.changes(now):
            raise ScenarioError(
                f"{folder} cannot be inspected: its code has changed: {', '.join(changes)}; restore the original "
                f"files in {folder / CODE}"
                if inspecting
                else f"{folder} cannot be resumed: its code has changed: {', '.join(changes)}; to "
                "resume it with the new code, give `raysim resume` the option --code-changed (code_changed=True in "
                "Python); a sweep starts the run again if you delete this folder"
            )

    def with_code(self, now: Code, t: int) -> Identity:
        """Return the identity of a run that is resumed after round `t` with the code as it is now."""
        changes = self.code.changes(now)
        noted = [*self.code_changes, {"after_round": t, "files": changes}] if changes else self.code_changes
        # Without a checkpoint, all rounds are computed again with the current code.
        return replace(self, code=now, code_changes=noted if t >= 0 else ())

    def code_facts(self) -> dict[str, Any]:
        """Return the method's code and its changes, in the form of `summary.json`."""
        return {**asdict(self.code), "changes": list(self.code_changes)}

    def warnings(self, versions: Mapping[str, str], now: Code) -> list[str]:
        """Return a warning for each reason why the rest of a resumed run may differ. versions, now: of this process."""
        other = [
            f"{name} {had} before, {versions[name]} now"
            for name, had in self.versions.items()
            if versions.get(name, had) != had
        ]
        texts = []
        if other:
            texts.append(
                f"versions or the processor differ from those at the start of the run ({', '.join(other)}): "
                "results may differ slightly"
            )
        if changes := self.code.changes(now):
            texts.append(f"the run continues with changed code: {', '.join(changes)}")
        return texts if self.code.files else [*texts, UNKNOWN]


def label(algorithm: str, seed: int, overrides: Mapping[str, Scalar]) -> str:
    """Return the name of a run for comparisons: method, seed, and the overrides that affect the result.

    For example "fedgh-s1 lr=0.1 data=cifar10"; at most 120 characters, since names have little room.
    """
    text = " ".join([f"{algorithm}-s{seed}", *short_overrides(overrides).values()])
    return text if len(text) <= 120 else f"{text[:119]}…"


def card_of(scenario: Scenario, data: RunData, identity: Identity, folder: Path) -> RunCard:
    """Return what the trackers of a run are told when it begins."""
    dataset, public = data.dataset, data.public.digest if data.public else ""
    tagged = ("algorithm.name", "seed")  # these have their own tags; a sweep overrides many keys that decide no result
    deciding = [(key, value) for key, value in identity.overrides.items() if key not in tagged and decides(key)]
    overridden = " ".join(written(deciding))
    return RunCard(
        name=scenario.name,
        run_id=identity.run_id,
        folder=folder,
        parameters=scenario.flat(),
        tags={
            "algorithm": scenario.method,
            "dataset": dataset.name,
            "partition": scenario.resolved["data"]["partition"]["name"],
            "clients": str(scenario.clients.number),
            "seed": str(scenario.seed),
            **({"overridden": overridden} if overridden else {}),
            **identity.code.tags(),
        },
        dataset=dataset.name,
        dataset_source=dataset.source,
        dataset_digest=data.digest,
        partition_digest=data.partition.digest,
        num_samples=len(dataset.label_M),
        num_clients=scenario.clients.number,
        label=label(scenario.method, scenario.seed, identity.overrides),
        facts={
            "scenario": scenario.name,
            "algorithm": scenario.algorithm_name,
            "method": scenario.method,
            "run_id": identity.run_id,
            "seed": scenario.seed,
            "overrides": identity.overrides,
            "backend": scenario.backend,
            "rounds_asked": scenario.rounds,
            "clients": scenario.clients.number,
            **({} if scenario.malicious is None else {"malicious_clients": sorted(scenario.malicious.clients)}),
            "participants_per_round": min(scenario.participants, int((data.partition.train.size_N > 0).sum())),
            "dataset": {"name": dataset.name, "source": dataset.source, "digest": dataset.digest},
            **({"public_digest": public} if public else {}),  # of another data set
            "partition_digest": data.partition.digest,
            "inputs": data.inputs,
            "versions": versions(),
            "code": identity.code_facts(),
            "folder": str(folder),
        },
    )
