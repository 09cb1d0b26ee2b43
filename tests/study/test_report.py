"""The HTML report: one file with everything in it, which a browser opens without a network or a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from raysim.study.report import report
from raysim.study.sweep_card import CellCard, SweepCard
from tests.study.runs import make_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


pytestmark = pytest.mark.xdist_group("report")  # one process makes the page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on two folders with two methods and three seeds each."""
    place = tmp_path_factory.mktemp("report")
    for part in ("first", "second"):
        (place / part).mkdir(parents=True)
        for seed in (1, 2, 3):
            for method in ("fedgh", "standalone"):
                make_run(place / part / f"{method}{seed}" / "run", method, seed, accuracy=[0.1, 0.4 + seed / 10])
        cells = {folder.name: CellCard("") for folder in (place / part).iterdir()}
        SweepCard("What <this> is.", cells).write(place / part)
    return report(place / "first", place / "second", output=place / "out" / "r.html", baseline="standalone")


def test_it_holds_everything_and_loads_nothing(page: Path) -> None:
    text = page.read_text()
    addresses = re.findall(r'\b(?:src|href)="([^"]*)"', text)  # every address that a browser would load
    assert all(address.startswith("data:image/") for address in addresses)
    assert "<script" not in text and "@import" not in text and not re.search(r"url\((?!#)", text)
    assert text.count("data:image/svg+xml") == 2 * 3
    assert text.count("What &lt;this&gt; is.") == 2
    assert text.count("raysim launch ") == 2 * 6
    assert "60.00 ± 24.84" in text  # of 50, 60 and 70 %


@pytest.mark.large
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_opens_it_without_a_network(page: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--window-size=400,1200"]
    picture = tmp_path / "page.png"
    command = [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 10_000
    assert "CONSOLE" not in done.stderr


def test_a_single_run(tmp_path: Path, undrawn: None) -> None:
    run = make_run(tmp_path / "20261121-1", seed=3)
    text = report(run, output=tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<title>raysim: 20261121-1</title>" in text and "last_took_part" in text
