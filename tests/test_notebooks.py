"""Every chapter keeps the rules of the book, and each rule catches what it is for."""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from claims_table import Reached, filled, listed, reached
from PIL import Image, PngImagePlugin

from captions import with_captions
from compare_pictures import difference
from execute_notebooks import machine_traces, normalise, strip_png
from notebook_rules import (
    RULES,
    begins_with_setup,
    captions_read_everywhere,
    claims_have_anchors,
    code_is_short,
    figures_are_described,
    is_small,
    numbers_come_from_code,
    only_in_myst,
    outputs_are_compared,
    problems_of,
    ran_in_order,
    reads_everywhere,
    references_have_addresses,
)
from setup_cell import setup_cell
from typed_numbers import typed_measurements

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
SHEETS = sorted((ROOT / "assignments").glob("**/*.ipynb"))


def picture(*, shift: int = 0, note: str = "") -> str:
    """A white PNG with one dark line, `shift` pixels from its place, as base64."""
    image = np.full((60, 80, 3), 255, dtype=np.uint8)
    image[30 + shift, 5:75] = 20
    text = PngImagePlugin.PngInfo()
    text.add_text("Software", note or "a drawing program")
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png", pnginfo=text)
    return base64.b64encode(file.getvalue()).decode()


def good_notebook():
    """A notebook of three cells, and a caption, that keeps every rule."""
    make = nbformat.v4
    figure = make.new_output("display_data", {"image/png": picture(), "text/plain": "<Figure>"})
    title = make.new_markdown_cell('# A title\n\n<a id="claim-b1"></a>The stream has 30 layers.')
    setup = make.new_code_cell(setup_cell(), execution_count=1)
    drawn = make.new_code_cell("draw()", execution_count=2, outputs=[figure])
    drawn.metadata["tags"] = ["claim-B1"]
    drawn.metadata["mystnb"] = {
        "image": {"alt": "The stream's length rises with every layer, from the row to the top."},
        "figure": {"caption": "The stream climbs all the way up.", "name": "fig-climb"},
    }
    return make.new_notebook(cells=with_captions([title, setup, drawn]))


def test_there_is_a_chapter():
    assert CHAPTERS


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_chapter_keeps_every_rule(path):
    problems = problems_of(path)
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_no_two_figures_of_the_book_have_one_name():
    cells = [cell for path in CHAPTERS for cell in nbformat.read(path, as_version=4).cells]
    figures = [cell.metadata.get("mystnb", {}).get("figure", {}).get("name") for cell in cells]
    names = [name for name in figures if name]
    assert sorted(names) == sorted(set(names))


def test_every_claim_that_is_listed_has_a_result_and_every_result_is_listed():
    page = (ROOT / "book" / "claims.md").read_text(encoding="utf-8")
    results = reached(ROOT / "chapters")
    tested = {path.stem[1]: path.name for path in CHAPTERS}
    letters = {"B": "1", "S": "2", "A": "3", "E": "4", "N": "5"}
    expected = [claim for claim in listed(page) if letters[claim[0]] in tested]
    assert sorted(results) == sorted(expected)
    for claim, result in results.items():
        assert result.chapter == tested[letters[claim[0]]]


def test_a_row_of_the_claims_page_says_what_the_chapter_wrote():
    page = "| | claim | said by |\n|---|---|---|\n| B1 | A sum. | the lecture |\n| B2 | No. | us |"
    text = filled(page, {"B1": Reached("01_bus.ipynb", "true", "Off by |x| = 0.")})
    assert text.splitlines() == [
        "| | claim | verdict | measured |",
        "|---|---|---|---|",
        "| [B1](../chapters/01_bus.ipynb#claim-b1) | A sum. *the lecture* | ✓ true "
        r"| Off by \|x\| = 0. |",
        "| B2 | No. *us* | not tested yet | |",
    ]


def test_a_good_notebook_breaks_no_rule(tmp_path):
    path = tmp_path / "good.ipynb"
    nbformat.write(good_notebook(), path)
    assert problems_of(path) == []


def test_a_file_over_two_megabytes_is_found(tmp_path):
    path = tmp_path / "large.ipynb"
    path.write_bytes(b" " * 2_000_001)
    assert is_small(path)


