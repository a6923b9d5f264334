"""Live events: one listening connection a process, fanned out to any number of viewers.

Each run that somebody watches has a *topic*: the last events as bytes ready to send, encoded once for all viewers. A
viewer holds nothing but its place. One that falls behind what the topic keeps reads from the database, at its own
speed; so a slow viewer costs neither memory nor the time of others, and one that doesn't read at all is cut off by the
response's send timeout.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

import psycopg

from ..cancellation import end_all
from ..core.caller import Caller
from ..core.errors import DatabaseAway, NotFound
from ..core.events import EVENT, RunFinished, TextDelta
from ..core.records import Run
from ..store import run_queries
from ..store.database import Connection, Database, connect_direct
from ..store.run_queries import StoredEvent

KEPT_EVENTS = 500
KEPT_BYTES = 1_000_000
"""How much of a run a topic keeps."""

BATCH = 200
"""How many events are read from the database at once."""

TEXT_SECONDS = 0.1
"""For how long pieces of text are collected before they are told to other processes."""

MOST_TEXT_BYTES = 6_000
"""A notification carries less than 8,000 bytes."""

WATCH_SECONDS = 10.0
"""How often other processes are told which runs are watched here; who is silent for twice as long watches no more."""

SIGHT_SECONDS = 10.0
"""How often it is looked whether all viewers may still see what they watch; with the query, within 15 s one who may not
is cut off."""

MOST_WATCHED = 150
"""How many runs one notification names."""

LISTEN = "listen loopwright_events; listen loopwright_text; listen loopwright_watch"

TERMINAL = "run_finished"


def encode(kind: str, data: str, seq: int | None) -> bytes:
    """An event as it goes over the wire; its number, by which viewers resume, stands on its last line only."""
    number = f"id: {seq}\n" if seq else ""
    return f"event: {kind}\ndata: {data}\n{number}\n".encode()


@dataclass(frozen=True)
class Sent:
    """An event ready to send."""

    seq: int
    """0 for what is sent and not kept."""
    data: bytes
    terminal: bool = False

    @classmethod
    def of(cls, event: StoredEvent) -> Sent:
        """A stored event, encoded."""
        return cls(event.seq, encode(event.type, event.data, event.seq), event.type == TERMINAL)


@dataclass
class Topic:
    """What viewers of one run share."""

    run_id: str
    seen: int | None = None
    """The last stored event that is known here; `None` until the first viewer has read where the run stands."""
    viewers: int = 0
    readers: int = 0
    """How many of the viewers show text as it comes."""
    ended: bool = False
    """Whether the run is over, and all its events are known here."""
    turn: int = 0
    """Grows when the run is seen to go on: what was read before says nothing of its end any more."""
    kept: deque[Sent] = field(default_factory=deque[Sent])
    """Stored events without a gap up to `seen`, and pieces of text between them."""
    kept_bytes: int = 0
    dropped: int = 0
    """How many of the topic's events are not kept any more: the place of the first one that is."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end(self) -> int:
        """The place after the last event."""
        return self.dropped + len(self.kept)

    def place_after(self, seq: int) -> int:
        """The place of the first event after a sequence number."""
        steps = (number for number, sent in enumerate(self.kept) if sent.seq > seq)
        return self.dropped + next(steps, len(self.kept))

    def since(self, place: int) -> list[Sent]:
        """The kept events from a place on."""
        return list(islice(self.kept, max(0, place - self.dropped), None))

    def keeps(self, seq: int) -> bool:
        """Whether the event with this number is kept, and so all later ones."""
        first = next((sent.seq for sent in self.kept if sent.seq), None)
        return first is not None and first <= seq

    def add(self, sent: Sent) -> None:
        """Take an event for all viewers."""
        self.kept.append(sent)
        self.kept_bytes += len(sent.data)
        while len(self.kept) > KEPT_EVENTS or (self.kept_bytes > KEPT_BYTES and len(self.kept) > 1):
            self.kept_bytes -= len(self.kept.popleft().data)
            self.dropped += 1
        self.seen = sent.seq or self.seen
        self.tell()

    def tell(self) -> None:
        """Wake the viewers."""
        news, self.news = self.news, asyncio.Event()
        news.set()


