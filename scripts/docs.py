#!/usr/bin/env python3
"""Builds the documentation as a site in target/docs, with mdBook.

The pages link to files outside docs, such as README.md and the examples. The source of the book is therefore a copy of all pages
and of the files that they link to. Fails if the site has a broken link. Usage: docs.py MDBOOK"""

import html.parser, os, pathlib, re, shutil, subprocess, sys, urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
STAGE, SITE = ROOT / "target/book", ROOT / "target/docs"
LINK = re.compile(r"\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def stage():
    """Copies the pages and the files that they link to."""
    shutil.rmtree(STAGE, ignore_errors=True)
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    pages += [page for folder in ("docs", "examples", "fuzz") for page in sorted((ROOT / folder).rglob("*.md"))]
    # Not the packages that npm installs there.
    pages += [ROOT / "clients/README.md", *sorted((ROOT / "clients").glob("*/README.md"))]
    for page in pages:
        def staged(match):
            target = (page.parent / match[1]).resolve()
            if target.is_dir():
                # The site has no directory listings.
                index = target if (target / "README.md").exists() else ROOT
                return f"]({as_index(os.path.relpath(index / 'README.md', page.parent))})"
            if target.suffix != ".md" and target.exists():
                copy(target)
            return f"]({as_index(match[1])}{match[2] or ''})"

        text = LINK.sub(staged, page.read_text())
        for picture in re.findall(r'(?:src|srcset)="([^":]+)"', text):
            copy((page.parent / picture).resolve())
        write(page, text)
    # Paths in a book's summary are relative to the root of its source.
    summary = (ROOT / "docs/SUMMARY.md").read_text()
    summary = LINK.sub(lambda link: f"]({as_index(os.path.normpath('docs/' + link[1]))})", summary)
    (STAGE / "SUMMARY.md").write_text(summary)
    (STAGE / "docs/SUMMARY.md").unlink()


def as_index(link):
    """Renames README.md to the page that a server shows for a folder."""
    return re.sub(r"(^|/)README\.md$", r"\1index.md", link)


def copy(file):
    target = STAGE / file.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def write(page, text):
    target = STAGE / as_index(str(page.relative_to(ROOT)))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


class Page(html.parser.HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.anchors.add(value)
            elif name in ("href", "src", "srcset") and value:
                self.links.append(value)


def broken_links():
    pages = {file: Page(file.read_text()) for file in SITE.rglob("*.html")}
    for file, page in pages.items():
        # These are not pages: their links are relative to the page that shows them.
        if file.name in ("404.html", "toc.html", "print.html"):
            continue
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (file.parent / urllib.parse.unquote(url.path)).resolve() if url.path else file
            if target.is_dir():
                target /= "index.html"
            if not target.exists() or (url.fragment and target in pages and url.fragment not in pages[target].anchors):
                yield f"{file.relative_to(SITE)}: {link}"


stage()
subprocess.run([sys.argv[1], "build", str(ROOT)], check=True)
broken = sorted(set(broken_links()))
if broken:
    sys.exit("broken links in the site:\n" + "\n".join(broken))
print(f"{SITE}/index.html")
