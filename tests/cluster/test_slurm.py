"""The Slurm script, run with a Slurm, a Ray and a raysim that only write down what they were asked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

SCRIPT = Path(__file__).parents[2] / "cluster" / "slurm.sh"
JOB = 987654
PORT = 20000 + JOB % 3000 * 4
HEAD = "192.0.2.7"
"""An address that no machine has (RFC 5737)."""

BEGIN = """#!/usr/bin/env bash
log() {
    token=${RAY_AUTH_TOKEN:-$(cat "${RAY_AUTH_TOKEN_PATH:-/dev/null}")}
    echo "${0##*/}|$1|${RAY_AUTH_MODE:-}|${RAY_ADDRESS:-}|$token" >>"$CALLS"
}
"""
FAKES = {
    "scontrol": """log "$*"
tr , '\\n' <<<"$HOSTS"
""",
    "hostname": f"""log "$*"
echo '{HEAD} 198.51.100.7'
""",
    # A step with a Ray blocks, as `ray start --block` does.
    "srun": """log "$*"
stat --format=%a "$RAY_AUTH_TOKEN_PATH" >>"$CALLS.mode"
[[ "$*" == *'ray start'* ]] || exit 0
echo $$ >>"$CALLS.pid"
exec sleep 60
""",
    # What waits for nodes: the head node's step, then the workers' too.
    "python": """cat >/dev/null
until (($(wc --lines <"$CALLS.pid") >= ($2 > 1 ? 2 : 1))); do sleep 0.02; done 2>/dev/null
log "$*"
exit "${NODES_CODE:-0}"
""",
    "raysim": """log "$*"
if [[ ${RUN_FOREVER:-} ]]; then
    trap 'exit 130' TERM
    touch "$CALLS.running"
    while :; do sleep 0.05; done
fi
exit "${RUN_CODE:-0}"
""",
}


class Call(NamedTuple):
    """One line of what was asked."""

    program: str
    words: str
    mode: str
    address: str
    token: str


class Slurm:
    """A folder with the fakes, and what they wrote down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "calls"
        self.token = folder / ".ray" / f"slurm-{JOB}.token"
        programs = folder / "bin"
        programs.mkdir()
        for name, body in FAKES.items():
            (programs / name).write_text(BEGIN + body)
            (programs / name).chmod(0o755)

    def start(self, *words: str, hosts: str = "gpu1,gpu2,gpu3", **more: str) -> subprocess.Popen[str]:
        variables = {
            "PATH": f"{self.folder / 'bin'}:{os.defpath}",
            "HOME": str(self.folder),
            "CALLS": str(self.log),
            "HOSTS": hosts,
            "SLURM_JOB_ID": str(JOB),
            "SLURM_JOB_NODELIST": "gpu[1-3]",
            "SLURM_CPUS_PER_TASK": "16",
            **more,
        }
        return subprocess.Popen(
            ["bash", str(SCRIPT), *words], env=variables, cwd=self.folder, stderr=subprocess.PIPE, text=True
        )

    def run(self, *words: str, hosts: str = "gpu1,gpu2,gpu3", **more: str) -> tuple[int, str]:
        job = self.start(*words, hosts=hosts, **more)
        _, output = job.communicate(timeout=120)
        return job.returncode, output

    def calls(self) -> list[Call]:
        return [Call(*line.split("|")) for line in self.log.read_text().splitlines()]

    def assert_clean(self) -> None:
        """No token, no Ray, and every node ran the command that removes Ray's files."""
        assert not self.token.exists()
        for pid in (self.folder / "calls.pid").read_text().split():
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), 0)
        last = self.calls()[-1]
        assert last.program == "srun" and last.words.endswith(f"rm -rf /tmp/raysim-{JOB}")


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def test_head_then_workers_then_the_run(slurm: Slurm) -> None:
    code, output = slurm.run("launch", "scenarios/quickstart.yaml", "--set", "rounds=3")
    assert (code, output) == (0, "")
    calls = [call for call in slurm.calls() if call.program not in {"scontrol", "hostname"}]
    assert [call.program for call in calls] == ["srun", "srun", "python", "srun", "python", "raysim", "srun"]
    folder, head, head_is_up, workers, all_are_up, run, _ = calls

    # Ray makes its own folder writable for all users, so a private folder must surround it on every node.
    assert folder.words.endswith(f"""bash -c rm -rf "$1" && mkdir -m 700 "$1" - /tmp/raysim-{JOB}""")
    assert {"--nodelist=gpu[1-3]", "--nodes=3", "--ntasks=3"} <= {*folder.words.split()}
    assert f"--temp-dir=/tmp/raysim-{JOB}/ray" in head.words.split()

    assert " ray start --head " in head.words
    assert {"--nodelist=gpu1", "--nodes=1", "--ntasks=1", "--cpus-per-task=16", "--export=ALL"} <= {*head.words.split()}
    assert {f"--node-ip-address={HEAD}", f"--port={PORT}", "--num-cpus=16", "--block"} <= {*head.words.split()}
    assert {"--dashboard-host=127.0.0.1", f"--dashboard-port={PORT + 1}"} <= {*head.words.split()}
    assert head_is_up.words == "- 1"

    assert f" ray start --address={HEAD}:{PORT} " in workers.words
    assert {"--nodelist=gpu2,gpu3", "--nodes=2", "--ntasks=2", "--export=ALL", "--block"} <= {*workers.words.split()}
    assert all_are_up.words == "- 3"

    assert run.words == "launch scenarios/quickstart.yaml --set rounds=3"
    slurm.assert_clean()


def test_all_have_the_token_and_only_they(slurm: Slurm) -> None:
    slurm.run("launch", "s.yaml")
    for call in slurm.calls():
        if call.program in {"srun", "python", "raysim"}:
            assert call.mode == "token" and re.fullmatch("[0-9a-f]{64}", call.token)
        if call.program in {"python", "raysim"}:
            assert call.address == f"{HEAD}:{PORT}"
        assert not call.token or call.token not in call.words, "others can read command lines"
    assert set((slurm.folder / "calls.mode").read_text().split()) == {"600"}
    first = {call.token for call in slurm.calls() if call.token}
    slurm.log.unlink()
    slurm.run("launch", "s.yaml")
    assert len(first) == 1 and first.isdisjoint({call.token for call in slurm.calls()})


def test_sigterm_ends_the_run_first(slurm: Slurm) -> None:
    """Slurm sends it before the time is up: raysim gets it, checkpoints, and its exit code is the job's."""
    job = slurm.start("launch", "s.yaml", RUN_FOREVER="1")
    for _ in range(200):
        if (slurm.folder / "calls.running").exists():
            break
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=120)
    assert job.returncode == 130
    slurm.assert_clean()
    assert "#SBATCH --signal=B:TERM@" in SCRIPT.read_text()
