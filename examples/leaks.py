"""What does an upload give away?

An honest-but-curious server sees every upload. After some rounds, a client trains one step on one image and uploads
what its method uploads: FedAvg a model, FML a small model, LG-FedAvg a header, FedProto a class mean, FD logits. The
server then searches for an image that would have caused this upload (gradient inversion), once with the client's
private weights (white, the worst case) and once without them (blind).

The result is the PSNR of the reconstruction in dB. Two unrelated digits have about 8.7 dB; the last row of the table is
this value for the digits used here. A reconstruction at that level reveals nothing, so differences below it have no
meaning.

    python examples/leaks.py                        # 5 runs and 50 attacks, about 1.5 minutes on one core
    python examples/leaks.py --rounds 1 --images 1  # 20 seconds

It prints a table, and writes `leaks.png` with the reconstructions of the white attack, and the run folders into
`--folder`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure

import raysim
from raysim.inspection.attack import Attack, attack

METHODS = ("fedavg", "fml", "lg_fedavg", "fedproto", "fd")
KNOWLEDGE: tuple[Literal["white", "blind"], ...] = ("white", "blind")
SCENARIO: dict[str, Any] = {
    "name": "leaks",
    "seed": 1,
    "backend": "in_process",
    "data": {"name": "digits", "partition": {"name": "pathological", "classes_per_client": 5}},
    "clients": {"count": 10, "models": ["digits_mlp64"]},  # one architecture, which FedAvg needs
    "training": {"epochs": 1, "batch_size": 16, "lr": 0.05, "momentum": 0.9},
}


def main(
    rounds: int = 5, images: int = 5, methods: Sequence[str] = METHODS, folder: Path | str = "runs/leaks"
) -> pd.DataFrame:
    """Run the study, print its table, draw its figure, and return the PSNR by method (rows) and knowledge (columns)."""
    rows: dict[str, dict[str, Any]] = {}
    shown: dict[str, Attack] = {}
    for method in methods:
        run = raysim.run(
            {**SCENARIO, "rounds": rounds, "output": str(folder), "algorithm": {"name": method}}, quiet=True
        )
        attacks = {knowledge: attack(run.folder, pairs=images, knowledge=knowledge) for knowledge in KNOWLEDGE}
        shown[method] = attacks["white"]
        rows[method] = {
            "accuracy": run.rounds["accuracy/all"].iloc[-1],
            **{f"{knowledge}, dB": result.mean for knowledge, result in attacks.items()},
            "folder": run.folder,
        }
    level = shown[methods[0]].unrelated
    rows["(unrelated images)"] = {f"{knowledge}, dB": level for knowledge in KNOWLEDGE}
    table = pd.DataFrame.from_dict(rows, orient="index")
    print(f"PSNR, mean of {images} images\n{table.drop(columns='folder').round(3).to_string(na_rep='')}")

    # All methods are attacked with the same clients and images, because they have the same seed and partition.
    figure = Figure(figsize=(1.1 * images + 0.8, 1.1 * (len(shown) + 1)), layout="constrained")
    panels = figure.subplots(len(shown) + 1, images, squeeze=False)
    for row, (method, result) in enumerate(shown.items(), 1):
        for column, one in enumerate(result.images):
            panels[0, column].imshow(one.original_HWC, cmap="gray", vmin=0, vmax=1)
            panels[row, column].imshow(one.image_HWC, cmap="gray", vmin=0, vmax=1)
            panels[row, column].set_xlabel(f"{result.psnrs[column]:.1f} dB", fontsize=7)
        panels[row, 0].set_ylabel(method, fontsize=7)
    panels[0, 0].set_ylabel("original", fontsize=7)
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[])
    figure.savefig(Path(folder) / "leaks.png", dpi=150)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--folder", type=Path, default=Path("runs/leaks"))
    main(**vars(parser.parse_args()))
