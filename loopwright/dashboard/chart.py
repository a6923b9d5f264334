"""The score chart, computed here and drawn as SVG by a template."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.models import Direction
from ..service.scores import Point
from .text import score

WIDTH, HEIGHT = 960, 290
LEFT, RIGHT, TOP, BOTTOM = 60, 16, 14, 30
MOST_POINTS = 300
"""More points than this are thinned: of each stretch its lowest, its highest and its last stay."""
NEAR = 2.0
"""Steps of the best line that are nearer than this (in units of the chart) are drawn as one."""


@dataclass(frozen=True)
class Dot:
    """A scored iteration."""

    x: float
    y: float
    title: str
    best: bool


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Curve:
    """One run on the chart."""

    name: str
    dots: Sequence[Dot]
    best: str
    """The line of the best score so far, as points of a polyline."""
    failed: Sequence[float]
    """Where iterations failed."""


@dataclass(frozen=True)
class Chart:
    """A chart ready to be drawn."""

    curves: Sequence[Curve]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    target: float | None
    target_label: str
    describe: str
    thinned: bool
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True)
class Series:
    """The scores of a run."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Scale:
    """From values to places on the chart."""

    low: float
    high: float
    many: int

    def x(self, position: int) -> float:
        """The place of an iteration."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (position - 1) / max(1, self.many - 1), 1)

    def y(self, value: float) -> float:
        """The place of a score."""
        share = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)


def draw(series: Sequence[Series], *, direction: Direction, target: float | None, most: int | None) -> Chart | None:
    """The chart of one or more runs; `None` while there is no score.

    Args:
        series: the scores of each run.
        direction: which scores are better.
        target: the score that is aimed for.
        most: how many iterations there can be, so that the axis doesn't move with every one.
    """
    values = [point.score for each in series for point in each.points if point.score is not None]
    if not values:
        return None
    edges = [*values, target] if target is not None else values
    last = max(point.position for each in series for point in each.points)
    many = max(last, most if most and most <= max(40, last * 4) else 0, 2)
    steps = _steps(min(edges), max(edges))
    scale = Scale(steps[0], steps[-1], many)
    return Chart(
        curves=[_curve(each, scale, direction) for each in series],
        x_ticks=[Tick(scale.x(n), f"{n:,}") for n in _numbers(many)],
        y_ticks=[Tick(scale.y(v), score(v)) for v in steps],
        target=None if target is None else scale.y(target),
        target_label=f"target {score(target)}",
        describe=" ".join(_describe(each, direction, target) for each in series),
        thinned=any(len(each.points) > MOST_POINTS for each in series),
    )


def _curve(series: Series, scale: Scale, direction: Direction) -> Curve:
    best: float | None = None
    steps: list[tuple[float, float]] = []
    bests: set[int] = set()
    for point in series.points:
        if point.score is not None and (best is None or _better(point.score, best, direction)):
            best = point.score
            bests.add(point.position)
            x, y = scale.x(point.position), scale.y(best)
            if steps and x - steps[-1][0] < NEAR:
                steps[-1] = (steps[-1][0], y)
            else:
                steps.append((x, y))
    line = [corner for n, (x, y) in enumerate(steps) for corner in ([(x, steps[n - 1][1])] if n else []) + [(x, y)]]
    if steps:
        line.append((scale.x(series.points[-1].position), steps[-1][1]))
    dots = [
        Dot(
            scale.x(point.position),
            scale.y(point.score),
            f"iteration {point.position}: {score(point.score)}",
            point.position in bests,
        )
        for point in thin(series.points)
        if point.score is not None
    ]
    failed = [scale.x(point.position) for point in series.points if point.score is None]
    return Curve(series.name, dots, " ".join(f"{x},{y}" for x, y in line), failed[:MOST_POINTS])


def thin(points: Sequence[Point]) -> Sequence[Point]:
    """At most about `MOST_POINTS` of the points, with the shape of all of them."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(len(points) / (MOST_POINTS // 3))
    kept: dict[int, Point] = {}
    for at in range(0, len(points), size):
        stretch = [point for point in points[at : at + size] if point.score is not None]
        if stretch:
            lowest = min(stretch, key=lambda p: p.score or 0.0)
            highest = max(stretch, key=lambda p: p.score or 0.0)
            kept |= {point.position: point for point in (lowest, highest, stretch[-1])}
    return [kept[position] for position in sorted(kept)]


def _better(new: float, old: float, direction: Direction) -> bool:
    return new > old if direction == "maximize" else new < old


def _steps(low: float, high: float) -> list[float]:
    """Three to seven round numbers that span the values."""
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):  # no difference that a chart could show
        low, high = low - abs(low) * 0.1 - 0.1, high + abs(high) * 0.1 + 0.1
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [float(f"{n * size:.12g}") for n in range(first, last + 1)]


def _numbers(many: int) -> list[int]:
    size = next(s for p in range(7) for s in (10**p, 2 * 10**p, 5 * 10**p) if many / s <= 8)
    return sorted({1, *range(size, many + 1, size)} if size > 1 else {*range(1, many + 1)})


def _describe(series: Series, direction: Direction, target: float | None) -> str:
    scored = [point for point in series.points if point.score is not None]
    if not scored:
        return f"{series.name}: no score yet."
    pick = max if direction == "maximize" else min
    best = pick(scored, key=lambda p: p.score or 0.0)
    aim = f"; the target is {score(target)}" if target is not None else ""
    return (
        f"{series.name}: {len(series.points):,} iterations, the first score {score(scored[0].score)}, "
        f"the best {score(best.score)} at iteration {best.position}, the last {score(scored[-1].score)}{aim}."
    )


def spark(values: Sequence[float | None], *, width: int = 84, height: int = 22) -> str:
    """The points of a small polyline; empty where there are fewer than two values."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    step = (width - 4) / (len(known) - 1)
    return " ".join(
        f"{2 + i * step:.1f},{height - 3 - (height - 6) * (v - low) / span:.1f}" for i, v in enumerate(known)
    )
