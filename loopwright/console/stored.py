"""`loopwright run` on the store of the service: the run is on the server, too, and outlives this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..cancellation import end_all
from ..core.caller import Caller
from ..core.errors import InvalidInput, LoopwrightError, Problem, StoreUnavailable
from ..core.events import EVENT, RunEvent
from ..core.result import RunResult
from ..runner.library import new_run_id
from ..service.loop_files import LoopFile
from ..settings import Settings
from ..store.jsonl import JournalFile
from .drive import prepare_models
from .ending import Ending
from .outcome import say
from .service import settings_with

if TYPE_CHECKING:
    from ..service.executor import Executor
    from ..service.runtime import Runtime

TOLD_AFTER_SECONDS = 1.0
"""For how long opening the store goes without a word."""

EPHEMERAL = "or run it with --ephemeral, which keeps nothing"


async def _next(stream: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(stream, None)


def _events_in(chunk: bytes) -> list[RunEvent]:
    """The events in a piece of a stream, as the hub sends them."""
    return [EVENT.validate_json(line[6:]) for line in chunk.split(b"\n") if line.startswith(b"data: ")]


@asynccontextmanager
async def stored_run(file: LoopFile, journal: Path | None, folder: Path) -> AsyncGenerator[StoredRun]:
    """Check a loop file, start its run in the store of the service, and execute it here while the block lasts.

    Args:
        file: the loop file.
        journal: where its journal goes; by default into `folder`, under the run's id.
        folder: where journals are kept.

    Raises:
        InvalidInput: what is wrong with the file, with the settings or with the journal; nothing was sent.
        StoreUnavailable: the database does not come up.
    """
    from ..service.executor import Executor
    from ..service.start_file import check_file, insert_run_of_file

    preparing = asyncio.create_task(asyncio.to_thread(prepare_models))  # while the database comes up
    async with _opened(settings_with()) as runtime:
        me = runtime.owner()
        await preparing
        await check_file(runtime, me, file)
        run_id = new_run_id()
        journal = journal or folder / f"{run_id}.jsonl"
        with open_journal(journal) as written:
            # The screen shows no text as it comes, so answers are asked for whole: not every server can stream them.
            executor = Executor(database=runtime.database, load=runtime.load, grace_seconds=0)
            async with executor:
                runtime.executor = executor
                await insert_run_of_file(runtime, me, file, run_id)
                run = StoredRun(runtime, me, executor, run_id=run_id, journal=written)
                try:
                    yield run
                finally:
                    await run.leave()


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[Runtime]:
    """The store, with a word to whoever waits for it."""
    if settings.mode == "shared":
        message = "users sign in here, so the command line does not know whose run it is; start it over the API, "
        raise InvalidInput(Problem(field="", message=message + EPHEMERAL))
    from ..service.runtime import open_runtime

    telling = asyncio.create_task(_tell(settings))
    async with AsyncExitStack() as stack:
        try:
            runtime = await stack.enter_async_context(open_runtime(settings, engine=False))
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}; --ephemeral runs without a database") from error
        finally:
            telling.cancel()
        yield runtime


async def _tell(settings: Settings) -> None:
    where = "the database" if settings.database_url else f"the database in {settings.data_folder}"
    is_new = not settings.database_url and not (settings.data_folder / "pg" / "PG_VERSION").exists()
    await asyncio.sleep(TOLD_AFTER_SECONDS)
    say(f"{'making' if is_new else 'starting'} {where}; --ephemeral does without …")


def open_journal(path: Path) -> JournalFile:
    """The journal file of a run.

    Raises:
        InvalidInput: it can't be written.
    """
    try:
        return JournalFile(path)
    except OSError as error:
        message = f"can't write the journal {path}: {error.strerror or error}"
        raise InvalidInput(Problem(field="--journal", message=message)) from None


class StoredRun:
    """A run in the store that this process executes and shows; see `drive.Watched`."""

    def __init__(self, runtime: Runtime, me: Caller, executor: Executor, *, run_id: str, journal: JournalFile) -> None:
        self.id = run_id
        self.journal_failed = False
        """Whether the journal file could not be written to the end; the store has it all."""
        self._runtime = runtime
        self._me = me
        self._executor = executor
        self._journal = journal
        self._ending = Ending(run_id)
        self._cancelling: asyncio.Task[None] | None = None
        self._executing = asyncio.create_task(executor.execute(run_id, 0))

    @property
    def journal(self) -> Path:
        """Where the journal is written."""
        return self._journal.path

    def cancel(self) -> None:
        """Stop the run: what is in flight is cancelled, what is paid for is kept."""
        self._executor.halt(self.id)
        if self._cancelling is None:
            self._cancelling = asyncio.create_task(self._record_the_cancel())

    async def _record_the_cancel(self) -> None:
        """Whoever may have to go on with the run knows, too, that it is to be stopped."""
        from ..service.cancel import cancel_run

        with suppress(LoopwrightError):
            await cancel_run(self._runtime, self._me, self.id)

    async def events(self) -> AsyncIterator[RunEvent]:
        """The run's events, from its first to its last one, whoever executes it."""
        stream = await self._runtime.hub.open(self._me, self.id, 0)
        if stream is None:
            raise StoreUnavailable(f"the run {self.id} is gone")
        async with aclosing(self._until_broken(stream)) as chunks:
            async for chunk in chunks:
                for event in _events_in(chunk):
                    self._write(event)
                    self._ending.add(event)
                    yield event
        if self._ending.result is None:
            raise StoreUnavailable(f"the run {self.id} is gone")

    async def _until_broken(self, stream: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """The stream, as long as the execution here didn't break: then nothing more would come."""
        async with aclosing(stream):
            while True:
                coming = asyncio.create_task(_next(stream))
                try:
                    await asyncio.wait({coming, self._executing}, return_when=asyncio.FIRST_COMPLETED)
                    if self._executing.done():
                        self._executing.result()
                    chunk = await coming
                finally:
                    await end_all([coming])
                if chunk is None:
                    return
                yield chunk

    def _write(self, event: RunEvent) -> None:
        if self.journal_failed:
            return
        try:
            self._journal(event)
        except OSError as error:
            self.journal_failed = True
            say(f"can't write {self.journal}: {error.strerror or error}; `loopwright runs export {self.id}` writes it")

    def __await__(self) -> Generator[object, None, RunResult]:
        return self._ended().__await__()

    async def _ended(self) -> RunResult:
        await self._executing
        if self._ending.result is None:
            raise StoreUnavailable(f"the run {self.id} is gone")
        return self._ending.result

    async def leave(self) -> None:
        """Let go of the run; if it isn't over, a server or a worker goes on with it."""
        if self._cancelling:
            await asyncio.wait({self._cancelling})
