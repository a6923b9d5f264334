"""All parts of the dashboard. Importing this takes a while, so a starting server does it behind its first answer."""

from __future__ import annotations

from . import (
    activity,
    agents,
    chat,
    compare,
    endpoints,
    evaluators,
    examples,
    guardrails,
    loop_form,
    loops,
    run,
    runs,
    schedules,
    session,
    sign_in,
    tools,
    usage,
    webhooks,
    workspace,
)

PARTS = (
    loop_form,
    loops,
    compare,
    run,
    runs,
    chat,
    agents,
    tools,
    evaluators,
    schedules,
    usage,
    activity,
    workspace,
    guardrails,
    webhooks,
    endpoints,
    session,
    sign_in,
    examples,
)
