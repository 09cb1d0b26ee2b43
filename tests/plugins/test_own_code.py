"""A user's own files: found, imported as they were read, and kept with the run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import raysim
from raysim.plugins import registry
from raysim.runs.verify import verify
from tests.plugins.own import HELPED, MINE, NETS, ran


class TestRuns:
    def test_a_method_and_a_model_of_ones_own(self, folder: Path) -> None:
        """The same numbers as the built-in method, whose file this is, in a run folder that stands alone."""
        result = raysim.run(folder / "s.yaml", quiet=True)
        same = raysim.run(folder / "s.yaml", sets=["algorithm.name=fedgh"], quiet=True)
        assert result.state_digest == same.state_digest
        assert set(result.clients.model) == {"digits_mlp64", "nets.py:Small"}
        kept = {path.name: path.read_text() for path in (result.folder / "code").iterdir() if path.suffix == ".py"}
        assert kept == {"mine.py": HELPED, "my_helper.py": "SCALE = 1.0\n", "nets.py": NETS}
        assert {"mine.py", "my_helper.py", "nets.py"} < result.summary["code"]["files"].keys()

        shutil.rmtree(folder)
        longer = result.resume(["rounds=3"], quiet=True)
        assert longer.summary["rounds"] == 3
        assert len(result.client(1).network.header.weight) == 10

    def test_each_run_has_its_own_version_of_a_file(self, folder: Path) -> None:
        """As in a notebook that compares a run with one before an edit, and in `raysim plot A B --kind confusion`."""
        first = raysim.run(folder / "s.yaml", quiet=True)
        (folder / "nets.py").write_text(NETS.replace("nn.ReLU()", "nn.Tanh()"))
        second = raysim.run(folder / "s.yaml", quiet=True)
        last = [type(run.client(k).network.extractor[-1]).__name__ for k in (1, 3) for run in (first, second)]
        assert last == ["ReLU", "Tanh", "ReLU", "Tanh"]

    @pytest.mark.large
    @pytest.mark.ray
    def test_the_same_on_actors(self, folder: Path) -> None:
        traces = verify(raysim.Scenario.load(folder / "s.yaml"), [2], kill=True)
        assert [trace.difference for trace in traces] == [None] * len(traces)

    def test_modules_of_the_project(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A model in a sub-folder imports from the root; the run keeps the modules, so it needs them no more."""
        project = folder / "project"
        files = {
            "blocks/mlp.py": f"from my_scale import SCALE\n{NETS}",
            "my_scale.py": "SCALE = 1.0\n",
            "models/net.py": "import my_near\nfrom blocks import mlp\nSmall = mlp.Small\n",
            "models/my_near.py": "",
        }
        for name, text in files.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        (project / "pyproject.toml").touch()
        sets = [f"clients.models=['{project}/models/net.py:Small', digits_mlp64]", "algorithm.name=fedgh"]
        run = raysim.run(folder / "s.yaml", sets=sets, quiet=True)
        kept = {"net.py", "my_near.py", "blocks/mlp.py", "my_scale.py"}
        assert {str(file.relative_to(run.folder / "code")) for file in (run.folder / "code").rglob("*.py")} == kept
        assert kept < run.summary["code"]["files"].keys()

        before = raysim.Scenario.load(folder / "s.yaml", sets).own_code.digests
        (project / "my_scale.py").write_text("SCALE = 2.0\n")
        assert before != raysim.Scenario.load(folder / "s.yaml", sets).own_code.digests
        (project / "blocks" / "__init__.py").write_text("raise ValueError\n")  # in the current folder
        monkeypatch.chdir(project)
        assert run.resume(["rounds=3"], quiet=True).summary["rounds"] == 3
        shutil.rmtree(project / "blocks")
        assert len(run.client(0).network.header.weight) == 10

    def test_an_entry_point(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(folder)
        points = [
            EntryPoint("my_method", "mine:Mine", "raysim.algorithms"),
            EntryPoint("my_net", "nets:Small", "raysim.models"),
        ]
        monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints(points).select(group=group))
        sets = ["algorithm.name=my_method", "clients.models=[digits_mlp64, my_net]"]
        result = raysim.run(folder / "s.yaml", sets=sets, quiet=True)
        assert set(result.clients.model) == {"digits_mlp64", "my_net"}
        assert {"mine.py", "my_helper.py"} < result.summary["code"]["files"].keys()

    def test_a_job_ships_them(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from raysim.jobs.submit import stage

        loaded = raysim.Scenario.load(folder / "s.yaml")
        (name,) = stage([folder / "s.yaml"], tmp_path / "job", loaded.own_code)
        shutil.rmtree(folder)
        monkeypatch.chdir(tmp_path / "job")
        assert raysim.Scenario.load(name).own_code.digests == loaded.own_code.digests


@pytest.mark.parametrize(
    ("sets", "files", "sentence"),
    [
        ("algorithm.name=./mine.py:Nope", {}, "Nope"),
        ("algorithm.name=./random.py", {"random.py": ""}, "rename the file"),
        ("algorithm.name=./evil.py", {"evil.py": "from ..nets import x\n"}, "beyond top-level"),
        ("clients.models=['./nets.py:other', digits_mlp64]", {}, "raysim.SplitNet"),
        ("clients.models=['./nets.py:deep', digits_mlp64]", {}, "torch.nn.Linear"),
        ("clients.models=['./nets.py:narrow', digits_mlp64]", {}, "(2, 31)"),
        ("clients.models=['./nets.py:Small']", {}, "clients.feature_dim"),
    ],
)
def test_one_sentence(
    folder: Path, sets: str, files: Mapping[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    said = ran("launch", str(folder / "s.yaml"), "--set", sets, capsys=capsys, code=2)
    assert sentence in said and "(__init__.py, line" not in said
    assert not Path("runs").exists()


def test_where_a_file_is_looked_for(folder: Path) -> None:
    """The scenario's own files are in its folder; those of an option are in the current one."""
    near, other = Path.cwd() / "mine.py", folder / "mine.py"
    near.write_text(MINE)
    sets = ["algorithm.name=./mine.py"]
    found = [raysim.Scenario.load(folder / "s.yaml", given).own_code.files["mine.py"].path for given in ([], sets)]
    assert found == [str(other), str(near)]
    near.unlink()
    assert raysim.Scenario.load(folder / "s.yaml", sets).own_code.files["mine.py"].path == str(other)


def test_a_setting_that_is_a_tuple(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """YAML has only lists, so a list sets it; the run can be resumed and repeated from its resolved.yaml."""
    tuples = "    sizes: tuple[int, ...] = (1, 2)\n    pair: tuple[int, float] | None = None\n"
    (folder / "mine.py").write_text(re.sub(r"(class Mine.*\n    \"\"\".*\n)", rf"\1{tuples}", HELPED))
    result = raysim.run(folder / "s.yaml", sets=["algorithm.sizes=[3, 4]", "algorithm.pair=[1, 0.5]"], quiet=True)
    assert (result.scenario.algorithm.sizes, result.scenario.algorithm.pair) == ((3, 4), (1, 0.5))
    assert result.resume(["rounds=3"], quiet=True).summary["rounds"] == 3
    said = ran("validate", str(folder / "s.yaml"), "--set", "algorithm.pair=[1]", capsys=capsys, code=2)
    assert "algorithm.pair: [1]" in said


def test_changed_code_of_a_run_is_not_imported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`resume` compares the digests before it imports the files."""
    result = raysim.run(folder / "s.yaml", quiet=True)
    mark = folder / "it_ran"
    kept = result.folder / "code"
    (kept / "my_helper.py").write_text(f"open({str(mark)!r}, 'w').close()\nSCALE = 1.0\n")
    assert "my_helper.py" in ran("resume", str(result.folder), "--set", "rounds=3", capsys=capsys, code=2)
    with pytest.raises(raysim.ScenarioError, match="my_helper"):
        result.client(0)
    assert not mark.exists()
    ran("resume", str(result.folder), "--set", "rounds=3", "--code-changed", "--quiet", capsys=capsys)
    assert mark.exists()
