"""Where the book lives: read from pyproject.toml, written into every page.

`[project.urls]` there holds the two addresses, the site's (Homepage) and the repository's. From
them come the buttons of the theme, canonical links, the card that a social network shows of a page,
the sitemap, the page for an address that does not exist, and where a page has the line
`% sheets on Colab`, the links that open the students' sheets.
"""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from string import Template
from urllib.parse import urljoin, urlsplit
from xml.sax.saxutils import escape

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

from setup_cell import homepage, repository, tag  # noqa: E402

NAME = "The Residual Stream"
CARD = "_static/landing.png"
CARD_ALT = "One sentence climbing through thirty layers: what the logit lens reads at each depth."
LONGEST = 200
SHEETS = re.compile(r"^% sheets on Colab$", re.MULTILINE)
NOT_FOUND = Path(__file__).with_name("not_found.html")


def configure(app: Sphinx, config: Config) -> None:
    """Hand the addresses to Sphinx and to the theme."""
    config.html_baseurl = homepage()
    config.html_theme_options.update(
        repository_url=repository(), repository_branch=tag(), path_to_docs=""
    )


def on_colab(path: str) -> str:
    """Return the address that opens a notebook of the repository on Colab, at the tag."""
    place = urlsplit(repository()).path.strip("/")
    return f"https://colab.research.google.com/github/{place}/blob/{tag()}/{path}"


def sheets() -> str:
    """Return the links to the students' sheets in Markdown."""
    links = []
    for path in sorted(ROOT.glob("assignments/student/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title = "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")
        links.append(f"- [{title}]({on_colab(path.relative_to(ROOT).as_posix())})")
    return "\n".join(links)


def link_sheets(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the links to the sheets where a page asks for them."""
    source[0] = SHEETS.sub(lambda _: sheets(), source[0])


def description(doctree: nodes.document) -> str:
    """Return the first sentences of a page, at most 200 characters of them."""
    for paragraph in doctree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        if isinstance(paragraph.parent, nodes.section) and len(text) >= 40:
            break
    else:
        return f"{NAME}: an executable textbook."
    if len(text) <= LONGEST:
        return text
    cut = text[:LONGEST]
    end = cut.rfind(". ")
    return cut[: end + 1] if end > 60 else cut[: cut.rfind(" ")] + " …"


def card(title: str, said: str, address: str) -> str:
    """Return the meta elements of a page's card (Open Graph, and Twitter's one word)."""
    named = {"description": said, "twitter:card": "summary_large_image"}
    properties = {
        "og:type": "article",
        "og:site_name": NAME,
        "og:title": title,
        "og:description": said,
        "og:url": address,
        "og:image": urljoin(homepage(), CARD),
        "og:image:alt": CARD_ALT,
    }
    lines = [f'<meta name="{k}" content="{html.escape(v)}" />' for k, v in named.items()]
    lines += [f'<meta property="{k}" content="{html.escape(v)}" />' for k, v in properties.items()]
    return "\n".join(["", *lines, ""])


def describe(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Put the card into the head of a page that has a text."""
    if doctree is not None:
        title = nodes.Text(app.env.titles[pagename].astext()).astext()
        address = urljoin(homepage(), f"{pagename}.html")
        context["metatags"] = context.get("metatags", "") + card(
            title, description(doctree), address
        )


def sitemap(pages: list[str]) -> str:
    """Return the sitemap (sitemaps.org, 0.9) of pages given by name."""
    lines = [f"  <url><loc>{escape(urljoin(homepage(), f'{p}.html'))}</loc></url>" for p in pages]
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    head = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{space}">'
    return "\n".join([head, *lines, "</urlset>", ""])


def not_found() -> str:
    """Return the page for a missing address, at whatever depth; it loads nothing."""
    template = Template(NOT_FOUND.read_text(encoding="utf-8"))
    return template.substitute(home=urlsplit(homepage()).path)


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write the sitemap and the page for a missing address beside the pages."""
    if exception is None and app.builder.name == "html":
        out = Path(app.outdir)
        (out / "sitemap.xml").write_text(sitemap(sorted(app.env.found_docs)), encoding="utf-8")
        (out / "404.html").write_text(not_found(), encoding="utf-8")


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.connect("config-inited", configure, priority=100)
    app.connect("source-read", link_sheets)
    app.connect("html-page-context", describe)
    app.connect("build-finished", finish)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
