"""Live events over real HTTP: no gap, no repeat, from any process, however slow the viewer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
import uvicorn

from loopwright.core.events import TextDelta
from loopwright.service import hub
from loopwright.service.hub import Hub
from loopwright.store.database import Urls, connect_direct
from tests.agents.provider import Reply, running_provider
from tests.api.world import SERVICE_KEY, SLOW, Api, open_api
from tests.postgres import ADMIN, OTHER, OWNER

PACED = {"model": "practice", "settings": {"practice_pace": 0.15}}


@asynccontextmanager
async def listening(api: Api) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the application over a socket; it streams, which a client in the process can't."""
    config = uvicorn.Config(api.app, port=0, lifespan="off", log_level="error", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    headers = {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": OWNER}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=headers, limits=limits, timeout=60
    ) as client:
        yield client
    server.should_exit = True
    await serving


class Viewer:
    """Somebody who has opened a run's stream, and what has come of it so far."""

    def __init__(self, client: httpx.AsyncClient, run_id: str, user: str = OWNER) -> None:
        self.text = ""
        self._watching = asyncio.create_task(self._watch(client, run_id, user))

    async def _watch(self, client: httpx.AsyncClient, run_id: str, user: str) -> None:
        headers = {"x-triggered-by": user}
        async with client.stream("GET", f"/api/runs/{run_id}/events", headers=headers) as answer:
            async for piece in answer.aiter_text():
                self.text += piece

    async def sees(self, text: str) -> None:
        """Return once this has come."""
        async with asyncio.timeout(30):
            while text not in self.text:
                await asyncio.sleep(0.01)

    async def all(self) -> str:
        """Everything, once the stream has ended."""
        await asyncio.wait_for(self._watching, 30)
        return self.text


async def watch(client: httpx.AsyncClient, run_id: str, *, after: int = 0, most: int = 10_000) -> list[tuple[int, str]]:
    """The ids and kinds of events, to the end of the stream or for so many."""
    found: list[tuple[int, str]] = []
    async with client.stream("GET", f"/api/runs/{run_id}/events", headers={"last-event-id": str(after)}) as answer:
        if answer.status_code == 204:
            return found
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        kind, lines = "", list[str]()
        async for line in answer.aiter_lines():
            lines.append(line)
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            if line.startswith("id: "):
                found.append((int(line.removeprefix("id: ")), kind))
                assert lines[-2].startswith("data: "), "the id stands on the event's last line"
                assert json.loads(lines[-2].removeprefix("data: "))["seq"] == found[-1][0]
            if len(found) == most:
                break
    return found


async def watched_here_and_elsewhere(api: Api) -> None:
    """Return when viewers of this process and of another one have come."""
    async with asyncio.timeout(20):
        while not (api.runtime.hub.viewers and api.runtime.hub._watched_elsewhere):  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "change",
    [
        "delete from profiles where id = '{viewer}'",
        "update auth.users set banned_until = now() + interval '1 day' where id = '{viewer}'",
        "update loops set visibility = 'private'",
        "update profiles set role = 'member' where id = '{viewer}'",
    ],
    ids=["removed", "banned", "hidden", "demoted"],
)
async def test_the_stream_ends_for_who_may_not_see_the_run_any_more(
    urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(hub, "SIGHT_SECONDS", 0.05)
    viewer = ADMIN if "role" in change else OTHER
    async with open_api(urls, tmp_path) as api, listening(api) as client:
        loop = await api.make_loop(agent=SLOW, visibility="private" if viewer == ADMIN else "workspace")
        run = await api.start(loop)
        watching, owner = Viewer(client, run, viewer), Viewer(client, run)
        for each in (watching, owner):
            await each.sees("event: run_started")
        async with await connect_direct(urls) as c:
            await c.execute(change.format(viewer=viewer))  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert "run_finished" not in await watching.all()
        assert (await api.get(f"/api/runs/{run}"))["status"] == "running"
        await api.call("POST", f"/api/runs/{run}/cancel")
        assert "run_finished" in await owner.all(), "who may see it sees it to its end"


async def said(client: httpx.AsyncClient, run_id: str, number: int, text: str) -> None:
    """Return when a viewer was told the whole text of an iteration."""
    told = ""
    async with client.stream("GET", f"/api/runs/{run_id}/events") as answer:
        async for line in answer.aiter_lines():
            data = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            told += data["text"] if data.get("type") == "text_delta" and data["number"] == number else ""
            if told.strip() == text:
                return
    raise AssertionError(told)


async def test_a_run_is_watched_to_its_end_and_not_beyond(api: Api) -> None:
    run_id = await api.start(await api.make_loop(agent=PACED))
    async with listening(api) as client:
        seen = await watch(client, run_id)
        assert [seq for seq, _ in seen] == list(range(1, len(seen) + 1))
        assert seen[-1][1] == "run_finished"
        assert await watch(client, run_id) == seen
        assert await watch(client, run_id, after=len(seen) - 3) == seen[-3:]
        over = await client.get(f"/api/runs/{run_id}/events", headers={"last-event-id": str(len(seen))})
        assert over.status_code == 204
    assert api.runtime.hub.viewers == 0


async def test_a_viewer_resumes_in_another_process_and_its_leaving_stops_nothing(
    api: Api, urls: Urls, tmp_path: Path
) -> None:
    run_id = await api.start(await api.make_loop(agent=PACED))
    async with (
        open_api(urls, tmp_path / "other", engine=False) as other,
        listening(api) as here,
        listening(other) as there,
    ):
        first = await watch(here, run_id, most=4)
        second = await watch(there, run_id, after=first[-1][0], most=4)
        rest = await watch(here, run_id, after=second[-1][0])
        seqs = [seq for seq, _ in first + second + rest]
        assert seqs == list(range(1, len(seqs) + 1))
        assert rest[-1][1] == "run_finished"
    assert (await api.get(f"/api/runs/{run_id}"))["stop_reason"] == "max_iterations"


async def test_many_watch_one_run_and_many_watch_others(api: Api) -> None:
    loop = await api.make_loop(agent={"model": "practice", "settings": {"practice_pace": 0.5}})
    runs = [await api.start(loop, {"max_iterations": 2}) for _ in range(10)]
    async with listening(api) as client:
        of_one = [watch(client, runs[0]) for _ in range(60)]
        of_each = [watch(client, run_id) for run_id in runs for _ in range(4)]
        seen = await asyncio.gather(*of_one, *of_each)
    for events in seen:
        assert [seq for seq, _ in events] == list(range(1, len(events) + 1))
        assert events[-1][1] == "run_finished"


async def test_a_topic_keeps_little_and_who_falls_behind_misses_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "KEPT_EVENTS", 3)
    monkeypatch.setattr(hub, "BATCH", 2)
    run_id = await api.start(await api.make_loop(agent=PACED))
    async with listening(api) as client:
        seen = await asyncio.gather(*(watch(client, run_id) for _ in range(3)))
    assert seen[0] == seen[1] == seen[2]
    assert [seq for seq, _ in seen[0]] == list(range(1, len(seen[0]) + 1))


