"""Measure what each of the 576 numbers of the stream carries; write data/coordinates.

    python tools/measure_coordinates.py              # about half an hour on one core
    python tools/measure_coordinates.py --minutes 4  # a part; call again and it goes on

Every coordinate of the book's model is kept out of the stream, one at a time, over all passages of
`texts.batch`; so are, in the rotated model, coordinates at even spacing, and the directions that
the costliest coordinates became. The costliest are taken apart by position.
`tests/test_coordinates.py` measures a sample again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

import residual_stream as rs
from residual_stream.coordinates import ablate_directions, coordinate_directions

ROOT = Path(__file__).parents[1]
MODEL = "smollm2-135m"
DATA = ROOT / "lib" / "residual_stream" / "data" / "coordinates" / f"{MODEL}.json"
PART = ROOT / "_build" / "coordinates.part.json"
ROTATION_SEED = 0
EVERY = 6  # of the rotated model's coordinates
COSTLIEST = 8
AT_ONCE = 16
CASES = {
    "at position 0": {"positions": 0},
    "elsewhere": {"positions": slice(1, None)},
    "elsewhere, set to its mean": {"positions": slice(1, None), "to": "mean"},
}


def measure(model, tokens, directions, **how) -> dict[str, list[float]]:
    """Return loss changes (nats per token) and kept predictions, rounded."""
    found = ablate_directions(model, tokens, directions, **how)
    return {
        "loss_change": [round(x, 4) for x in found.loss_change.tolist()],
        "top1_kept": [round(x, 4) for x in found.top1_kept.tolist()],
    }


def main() -> int:
    """Measure until done or out of time; return 0 when the file is written, 3 when some is left."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=float("inf"))
    end = time.monotonic() + 60 * parser.parse_args().minutes

    model = rs.load(MODEL, device="cpu")
    tokens, width = rs.texts.batch(model), model.cfg.d_model
    turned = rs.rotation.rotate_model(model, seed=ROTATION_SEED)
    done = json.loads(PART.read_text()) if PART.exists() else {}
    PART.parent.mkdir(exist_ok=True)

    def collect(name, model, coordinates, directions, **how) -> dict:
        entry = done.setdefault(name, {"coordinates": [], "loss_change": [], "top1_kept": []})
        for start in range(len(entry["coordinates"]), len(coordinates), AT_ONCE):
            if time.monotonic() > end:
                PART.write_text(json.dumps(done))
                print(
                    time.process_time(),
                    f"{name}: {start} of {len(coordinates)}; call again to go on",
                )
                sys.exit(3)
            some = slice(start, start + AT_ONCE)
            for key, values in measure(model, tokens, directions[some], **how).items():
                entry[key] += values
            entry["coordinates"] += coordinates[some]
        return entry

    def axes(coordinates):
        return coordinate_directions(width, coordinates)

    everyone, spaced = list(range(width)), list(range(0, width, EVERY))
    trained = collect("as trained", model, everyone, axes(everyone))
    collect("rotated", turned.model, spaced, axes(spaced))
    cost = torch.tensor(trained["loss_change"])
    worst = cost.topk(COSTLIEST).indices.tolist()
    for name, how in CASES.items():
        collect(name, model, worst, axes(worst), **how)
    collect("rotated, their directions", turned.model, worst, turned.turn(axes(worst)))
    done["about"] = {
        "command": "python tools/measure_coordinates.py",
        "model": MODEL,
        "texts": list(tokens.shape),
        "rotation_seed": ROTATION_SEED,
        "predictions": tokens[:, 1:].numel(),
        "unit": "nats per token",
    }
    DATA.parent.mkdir(parents=True, exist_ok=True)
    DATA.write_text(json.dumps(done) + "\n")
    PART.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
