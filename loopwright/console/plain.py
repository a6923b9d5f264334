"""Plain lines for pipes, logs and terminals without cursor: when an iteration begins, and when it is finished."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.events import EvaluationRetried, GuardrailRefusal, IterationFinished, IterationStarted, RunEvent, RunStarted
from ..core.money import show_usd
from .text import duration, one_line, score_text
from .view import PRACTICE_NOTE, RunView


def lines(event: RunEvent, view: RunView) -> Iterator[str]:
    """What to say about an event; `view` is the run's view after it."""
    match event:
        case RunStarted(forked_from=source):
            yield _start(view)
            if source:
                yield f"begins from iteration {source.iteration} of {one_line(source.run_id, 80)}"
            if view.model == "practice":
                yield PRACTICE_NOTE
        case IterationStarted(attempt=attempt, number=number):
            yield f"{_where(view, attempt, number)}  begins"
        case EvaluationRetried(attempt=attempt, number=number, why=why):
            yield f"{_where(view, attempt, number)}  scoring again: {one_line(why, 200)}"
        case GuardrailRefusal(attempt=attempt, number=number, sentence=sentence):
            where = f"{_where(view, attempt, number)}  " if number else ""
            yield f"{where}{one_line(sentence, 300)}"
        case IterationFinished():
            yield _iteration(event, view)
        case _:
            pass


def _start(view: RunView) -> str:
    attempts = f", {len(view.attempts)} attempts" if len(view.attempts) > 1 else ""
    target = f", target {score_text(view.target)}" if view.target is not None else ""
    return f"{view.loop} ({view.model}{attempts}{target})"


def _where(view: RunView, attempt: int, number: int) -> str:
    of = f" of {view.limit}" if view.limit else ""
    return (f"attempt {attempt}  " if len(view.attempts) > 1 else "") + f"iteration {number}{of}"


def _iteration(event: IterationFinished, view: RunView) -> str:
    done, wallet = event.iteration, event.wallet
    cost = show_usd(wallet.spent) + (f" of {show_usd(wallet.cap)}" if wallet.cap is not None else "")
    parts = [_where(view, done.attempt, done.number)]
    if done.failure:
        parts.append("failed")
    elif done.score is not None:
        best = view.best is not None and (view.best.attempt, view.best.number) == (done.attempt, done.number)
        parts.append(f"score {score_text(done.score)}{' (best)' if best else ''}")
    parts += [cost, duration(done.seconds)]
    remark = done.failure or (done.feedback.detail if done.feedback else "") or done.text
    return "  ".join([*parts, one_line(remark, 120)]).rstrip()