async def test_an_extended_run_is_watched_past_its_first_end(api: Api) -> None:
    run_id = await api.start(await api.make_loop(agent=PACED), {"max_iterations": 1})
    await api.finished(run_id)
    async with listening(api) as client:
        before = await watch(client, run_id)
        await api.make(f"/api/runs/{run_id}/extend", {"iterations": 1})
        after = await watch(client, run_id)
    kinds = [kind for _, kind in after]
    assert after[: len(before)] == before
    assert (kinds.count("run_finished"), kinds.count("run_resumed"), kinds[-1]) == (2, 1, "run_finished")


async def test_the_end_is_told_even_where_it_is_no_event(api: Api) -> None:
    run_id = await api.start(await api.make_loop(agent={"model": "practice", "settings": {"practice_pace": 30}}))
    await api.running(run_id)
    async with listening(api) as client:
        viewer = Viewer(client, run_id)
        await viewer.sees("event: run_started")
        async with api.runtime.database.as_service() as c:
            await c.execute(
                "update loop_runs set status = 'finished', stop_reason = 'error', sentence = 'Disk full.', "
                "epoch = epoch + 1 where id = %s",
                (run_id,),
            )
        text = await viewer.all()
    last = text.strip().split("\n\n")[-1]
    assert last.startswith("event: run_finished\ndata: {")
    assert "Disk full." in last
    assert "id:" not in last


