"""The section `system` and what goes with it: what keys may hold, trace files, one sentence for what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from raysim.common.errors import ScenarioError
from raysim.engine.policies.system import Devices
from raysim.runs.plan import make_plan
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import loaded
from tests.structure import REPOSITORY


def system(*sets: str) -> Devices:
    found = Scenario.of(loaded(*sets)).participation.system
    assert found is not None
    return found


def test_a_number_a_list_and_a_distribution() -> None:
    found = system("system={flops_per_s: 1.0e+9, latency_s: [0, 0.2, 0.3], dropout: 0.5}")
    assert found.flops_per_s.tolist() == [1e9] * 8
    assert found.latency_s.tolist() == [0, 0.2, 0.3, 0, 0.2, 0.3, 0, 0.2]
    assert found.dropout.tolist() == [0.5] * 8 and found.availability.tolist() == [1.0] * 8
    assert np.isinf(found.up_mbit_per_s).all()
    drawn = system("system.up_mbit_per_s={name: log_normal, median: 10}")
    assert len({*drawn.up_mbit_per_s}) == 8
    other_key = system("system.down_mbit_per_s={name: log_normal, median: 10}")
    assert other_key.down_mbit_per_s.tolist() != drawn.up_mbit_per_s.tolist()
    assert (
        system("system.up_mbit_per_s={name: log_normal, median: 10}", "seed=6").up_mbit_per_s[0]
        != (drawn.up_mbit_per_s[0])
    )


def test_the_ends_of_a_uniform_distribution() -> None:
    with pytest.raises(ScenarioError, match=r"system\.availability: low"):
        system("system.availability={name: uniform, low: 0.5, high: 0.1}")
    assert system("system.availability={name: uniform, low: 0.5, high: 0.5}").availability.tolist() == [0.5] * 8


ROWS = "client,flops_per_s,latency_s\n" + "".join(f"{k},{10 + k},0.{k}\n" for k in (7, 6, 5, 4, 3, 2, 1, 0, 8))


def test_a_trace_file(workplace: Path) -> None:
    Path("devices.csv").write_text(ROWS)
    columns = {"latency_s": [0.5] * 8, "client": list(range(8)), "dropout": pa.array([0] * 8, pa.int8())}
    pq.write_table(pa.table(columns), "devices.parquet")
    found = system("system={trace: devices.csv, up_mbit_per_s: 3}")
    assert found.flops_per_s.tolist() == list(range(10, 18))
    assert found.latency_s.tolist() == [k / 10 for k in range(8)]
    assert found.up_mbit_per_s.tolist() == [3.0] * 8
    assert system("system.trace=devices.parquet").latency_s.tolist() == [0.5] * 8


def test_what_is_chosen_is_written_down() -> None:
    given = loaded("system.latency_s={name: log_normal, median: 1}", "clients.selection={name: by_samples}")
    resolved = yaml.safe_load(Scenario.of(given).resolved_yaml())
    assert resolved["system"]["latency_s"] == {"name": "log_normal", "median": 1.0, "sigma": 1.0}
    assert resolved["clients"]["selection"] == {"name": "by_samples"}
    assert Scenario.load(resolved).resolved == Scenario.of(given).resolved


def test_the_selection_policy_that_docs_show(workplace: Path) -> None:
    page = (REPOSITORY / "docs" / "system.md").read_text()
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert example
    Path("few_samples.py").write_text(example[1])
    plan, _ = make_plan(Scenario.of(loaded("clients.selection={name: ./few_samples.py:Smallest, largest: 184}")))
    drawn = [plan.cohort(t) for t in range(1, 9)]
    assert all({*ids} <= {0, 2, 4, 6, 7} for ids in drawn) and len({*drawn}) > 1  # the others have 199 and more


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["system.flops_per_s=fast"], "system.flops_per_s: 'fast' given"),
        (["system.flops_per_s={name: uniform, low: 0, high: 0}"], "client 0"),
        (["system.dropout={name: uniform, low: 2, high: 3}"], "at most 1"),
        (["clients.deadline_s=3"], "`system`"),
        (["clients.selection.name=fastest"], "system.flops_per_s"),
        (["seeds.init=3"], "seeds.init"),
    ],
)
def test_what_is_wrong_is_one_sentence(sets: list[str], sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.of(loaded(*sets))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("client,speed\n0,1\n", "cannot be read"),
        ("client,latency_s\n0,1\n1,2\n", "from 0 to 7"),
        (ROWS.replace("13", "-1"), "client 3"),
    ],
)
def test_what_is_wrong_with_a_trace_is_one_sentence(workplace: Path, text: str, sentence: str) -> None:
    Path("devices.csv").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        Scenario.of(loaded("system.trace=devices.csv"))
    assert "system.trace: " in str(caught.value)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_key_and_a_column_of_the_trace_clash(workplace: Path) -> None:
    Path("devices.csv").write_text(ROWS)
    with pytest.raises(ScenarioError, match=r"system\.latency_s: the file of system.trace also has the column lat"):
        Scenario.of(loaded("system={trace: devices.csv, latency_s: 1}"))
