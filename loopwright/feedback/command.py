"""`command`: a program scores the candidate. It runs with the rights of whoever runs the loop (POSIX only)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from ..core import spec
from ..core.errors import EvaluatorFailed
from ..core.models import Candidate, EvaluationRequest, Feedback
from ..core.ports import Evaluator, EvaluatorContext
from .building import Surroundings
from .parse import feedback_from_json, quote, reported_cost

CANDIDATE_FILE = "LOOPWRIGHT_CANDIDATE_FILE"
"""The environment variable that names the file with the candidate."""
GRACE_SECONDS = 0.5
"""Between SIGTERM and SIGKILL for a process group that must end."""
REAP_SECONDS = 10.0
"""How long a process that was sent SIGKILL may take to be gone, however busy the machine is."""
DRAIN_SECONDS = 1.0
"""How long output may still come after the command and its group have ended."""
TAIL_CHARACTERS = 20_000
"""How much of the output becomes the detail with `exit_code`."""
_ALWAYS = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
_MAY_PASS = (errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY)
_CAN_NOT_RUN = (126, 127)
"""What a shell exits with when a command is not executable or not found."""


@dataclass(frozen=True, kw_only=True)
class ProcessEvaluator:
    """Runs a command, without a shell, with the candidate on stdin and in the file LOOPWRIGHT_CANDIDATE_FILE.

    The command gets PATH, HOME, TMPDIR, VIRTUAL_ENV, the locale and the variables named in `env`. It leads its own
    process group, which is killed when it ends, whatever the reason; a child that leaves the group is on its own.
    """

    run: Sequence[str]
    folder: Path
    """Where the command runs."""
    score_from: Literal["last_line", "exit_code"] = "last_line"
    timeout_seconds: float = 60.0
    max_output_bytes: int = 1_000_000
    """Most bytes of stdout and stderr together; a command that writes more is killed."""
    env: Sequence[str] = ()

    @property
    def name(self) -> str:
        """`command` and the command line, shortened."""
        return f"command {quote(' '.join(self.run), 80)}"

    @property
    def max_cost_usd(self) -> Decimal:
        """0: the loop file has no place to declare what a command may cost."""
        return Decimal(0)

    async def evaluate(self, request: EvaluationRequest, context: EvaluatorContext) -> Feedback:
        """Run the command once.

        Raises:
            EvaluatorFailed: it can't run, took too long, wrote too much, was killed or gave no valid score.
        """
        with _candidate_file(request.candidate) as path:
            ended = await self._ended(path)
        if ended.code < 0:
            raise self._failure(f"was killed by {_signal_name(-ended.code)}", ended)
        return self._from_exit_code(ended) if self.score_from == "exit_code" else self._from_last_line(ended)

    def _from_exit_code(self, ended: _Ended) -> Feedback:
        if ended.code in _CAN_NOT_RUN:
            raise self._failure(f"could not run (exit code {ended.code})", ended, transient=False)
        return Feedback(score=1.0 if ended.code == 0 else 0.0, detail=ended.tail(TAIL_CHARACTERS))

    def _from_last_line(self, ended: _Ended) -> Feedback:
        lines = [line for line in ended.stdout.split("\n") if line.strip()]
        if ended.code != 0:
            cost = reported_cost(lines[-1]) if lines else None
            transient = ended.code not in _CAN_NOT_RUN
            raise self._failure(f"ended with exit code {ended.code}", ended, transient=transient, cost_usd=cost)
        if not lines:
            raise self._failure("wrote no score to stdout", ended)
        return feedback_from_json(lines[-1], who=self.name, bare_number=True)

    async def _ended(self, path: Path) -> _Ended:
        output = _Output(self.max_output_bytes)
        too_long = False
        try:
            process = await self._start(path, output)
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    await _first(process.wait(), output.overflow.wait())
            except TimeoutError:
                too_long = True
            finally:
                # After a proper end too: what it left running would pile up, one set for each evaluation.
                await _surely(_end_group(process))
        finally:
            await output.close()
        gone = process.returncode is not None
        ended = output.ended(process.returncode if process.returncode is not None else -signal.SIGKILL)
        fate = "was ended" if gone else "could not be ended"
        if too_long:
            raise self._failure(f"took longer than {self.timeout_seconds:g} s and {fate}", ended, transient=gone)
        if output.overflow.is_set():
            raise self._failure(f"wrote more than {self.max_output_bytes:,} bytes and {fate}", ended, transient=gone)
        return ended

    async def _start(self, path: Path, output: _Output) -> asyncio.subprocess.Process:
        with contextlib.ExitStack() as ours:
            stdin = ours.enter_context(path.open("rb"))
            stdout = await output.pipe(ours)
            stderr = stdout if self.score_from == "exit_code" else await output.pipe(ours)
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *self.run,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=self.folder,
                    env=self._environment(os.environ) | {CANDIDATE_FILE: str(path)},
                    start_new_session=True,
                )
            )
            try:
                return await asyncio.shield(starting)
            except asyncio.CancelledError:
                await _surely(_end_started(starting))  # asyncio itself would kill the command but not its children
                raise
            except (OSError, ValueError) as error:
                transient = isinstance(error, OSError) and error.errno in _MAY_PASS
                raise EvaluatorFailed(f"{self.name} can't be started: {error}", transient=transient) from None

    def _environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        missing = [name for name in self.env if name not in environ]
        if missing:
            raise EvaluatorFailed(f"{self.name}: the environment variable {missing[0]} is not set; set it first")
        names = {*_ALWAYS, *self.env, *(name for name in environ if name.startswith("LC_"))}
        return {name: environ[name] for name in sorted(names) if name in environ}

    def _failure(
        self, what: str, ended: _Ended, *, transient: bool = True, cost_usd: Decimal | None = None
    ) -> EvaluatorFailed:
        tail = (ended.stderr.strip() or ended.stdout.strip())[-200:]
        message = f"{self.name} {what}" + (f": {quote(tail)}" if tail else "")
        return EvaluatorFailed(message, transient=transient, cost_usd=cost_usd)


def build(described: spec.CommandEvaluator, surroundings: Surroundings) -> Evaluator:
    """Build the evaluator of a loop file."""
    return ProcessEvaluator(
        run=described.run,
        folder=surroundings.folder,
        score_from=described.score_from,
        timeout_seconds=described.timeout_seconds,
        max_output_bytes=described.max_output_bytes,
        env=described.env,
    )


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """What a command left: its exit code (negative: killed by that signal) and its output."""

    code: int
    stdout: str
    stderr: str

    def tail(self, characters: int) -> str:
        text = self.stdout.strip()
        return text if len(text) <= characters else "…" + text[-characters:]


class _Output:
    """Reads a command's pipes as the bytes come, and no more of them than the limit."""

    def __init__(self, limit: int) -> None:
        self.overflow = asyncio.Event()
        self._left = limit
        self._pipes: list[_Pipe] = []

    async def pipe(self, ours: contextlib.ExitStack) -> int:
        """Open a pipe and give the end to write to, which is closed with `ours`.

        A pipe of our own and not asyncio's: its `wait()` goes on until every child that inherited one has gone.
        """
        read, write = os.pipe()
        ours.callback(os.close, write)
        loop = asyncio.get_running_loop()
        _, pipe = await loop.connect_read_pipe(lambda: _Pipe(self._take), os.fdopen(read, "rb", buffering=0))
        self._pipes.append(pipe)
        return write

    def _take(self, data: bytes) -> bytes:
        taken = data[: self._left]
        self._left -= len(taken)
        if len(data) > len(taken):
            self.overflow.set()
        return taken

    async def close(self) -> None:
        """Wait for what is still on its way, but not for somebody who has escaped the group and holds on."""
        try:
            if self._pipes and not self.overflow.is_set():
                await asyncio.wait([pipe.ended for pipe in self._pipes], timeout=DRAIN_SECONDS)
        finally:
            for pipe in self._pipes:
                pipe.close()

    def ended(self, code: int) -> _Ended:
        texts = [bytes(pipe.data).decode("utf-8", "replace") for pipe in self._pipes]
        return _Ended(code=code, stdout=texts[0], stderr=texts[1] if len(texts) > 1 else "")


