"""Figures for Prometheus: who may read them, and that they say what happened."""

from __future__ import annotations

from decimal import Decimal

from prometheus_client.parser import text_string_to_metric_families

from tests.api.world import SERVICE_KEY, Api
from tests.postgres import ADMIN, OTHER, OWNER

Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def figures(api: Api) -> Figures:
    answer = await api.call("GET", "/api/metrics", user=None, authorization=f"Bearer {SERVICE_KEY}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def figure(found: Figures, name: str, **labels: str) -> float:
    return found[f"loopwright_{name}", frozenset(labels.items())]


async def test_the_service_key_and_admins_read_them(idle: Api) -> None:
    named = {"authorization": f"Bearer {SERVICE_KEY}"}
    assert (await idle.call("GET", "/api/metrics", user=None)).status_code == 401
    assert (await idle.call("GET", "/api/metrics", user=None, authorization="Bearer x" + "y" * 40)).status_code == 401
    assert (await idle.call("GET", "/api/metrics", user=None, **named)).status_code == 200
    for user, status in ((OTHER, 403), (ADMIN, 200)):
        key = await idle.make("/api/keys", {"name": "prometheus"}, user=user)
        answer = await idle.call("GET", "/api/metrics", user=None, authorization=f"Bearer {key['token']}")
        assert answer.status_code == status


async def test_they_say_what_happened(api: Api) -> None:
    run = await api.finished(await api.start(await api.make_loop()))
    await api.call("GET", f"/api/runs/{run['id']}", user=OTHER)
    found = await figures(api)
    assert figure(found, "runs", status="queued") == figure(found, "runs", status="running") == 0
    assert figure(found, "runs_finished_total", stop_reason="max_iterations") == 1
    assert figure(found, "iterations_total") == 3
    assert Decimal(str(figure(found, "spent_usd_total"))) == Decimal(run["spent_usd"]) > 0
    assert figure(found, "reserved_usd") == figure(found, "bound_overruns_total") == 0
    assert figure(found, "model_requests_total", model="practice") == 3
    assert figure(found, "model_tokens_total", model="practice", kind="input") > 0
    assert figure(found, "workers") == 1
    assert figure(found, "process_runs") == figure(found, "process_viewers") == 0
    route = "/api/runs/{run_id}"
    assert figure(found, "http_requests_total", method="GET", route=route, status="404") == 1
    assert figure(found, "http_requests_total", method="GET", route=route, status="200") > 0
    assert figure(found, "http_seconds_count", method="GET", route=route) > 1
    assert figure(found, "event_loop_lag_seconds_count") > 0
    for private in (OWNER, run["id"], "codes"):
        assert private not in str(found)


async def test_refusals_count_and_unknown_addresses_make_no_new_names(idle: Api) -> None:
    for path in ("/api/nothing", "/api/nothing/else", "/wp-login.php"):
        assert (await idle.call("GET", path)).status_code == 404
    await idle.call("BREW", "/api/runs")
    found = await figures(idle)
    assert figure(found, "http_requests_total", method="GET", route="none", status="404") == 3
    assert any(dict(labels).get("method") == "other" for _, labels in found)
