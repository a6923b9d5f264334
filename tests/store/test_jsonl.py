"""The journal file: what is in it after a crash, and that nothing paid for is lost."""

from __future__ import annotations

import asyncio
import os
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright import Loop, MaxIterations
from loopwright.core.errors import InvalidInput
from loopwright.core.events import (
    IterationStarted,
    MoneySettled,
    RunEvent,
    RunStarted,
    TextDelta,
    WalletView,
)
from loopwright.core.wallet import Charge, Reservation
from loopwright.runner.plan import Halt
from loopwright.runner.run import run_loop
from loopwright.store.jsonl import JournalFile, read_journal
from loopwright.store.memory import MemoryRunStore
from loopwright.testing import FakeClock

from ..runner.world import ScriptedAgent


def started(goal: str = "g", seq: int = 1) -> RunStarted:
    return RunStarted(loop="l", goal=goal, stop={"max_iterations": 1}, seq=seq, run_id="r")


def settled(amount: str = "0.000000000001") -> MoneySettled:
    reservation = Reservation(id="r/1", amount=Decimal(1), role="agent", model="m")
    charge = Charge(reservation=reservation, amount=Decimal(amount), basis="usage")
    wallet = WalletView(cap=Decimal("0.10"), spent=Decimal(amount), reserved=Decimal(0))
    return MoneySettled(charge=charge, wallet=wallet, response={"text": "é\n\u2028", "n": 1.5, "none": None}, seq=2)


def written(path: Path, *events: RunEvent) -> list[RunEvent]:
    with JournalFile(path) as journal:
        for event in events:
            journal(event)
    return list(read_journal(path))


def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    events = [started("line\nbreak\r\u2028 🌊"), settled(), IterationStarted(attempt=1, number=1, seq=3)]
    path = tmp_path / "deep" / "er" / "j.jsonl"
    assert written(path, *events) == events
    assert path.read_bytes().count(b"\n") == 3
    assert isinstance(events[1], MoneySettled)
    assert events[1].charge.amount == Decimal("0.000000000001")


def test_text_deltas_are_not_kept(tmp_path: Path) -> None:
    assert written(tmp_path / "j", started(), TextDelta(attempt=1, number=1, text="x")) == [started()]


def test_an_event_is_in_the_file_before_the_next_one_comes(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with JournalFile(path) as journal:
        journal(started())
        assert list(read_journal(path)) == [started()]


def test_a_journal_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, started("one"))
    assert [e.goal for e in written(path, started("two")) if isinstance(e, RunStarted)] == ["one", "two"]


@given(cut=st.integers(1, 600))
def test_a_line_that_a_crash_cut_off_is_left_out_and_the_next_run_goes_on(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("j") / "j.jsonl"
    whole = written(path, started("one"), settled())
    os.truncate(path, max(1, path.stat().st_size - cut))
    left = list(read_journal(path))
    assert whole[: len(left)] == left
    assert len(left) == (2 if cut == 1 else 1 if cut <= path.stat().st_size else len(left))
    after = written(path, started("two"), settled())
    assert after == [*left, started("two"), settled()]


def test_a_last_line_without_its_end_is_read_if_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, started(), settled())
    os.truncate(path, path.stat().st_size - 1)
    assert list(read_journal(path)) == [started(), settled()]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# my notes\n", 1),
        ("{}\n", 1),
        ('{"type": "run_started"}\n', 1),
        ('{"type": "unheard_of"}\n', 1),
        (
            '{"type": "iteration_started", "attempt": 1, "number": 1}\n{"type": "iter\n'
            '{"type": "iteration_started", "attempt": 1, "number": 2}\n',
            2,
        ),
    ],
)
def test_what_is_no_journal_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        list(read_journal(path))
    (problem,) = refused.value.problems
    assert (problem.line, problem.field) == (line, str(path))


def test_empty_lines_and_files_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("")
    assert list(read_journal(path)) == []
    path.write_text("\n\n")
    assert list(read_journal(path)) == []
    assert written(path, started()) == [started()]


def test_a_text_file_that_is_taken_for_a_journal_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no line end")
    with JournalFile(path) as journal:
        journal(started())
    assert path.read_text().startswith("no line end\n{")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is played by /dev/full")
async def test_a_full_disk_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    journal = tmp_path / "full"
    journal.symlink_to("/dev/full")
    agent = ScriptedAgent(["a"])
    result = await Loop(agent=agent, stop=MaxIterations(2)).run("g", journal=journal)
    assert result.stop_reason == "error"
    assert result.error
    assert "No space left on device" in result.error
    assert agent.prompts == []


@pytest.mark.parametrize("room", [12, 13, 14, 15, 16, 17, 30])
async def test_a_disk_that_fills_up_later_ends_all_attempts_and_keeps_the_best(room: int) -> None:
    left = room

    def full(event: RunEvent) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")

    loop = Loop(agent=ScriptedAgent(["a", "b"]), evaluate=lambda text: 0.5, stop=MaxIterations(50), attempts=2)
    clock = FakeClock()
    store = MemoryRunStore("r", cap=None, clock=clock, sinks=[full])
    result = await run_loop(loop.plan("g", "r"), loop.ports(store, clock), Halt())
    assert result.stop_reason == "error"
    assert "No space left on device" in str(result.error)
    assert result.best
    assert result.best.score == 0.5
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []
