"""A stand-in for OpenAI's Responses API over real HTTP, so that the command line can run in a process of its own."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request

Answer = Callable[[str], str]
"""Gives the model's answer to the last thing the user said."""


@dataclass
class Provider:
    """Answers agents with `agent`, and whoever must call a tool (a judge) with `judge`'s arguments for it."""

    agent: Answer
    judge: Callable[[str], dict[str, object]] = field(default=lambda _: {"score": 0, "detail": ""})
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def environment(self) -> dict[str, str]:
        """What makes the real client come here."""
        return {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": "not-a-key"}

    def respond(self, body: dict[str, Any]) -> dict[str, Any]:
        """One response."""
        self.bodies.append(body)
        said = _last_words(body)
        # An agent may choose to call `loop_done`; a judge has only the tool that takes its answer.
        answers = [tool["name"] for tool in body.get("tools", ()) if tool["name"] != "loop_done"]
        if answers:
            output = {
                "type": "function_call",
                "id": f"fc_{len(self.bodies)}",
                "call_id": f"call_{len(self.bodies)}",
                "name": answers[0],
                "arguments": json.dumps(self.judge(said)),
                "status": "completed",
            }
        else:
            text = {"type": "output_text", "text": self.agent(said), "annotations": []}
            output = {
                "type": "message",
                "id": f"msg_{len(self.bodies)}",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        return {
            "id": f"resp_{len(self.bodies)}",
            "object": "response",
            "created_at": 1,
            "model": body["model"],
            "status": "completed",
            "output": [output],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 400,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 420,
            },
        }


def _last_words(body: dict[str, Any]) -> str:
    said = [item for item in body["input"] if item.get("role") == "user"]
    content = said[-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def replies(*texts: str) -> Answer:
    """One answer after the other; the last one stays."""
    left = list(texts)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


@contextmanager
def provider(agent: Answer, judge: Callable[[str], dict[str, object]] | None = None) -> Generator[Provider]:
    """Serve a provider on a free port."""
    stand_in = Provider(agent, judge) if judge else Provider(agent)
    app = FastAPI()

    @app.post("/v1/responses")
    async def respond(request: Request) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        return stand_in.respond(await request.json())

    with served(app) as address:
        stand_in.url = f"{address}/v1"
        yield stand_in


@contextmanager
def served(app: FastAPI) -> Generator[str]:
    """Serve an app on a free port as long as the block runs; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=5)