async def test_text_reaches_viewers_here_and_elsewhere_and_is_not_kept(api: Api, urls: Urls, tmp_path: Path) -> None:
    run_id = await api.start(await api.make_loop(agent={"model": "practice", "settings": {"practice_pace": 30}}))
    await api.running(run_id)
    text = "Grüße \u2028 <b> \n" + "x" * 7_000 + "🦉"
    async with (
        open_api(urls, tmp_path / "other", engine=False) as other,
        listening(api) as here,
        listening(other) as there,
    ):
        viewers = [Viewer(client, run_id) for client in (here, there)]
        await watched_here_and_elsewhere(api)
        api.runtime.hub.say(TextDelta(run_id=run_id, attempt=1, number=1, text=text))
        for viewer in viewers:
            await viewer.sees("🦉")
        await api.call("POST", f"/api/runs/{run_id}/cancel")
        for viewer in viewers:
            chunks = [chunk for chunk in (await viewer.all()).split("\n\n") if chunk.startswith("event: text_delta")]
            assert not any("id:" in chunk.split("data: ")[0] for chunk in chunks)
            said = [json.loads(chunk.split("data: ", 1)[1])["text"] for chunk in chunks]
            assert "".join(said) == text


async def test_who_may_not_see_a_run_may_not_watch_it(api: Api) -> None:
    run_id = await api.start(await api.make_loop())
    answer = await api.call("GET", f"/api/runs/{run_id}/events", user=OTHER)
    assert answer.status_code == 404
    for bad in ("x", "-1", "1" * 40):
        assert (await api.call("GET", f"/api/runs/{run_id}/events", last_event_id=bad)).status_code == 422


async def test_viewers_are_let_go_when_the_process_leaves(api: Api) -> None:
    run_id = await api.start(await api.make_loop(agent={"model": "practice", "settings": {"practice_pace": 30}}))
    async with listening(api) as client:
        viewer = Viewer(client, run_id)
        await viewer.sees("event: run_started")
        api.runtime.hub.close()
        text = await viewer.all()
    assert "event: run_finished" not in text  # they resume in another process


def test_an_event_is_encoded_as_the_standard_says() -> None:
    assert hub.encode("run_started", '{"a":1}', 7) == b'event: run_started\ndata: {"a":1}\nid: 7\n\n'
    assert isinstance(Hub, type)


async def test_the_agents_text_is_streamed_while_somebody_watches(api: Api, urls: Urls, tmp_path: Path) -> None:
    words = Reply(text="one two three four")
    async with running_provider() as provider:
        await api.call(
            "PATCH", "/api/settings", {"allow_hosts": [f"127.0.0.1:{provider.port}"]}, user=ADMIN, if_match="*"
        )
        agent = {"model": "openai:gpt-4o-mini", "base_url": provider.url("/v1"), "max_output_tokens": 100}
        loop = await api.make_loop(agent=agent, stop={"max_iterations": 1, "budget_usd": "0.10"})
        provider.default = words
        alone = await api.finished(await api.start(loop))
        assert not provider.bodies[-1].get("stream")
        async with (
            open_api(urls, tmp_path / "other", engine=False) as other,
            listening(api) as here,
            listening(other) as there,
        ):
            provider.may_answer = asyncio.Semaphore(0)
            run_id = await api.start(loop, {"max_iterations": 3})
            await api.running(run_id)
            watching = [asyncio.create_task(said(client, run_id, 2, words.text)) for client in (here, there)]
            await watched_here_and_elsewhere(api)
            for _ in range(2):  # the first request may have been sent before they came
                provider.may_answer.release()
            async with asyncio.timeout(20):
                await asyncio.gather(*watching)
            provider.may_answer.release()
        assert provider.bodies[-1]["stream"] is True
        run = await api.finished(run_id)
        # To the last digit what two whole answers cost.
        assert Decimal(run["spent_usd"]) == 3 * Decimal(alone["spent_usd"]) > 0
        assert Decimal(run["reserved_usd"]) == 0