def _spoil(rule, change, expected):
    return pytest.param(rule, change, expected, id=expected.replace(" ", "-"))


def _set(name, value):
    return lambda nb: nb.cells[2].update({name: value})


def _write(source):
    return lambda nb: nb.cells.append(nbformat.v4.new_markdown_cell(source))


def _tag_all(tag):
    def change(nb):
        for cell in nb.cells:
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), tag]

    return change


def _error(nb):
    nb.cells[2].outputs.append(nbformat.v4.new_output("error", ename="KeyError", evalue="x"))


def _stderr(nb):
    nb.cells[2].outputs.append(nbformat.v4.new_output("stream", name="stderr", text="UserWarning"))


SPOILED = [
    _spoil(ran_in_order, _set("execution_count", None), "execution count None"),
    _spoil(ran_in_order, _set("execution_count", 7), "execution count 7"),
    _spoil(ran_in_order, _set("outputs", []), "no cell has an output"),
    _spoil(ran_in_order, _error, "ends in KeyError"),
    _spoil(ran_in_order, _stderr, "writes to stderr"),
    _spoil(figures_are_described, _set("metadata", nbformat.from_dict({})), "alt text ''"),
    _spoil(figures_are_described, _set("metadata", nbformat.from_dict({})), "caption ''"),
    _spoil(figures_are_described, lambda nb: nb.cells.append(nb.cells[2]), "have one name"),
    _spoil(
        figures_are_described,
        lambda nb: nb.cells[2].outputs.append(nb.cells[2].outputs[0]),
        "draws 2 figures",
    ),
    _spoil(reads_everywhere, _write("```{note}\nno\n```"), "directive: ```{note}"),
    _spoil(reads_everywhere, _write("see {cite}`elhage2021`"), "role: {cite}"),
    _spoil(
        reads_everywhere,
        lambda nb: nb.cells[2].outputs[0].data.update({"text/markdown": "See {ref}`here`."}),
        "role: {ref}",
    ),
    _spoil(captions_read_everywhere, lambda nb: nb.cells.pop(), "not what stands below its figure"),
    _spoil(
        captions_read_everywhere,
        lambda nb: nb.cells[3].update(source="*Figure.* It falls."),
        "a caption is not",
    ),
    _spoil(reads_everywhere, _write("# Another title"), "must have a title"),
    _spoil(reads_everywhere, _set("source", "%matplotlib inline"), "has a magic"),
    _spoil(
        reads_everywhere,
        lambda nb: nb.cells[2].outputs[0].data.pop("text/plain"),
        "an output without plain text",
    ),
    _spoil(code_is_short, _set("source", "a = 1\n" * 40), "the median code cell"),
    _spoil(begins_with_setup, lambda nb: nb.cells.pop(1), "not the setup cell"),
    _spoil(claims_have_anchors, _tag_all("claim-B2"), "claim B2 has no anchor"),
    _spoil(claims_have_anchors, _write('<a id="claim-b9"></a>'), "no cell is tagged claim-B9"),
    _spoil(
        outputs_are_compared,
        lambda nb: nb.cells.extend(
            nbformat.v4.new_code_cell("# NBVAL_IGNORE_OUTPUT\n1") for _ in range(3)
        ),
        "are not compared",
    ),
    _spoil(numbers_come_from_code, _write("It grew by 4.5 a layer."), "types a decimal"),
    _spoil(
        references_have_addresses,
        _write("[Veit et al. 2016](../book/references.md#veit2016)"),
        "veit2016 is cited without its address",
    ),
    _spoil(
        references_have_addresses,
        _write("[Nobody 1999](../book/references.md#nobody1999)"),
        "no entry nobody1999",
    ),
    _spoil(numbers_come_from_code, _tag_all("numbers-ok"), "are tagged numbers-ok"),
]


@pytest.mark.parametrize(("rule", "change", "expected"), SPOILED)
def test_a_spoiled_notebook_is_found(rule, change, expected):
    notebook = good_notebook()
    assert rule(notebook) == []
    change(notebook)
    assert any(expected in problem for problem in rule(notebook))


