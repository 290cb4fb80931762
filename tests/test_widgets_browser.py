"""Widgets on a page with no kernel: they answer keys, pointer and touch, and say what they show.

The page is a small book of one notebook, built with the site's own extension and script.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch
from ipywidgets.embed import embed_data

import residual_stream as rs
from residual_stream import runs
from residual_stream.path_gradients import PathGradients
from residual_stream.superposition import ToyRecipe, train_toys
from test_site import AXE, PATIENCE, VIEWS, VIOLATIONS, browser, open_view, served  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
STATE = "application/vnd.jupyter.widget-state+json"
CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_nb", "still_widgets", "quiet_pages"]
html_theme = "sphinx_book_theme"
html_static_path = [{static!r}]
html_css_files = ["book.css"]
html_favicon = {favicon!r}
html_context = {{"default_mode": "auto"}}
html_theme_options = {{"navbar_persistent": []}}
nb_execution_mode = "off"
nb_ipywidgets_js = {{"static_widgets.js": {{}}}}
"""
COUNT = 10
BEST, GUESS = 0.6, 2.485
ALT = "Two panels: two arrows at a right angle, then five arrows as a pentagon, in a circle."


def scores():
    found = torch.full((3, 2, 3, 2), 0.5)
    found[0, 1, 2, 0], found[0, 0, 1, 1] = 2.0, 1.0
    return found


def path_lengths():
    """Two splits: one that adds up sensibly, one of five parts that cancel."""
    parts = {}
    for name, sizes in {
        "new": [3.0, 1.0, 0.5],
        "old": [1.0, -3000.0, 9000.0, -6000.0, 1.0],
    }.items():
        values = torch.tensor(sizes)[:, None, None, None] * torch.tensor([[0.5], [1.0]])
        values[1, :, 0] *= 0.5  # position 0 is not like the other place
        parts[name] = PathGradients(values, values.sum(0), "sublayer", torch.ones(1, 1, 2))
    return rs.widgets.path_lengths(parts, pictured=["new", "old"], start=("old", 2))


def widgets():
    toys = train_toys(
        features=5,
        hidden=2,
        sparsity=[0.0, 0.0, 0.5, 0.5, 0.9, 0.9],
        importance=0.9,
        recipe=ToyRecipe(steps=1000),
    )
    options = ["all of it", "about 71 %", "half"]
    return [
        rs.widgets.packing(toys, size=2, pictured=[0.0, 0.9]),
        rs.widgets.predict("small/S2", options, answer="b"),
        rs.widgets.predict("small/S5", options, answer="a", question="What is left?"),
        rs.widgets.predictions("small", ["S2", "S5"]),
        rs.widgets.stored("ledger"),
        rs.widgets.stored("climb"),
        rs.widgets.composition(scores(), kind="K", baseline=(0.5, 0.1), start=(0, 1)),
        path_lengths(),
        rs.widgets.variants(
            runs.stored("cures"), best=BEST, guess=GUESS, start=(24, 0.01), top=2.8
        ),
        rs.widgets.look_back(
            {"Small": ["small/S2", "small/S5"], "Other": ["other/B1"]}, links={"Small": "#one"}
        ),
    ]


