"""`Study`: the Python interface of a sweep. It runs cells, reads their states, compares and reports them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.data import datasets
from raysim.runs.run import Run
from raysim.study.cells import CellState, states_of
from raysim.study.choice import trials_frame, with_choices
from raysim.study.definition import load_sweep

if TYPE_CHECKING:
    import pandas as pd

    from raysim.study.compare import Comparison
    from raysim.study.statistics import Spread


class Study:
    """The runs of a sweep file, finished or not.

    Attributes:
        folder: contains the runs, in one folder per cell.

    >>> import raysim
    >>> study = raysim.Study("quickstart", grid={"algorithm.name": ["fedgh", "standalone"]}, seeds="1..3")
    >>> study.cells["state"].value_counts().to_dict()
    {'waiting': 6}
    >>> comparison = study.run().compare(baseline="standalone")  # doctest: +SKIP
    """

    def __init__(
        self,
        file: Path | str,
        *,
        grid: Mapping[str, Sequence[Any]] | None = None,
        seeds: str | Sequence[int] | None = None,
        sets: Sequence[str] = (),
    ) -> None:
        """Load a sweep file, or a scenario with a grid, without running it.

        grid: values to try, by dotted key. seeds: such as "1..5". sets: overrides of every cell.
        Raises `ScenarioError` if a cell's scenario is invalid.
        """
        self._sweep = load_sweep(file, grid=grid, seeds=seeds, sets=sets)
        self.folder = self._sweep.output

    def __repr__(self) -> str:
        return f"Study({self._sweep.name!r}, {len(self._sweep.cells)} cells in {str(self.folder)!r})"

    @property
    def cells(self) -> pd.DataFrame:
        """One row per cell, with name, label, seed, state, rounds, folder and reason; read at each access.

        `label` is the name without the seed; `state` is done, running, interrupted, failed or waiting; `rounds` is the
        number of finished rounds; `folder` is the run folder, or None before the run began; `reason` says why the cell
        is not done, if known.
        """
        import pandas as pd

        columns = ["name", "label", "seed", "state", "rounds", "folder", "reason"]
        rows = [
            (s.cell.name, s.cell.label, s.cell.scenario.seed, s.state, s.rounds, s.folder, s.reason)
            for s in self._states()
        ]
        return pd.DataFrame(rows, columns=columns)

    @property
    def trials(self) -> pd.DataFrame:
        """One row per trial of the tuning, read at each access; empty without tuning.

        Columns: method, trial, state, rounds, score, chosen, and a column for each key that is tuned. `rounds` is the
        round after which the trial was last compared, and `score` its mean of the metric over the seeds of the tuning;
        missing while it is not done, and if it failed or diverged.
        """
        datasets.forget()
        return trials_frame(self._sweep.tuning.progress() if self._sweep.tuning is not None else [])

    @property
    def runs(self) -> dict[str, Run]:
        """Name of a cell, such as "FedGH seed=1" -> its run, for each cell that has begun; see `cells`."""
        return {state.cell.name: Run(state.folder) for state in self._states() if state.folder is not None}

    def _states(self) -> list[CellState]:
        datasets.forget()
        return states_of(with_choices(self._sweep))

    def run(
        self,
        *,
        parallel: int | None = None,
        retry_failed: bool = False,
        only: Sequence[str] = (),
        quiet: bool = False,
    ) -> Study:
        """Run every cell that is not done, resume interrupted cells, and return the study.

        parallel: cells at the same time; default: one per CPU of the machine, or of the cluster at RAY_ADDRESS.
        retry_failed: run failed cells again. only: run only cells with these names: methods, names in `runs`, cells, or
        patterns such as "*lr=0.1*". quiet: show no progress.
        A cell that fails does not stop the others; `cells` says why it failed.

        Raises:
            ScenarioError: another process runs this study, its folder cannot be used, or no cell has a name in `only`.
            RunError: results cannot be copied to the address in `output`.
            KeyboardInterrupt: after Ctrl-C, once every running cell has finished its round.
        """
        from raysim.study.display import shown_progress
        from raysim.study.loop import run_sweep

        if quiet:
            run_sweep(self._sweep, parallel=parallel, retry_failed=retry_failed, only=only)
        else:
            with shown_progress() as progress:
                run_sweep(self._sweep, parallel=parallel, retry_failed=retry_failed, only=only, show=progress.show)
        return self

    def compare(
        self,
        *,
        targets: Iterable[float] | None = None,
        baseline: str | None = None,
        select: str = "last",
        metric: str | None = None,
        spread: Spread = "interval",
    ) -> Comparison:
        """Compare the runs so far. The arguments are those of `raysim.compare`; defaults come from the sweep file.

        Raises `ScenarioError` as `raysim.compare` does, and if no cell has run yet.
        """
        from raysim.study.compare import compare

        return compare(self.folder, targets=targets, baseline=baseline, select=select, metric=metric, spread=spread)

    def report(
        self, output: Path | str, *, baseline: str | None = None, select: str = "last", metric: str | None = None
    ) -> Path:
        """Write the comparison of the runs so far as one HTML file and return its path.

        The arguments are those of `compare`. Raises `ScenarioError` as `compare` does, `OSError` if the file cannot be
        written.
        """
        from raysim.study.report import report

        return report(self.folder, output=output, baseline=baseline, select=select, metric=metric)
