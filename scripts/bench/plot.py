"""Draws docs/performance.svg from the first table of docs/reference/performance.md: one group of bars, each as long as the
median, with a line from the minimum to the maximum."""

import pathlib
import re
from html import escape

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
ROW = "prepared, 8 clients"
WIDTH, RIGHT, BAR, GAP = 640, 62, 20, 9
STYLE = """<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:14px}.small{font-size:12px;fill:#59636e}
.other{fill:#afb8c1}.own{fill:#54aeff}.range{stroke:#1f2328;stroke-width:1.5;opacity:.6}
@media (prefers-color-scheme: dark){text{fill:#f0f6fc}.small{fill:#9198a1}.other{fill:#656c76}.own{fill:#1f6feb}.range{stroke:#f0f6fc}}</style>"""


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def figures(page):
    """Returns the name of each column of the row, and the texts of median, minimum and maximum."""
    lines = page.read_text().splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith(f"| {ROW} |"))
    head = next(lines[above - 1] for above in range(place, 0, -1) if lines[above].startswith("| ---"))
    return [(name, *re.fullmatch(r"(\S+) \((\S+) to (\S+)\)", cell).groups())
            for name, cell in list(zip(cells(head), cells(lines[place])))[1:]]


def draw():
    rows = figures(DOCS / "reference/performance.md")
    number = lambda text: int(text.replace(",", ""))
    longest = max(number(most) for *_, most in rows)
    length = lambda text: (WIDTH - 10 - RIGHT) * number(text) / longest
    label = ", ".join(f"{name} {median}" for name, median, _, _ in rows)
    parts, y = [], 24
    parts.append(f'<text class="title" x="10" y="{y}">Transactions per second</text>')
    y += 18
    parts.append(f'<text class="small" x="10" y="{y}">pgbench -S, {ROW}: median, minimum to maximum</text>')
    y += 12
    for name, median, least, most in rows:
        middle = y + 18 + BAR / 2
        parts.append(f'<text x="10" y="{y + 13}">{escape(name)}</text>'
                     f'<rect class="{"own" if "fencegate" in name else "other"}" x="10" y="{y + 18}" width="{length(median):.1f}" '
                     f'height="{BAR}" rx="2"/>'
                     f'<path class="range" d="M{10 + length(least):.1f} {middle}H{10 + length(most):.1f}"/>'
                     f'<text x="{16 + length(most):.1f}" y="{middle + 4.5}">{median}</text>')
        y += 18 + BAR + GAP
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 2}" role="img" '
            f'aria-label="Transactions per second: {escape(label)}">{STYLE}\n' + "\n".join(parts) + "\n</svg>\n")


def main():
    (DOCS / "performance.svg").write_text(draw())


if __name__ == "__main__":
    main()