def notebook(shown) -> nbformat.NotebookNode:
    """A notebook as an executed one is: outputs in the cells, states in its metadata."""
    make = nbformat.v4
    cells = [make.new_markdown_cell("# Widgets\n\n## One\n\nA page.")]
    for count, widget in enumerate(shown, start=1):
        data, metadata = widget._repr_mimebundle_()
        output = make.new_output("execute_result", data, metadata=metadata, execution_count=count)
        cells.append(make.new_code_cell("widget", outputs=[output], execution_count=count))
    cells[1].metadata["mystnb"] = {
        "image": {"alt": ALT},
        "figure": {"caption": "The rarer, the more.", "name": "fig-packing"},
    }
    book = make.new_notebook(cells=cells)
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    book.metadata["language_info"] = {"name": "python"}
    state = embed_data(shown, drop_defaults=False)["manager_state"]
    book.metadata["widgets"] = nbformat.from_dict({STATE: json.loads(json.dumps(state))})
    return book


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the small book."""
    folder = tmp_path_factory.mktemp("widgets")
    static = ROOT / "book" / "_static"
    places = {
        "extensions": str(ROOT / "book" / "_ext"),
        "static": str(static),
        "favicon": str(static / "favicon.svg"),
    }
    (folder / "conf.py").write_text(CONF.format(**places))
    nbformat.write(notebook(widgets()), folder / "index.ipynb")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-n", "--keep-going", folder]
    done = subprocess.run([*command, folder / "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.fixture
def opened(browser, served, request):  # noqa: F811
    """A function that opens the page in a view and checks, at the end, that nothing went wrong."""
    pages = []

    def open_page(view="light"):
        page, troubles = open_view(browser, served, view)
        page.set_default_timeout(PATIENCE)
        page.goto(f"{served}/index.html", wait_until="networkidle")
        page.wait_for_function(f"document.querySelectorAll('.rs-widget').length === {COUNT}")
        pages.append((page, troubles))
        return page

    yield open_page
    said = [trouble for _, troubles in pages for trouble in troubles]
    for page, _ in pages:
        page.context.close()
    assert said == []


def says(page, widget=0):
    return page.locator(".rs-widget").nth(widget).locator(".rs-says").inner_text()


def arrow(page, index):
    """Where a feature's arrow ends, once it has stopped moving."""
    page.wait_for_timeout(400)
    dot = page.locator(".rs-arrow circle").nth(index)
    return tuple(round(float(dot.get_attribute(name)), 1) for name in ("cx", "cy"))


def test_the_slider_answers_keys_and_says_what_it_shows(opened):
    page = opened()
    assert "two of five are kept, at a right angle" in says(page)
    slider = page.get_by_role("slider", name="Sparsity S")
    assert slider.get_attribute("aria-valuetext") == "0.00"
    before = arrow(page, 4)
    slider.focus()
    page.keyboard.press("End")
    assert "five of five are kept, as a pentagon" in says(page)
    assert slider.get_attribute("aria-valuetext") == "0.90"
    after = arrow(page, 4)
    assert before != after and sum(x * x for x in after) ** 0.5 == pytest.approx(1.1, abs=0.15)
    page.keyboard.press("ArrowLeft")
    assert "four of five are kept, in two antipodal pairs" in says(page)


def test_the_slider_answers_the_pointer(opened):
    page = opened()
    box = page.get_by_role("slider", name="Sparsity S").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    assert "as a pentagon" in says(page)


def test_what_is_said_is_announced_and_the_picture_is_not_read_out(opened):
    page = opened()
    figure = page.get_by_role("group", name="Features in a plane, over sparsity")
    assert figure.get_by_role("status").inner_text() == says(page)
    assert page.locator(".rs-plane").get_attribute("aria-hidden") == "true"
    headers = figure.get_by_role("columnheader").all_inner_texts()
    assert headers == ["feature", "importance", "dimensions it has to itself"]
    assert figure.get_by_role("rowheader").all_inner_texts() == ["1", "2", "3", "4", "5"]


def test_who_wants_no_motion_sees_none(browser, served):  # noqa: F811
    page = browser.new_context(reduced_motion="reduce").new_page()
    page.goto(f"{served}/index.html", wait_until="networkidle")
    page.get_by_role("slider", name="Sparsity S").press("End")
    ends = "[...document.querySelectorAll('.rs-arrow circle')].map(c => c.getAttribute('cx'))"
    at_once = page.evaluate(ends)
    page.wait_for_timeout(400)
    assert page.evaluate(ends) == at_once
    page.context.close()


def test_a_widget_that_runs_hides_its_still_picture(opened):
    page = opened()
    assert page.locator(".rs-still").count() == COUNT
    assert not any(still.is_visible() for still in page.locator(".rs-still").all())
    assert page.locator("figure#fig-packing figcaption").is_visible()


def test_without_scripts_there_are_picture_and_sentence(browser, served):  # noqa: F811
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(f"{served}/index.html")
    picture = page.locator("figure#fig-packing img")
    assert picture.is_visible() and picture.get_attribute("alt") == ALT
    sentences = page.locator(".rs-still-text")
    assert sentences.count() == COUNT and all(one.is_visible() for one in sentences.all())
    assert "five of five are kept, as a pentagon" in sentences.nth(0).inner_text()
    assert "(b) about 71 %" in sentences.nth(1).inner_text()
    page.context.close()


