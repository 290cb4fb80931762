"""Run the library and the chapters on an accelerator and compare with the CPU's numbers.

    python tools/gpu_check.py                       # the best device, float32 and bfloat16
    python tools/gpu_check.py --device cpu          # a dry run where there is none
    python tools/gpu_check.py --minutes 4 --out gpu.json

Two parts. *Measurements*: the same calls on both devices, in both dtypes; numbers must agree within
tolerances set by the dtype, and every ledger must close to the bit on either. *Chapters*: their
cells run with the model on the device, so that their own assertions hold there; the numbers they
print are compared with those printed on the CPU, and differences are listed. A chapter is not begun
once the time is up. Exit status: 0 all agree, 1 something does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import traceback
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import nbformat
import torch

ROOT = Path(__file__).resolve().parent.parent
TEXT = "The capital of France is the city of"
#: Relative to the larger number, and absolute: what two devices may differ by, by dtype.
TOLERANCE = {torch.float32: (2e-3, 2e-3), torch.bfloat16: (0.15, 0.5)}
_NUMBER = re.compile(r"[−-]?\d+(?:[.,\u202f]\d+)*(?:e[−+-]?\d+)?")


def measurements(name: str, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Return numbers of every part of the library, of one model on one device in one dtype."""
    import residual_stream as rs

    model = rs.load(name, device=device, dtype=dtype)
    stream = rs.record(model, TEXT)
    audit = stream.audit()
    story = rs.probe(model, TEXT)
    found = {
        "replay error": audit.replay_error,
        "ledger closes": float(audit.ok),
        "norm of the top": float(stream.top[0, -1].float().norm()),
        "probability": story.probability,
        "logit": story.logit,
        "remainder of the split": story.remainder,
        "last third": story.last_third,
        "lens, KL half way": story.layers[len(story.layers) // 2].lens_kl,
        "float32 sum, in steps": story.sum.error / story.sum.step,
    }
    for layer in story.layers[:: max(1, len(story.layers) // 6)]:
        found[f"update of layer {layer.layer} ÷ row"] = layer.of_row
        found[f"share of layer {layer.layer}"] = layer.share
        found[f"KL without layer {layer.layer}"] = layer.kl
    heads = rs.logit_attribution(stream, story.predicted_id, unit="head")
    found["largest head's share"] = float(heads.values.abs().max())
    scores = rs.composition_scores(model, "K")
    found["mean K-composition"] = float(scores[scores > 0].float().mean())
    return found


#: Compared in size with 8 steps, and not with the other device: rounding has no true value.
ROUNDING = ("float32 sum, in steps", "remainder of the split")


def disagreements(ours: dict[str, float], cpu: dict[str, float], dtype: torch.dtype) -> list[str]:
    """Return the measurements that differ by more than the dtype allows, one line each."""
    relative, absolute = TOLERANCE[dtype]
    found = []
    for name, value in ours.items():
        if name == "replay error":
            wrong = value != 0
        elif name in ROUNDING:
            wrong = not abs(value) <= 8
        else:
            allowed = absolute + relative * max(abs(value), abs(cpu[name]))
            wrong = not abs(value - cpu[name]) <= allowed
        if wrong:
            found.append(f"{name}: {value:.6g} here, {cpu[name]:.6g} on the CPU")
    return found


def run_chapter(path: Path, device: str) -> tuple[str | None, list[str]]:
    """Run a chapter's cells on a device; return what failed, and the lines printed otherwise."""
    import residual_stream as rs

    load, namespace, lines = rs.load, {"__name__": "chapter"}, []

    def on_device(name: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(name, str) and not options.get("device_map"):
            options.setdefault("device", device)
        return load(name, *rest, **options)

    rs.load = on_device
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
            if cell.cell_type != "code":
                continue
            said = StringIO()
            with redirect_stdout(said):
                try:
                    value = _run(cell.source, namespace)
                except Exception:
                    last = traceback.format_exc().strip().splitlines()[-1]
                    return f"cell {number}: {last}", lines
            shown = said.getvalue() + ("" if value is None else f"{value}\n")
            lines += differing(number, shown, printed(cell))
    finally:
        rs.load = load
        os.chdir(here)
    return None, lines


def _run(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line, as a notebook shows it."""
    import ast

    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), namespace)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)


def printed(cell: Any) -> str:
    """Return the text that a committed cell shows."""
    texts = []
    for output in cell.outputs:
        texts.append(output.get("text", "") or output.get("data", {}).get("text/plain", "") + "\n")
    return "".join(texts)


def differing(number: int, ours: str, cpu: str, *, share: float = 0.1) -> list[str]:
    """Return the lines of a cell's text whose words are alike and whose numbers are not."""
    found = []
    for one, other in zip(ours.splitlines(), cpu.splitlines(), strict=False):
        if one == other or _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
            continue  # equal, or an object's own text
        for a, b in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True):
            x, y = (float(re.sub("[,\u202f]", "", v).replace("−", "-")) for v in (a, b))
            if abs(x - y) > share * max(abs(x), abs(y)):
                found.append(f"cell {number}: {a} here, {b} on the CPU: {one.strip()[:90]}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the check; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", help="cuda, cuda:1, mps, cpu (default: the best one here)")
    parser.add_argument("--model", default="smollm2-135m", help="the model of the measurements")
    parser.add_argument("--minutes", type=float, default=4.5, help="begin no chapter after this")
    parser.add_argument("--no-chapters", action="store_true", help="measurements alone")
    parser.add_argument("--out", type=Path, help="write everything found as JSON")
    options = parser.parse_args(arguments)

    from residual_stream.devices import choose_device

    device = str(choose_device(options.device, None))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    start, good, report = time.monotonic(), True, {"device": device, "torch": torch.__version__}
    for dtype in TOLERANCE:
        ours = measurements(options.model, device, dtype)
        cpu = ours if device == "cpu" else measurements(options.model, "cpu", dtype)
        wrong = disagreements(ours, cpu, dtype)
        good &= not wrong
        word = str(dtype).removeprefix("torch.")
        report[word] = {"here": ours, "cpu": cpu, "wrong": wrong}
        _say(f"{word}: {len(ours) - len(wrong)} of {len(ours)} measurements agree", wrong)
    chapters = [] if options.no_chapters else sorted((ROOT / "chapters").glob("*.ipynb"))
    for path in chapters:
        if time.monotonic() - start > 60 * options.minutes:
            _say(f"{path.stem}: not run, the time is up", [])
            continue
        began = time.monotonic()
        failed, lines = run_chapter(path, device)
        good &= failed is None
        report[path.stem] = {"failed": failed, "other numbers": lines}
        verdict = f"FAILED at {failed}" if failed else "every assertion holds"
        _say(f"{path.stem}: {verdict}, {time.monotonic() - began:.0f} s", lines)
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=2, ensure_ascii=False), encoding="utf-8")
    _say("all agree" if good else "NOT ALL AGREE", [])
    return 0 if good else 1


def _say(line: str, more: list[str]) -> None:
    print(line, *(f"    {one}" for one in more), sep="\n", flush=True)


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("agg")
    sys.exit(main())
