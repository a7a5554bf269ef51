"""Bars, as SVG, for light and dark pages: each as long as the median, with a line from the least to the most."""

from html import escape

COLOURS = {"haproxy": "#8c959f", "pgbouncer": "#bf8700", "fenced": "#1f6feb", "unfenced": "#54aeff"}
WIDTH, LEFT, BAR, GAP = 840, 230, 13, 10
STYLE = """<style>text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:14px}.value{font-size:10px}
.range{stroke:#1f2328;stroke-width:1.5;opacity:.55}
@media (prefers-color-scheme: dark){text{fill:#e6edf3}.range{stroke:#e6edf3}}</style>"""


def plot(panels, names):
    """Of each panel: its title, {group: {series: (least, median, most)}}, and the format of a value."""
    parts, y = [], 24
    used = [way for way in COLOURS if any(way in group for _, groups, _ in panels for group in groups.values())]
    for number, way in enumerate(used):
        parts.append(f'<rect x="{10 + number * 205}" y="{y - 11}" width="12" height="12" fill="{COLOURS[way]}"/>'
                     f'<text x="{28 + number * 205}" y="{y}">{escape(names[way])}</text>')
    for title, groups, shape in panels:
        y += 36
        parts.append(f'<text class="title" x="10" y="{y}">{escape(title)}</text>')
        y += 12
        longest = max(most for group in groups.values() for _, _, most in group.values()) or 1
        length = lambda value: max(1, (WIDTH - LEFT - 60) * max(value, 0) / longest)
        for name, group in groups.items():
            parts.append(f'<text x="{LEFT - 10}" y="{y + BAR * (len(group) + 1) / 2}" text-anchor="end">{escape(name)}</text>')
            for way, (least, value, most) in group.items():
                parts.append(f'<rect x="{LEFT}" y="{y + 1:.0f}" width="{length(value):.1f}" height="{BAR - 2}" fill="{COLOURS[way]}"/>'
                             f'<path class="range" d="M{LEFT + length(least):.1f} {y + BAR / 2}H{LEFT + length(most):.1f}"/>'
                             f'<text class="value" x="{LEFT + length(most) + 4:.1f}" y="{y + BAR - 3}">{shape.format(value)}</text>')
                y += BAR
            y += GAP
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 4}" role="img" '
            f'aria-label="What a proxy costs">{STYLE}\n' + "\n".join(parts) + "\n</svg>\n")
