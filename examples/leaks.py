"""What does an upload give away?

An honest-but-curious server sees every upload. Each attacked client of a finished run receives the server's current
message, trains one step of plain SGD on one of its images, and uploads what its method uploads, as in a first round.
The server knows which part of the network the upload exposes (the method's hook `exposed`), and searches for an image
that would have caused the same upload (gradient inversion; Zhu et al., https://arxiv.org/abs/1906.08935). It does so
with the client's private weights (white, the worst case) and with new weights in their place (blind).

The result is the PSNR of the reconstruction in dB. The last line is the level without any information: the PSNR of two
unrelated images of the run. A reconstruction at that level reveals nothing.

    python examples/leaks.py RUN   # a run folder; 5 images of 8 x 8 pixels take half a minute on one core

The run needs images, networks without BatchNorm, which cannot train on one image, and a checkpoint. The script prints
a table, and writes `leaks.png` into the current folder.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import raysim
from raysim.core import Batch, Client, LocalTraining, OutputOf, Samples, Task, UpdateOf

IMAGES = 5
CALLS, ITERATIONS = 100, 20  # of L-BFGS, and within each of its calls
LR = 0.01  # of the client's step; the attacker knows it

Send = Callable[[Tensor, Tensor], Tensor]
"""The attacker's model: (normalised image [1, C, H, W], soft label [1, classes]) -> what the server would see."""


def main(run: raysim.Run | str, images: int = IMAGES) -> pd.DataFrame:
    """Attack `images` random clients, print a table, draw the reconstructions, and return a row per image."""
    run, rng = raysim.Run(run), np.random.default_rng(0)
    train = run.partition.query("part == 'train'")
    figure = Figure(figsize=(1.2 * images + 0.8, 4), layout="constrained")
    panels = figure.subplots(3, images, squeeze=False)
    rows, pool = [], []
    for column, k in enumerate(rng.choice(train["client"].unique(), images)):
        data = run.client(k).data.train
        pool.append(data.raw_N.numpy() / 255)
        data = one_of(data, int(rng.integers(len(data))))
        shown = [data.raw_N[0].numpy() / 255]
        for blind in (False, True):
            seen, send = upload(run, int(k), data, blind)
            shown.append(invert(seen, send, data, run.scenario.dataset.num_classes))
        rows.append({"client": k, "white, dB": psnr(shown[0], shown[1]), "blind, dB": psnr(shown[0], shown[2])})
        for row, (name, image) in enumerate(zip(("original", "white", "blind"), shown, strict=True)):
            panels[row, column].imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
            panels[row, column].set(xticks=[], yticks=[], title=f"{name}, client {k}" if row == 0 else name)
    table = pd.DataFrame(rows).set_index("client")
    print(table.round(1).to_string())
    print(f"mean: white {table['white, dB'].mean():.1f} dB, blind {table['blind, dB'].mean():.1f} dB")
    pairs = rng.choice(np.concatenate(pool), (100, 2))
    print(f"unrelated images: {np.mean([psnr(*pair) for pair in pairs]):.1f} dB")
    figure.savefig("leaks.png", dpi=150)
    return table


def psnr(original: Any, image: Any) -> float:
    """10 log10(1 / MSE) over all pixels and channels in [0, 1]."""
    return float(-10 * np.log10(np.square(original - image).mean() + 1e-12))


