"""A real HTTP evaluator in a process of its own, so that its work isn't counted as ours.

`python -m benchmarks.endpoint REMARK_BYTES` prints its port and serves until its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from collections.abc import Awaitable, Callable

REMARK = "The second part still needs work. "


def score(candidate: str, remark_bytes: int = 300) -> dict[str, object]:
    """A score that jumps about, with a remark of so many bytes; the same candidate always gets the same."""
    number = zlib.crc32(candidate.encode()) % 10_000
    remark = f"{number:04} {REMARK * (remark_bytes // len(REMARK) + 1)}"
    return {"score": number / 10_000, "detail": remark[:remark_bytes]}


def serving(remark_bytes: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """What answers the requests of one connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
                length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
                candidate = json.loads(await reader.readexactly(length))["candidate"]
                body = json.dumps(score(candidate, remark_bytes)).encode()
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side is done
        finally:
            writer.close()

    return serve


async def main(remark_bytes: int) -> None:
    """Serve on a free port of the loopback interface."""
    server = await asyncio.start_server(serving(remark_bytes), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
