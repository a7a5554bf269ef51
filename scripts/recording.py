#!/usr/bin/env python3
"""Draws docs/demo.svg: `fencegate demo` as an animated terminal, from a real run. Usage: recording.py PROGRAM

The picture shows the scenes in SHOWN and the summary. Lines appear in the order and with the waits of the run. A line also waits
until a reader has finished the one before, because the demo prints most lines within milliseconds; its own times stay in the
text. Without animation, or if the reader prefers reduced motion, the picture shows the end."""

import os, pathlib, pty, re, subprocess, sys, time
from html import escape

TARGET = pathlib.Path(__file__).resolve().parent.parent / "docs/demo.svg"
SHOWN, LEFT_OUT = "12", "(Scenes 3 to 5 are left out here.)"
# Size of the terminal, in characters. On a phone 375 pixels wide, 58 columns give letters of 10 pixels, and 80 columns of 7.
COLUMNS, ROWS = 58, 24
# Number of characters to remove from the indentation, and the column where a statement begins and a long one continues.
DEDENT, INDENT = 4, 21
FONT, ADVANCE, LINE, MARGIN = 13, 7.8, 18, 12
# Seconds: to read a row, the longest wait, after a scene, and after the end.
READ, WAIT, SCENE, END = 0.5, 2.0, 1.5, 5.0
NAMES = {"1": "bold", "2": "dim", "31": "no", "32": "yes"}
STYLE = """.back{fill:#f6f8fa;stroke:#d1d9e0}text{fill:#1f2328;font:13px ui-monospace,SFMono-Regular,Menlo,"Liberation Mono",monospace}
.bold{font-weight:600}.dim{fill:#59636e}.no{fill:#cf222e}.yes{fill:#116329}
@media (prefers-color-scheme:dark){.back{fill:#151b23;stroke:#3d444d}text{fill:#f0f6fc}.dim{fill:#9198a1}.no{fill:#ff7b72}.yes{fill:#3fb950}}"""


def record(program):
    """The lines of the demo, with the second at which each appeared. A pseudo-terminal, because only a terminal gets colors."""
    ours, theirs = pty.openpty()
    demo = subprocess.Popen([program, "demo"], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    lines, rest, start = [], b"", time.monotonic()
    try:
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # Linux: the other end is closed.
                break
            if not read:
                break
            *finished, rest = (rest + read).split(b"\n")
            lines += [(time.monotonic() - start, line.decode().rstrip("\r")) for line in finished]
    finally:
        os.close(ours)
        if sys.exc_info()[0]:
            demo.terminate()
        code = demo.wait()
    if code != 0:
        sys.exit(f"the demo failed with exit code {code}:\n" + "\n".join(line for _, line in lines))
    return lines


def select(lines):
    """The lines of the scenes to show, without the empty ones."""
    shown, selected = True, []
    for at, line in lines:
        plain = re.sub(r"\x1b\[[\d;]*m", "", line)
        if scene := re.match(r"(\d)\. ", plain):
            shown = scene[1] in SHOWN
        elif plain.startswith("Without fencegate the "):
            shown = True
            selected.append((at, f"\x1b[2m{LEFT_OUT}\x1b[0m"))
        if shown and plain:
            selected.append((at, line))
    return selected


def wrap(line):
    """The rows of a line: each is a list of (column, style, text)."""
    cells, style = [], ""
    for code, char in re.findall(r"\x1b\[([\d;]*)m|(.)", line):
        if char:
            cells.append((char, style))
        else:
            style = " ".join(NAMES[it] for it in code.split(";") if it in NAMES)
    if all(char == " " for char, _ in cells[:DEDENT]):
        cells = cells[DEDENT:]
    plain = "".join(char for char, _ in cells)
    timed = re.match(r" +\d+ ms ", plain)
    hang = INDENT if timed and plain[INDENT - 1] == " " else len(plain) - len(plain.lstrip()) or len(re.match(r"(\d\. )?", plain)[0])
    rows, column = [[]], 0
    for word in re.finditer(r"\S+", plain):
        # Results are not aligned: their column is beyond the last.
        aligned = word.start() <= INDENT or not rows[0]
        column = word.start() if aligned and len(rows) == 1 else column + 1
        if column + len(word[0]) > COLUMNS and column > hang:
            rows.append([])
            column = hang
        style = cells[word.start()][1]
        last = rows[-1][-1] if rows[-1] else None
        if last and last[1] == style and last[0] + len(last[2]) + 1 == column:
            rows[-1][-1] = (last[0], style, f"{last[2]} {word[0]}")
        else:
            rows[-1].append((column, style, word[0]))
        column += len(word[0])
    return rows


def draw(lines):
    now, before, top, screen, rows, times, tops = 0.0, lines[0][0], 0, 0, [], [], [(0.0, 0)]
    for at, line in lines:
        if rows:
            now += max(min(at - before, WAIT), READ * taken)
        before = at
        wrapped = wrap(line)
        taken = len(wrapped)
        if re.match(r"\x1b\[1m\d\. ", line):
            # A scene begins on an empty screen.
            now += SCENE if rows else 0
            screen = len(rows)
        rows += wrapped
        times += [now] * taken
        if max(screen, len(rows) - ROWS) != top:
            top = max(screen, len(rows) - ROWS)
            tops.append((now, top))
    loop = now + READ * taken + END
    percent = lambda at: f"{100 * at / loop:.2f}%"
    texts, frames = [], []
    for number, (row, at) in enumerate(zip(rows, times)):
        spans = (f'<tspan x="{column * ADVANCE:.1f}"{f" class={chr(34)}{style}{chr(34)}" if style else ""}>{escape(text, False)}</tspan>'
                 for column, style, text in row)
        texts.append(f'<text id="r{number}" y="{number * LINE + FONT}">{"".join(spans)}</text>')
        if at:
            frames.append(f"#r{number}{{animation-name:a{number}}}@keyframes a{number}{{0%{{visibility:hidden}}{percent(at)}{{visibility:visible}}}}")
    scroll = "".join(f"{percent(at)}{{transform:translateY({-top * LINE}px)}}" for at, top in tops)
    width, height = round(COLUMNS * ADVANCE + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
    motion = "\n".join([f"text,#screen{{animation:{loop:.1f}s step-end infinite}}", f"#screen{{animation-name:scroll}}@keyframes scroll{{{scroll}}}", *frames])
    TARGET.write_text(f"""<svg xmlns="http://www.w3.org/2000/svg" width="600" viewBox="0 0 {width} {height}" role="img" aria-label="A recording of fencegate demo">
<style>
{STYLE}
@media (prefers-reduced-motion:no-preference){{
{motion}
}}
</style>
<rect class="back" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>
<svg x="{MARGIN}" y="{MARGIN}" width="{width - MARGIN}" height="{ROWS * LINE}"><g id="screen" transform="translate(0 {-tops[-1][1] * LINE})">
{chr(10).join(texts)}
</g></svg>
</svg>
""")
    print(f"{TARGET.name}: {TARGET.stat().st_size} bytes, {len(rows)} rows, a loop of {loop:.1f} s")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    draw(select(record(sys.argv[1])))
