"""The style of figures: what a publisher checks in a PDF, and what a reader needs in print."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from raysim.report.accuracies import OWN
from raysim.report.figures import INCHES, OVER, Width, band, line_look, make_figure, per_cent_axis, picture_file, save
from raysim.report.plots import Curve, draw_boxes, draw_clients, draw_confusion, draw_curves
from tests.choices import first

WIDTHS: list[Width] = ["one-column", "two-columns"]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_pdf_embeds_its_fonts_and_is_as_wide_as_columns(tmp_path: Path, width: Width) -> None:
    figure = draw_curves({"round": [Curve("é $x_1$", [0, 1, 2], [0.1, 0.2, 0.3])]}, "accuracy", width)
    save(figure, tmp_path / "a.pdf", format="pdf")
    content = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in content and b"/Type3" not in content  # TrueType, that is, Type 42
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) [\d.]+ \]", content)
    assert float(box) == pytest.approx(72 * INCHES[width])
    again = draw_curves({"round": [Curve("é $x_1$", [0, 1, 2], [0.1, 0.2, 0.3])]}, "accuracy", width)
    save(again, tmp_path / "b.pdf", format="pdf")
    assert (tmp_path / "b.pdf").read_bytes() == content


@pytest.mark.parametrize(
    ("over", "greatest", "label"),
    [
        ("round", 3000, "round"),
        ("bytes", 900, "sent, both directions (B)"),
        ("bytes", 3 * 2.0**20, "sent, both directions (MiB)"),
        ("bytes", 1.5 * 2.0**40, "sent, both directions (TiB)"),
        ("operations", 2e10, "operations (GFLOP)"),
        ("operations", 5e18, "operations (EFLOP)"),
        ("virtual-time", 90.0, "virtual time (s)"),
        ("virtual-time", 3 * 86400.0, "virtual time (days)"),
        ("virtual-time", 0.0, "virtual time (s)"),
    ],
)
def test_an_axis_has_a_unit_and_no_offset(over: str, greatest: float, label: str) -> None:
    figure = draw_curves({over: [Curve("a", [0.0, greatest / 2, greatest], [0.1, 0.2, 0.3])]}, "accuracy")
    figure.canvas.draw()
    (axes,) = figure.axes
    assert axes.get_xlabel() == label
    assert axes.xaxis.get_offset_text().get_text() == axes.yaxis.get_offset_text().get_text() == ""
    ticks = [text.get_text() for text in axes.get_xticklabels()]
    assert all(re.fullmatch(r"−?\d+(\.\d+)?", text) and len(text) <= 6 for text in ticks)
    assert {text.get_text()[-1] for text in axes.get_yticklabels()} == {"%"}


def test_small_ranges_are_told_apart_in_per_cent() -> None:
    figure, (axes,) = make_figure()
    axes.plot([0, 1], [0.9871, 0.9899])
    per_cent_axis(axes.yaxis)
    figure.canvas.draw()
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert len(set(labels)) == len(labels) >= 4 and "98.8%" in labels


def test_intervals_end_at_0_and_100_per_cent() -> None:
    assert band(0.05, -0.1, 0.2) == (0.0, 0.2)
    assert band(0.95, 0.9, 1.7) == (0.9, 1.0)
    assert band(0.5, None, None) == (0.5, 0.5)


def test_curves_differ_without_colour() -> None:
    looks = [(str(line_look(place, 10)["linestyle"]), line_look(place, 10)["marker"]) for place in range(63)]
    assert len(set(looks)) == 63
    assert len({look for look, _ in looks[:7]}) == 7  # the line style alone distinguishes a few


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", first([9, 1, 25]))
def test_figures_of_any_size_are_drawn_in_their_width(tmp_path: Path, width: Width, count: int) -> None:
    label = "a long label, seed=12 lr=0.001 $x_1$\n<b>_c"
    curves = [Curve(f"{label}{i}", [1, 2], [0.1, 0.2]) for i in range(count)]
    drawn = [
        draw_curves(dict.fromkeys(OVER, curves), OWN.mean_label, width),
        draw_boxes({f"{label}{i}": np.array([0.2, 0.5, 0.9]) for i in range(count)}, OWN, width),
        draw_clients({f"{label}{i}": [(k, f"m{k % 5}", 0.5) for k in range(7)] for i in range(count)}, OWN, width),
        draw_confusion({f"{label}{i}": np.eye(3, dtype=np.int64) for i in range(count)}, ["_a", "$b", "c\nd"], width),
    ]  # fmt: skip
    for number, figure in enumerate(drawn):
        save(figure, tmp_path / f"{number}.png", format="png")
        assert figure.get_size_inches()[0] == INCHES[width]
        for axes in figure.axes:
            assert axes.get_position().width > 0.05  # labels leave room for the data


def test_many_clients_and_classes(tmp_path: Path) -> None:
    figure = draw_clients({"a": [(k, "ab"[k % 2], (k % 10) / 10) for k in range(3000)]}, OWN)
    save(figure, tmp_path / "a.png", format="png")
    assert len(figure.axes[0].collections) == 2 and not figure.axes[0].patches
    figure = draw_confusion({"a": np.zeros((100, 100), np.int64)}, [f"c{i}" for i in range(100)])
    save(figure, tmp_path / "b.png", format="png")
    assert len(figure.axes) == 2 and not figure.axes[0].texts  # a colour bar instead of numbers


def test_files_of_pictures(tmp_path: Path) -> None:
    assert picture_file(tmp_path / "a.pdf") == tmp_path / "a.pdf"
