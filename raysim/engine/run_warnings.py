"""Warnings during a run about failures, divergence and limits, which are visible in no metric."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from raysim.common.errors import HookError
from raysim.common.text import few
from raysim.core.algorithm import ClientId
from raysim.engine.backend import Backend
from raysim.engine.progress import Progress
from raysim.engine.records import ClientFailure, CurrentTests, RoundReport

logger = logging.getLogger(__name__)

_REMEDY = "try a smaller training.lr, or set training.clip"


class RunWarnings:
    """Checks rounds, and warns of failures, divergence and limits. A lasting condition is reported only once.

    Attributes:
        diverged: the clients whose divergence was reported.
    """

    def __init__(self, backend: Backend, max_failed_fraction: float) -> None:
        self.backend, self.max_failed_fraction = backend, max_failed_fraction
        self.diverged: set[ClientId] = set()
        self._seen: set[str] = set()

    def check_failures(self, t: int, report: RoundReport) -> None:
        """Warn of failed clients and rejected uploads. Raises `HookError` when too many clients failed."""
        if rejected := report.server.rejected:
            if len(rejected) == len(report.uploaded):
                text = "all uploads contained NaN or infinity and were left out; the server learned nothing"
            else:
                text = f"the uploads of {_named(rejected)} contained NaN or infinity and were left out"
            logger.warning(f"round {t}: {text}")
        if report.timing is not None and not report.client_reports and not report.failed:
            gone = report.timing.dropped
            why = f"all {gone} selected clients dropped out or were late" if gone else "no client was available"
            logger.warning(f"round {t}: no updates to aggregate: {why}")
        if not report.failed:
            return
        late = report.timing.late if report.timing is not None else ()
        of = len(report.failed) + len(report.client_reports) + len(late)
        if len(report.failed) > self.max_failed_fraction * of + 1e-9:
            k, first = next(iter(report.failed.items()))
            raise HookError(
                f"round {t}: {len(report.failed)} of {of} clients failed, more than failure.max_failed_fraction "
                f"({self.max_failed_fraction:g}) allows; first failure: {first.reason}",
                hook=getattr(first.error, "hook", ""),
                client=k,
                round=t,
                trace=getattr(first.error, "trace", ""),
            ) from first.error and first.error.__cause__
        for k, failed in report.failed.items():
            logger.warning(f"round {t} continues without client {k}: {failed.reason}")

    def check_repeated(self, t: int, report: RoundReport, before: Collection[ClientId]) -> None:
        """Warn of clients that failed only when round `t` was repeated. before: clients that failed at first."""
        failed = {k: one for k, one in report.failed.items() if k not in before}
        if failed:
            first = next(iter(failed.values()))
            logger.warning(
                f"round {t} was repeated without {_named(list(failed))}, so the state differs from the recorded "
                f"results of this round; first failure: {first.reason}"
            )

    def check_tests(self, t: int, current: CurrentTests) -> None:
        """Warn of clients whose test with the server's current message failed, in a run that tolerates failures."""
        failed = {k: one for k, one in current.items() if isinstance(one, ClientFailure)}
        if failed:
            first = next(iter(failed.values()))
            logger.warning(
                f"round {t}: accuracy/all_current excludes {_named(list(failed))}, whose test failed; first failure: "
                f"{first.reason}"
            )

    def check_round(self, t: int, report: RoundReport, progress: Progress) -> None:
        """Warn of failed tests, of clients trained one by one, and of clients that newly diverged."""
        self.check_tests(t, report.current)
        for k, one in report.client_reports.items():
            model = self.backend.plan.arch(k)
            if one.alone_because:
                self._once(
                    f"clients with model {model} are trained one by one, in spite of training.together: "
                    f"{one.alone_because}"
                )
            if one.single_sample:
                self._once(
                    f"clients with model {model} are not trained on a single sample, because BatchNorm needs two; "
                    "give each client at least two training samples (and each call of client.fit, if it gets `data`), "
                    "or choose networks without BatchNorm"
                )
        clients = sorted(progress.diverged - self.diverged)
        received = [k for k in clients if k in report.client_reports and report.client_reports[k].received_nonfinite]
        if received:
            logger.warning(
                f"round {t}: the server's message to {_named(received)} contained NaN or infinity, so their training "
                "loss is NaN or infinite, too: check what server_update and server_send compute, or try smaller "
                "learning rates of the method"
            )
        if clients := [k for k in clients if k not in received]:
            logger.warning(
                f"round {t}: the training loss, the test loss or the upload of {_named(clients)} is NaN or "
                f"infinite for the first time (accuracies still include such clients): {_REMEDY}"
            )
        self.diverged |= progress.diverged

    def _once(self, text: str) -> None:
        if text not in self._seen:
            self._seen.add(text)
            logger.warning(text)


def _named(clients: Sequence[ClientId]) -> str:
    """Return a text with the ids of the first ten clients and the number of other clients."""
    return f"{'client' if len(clients) == 1 else 'clients'} {few([*map(str, clients)])}"