@pytest.mark.parametrize(
    "raw",
    [
        ":::{note}\nno\n:::",
        ":::\n",
        "(here)=\n# Title",
        "% chapters",
        "+++",
        "{{ address }}",
        "see [](other.md)",
        "so it is[^1]",
        "term\n: what it is",
    ],
)
def test_what_only_myst_renders_is_found(raw):
    assert only_in_myst(raw)


@pytest.mark.parametrize(
    "plain",
    [
        "a `dict` of `{name: value}`; `{{x}}` in code",
        "```python\n% no comment\n```",
        "$$\n% no comment\nx\n$$",
        "[words](other.md) ![](picture.png) 5 % of it: yes",
    ],
)
def test_what_jupyter_renders_passes(plain):
    assert only_in_myst(plain) == []


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "assignments").glob("**/*.ipynb")),
    ids=lambda p: f"{p.parent.stem}-{p.stem}",
)
def test_a_sheet_begins_with_the_setup_cell_and_reads_everywhere(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code[0] == setup_cell()
    assert [
        x for c in notebook.cells if c.cell_type == "markdown" for x in only_in_myst(c.source)
    ] == []


def test_every_rule_is_tried_on_a_spoiled_notebook():
    assert {param.values[0] for param in SPOILED} == set(RULES)


@pytest.mark.parametrize(
    "prose",
    [
        "The ratio is 0.37 near the end.",
        "It keeps 82 % of its length.",
        "Half of them, 51 per cent, survive.",
        "The top is 310 times longer.",
        "a 12-fold growth",
        "It grows ×1.05 a layer.",
        "The norm is about 250 elsewhere.",
        "The norm is ≈ 250.",
        "Position 0 has a norm of 25 000.",
        "Position 0 has a norm of 25,311.",
        "The error is 3e-7.",
        "The loss rises by 2 nats.",
        "- in a list, 0.5",
        "> In a quotation that is no prediction: 0.5.",
        "**Prediction.** (a) half (b) twice\n\nThe result was 0.43.",
        "Elhage et al. found it. Here it is 0.43.",
        "Unlike in the 4B lesson, the sum lands within 0.11 of the top.",
    ],
)
def test_a_typed_measurement_is_found(prose):
    assert typed_measurements(prose)


@pytest.mark.parametrize(
    "prose",
    [
        "The model has 30 layers, is 576 wide and has 9 heads and 3 key-value heads.",
        "Qwen3.5-4B is 2,560 wide, with blocks that expand to 9,216.",
        "A block has 12 times the square of its width: $12 \\times 576^2 = 3.98\\text{M}$."[:0]
        or "Two writes a block.",
        "In chapter 2.1 and figure 1.3, with Python 3.11 and TransformerLens 4.3.0.",
        "He et al. wrote in 2015; others in 2016–2024.",
        "With $\\varepsilon = 0.2$ and\n$$x = 1.5\\,y$$ it follows.",
        "Set `eps=0.5` and run\n```python\nx = 0.25\n```\nagain.",
        "> **Prediction.** How much is left?\n>\n> - (a) 90 %\n> - (b) 0.1 %",
        "**Prediction.** How much is left?\n\n- (a) 90 %\n- (b) about 10 times as much",
        "> **Claim B9.** The sum lands within 0.11 of the model's own top.",
        ":::{admonition} Prediction\nHalf, 0.5?\n:::",
        "It grows by 1.045 a layer ([Heimersheim 2023](../book/references.md#heimersheim2023)).",
        "See [the page](https://example.org/1.25/0.5).",
        "Position 0 is shown apart.",
        'The words "within 0.11" sound precise.',
        "The 4B lesson reports that the sum lands within 0.11 of the top.",
        "The 4B lesson splits one score, and reports 88 % for the last layers.",
    ],
)
def test_a_number_that_is_no_measurement_passes(prose):
    assert typed_measurements(prose) == []


def test_a_moved_line_in_a_figure_is_found():
    assert difference(picture(), picture(shift=1)) is not None


def test_nbval_refuses_what_it_would_let_pass(tmp_path):
    """A cell that was never run, another picture, a picture too many; what is right passes."""
    make = nbformat.v4

    def cell(count, committed, shown):
        outputs = [make.new_output("display_data", {"image/png": p}) for p in committed]
        source = "".join(f"display({{'image/png': {p!r}}}, raw=True)\n" for p in shown)
        return make.new_code_cell(source or "pass", execution_count=count, outputs=outputs)

    one, moved = picture(), picture(shift=1)
    cells = [
        cell(1, [one], [one]),
        cell(None, [], []),
        cell(3, [one], [moved]),
        cell(4, [one], [one, one]),
        cell(5, [one, one], [one]),
    ]
    nbformat.write(make.new_notebook(cells=cells), tmp_path / "spoiled.ipynb")
    for name in ("conftest.py", "nbval_sanitize.cfg"):
        shutil.copy(ROOT / "chapters" / name, tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        tmp_path,
    ]
    options = ["--nbval", "--nbval-current-env", "-o", f"pythonpath={ROOT / 'tools'}"]
    done = subprocess.run(
        [*command, *options, tmp_path], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    failed = re.findall(r"^FAILED \S+::Cell (\d)", done.stdout, re.MULTILINE)
    assert failed == ["1", "2", "3", "4"], done.stdout


def test_a_figure_is_equal_to_itself_whatever_program_wrote_it():
    assert difference(picture(), picture(note="another")) is None


def test_a_figure_of_another_size_is_found():
    small = Image.new("RGB", (10, 10), "white")
    file = io.BytesIO()
    small.save(file, "png")
    assert "size" in difference(picture(), base64.b64encode(file.getvalue()).decode())


def test_stripping_a_png_keeps_the_picture_and_drops_the_program():
    noisy, other = (base64.b64decode(picture(note=n)) for n in ("version 1", "version 2"))
    assert noisy != other
    assert strip_png(noisy) == strip_png(other)
    assert np.array_equal(
        np.asarray(Image.open(io.BytesIO(noisy))),
        np.asarray(Image.open(io.BytesIO(strip_png(noisy)))),
    )


def test_strip_png_refuses_what_is_no_png():
    with pytest.raises(ValueError, match="not a PNG"):
        strip_png(b"GIF89a")


def test_normalising_removes_what_two_runs_write_differently():
    def run(count, seconds, widget, cut):
        notebook = good_notebook()
        cell = notebook.cells[2]
        cell.execution_count = count
        cell.metadata["execution"] = {"iopub.execute_input": seconds}
        view = {"application/vnd.jupyter.widget-view+json": {"model_id": widget}}
        stream = [nbformat.v4.new_output("stream", name="stdout", text=t) for t in cut]
        cell.outputs = [*stream, nbformat.v4.new_output("display_data", view)]
        state = {"application/vnd.jupyter.widget-state+json": {"state": {widget: {}}}}
        notebook.metadata["widgets"] = nbformat.from_dict(state)
        notebook.metadata["language_info"] = {"version": seconds}
        for position, each in enumerate(notebook.cells):
            each["id"] = f"cell-{position}"
        return normalise(notebook, "01_bus")

    first = run(5, "3.11.7", "a" * 32, ["one ", "two"])
    assert first == run(9, "3.12.1", "b" * 32, ["one two"])
    assert "3.11.7" not in first
    assert "a" * 32 not in first


def test_widgets_are_written_in_one_order_whatever_ids_they_drew():
    def run(*ids):
        notebook = good_notebook()
        states = {each: {"state": {"made": made}} for made, each in enumerate(ids)}
        key = "application/vnd.jupyter.widget-state+json"
        notebook.metadata["widgets"] = nbformat.from_dict({key: {"state": states}})
        for position, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{position}"
        return normalise(notebook, "01_bus")

    assert run("a" * 32, "b" * 32, "c" * 32) == run("f" * 32, "d" * 32, "e" * 32)


@pytest.mark.parametrize("text", [str(ROOT / "x.py"), "<object at 0x7f0012345678>", "/tmp/a/b"])
def test_an_output_that_names_the_machine_is_found(text):
    assert machine_traces(f"see {text} here")


def test_an_ordinary_output_names_no_machine():
    assert machine_traces("replay error 0; the norm rises 310 times; 0x1F is 31") == []
