"""A conversation for front ends of the Vercel AI SDK, by pydantic-ai's encoder of its protocol.

The agent doesn't run here: the encoder is given what its run tells, in pydantic-ai's own events.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

from pydantic import ValidationError
from pydantic_ai.messages import (
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.ui import NativeEvent
from pydantic_ai.ui.vercel_ai import VercelAIAdapter, VercelAIEventStream
from pydantic_ai.ui.vercel_ai.request_types import RegenerateMessage, TextUIPart
from starlette.responses import Response

from ..core.errors import InvalidInput, LoopwrightError, Problem
from ..core.events import CandidateProduced, MoneySettled, RunEvent, RunFinished, TextDelta, ToolCalled
from ..service.follow import events_in


@dataclass(frozen=True)
class Asked:
    """What a front end sends."""

    id: str
    text: str

    @classmethod
    def of(cls, body: bytes) -> Asked:
        """The last message of a request.

        Raises:
            InvalidInput: it is no such request, or not one that is answered here.
        """
        try:
            asked = VercelAIAdapter[None, str].build_run_input(body)
        except ValidationError as error:
            raise InvalidInput(*(_problem(each["loc"], each["msg"]) for each in error.errors())) from None
        if isinstance(asked, RegenerateMessage):
            message = "answers aren't given anew, since they are paid for; send another message"
            raise InvalidInput(Problem(field="trigger", message=message))
        last = asked.messages[-1] if asked.messages else None
        if last is None or last.role != "user":
            raise InvalidInput(Problem(field="messages", message="must end with a message of the user"))
        if any(not isinstance(part, TextUIPart) for part in last.parts):
            message = "only text is taken; leave files and other parts out of the last message"
            raise InvalidInput(Problem(field="messages", message=message))
        return cls(last.id, "\n".join(part.text for part in last.parts if isinstance(part, TextUIPart)))


def _problem(place: tuple[int | str, ...], message: str) -> Problem:
    field = ".".join(str(step) for step in place if step not in ("submit-message", "regenerate-message"))
    return Problem(field=field or "trigger", message=message[:1].lower() + message[1:])


def streamed(events: AsyncGenerator[bytes] | None) -> Response:
    """The answer as the front end reads it."""
    if events is None:
        return Response(status_code=204)
    encoder: VercelAIEventStream[None, str] = VercelAIEventStream()
    return encoder.streaming_response(encoder.transform_stream(_native(events)))


class NotAnswered(LoopwrightError):
    """The message was not answered."""


async def _native(stream: AsyncGenerator[bytes]) -> AsyncIterator[NativeEvent]:
    """What a run tells as events of pydantic-ai.

    Raises:
        NotAnswered: says why; the encoder makes an error of the protocol of it.
    """
    answer = _Answer()
    async with aclosing(events_in(stream)) as events:
        async for event in events:
            for told in answer.after(event):
                yield told
    if not answer.given:
        raise NotAnswered(answer.notice)


@dataclass
class _Answer:
    """How far an answer has come."""

    given: bool = False
    notice: str = "The answer can't be seen any more; read the conversation."
    _parts: int = 0
    _text: str | None = None
    """What was written of the part that is open."""
    _last: str = field(default="")
    """The last text that was written whole."""

    def after(self, event: RunEvent) -> list[NativeEvent]:
        match event:
            case TextDelta(text=text):
                return self._write(text)
            case MoneySettled():
                return self._close()
            case ToolCalled():
                return [*self._close(), *self._call(event)]
            case CandidateProduced(text=text):
                return [*self._close(), *self._give(text)]
            case RunFinished():
                self.notice = event.sentence
                return self._close()
            case _:
                return []

    def _write(self, text: str) -> list[NativeEvent]:
        begin: list[NativeEvent] = []
        if self._text is None:
            self._parts += 1
            self._text = ""
            begin = [PartStartEvent(index=self._parts, part=TextPart(""))]
        self._text += text
        return [*begin, PartDeltaEvent(index=self._parts, delta=TextPartDelta(text))]

    def _close(self) -> list[NativeEvent]:
        if self._text is None:
            return []
        self._last, self._text = self._text, None
        return [PartEndEvent(index=self._parts, part=TextPart(self._last))]

    def _give(self, text: str) -> list[NativeEvent]:
        """The answer itself, unless it was written word by word."""
        self.given = True
        return [] if self._last.strip() == text.strip() else [*self._write(text), *self._close()]

    def _call(self, event: ToolCalled) -> list[NativeEvent]:
        self._parts += 1
        call = ToolCallPart(event.name, event.arguments, tool_call_id=f"call_{event.seq}")
        back = ToolReturnPart(event.name, event.result, tool_call_id=call.tool_call_id)
        return [
            PartStartEvent(index=self._parts, part=call),
            PartEndEvent(index=self._parts, part=call),
            FunctionToolCallEvent(call, args_valid=True),
            FunctionToolResultEvent(back),
        ]