def test_a_widget_that_cannot_start_leaves_the_picture(browser, served, site):  # noqa: F811
    text = (site / "index.html").read_text(encoding="utf-8")
    (site / "broken.html").write_text(
        text.replace("return packing(model, el)", "return nothing(model, el)")
    )
    page = browser.new_page()
    page.goto(f"{served}/broken.html", wait_until="networkidle")
    page.wait_for_function(f"document.querySelectorAll('.rs-widget').length === {COUNT - 1}")
    assert page.locator("figure#fig-packing img").is_visible()
    page.close()


def test_a_prediction_is_picked_kept_compared_and_forgotten(opened):
    page = opened()
    box = page.get_by_role("group", name="Your prediction for S2")
    assert "Pick one before you read on" in says(page, 1)
    assert box.get_by_role("button").count() == 0
    box.get_by_role("radio", name="(c) half").check()
    assert "You predict (c) half." in says(page, 1)
    page.reload(wait_until="networkidle")
    assert "You predict (c) half." in says(page, 1)
    box.get_by_role("button", name="Compare with the result").click()
    assert says(page, 1) == "You predicted (c) half. It came out as (b) about 71 %."
    assert box.get_by_role("radio", name="(a) all of it").is_disabled()
    page.reload(wait_until="networkidle")
    assert "It came out as (b) about 71 %." in says(page, 1)
    box.get_by_role("button", name="Forget my answer").click()
    assert "Pick one before you read on" in says(page, 1)
    page.reload(wait_until="networkidle")
    assert "Pick one before you read on" in says(page, 1)


def test_a_prediction_is_made_with_the_keyboard_alone(opened):
    page = opened()
    first = page.get_by_role("group", name="Your prediction for S5").get_by_role("radio").first
    first.focus()
    page.keyboard.press("Space")
    assert "You predict (a) all of it." in says(page, 2)
    page.keyboard.press("ArrowDown")
    assert "You predict (b) about 71 %." in says(page, 2)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert says(page, 2) == "You predicted (a) all of it, and so it came out."
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == "Forget my answer"  # not lost with the button that went away


def test_one_looks_back_at_what_was_predicted(opened):
    page = opened()
    assert "You have not predicted anything" in says(page, 3)
    page.get_by_role("radio", name="(c) half").first.check()
    page.get_by_role("radio", name="(a) all of it").nth(1).check()
    page.get_by_role("button", name="Compare with the result").nth(1).click()
    assert says(page, 3) == "You made 2 of 2 predictions; of 1 compared, 1 came out."
    assert page.locator(".rs-widget").nth(3).locator("li").all_inner_texts() == [
        "S2: you predict half; not compared yet.",
        "S5: you predicted all of it, and so it came out.",
    ]


def test_a_browser_that_keeps_nothing_still_takes_a_prediction(browser, served):  # noqa: F811
    page = browser.new_page()
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new Error('blocked'); }})"
    )
    page.goto(f"{served}/index.html", wait_until="networkidle")
    page.get_by_role("radio", name="(c) half").first.check()
    assert "You predict (c) half." in says(page, 1)
    page.get_by_role("button", name="Compare with the result").click()
    assert "It came out as (b) about 71 %." in says(page, 1)
    page.close()


@pytest.mark.parametrize("view", VIEWS)
def test_widgets_fit_the_page_and_take_its_theme(opened, view):
    page = opened(view)
    over = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert over <= 1
    ground = page.evaluate("getComputedStyle(document.querySelector('.rs-widget')).backgroundColor")
    dark = VIEWS[view]["color_scheme"] == "dark"
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == dark
    for target in page.locator(".rs-widget :is(input[type=range], .rs-choice, button)").all():
        if target.is_visible():
            assert target.bounding_box()["height"] >= 43  # a finger finds it


def test_a_finger_moves_the_slider(browser, served):  # noqa: F811
    page = browser.new_context(**VIEWS["phone"], has_touch=True).new_page()
    page.goto(f"{served}/index.html", wait_until="networkidle")
    slider = page.get_by_role("slider", name="Sparsity S")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] - 5, box["y"] + box["height"] / 2)
    assert "as a pentagon" in says(page)
    page.context.close()


