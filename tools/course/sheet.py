"""Read the source of a sheet: one notebook in otter-grader's format.

Raw cells bound the blocks (`# BEGIN QUESTION`, `# BEGIN SOLUTION`, `# BEGIN TESTS`, … and their
ends), comments bound the solutions in a cell (`# BEGIN SOLUTION`, `# END SOLUTION`, `# SOLUTION`).
Two rules are ours, and otter does not mind them:

* A question's name is the name that it asks for: a function, or for questions graded by hand a
  text.
* A test says `given = …` once, at its top level. What stands before are the inputs, what stands
  after compares. The grader runs inputs and `given = …` beside the submission and sends plain data
  out; the comparing, and every expected value, stays in the grader. `SEED` is drawn anew for every
  batch.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import nbformat
import yaml
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
ASSIGNMENTS = ROOT / "assignments"
_BOUND = re.compile(r"^# (BEGIN|END) (QUESTION|SOLUTION|TESTS|PROMPT)\b")
_MARKED = re.compile(r"# (BEGIN )?SOLUTION\b")
_CONFIG = re.compile(r'^""" *# BEGIN TEST CONFIG\n(.*?)\n""" *# END TEST CONFIG\n+', re.S)
Part = Literal["text", "solution", "prompt"]


class SheetError(ValueError):
    """A source notebook that isn't as `sheet` says."""


