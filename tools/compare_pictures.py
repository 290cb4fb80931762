"""Say whether two PNG figures show the same thing, on whatever processor they were drawn."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

#: A pixel counts as changed when a channel differs by more than this, of 255 (anti-aliasing: less).
CHANNEL_STEP = 48
#: The largest share of changed pixels that passes: rounding moves an edge here and there, no line.
CHANGED_SHARE = 2e-4


def pixels(png_base64: str) -> np.ndarray:
    """Return the picture as int16 of shape (height, width, 3), composed on white."""
    picture = Image.open(io.BytesIO(base64.b64decode(png_base64))).convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    return np.asarray(Image.alpha_composite(white, picture).convert("RGB"), dtype=np.int16)


def difference(reference_base64: str, drawn_base64: str) -> str | None:
    """Return what differs between two PNGs, as a phrase, or None where they show the same.

    Args:
        reference_base64: the committed picture, base64 of a PNG.
        drawn_base64: the picture just drawn, likewise.
    """
    reference, drawn = pixels(reference_base64), pixels(drawn_base64)
    if reference.shape != drawn.shape:
        height, width = reference.shape[:2]
        return f"size {width}×{height} became {drawn.shape[1]}×{drawn.shape[0]}"
    share = float((np.abs(reference - drawn).max(axis=-1) > CHANNEL_STEP).mean())
    if share > CHANGED_SHARE:
        return f"{share:.2%} of the pixels changed (at most {CHANGED_SHARE:.2%})"
    return None
