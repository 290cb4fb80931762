"""Short passages written for this book, for measurements that should not rest on one sentence.

Eight kinds of text, each at least 64 SmolLM2 tokens long, so that the first 64 tokens of each make
one batch: :func:`batch` returns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from .inputs import to_tokens

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

PASSAGES: dict[str, str] = {
    "story": (
        "The ferry was late again, so Mara sat on the sea wall and counted the lamps across the "
        "harbour. There had been eleven of them when she was a child. Now there were nine, and "
        "one of those only worked when the wind came from the north. Her brother used to say "
        "that the town was going out one lamp at a time, and that somebody ought to write down "
        "the order in which they went."
    ),
    "recipe": (
        "Rinse two cups of lentils and leave them in cold water for an hour. Meanwhile, slice "
        "three onions thinly and cook them in olive oil over a low heat until they are soft and "
        "brown, which takes longer than you think. Drain the lentils, add them to the pan with a "
        "spoonful of cumin, cover with stock, and simmer until nothing is hard any more. Serve "
        "with lemon and bread."
    ),
    "code": (
        "def running_mean(values, window):\n"
        "    if window < 1:\n"
        "        raise ValueError('window must be at least 1')\n"
        "    total = sum(values[:window])\n"
        "    means = [total / window]\n"
        "    for i in range(window, len(values)):\n"
        "        total += values[i] - values[i - window]\n"
        "        means.append(total / window)\n"
        "    return means\n"
    ),
    "science": (
        "Water is densest at about four degrees above freezing. When a lake cools in autumn, the "
        "surface water becomes heavier and sinks until the whole lake has reached that "
        "temperature. Colder water is lighter, so it stays on top, and ice forms there first. "
        "Because ice is a poor conductor of heat, it protects the water below it, and fish can "
        "live through the winter at the bottom."
    ),
    "dialogue": (
        '"You said the keys were on the table," said Tom.\n'
        '"They were on the table," said Anna, "before you put the groceries on the table."\n'
        '"So where are they now?"\n'
        '"Under the groceries, I should think. Or in the bag. Did you look in the bag?"\n'
        "Tom looked in the bag. The keys were not in the bag. They were in his hand, where they "
        "had been since he opened the door."
    ),
    "history": (
        "The first bridge over the river was built of timber and lasted nine years. The second, "
        "also of timber, burned in the dry summer of the fire. The third was built of stone by "
        "masons who had come from the south to work on the cathedral, and it carried carts, "
        "armies and sheep for almost four hundred years, until the railway came and the town "
        "decided that it needed a wider one."
    ),
    "letter": (
        "Dear neighbours, as many of you know, the roof of the village hall has been leaking "
        "since the storm in March. The builder has now told us that the beams on the west side "
        "must be replaced before the winter. We have a little more than half of the money. If "
        "you can help, with money or with a free weekend and a ladder, please come to the meeting "
        "on Thursday evening at seven."
    ),
    "list": (
        "Things to take on the walk: a map of the area, a compass, two bottles of water, bread "
        "and cheese, a warm jacket, a waterproof jacket, a torch with new batteries, a first aid "
        "kit, a whistle, a phone with a full battery, sun cream, a hat, a spare pair of socks, a "
        "pencil and some paper. Things to leave at home: the laptop, the umbrella, the heavy "
        "guidebook, and all worries about Monday."
    ),
}


def batch(model: TransformerBridge, *, length: int = 64) -> Int[Tensor, "passage {length}"]:
    """Return the first ``length`` tokens of every passage, the beginning-of-text token first.

    Args:
        model: The model whose tokenizer is used.
        length: Tokens per passage.

    Returns:
        Token ids, one row per passage, on the model's device.

    Raises:
        ValueError: A passage is shorter than ``length`` tokens, or the model has no tokenizer.

    Example:
        >>> import residual_stream as rs
        >>> rs.texts.batch(rs.load("bench")).shape
        torch.Size([8, 64])
    """
    if model.tokenizer is None:
        raise ValueError("texts.batch: the model has no tokenizer to read the passages with")
    rows = []
    for name, text in PASSAGES.items():
        # Cut before it is checked: with a small vocabulary a passage outgrows a small context.
        row = model.to_tokens(text)[0]
        if len(row) < length:
            raise ValueError(
                f"texts.batch: passage {name!r} has {len(row)} tokens with this tokenizer, fewer "
                f"than length = {length}"
            )
        rows.append(row[:length])
    return to_tokens(model, torch.stack(rows), caller="texts.batch")
