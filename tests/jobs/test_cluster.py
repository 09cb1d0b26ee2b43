"""Which cluster is meant, and every way of not reaching it: one sentence each, in seconds."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysim.common.errors import RunError, ScenarioError
from raysim.jobs.cluster import DEFAULT, VARIABLES, Address, connect, find_address, find_token
from tests.jobs.fakes import cluster, dashboard, details

RAY = {"ray_version": "2.60.0", "version": "4"}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No address and no token but those of the test."""
    for name in (*VARIABLES, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")


def at(url: str) -> Address:
    return Address(url, "--address")


class TestAddress:
    def test_the_default_is_this_machine(self) -> None:
        assert find_address(None).url == DEFAULT

    def test_what_is_given_wins_over_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://other:1")
        assert find_address("http://head:8265/").url == "http://head:8265"

    def test_the_variables_in_their_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, url in zip(reversed(VARIABLES), ("http://c:1", "http://b:1", "http://a:1"), strict=True):
            monkeypatch.setenv(name, url)
            assert find_address(None) == Address(url, name)

    def test_a_ray_address_for_launch_is_not_one_for_jobs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
        assert find_address(None).url == DEFAULT

    def test_http_may_be_left_out(self) -> None:
        assert find_address("head:8265").url == "http://head:8265"

    def test_ray_client(self) -> None:
        with pytest.raises(ScenarioError, match=r"--address: ray://h:10001 .*such as http://h:8265$"):
            find_address("ray://h:10001")

    @pytest.mark.parametrize(
        "given", ["", "auto", "local", "ftp://h", "http://", "http://h/path", "http://[::1", "ray://[::1"]
    )
    def test_what_is_no_address(self, given: str) -> None:
        with pytest.raises(ScenarioError, match=r"--address: .*use the dashboard.*http://HOST:8265"):
            find_address(given)


class TestConnect:
    def test_a_dashboard(self) -> None:
        with dashboard(RAY) as url:
            found = connect(at(url))
        assert (found.address, found.ray_version, found.notes) == (url, "2.60.0", ())

    def test_the_address_given_is_the_one_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Ray's client prefers these to its argument.
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        with dashboard(RAY) as url:
            assert connect(at(url)).client.get_address() == url

    def test_no_server(self) -> None:
        with pytest.raises(
            ScenarioError, match=r"^--address: http://127.0.0.1:9 does not answer \(connection refused\)"
        ):
            connect(at("http://127.0.0.1:9"))

    def test_a_server_that_never_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("raysim.jobs.cluster.ANSWER_S", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as server:
            began = time.monotonic()
            with pytest.raises(ScenarioError, match="timed out"):
                connect(at(f"http://127.0.0.1:{server.getsockname()[1]}"))
        assert time.monotonic() - began < 5

    @pytest.mark.parametrize("head", [b"", b"HTTP/1.0 200 OK\r\n\r\n"])
    def test_a_server_that_answers_slowly(self, head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("raysim.jobs.cluster.ANSWER_S", 0.3)
        over = threading.Event()

        def drip(server: socket.socket) -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(head)
                while not over.wait(0.05):
                    connection.sendall(b"H" if not head else b"[")

        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=drip, args=(server,))
            thread.start()
            threading.Timer(5, over.set).start()  # who waits for as long waits too long
            try:
                with pytest.raises(ScenarioError, match="timed out"):
                    connect(at(f"http://127.0.0.1:{server.getsockname()[1]}"))
                assert not over.is_set()
            finally:
                over.set()
                thread.join()

    @pytest.mark.parametrize("answer", [b"<html>", {"version": "4"}, [], b"[" * 200_000, b" " * (2 << 20) + b"{}"])
    def test_something_else(self, answer: object) -> None:
        with dashboard(answer) as url, pytest.raises(ScenarioError, match="is not a Ray dashboard"):
            connect(at(url))


class TestToken:
    @pytest.fixture
    def guarded(self) -> Iterator[Address]:
        with dashboard(RAY, token="right") as url:
            yield at(url)

    def test_none(self, guarded: Address) -> None:
        with pytest.raises(ScenarioError, match=r"asks for a token, but none was found: .*RAY_AUTH_TOKEN_PATH"):
            connect(guarded)

    def test_a_wrong_one(self, guarded: Address, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
        with pytest.raises(ScenarioError, match="refuses the token in RAY_AUTH_TOKEN"):
            connect(guarded)

    def test_in_a_variable(self, guarded: Address, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
        assert connect(guarded).notes == ()

    def test_in_the_file_that_ray_makes(self, guarded: Address, tmp_path: Path) -> None:
        file = tmp_path / ".ray" / "auth_token"
        file.parent.mkdir()
        file.write_text("right\n")
        file.chmod(0o644)
        (notify,) = connect(guarded).notes
        assert "chmod 600" in notify
        assert "right" not in notify
        file.chmod(0o600)
        assert connect(guarded).notes == ()

    def test_switched_off(self, guarded: Address, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        with pytest.raises(ScenarioError, match="asks for a token"):
            connect(guarded)

    def test_the_token_is_sent_only_on_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
        with dashboard(RAY) as url:
            assert "Authorization" not in connect(at(url)).client._headers

    def test_a_mode_without_a_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever Ray's client then raises: it looks for a token although the cluster needs none."""
        from ray.exceptions import AuthenticationError

        def client(*given: object, **named: object) -> None:
            raise AuthenticationError("RAY_AUTH_TOKEN_PATH is set but file cannot be opened")

        monkeypatch.setattr("ray.job_submission.JobSubmissionClient", client)
        with dashboard(RAY) as url, pytest.raises(ScenarioError, match=r"^RAY_AUTH_MODE is `token`, but"):
            connect(at(url))

    def test_a_file_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere")
        assert find_token() == ("", ())


class TestAsking:
    def test_an_unknown_job_with_the_nearest(self) -> None:
        with pytest.raises(ScenarioError, match=r"^quickstrat-1: .*did you mean 'quickstart-1'"):
            cluster(details("quickstart-1")).info("quickstrat-1")

    def test_a_job_that_raysim_did_not_submit(self) -> None:
        other = details("other", metadata={"job_name": "x"})
        with pytest.raises(ScenarioError, match="was not submitted by raysim"):
            cluster(other).info("other")
        assert cluster(other).jobs() == []

    def test_newest_first(self) -> None:
        found = cluster(details("a", start_time=1), details("b", start_time=3), details("c", start_time=2)).jobs()
        assert [job.submission_id for job in found] == ["b", "c", "a"]

    def test_a_cluster_that_went_away(self) -> None:
        gone = cluster(details("a"))
        gone.client.get_job_info = lambda job: (_ for _ in ()).throw(ConnectionResetError("Connection aborted."))
        with pytest.raises(RunError, match=r"does not answer any more \(connection aborted\)"):
            gone.info("a")

    def test_a_refusal_is_its_last_line(self) -> None:
        angry = cluster()
        text = "Request failed with status code 500: Traceback\n  File x\nValueError: no room\n."
        angry.client.list_jobs = lambda: (_ for _ in ()).throw(RuntimeError(text))
        with pytest.raises(RunError, match=r"refused: ValueError: no room$"):
            angry.jobs()