class _Pipe(asyncio.Protocol):
    def __init__(self, take: Callable[[bytes], bytes]) -> None:
        self.data = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        if self._transport:
            self._transport.close()


@contextlib.contextmanager
def _candidate_file(candidate: Candidate) -> Generator[Path]:
    suffix = ".txt" if candidate.data is None else ".json"
    descriptor, name = tempfile.mkstemp(prefix="loopwright-", suffix=suffix)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(candidate.text.encode("utf-8", "replace"))
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):  # the command may have moved it, or put something else in its place
            Path(name).unlink()


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them is over, and drop the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End a command and all of its group: SIGTERM, a moment to tidy up, then SIGKILL to whoever is left.

    A command that became another user's may not be signalled: it is left to itself, without a `returncode`.
    """
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        await _wait(process, GRACE_SECONDS)
    if _signal_group(process.pid, signal.SIGKILL):
        await _wait(process, REAP_SECONDS)


async def _wait(process: asyncio.subprocess.Process, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()


async def _end_started(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    with contextlib.suppress(OSError, ValueError):  # then nothing was started
        await _end_group(await starting)


async def _surely(wait: Coroutine[Any, Any, None]) -> None:
    """Finish something though cancelled meanwhile, however often; be cancelled only then."""
    task = asyncio.ensure_future(wait)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled
    task.result()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _signal_group(group: int, number: signal.Signals) -> bool:
    """Send a signal; `False` where that is not allowed."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True
