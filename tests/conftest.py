"""What every test stands on: shapes checked at each call, no hub, the two models loaded once."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if any(name.split(".")[0] == "residual_stream" for name in sys.modules):
    raise RuntimeError(
        "tests/conftest.py: residual_stream was imported before its shapes are checked"
    )

from jaxtyping import install_import_hook

install_import_hook("residual_stream", "beartype.beartype")

import matplotlib
import pytest
import torch

pytest.register_assert_rewrite("chapter_cells")
matplotlib.use("agg")  # not by MPLBACKEND: the notebooks' kernels would inherit it and draw nothing

#: Read as a doctest module beside chapters/conftest.py it would be the same name twice.
collect_ignore = ["conftest.py"]

#: Pictures of pages on which a test failed.
SCREENSHOTS = Path(__file__).resolve().parent.parent / "_build" / "screenshots"

if "PYTEST_XDIST_WORKER" in os.environ:  # as many workers as cores: one thread each
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Skip, visibly, what needs an accelerator where there is none."""
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no accelerator on this machine"))


def pytest_exception_interact(node):
    """Keep a picture of what the browser shows where a test of a page fails."""
    for context in getattr(getattr(node, "funcargs", {}).get("browser"), "contexts", []):
        for number, page in enumerate(context.pages):
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"\W+", "-", node.name).strip("-")
            page.screenshot(path=SCREENSHOTS / f"{name}-{number}.png", full_page=True)


@pytest.fixture(scope="session")
def smollm2():
    """The book's real model, on the CPU; tests must leave its weights as they found them."""
    import residual_stream as rs

    return rs.load("smollm2-135m", device="cpu")


@pytest.fixture(scope="session")
def bench():
    """The four-layer bench model, on the CPU; tests must leave its weights as they found them."""
    import residual_stream as rs

    return rs.load("bench", device="cpu")
