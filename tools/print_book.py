"""Print the whole book into one PDF, with Chromium, from a build of all pages in one.

    python tools/print_book.py                     # writes _build/the-residual-stream.pdf
    python tools/print_book.py --target book.pdf

Folded hints and solutions are unfolded, folded cells left out; of a figure that moves, its still
picture is printed. Nothing is fetched: the page and the browser are on this machine.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "_build" / "the-residual-stream.pdf"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 300_000
FOOTER = """<div style="font: 8px sans-serif; width: 100%; text-align: center">
<span class="pageNumber"></span></div>"""
READY = """async () => {
    document.querySelectorAll("details").forEach(d => { d.open = true; });
    document.querySelectorAll(".headerlink").forEach(a => a.remove());
    document.querySelectorAll("img[loading=lazy]").forEach(i => { i.loading = "eager"; });
    await MathJax.startup.promise;
    await Promise.all([...document.images].map(i => i.decode().catch(() => null)));
}"""


def browser_path() -> str:
    """Return where Chromium is.

    Raises:
        FileNotFoundError: It is not installed under any of its names.
    """
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(f"print_book: none of {', '.join(BROWSERS)} is installed")


def build(folder: Path) -> Path:
    """Build all pages in one, in a folder; return the page."""
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ROOT]
    options = ["--builder", "singlehtml", "--path-output", folder]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"print_book: the build failed:\n{done.stderr[-3000:]}")
    built = folder / "_build" / "singlehtml"
    # Sphinx names it after the first page but gives it the links of a page at the root.
    return (built / "book" / "intro.html").rename(built / "whole.html")


def print_page(browser: Browser, page: Path, target: Path) -> None:
    """Print one page of HTML into a PDF: A4, numbered, tagged, with an outline."""
    opened = browser.new_page(color_scheme="light")
    opened.set_default_timeout(PATIENCE)
    opened.goto(page.as_uri(), wait_until="load")
    opened.evaluate(READY)
    target.parent.mkdir(parents=True, exist_ok=True)
    opened.pdf(
        path=target,
        format="A4",
        margin={"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"},
        display_header_footer=True,
        header_template="<span></span>",
        footer_template=FOOTER,
        print_background=True,
        tagged=True,
        outline=True,
    )
    opened.close()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", type=Path, default=TARGET)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path(), args=["--no-sandbox", "--disable-gpu"]
        )
        print_page(browser, build(Path(folder)), options.target)
        browser.close()
    print(f"{options.target}: {options.target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
