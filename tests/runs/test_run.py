"""`raysim.Run`: a run folder in any state, read back and resumed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import raysim
from raysim.algorithms.standalone import Standalone
from raysim.common.results import Summary
from raysim.engine.stop import Stop
from tests.engine.scenarios import plain as loaded
from tests.engine.scenarios import plain_digits as digits


def test_a_run_is_opened_by_folder_and_by_id(workplace: Path) -> None:
    run = raysim.run(digits(name="open"), sets=["rounds=1"], quiet=True)
    again = raysim.Run(run.folder.name)
    assert again.folder == run.folder == workplace / "runs" / "open" / run.folder.name
    assert (again.status, again.summary["rounds"], again.state_digest) == ("finished", 1, run.state_digest)
    assert again.scenario.rounds == 1 and type(again.scenario.algorithm).__name__ == "FedGH"
    pd.testing.assert_frame_equal(again.rounds, run.rounds)
    assert len(again.partition.query("client == 2 and part == 'test'")) == len(again.client(2).data.test)
    tested = again.clients.groupby("client").last()
    assert again.classes["correct"].sum() == tested["correct"].sum()
    assert again.classes["total"].sum() == tested["total"].sum()
    assert repr(again.client(2)) == f"Run({str(run.folder)!r}).client(2)"
    with pytest.raises(raysim.ScenarioError, match="elsewhere"):
        raysim.Run("elsewhere")
    with pytest.raises(raysim.ScenarioError, match=str(run.folder.parent)):
        raysim.Run(run.folder.parent).resume()
    shutil.copytree(run.folder, workplace / "runs" / "copied" / run.folder.name)
    with pytest.raises(raysim.ScenarioError, match="several"):
        raysim.Run(run.folder.name)
    assert raysim.Run(run).folder == run.folder


@pytest.mark.parametrize("clients", ["participants", "all"])
def test_the_latest_test_of_every_client(workplace: Path, clients: str) -> None:
    run = raysim.run(
        digits(), sets=["rounds=2", "clients.participation=0.5", f"evaluation.clients={clients}"], quiet=True
    )
    assert list(run.latest.index) == list(range(run.scenario.clients.count))
    assert run.latest["accuracy"].mean() == pytest.approx(run.rounds["accuracy/all"].iloc[-1])


def test_every_entry_of_a_summary_is_declared(workplace: Path) -> None:
    run = raysim.run(digits(rounds=1), quiet=True)
    declared = Summary.__annotations__.keys()
    absent = {"public_digest", "malicious_clients", "held_out_clients", "completed"}
    assert set(run.summary) == declared - absent - {"nothing_to_do"}
    assert set(run.resume(quiet=True).summary) == declared - absent


class Watch:
    """Opens the run while it is running, and ends it after its first round."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def open(self, card: object) -> None:
        self.folder = card.folder  # type: ignore[attr-defined]

    def log(self, t: int, values: object, clients: object) -> None:
        run = raysim.Run(self.folder)
        self.seen = run.status
        if t == 0:
            with pytest.raises(raysim.ScenarioError, match=r"has no checkpoint"):
                _ = run.client(0).network
        self.stop.requested |= t == 1  # the next round may have begun, and be logged before it is asked

    def close(self, status: str, summary: object) -> None:
        pass


def test_a_run_in_progress_is_read_and_an_interrupted_one_resumed(workplace: Path) -> None:
    stop = Stop()
    watch = Watch(stop)
    scenario = digits(rounds=3, checkpoint={"every": 1})
    with pytest.raises(KeyboardInterrupt):
        raysim.run(scenario, quiet=True, trackers=[watch], stop=stop)
    run = raysim.Run(watch.folder)
    assert (watch.seen, run.status, run.state_digest) == ("running", "interrupted", None)
    done = run.summary["rounds"]
    before = run.client(0).network_after(done).state_dict()
    assert 1 <= done < 3 and list(run.rounds["round"]) == [*range(done + 1)]
    assert run.resume(quiet=True) is run
    assert run.status == "finished" and list(run.rounds["round"]) == [0, 1, 2, 3]
    assert run.state_digest == raysim.run(scenario, quiet=True).state_digest
    assert before.keys() == run.client(0).network.state_dict().keys()  # of the new checkpoint, in the same object


class Noisy(Standalone):
    """A client's upload depends on torch's global generator."""

    def client_update(self, client: Any, down: None) -> None:
        super().client_update(client, down)
        time.sleep(0.01)
        client.net.header.bias.data += torch.rand(())


def test_a_tracker_that_draws_changes_no_result(workplace: Path) -> None:
    """It may build a network, while the next round has begun."""
    (workplace / "draws.py").write_text(
        "import time\nimport torch\n\nclass Draws:\n    def open(self, card): ...\n"
        "    def close(self, status, summary): ...\n"
        "    def log(self, t, values, clients):\n        time.sleep(0.03)\n        torch.rand(7)\n"
    )
    digests = []
    for also in ("[]", "[./draws.py:Draws]"):
        given = loaded("rounds=4", "algorithm={name: standalone}", f"tracking.also={also}")
        given = given.model_copy(update={"algorithm": Noisy()})
        digests.append(raysim.run(given, quiet=True).state_digest)
    assert len({*digests}) == 1, digests


def test_a_second_run_in_another_thread_is_refused(workplace: Path) -> None:
    """Before anything is written, and for as long as the trackers of the first run are open."""
    refused = []

    class Starts(Watch):
        def open(self, card: Any) -> None:
            self.start()

        def log(self, t: int, values: object, clients: object) -> None:
            self.start()

        def close(self, status: object, summary: object) -> None:
            self.start()

        def start(self) -> None:
            with pytest.raises(raysim.RunError, match="another run with backend: in_process is active") as caught:
                raysim.run(digits(rounds=1), quiet=True)
            refused.append(caught)

    run = raysim.run(digits(rounds=1), quiet=True, trackers=[Starts(Stop())])
    assert run.status == "finished" and len(refused) == 4
    assert list(run.folder.parent.iterdir()) == [run.folder]
    assert raysim.run(digits(rounds=1), quiet=True).status == "finished"
