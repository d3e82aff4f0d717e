"""Rows of points on a logarithmic axis as SVG, by hand. Knows nothing of the data."""

import math
from html import escape

# Okabe and Ito's colours, which most people can tell apart.
GOOD, BAD, TEXT, FAINT = "#0072b2", "#d55e00", "#222222", "#dddddd"
ROW, TOP, LEFT, WIDTH, RIGHT = 20, 30, 430, 420, 70


def plot(rows, title):
    """Rows of (name, value, low, high, whether it is good), from the top; a line marks 1. Values are above zero."""
    ends = [end for _, value, low, high, _ in rows for end in (value, low, high)]
    least, most = math.floor(math.log10(min([*ends, 0.5]))), math.ceil(math.log10(max([*ends, 2])))
    height = TOP + ROW * len(rows) + 30
    parts = [text(LEFT + WIDTH / 2, 18, title, "middle", "bold")]

    def x(value):
        return LEFT + WIDTH * (math.log10(value) - least) / (most - least)

    for power in range(least, most + 1):
        colour = TEXT if power == 0 else FAINT
        parts.append(line(x(10**power), TOP, x(10**power), height - 26, colour))
        parts.append(text(x(10**power), height - 10, f"{10**power:g}", "middle"))
    for place, (name, value, low, high, is_good) in enumerate(rows):
        y, colour = TOP + ROW * (place + 0.5), GOOD if is_good else BAD
        parts.append(text(LEFT - 10, y + 4, name, "end"))
        parts.append(line(x(low), y, x(high), y, colour, 2))
        parts.append(f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(text(LEFT + WIDTH + 10, y + 4, f"{value:.3g}"))
    size = (LEFT + WIDTH + RIGHT, height)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{size[0]}" height="{size[1]}" fill="#ffffff"/>', *parts, "</svg>", ""])


def line(x1, y1, x2, y2, colour, width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def text(x, y, words, anchor="start", weight="normal"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{TEXT}">{escape(words)}</text>'
