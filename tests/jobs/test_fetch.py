"""A run folder on its way through a job's log: whole or not at all, and nothing outside of its place."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from raysim.common.errors import RunError, ScenarioError
from raysim.jobs import archive
from raysim.jobs.fetch import LONGEST_S, Receiver, fetch, unpack
from raysim.jobs.job_log import PREFIX
from tests.jobs.fakes import cluster, details


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run folder with checkpoints, a hidden file, and links to outside."""
    folder = tmp_path / "home" / "raysim" / "runs" / "quickstart" / "r1"
    for name, content in {
        "summary.json": json.dumps({"run_id": "r1"}).encode(),
        "rounds.parquet": os.urandom(200_000),
        "plots/accuracy.png": b"png",
        "checkpoints/3/client.safetensors": b"weights",
        ".rounds.parquet.x": b"half-written",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("key")
    (folder / "link").symlink_to(tmp_path / "secret" / "key")
    (folder / "linked").symlink_to(tmp_path / "secret")
    return folder


WHOLE = {"summary.json", "rounds.parquet", "plots/accuracy.png"}


def names(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def sent(folder: Path, checkpoints: bool = False, **given: int) -> str:
    lines: list[str] = []
    archive.send(folder, checkpoints, lines.append, **given)
    return "Running entrypoint\n" + "".join(f"{line}\n" for line in lines)


class TestThroughALog:
    @pytest.mark.parametrize("size", [1, 1000, 10**9])
    def test_what_arrives_is_what_was_sent(self, run_folder: Path, tmp_path: Path, size: int) -> None:
        text, file = sent(run_folder), io.BytesIO()
        receiver = Receiver(file)
        for at in range(0, len(text), size):
            receiver.feed(text[at : at + size])
            if size == 1 and at > 5000:
                receiver.feed(text[at + 1 :])
                break
        assert receiver.whole
        unpack(file, tmp_path / "here")
        assert names(tmp_path / "here") == WHOLE
        for name in WHOLE:
            assert (tmp_path / "here" / name).read_bytes() == (run_folder / name).read_bytes()

    def test_checkpoints_when_asked_for(self, run_folder: Path) -> None:
        assert {file.as_posix() for file in archive.list_files(run_folder, True)} == WHOLE | {
            "checkpoints/3/client.safetensors"
        }

    def test_the_checkpoints_of_a_sweeps_runs_are_left_out_too(self, tmp_path: Path) -> None:
        for name in ("sweep.csv", "one/summary.json", "one/checkpoints/3/client.safetensors"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
        assert {file.as_posix() for file in archive.list_files(tmp_path, False)} == {"sweep.csv", "one/summary.json"}
        assert len(archive.list_files(tmp_path, True)) == 3

    def test_a_file_from_before_1980_is_sent(self, tmp_path: Path) -> None:
        """Zip files know no earlier dates; a folder that was unpacked or copied may have the time 0."""
        (tmp_path / "summary.json").write_text("{}")
        os.utime(tmp_path / "summary.json", (0, 0))
        assert sent(tmp_path).endswith(f"\n{archive.END}\n")

    def test_a_bit_that_changed(self, run_folder: Path, tmp_path: Path) -> None:
        lines = sent(run_folder).split("\n")
        at = lines.index(max(lines, key=len))
        lines[at] = ("B" if lines[at][9000] != "B" else "C").join([lines[at][:9000], lines[at][9001:]])
        file = io.BytesIO()
        Receiver(file).feed("\n".join(lines))
        with pytest.raises(RunError, match="cannot be unpacked"):
            unpack(file, tmp_path / "here")

    def test_a_line_that_was_lost(self, run_folder: Path) -> None:
        lines = sent(run_folder).split("\n")
        with pytest.raises(RunError, match="arrived damaged"):
            Receiver(io.BytesIO()).feed("\n".join(line for line in lines if line != max(lines, key=len)))

    def test_a_line_of_something_else(self, run_folder: Path) -> None:
        start, begin, rest = sent(run_folder).split("\n", 2)
        with pytest.raises(RunError, match="not base64"):
            Receiver(io.BytesIO()).feed(f"{start}\n{begin}\nWarning: something!\n{rest}")

    def test_not_to_the_end(self, run_folder: Path) -> None:
        receiver = Receiver(io.BytesIO())
        receiver.feed(sent(run_folder)[:-50])
        assert not receiver.whole

    def test_a_folder_that_is_gone(self, tmp_path: Path) -> None:
        with pytest.raises(ScenarioError, match=r"there is no folder .*/gone on the head node"):
            Receiver(io.BytesIO()).feed(sent(tmp_path / "gone"))

    def begun(self, size: object = 10_000) -> Receiver:
        receiver = Receiver(io.BytesIO())
        receiver.feed(f"{archive.BEGIN}{size}\n")
        return receiver

    @pytest.mark.parametrize("size", [None, "", [], -1, 2 * archive.LIMIT + 1, 1e99, "²"], ids=repr)
    def test_no_size_to_expect(self, size: object) -> None:
        with pytest.raises(RunError, match="the announced size"):
            self.begun(size)

    def test_an_archive_without_end(self) -> None:
        receiver, line = self.begun(), "A" * (64 << 10) + "\n"
        with pytest.raises(RunError, match="its size is not the one announced"):
            for _ in range(400):  # 19 MiB
                receiver.feed(line)

    @pytest.mark.parametrize("begun", [True, False])
    def test_a_line_without_end(self, begun: bool) -> None:
        receiver = self.begun() if begun else Receiver(io.BytesIO())
        with pytest.raises(RunError, match=r"a line is too long|printed other text"):
            for _ in range(100):
                receiver.feed("A" * (64 << 10))

    @pytest.mark.parametrize("line", [archive.END, "é", "AAA", "\ud800", "[]"])
    def test_nonsense(self, line: str) -> None:
        with pytest.raises(RunError, match=r"arrived damaged \((its size|a line is not base64)"):
            self.begun().feed(f"{line}\n")

    def test_what_a_helper_refuses_with_is_fit_for_a_terminal(self) -> None:
        with pytest.raises(ScenarioError) as caught:
            Receiver(io.BytesIO()).feed(f"{archive.REFUSED}no \x1b]0;x\x07folder\x1b[2J\r\n")
        assert str(caught.value) == "no folder"

    def test_too_much(self, run_folder: Path) -> None:
        with pytest.raises(
            ScenarioError, match=r"on the head node contains .* omit --checkpoints if you gave it, or copy"
        ):
            Receiver(io.BytesIO()).feed(sent(run_folder, limit=1000))

    @pytest.mark.parametrize(
        ("limit", "files", "begins"),
        [(10, 2, archive.BEGIN), (9, 2, archive.REFUSED), (10, 1, archive.REFUSED)],
    )
    def test_at_most_so_much_is_sent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, files: int, begins: str
    ) -> None:
        """Two files with five bytes each."""
        monkeypatch.setattr(archive, "FILES", files)
        for name in "ab":
            (tmp_path / name).write_bytes(b"12345")
        lines: list[str] = []
        archive.send(tmp_path, False, lines.append, limit)
        assert lines[0].startswith(begins) and (lines[-1] == archive.END) == (begins == archive.BEGIN)

    def test_a_file_that_is_removed_meanwhile(self, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        listed = [*archive.list_files(run_folder, False), Path("clients.arrows")]
        monkeypatch.setattr(archive, "list_files", lambda folder, checkpoints: listed)
        lines: list[str] = []
        archive.send(run_folder, False, lines.append)
        assert lines[-1] == archive.END

    @pytest.mark.parametrize("words", [[], ["--checkpoints"]], ids=str)
    def test_the_helper_is_told_whether_to_send_checkpoints(
        self, monkeypatch: pytest.MonkeyPatch, words: list[str]
    ) -> None:
        seen: list[tuple[Path, bool]] = []
        monkeypatch.setattr(archive.sys, "argv", ["-c", "folder", *words])
        monkeypatch.setattr(archive, "send", lambda folder, checkpoints, print_line: seen.append((folder, checkpoints)))
        monkeypatch.setattr(archive, "WAIT_S", 0.0)
        monkeypatch.setattr(archive.signal, "signal", lambda number, handler: None)
        monkeypatch.setattr(archive.os, "ftruncate", lambda file, size: None)
        archive.main()
        assert seen == [(Path("folder"), bool(words))]

    def test_an_exit_that_python_ignores_ends_the_helper_nevertheless(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The signal may arrive while Python runs a finaliser, in which it ignores exceptions."""
        handlers: list[Callable[[int, None], None]] = []
        monkeypatch.setattr(archive.sys, "argv", ["-c", "folder"])
        monkeypatch.setattr(archive.signal, "signal", lambda number, handler: handlers.append(handler))
        monkeypatch.setattr(archive.os, "ftruncate", lambda file, size: None)

        def send(*given: object) -> None:
            with contextlib.suppress(SystemExit):
                handlers[0](signal.SIGTERM, None)

        monkeypatch.setattr(archive, "send", send)
        monkeypatch.setattr(archive.time, "sleep", lambda seconds: pytest.fail("waits for a second signal"))
        archive.main()

    def test_the_helper_empties_its_log(self, run_folder: Path, tmp_path: Path) -> None:
        """As Ray runs it: from its text, its output appended to a file, a SIGTERM when all was read."""
        log = tmp_path / "log"
        with log.open("a") as out:
            program = Path(archive.__file__).read_text()
            helper = subprocess.Popen([sys.executable, "-I", "-c", program, str(run_folder)], stdout=out)
        try:
            receiver, seen = Receiver(io.BytesIO()), 0
            while not receiver.whole:
                assert helper.poll() is None
                text = log.read_text()
                receiver.feed(text[seen:])
                seen = len(text)
            helper.send_signal(signal.SIGTERM)
            assert helper.wait(240) == 0
        finally:
            helper.kill()
            helper.wait()
        assert log.read_text() == ""

    def test_the_helper_keeps_its_log_as_long_as_a_download_may_take(self) -> None:
        """The log is written as fast as a disk, and read as fast as a network."""
        assert archive.WAIT_S >= LONGEST_S >= 3600.0


def packed(*names: str, content: bytes = b"x", compression: int = zipfile.ZIP_DEFLATED) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archived:
        for name in names:
            archived.writestr(name, content)
    return file


class TestUnpack:
    @pytest.mark.parametrize("evil", ["../out", "/tmp/raysim-test-out", "a/../../out", "a\\..\\out", "folder/", "a/.b"])
    def test_what_is_no_file_of_a_run_folder(self, evil: str, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="does not belong in a run folder"):
            unpack(packed("fine", evil), tmp_path / "here")
        assert names(tmp_path) == set()

    def test_a_link_is_written_as_a_file(self, tmp_path: Path) -> None:
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archived:
            archived.writestr(link, "/etc/passwd")
        unpack(file, tmp_path)
        assert not (tmp_path / "link").is_symlink()
        assert (tmp_path / "link").read_text() == "/etc/passwd"

    def test_compression_that_takes_memory(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="does not belong in a run folder"):
            unpack(packed("a", compression=zipfile.ZIP_LZMA), tmp_path)

    def test_a_file_that_is_a_folder_too(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="cannot be unpacked"):
            unpack(packed("a", "a/b"), tmp_path)

    def test_a_size_that_is_wrong(self, tmp_path: Path) -> None:
        """What is larger than its header says is cut off there, which its checksum shows."""
        data = packed("zeros", content=bytes(10_000)).getvalue()
        file = io.BytesIO(data.replace((10_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
        with pytest.raises(RunError, match="cannot be unpacked"):
            unpack(file, tmp_path, limit=1000)
        assert (tmp_path / "zeros").stat().st_size <= 10

    def test_more_files_than_allowed(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="more than 3 files"):
            unpack(packed(*(f"f{i}" for i in range(4)), content=b""), tmp_path, most=3)

    def test_names(self) -> None:
        assert archive.is_plain(f"{'a' * 54}/{'b' * 100}")
        assert archive.is_plain("plots/Übersicht 1.png")
        for name in (
            "a" * 101,
            f"{'a' * 55}/{'b' * 100}",
            "a//b",
            "",
            "/a",
            "a/",
            ".a",
            "a/.b",
            "a\nb",
            "a\0b",
            "\ud800",
        ):
            assert not archive.is_plain(name), name

    def test_names_are_measured_in_bytes(self) -> None:
        """2 * 49 + 1 + 2 * 28 = 155 bytes; one more letter has two more."""
        assert archive.is_plain(f"{'é' * 49}/{'é' * 28}") and not archive.is_plain(f"{'é' * 49}/{'é' * 29}")

    def test_more_than_allowed(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="exceeds 1000"):
            unpack(packed("zeros", content=bytes(1001)), tmp_path, limit=1000)
        assert names(tmp_path) == set()

    @pytest.mark.parametrize("cut", [lambda data: data[:2000], lambda data: b"no archive", lambda data: b""])
    def test_damaged(self, cut: Callable[[bytes], bytes], tmp_path: Path) -> None:
        data = packed("a", content=os.urandom(5000)).getvalue()
        with pytest.raises(RunError, match="cannot be unpacked"):
            unpack(io.BytesIO(cut(data)), tmp_path)


class TestFetch:
    def log(self, folder: Path | str) -> dict[str, str]:
        return {"j": PREFIX + json.dumps({"run_folder": str(folder), "run_id": "r1"}) + "\n"}

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("raysim.jobs.fetch.MONITOR_S", 0.0)

    def test_twice(self, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        here = cluster(details("j"), logs=self.log(run_folder))
        assert fetch(here, "j", None, False) == (Path("runs/quickstart/r1"), 3)
        assert names(Path("runs/quickstart/r1")) == WHOLE
        # Again, when the run is further.
        (run_folder / "plots" / "accuracy.png").write_bytes(b"newer")
        assert fetch(here, "j", None, True)[1] == 4
        assert Path("runs/quickstart/r1/plots/accuracy.png").read_bytes() == b"newer"
        assert [path.name for path in Path("runs/quickstart").iterdir()] == ["r1"]

    def test_again_while_it_is_being_resumed(
        self, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A running run has its client rows in a stream; readers would prefer the table of the earlier download."""
        monkeypatch.chdir(tmp_path)
        here, found = cluster(details("j"), logs=self.log(run_folder)), Path("runs/quickstart/r1")
        for name, other in (("clients.parquet", "clients.arrows"), ("clients.arrows", "clients.parquet")) * 2:
            (run_folder / other).unlink(missing_ok=True)
            (run_folder / name).write_bytes(b"rows")
            fetch(here, "j", None, False)
            assert [path.name for path in found.glob("clients.*")] == [name]

    def test_a_sweep_is_not_mixed_with_another_one(
        self, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The default place of a sweep is that of a sweep of the same name on this machine."""
        monkeypatch.chdir(tmp_path)
        entry = {"run_folder": str(run_folder), "run_id": "digits", "sweep": True}
        here = cluster(details("j"), logs={"j": PREFIX + json.dumps(entry) + "\n"})
        for _ in range(2):
            assert fetch(here, "j", None, False)[0] == Path("runs/digits")
        for place in (Path("mine"), Path("runs/digits")):
            place.mkdir(exist_ok=True)
            (place / "sweep.json").write_text("{}")
            (place / ".fetched").write_text("/elsewhere")
            with pytest.raises(ScenarioError, match="contains other files; choose a new or empty folder"):
                fetch(here, "j", place, False)

    def test_a_place_that_is_taken(self, run_folder: Path, tmp_path: Path) -> None:
        here = cluster(details("j"), logs=self.log(run_folder))
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "thesis.tex").write_text("")
        with pytest.raises(ScenarioError, match="contains other files"):
            fetch(here, "j", tmp_path / "taken", False)
        with pytest.raises(ScenarioError, match="is a file"):
            fetch(here, "j", tmp_path / "taken" / "thesis.tex", False)
        assert names(tmp_path / "taken") == {"thesis.tex"}

    @pytest.mark.parametrize("name", ["/etc", "..", "../../x", ".", "a/b", "", "a\0b", "a\n", "x" * 101], ids=repr)
    def test_a_name_that_is_no_scenarios(
        self, name: str, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "at").mkdir()
        monkeypatch.chdir(tmp_path / "at")
        here = cluster(details("j", metadata={"raysim": "1", "name": name}), logs=self.log(run_folder))
        assert fetch(here, "j", None, False)[0] == Path("runs/quickstart/r1")
        moved = run_folder.rename(tmp_path / "..a")
        here = cluster(details("j", metadata={"raysim": "1", "name": name}), logs=self.log(moved / "r1"))
        with pytest.raises(ScenarioError, match=r"^j: the scenario .* unknown, so .*; choose a folder with -o FOLDER$"):
            fetch(here, "j", None, False)
        assert [path.name for path in (tmp_path / "at").iterdir()] == ["runs"]

    @pytest.mark.parametrize(
        "facts",
        [
            {"run_id": "../../x"},
            {"run_id": "/tmp/x"},
            {"run_id": "."},
            {"run_id": ""},
            {"run_id": ["r1"]},
            {"run_id": "r\0"},
            {"run_folder": "a\0"},
            {"run_folder": ["/tmp"]},
            {"run_folder": "."},
            {"run_folder": "/\x1b[31m"},
        ],
        ids=repr,
    )
    def test_a_log_that_names_no_folder(self, facts: dict[str, object], run_folder: Path, tmp_path: Path) -> None:
        mark = PREFIX + json.dumps({"run_folder": str(run_folder), "run_id": "r1", **facts})
        with pytest.raises(ScenarioError, match="has no run folder yet"):
            fetch(cluster(details("j"), logs={"j": f"{mark}\n"}), "j", tmp_path / "x", False)
        assert not (tmp_path / "x").exists()

    def test_links_in_the_place_are_not_followed(self, run_folder: Path, tmp_path: Path) -> None:
        here, place = cluster(details("j"), logs=self.log(run_folder)), tmp_path / "place"
        fetch(here, "j", place, False)
        (place / "plots" / "accuracy.png").unlink()
        (place / "plots").rmdir()
        (place / "plots").symlink_to(tmp_path / "secret")
        with pytest.raises(
            ScenarioError, match=r"place/plots is a symbolic link, which a download neither follows nor replaces"
        ):
            fetch(here, "j", place, False)
        assert names(tmp_path / "secret") == {"key"}

    def test_a_conflict_with_the_place_is_named(self, run_folder: Path, tmp_path: Path) -> None:
        here, place = cluster(details("j"), logs=self.log(run_folder)), tmp_path / "place"
        fetch(here, "j", place, False)
        picture = place / "plots" / "accuracy.png"
        picture.unlink()
        picture.mkdir()
        with pytest.raises(ScenarioError, match=r"accuracy.png is a folder, but the download has a file of that name"):
            fetch(here, "j", place, False)
        picture.rmdir()
        (place / "plots").rmdir()
        (place / "plots").touch()
        with pytest.raises(ScenarioError, match=r"place/plots is a file, but the download has a folder of that name"):
            fetch(here, "j", place, False)

    def test_a_place_that_cannot_be_made(self, run_folder: Path, tmp_path: Path) -> None:
        here = cluster(details("j"), logs=self.log(run_folder))
        with pytest.raises(
            RunError, match=r"secret/key: cannot be written \(file exists\); free some space, or choose another folder"
        ):
            fetch(here, "j", tmp_path / "secret" / "key" / "x", False)

    @pytest.mark.parametrize(
        ("state", "message"), [("PENDING", "has no run folder yet"), ("FAILED", "before it created a run folder")]
    )
    def test_no_folder(self, state: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(ScenarioError, match=rf"^j: the job .*{state}.*{message}"):
            fetch(cluster(details("j", state)), "j", tmp_path / "x", False)

    def test_a_helper_that_dies(self, tmp_path: Path) -> None:
        here = cluster(details("j"), logs=self.log(tmp_path / "elsewhere"))
        here.client.tails = [["Runtime env is setting up.\n", "sh: 1: exec: python: not found\n"]]
        with pytest.raises(RunError, match=r"ended early: sh: 1: exec: python: not found"):
            fetch(here, "j", tmp_path / "x", False)
        assert not (tmp_path / "x").exists()
        assert list(here.client.jobs) == ["j"]  # the helper is gone
