"""What a run came to, gathered from its events."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.events import IterationFinished, RunEvent, RunFinished, RunStarted
from ..core.models import Direction, Iteration
from ..core.result import RunResult, holdout_report


@dataclass
class Ending:
    """Takes a run's events one by one, from its first one on."""

    run_id: str
    result: RunResult | None = None
    """The result, as soon as the run is over."""
    _direction: Direction = "maximize"
    _finished: list[Iteration] = field(default_factory=list[Iteration])

    def add(self, event: RunEvent) -> None:
        """Take an event."""
        match event:
            case RunStarted():
                self._direction = event.direction
            case IterationFinished():
                self._finished.append(event.iteration)
            case RunFinished():
                self.result = self._of(event)
            case _:
                pass

    def _of(self, event: RunFinished) -> RunResult:
        compared = any(each.holdout or each.holdout_failure for each in self._finished)
        return RunResult(
            run_id=self.run_id,
            best=event.best,
            stop_reason=event.stop_reason,
            sentence=event.sentence,
            iterations=tuple(self._finished),
            cost=event.cost,
            seconds=event.seconds,
            holdout=holdout_report(self._finished, event.best, self._direction) if compared else None,
            error=event.error,
            recorded=event.seq > 0,
        )
