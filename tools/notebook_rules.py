"""The rules that a chapter keeps, checked by reading it.

python tools/notebook_rules.py [NOTEBOOK ...]
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

import nbformat

from captions import with_captions
from setup_cell import setup_cell
from typed_numbers import typed_measurements

ROOT = Path(__file__).resolve().parent.parent

MAX_BYTES = 2_000_000
MEDIAN_CODE_LINES = 10
#: How many cells of one notebook may keep nbval from comparing, and how many may type numbers.
IGNORED_CELLS = 2
NUMBER_CELLS = 2
NUMBERS_OK = "numbers-ok"

_NBVAL = re.compile(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$", re.MULTILINE)
#: What MyST alone renders.
_MYST = {
    "directive": re.compile(r"^\s*(?:`{3,}|~{3,}|:{3,})\s*\{[^}]+\}.*", re.MULTILINE),
    "fence of colons": re.compile(r"^\s*:{3,}\s*$", re.MULTILINE),
    "role": re.compile(r"\{[a-z][\w:-]*\}`"),
    "target": re.compile(r"^\([\w-]+\)=\s*$", re.MULTILINE),
    "comment": re.compile(r"^%.*", re.MULTILINE),
    "block break": re.compile(r"^\+\+\+.*", re.MULTILINE),
    "substitution": re.compile(r"\{\{[^}]*\}\}"),
    "link without words": re.compile(r"(?<!!)\[\]\([^)]*\)"),
    "footnote": re.compile(r"\[\^[^\]]+\]"),
    "definition": re.compile(r"^: .*", re.MULTILINE),
}
#: A role, which stays; fenced code, code in a line and displayed mathematics, which do not count.
_CODE = re.compile(
    r"(\{[a-z][\w:-]*\}`[^`\n]*`)|^(`{3,})[^{\n]*$.*?^\2\s*$|`[^`\n]+`|\$\$.*?\$\$", re.M | re.S
)
_MAGIC = re.compile(r"^\s*[%!]", re.MULTILINE)


def bibliography() -> dict[str, str]:
    """Return the address of every entry of book/references.bib that has one, by key."""
    text = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    entry = re.compile(r"^@\w+\{([\w-]+),(.*?)(?=^@|\Z)", re.MULTILINE | re.DOTALL)
    addresses = {key: re.search(r"url = \{([^}]+)\}", body) for key, body in entry.findall(text)}
    return {key: found[1] for key, found in addresses.items() if found}


def _tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def _code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _prose(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def _pictures(cell) -> int:
    kinds = ("image/png", "image/svg+xml", "image/jpeg")
    return sum(any(kind in o.get("data", {}) for kind in kinds) for o in cell.outputs)


def ran_in_order(notebook) -> list[str]:
    """Every code cell holds the outputs of one run, top to bottom, with no error or warning."""
    problems = []
    for number, cell in enumerate(_code(notebook), start=1):
        if not cell.source.strip():
            problems.append(f"code cell {number} is empty")
        if cell.execution_count != number:
            problems.append(f"code cell {number} has the execution count {cell.execution_count}")
        for output in cell.outputs:
            if output.output_type == "error":
                problems.append(f"code cell {number} ends in {output.ename}")
            if output.get("name") == "stderr":
                problems.append(f"code cell {number} writes to stderr: {output.text[:60]!r}")
    if not any(cell.outputs for cell in _code(notebook)):
        problems.append("no cell has an output")
    return problems


def figures_are_described(notebook) -> list[str]:
    """Every figure stands alone in its cell, with a caption, a name of its own and an alt text."""
    problems, names = [], []
    for number, cell in enumerate(_code(notebook), start=1):
        if not _pictures(cell):
            continue
        if _pictures(cell) > 1:
            problems.append(
                f"code cell {number} draws {_pictures(cell)} figures; one alt text fits one"
            )
        described = cell.metadata.get("mystnb", {})
        alt = described.get("image", {}).get("alt", "")
        caption = described.get("figure", {}).get("caption", "")
        names.append(described.get("figure", {}).get("name", ""))
        if len(alt) < 40:
            problems.append(f"code cell {number}: alt text {alt!r} says too little")
        if len(caption) < 20:
            problems.append(f"code cell {number}: caption {caption!r} says too little")
        if alt == caption:
            problems.append(f"code cell {number}: alt text and caption are the same")
        if not names[-1].startswith("fig-"):
            problems.append(f"code cell {number}: the figure's name {names[-1]!r} is not fig-…")
        problems += [f"code cell {number}: caption types {n}" for n in typed_measurements(caption)]
    if len(set(names)) < len(names):
        problems.append("two figures have one name")
    return problems


def only_in_myst(text: str) -> list[str]:
    """Return what Jupyter and Colab show raw in a text.

    Example:
        >>> only_in_myst("See {cite}`elhage2021`, and `{a}` in code.")
        ['role: {cite}`']
    """
    prose = _CODE.sub(lambda found: found[1] or "code", text)
    return [f"{name}: {m[0].strip()}" for name, what in _MYST.items() for m in what.finditer(prose)]


def reads_everywhere(notebook) -> list[str]:
    """The prose has nothing that Jupyter or Colab shows raw, the code nothing but Python."""
    said = [o.get("data", {}).get("text/markdown", "") for c in _code(notebook) for o in c.outputs]
    prose = [cell.source for cell in _prose(notebook)]
    problems = [problem for text in prose + said for problem in only_in_myst(text)]
    for number, cell in enumerate(_code(notebook), start=1):
        if _MAGIC.search(cell.source):
            problems.append(f"code cell {number} has a magic or a shell line")
        for output in cell.outputs:
            if "data" in output and "text/plain" not in output.data:
                problems.append(f"code cell {number} has an output without plain text")
    titles = [c for c in _prose(notebook) if re.search(r"^# \S", c.source, re.MULTILINE)]
    if len(titles) != 1 or titles[0] is not notebook.cells[0]:
        problems.append("the first cell, and it alone, must have a title (# …)")
    return problems


def captions_read_everywhere(notebook) -> list[str]:
    """Every caption, which only MyST finds in the metadata, stands below its figure in Markdown."""
    if with_captions(notebook.cells) != notebook.cells:
        return ["a caption is not what stands below its figure: python tools/captions.py --write"]
    return []


def code_is_short(notebook) -> list[str]:
    """Half of the code cells, at least, have ten lines or fewer."""
    lines = [len([x for x in c.source.splitlines() if x.strip()]) for c in _code(notebook)]
    median = statistics.median(lines)
    if median > MEDIAN_CODE_LINES:
        return [f"the median code cell has {median:g} lines (at most {MEDIAN_CODE_LINES})"]
    return []


def begins_with_setup(notebook) -> list[str]:
    """The first code cell is the setup cell, to the letter."""
    code = _code(notebook)
    if not code or code[0].source != setup_cell():
        return ["the first code cell is not the setup cell: python tools/setup_cell.py --write"]
    return []


def claims_have_anchors(notebook) -> list[str]:
    """Every claim that cells are tagged with has its anchor in the prose, and the reverse."""
    prose = "\n".join(cell.source for cell in _prose(notebook))
    anchors = re.findall(r'<a id="claim-([a-z]+\d+)"></a>', prose)
    tags = {t[6:].lower() for c in notebook.cells for t in _tags(c) if t.startswith("claim-")}
    problems = [f"claim {name.upper()} has no anchor" for name in sorted(tags - set(anchors))]
    problems += [f"no cell is tagged claim-{n.upper()}" for n in sorted(set(anchors) - tags)]
    if len(set(anchors)) < len(anchors):
        problems.append("an anchor of a claim stands twice")
    return problems


def outputs_are_compared(notebook) -> list[str]:
    """Few cells keep nbval from comparing their outputs."""
    ignored = [
        number
        for number, cell in enumerate(_code(notebook), start=1)
        if _NBVAL.search(cell.source)
        or any(t.startswith("nbval-") or t == "raises-exception" for t in _tags(cell))
    ]
    if len(ignored) > IGNORED_CELLS:
        return [f"code cells {ignored} are not compared; at most {IGNORED_CELLS} may be"]
    return []


def numbers_come_from_code(notebook) -> list[str]:
    """No measured number is typed into the prose."""
    problems = []
    for position, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and NUMBERS_OK not in _tags(cell):
            problems += [f"cell {position} types {n}" for n in typed_measurements(cell.source)]
    freed = [i for i, c in enumerate(notebook.cells) if NUMBERS_OK in _tags(c)]
    if len(freed) > NUMBER_CELLS:
        problems.append(f"cells {freed} are tagged {NUMBERS_OK}; at most {NUMBER_CELLS} may be")
    return problems


def references_have_addresses(notebook) -> list[str]:
    """Each work cited by a link to the references page stands with its address too, for Colab."""
    prose = "\n".join(cell.source for cell in _prose(notebook))
    problems = []
    for key in sorted(set(re.findall(r"references\.md#([\w-]+)", prose))):
        address = bibliography().get(key)
        if address is None:
            problems.append(f"references.bib has no entry {key} with a url")
        elif address not in prose:
            problems.append(f"{key} is cited without its address, which Colab needs: {address}")
    return problems


RULES = (
    ran_in_order,
    figures_are_described,
    reads_everywhere,
    captions_read_everywhere,
    code_is_short,
    begins_with_setup,
    claims_have_anchors,
    outputs_are_compared,
    numbers_come_from_code,
    references_have_addresses,
)


def is_small(path: Path) -> list[str]:
    """The file is at most 2 MB."""
    size = path.stat().st_size
    return [f"{size:,} bytes (at most {MAX_BYTES:,})"] if size > MAX_BYTES else []


def problems_of(path: Path) -> list[str]:
    """Return what breaks a rule in a notebook, one line each."""
    notebook = nbformat.read(path, as_version=4)
    found = [f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(notebook)]
    return found + [f"is_small: {problem}" for problem in is_small(path)]


if __name__ == "__main__":
    paths = [Path(p) for p in sys.argv[1:]] or sorted((ROOT / "chapters").glob("*.ipynb"))
    lines = [f"{path.name}: {problem}" for path in paths for problem in problems_of(path)]
    print("\n".join(lines) or f"{len(paths)} notebooks keep every rule")
    sys.exit(bool(lines))
