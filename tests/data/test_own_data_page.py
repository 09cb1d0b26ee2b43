"""docs/own_data.md is true: each of its scenarios fits files as it describes them, and the whole one runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysim.runs.plan import make_plan
from raysim.runs.run import run
from raysim.scenario.parse import parse_scenario
from raysim.scenario.scenario import Scenario
from tests.conftest import REPOSITORY
from tests.data.own import leaf, write_page_files

PAGE = (REPOSITORY / "docs" / "own_data.md").read_text(encoding="utf-8")
MODELS = {"images": "mobilenet", "features": "mlp_s", "tokens": "gru"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page's examples, and a FEMNIST."""
    folder = tmp_path_factory.mktemp("own")
    write_page_files(folder)
    return leaf(folder, "femnist", users=2, samples=20)


def test_the_whole_scenario_runs_and_is_replayed(workplace: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in files.iterdir():
        (workplace / path.name).symlink_to(path)
    monkeypatch.setenv("RAYSIM_DATA", str(files))
    whole, *kinds = blocks("yaml")
    first = run(parse_scenario({**yaml.safe_load(whole), "backend": "in_process"}), quiet=True)
    seen = set()
    for text in kinds:
        data = yaml.safe_load(text)["data"]
        partition = data.get("partition", {})
        if partition.get("name") == "listed":
            partition["path"] = str(first.folder / "partition.parquet")
        clients: dict[str, Any] = {"count": "auto" if partition else 5, "feature_dim": 8}
        for model in MODELS.values():  # the page says which model reads what
            try:
                made = Scenario.of(
                    parse_scenario({**yaml.safe_load(whole), "data": data, "clients": {**clients, "models": [model]}})
                )
            except ValueError as error:
                assert " needs " in str(error)
            else:
                seen.add(data["name"])
                assert make_plan(made)[1].partition.train.index.size
                break
        else:
            pytest.fail(text)
    assert seen == {"parquet", "csv", "images", "numpy", "femnist"}
