"""Model requests and tool calls of a turn as operations of the run's journal: what finished is not done again.

An operation's name says where it stands in its run: attempt, iteration, the tool calls it is inside of, and the number
of the request there. A turn that is taken again after a crash asks for the same operations in the same order, since
each answer it gets is the recorded one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from pydantic import JsonValue
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.capabilities.abstract import ValidatedToolArgs, WrapToolExecuteHandler
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ToolFailed
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolCallPart
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from ..core.events import ToolCalled
from ..core.ports import Guard, Operation, RunStore
from .failures import without_keys
from .live_text import LiveText

current_operation: ContextVar[Operation | None] = ContextVar("loopwright_current_operation", default=None)
"""The operation that the request being sent belongs to; its result is recorded with its money."""


@dataclass
class Seen:
    """What passed through a turn's meter."""

    sent: int = 0
    """Requests sent, retries included."""
    answered: int = 0
    """Requests that a response came back for, from the provider or from the journal."""
    steps: set[tuple[int, str | None, int]] = field(default_factory=set[tuple[int, str | None, int]])
    """Each usage, agent's run and step of it that had such a response."""

    def answer(self) -> None:
        """Count a response to the request that is being made."""
        self.answered += 1
        if (context := get_current_run_context()) is not None:
            self.steps.add((id(context.usage), context.run_id, context.run_step))

    def counted_in(self, usage: RunUsage) -> int:
        """The most requests that `usage` can count if each of them passed through here.

        pydantic-ai counts a step once, however often it was sent. Agents that keep a usage of their own are counted in
        that one, and so hide nothing here.
        """
        return sum(owner == id(usage) for owner, _, _ in self.steps)


class OperationNames:
    """Names the model requests and tool calls of one turn.

    Args:
        attempt: of the run.
        iteration: of the attempt.
        purpose: what the requests are for, where it isn't the agent's turn; different for each such purpose.
    """

    def __init__(self, attempt: int, iteration: int, purpose: str = "") -> None:
        self._attempt = attempt
        self._iteration = iteration
        self._root = purpose or f"turn/{attempt}/{iteration}"
        self._requests: dict[str, int] = {}
        self._calls: dict[str, int] = {}

    def request(self) -> Operation:
        """The next model request at this place."""
        place = self._root + _inside.get()
        self._requests[place] = number = self._requests.get(place, 0) + 1
        return self._operation(f"{place}/request/{number}")

    def tool(self, call_id: str) -> Operation:
        """A tool call. Its id comes from the model's answer, which is recorded; some servers give all the same one."""
        place = f"{self._root}{_inside.get()}/tool/{call_id}"
        self._calls[place] = number = self._calls.get(place, 0) + 1
        return self._operation(place if number == 1 else f"{place}/{number}")

    def _operation(self, key: str) -> Operation:
        return Operation(key=key, attempt=self._attempt, iteration=self._iteration)


_inside: ContextVar[str] = ContextVar("loopwright_inside_tool_calls", default="")


current_call: ContextVar[Operation | None] = ContextVar("loopwright_current_call", default=None)
"""The tool call that is being made, for builtins that must do their work once however often it is played again."""


@contextmanager
def _within(call_id: str, operation: Operation) -> Generator[None]:
    token, call = _inside.set(f"{_inside.get()}/in/{call_id}"), current_call.set(operation)
    try:
        yield
    finally:
        current_call.reset(call)
        _inside.reset(token)