@dataclass(frozen=True)
class Test:
    """One hidden test, cut in three.

    Attributes:
        key: The question's name and the test's number: `"ledger/0"`.
        points: What it is worth.
        inputs: Run on both sides.
        given: Run beside the submission only: `given = …`.
        compare: Run in the grader only.
    """

    key: str
    points: float
    inputs: str
    given: str
    compare: str
    __test__ = False  # for pytest


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        name: The name it asks for.
        points: All its points.
        manual: Whether it is graded by hand.
        title: The heading it stands under.
        tests: Its hidden tests.
        rubric: For questions graded by hand, the solution cells: what to give points for.
    """

    name: str
    points: float
    manual: bool
    title: str
    tests: tuple[Test, ...] = ()
    rubric: str = ""


@dataclass(frozen=True)
class Sheet:
    """A sheet: what its source says.

    Attributes:
        name: The file's name without ending: `"01_bus"`.
        check: The name of its self-check in `rs.checks`.
        title: Its first heading.
        closed: Library functions that are closed when graded.
        questions: In order.
        cells: Every cell that some version shows, with its part.
        source: The file.
    """

    name: str
    check: str
    title: str
    closed: tuple[str, ...]
    questions: tuple[Question, ...]
    cells: tuple[tuple[Part, NotebookNode], ...] = field(repr=False)
    source: Path

    @property
    def points(self) -> float:
        """All points of the sheet."""
        return sum(question.points for question in self.questions)


def sheets() -> list[str]:
    """Return the names of the sheets, in order."""
    return sorted(path.stem for path in ASSIGNMENTS.glob("[0-9]*.ipynb"))


def read_sheet(name: str) -> Sheet:
    """Read `assignments/NAME.ipynb`.

    Raises:
        SheetError: there is none, or it isn't in the format.
    """
    path = ASSIGNMENTS / f"{name}.ipynb"
    if not path.exists():
        raise SheetError(f"read_sheet: no sheet {name!r}; there are {', '.join(sheets())}")
    notebook = nbformat.read(path, as_version=4)
    reader = _Reader(path)
    for number, cell in enumerate(notebook.cells):
        reader.read(number, cell)
    if reader.blocks:
        raise SheetError(f"{path.name}: {reader.blocks[-1]} block without an end")
    course = notebook.metadata.get("course", {})
    return Sheet(
        name=name,
        check=course.get("check", name.split("_", 1)[-1]),
        title=next(line[2:] for _, c in reader.cells for line in c.source.splitlines()
                   if line.startswith("# ")),
        closed=tuple(course.get("closed", ())),
        questions=tuple(reader.questions),
        cells=tuple(reader.cells),
        source=path,
    )  # fmt: skip


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocks: list[str] = []
        self.cells: list[tuple[Part, NotebookNode]] = []
        self.questions: list[Question] = []
        self.config: dict[str, Any] = {}
        self.tests: list[Test] = []
        self.rubric: list[str] = []
        self.title = ""

    def read(self, number: int, cell: NotebookNode) -> None:
        bound = _BOUND.match(cell.source) if cell.cell_type == "raw" else None
        if bound:
            self._bound(number, bound[1] == "BEGIN", bound[2], cell)
        elif cell.cell_type == "raw":
            if not cell.source.startswith("# ASSIGNMENT CONFIG"):
                self._fail(number, "a raw cell that bounds nothing")
        elif self.blocks and self.blocks[-1] == "TESTS":
            self.tests.append(self._test(number, cell.source))
        else:
            if cell.cell_type == "code" and _MARKED.search(cell.source) and not self.blocks[1:]:
                self._fail(number, "marks of a solution outside a SOLUTION block: otter keeps it")
            part: Part = "text"
            marked = cell.cell_type == "code" and _MARKED.search(cell.source)
            if self.blocks and self.blocks[-1] == "SOLUTION" and not marked:
                part = "solution"
                self.rubric.append(cell.source)
            elif self.blocks and self.blocks[-1] == "PROMPT":
                part = "prompt"
            heading = re.search(r"^## (.+)$", cell.source, re.M)
            if cell.cell_type == "markdown" and heading:
                self.title = heading[1]
            self.cells.append((part, cell))

    def _bound(self, number: int, begins: bool, kind: str, cell: NotebookNode) -> None:
        if begins:
            if (kind == "QUESTION") != (not self.blocks):
                self._fail(number, f"{kind} begins inside {self.blocks or 'nothing'}")
            self.blocks.append(kind)
            if kind == "QUESTION":
                self.config = yaml.safe_load(cell.source.split("\n", 1)[1]) or {}
                self.tests, self.rubric = [], []
            return
        if not self.blocks or self.blocks.pop() != kind:
            self._fail(number, f"{kind} ends where it did not begin")
        if kind == "QUESTION":
            self._question(number)

    def _question(self, number: int) -> None:
        config = self.config
        name, points = config.get("name"), config.get("points")
        manual = bool(config.get("manual", False))
        if not str(name).isidentifier() or not points:
            self._fail(number, f"a question wants a name and points; it has {config}")
        if not manual and sum(test.points for test in self.tests) != points:
            self._fail(number, f"{name}: its tests give {[t.points for t in self.tests]} points")
        self.questions.append(
            Question(name, points, manual, self.title, tuple(self.tests), "\n\n".join(self.rubric))
        )

    def _test(self, number: int, source: str) -> Test:
        config = _CONFIG.match(source)
        if config is None:
            self._fail(number, "a test begins with its TEST CONFIG")
        settings = yaml.safe_load(config[1])
        if settings.get("hidden") is not True:
            self._fail(number, "a test is hidden; what students may run is a check")
        source = source[config.end() :]
        statements = ast.parse(source).body
        at = [
            i
            for i, s in enumerate(statements)
            if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "given"
        ]
        if len(at) != 1:
            self._fail(number, "a test says `given = …` once, at its top level")
        inputs, rest = statements[: at[0]], statements[at[0] + 1 :]
        if not any(isinstance(s, ast.Assert) for s in rest):
            self._fail(number, "a test that asserts nothing")
        name = self.config["name"]
        if any(name in _names(statement) for statement in [*inputs, *rest]):
            self._fail(number, f"{name} is used outside `given = …`")

        def text(part: list[ast.stmt]) -> str:
            return "\n".join(ast.get_source_segment(source, s) or "" for s in part)

        key = f"{name}/{len(self.tests)}"
        points = float(settings["points"])
        return Test(key, points, text(inputs), text([statements[at[0]]]), text(rest))

    def _fail(self, number: int, what: str) -> Any:
        raise SheetError(f"{self.path.name}, cell {number}: {what}")


def _names(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
