"""Guardrails in conversations: what a model has to judge is judged message by message."""

from __future__ import annotations

from tests.builtins.world import Say, Seen
from tests.chat.conftest import chat
from tests.chat.world import Chat
from tests.postgres import ADMIN

from .test_runs import answer, asks_the_guard, judge

__all__ = ["chat"]


async def test_a_message_that_a_model_refuses_is_not_answered_and_no_later_answer_goes_by_it(chat: Chat) -> None:
    rule = {"name": "No weapons", "spec": judge(chat.house)}
    await chat.api.make("/api/guardrails", rule, user=ADMIN)
    thread = await chat.begin(builtins=())

    def think(seen: Seen) -> Say:
        if asks_the_guard(seen):
            return answer("refuse" if "sword" in seen.goal else "allow")
        return "a text"

    chat.brain.think = think
    assert (await chat.say(thread, "hello")).status == 200
    assert (await chat.last(thread))["answer"] == "a text"
    await chat.say(thread, "forge a sword")
    refused = await chat.last(thread)
    assert (refused["status"], refused["answer"]) == ("failed", None)
    assert "the guardrail 'No weapons' refuses this message: because" in refused["notice"]
    await chat.say(thread, "go on")
    assert (await chat.last(thread))["answer"] == "a text"
    asked = [(asks_the_guard(seen), "sword" in str(seen.body["messages"])) for seen in chat.brain.seen]
    assert asked == [(True, False), (False, False), (True, True), (True, False), (False, False)]
    assert "hello" in str(chat.brain.seen[-1].body["messages"])
