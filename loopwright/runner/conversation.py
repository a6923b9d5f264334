"""What the agent of a conversation is shown: the message to answer, and as much of what was said before as fits."""

from __future__ import annotations

from ..core.models import Conversation, Exchange, Message, Prompt
from ..core.text import shorten

NOT_ANSWERED = "(This was not answered.)"

SHARE = 4
"""One message of the past takes at most so much of the room: a quarter."""


def conversation_prompt(said: Conversation, most: int) -> Prompt:
    """The prompt that answers a conversation's last message.

    Args:
        said: the conversation.
        most: UTF-8 bytes that what was said before may take; the oldest of it is left out. The message itself is
            shown whole.
    """
    room, shown = most, list[Exchange]()
    for exchange in reversed(said.earlier):
        short = _short(exchange, most // SHARE)
        room -= len(short.message.encode()) + len((short.answer or NOT_ANSWERED).encode())
        if room < 0:
            break
        shown.insert(0, short)
    left_out = said.left_out + len(said.earlier) - len(shown)
    messages: list[Message] = []
    for exchange in shown:
        messages.append(Message(role="user", text=exchange.message))
        messages.append(Message(role="assistant", text=exchange.answer or NOT_ANSWERED))
    notes = [*_left_out(left_out), *_started(said), said.message]
    return Prompt(messages=(*messages, Message(role="user", text="\n\n".join(notes))))


def _short(exchange: Exchange, most: int) -> Exchange:
    answer = None if exchange.answer is None else shorten(exchange.answer, most)
    return Exchange(message=shorten(exchange.message, most), answer=answer)


def _left_out(many: int) -> list[str]:
    if not many:
        return []
    what = "1 earlier message" if many == 1 else f"{many} earlier messages"
    return [f"(Left out here: {what} of this conversation.)"]


def _started(said: Conversation) -> list[str]:
    if not said.runs:
        return []
    names = ", ".join(f"{run.run_id} (of the loop {run.loop!r})" for run in said.runs)
    return [f"(Runs that you have started in this conversation, for check_loop: {names}.)"]
