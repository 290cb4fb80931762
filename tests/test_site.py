"""The site builds strictly from nothing, holds together, and asks no other host for anything."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urljoin, urlsplit

import nbformat
import pandas as pd
import pytest
import yaml
from addresses import description
from chapter_minutes import in_words, measured
from docutils import nodes
from plain_indices import without_counts

from print_book import READY, print_page
from setup_cell import homepage, repository, tag

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
#: The path that the site has at its host; GitHub Pages puts a project's site into a folder.
BASE = urlsplit(homepage()).path
SCREENSHOTS = ROOT / "_build" / "screenshots"
AXE = (ROOT / "tests" / "vendor" / "axe.min.js").read_text(encoding="utf-8")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: Without these Chromium itself calls its maker's hosts.
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Milliseconds that a page may take: generous, since the notebooks run beside it.
PATIENCE = 180_000
VIEWS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 375, "height": 740}},
}


class Page(HTMLParser):
    """Of one page the ids, the links, the loaded addresses, its head and its neighbours."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.said: dict[str, str] = {}
        self.around: dict[str, str] = {}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        """Note what the tag brings."""
        values = dict(attrs)
        if values.get("id"):
            self.ids.add(values["id"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
            for side in {"left-prev", "right-next"} & set((values.get("class") or "").split()):
                self.around[side] = values["href"]
        elif tag == "link" and values.get("rel") == "canonical":
            self.said["canonical"] = values["href"]
        elif tag == "link" and values.get("href"):
            self.loaded.append(values["href"])
        elif tag == "meta" and values.get("content"):
            self.said[values.get("property") or values.get("name") or ""] = values["content"]
        if values.get("src"):
            self.loaded.append(values["src"])


def build(source: Path, target: Path) -> subprocess.CompletedProcess:
    """Build the book strictly, from nothing, into target/_build/html."""
    command = [Path(sys.executable).with_name("jupyter-book"), "build", source]
    options = ["-W", "-n", "--keep-going", "--path-output", target]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the built site."""
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT, target)
    if done.returncode:
        said = [
            x for x in (done.stdout + done.stderr).splitlines() if "WARNING:" in x or "rror:" in x
        ]
        pytest.fail("the strict build failed:\n" + "\n".join(said or [done.stderr[-3000:]]))
    return target / "_build" / "html"


@pytest.fixture(scope="module")
def pages(site) -> dict[str, Page]:
    """Every page of the site, by its path from the site's root."""
    found = [p for p in site.rglob("*.html") if "_static" not in p.relative_to(site).parts]
    return {p.relative_to(site).as_posix(): Page(p) for p in sorted(found)}


def test_every_chapter_has_its_page(pages):
    assert CHAPTERS
    assert {f"chapters/{path.stem}.html" for path in CHAPTERS} <= set(pages)


def test_every_internal_link_and_anchor_resolves(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = unquote(urlsplit(urljoin(f"{BASE}{name}", link)).path).removeprefix(BASE)
            target = target or "index.html"
            if not (site / target).is_file():
                broken.append(f"{name}: {link}")
            elif parts.fragment and target in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[target].ids:
                    broken.append(f"{name}: {link} (no such anchor)")
    assert broken == []


def test_no_page_names_another_host_to_load_from(pages):
    loaded = {(n, a) for n, p in pages.items() for a in p.loaded if urlsplit(a).netloc}
    assert loaded == set()


def test_the_first_page_leads_to_the_landing_page(site):
    assert 'url=book/intro.html"' in (site / "index.html").read_text(encoding="utf-8")


#: Pages that have a text of their own: not the redirect, the search and the one for no page.
def texts(pages) -> dict[str, Page]:
    return {n: p for n, p in pages.items() if n not in ("index.html", "search.html", "404.html")}


def test_every_page_says_where_it_lives_and_what_a_card_of_it_shows(site, pages):
    cards = set()
    for name, page in texts(pages).items():
        assert page.said["canonical"] == page.said["og:url"] == homepage() + name
        assert page.said["description"] == page.said["og:description"]
        assert 40 <= len(page.said["description"]) <= 202, name
        assert (site / page.said["og:image"].removeprefix(homepage())).is_file()
        cards.add((page.said["og:title"], page.said["og:description"]))
    assert len(cards) == len(texts(pages))


def test_a_description_ends_with_a_sentence_or_a_word():
    def page(*paragraphs):
        document = nodes.document(None, None)
        section = nodes.section()
        section += [nodes.paragraph("", text) for text in paragraphs]
        document += section
        return document

    long = "The first of the sentences says what the page is about, and takes a while. "
    assert description(page("Short.", long)) == long.strip()
    assert description(page(long * 3)) == (long * 2).strip()
    assert description(page("word " * 100)).endswith("word …")
    assert len(description(page("word " * 100))) <= 202
    assert description(page("Short.")) == "The Residual Stream: an executable textbook."


def test_the_sitemap_lists_every_page_once(site, pages):
    listed = re.findall(r"<loc>(.*?)</loc>", (site / "sitemap.xml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(homepage() + name for name in texts(pages))


def test_one_can_page_through_the_whole_book_and_back(pages):
    for side, start in (("right-next", "book/intro.html"), ("left-prev", "book/changelog.html")):
        seen, at = [], start
        while at not in seen:
            seen.append(at)
            following = pages[at].around.get(side)
            at = urljoin(f"/{at}", following).lstrip("/") if following else at
        assert set(seen) == set(texts(pages)), side


def test_every_page_has_the_icon(site, pages):
    for name in texts(pages):
        text = (site / name).read_text(encoding="utf-8")
        assert re.search(r'<link rel="icon" href="[./]*_static/favicon.svg', text), name
    assert "<svg" in (site / "_static" / "favicon.svg").read_text(encoding="utf-8")


def test_every_chapter_says_how_long_its_cells_took(site):
    times = measured(ROOT / "chapters")
    assert set(times) == {path.stem for path in CHAPTERS}
    contents = (site / "book" / "how_to_use.html").read_text(encoding="utf-8")
    for path in CHAPTERS:
        page = (site / "chapters" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert f"all cells took {in_words(times[path.stem])} of processor time" in page
        title = nbformat.read(path, 4).cells[0].source.splitlines()[0].removeprefix("# ")
        row = re.search(rf"<tr[^>]*>(?:(?!</tr>).)*{re.escape(title)}.*?</tr>", contents, re.DOTALL)
        assert in_words(times[path.stem]) in row[0]


def test_every_claim_of_a_chapter_is_on_its_page_and_linked_from_the_list(pages):
    listed = set(
        re.findall(r"chapters/(\S+?)\.html#(claim-\w+)", "\n".join(pages["book/claims.html"].links))
    )
    for path in CHAPTERS:
        on_page = {i for i in pages[f"chapters/{path.stem}.html"].ids if i.startswith("claim-")}
        assert on_page == {anchor for name, anchor in listed if name == path.stem}


def test_every_figure_of_a_chapter_has_its_alt_text_on_the_page(site):
    for path in CHAPTERS:
        text = (site / "chapters" / f"{path.stem}.html").read_text(encoding="utf-8")
        pictures = re.findall(r"<img[^>]*_images/[^>]*>", text)
        assert pictures
        for picture in pictures:
            alt = re.search(r'alt="([^"]*)"', picture)
            assert alt and len(alt[1]) >= 40 and not alt[1].endswith(".png"), picture


def test_the_colab_button_of_a_chapter_opens_that_chapter_at_the_tag(pages):
    for path in CHAPTERS:
        links = [x for x in pages[f"chapters/{path.stem}.html"].links if "colab" in x]
        place = repository().removeprefix("https://github.com/")
        assert links == [
            f"https://colab.research.google.com/github/{place}/blob/{tag()}/chapters/{path.name}"
        ]


def test_every_sheet_is_linked_on_colab_at_the_tag(pages):
    student = sorted((ROOT / "assignments" / "student").glob("*.ipynb"))
    assert student
    place = repository().removeprefix("https://github.com/")
    links = [x for x in pages["book/instructors.html"].links if "//colab" in x]
    assert links == [
        f"https://colab.research.google.com/github/{place}/blob/{tag()}/assignments/student/{p.name}"
        for p in student
    ]


def test_the_reference_documents_every_public_name(pages):
    import residual_stream as rs

    for name in rs.__all__:
        kind = "module-" if isinstance(getattr(rs, name), ModuleType) else ""
        identity = f"{kind}residual_stream.{name}"
        assert identity in pages["book/api.html"].ids, f"rs.{name} is missing in book/api.md"


def test_every_prediction_result_and_correction_has_its_class(site):
    box = re.compile(
        r"<blockquote([^>]*)>\s*<div>\s*<p><strong>(Prediction|Result|Correction)\b", re.DOTALL
    )
    for path in CHAPTERS:
        text = (site / "chapters" / f"{path.stem}.html").read_text(encoding="utf-8")
        found = box.findall(text)
        expected = {"Prediction", "Correction"}
        if '<a id="claim-' in text:  # the last chapter tests no claim of its own
            expected.add("Result")
        assert {kind for _, kind in found} == expected
        for attributes, kind in found:
            assert attributes == f' class="box box-{kind.lower()}"', path.stem
        if "Result" in expected:  # the last chapter quotes the story that it tells
            assert len(found) == text.count("<blockquote"), f"{path.stem}: a quote of no kind"


@pytest.mark.parametrize(
    ("labels", "kept"),
    [(["0", "1", "2"], False), (["0", "2", "4"], True), (["1", "2"], True), (["a", "b"], True)],
)
def test_row_numbers_that_only_count_are_hidden_and_an_index_that_says_something_stays(
    labels, kept
):
    frame = pd.DataFrame({"x": range(len(labels))}, index=labels)
    shown = without_counts(frame.to_html(border=1))
    cells = re.findall(r"<th[^>]*>([^<]*)</th>", shown)
    assert cells == (["", "x", *labels] if kept else ["x"])
    assert shown.count("<td>") == len(labels)


def luminance(colour: str) -> float:
    """Relative luminance of a colour #rrggbb, WCAG 2.2."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_labels_of_the_boxes_can_be_read_on_their_ground(theme):
    style = (ROOT / "book" / "_static" / "book.css").read_text(encoding="utf-8")
    block = re.search(rf'html\[data-theme="{theme}"\] {{\n(  --box.*?)}}', style, re.DOTALL)[1]
    colours = dict(re.findall(r"--box-(\w+): (#[0-9a-f]{6})", block))
    ground = luminance(colours.pop("ground"))
    assert set(colours) == {"prediction", "result", "correction"}
    for kind, colour in colours.items():
        dark, light = sorted((luminance(colour), ground))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, kind


def test_address_and_tag_are_the_same_everywhere():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert "repository" not in config  # book/_ext/addresses.py sets it
    assert citation["repository-code"] == repository()
    assert f"v{citation['version']}" == tag()
    address = re.compile(r"github\.com/the-residual-stream|the-residual-stream\.github")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kinds = (".py", ".md", ".toml", ".yml", ".cff", "Makefile")
    files = {n: ROOT / n for n in listed.split("\n") if n.endswith(kinds) and (ROOT / n).is_file()}
    typed = {n for n, path in files.items() if address.search(path.read_text(encoding="utf-8"))}
    assert typed - {"tests/test_site.py"} == {"pyproject.toml", "CITATION.cff"}


SMALL_BOOK = {
    "conf.py": """
import sys
sys.path.insert(0, EXTENSIONS)
extensions = ["myst_parser", "html_anchors"]
""",
    "index.md": """
# One

<a id="here"></a>**x** [a](#here) [b](other.md#there)

```{toctree}
other
```
""",
    "other.md": """
# Two

<a id="there"></a>**y** [c](index.md#here)
""",
}


@pytest.mark.parametrize(
    ("replaced", "by", "said"),
    [
        ("", "", None),
        ("other.md#there", "other.md#nowhere", "nowhere"),
        ("(#here)", "(#lost)", "lost"),
    ],
)
def test_the_strict_build_finds_an_anchor_that_is_not_there(tmp_path, replaced, by, said):
    for name, text in SMALL_BOOK.items():
        text = text.replace("EXTENSIONS", repr(str(ROOT / "book" / "_ext")))
        (tmp_path / name).write_text(text.replace(replaced, by) if replaced else text)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-n", "--keep-going", tmp_path]
    done = subprocess.run([*command, tmp_path / "out"], capture_output=True, text=True)
    assert (done.returncode != 0) == (said is not None), done.stderr
    assert said is None or said in done.stderr


@pytest.fixture(scope="module")
def served(site):
    """The address at which the site is served, on this machine alone, much as GitHub Pages does."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def translate_path(self, path):
            return super().translate_path("/" + path.removeprefix(BASE).lstrip("/"))

        def send_error(self, code, message=None, explain=None):
            body = (site / "404.html").read_bytes() if (site / "404.html").is_file() else b""
            self.send_response(code)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; where there is none an error in CI, and a skip elsewhere."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        message = f"no browser: none of {', '.join(BROWSERS)} is installed"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=CHROMIUM_OPTIONS)
        yield running
        running.close()


def open_view(browser, served, view):
    """Return a page set up for a view, and the list that it writes its troubles to."""
    page = browser.new_context(**VIEWS[view]).new_page()
    troubles = []

    def is_foreign(address):
        return not address.startswith((served, "data:", "blob:"))

    page.set_default_timeout(PATIENCE)
    page.on("request", lambda r: is_foreign(r.url) and troubles.append(f"asks {r.url}"))
    page.on("console", lambda m: m.type == "error" and troubles.append(f"console: {m.text}"))
    page.on("pageerror", lambda error: troubles.append(f"script: {error}"))
    page.on("response", lambda r: r.status >= 400 and troubles.append(f"{r.status} {r.url}"))
    return page, troubles


MATHS_READY = """() => !document.querySelector(".math")
    || (window.MathJax && MathJax.startup && MathJax.startup.promise)"""
ANSWERS = """async () => {
    if (document.querySelector(".math")) await MathJax.startup.promise;
    return {
        theme: document.documentElement.dataset.theme,
        over: document.documentElement.scrollWidth - window.innerWidth,
        formulas: document.querySelectorAll(".math").length,
        drawn: document.querySelectorAll(".math mjx-container").length,
        failed: document.querySelectorAll("mjx-merror").length,
        barred: [...document.querySelectorAll("p mjx-container:not([display])")].filter(
            e => getComputedStyle(e).overflowX != "visible"
                && getComputedStyle(e).scrollbarWidth != "none").length,
    };
}"""


VIOLATIONS = """async () => {
    const levels = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
    const found = await axe.run(document, {runOnly: levels, resultTypes: ["violations"]});
    return found.violations.map(v => `${v.id}: ${v.help}, ${v.nodes.length} times, first ${
        v.nodes[0].html.slice(0, 200)}`);
}"""


@pytest.mark.parametrize("view", VIEWS)
def test_every_page_opens_clean(browser, served, pages, view):
    page, troubles = open_view(browser, served, view)
    problems = []
    for path in pages:
        if path == "index.html":  # a redirect: the page it leads to is looked at itself
            continue
        troubles.clear()
        before = len(problems)
        page.goto(f"{served}/{path}", wait_until="networkidle")
        page.wait_for_function(MATHS_READY)
        answers = page.evaluate(ANSWERS)
        problems += [f"{path}: {trouble}" for trouble in troubles]
        if answers["theme"] != VIEWS[view]["color_scheme"] and path != "404.html":
            problems.append(f"{path}: the theme is {answers['theme']}")
        if answers["over"] > 1:
            problems.append(f"{path}: {answers['over']} px wider than the window")
        if answers["drawn"] < answers["formulas"] or answers["failed"]:
            problems.append(f"{path}: formulas {answers}")
        if answers["barred"]:
            problems.append(f"{path}: {answers['barred']} formulas in a sentence have scroll bars")
        page.evaluate(AXE)
        problems += [f"{path}: {found}" for found in page.evaluate(VIOLATIONS)]
        if len(problems) > before:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            name = f"{view}-{path.replace('/', '-')}.png"
            page.screenshot(path=SCREENSHOTS / name, full_page=True)
    page.context.close()
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_a_missing_page_is_answered_at_any_depth_and_leads_back(browser, served):
    page = browser.new_context(**VIEWS["phone"]).new_page()
    page.set_default_timeout(PATIENCE)
    for missing in ("nothing.html", "chapters/01_bus.html/nothing/at/all"):
        answer = page.goto(f"{served}{BASE}{missing}")
        assert answer.status == 404
        assert page.get_by_role("heading").inner_text() == "No such page"
    page.get_by_role("link", name="The first page").click()
    page.wait_for_load_state("networkidle")
    assert "The Residual Stream" in page.get_by_role("heading", level=1).first.inner_text()
    page.context.close()


def test_a_chapter_transfers_at_most_three_megabytes(browser, served):
    for path in CHAPTERS:
        page, _ = open_view(browser, served, "light")  # a context of its own: nothing is cached
        answers = []
        page.on("response", lambda answer, seen=answers: seen.append(answer))
        page.goto(f"{served}/chapters/{path.stem}.html", wait_until="networkidle")
        packed = {}  # GitHub Pages packs texts; pictures and fonts are packed already
        for response in answers:  # it grows: asking for a body lets the page go on
            address = response.url
            if address.startswith(served) and address not in packed:
                body = response.body()
                whole = address.split("?")[0].endswith((".png", ".woff", ".woff2"))
                packed[address] = len(body if whole else gzip.compress(body, 6))
        print(f"{path.stem}: {sum(packed.values()) / 1e6:.2f} MB in {len(packed)} requests")
        assert sum(packed.values()) <= 3_000_000
        page.context.close()


def test_a_page_prints_with_its_outline_and_nothing_folded(browser, served, site, tmp_path):
    print_page(browser, site / "chapters" / f"{CHAPTERS[0].stem}.html", tmp_path / "page.pdf")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", printed)) > 10
    assert b"/Outlines" in printed and b"/StructTreeRoot" in printed
    page, _ = open_view(browser, served, "light")
    page.goto(f"{served}/chapters/{CHAPTERS[0].stem}.html", wait_until="networkidle")
    page.emulate_media(media="print")
    page.evaluate(READY)
    shut = "details:not([open]):not(.hide)"
    assert page.locator(shut).count() == 0 < page.locator("details[open]").count()
    assert page.locator("details.hide").first.is_hidden()
    wide = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.locator(".bd-article div.cell pre").evaluate_all(wide) == 0
    page.context.close()


def test_the_search_finds_a_page(browser, served):
    page, troubles = open_view(browser, served, "light")
    page.goto(f"{served}/search.html?q=superposition", wait_until="networkidle")
    page.wait_for_selector("#search-results li a")
    links = page.locator("#search-results li a").evaluate_all("all => all.map(a => a.href)")
    page.context.close()
    assert any("glossary" in link for link in links)
    assert troubles == []


WIDGET_VIEW = "script[type='application/vnd.jupyter.widget-view+json']"


def test_every_widget_starts_and_its_control_changes_what_is_said(browser, served, site, pages):
    page, troubles = open_view(browser, served, "phone")
    view = re.compile(r'<script type="application/vnd\.jupyter\.widget-view\+json"')
    moving = [n for n in pages if view.search((site / n).read_text(encoding="utf-8"))]
    chapters = {f"chapters/{path.stem}.html" for path in CHAPTERS}
    assert {*chapters, "book/intro.html", "book/predictions.html"} <= set(moving)
    for path in moving:
        page.goto(f"{served}/{path}", wait_until="load")
        start = time.perf_counter()
        page.wait_for_selector(".rs-widget [role=status]")
        print(f"{path}: the first widget is there {time.perf_counter() - start:.2f} s after load")
        page.wait_for_load_state("networkidle")
        widgets = page.locator(WIDGET_VIEW).count()
        assert widgets
        page.wait_for_function(
            f"() => document.querySelectorAll('.rs-widget').length === {widgets}"
        )
        for widget in page.locator(".rs-widget:has([type=range])").all():
            before = widget.get_by_role("status").inner_text()
            slider = widget.get_by_role("slider").first
            slider.press("Home")
            slider.press("ArrowRight")
            assert widget.get_by_role("status").inner_text() != before
        for widget in page.locator(".rs-widget:has(fieldset [type=radio])").all():
            before = widget.get_by_role("status").inner_text()
            widget.get_by_role("radio").first.press("Space")
            assert widget.get_by_role("status").inner_text() != before
        for widget in page.locator(".rs-widget:has(fieldset [type=checkbox])").all():
            before = widget.get_by_role("status").inner_text()
            widget.get_by_role("checkbox").first.press("Space")
            assert widget.get_by_role("status").inner_text() != before
    page.context.close()
    assert troubles == []


def test_what_is_predicted_in_a_chapter_is_listed_on_the_page_for_the_whole_book(browser, served):
    page, troubles = open_view(browser, served, "light")
    page.goto(f"{served}/chapters/{CHAPTERS[-1].stem}.html", wait_until="networkidle")
    page.locator(".rs-widget").first.get_by_role("radio").first.check()
    page.goto(f"{served}/book/predictions.html", wait_until="networkidle")
    titles = page.locator(".rs-title")
    assert titles.count() == len(CHAPTERS)
    assert [text.split(" of ")[0][-1] for text in titles.all_inner_texts()[-2:]] == ["0", "1"]
    assert page.locator(".rs-list li").count() == 1
    titles.last.get_by_role("link").click()
    page.wait_for_url(f"**/chapters/{CHAPTERS[-1].stem}.html")
    page.context.close()
    assert troubles == []
