"""Draw the accuracy of every round from the CSV files in this folder: python docs/results/rounds/draw.py."""

from __future__ import annotations

import csv
from pathlib import Path

from raysim.results.figures import save_picture
from raysim.results.plots import Curve, draw_curves

FOLDER = Path(__file__).parent


def draw(name: str, to: Path) -> Path:
    """Draw the mean accuracy of all clients after each round, one curve per variant, from `name`.csv."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    drawn = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == variant]
        drawn.append(Curve(variant, [int(row["round"]) for row in mine], [float(row["all"]) for row in mine]))
    return save_picture(draw_curves({"round": drawn}, "accuracy of all clients", "one-column"), to)


if __name__ == "__main__":
    for name in ("cifar100", "cifar100_published"):
        draw(name, FOLDER / f"{name}.svg")
