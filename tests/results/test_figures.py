"""The style of figures: what a publisher checks in a PDF, and what a reader needs in print."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from raysim.results.accuracies import OWN
from raysim.results.figures import INCHES, OVER, Width, save
from raysim.results.plots import Curve, draw_boxes, draw_clients, draw_confusion, draw_curves
from tests.choices import first

WIDTHS: list[Width] = ["one-column", "two-columns"]


@pytest.mark.parametrize("width", first(WIDTHS))
def test_a_pdf_embeds_its_fonts_and_is_as_wide_as_columns(tmp_path: Path, width: Width) -> None:
    figure = draw_curves({"round": [Curve("é $x_1$", [0, 1, 2], [0.1, 0.2, 0.3])]}, "accuracy", width)
    save(figure, tmp_path / "a.pdf", format="pdf")
    content = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in content and b"/Type3" not in content  # TrueType, that is, Type 42
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) [\d.]+ \]", content)
    assert float(box) == pytest.approx(72 * INCHES[width])


@pytest.mark.parametrize(
    ("over", "greatest", "label"),
    [
        ("bytes", 1.5 * 2.0**40, "sent, both directions (TiB)"),
        ("operations", 5e18, "operations (EFLOP)"),
        ("virtual-time", 3 * 86400.0, "virtual time (days)"),
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


@pytest.mark.parametrize(("width", "count"), first([("one-column", 4), ("two-columns", 25)]))
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
