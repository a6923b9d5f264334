"""When schedules are due, on the clocks of the world."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.errors import InvalidInput
from loopwright.service.cron import MOST_MISSED, Cron

ZONES = sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})
CRONS = ("*/30 * * * *", "30 1 * * *", "0 0 * * 0", "5 */2 * * *", "15 2,14 * * 1-5", "0 3 1 * *", "59 23 * * *")
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


def times(cron: str, zone: str, start: str, many: int) -> list[str]:
    found = Cron.of(cron, zone).after(datetime.fromisoformat(start))
    return [each.isoformat().removesuffix(":00+00:00") for each in islice(found, many)]


def test_a_set_hour_that_comes_twice_is_due_once_and_every_half_hour_in_both() -> None:
    # London puts its clock back at 01:00 UTC: 01:30 comes at 00:30 UTC and again at 01:30 UTC.
    assert times("30 1 * * *", "Europe/London", "2026-10-24T12:00Z", 2) == ["2026-10-25T00:30", "2026-10-26T01:30"]
    assert times("*/30 * * * *", "Europe/London", "2026-10-25T00:00Z", 4) == [
        "2026-10-25T00:30", "2026-10-25T01:00", "2026-10-25T01:30", "2026-10-25T02:00",
    ]  # fmt: skip


def test_a_time_that_does_not_exist_comes_at_the_moment_of_the_jump() -> None:
    # London puts its clock forward at 01:00 UTC: 01:30 does not exist.
    assert times("30 1 * * *", "Europe/London", "2026-03-28T12:00Z", 2) == ["2026-03-29T01:00", "2026-03-30T00:30"]


@given(cron=st.sampled_from(CRONS), zone=st.sampled_from(ZONES), start=MOMENTS)
def test_due_times_rise_and_stand_on_the_clock_of_the_zone(cron: str, zone: str, start: datetime) -> None:
    due = list(islice(Cron.of(cron, zone).after(start), 12))
    assert all(a < b for a, b in zip([start, *due], due, strict=False))
    minutes = {"*/30": {0, 30}, "5": {5}}.get(cron.split(maxsplit=1)[0]) or {int(cron.split(maxsplit=1)[0])}
    for each in due:
        local = each.astimezone(zoneinfo.ZoneInfo(zone))
        before = (each - timedelta(minutes=1)).astimezone(zoneinfo.ZoneInfo(zone))
        jumped = local.utcoffset() != before.utcoffset()
        assert jumped or (local.minute in minutes and local.second == 0)


@given(cron=st.sampled_from(CRONS), zone=st.sampled_from(ZONES), start=MOMENTS, share=st.floats(0.01, 0.99))
def test_whenever_one_begins_to_look_the_same_times_are_found(
    cron: str, zone: str, start: datetime, share: float
) -> None:
    """Two processes that began at different moments must agree, or a time would be due twice."""
    due = list(islice(Cron.of(cron, zone).after(start), 6))
    for earlier, later in pairwise(due):
        assert Cron.of(cron, zone).next_after(earlier) == later
        assert Cron.of(cron, zone).next_after(earlier + (later - earlier) * share) == later
    assert Cron.of(cron, zone).between(due[0], due[-1]) == due


def test_after_a_long_downtime_only_the_last_times_are_listed() -> None:
    now = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)
    found = Cron.of("* * * * *", "Asia/Tokyo").between(now - timedelta(days=400), now)
    assert len(found) == MOST_MISSED + 1
    assert found[-1] == datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    assert Cron.of("0 0 1 1 *", "UTC").between(datetime(2020, 6, 1, tzinfo=UTC), now) == [
        datetime(year, 1, 1, tzinfo=UTC) for year in range(2021, 2027)
    ]


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "* * * * * *", "@reboot", "61 * * * *", "*/0 * * * *", "0 0 30 2 *", "H * * * *", "R * * * *",
     "* * * * *; x", "* *  * * *", "0-59/7," * 40, "@daily x"],
)  # fmt: skip
def test_what_is_no_cron_expression_is_refused_by_its_field(cron: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Cron.of(cron, "UTC")
    assert [problem.field for problem in refused.value.problems] == ["cron"]


@pytest.mark.parametrize("zone", ["", "Mars/Base", "../etc/passwd", "/etc/passwd", "Europe", "x" * 64, "a\x00b"])
def test_what_is_no_zone_is_refused_by_its_field(zone: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Cron.of("@daily", zone)
    assert [problem.field for problem in refused.value.problems] == ["zone"]