def test_switching_writes_off_gives_the_guess_and_the_models_word(opened):
    page = opened()
    case = rs.widgets.stored("ledger").data["cases"][0]
    root = page.locator(".rs-widget").nth(4)
    assert f"the logit of “{case['tokens'][0].strip()}” is {case['real'][0][0]:.1f}" in says(
        page, 4
    )
    root.get_by_role("checkbox").nth(0).uncheck()
    root.get_by_role("checkbox").nth(3).press("Space")
    off = 0b1001
    said = says(page, 4)
    names = " and ".join(case["labels"][case["switches"][i]] for i in (0, 3))
    assert said.startswith(f"Without {names} the ledger's guess")
    assert (
        f" is {case['linear'][off][0]:.1f}." in said and f"says {case['real'][off][0]:.1f}," in said
    )
    assert f"“{case['top'][off].strip()}” first" in said
    numbers = root.locator("td.rs-number").all_inner_texts()
    assert numbers == [f"{case[name][off][0]:.1f}" for name in ("linear", "real")]
    root.get_by_label("Token").select_option("1")
    assert f"for “{case['tokens'][1].strip()}” is {case['linear'][off][1]:.1f}" in says(page, 4)
    root.get_by_role("button", name="Switch all on").click()
    assert root.get_by_role("checkbox", checked=True).count() == len(case["switches"])
    root.get_by_label("Prompt").select_option("2")
    assert rs.widgets.stored("ledger").data["cases"][2]["prompt"] in says(page, 4)


def test_a_bar_of_the_ledger_is_a_switch_too(opened):
    page = opened()
    root = page.locator(".rs-widget").nth(4)
    root.locator(".rs-switch").first.click(force=True)
    assert says(page, 4).startswith("Without ")
    assert not root.get_by_role("checkbox").first.is_checked()


def test_the_sentence_climbs_by_slider_pointer_and_by_itself(opened):
    page = opened()
    data = rs.widgets.stored("climb").data
    root = page.locator(".rs-widget").nth(5)
    assert "“Paris”" in says(page, 5)
    root.get_by_role("slider", name="Depth").press("Home")
    assert says(page, 5).startswith(data["depths"][0])
    assert "at a cosine of 1.00" in says(page, 5)
    root.get_by_role("slider", name="Token").press("Home")
    assert says(page, 5).endswith("Position 0 is unlike all others.")
    root.locator(".rs-cell").nth(1).click()  # the second token, at the lowest depth
    assert f"at “{data['tokens'][1].strip()}”" in says(page, 5)
    root.get_by_role("button", name="Let it climb").click()
    root.get_by_role("button", name="Stop").wait_for()
    root.get_by_role("button", name="Let it climb").wait_for()
    assert says(page, 5).startswith(data["depths"][-1])


def test_a_writing_head_is_picked_on_the_map_and_held_against_chance(opened):
    page = opened()
    root = page.locator(".rs-widget").nth(6)
    assert says(page, 6) == (
        "L0H1 writes. Of the 4 heads above it, L2H0 hears it most through its keys: 2.000, "
        "15.0 standard deviations from chance (0.500). 1 of them stand more "
        "than 3 standard deviations above it."
    )
    root.get_by_role("slider").press("Home")
    assert "L1H1 hears it most" in says(page, 6)
    root.get_by_role("slider").press("End")
    assert says(page, 6) == "L2H1 is in the last layer: no head of the stack reads it."
    pixels = "c => [...c.getContext('2d').getImageData(2, 0, 4, 1).data].join()"
    before = root.locator("canvas").evaluate(pixels)
    root.get_by_role("checkbox").check()
    after = root.locator("canvas").evaluate(pixels)
    assert before != after  # what chance gives has faded
    box = root.locator("canvas").bounding_box()
    page.mouse.click(box["x"] + 5, box["y"] + box["height"] * 0.25)
    assert says(page, 6).startswith("L0H1 writes")


