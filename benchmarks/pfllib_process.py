"""Run a method of PFLlib round by round, in a process of its own; for `beside_pfllib.py`.

    python benchmarks/pfllib_process.py CHECKOUT FOLDER METHOD THREADS EVERY

FOLDER contains dataset/FashionMNIST with the clients' samples. Every line on the standard input runs one iteration of
PFLlib's loop, which is answered by one line of JSON; an end of the input ends the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from raysim.common.errors import RaysimError

Ints = NDArray[np.int64]
SERVERS = {
    "FedAvg": "serveravg",
    "FD": "serverfd",
    "FedProto": "serverproto",
    "APFL": "serverapfl",
    "Ditto": "serverditto",
}
ROUNDS = 10**9  # the parent process decides when to stop


def settings(method: str, every: int) -> Namespace:
    """Return the options that PFLlib's classes read, with the defaults of its command line, but `mu` 1 instead of 0."""
    return Namespace(
        algorithm=method,
        dataset="FashionMNIST",
        num_classes=10,
        num_clients=20,
        device="cpu",
        batch_size=10,
        local_learning_rate=0.005,
        local_epochs=1,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        lamda=1.0,
        alpha=1.0,
        mu=1.0,
        plocal_epochs=1,
        join_ratio=1.0,
        random_join_ratio=False,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        time_select=False,
        time_threthold=10000,
        global_rounds=ROUNDS,
        eval_gap=every,
        goal="test",
        save_folder_name="items",
        top_cnt=100,
        auto_break=False,
        few_shot=0,
        dlg_eval=False,
        dlg_gap=100,
        batch_num_per_client=2,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
    )


def make_server(checkout: Path, method: str, every: int) -> Any:
    """Build PFLlib's server with its clients, as its main program does."""
    sys.path.insert(0, str(checkout / "system"))
    for name in ("h5py", "matplotlib", "matplotlib.pyplot"):  # imported for plots and files that are not written here
        sys.modules.setdefault(name, ModuleType(name))
    models = import_module("flcore.trainmodel.models")
    server = getattr(import_module(f"flcore.servers.{SERVERS[method]}"), method)
    torch.manual_seed(0)
    given = settings(method, every)
    given.model = models.FedAvgCNN(in_features=1, num_classes=10, dim=1024)
    if method != "FD":
        given.head, given.model.fc = given.model.fc, nn.Identity()
        given.model = models.BaseHeadSplit(given.model, given.head)
    return server(given, 0)


def run(server: Any, answers: Any) -> None:
    """Run one iteration for each line on the standard input."""
    select = server.select_clients
    begun: list[tuple[float, float]] = []
    tested_s: list[float] = []

    def answer() -> None:
        wall_s, cpu_s = time.perf_counter() - begun[-1][0], time.process_time() - begun[-1][1]
        accuracy = server.rs_test_acc[-1] if tested_s else None
        print(
            json.dumps({"accuracy": accuracy, "wall_s": wall_s, "cpu_s": cpu_s, "test_cpu_s": sum(tested_s)}),
            file=answers,
            flush=True,
        )
        tested_s.clear()

    def select_clients() -> Any:  # PFLlib begins every iteration with it
        if begun:
            answer()
        if not sys.stdin.readline():
            sys.exit()
        begun.append((time.perf_counter(), time.process_time()))
        return select()

    def timed(evaluate: Callable[[], None]) -> None:
        begin_s = time.process_time()
        evaluate()
        tested_s.append(time.process_time() - begin_s)

    server.select_clients = select_clients
    for test in ("evaluate", "evaluate_personalized"):  # Ditto has both, and the second gives the accuracy
        if hasattr(server, test):
            setattr(server, test, partial(timed, getattr(server, test)))
    server.train()


class EndedError(RaysimError):
    """PFLlib's process has ended."""


class Theirs:
    """A process that runs a method in PFLlib, an iteration at a time."""

    def __init__(self, checkout: Path, folder: Path, method: str, threads: int, every: int) -> None:
        self.log = (folder / f"{method}.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, __file__, checkout, folder, method, str(threads), str(every)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def iteration(self) -> dict[str, Any]:
        """Run an iteration: the accuracy before its training (null without a test), and its seconds."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise EndedError(
                f"PFLlib's process has ended, as after a loss that is not finite; messages: {self.log.name}"
            )
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        self.process.communicate()  # closes the process's input
        self.log.close()


def write_images(folder: Path, pixels: NDArray[np.uint8], label_M: Ints, parts: list[tuple[Ints, Ints]]) -> None:
    """Write the clients' images in the files that PFLlib reads."""
    for name, of in (("train", 0), ("test", 1)):
        into = folder / "dataset" / "FashionMNIST" / name
        into.mkdir(parents=True, exist_ok=True)
        for k, both in enumerate(parts):
            x = (pixels[both[of]].reshape(-1, 1, 28, 28) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
            content: Any = {"x": x, "y": label_M[both[of]]}
            np.savez_compressed(into / f"{k}.npz", data=content)


if __name__ == "__main__":
    checkout, folder, method, threads, every = sys.argv[1:]
    torch.set_num_threads(int(threads))
    checkout_path, answers = Path(checkout).resolve(), sys.stdout
    system = Path(folder) / "system"  # PFLlib reads ../dataset
    system.mkdir(exist_ok=True)
    os.chdir(system)
    with contextlib.redirect_stdout(sys.stderr):  # PFLlib prints its progress
        run(make_server(checkout_path, method, int(every)), answers)
