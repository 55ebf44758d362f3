"""The replicas over time that each policy asked for, as an SVG of steps; lines are all there is, so no library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 960, 360, 48, 56, 36
COLOURS = ("#1f6feb", "#d1242f", "#9a6700", "#8250df", "#57606a")


def steps(title: str, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], length: float, marks: float) -> str:
    """An SVG.

    Args:
        lines: (name, (time in seconds, value) of every change).
        length: of the axis of time, in seconds.
        marks: where the scored part begins.
    """
    most = max([value for _, points in lines for _, value in points] + [1.0])
    inner, tall = WIDTH - LEFT - 16, HEIGHT - TOP - BOTTOM

    def x(at: float) -> float:
        return round(LEFT + inner * min(1.0, at / length), 1)

    def y(value: float) -> float:
        return round(TOP + tall * (1.0 - value / most), 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>',
        f'<rect x="{x(marks)}" y="{TOP}" width="{round(x(length) - x(marks), 1)}" height="{tall}" fill="#f6f8fa"/>',
        f'<text x="{x(marks) + 4}" y="{TOP + 12}" fill="#57606a">scored</text>',
    ]
    for part in range(5):
        value = most * part / 4
        out.append(f'<path d="M{LEFT} {y(value)}H{x(length)}" stroke="#d0d7de"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:.0f}</text>')
        at = length * part / 4
        out.append(f'<text x="{x(at)}" y="{HEIGHT - 14}" text-anchor="middle">{at / 60:.0f} min</text>')
    for number, (name, points) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        path = [f"M{x(points[0][0])} {y(points[0][1])}"]
        path += [f"H{x(at)}V{y(value)}" for at, value in points[1:]]
        out.append(f'<path d="{"".join(path)}H{x(length)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        out.append(f'<text x="{LEFT + 110 * number}" y="40" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])