def upload(run: raysim.Run, k: int, data: Samples, blind: bool) -> tuple[Tensor, Send]:
    """Let client k train on one image. Return what the server sees, and the attacker's model of it."""
    scenario, before = run.scenario, run.client(k).current_network
    method: Any = scenario.algorithm
    client = client_of(run, k, data, copy.deepcopy(before))
    calls, train = [], client.trainer

    def trainer(job: Any) -> Any:  # keeps the network and the loss of each `client.fit`
        calls.append((copy.deepcopy(client.net), job))
        return train(job)

    client.trainer = trainer
    message = method.client_update(client, None)

    def exposed(net: nn.Module) -> Any:
        return method.exposed(replace(client, net=net), message)

    known = exposed(before)
    if isinstance(known, OutputOf):
        # Some methods send an output from before the step, others from after it.
        nets = [fresh(before)] if blind else [before, client.net]
        functions = [exposed(net.eval()).function for net in nets]
        function = min(
            functions, key=lambda f: float((f(data.x).flatten() - known.value.flatten()).detach().square().sum())
        )
        return known.value.flatten(), lambda x, _: function(x).flatten()
    if not isinstance(known, UpdateOf):
        raise SystemExit(f"{type(method).__name__} does not expose a single image, or does not declare it")

    def shared(net: nn.Module) -> dict[str, nn.Parameter]:
        return {name: weight for name, weight in exposed(net).part.named_parameters() if name in known.after}

    # A method may call `client.fit` several times; one call trains the exposed parameters.
    net, job = next((net, job) for net, job in calls if any(weight.requires_grad for weight in shared(net).values()))
    old = shared(net)
    # A gradient is the difference of the weights, divided by the learning rate. NaN marks numbers that are not sent.
    seen = torch.cat([((weight.detach() - known.after[name]) / LR).flatten() for name, weight in old.items()])
    sent = ~seen.isnan()
    if blind:
        net = fresh(net)
        exposed(net).part.load_state_dict(old, strict=False)
    weights, loss = list(shared(net).values()), known.loss or job.loss

    def gradient(x: Tensor, label: Tensor) -> Tensor:
        value = loss(net.train(), Batch(x, label, torch.zeros(1, dtype=torch.int64)), job.given)
        value = value[0] if isinstance(value, tuple) else value
        return torch.cat([one.flatten() for one in torch.autograd.grad(value, weights, create_graph=True)])[sent]

    return seen[sent], gradient


def one_of(data: Samples, place: int) -> Samples:
    """Return one sample, which training does not augment."""
    one = data.subset(torch.tensor([place]))
    return replace(one, transform=replace(one.transform, augment=None))  # type: ignore[type-var]


def client_of(run: raysim.Run, k: int, data: Samples, net: nn.Module) -> Client:
    """Return client k as the method's hooks see it, with these samples, and plain SGD for one step."""
    scenario = run.scenario
    model_of = run.clients.groupby("client")["model"].first()
    task = Task(scenario.dataset.num_classes, scenario.feature_dim, tuple(model_of.unique()), new_model)
    rng = torch.Generator().manual_seed(0)
    return Client(k, task, data, net, LocalTraining(lr=LR), rng, run.summary["rounds"] + 1, model_of[k])


def new_model(*_: Any) -> Any:
    """Stands for `task.model`, which clients do not call in `client_update`."""
    raise NotImplementedError("client_update uses task.model")


def fresh(net: nn.Module) -> nn.Module:
    """Return a copy of a network with new weights."""
    net = copy.deepcopy(net)
    torch.manual_seed(0)
    for module in net.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return net


def invert(seen: Tensor, send: Send, data: Samples, classes: int) -> Any:
    """Return the image [H, W, C] in [0, 1] for which `send` is nearest to `seen`, by L-BFGS with restarts."""
    rng = torch.Generator().manual_seed(0)
    search = best = Search(seen, send, data, classes, rng)
    for _ in range(CALLS):
        before = search.least
        search.optimizer.step(search.closure)
        best = min(best, search, key=lambda one: one.least)
        if best.least < 1e-8:
            break
        if not search.least < 0.9 * before:  # the search got stuck: start from new random pixels
            search = Search(seen, send, data, classes, rng)
    return best.image_HWC


class Search:
    """One search from random pixels and a random label, with the best image so far."""

    def __init__(self, seen: Tensor, send: Send, data: Samples, classes: int, rng: torch.Generator) -> None:
        self.seen, self.send, self.data = seen, send, data
        self.image = torch.randn(data.raw_N.shape, generator=rng).requires_grad_()
        self.label = torch.randn(1, classes, generator=rng).requires_grad_()
        self.optimizer = torch.optim.LBFGS([self.image, self.label], max_iter=ITERATIONS)
        self.least, self.image_HWC = float("inf"), self.image[0].detach().sigmoid().numpy()

    def closure(self) -> float:
        """Set the gradients of the squared distance, relative to the square of what was seen, and return it."""
        sent = self.send(self.data.transform.plain(255 * self.image.sigmoid()), self.label.softmax(1))
        distance = (sent - self.seen).square().sum() / (self.seen.square().sum() + 1e-12)
        varied = (self.image, self.label)
        self.image.grad, self.label.grad = torch.autograd.grad(
            distance, varied, materialize_grads=True, allow_unused=True
        )
        if distance.item() < self.least:
            self.least, self.image_HWC = distance.item(), self.image[0].detach().sigmoid().numpy()
        return distance.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    main(parser.parse_args().run)
