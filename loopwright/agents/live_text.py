"""The agent's text as it comes, for those who watch.

While somebody watches a run, its agent's requests are streamed and the text is told piece by piece; the answer that
comes of it, its money and its place in the journal are those of a request that was answered whole. Asked for whole
answers are always: models that can't stream, fallback chains (a model that fails in the middle of its answer must
hand over to the next), judges and agents that are tools.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel

from ..core.events import TextDelta
from ..core.ports import TurnContext, Viewers


@dataclass(frozen=True)
class LiveText:
    """Tells the text of one turn."""

    viewers: Viewers
    run_id: str
    attempt: int
    number: int

    @classmethod
    def of(cls, context: TurnContext) -> LiveText | None:
        """For a turn, where it has viewers at all."""
        if context.viewers is None:
            return None
        return cls(context.viewers, context.run_id, context.attempt, context.number)

    @staticmethod
    def can_come_from(model: Model) -> bool:
        """Whether a model streams its answers."""
        if isinstance(model, FallbackModel):
            return False
        if isinstance(model, WrapperModel):
            return LiveText.can_come_from(model.wrapped)
        if isinstance(model, FunctionModel):
            return model.stream_function is not None
        return type(model).request_stream is not Model.request_stream

    @property
    def wanted(self) -> bool:
        """Whether somebody watches now."""
        return self.viewers.watched(self.run_id)

    async def told(self, stream: StreamedResponse) -> ModelResponse:
        """The whole response of a stream, its text told while it comes."""
        async for event in stream:
            match event:
                case PartStartEvent(part=TextPart(content=text)) if text:
                    self._say(text)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                    self._say(text)
                case _:
                    pass
        return stream.get()

    def _say(self, text: str) -> None:
        self.viewers.say(TextDelta(run_id=self.run_id, attempt=self.attempt, number=self.number, text=text))
