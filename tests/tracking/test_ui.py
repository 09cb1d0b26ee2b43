"""MLflow's pages show a run that raysim wrote: seen with a real, headless browser."""

from __future__ import annotations

import html
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from raysim.common.errors import ScenarioError
from raysim.tracking.database import load_mlflow
from raysim.tracking.mlflow import MlflowTracker
from raysim.tracking.parent import ParentRun
from raysim.tracking.store import database_path, experiment_pages
from raysim.tracking.ui import end_group, serve_ui, ui_command, ui_environment

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1600,900",  # columns that do not fit are not made
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(server: subprocess.Popen[bytes], port: int, timeout_s: float = 240.0) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        assert server.poll() is None, "the server ended"
        try:
            with opener.open(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
    raise AssertionError(f"no answer within {timeout_s} s")


def rendered(url: str, profile: Path, budget_ms: int) -> str:
    """The text of a page as the browser shows it, scripts run."""
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", f"--virtual-time-budget={budget_ms}"]
    browser = subprocess.Popen(
        [*command, "--dump-dom", url], stdout=-1, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        page = browser.communicate(timeout=240)[0].decode()
    finally:
        end_group(browser)
    page = re.sub(r"(?s)<(script|style|noscript)\b.*?</\1>", "", page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.mark.large
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_run_is_seen_in_the_browser(store, tmp_path, make_card):
    parent = ParentRun(store, "seen", tmp_path)  # pages of a sweep show its runs, not the run of the sweep alone
    tracker = MlflowTracker(store, "seen", {"seed": "1", "overridden": "lr=0.1", **parent.tags()})
    tracker.open(make_card(tmp_path, parameters={"rounds": 3}))
    for t, accuracy in enumerate((0.125, 0.4375, 0.8125)):
        tracker.log(t, {"accuracy/all": accuracy}, [])
    tracker.close("finished", {})
    parent.close(True, {"last/fedgh": 0.8125}, [])
    port = free_port()
    database = database_path(store)
    assert database is not None
    command = ui_command(store, database, "127.0.0.1", port)
    server = subprocess.Popen(command, env=ui_environment(), start_new_session=True, cwd=tmp_path)
    try:
        wait_for(server, port)
        ((name, page),) = experiment_pages(f"http://127.0.0.1:{port}")
        assert name == "seen"
        for url in (page, f"http://127.0.0.1:{port}/{tracker.run_path}"):
            # The page's clock runs ahead of a busy machine's; a second look has more time.
            for attempt, budget_ms in enumerate((15_000, 60_000)):
                text = rendered(url, tmp_path / f"profile{attempt}", budget_ms)
                if "0.8125" in text:
                    break
            assert "fedgh-s1 r1" in text, text
            if url == page:
                assert "algorithm seed overridden" in text and " fedgh 1 lr=0.1 0.8125 " in text, text
        assert re.search(r"\baccuracy/all\s+0\.8125\b", text), text
    finally:
        end_group(server)
    with pytest.raises(urllib.error.URLError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
        pass


def test_the_page_of_a_sweep_lists_its_runs_with_rounded_accuracies(store, tmp_path, make_card):
    parent = ParentRun(store, "swept", tmp_path)
    for seed in (2, 1):
        tracker = MlflowTracker(store, "swept", parent.tags())
        tracker.open(make_card(tmp_path, label=f"fedgh-s{seed}"))
        tracker.log(1, {"accuracy/all": 8 / 9, "loss/test": 8 / 9}, [])
        tracker.close("finished", {})
    parent.close(True, {"last/fedgh": 8 / 9}, [])
    experiment = parent.client.get_experiment_by_name("swept")
    view = json.loads(experiment.tags["mlflow.sharedViewState.raysim"])
    order = [f"{view['orderByKey']} {'ASC' if view['orderByAsc'] else 'DESC'}"]
    runs = parent.client.search_runs([experiment.experiment_id], view["searchFilter"], order_by=order)
    assert [run.info.run_name for run in runs] == ["fedgh-s1 r1", "fedgh-s2 r1"]
    assert [run.data.metrics["accuracy/all"] for run in runs] == [0.8889, 0.8889]
    assert runs[0].data.metrics["loss/test"] == 8 / 9


def test_a_taken_port_is_refused_and_a_free_one_named(store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ScenarioError) as caught:
            serve_ui(store, port=port)
    found = re.fullmatch(
        rf"Port {port} on 127\.0\.0\.1 cannot be used \(address already in use\); choose a free port, "
        r"such as --port (\d+)\.",
        str(caught.value),
    )
    assert found and int(found[1]) != port


def test_a_server_has_pages_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr("raysim.tracking.ui.check_uri", lambda uri, key: uri)
    assert serve_ui("http://me:secret@host:5000") == 0
    assert capsys.readouterr().out == "MLflow is at http://host:5000\n"


def test_a_store_without_a_run_is_made_whole_and_said_to_be_empty(tmp_path, monkeypatch, capsys):
    load_mlflow("")
    from mlflow.tracking import MlflowClient

    monkeypatch.setattr("raysim.tracking.ui.ui_command", lambda *_: [sys.executable, "-c", ""])
    uri = f"sqlite:///{tmp_path / 'new.db'}"
    said = f"{tmp_path / 'new.db'} contains no run yet; new runs will appear here\n"
    for told, host, shown in ((said, "127.0.0.1", "127.0.0.1"), ("", "::1", "[::1]")):
        port = free_port()
        monkeypatch.setattr("raysim.tracking.ui._refuse_taken_port", lambda *_: None)  # the machine may lack IPv6
        assert serve_ui(uri, host, port) == 0
        assert capsys.readouterr().out == f"{told}MLflow is at http://{shown}:{port} (Ctrl-C ends it)\n"
    assert MlflowClient(uri).get_experiment("0") is not None

    def full(uri):
        raise OSError("database or disk is full")

    monkeypatch.setattr("raysim.tracking.database._make", full)
    with pytest.raises(ScenarioError, match=r"sqlite:///.*other\.db cannot be created \(database or disk is full\)"):
        serve_ui(f"sqlite:///{tmp_path / 'other.db'}", port=free_port())
    assert [path.name for path in tmp_path.iterdir() if "other" in path.name] == ["other.db.lock"]


FAKE = """
import http.server, json, sys
tags = [{"key": "mlflow.sharedViewState.raysim", "value": "{}"}]
EXPERIMENTS = [{"experiment_id": "0", "name": "Default"}] + [
    {"experiment_id": f"{i}", "name": f"e{i}", "tags": tags} for i in range(1, 13)
]
class Handler(http.server.BaseHTTPRequestHandler):
    log_message = lambda *_: None
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/api/2.0/mlflow/experiments/search":
            answer = {"experiments": EXPERIMENTS}
        else:
            assert self.path == "/api/2.0/mlflow/runs/search" and "0" not in asked["experiment_ids"]
            answer = {"runs": [{"info": {"experiment_id": "7"}}]}
            self.server.done = True
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.done = False
while not server.done:
    server.handle_request()
"""


def test_the_pages_that_show_runs_are_printed_the_latest_first(store, monkeypatch, capsys):
    port = free_port()
    monkeypatch.setattr("raysim.tracking.ui.ui_command", lambda *_: [sys.executable, "-c", FAKE, str(port)])
    assert serve_ui(store, port=port) == 0
    said, first, curves, second, *rest = capsys.readouterr().out.splitlines()
    assert said == f"MLflow is at http://127.0.0.1:{port} (Ctrl-C ends it)"
    question = "workflowType=machine_learning&viewStateShareKey=raysim"
    assert first == f"e7: http://127.0.0.1:{port}/#/experiments/7/runs?{question}"
    assert second == f"e1: http://127.0.0.1:{port}/#/experiments/1/runs?{question}"
    assert curves == f"  curves: {first.removeprefix('e7: ')}&compareRunsMode=CHART"
    assert len(rest) == 18 and rest[-1] == "and 2 more experiments"


def test_ctrl_c_ends_the_server_and_its_children(store, tmp_path):
    # A stand-in for the server with a child of its own: starting the real one takes seconds.
    child = f"import time, os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    script = (
        "import sys\nfrom raysim.tracking import ui\n"
        f"ui.ui_command = lambda *a: [sys.executable, '-c', {parent!r}]\n"
        f"sys.exit(ui.serve_ui({store!r}, port={free_port()}))\n"
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        (tmp_path / "pid").unlink(missing_ok=True)
        run = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": ":".join(sys.path)})
        try:
            end = time.monotonic() + 240
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                assert time.monotonic() < end and run.poll() is None
                time.sleep(0.05)
            run.send_signal(number)
            assert run.wait(240) == 0
        finally:
            run.kill()
            run.wait()
        pid = (tmp_path / "pid").read_text()
        status = Path(f"/proc/{pid}/stat")
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
