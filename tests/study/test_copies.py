"""A sweep whose `output` is an address: its results are there too, and a sweep on another machine continues them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from raysim.common.errors import RunError
from raysim.study.cells import counts, states_of
from raysim.study.copies import download, upload
from raysim.study.loop import run_sweep
from tests.conftest import said
from tests.study.conftest import Pool
from tests.study.test_loop import sweep_of


def visible(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_another_machine_continues_a_sweep(pool: Pool, workplace: Path) -> None:
    sweep = sweep_of(workplace, f"output=file://{workplace}/bucket", name="far")
    assert sweep.output == workplace / "runs" / "far"
    assert sweep.address == f"file://{workplace}/bucket/far"
    assert counts(run_sweep(sweep, only=["fedgh"])) == "1 done, 1 waiting"
    assert visible(workplace / "bucket" / "far") == visible(sweep.output)
    here = visible(sweep.output)
    shutil.rmtree(sweep.output)
    assert counts(run_sweep(sweep)) == "2 done"
    assert pool.tasks == 2  # the first cell was not run again
    assert all(visible(sweep.output)[name] == text for name, text in here.items() if name.startswith("fedgh-"))
    shutil.rmtree(sweep.output)
    download(sweep)
    assert counts(states_of(sweep)) == "2 done"


def test_an_upload_deletes_only_old_states_of_its_own_run(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of(workplace, f"output=file://{workplace}/lr[12]", grid={})
    run = sweep.output / "cell" / "run"
    copy, other = (workplace / name / "sweep" / "cell" / "run" for name in ("lr[12]", "lr1"))
    files = {"summary.json": "new", "clients.parquet": "new"}
    old = {"summary.json": "old", "clients.arrows": "old", "checkpoints/round_1": "old", "notes.md": "the user's"}
    for folder, content in ((run, files), (copy, old), (other, old)):
        (folder / "checkpoints").mkdir(parents=True)
        for name, text in content.items():
            (folder / name).write_text(text)

    def fail(*args: object) -> None:
        raise OSError("no connection")

    with monkeypatch.context() as patch, pytest.raises(RunError, match="no connection"):
        patch.setattr(LocalFileSystem, "put", fail)
        upload(sweep, run)
    assert visible(copy) == visible(other)  # whatever the old summary needs
    upload(sweep, run)
    assert {name: text.decode() for name, text in visible(copy).items()} == {"notes.md": "the user's", **files}
    assert {name: text.decode() for name, text in visible(other).items()} == old


def test_results_that_cannot_be_copied_are_copied_later(
    pool: Pool, workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sweep = sweep_of(workplace, f"output=file://{workplace}/bucket", grid={})
    (workplace / "bucket").touch()
    with pytest.raises(RunError, match=r"could not be copied to file://.*; run the same command to try again"):
        run_sweep(sweep)
    assert any("could not be copied to" in note for note in said(caplog))
    (workplace / "bucket").unlink()
    assert counts(run_sweep(sweep)) == "1 done"
    assert pool.tasks == 1
    assert visible(workplace / "bucket" / "sweep") == visible(sweep.output)