def test_a_path_length_is_picked_by_key_and_pointer_for_each_model(opened):
    page = opened()
    root = page.get_by_role("group", name="The gradient by path length")
    said = root.get_by_role("status")
    assert said.inner_text() == (
        "old: the paths through 2 branches are together 4\u202f500 times as long as the whole "
        "gradient (6 at position 0). All paths up to this length, added up, miss it by "
        "3\u202f000 times its length. The sizes for all lengths add up to 9\u202f000 times the "
        "whole; the mean path enters 2.2 branches."
    )
    slider = root.get_by_role("slider", name="Branches on the path")
    slider.press("End")
    assert "added up, miss it by less than 0.0001 times" in said.inner_text()
    slider.press("Home")
    assert said.inner_text().startswith("old: the paths through no branch are together 0.5 times")
    bar = root.locator(".rs-place").nth(1).bounding_box()
    page.mouse.click(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
    assert "the paths through 1 branch are together 1\u202f500 times" in said.inner_text()
    assert slider.get_attribute("aria-valuetext") == "1"
    assert root.locator("rect.rs-part").count() == 5
    slider.press("End")
    root.get_by_label("Model").select_option("0")
    assert said.inner_text().startswith("new: the paths through 2 branches are together 0.11 times")
    assert root.locator("rect.rs-part").count() == 3 and slider.get_attribute("max") == "2"
    assert root.locator("svg").get_attribute("aria-hidden") == "true"


def test_the_runs_of_a_depth_and_a_rate_are_told_from_each_other(opened):
    page = opened()
    root = page.get_by_role("group", name=re.compile("^Training runs"))
    said = root.get_by_role("status")
    grid = runs.stored("cures").set_index(["variant", "n_layers", "rate"])
    assert said.inner_text().startswith(
        "24 layers, learning rate 0.01. Best first: "
        f"DeepNorm ({grid.loc[('DeepNorm', 24, 0.01)]['last']:.2f} nats), LayerScale"
    )
    assert "No better than guessing (2.48 nats): post-LN" in said.inner_text()
    assert said.inner_text().endswith("Blew up: residual (at step 1).")
    curves = root.locator("svg.rs-chart").nth(0).locator(".rs-run")
    assert curves.count() == 8
    root.get_by_role("radio", name="2", exact=True).check()
    assert "2 layers, learning rate 0.01. Best first: residual" in said.inner_text()
    assert "No better" not in said.inner_text() and "Blew up" not in said.inner_text()
    root.get_by_role("slider", name="Learning rate").press("Home")
    assert "2 layers, learning rate 0.001." in said.inner_text()
    column = root.locator(".rs-place").nth(3).bounding_box()
    page.mouse.click(column["x"] + column["width"] / 2, column["y"] + column["height"] / 2)
    assert "2 layers, learning rate 0.03." in said.inner_text()
    root.get_by_role("checkbox", name="residual").press("Space")
    assert "residual" not in said.inner_text() and curves.count() == 7
    for box in root.get_by_role("checkbox", checked=True).all()[::-1]:
        box.uncheck()
    assert said.inner_text().endswith("Tick a connection to see its run.")


def test_one_looks_back_over_several_chapters(opened):
    page = opened()
    root = page.get_by_role("group", name="What you predicted, chapter by chapter")
    assert root.locator(".rs-title").all_inner_texts() == ["Small · 0 of 2", "Other · 0 of 1"]
    page.get_by_role("radio", name="(c) half").first.check()
    assert root.locator(".rs-title").all_inner_texts() == ["Small · 1 of 2", "Other · 0 of 1"]
    assert root.get_by_role("listitem").all_inner_texts() == [
        "S2: you predict half; not compared yet."
    ]
    assert "You made 1 of 3 predictions" in root.get_by_role("status").inner_text()
    assert root.get_by_role("link", name="Small").get_attribute("href") == "#one"
    answer = {"picked": "b", "compared": True, "predicted": "less", "answer": "a", "found": "more"}
    other = page.context.new_page()  # another window of the same browser
    other.goto(page.url)
    store = "([name, text]) => localStorage.setItem('residual-stream/prediction/' + name, text)"
    other.evaluate(store, ["other/B1", json.dumps(answer)])
    root.get_by_text("B1: you predicted less; it came out as more.").wait_for()


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_in_any_widget(opened, view):
    page = opened(view)
    page.evaluate(AXE)
    found = page.evaluate(VIOLATIONS)
    assert [line for line in found if "rs-" in line] == []
