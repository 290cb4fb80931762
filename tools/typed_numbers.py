"""Find numbers in a chapter's prose that look measured: code must write those, into outputs.

A number may be typed where nothing was measured: sizes fixed by a design (30 layers, 2,560 wide),
years, sections and versions, anything in a formula or in code; the options of a **Prediction** and
the words of a **Claim**, what stands in quotation marks and what a source document reports, which
are others' numbers; and a sentence that cites the source of its number. What is left and has a
decimal point, a percent sign, a "times", an "about" or a unit is taken for a measurement.
"""

from __future__ import annotations

import re

#: Sizes of a design, not measured: those over a thousand, since smaller ones pass anyway.
DESIGN_SIZES = frozenset({1024, 1536, 2048, 2560, 3072, 4096, 8192, 9216, 49152, 50257, 65536})
#: A sentence with one of these reports a number that others measured.
CITATION = re.compile(
    r"references\.md#"
    r"|\b(?:long article|bench notes|4B lesson|lecture)\b.*\b(?:says?|reports?|gives?|finds?)\b",
    re.DOTALL,
)

_NUMBER = r"[−+-]?\d+(?:[ ,\u202f]\d{3})*(?:\.\d+)?"
MEASURED = [
    ("a decimal", re.compile(r"(?<![\w.])[−+-]?\d+\.\d+(?![\w]|\.\d)")),
    ("a percentage", re.compile(rf"{_NUMBER}\s?(?:%|per ?cent\b)")),
    ("a factor", re.compile(rf"×\s?\d|\d\s?×(?!\s?\d*\s?\()|{_NUMBER}(?:-fold\b|[ -]times\b)")),
    (
        "an estimate",
        re.compile(rf"(?:\b(?:about|roughly|nearly|around|some|over)\s|[~≈]\s?){_NUMBER}"),
    ),
    ("a scale", re.compile(r"(?<!\w)\d+(?:\.\d+)?e[+−-]?\d+\b|\b10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")),
    ("a quantity", re.compile(rf"{_NUMBER}\s(?:nats?|bits?|logits?|ulps?)\b")),
]
_LARGE = re.compile(
    r"(?<![\w.])\d{1,3}(?:[ ,\u202f]\d{3})+(?![\w.]?\d)|(?<![\w.])\d{4,}(?![\w.]?\d)"
)
_NOT_PROSE = [
    re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE),
    re.compile(r"\$\$.*?\$\$", re.DOTALL),
    re.compile(r"(`+)[^`].*?\1", re.DOTALL),
    re.compile(r"\$[^$\n]+\$"),
    re.compile(r"<[^>]+>"),
    re.compile(r"https?://\S+"),
    re.compile(r"\"[^\"\n]*\"|“[^”\n]*”"),
    re.compile(
        r"\b(?:python|sections?|chapters?|figures?|equations?|exercises?|versions?)\s[\d.–-]+", re.I
    ),
]
_OTHERS_NUMBERS = re.compile(r"^[\s>:#{}a-z]*\**(?:Prediction|Claim)\b")
_CONTINUES = re.compile(r"^\s*(?:>|[-*]\s|\d+\.\s|\(?[a-dA-D]\)|:::)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z*\[(])")


def _own_blocks(markdown: str) -> list[str]:
    """Return the paragraphs in the book's own words: no claim, no prediction's options."""
    own, others = [], False
    for block in re.split(r"\n\s*\n", markdown):
        if _OTHERS_NUMBERS.match(block):
            others = True
        elif not (others and _CONTINUES.match(block)):
            others = False
            own.append(block)
    return own


def _is_year(text: str) -> bool:
    return re.fullmatch(r"(?:19|20)\d\d", text) is not None


def typed_measurements(markdown: str) -> list[str]:
    """Return, as phrases, every number in a Markdown cell that looks measured.

    Args:
        markdown: the source of one Markdown cell.

    Example:
        >>> typed_measurements("The top is 310 times longer than the row.")
        ['a factor: 310 times']
        >>> typed_measurements("The model has 30 layers and is 576 wide.")
        []
    """
    for pattern in _NOT_PROSE:
        markdown = pattern.sub(" ␣ ", markdown)
    found = []
    for block in _own_blocks(markdown):
        for sentence in _SENTENCE_END.split(block):
            if CITATION.search(sentence):
                continue
            sentence = re.sub(r"\]\([^)]*\)", "]", sentence)
            for name, pattern in MEASURED:
                found += [f"{name}: {match[0].strip()}" for match in pattern.finditer(sentence)]
            for match in _LARGE.finditer(sentence):
                value = int(re.sub(r"\D", "", match[0]))
                if value not in DESIGN_SIZES and not _is_year(match[0]):
                    found.append(f"a large number: {match[0]}")
    return found
