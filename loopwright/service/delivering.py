"""Sending what endpoints are to be told.

A message is a row that is made in the transaction that ends a run. The row is also the queue: it says when it is due,
who has taken it, and what came of each attempt. Processes look once a second and take what is due with `skip locked`,
each row for one of them, for as long as an attempt can last. One that dies while it sends leaves a row that is due
again; so a message is sent at least once, and always with the same id.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from ..cancellation import end_all
from ..core.errors import DatabaseAway, EgressRefused, InvalidInput
from ..core.records import DeliveryAttempt
from ..core.text import clean
from ..egress import EgressClient, EgressFailed, Response
from ..signatures import key_of, signature
from ..store import endpoints as store
from ..store.endpoints import Due
from .endpoints import policy_for
from .runtime import Runtime

PLAN: Sequence[float] = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds from a failed attempt to the next: 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h. Ten attempts over
three days, as Standard Webhooks advises."""

JITTER = 0.2
"""By which part of itself a wait may be longer, so that those that failed together don't come back together."""

TIMEOUT_SECONDS = 20.0
"""How long an endpoint may take to answer."""

LEASE_SECONDS = 60.0
"""For how long a process has what it took; longer than an attempt can last."""

LOOK_SECONDS = 1.0
"""How often to look for what is due."""

MOST_AT_ONCE = 20
"""How many messages one process sends at once."""

MOST_OF_ONE = 4
"""How many of them go to one endpoint: a slow one leaves room for others."""

ANSWER_BYTES = 2000
"""How much of an answer is kept."""

GONE = 410

NOTHING_REACHED = (
    "a message was tried {tries} times, and nothing has reached it meanwhile; see why, and switch it on again"
)

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Delivering:
    """Sends what is due, from this process. Open it with `async with`.

    Args:
        runtime: of the application.
        plan: seconds from each failed attempt to the next.
        look_seconds: how often to look.
        timeout_seconds: how long an endpoint may take.
        lease_seconds: for how long this process has what it took.
        grace_seconds: how long what is being sent may take when this process leaves.
    """

    runtime: Runtime
    plan: Sequence[float] = PLAN
    look_seconds: float = LOOK_SECONDS
    timeout_seconds: float = TIMEOUT_SECONDS
    lease_seconds: float = LEASE_SECONDS
    grace_seconds: float = 5.0
    _sending: dict[asyncio.Task[None], UUID] = field(default_factory=dict[asyncio.Task[None], UUID])
    """What is being sent, and to which endpoint."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Delivering:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave: what is being sent may end; what takes too long is sent again by another process."""
        if self._watching:
            await end_all([self._watching])
        if self._sending:
            await asyncio.wait(self._sending, timeout=self.grace_seconds)
        await end_all(list(self._sending))

    async def look(self) -> int:
        """Take what is due and there is room for, and begin to send it; returns how much it was."""
        room = MOST_AT_ONCE - len(self._sending)
        if room <= 0:
            return 0
        busy = list(set(self._sending.values()))
        async with self.runtime.database.service_session() as connection:
            due = await store.take_due(
                connection, room=room, each=MOST_OF_ONE, busy=busy, lease_seconds=self.lease_seconds
            )
        for each in due:
            task = asyncio.create_task(self._deliver(each))
            self._sending[task] = each.endpoint_id
            task.add_done_callback(self._sent)
        return len(due)

    async def settled(self) -> None:
        """Wait until nothing is being sent."""
        while self._sending:
            await asyncio.wait(self._sending)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.pop(task, None)
        self._wake.set()

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except DatabaseAway:
                pass  # what is due is sent when it is back
            except Exception:  # noqa: BLE001 - logged; this must never end
                _log.exception("looking for messages to send failed; it is tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(self.look_seconds):
                    await self._wake.wait()
            self._wake.clear()

    # --- one message ---

    async def _deliver(self, due: Due) -> None:
        try:
            attempt = await self._attempt(due)
            await self._settle(due, attempt)
        except DatabaseAway:
            _log.debug("what came of a message can't be written down; it is sent again")
        except Exception:  # noqa: BLE001 - logged; the lease ends, and it is tried again
            _log.exception("the message %s can't be sent; it is tried again", due.message_id)

    async def _attempt(self, due: Due) -> DeliveryAttempt:
        """Send a message once."""
        at, began = datetime.now(UTC), time.monotonic()
        answer, error = None, ""
        try:
            answer = await self._post(due, int(at.timestamp()))
        except (EgressRefused, EgressFailed, InvalidInput) as failure:
            error = str(failure)
        return DeliveryAttempt(
            number=due.attempts,
            at=at,
            seconds=round(time.monotonic() - began, 3),
            status=answer.status if answer else None,
            answer=clean(answer.body[:ANSWER_BYTES].decode("utf-8", "replace")) if answer else "",
            error=clean(error)[:ANSWER_BYTES],
        )

    async def _post(self, due: Due, at: int) -> Response:
        body = due.payload.encode()
        headers = {
            "content-type": "application/json",
            "webhook-id": due.message_id,
            "webhook-timestamp": str(at),
            "webhook-signature": " ".join(signature(key, due.message_id, at, body) for key in self._keys(due)),
        }
        async with EgressClient(await policy_for(self.runtime, due.url)) as egress:
            return await egress.request(
                "POST",
                due.url,
                headers=headers,
                content=body,
                timeout_seconds=self.timeout_seconds,
                max_response_bytes=ANSWER_BYTES,
                cut=True,
            )

    def _keys(self, due: Due) -> list[bytes]:
        secrets = [self.runtime.vault.open(str(due.owner_id), each) for each in due.secrets()]
        return [key for secret in secrets if (key := key_of(secret))]

    async def _settle(self, due: Due, attempt: DeliveryAttempt) -> None:
        """Write down how an attempt ended; plan the next, or give up."""
        delivered = attempt.status is not None and 200 <= attempt.status < 300
        wait = None if delivered or attempt.status == GONE else self.wait_after(due)
        state = "delivered" if delivered else "failed" if wait is None else "waiting"
        async with self.runtime.database.service_session() as connection:
            await store.settle(connection, due, attempt, state, wait)
            if state != "failed" or due.event == "endpoint.test":
                return
            if attempt.status == GONE:
                await store.switch_off(connection, due, "it answered 410: it is gone for good")
            elif not await store.reached_since(connection, due):
                await store.switch_off(connection, due, NOTHING_REACHED.format(tries=due.tries))

    def wait_after(self, due: Due) -> float | None:
        """Seconds until the next attempt, or `None` where there is none. A test is tried once."""
        if due.event == "endpoint.test" or due.tries > len(self.plan):
            return None
        digest = hashlib.sha256(f"{due.id} {due.attempts}".encode()).digest()
        share = int.from_bytes(digest[:8]) / 2**64
        return self.plan[due.tries - 1] * (1 + JITTER * share)
