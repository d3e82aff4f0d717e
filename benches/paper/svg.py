"""Plots as SVG, by hand: axes, points with error bars, stacked bars. Knows nothing of the data."""

from html import escape

# Okabe and Ito's colours, which most people can tell apart.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999"]
TEXT = "#222222"


class Plot:
    """One or several panels beside each other, each with its own categories and the same y axis."""

    def __init__(self, panels, y_label, y_range, height=300, width=360, ticks=5):
        self.names, self.low, self.high = panels, *y_range
        self.height, self.width, self.left, self.top = height, width, 60, 34
        self.parts, self.entries = [], []
        total = self.left + len(panels) * (width + 20)
        self.size = (total, self.top + height + 78)
        self.text(14, self.top + height / 2, y_label, "middle", turn=True)
        for index, name in enumerate(panels):
            x = self.x0(index)
            self.text(x + width / 2, 20, name, "middle", weight="bold")
            for tick in range(ticks + 1):
                value = self.low + (self.high - self.low) * tick / ticks
                y = self.y(value)
                self.line(x, y, x + width, y, "#dddddd")
                if index == 0:
                    self.text(x - 6, y + 4, f"{value:g}", "end")
            self.line(x, self.y(max(self.low, min(0, self.high))), x + width, self.y(max(self.low, min(0, self.high))), "#888888")

    def x0(self, panel):
        return self.left + panel * (self.width + 20)

    def y(self, value):
        return self.top + self.height * (self.high - value) / (self.high - self.low)

    def at(self, panel, index, count, shift=0.0):
        """The middle of a category; `shift` in parts of its width."""
        return self.x0(panel) + self.width * (index + 0.5 + shift) / count

    def line(self, x1, y1, x2, y2, colour, width=1, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"{dashed}/>'
        )

    def text(self, x, y, words, anchor="start", weight="normal", turn=False):
        if not words:
            return
        turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{TEXT}"{turned}>{escape(words)}</text>'
        )

    def categories(self, panel, names, label=""):
        for index, name in enumerate(names):
            self.text(self.at(panel, index, len(names)), self.top + self.height + 16, name, "middle")
        self.text(self.x0(panel) + self.width / 2, self.top + self.height + 34, label, "middle")

    def marks(self, panel, marks, label):
        """(x, name) below a panel whose x axis is a number."""
        for x, name in marks:
            self.text(x, self.top + self.height + 16, name, "middle")
        self.text(self.x0(panel) + self.width / 2, self.top + self.height + 34, label, "middle")

    def level(self, panel, value, colour):
        """A dashed line across a panel."""
        x = self.x0(panel)
        self.line(x, self.y(value), x + self.width, self.y(value), colour, 1.5, "5 4")

    def point(self, x, value, spread, colour):
        """A mean with its standard deviation."""
        self.line(x, self.y(value - spread), x, self.y(value + spread), colour, 1.5)
        self.parts.append(f'<circle cx="{x:.1f}" cy="{self.y(value):.1f}" r="4" fill="{colour}"/>')

    def path(self, points, colour):
        way = " ".join(f"{x:.1f},{self.y(value):.1f}" for x, value in points)
        self.parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>')

    def bar(self, x, width, start, value, colour):
        """A part of a stack, from `start` upwards."""
        top = self.y(start + value)
        self.parts.append(
            f'<rect x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{self.y(start) - top:.1f}" fill="{colour}"/>'
        )

    def legend(self, entries):
        """(name, colour) below the panels."""
        x, y = self.left, self.top + self.height + 62
        for name, colour in entries:
            self.parts.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" fill="{colour}"/>')
            self.text(x + 17, y, name)
            x += 34 + 6.6 * len(name)

    def written(self):
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="12">'
        )
        return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *self.parts, "</svg>", ""])
