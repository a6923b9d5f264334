"""What is drawn: from events to text, without a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loopwright.console.drive import exit_code
from loopwright.console.live import RunScreen, cost_bar, cost_colour, sparkline
from loopwright.console.plain import lines
from loopwright.console.screens import JsonScreen, PlainScreen, screen_for
from loopwright.console.summary import LONGEST, summary
from loopwright.console.text import duration, one_line, printable
from loopwright.console.view import RunView
from loopwright.core.events import (
    CandidateProduced,
    EvaluationRetried,
    IterationFinished,
    IterationStarted,
    MoneyReserved,
    MoneySettled,
    RunEvent,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolCalled,
    WalletView,
)
from loopwright.core.models import Candidate, Cost, Feedback, Iteration
from loopwright.core.result import HoldoutReport, RunResult
from loopwright.core.stop import StopReason, parse_stop_expression
from loopwright.core.wallet import Charge, Reservation

START = datetime(2026, 1, 1, tzinfo=UTC)
RUDE = "\x1b[2J\x1b[31m\x1b]0;title\x07[bold red]not markup[/] \x07\u202ereversed\x1bc\x9b1m"


def started(attempts: int = 1, *, model: str = "openai:gpt-4o-mini", loop: str = "code puzzle") -> RunStarted:
    stop = parse_stop_expression("target_score=1 | max_iterations=20 | budget_usd=0.05").to_json()
    return RunStarted(at=START, loop=loop, goal="g", stop=stop, attempts=attempts, model=model, evaluator="e")


def wallet(spent: str, reserved: str = "0") -> WalletView:
    return WalletView(cap=Decimal("0.05"), spent=Decimal(spent), reserved=Decimal(reserved))


def iteration(number: int, score: float | None, detail: str = "", *, attempt: int = 1, text: str = "ABC") -> Iteration:
    return Iteration(
        number=number,
        attempt=attempt,
        candidate=Candidate(text=text),
        feedback=None if score is None else Feedback(score=score, detail=detail),
        failure=detail if score is None else None,
        started_at=START + timedelta(seconds=number),
    )


def finished(done: Iteration, *, best: bool = False, spent: str = "0.01") -> IterationFinished:
    return IterationFinished(iteration=done, is_best=best, best_score=done.score, wallet=wallet(spent))


def reserved(spent: str, amount: str) -> MoneyReserved:
    reservation = Reservation(id="r", amount=Decimal(amount), role="agent", model="m")
    return MoneyReserved(reservation=reservation, wallet=wallet(spent, amount))


def view_of(*events: RunEvent) -> RunView:
    view = RunView()
    for event in events:
        view = view.after(event)
    return view


def drawn(view: RunView, columns: int = 80, rows: int = 24, seconds: float = 42) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=columns, height=rows, force_terminal=True, color_system=None)
    console.print(RunScreen(view, START + timedelta(seconds=seconds)))
    return [line.rstrip() for line in out.getvalue().splitlines()]


A_RUN: Sequence[RunEvent] = (
    started(),
    IterationStarted(attempt=1, number=1),
    finished(iteration(1, 0.2, "0 in place, 2 elsewhere"), best=True),
    finished(iteration(2, None, "the evaluator answered 500")),
    finished(iteration(3, 0.7, "3 in place, 1 elsewhere"), best=True),
    finished(iteration(4, 0.5, "2 in place, 1 elsewhere"), spent="0.0123"),
    IterationStarted(attempt=1, number=5),
    reserved("0.0123", "0.0061"),
)


def test_the_live_view_at_80_columns() -> None:
    assert drawn(view_of(*A_RUN)) == [
        "code puzzle                               openai:gpt-4o-mini · iteration 5 of 20",
        "",
        "score   ▁✗█▅  ★ 0.7 in iteration 3 · target 1",
        "cost    ━━━━━━━╌╌╌╌───────────────────  $0.0123 of $0.05  $0.0061 reserved",
        "time    42 s",
        "",
        "   1  0.2     0 in place, 2 elsewhere",
        "   2  failed  the evaluator answered 500",
        "★  3  0.7     3 in place, 1 elsewhere",
        "   4  0.5     2 in place, 1 elsewhere",
        "   5  …       the agent is working",
    ]


def test_the_live_view_at_40_columns() -> None:
    assert drawn(view_of(*A_RUN), columns=40) == [
        "code puzzle",
        "openai:gpt-4o-mini · iteration 5 of 20",
        "",
        "score   ▁✗█▅",
        "        ★ 0.7 in iteration 3 · target 1",
        "cost    ━━━━━━━╌╌╌╌─────────────────────",
        "        $0.0123 of $0.05",
        "        $0.0061 reserved",
        "time    42 s",
        "",
        "   1  0.2     0 in place, 2 elsewhere",
        "   2  failed  the evaluator answered 500",
        "★  3  0.7     3 in place, 1 elsewhere",
        "   4  0.5     2 in place, 1 elsewhere",
        "   5  …       the agent is working",
    ]


def test_each_attempt_has_a_row_and_the_leader_a_star() -> None:
    view = view_of(
        started(3, loop="A sentence about the sea"),
        finished(iteration(1, 0.2, attempt=1), best=True),
        finished(iteration(1, 0.4, attempt=2), best=True),
        finished(iteration(2, 0.6, attempt=2), best=True),
        IterationStarted(attempt=1, number=2),
        CandidateProduced(attempt=1, number=2, text=""),
        EvaluationRetried(attempt=2, number=3, why="it answered 500"),
    )
    rows = drawn(view)[6:]
    assert rows == [
        "   #1 2/20  0.2     ▅   scoring the candidate",
        "★  #2 3/20  0.6     ▁█  scoring again: it answered 500",
        "   #3 0/20              waiting",
    ]


def test_many_attempts_fit_the_terminal() -> None:
    view = view_of(started(64))
    shown = drawn(view, rows=20)
    assert len(shown) < 20
    assert shown[-1].endswith("more")


def test_the_practice_model_is_no_language_model_and_the_screen_says_so() -> None:
    assert "practice is a built-in search, not a language model" in drawn(view_of(started(model="practice")))
    event = started(model="practice")
    assert "practice is a built-in search, not a language model" in list(lines(event, view_of(event)))


def test_the_view_keeps_its_shape_while_money_is_reserved_and_settled() -> None:
    before = drawn(view_of(*A_RUN))
    after = drawn(view_of(*A_RUN, finished(iteration(5, 0.6), spent="0.0150"), IterationStarted(attempt=1, number=6)))
    assert len(before) == len(after)
    assert "$0.00 reserved" in after[3]


@pytest.mark.parametrize(
    ("share", "colour"),
    [(0.0, "green"), (0.79, "green"), (0.80, "yellow"), (0.949, "yellow"), (0.95, "red"), (2, "red")],
)
def test_the_cost_bar_turns_yellow_at_80_and_red_at_95_percent(share: float, colour: str) -> None:
    assert cost_colour(share) == colour
    spent = Decimal(str(share)) * Decimal("0.05")
    bar = cost_bar(WalletView(cap=Decimal("0.05"), spent=spent, reserved=Decimal(0)), 30)
    assert len(bar) == 30
    assert colour in {str(span.style) for span in bar.spans} or spent == 0


@given(spent=st.integers(0, 10**6), held=st.integers(0, 10**6), cap=st.integers(1, 10**6), width=st.integers(10, 60))
def test_the_bar_has_its_width_whatever_the_money(spent: int, held: int, cap: int, width: int) -> None:
    bar = cost_bar(WalletView(cap=Decimal(cap), spent=Decimal(spent), reserved=Decimal(held)), width)
    assert len(bar) == width
    assert (spent > 0) == (bar.plain[0] == "━")


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)), max_size=50))
def test_any_scores_can_be_drawn(scores: list[float | None]) -> None:
    done = [iteration(n, score, "x") for n, score in enumerate(scores, start=1)]
    assert len(sparkline(done, None, 30)) == min(30, len(scores))


@given(st.lists(st.sampled_from(A_RUN[1:]), max_size=12), st.integers(20, 130))
def test_events_in_any_order_can_be_drawn_at_any_width(events: list[RunEvent], columns: int) -> None:
    for line in drawn(view_of(started(), *events), columns=columns):
        assert len(line) <= columns


def test_the_best_follows_the_direction() -> None:
    start = started().model_copy(update={"direction": "minimize"})
    view = view_of(start, finished(iteration(1, 3), best=True), finished(iteration(2, 5, attempt=2), best=True))
    assert view.best
    assert view.best.score == 3


def test_what_the_agent_does_is_said() -> None:
    assert drawn(view_of(started(), TextDelta(attempt=1, number=1, text="a")))[-1].endswith("the agent is writing")
    called = ToolCalled(attempt=1, number=1, name="search", arguments="{}")
    assert drawn(view_of(started(), called))[-1].endswith("the agent called search")


def test_a_loop_without_evaluator_shows_candidates_and_no_scores() -> None:
    start = started().model_copy(update={"evaluator": None})
    done = iteration(1, 0).model_copy(update={"feedback": None})
    shown = drawn(view_of(start, finished(done, best=True)))
    assert not any(line.startswith("score") for line in shown)
    assert shown[-1].endswith("ABC")


def test_a_stop_that_was_asked_for_is_seen() -> None:
    assert drawn(view_of(*A_RUN).stopped())[0].endswith("stopping…")


# --- text is text ---


def test_text_of_others_can_do_nothing_to_the_terminal() -> None:
    assert printable(RUDE) == "[bold red]not markup[/] \ufffd\ufffdreversed"
    assert one_line("a\n b\tc " * 500, 20) == "a b c a b c a b c a…"
    assert printable("a\r\nb\n") == "a\nb\n"


@given(st.text(alphabet=st.sampled_from("\x1b[]0;1m\x07\x9b\\PX^_c\n\r\t\x00é字🙂\u202e\ud800ab")))
def test_no_control_character_is_left(text: str) -> None:
    for character in printable(text):
        assert character == "\n" or character.isprintable()


HIDDEN = "\u061c\u00ad\u200b\u2060\u2064\u206a\u206f\ufff9\ufffb\U000e0000\U000e0041\U000e007f"


@pytest.mark.parametrize("character", HIDDEN)
def test_what_hides_text_is_shown(character: str) -> None:
    assert printable(f"a{character}b") == "a\ufffdb"


def test_joiners_are_left_alone() -> None:
    assert printable("👩\u200d👩 \u0646\u200c\u0647") == "👩\u200d👩 \u0646\u200c\u0647"


def test_the_end_of_a_json_run_is_printable_too(capsys: pytest.CaptureFixture[str]) -> None:
    result = RunResult(
        run_id="r", best=None, stop_reason="error", sentence=RUDE, iterations=(), cost=Cost(), seconds=1.0
    )
    JsonScreen(BytesIO()).end(result, journal=Path("j\x1b]0;title\x07.jsonl"), output=None)
    assert capsys.readouterr().err == "[bold red]not markup[/] \ufffd\ufffdreversed\njournal j.jsonl\n"


def test_file_names_at_the_end_are_printable() -> None:
    result = RunResult(run_id="r", best=None, stop_reason="error", sentence="s", iterations=(), cost=Cost(), seconds=1)
    shown = [t.plain for t in summary(result, journal=Path("j\x1b[2J.jsonl"), output=Path("o\u202e.txt"))]
    assert shown[-2:] == ["written o\ufffd.txt", "journal j.jsonl"]


def test_no_way_to_the_screen_lets_control_characters_or_markup_through() -> None:
    rude = iteration(1, 0.5, RUDE, text=RUDE)
    event = finished(rude, best=True)
    view = view_of(started(loop=RUDE, model=RUDE), event, EvaluationRetried(attempt=1, number=2, why=RUDE))
    result = RunResult(
        run_id="r", best=rude, stop_reason="error", sentence=RUDE, iterations=(rude,), cost=Cost(), seconds=1.0
    )
    shown = [*drawn(view), *lines(event, view), *(t.plain for t in summary(result, journal=Path("j"), output=None))]
    for line in "\n".join(shown).split("\n"):
        assert line.isprintable(), line
    assert any("[bold red]not markup[/]" in line for line in shown)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (185, "3 min 05 s"), (3720, "1 h 02 min"), (90_000, "25 h 00 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- plain lines and the end ---


def test_plain_lines() -> None:
    view, said = RunView(), list[str]()
    for event in A_RUN:
        view = view.after(event)
        said += lines(event, view)
    assert said == [
        "code puzzle (openai:gpt-4o-mini, target 1)",
        "iteration 1 of 20  begins",
        "iteration 1 of 20  score 0.2 (best)  $0.01 of $0.05  0 s  0 in place, 2 elsewhere",
        "iteration 2 of 20  failed  $0.01 of $0.05  0 s  the evaluator answered 500",
        "iteration 3 of 20  score 0.7 (best)  $0.01 of $0.05  0 s  3 in place, 1 elsewhere",
        "iteration 4 of 20  score 0.5  $0.0123 of $0.05  0 s  2 in place, 1 elsewhere",
        "iteration 5 of 20  begins",
    ]


def result(reason: StopReason, best: Iteration | None, **changes: object) -> RunResult:
    options: dict[str, object] = {"run_id": "r", "sentence": "It is over.", "seconds": 1.0, "cost": Cost()} | changes
    return RunResult(best=best, stop_reason=reason, iterations=(best,) if best else (), **options)  # pyright: ignore[reportArgumentType]


def ended(ending: RunResult, output: Path | None = None) -> str:
    return "\n".join(line.plain for line in summary(ending, journal=Path("j.jsonl"), output=output))


def test_the_end_tells_all() -> None:
    cost = Cost(total=Decimal("0.03"), by_role={"judge": Decimal("0.01"), "agent": Decimal("0.02")}, requests=1)
    report = HoldoutReport(score=0.2, best_iteration=1, parted_at=2)
    shown = ended(result("target_reached", iteration(3, 0.9), cost=cost, holdout=report), output=Path("best.txt"))
    assert shown.splitlines() == [
        "It is over.",
        "",
        "Best candidate  iteration 3, score 0.9",
        "ABC",
        "",
        "cost    $0.03: agent $0.02, judge $0.01 (1 request, 0 tokens in, 0 out)",
        f"holdout {report.sentence}",
        "written best.txt",
        "journal j.jsonl",
    ]


def test_a_candidate_without_a_score_is_the_last_and_not_the_best() -> None:
    unscored = iteration(3, 0.5).model_copy(update={"feedback": None})
    assert "Last candidate (not scored)  iteration 3\nABC" in ended(result("max_iterations", unscored))


def test_what_was_charged_whole_is_said_as_long_as_the_run_goes_on_and_in_the_end() -> None:
    held = Reservation(id="r", amount=Decimal("0.004"), role="agent", model="m")
    whole = Charge(reservation=held, amount=Decimal("0.004"), basis="reserved", why="the stream broke off")
    by_usage = Charge(reservation=held, amount=Decimal("0.001"), basis="usage")
    events = [MoneySettled(charge=charge, wallet=wallet("0.009")) for charge in (whole, by_usage, whole)]
    view = view_of(started(), *events)
    sentence = "$0.008 of it are reservations charged whole"
    assert sentence in " ".join(" ".join(drawn(view)).split())
    ending = result("budget", iteration(1, 1))
    assert any(sentence in line.plain for line in summary(ending, journal=None, output=None, whole=view.whole))
    assert "charged whole" not in ended(ending)


def test_the_end_without_a_candidate_and_with_an_endless_one() -> None:
    assert "There is no candidate" in ended(result("error", None))
    shown = ended(result("budget", iteration(1, 1, text="x" * (LONGEST + 5))))
    assert "5 characters more" in shown


@pytest.mark.parametrize(
    ("reason", "expression", "score", "code"),
    [
        ("target_reached", "target_score=0.9", 0.95, 0),
        ("max_iterations", "target_score=0.9 | max_iterations=3", 0.5, 1),
        ("converged", "target_score=0.9 | max_iterations=3", 0.5, 1),
        ("converged", "max_iterations=3", 0.5, 0),
        ("budget", "budget_usd=1", None, 0),
        ("budget", "target_score=0.9 & max_iterations=3 | budget_usd=1", 0.95, 0),
        ("time", "target_score=0.9 | max_seconds=3", None, 1),
        ("error", "max_iterations=3", 0.5, 3),
        ("error", "target_score=0.9", 0.95, 3),
        ("cancelled", "target_score=0.9", 0.95, 130),
    ],
)
def test_exit_codes(reason: StopReason, expression: str, score: float | None, code: int) -> None:
    ending = result(reason, None if score is None else iteration(1, score))
    assert exit_code(ending, parse_stop_expression(expression), "maximize") == code


def test_exit_codes_follow_the_direction() -> None:
    stop = parse_stop_expression("target_score=2 | budget_usd=1")
    assert exit_code(result("budget", iteration(1, 1)), stop, "minimize") == 0
    assert exit_code(result("budget", iteration(1, 3)), stop, "minimize") == 1


def test_a_finished_view_is_short_and_calm() -> None:
    end = RunFinished(stop_reason="budget", sentence="s", best=iteration(3, 0.7), cost=Cost(), iterations=4, seconds=75)
    shown = drawn(view_of(*A_RUN, end))
    assert shown[-1] == "time    1 min 15 s"
    assert "reserved" not in "".join(shown)


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}, {"TERM": "xterm"}, {}])
def test_lines_are_plain_without_a_terminal_that_can_do_more(environ: dict[str, str]) -> None:
    assert isinstance(screen_for(json=False, environ=environ), PlainScreen)