@dataclass(eq=False)
class Viewing:
    """Somebody who watches a run."""

    user_id: str
    topic: Topic
    lost: bool = False
    """Whether the viewer may not see the run any more."""


@dataclass
class Hub:
    """The live events of this process. Open it with `async with`."""

    database: Database
    _topics: dict[str, Topic] = field(default_factory=dict[str, Topic])
    _viewings: set[Viewing] = field(default_factory=set[Viewing])
    _dirty: set[str] = field(default_factory=set[str])
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _texts: dict[tuple[str, int, int], list[str]] = field(
        default_factory=lambda: defaultdict[tuple[str, int, int], list[str]](list)
    )
    _spoken: asyncio.Event = field(default_factory=asyncio.Event)
    _watched_elsewhere: dict[str, float] = field(default_factory=dict[str, float])
    """Until when viewers of other processes watch a run, by the monotonic clock."""
    _joined: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first viewer of a run comes."""
    _me: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    _closed: bool = False
    _holding: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def __aenter__(self) -> Hub:
        listening = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._hear(listening)),
            asyncio.create_task(self._fetch()),
            asyncio.create_task(self._tell_texts()),
            asyncio.create_task(self._tell_watched()),
            asyncio.create_task(self._look_after_rights()),
        ]
        with suppress(TimeoutError):  # the database is away: viewers catch up when it is back
            async with asyncio.timeout(10):
                await listening.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await end_all([*self._tasks, *self._holding])

    def close(self) -> None:
        """Let all viewers go; they resume in another process."""
        self._closed = True
        for topic in self._topics.values():
            topic.tell()

    @property
    def viewers(self) -> int:
        """How many watch."""
        return sum(topic.viewers for topic in self._topics.values())

    # --- viewers ---

    async def open(
        self, caller: Caller, run_id: str, after: int, *, text: bool = False
    ) -> AsyncGenerator[bytes] | None:
        """The events of a run after a sequence number and from now on, or `None` if the run is over and there are none.

        Args:
            caller: who watches.
            run_id: the run.
            after: the last event that the viewer has seen.
            text: whether the viewer shows the agent's text as it comes, so that its requests are worth streaming.

        Raises:
            NotFound: there is no such run that the caller may see.
        """
        topic = self._join(
            run_id, text=text
        )  # first join, then read where the run stands: nothing can slip through between
        try:
            async with self.database.as_user(caller.user_id) as connection:
                head = await run_queries.head(connection, run_id)
        except BaseException:
            self._leave(topic, text=text)
            raise
        if head is None:
            self._leave(topic, text=text)
            raise NotFound
        if topic.seen is None:
            topic.seen = head.event_seq
        topic.ended = head.status == "finished" and topic.seen >= head.event_seq
        topic.turn += head.status != "finished"
        self._mark(run_id)  # what came while nobody knew where the run stands
        if head.status == "finished" and after >= head.event_seq:
            self._leave(topic, text=text)
            return None
        viewing = self._watch(topic, caller, min(after, head.event_seq), text=text)
        await anext(viewing)  # begun, it leaves its topic however it ends
        return viewing

    def hold(self, run_id: str, seq: int) -> None:
        """Watch a run that is about to go on, to its end, as one who shows its text: so its agent's text is streamed
        from the first word, and kept for those who come while it is written.

        Args:
            run_id: the run.
            seq: its last event so far.
        """
        topic = self._join(run_id, text=True)
        topic.seen = seq if topic.seen is None else topic.seen
        topic.ended = False
        topic.turn += 1
        self._mark(run_id)

        async def to_its_end() -> None:
            while not (topic.ended or self._closed):
                await topic.news.wait()

        def leave(holding: asyncio.Task[None]) -> None:
            self._holding.discard(holding)
            self._leave(topic, text=True)

        holding = asyncio.create_task(to_its_end())
        self._holding.add(holding)
        holding.add_done_callback(leave)

    async def _watch(self, topic: Topic, caller: Caller, last: int, *, text: bool) -> AsyncGenerator[bytes]:
        """Send what a viewer has not seen, from the topic as far as it is kept there, else from the database."""
        place, terminal = topic.place_after(last), False
        viewing = Viewing(caller.user_id, topic)
        self._viewings.add(viewing)
        try:
            yield b""
            while not (self._closed or viewing.lost):
                news = topic.news  # taken before looking, so that what comes meanwhile isn't slept through
                behind = last < (topic.seen or 0) and not topic.keeps(last + 1)
                found = await self._stored(caller, topic.run_id, last) if behind else topic.since(place)
                if behind and not found:
                    return  # the run is gone
                place = max(place, topic.place_after(found[-1].seq)) if behind else topic.end
                for sent in found:
                    if sent.seq == 0 or sent.seq > last:
                        last, terminal = sent.seq or last, sent.terminal if sent.seq else terminal
                        yield sent.data
                if topic.end > place or last < (topic.seen or 0):
                    continue
                if topic.ended:
                    if not terminal:
                        yield await self._end_of(topic.run_id)
                    return
                await news.wait()
        finally:
            self._viewings.discard(viewing)
            self._leave(topic, text=text)

    async def _look_after_rights(self) -> None:
        while True:
            await asyncio.sleep(SIGHT_SECONDS)
            with suppress(DatabaseAway, psycopg.Error):  # nothing can be read meanwhile
                await self.let_go()

    async def let_go(self) -> None:
        """Cut off all viewers who may not see what they watch any more: one query, however many there are."""
        watching = list({(each.user_id, each.topic.run_id) for each in self._viewings})
        if not watching:
            return
        async with self.database.service_session() as connection:
            lost = set(await run_queries.lost_sight(connection, watching))
        for each in self._viewings:
            if (each.user_id, each.topic.run_id) in lost:
                each.lost = True
                each.topic.tell()

    async def _stored(self, caller: Caller, run_id: str, after: int) -> list[Sent]:
        async with self.database.as_user(caller.user_id) as connection:
            return [Sent.of(event) for event in await run_queries.events_after(connection, run_id, after, BATCH)]

    async def _end_of(self, run_id: str) -> bytes:
        """The end of a run that could not be written as an event."""
        async with self.database.service_session() as connection:
            run = await run_queries.get_run(connection, run_id)
        return encode(TERMINAL, EVENT.dump_json(_finished(run)).decode(), None) if run else b""

    def _join(self, run_id: str, *, text: bool) -> Topic:
        topic = self._topics.setdefault(run_id, Topic(run_id))
        topic.viewers += 1
        topic.readers += text
        if text and topic.readers == 1:
            self._joined.set()
        return topic

    def _leave(self, topic: Topic, *, text: bool) -> None:
        topic.viewers -= 1
        topic.readers -= text
        if not topic.viewers and self._topics.get(topic.run_id) is topic:
            del self._topics[topic.run_id]

    # --- what happens ---

    def watched(self, run_id: str) -> bool:
        """Whether somebody reads the text of a run as it comes, here or elsewhere."""
        topic = self._topics.get(run_id)
        return (topic is not None and topic.readers > 0) or self._is_watched_elsewhere(run_id)

    def _is_watched_elsewhere(self, run_id: str) -> bool:
        return self._watched_elsewhere.get(run_id, 0.0) > time.monotonic()

    def say(self, delta: TextDelta) -> None:
        """Send a piece of text to viewers here now, and to those elsewhere soon."""
        self._show_text(delta)
        if self._is_watched_elsewhere(delta.run_id):
            self._texts[delta.run_id, delta.attempt, delta.number].append(delta.text)
            self._spoken.set()

    def _show_text(self, delta: TextDelta) -> None:
        if topic := self._topics.get(delta.run_id):
            topic.add(Sent(0, encode(delta.type, EVENT.dump_json(delta).decode(), None)))

    def _mark(self, run_id: str) -> None:
        self._dirty.add(run_id)
        self._wake.set()

    async def _hear(self, listening: asyncio.Event) -> None:
        while True:
            with suppress(DatabaseAway, psycopg.OperationalError, OSError):
                async with await connect_direct(self.database.urls) as connection:
                    await connection.execute(LISTEN)
                    listening.set()
                    for run_id in self._topics:  # what was missed while nobody listened
                        self._mark(run_id)
                    await self._heard(connection)
            await asyncio.sleep(0.5)

    async def _heard(self, connection: Connection) -> None:
        async for notification in connection.notifies():
            if notification.channel == "loopwright_text":
                sender, _, text = notification.payload.partition(" ")
                if sender != self._me:
                    self._show_text(TextDelta.model_validate_json(text))
            elif notification.channel == "loopwright_watch":
                sender, *run_ids = notification.payload.split(" ")
                if sender != self._me:
                    until = time.monotonic() + 2 * WATCH_SECONDS
                    self._watched_elsewhere |= dict.fromkeys(run_ids, until)
            elif (run_id := notification.payload.partition(" ")[0]) in self._topics:
                self._mark(run_id)

    async def _fetch(self) -> None:
        """Read the news of all runs that have some, in one query."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            dirty, self._dirty = self._dirty, set()
            try:
                await self._fetch_once(dirty)
            except (DatabaseAway, psycopg.Error):
                self._dirty |= dirty
                await asyncio.sleep(0.5)
                self._wake.set()

    async def _fetch_once(self, dirty: set[str]) -> None:
        topics = {run_id: topic for run_id in dirty if (topic := self._topics.get(run_id)) and topic.seen is not None}
        if not topics:
            return
        turns = {run_id: topic.turn for run_id, topic in topics.items()}
        async with self.database.service_session() as connection:
            # First who is over, then the events: then the last one of a run that is over is surely among them.
            over = set(await run_queries.finished_of(connection, list(topics)))
            seen = {run_id: topic.seen or 0 for run_id, topic in topics.items()}
            events = await run_queries.fresh_events(connection, seen, BATCH)
        many = Counter(event.run_id for event in events)
        last = {event.run_id: event for event in events}
        for event in events:
            topics[event.run_id].add(Sent.of(event))
        for run_id, topic in topics.items():
            topic.ended = run_id in over and many[run_id] < BATCH and topic.turn == turns[run_id]
            if topic.turn != turns[run_id]:
                self._mark(run_id)
            elif topic.ended:
                topic.tell()
            elif many[run_id] == BATCH or (run_id in last and last[run_id].type == TERMINAL):
                self._mark(run_id)

    async def _tell_watched(self) -> None:
        """Tell other processes which runs are watched here: their agents' text is worth streaming."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._joined.wait()
            await asyncio.sleep(TEXT_SECONDS)
            self._joined.clear()
            now, watched = time.monotonic(), [run for run, topic in self._topics.items() if topic.readers]
            self._watched_elsewhere = {run: until for run, until in self._watched_elsewhere.items() if until > now}
            with suppress(DatabaseAway, psycopg.Error):  # they are told again soon
                for at in range(0, len(watched), MOST_WATCHED):
                    named = " ".join((self._me, *watched[at : at + MOST_WATCHED]))
                    async with self.database.service_session() as connection:
                        await connection.execute("select pg_notify('loopwright_watch', %s)", (named,))

    async def _tell_texts(self) -> None:
        """Tell other processes of the text that runs in this one produce."""
        while True:
            await self._spoken.wait()
            await asyncio.sleep(TEXT_SECONDS)
            self._spoken.clear()
            texts = [(key, "".join(parts)) for key, parts in self._texts.items()]
            self._texts.clear()
            with suppress(DatabaseAway, psycopg.Error):  # text is sent and not kept
                async with self.database.service_session() as connection:
                    for piece in (piece for key, text in texts for piece in _pieces(*key, text)):
                        await connection.execute("select pg_notify('loopwright_text', %s)", (f"{self._me} {piece}",))


def _pieces(run_id: str, attempt: int, number: int, text: str) -> list[str]:
    """Text as notifications that are small enough."""
    size = MOST_TEXT_BYTES // 6  # a character takes six bytes at most in JSON
    parts = (text[at : at + size] for at in range(0, len(text), size))
    head = {"type": "text_delta", "run_id": run_id, "attempt": attempt, "number": number}
    return [json.dumps({**head, "text": part}) for part in parts]


def _finished(run: Run) -> RunFinished:
    from ..core.models import Cost

    took = (run.finished_at or datetime.now(UTC)) - (run.started_at or run.created_at)
    return RunFinished(
        run_id=run.id,
        at=run.finished_at or datetime.now(UTC),
        stop_reason=run.stop_reason or "error",
        sentence=run.sentence,
        best=run.best,
        cost=Cost(total=run.spent_usd),
        iterations=run.iterations,
        seconds=took.total_seconds(),
        error=run.error,
    )
