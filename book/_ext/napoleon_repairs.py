r"""Two repairs of what napoleon makes of the library's docstrings; types stand in the annotations.

- It takes what comes before a colon for a type: in "The stream after the last write: the top." of a
  property, and in the first line of a Returns section. Such colons are hidden from it.
- It hands an attribute's annotation on as reStructuredText, where the star of a shape,
  `Float[Tensor, "batch *pos"]`, begins emphasis. Such stars are escaped after it.
"""

from __future__ import annotations

from sphinx.application import Sphinx

HIDDEN_COLON = "\ue000"  # of the private use area: in no docstring
SECTIONS = ("Returns:", "Yields:")


def hide_colons(app: Sphinx, what, name, obj, options, lines: list[str]) -> None:
    """Hide the colons that stand in a sentence where napoleon looks for a type, in place."""
    after_section = what in ("property", "attribute", "data")  # these are all one such section
    for number, line in enumerate(lines):
        if line.strip() in SECTIONS:
            after_section = True
        elif after_section and line.strip():
            lines[number] = line.replace(": ", f"{HIDDEN_COLON} ")
            after_section = False


def show_colons_and_escape_stars(app: Sphinx, what, name, obj, options, lines: list[str]) -> None:
    """Put the colons back, and escape the stars of every type, in place."""
    for number, line in enumerate(lines):
        if line.lstrip().startswith((":type", ":vartype")):
            line = line.replace("*", r"\*")
        lines[number] = line.replace(HIDDEN_COLON, ":")


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx, on both sides of napoleon."""
    app.connect("autodoc-process-docstring", hide_colons, priority=100)
    app.connect("autodoc-process-docstring", show_colons_and_escape_stars, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
