"""Write the samples of the first 20 of 100 clients as a partition file per seed, for docs/results/step_size.yaml.

    python docs/results/first_clients.py      # writes runs/first_clients/seed_1.parquet to seed_3.parquet

Each client keeps the 10 classes of CIFAR-100, and the samples, that it has among 100 clients. Fewer clients make a
sweep of many cells possible on two CPU cores.
"""

from __future__ import annotations

from pathlib import Path

import raysim

FOLDER = Path("runs/first_clients")
SEEDS = (1, 2, 3)
CLIENTS = 20


def write_partition(seed: int) -> Path:
    """Train one client for one round to get the run's partition; write the rows of the first clients."""
    sets = [
        f"seed={seed}",
        "rounds=1",
        "algorithm={name: standalone}",
        "clients.participation=0.01",
        "training.epochs=1",
    ]
    run = raysim.run("papers/fedral/base", sets=[*sets, f"output={FOLDER}"], quiet=True)
    rows = run.partition
    file = FOLDER / f"seed_{seed}.parquet"
    rows[rows["client"] < CLIENTS].drop(columns="label").to_parquet(file, index=False)
    return file


if __name__ == "__main__":
    for seed in SEEDS:
        print(write_partition(seed))