class JournaledModel(WrapperModel):
    """A model whose finished requests are taken from the journal.

    Args:
        wrapped: the metered model.
        store: the run's.
        names: of the turn.
        counts: of the turn.
        text: who gets the text of its answers as it comes, while somebody watches.
    """

    def __init__(
        self, wrapped: Model, store: RunStore, names: OperationNames, counts: Seen, text: LiveText | None = None
    ) -> None:
        super().__init__(wrapped)
        self._store = store
        self._names = names
        self._counts = counts
        self._text = text

    async def _recorded(self, operation: Operation) -> ModelResponse | None:
        found = await self._store.find(operation.key)
        if found is None:
            return None
        response = response_of(found)
        self._counts.answer()
        return response

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Send a request, or take its answer from the journal."""
        operation = self._names.request()
        if (response := await self._recorded(operation)) is not None:
            return response
        with _doing(operation):
            if self._text is None or not self._text.wanted:
                return await self.wrapped.request(messages, model_settings, model_request_parameters)
            asked = self.wrapped.request_stream(messages, model_settings, model_request_parameters)
            async with asked as stream:
                return await self._text.told(stream)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream a request, or its recorded answer at once."""
        operation = self._names.request()
        if (response := await self._recorded(operation)) is not None:
            parameters = model_request_parameters
            yield CompletedStreamedResponse(response, model_request_parameters=parameters, replay_events=True)
            return
        async with AsyncExitStack() as opened:
            with _doing(operation):  # only while it is sent: a stream may be left in another context
                stream = await opened.enter_async_context(
                    self.wrapped.request_stream(messages, model_settings, model_request_parameters, run_context)
                )
            yield stream


@contextmanager
def _doing(operation: Operation) -> Generator[None]:
    token = current_operation.set(operation)
    try:
        yield
    finally:
        current_operation.reset(token)


def response_json(response: ModelResponse) -> JsonValue:
    """A response as the journal keeps it."""
    return cast(JsonValue, ModelMessagesTypeAdapter.dump_python([response], mode="json")[0])


def failure_json(error: BaseException) -> JsonValue:
    """A failed request as the journal keeps it, or `None` for an error that is no answer, such as a cancellation."""
    if not isinstance(error, ModelAPIError):
        return None
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    return {"failed": without_keys(str(error)), "model": error.model_name, "status": status}


def response_of(found: JsonValue) -> ModelResponse:
    """The response that a journal entry holds.

    Raises:
        ModelAPIError: the request had failed, and so it fails again.
    """
    if isinstance(found, dict) and "failed" in found:
        model, status, message = str(found["model"]), found["status"], str(found["failed"])
        if isinstance(status, int):
            raise ModelHTTPError(status, model, message)
        raise ModelAPIError(model, message)
    (response,) = ModelMessagesTypeAdapter.validate_python([found])
    return cast(ModelResponse, response)


UNJUDGED = frozenset({"loop_done"})
"""Tools that do nothing, so that there is nothing to judge."""


async def journaled_tool_call(
    store: RunStore,
    names: OperationNames,
    call: ToolCallPart,
    args: ValidatedToolArgs,
    handler: WrapToolExecuteHandler,
    *,
    guard: Guard | None = None,
    keep: Decimal = Decimal(0),
) -> object:
    """Call a tool, or take its result from the journal; unless the guard refuses it, which the model is told.

    A result that JSON can't hold (an image, say) is not recorded: after a crash such a tool is called again, as is one
    that was being called when the crash came.
    """
    operation = names.tool(call.tool_call_id)
    found = await store.find(operation.key)
    if isinstance(found, dict) and "retry" in found:
        raise ModelRetry(str(found["retry"]))
    if isinstance(found, dict) and "result" in found:
        return found["result"]
    if isinstance(found, dict) and "refused" in found:
        raise ToolFailed(str(found["refused"]))
    if guard is not None and call.tool_name not in UNJUDGED:
        sent = cast(JsonValue, to_jsonable_python(args, fallback=repr))
        if (refused := await guard.call(operation, call.tool_name, sent, keep=keep)) is not None:
            raise ToolFailed(refused)
    with _within(call.tool_call_id, operation):
        try:
            result: object = await handler(args)
        except ModelRetry as retry:
            await store.settle((), operation=operation, result={"retry": retry.message})
            raise
    plain = _plain(result)
    if plain is not None:
        await store.settle((), operation=operation, result=plain)
    await store.append(
        ToolCalled(
            attempt=operation.attempt,
            number=operation.iteration,
            name=call.tool_name,
            arguments=call.args_as_json_str(),
            result=shown_result(result),
        )
    )
    return result


def shown_result(result: object) -> str:
    """A tool's result as the transcript shows it."""
    return result if isinstance(result, str) else to_json(result, fallback=repr).decode()


def _plain(result: object) -> JsonValue:
    if not isinstance(result, str | int | float | bool | list | dict | None):
        return None
    try:
        return {"result": cast(JsonValue, to_jsonable_python(result))}
    except PydanticSerializationError:
        return None
