"""What the agent of a conversation is shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.models import Conversation, Exchange, Message, StartedRun
from loopwright.runner.conversation import conversation_prompt


def said(*answers: str | None, message: str = "now?", left_out: int = 0, runs: int = 0) -> Conversation:
    return Conversation(
        message=message,
        earlier=tuple(Exchange(message=f"m{n}", answer=answer) for n, answer in enumerate(answers)),
        left_out=left_out,
        runs=tuple(StartedRun(run_id=f"run_{n}", loop="tide\n") for n in range(runs)),
    )


def test_the_first_message_stands_alone() -> None:
    assert conversation_prompt(said(), 1000).messages == (Message(role="user", text="now?"),)


def test_what_was_not_answered_says_so() -> None:
    messages = conversation_prompt(said("a", None), 1000).messages
    assert [(each.role, each.text) for each in messages] == [
        ("user", "m0"), ("assistant", "a"), ("user", "m1"), ("assistant", "(This was not answered.)"), ("user", "now?"),
    ]  # fmt: skip


def test_the_oldest_is_left_out_and_counted() -> None:
    messages = conversation_prompt(said(*["x" * 100] * 10, left_out=5), 420).messages
    assert len(messages) == 2 * 4 + 1
    assert messages[0].text == "m6"
    assert messages[-1].text == "(Left out here: 11 earlier messages of this conversation.)\n\nnow?"
    one = conversation_prompt(said("x" * 100, "y" * 100, "z" * 100, "w" * 100, "v" * 100), 420).messages
    assert "(Left out here: 1 earlier message of this conversation.)" in one[-1].text


def test_a_long_answer_is_shortened_and_the_message_is_not() -> None:
    messages = conversation_prompt(said("x" * 10_000, message="y" * 10_000), 1000).messages
    assert len(messages[1].text) < 300 and "bytes left out" in messages[1].text
    assert messages[-1].text == "y" * 10_000


def test_runs_are_named_in_one_line() -> None:
    (message,) = conversation_prompt(said(runs=2), 1000).messages
    notes, _, asked = message.text.partition("\n\n")
    assert asked == "now?"
    assert "run_0 (of the loop 'tide\\n'), run_1" in notes


@given(st.lists(st.one_of(st.none(), st.text(max_size=3000)), max_size=12), st.integers(500, 5000))
def test_the_past_takes_no_more_than_its_room(answers: list[str | None], most: int) -> None:
    *earlier, last = conversation_prompt(said(*answers), most).messages
    assert sum(len(each.text.encode(errors="replace")) for each in earlier) <= most
    assert [each.role for each in (*earlier, last)] == ["user", "assistant"] * (len(earlier) // 2) + ["user"]
