"""Pieces of HTML for notebooks: tables, bars and notes, with inline styles alone. Knows no dataset and no loader.

Pages have light and dark themes, so lines and text have the colour of the text around them, and bars have colours that
stand out from both. Each value is escaped, unless it is :class:`Html` already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

# Of the palette of Okabe and Ito, which people of any colour vision can tell apart, as dark as light themes need it.
ORANGE, BLUE, GREEN, PINK, PURPLE, GREY = "#d9730d", "#2f7ebc", "#1a9a6c", "#c2609b", "#7b6cc4", "#8a8a8a"

# Rows of a table, and items of a list, before the rest is a number.
MANY = 50

_FONT = "font-variant-numeric:tabular-nums;line-height:1.45;max-width:54em"
_CELL = "text-align:left;vertical-align:top;padding:.1em 1.2em .1em 0;border:0;white-space:normal;overflow-wrap:anywhere"
_HEAD = f"{_CELL};font-weight:600;white-space:nowrap"
_TABLE = "border-collapse:collapse;border:0;margin:.3em 0;font-size:inherit"
# Notebooks give each second row another background.
_ROW = "background:none"
_FAINT = "opacity:.7"


class Html(str):
    """Text that is HTML."""


def element(name: str, *children: Any, **attributes: Any) -> Html:
    """An element with its children: :class:`Html`, or values that are shown as text. ``aria_label`` is ``aria-label``."""
    given = "".join(f' {key.replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items() if value is not None)
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[Any]) -> Html:
    """Children one after the other."""
    return Html("".join(child if isinstance(child, Html) else escape(str(child)) for child in children))


def page(kind: str, name: Any, *parts: Any) -> Html:
    """The whole: a title, and its parts."""
    title = element("div", element("span", kind, style=_FAINT), " ", element("strong", name), style="margin-bottom:.3em")
    return element("div", title, *parts, style=_FONT)


def faint(*children: Any) -> Html:
    """Text that matters less."""
    return element("span", *children, style=_FAINT)


def code(value: Any) -> Html:
    """A name or a digest."""
    return element("code", value, style="background:none;color:inherit;padding:0")


def note(*children: Any) -> Html:
    """A line of text."""
    return element("div", *children, style="margin:.3em 0")


def heading(text: str) -> Html:
    """The title of a part."""
    return element("div", text, style="font-weight:600;margin-top:.7em")


def fold(summary: Any, *children: Any) -> Html:
    """A part that opens with a click."""
    title = element("summary", summary, style="cursor:pointer")
    return element("details", title, element("div", *children, style="margin-left:1em"), style="margin:.3em 0")


def pairs(rows: Iterable[tuple[str, Any]]) -> Html:
    """Names and their values, without those that are ``None``."""
    cells = [(element("th", name, scope="row", style=_HEAD), element("td", value, style=_CELL)) for name, value in rows if value is not None]
    return element("table", element("tbody", *(element("tr", *row, style=_ROW) for row in cells)), style=_TABLE)


def grid(head: Sequence[str], rows: Sequence[Sequence[Any]], caption: str) -> Html:
    """Rows below the names of their columns: the first :data:`MANY`, and the number of the others."""
    line = "border-bottom:1px solid currentColor"
    titles = element("thead", element("tr", *(element("th", name, scope="col", style=f"{_HEAD};{line}") for name in head)))
    body = []
    for name, *values in rows[:MANY]:
        first = element("th", name, scope="row", style=f"{_CELL};max-width:24em;overflow-wrap:break-word;font-weight:600")
        body.append(element("tr", first, *(element("td", value, style=_CELL) for value in values), style=_ROW))
    table = element("table", titles, element("tbody", *body), aria_label=caption, style=_TABLE)
    return joined([table, note(faint(f"and {len(rows) - MANY:,} more")) if len(rows) > MANY else ""])


def progress(done: int, of: int, label: str) -> Html:
    """The part of a whole that is done. The bar of a ``progress`` element would be white in some dark themes."""
    bar = element("div", style=f"width:{100 * done / max(of, 1):.1f}%;height:100%;background:{BLUE}")
    now = {"aria_valuemin": 0, "aria_valuemax": of, "aria_valuenow": done}
    style = "height:.5em;border-radius:2px;overflow:hidden;background:rgba(128,128,128,.35)"
    return element("div", bar, role="progressbar", aria_label=label, **now, style=style)


def stacked(parts: Sequence[tuple[str, float, str]]) -> Html:
    """Seconds with their names and colours, as parts of one bar, and below it in words."""
    total = sum(amount for _, amount, _ in parts)
    if total <= 0:
        return Html()
    words = [(name, seconds(amount), f"{100 * amount / total:.0f} %", colour) for name, amount, colour in parts]
    pieces = [
        element("div", style=f"flex:{amount / total:.4f} 1 0;min-width:2px;background:{colour}") for _, amount, colour in parts if amount > 0
    ]
    label = ", ".join(f"{name} {amount} ({share})" for name, amount, share, _ in words)
    bar = element("div", *pieces, role="img", aria_label=label, style="display:flex;gap:1px;height:.9em;border-radius:2px;overflow:hidden")
    legend = [
        element("span", swatch(colour), f"{name} ", faint(f"{amount}, {share}"), style="white-space:nowrap;margin-right:1.2em")
        for name, amount, share, colour in words
    ]
    return element("div", bar, element("div", *legend, style="display:flex;flex-wrap:wrap"), style="margin:.2em 0 .5em")


def swatch(colour: str) -> Html:
    """A square of the colour of a part, beside its name."""
    style = f"display:inline-block;width:.7em;height:.7em;border-radius:2px;margin-right:.35em;background:{colour}"
    return element("span", aria_hidden="true", style=style)


def bars(rows: Sequence[tuple[str, float, str]], unit: str, caption: str) -> Html:
    """Amounts with their names and colours, as bars that begin at one line."""
    most = max([amount for _, amount, _ in rows], default=0) or 1
    lines = []
    for name, amount, colour in rows:
        bar = element("div", aria_hidden="true", style=f"width:{100 * amount / most:.1f}%;height:.9em;border-radius:2px;background:{colour}")
        amounts = element("td", f"{number(amount)} {unit}", style=f"{_CELL};white-space:nowrap")
        drawn = element("td", bar, style=f"{_CELL};width:22em;vertical-align:middle")
        lines.append(element("tr", element("th", name, scope="row", style=_HEAD), amounts, drawn, style=_ROW))
    return element("table", element("tbody", *lines), aria_label=caption, style=_TABLE)


def number(amount: float) -> str:
    """A number with three digits, or all of those before the point."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def seconds(amount: float) -> str:
    """A time, as people read it."""
    if amount < 0.9995:
        return f"{number(1000 * amount)} ms"
    if amount < 120:
        return f"{number(amount)} s"
    minutes = round(amount / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"


def size(count: float) -> str:
    """A number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def few(names: Sequence[Any], most: int = 10) -> str:
    """The first names, and the number of the others."""
    shown = ", ".join(cut(name, 40) for name in names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def cut(value: Any, most: int) -> str:
    """The text of a value, up to this number of characters."""
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"
