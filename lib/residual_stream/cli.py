"""The command line: ``residual-stream audit MODEL``, ``… probe MODEL --text TEXT``, ``… models``.

MODEL is a name that ships here, a Hugging Face name, a folder that ``save_pretrained`` wrote, or a
``.gguf`` file of a Llama model. Results go to stdout; notices, progress and errors to stderr.

Exit status: 0 the ledger closes; 1 it does not, or the model has a block or a readout that the
library refuses; 2 wrong use; 3 the model can't be had; 4 the run failed otherwise (set
``RESIDUAL_STREAM_TRACEBACK=1`` to see where); 130 interrupted; 141 the reader of stdout left.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

CLOSES, OPEN, WRONG_USE, NO_MODEL, FAILED = range(5)
INTERRUPTED, READER_LEFT = 130, 141  # as shells say of the signals
DTYPES = {
    "fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16",
    "fp16": "float16", "float16": "float16", "fp64": "float64", "float64": "float64",
}  # fmt: skip


class _Stop(Exception):
    """Ends the run with a status and one line on stderr."""

    def __init__(self, status: int, reason: object) -> None:
        super().__init__(str(reason))
        self.status = status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What stands after the program's name; ``sys.argv`` if None.

    Returns:
        The exit status.

    Example:
        >>> main(["audit", "bench"])  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
        check measured required
        ...
        0
    """
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except _Stop as stop:
        print(f"residual-stream: {_one_line(stop)}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print("residual-stream: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # as in `… | head`: the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT  # what was found was not told, so it is not success
    except Exception as error:  # of the model's own code, or a fault of this library
        if os.environ.get("RESIDUAL_STREAM_TRACEBACK"):
            raise
        print(f"residual-stream: {type(error).__name__}: {_one_line(error)}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    from . import __version__

    parser = argparse.ArgumentParser(
        prog="residual-stream",
        description="The audited ledger of a transformer's residual stream.",
        epilog="Exit status: 0 the ledger closes, 1 it does not (or the model is refused), 2 wrong "
        "use, 3 the model can't be had, 4 the run failed otherwise, 130 interrupted, 141 the "
        "reader of stdout left.",
    )
    parser.add_argument("--version", action="version", version=f"residual-stream {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    audit = commands.add_parser("audit", help="does everything written add up to the top?")
    audit.set_defaults(run=_audit)
    probe = commands.add_parser("probe", help="the whole story of one prediction")
    probe.set_defaults(run=_probe)
    for command in (audit, probe):
        _add_model(command)
    audit.add_argument("--text", help="what the model reads (default: a passage of this book)")
    probe.add_argument("--text", required=True, help="what the model reads")
    probe.add_argument(
        "--position", type=int, default=-1,
        help="the position whose next token is predicted; negative counts from the end (default: "
        "the last)",
    )  # fmt: skip
    probe.add_argument("--target", help="the token whose logit is split (default: the prediction)")
    probe.add_argument("--report", type=Path, metavar="FILE.html", help="write a page with figures")

    models = commands.add_parser("models", help="the models that have a name here")
    models.set_defaults(run=_models)
    for command in (audit, probe, models):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help="a name, a Hugging Face name, a folder, or a .gguf file")
    command.add_argument(
        "--dtype", choices=DTYPES, default="fp32", metavar="DTYPE",
        help=f"what the model computes in: {', '.join(DTYPES)} (default: fp32)",
    )  # fmt: skip
    command.add_argument("--device", help="cpu, cuda, cuda:1, mps (default: the best one here)")
    command.add_argument("--revision", help="branch, tag or commit of a Hugging Face name")
    command.add_argument(
        "--device-map", metavar="MAP", help="accelerate's, for Hugging Face names: auto, balanced …"
    )
    command.add_argument(
        "--ids", action="store_true",
        help="--text holds token ids, with blanks between (for a model without tokenizer)",
    )  # fmt: skip


def _load(options: argparse.Namespace) -> TransformerBridge:
    import torch

    from . import devices, models

    dtype = getattr(torch, DTYPES[options.dtype])
    named = {"revision": options.revision, "device_map": options.device_map}
    extra = {name: value for name, value in named.items() if value is not None}
    if options.device_map is None:
        try:
            devices.choose_device(options.device, dtype)
        except ValueError as error:
            raise _Stop(WRONG_USE, error) from None
    elif options.device is not None:
        raise _Stop(WRONG_USE, "pass one of --device and --device-map")
    try:
        return models.load(options.model, device=options.device, dtype=dtype, **extra)
    except (ValueError, OSError, RuntimeError, ImportError, KeyError) as error:
        # RuntimeError: FetchError, a full GPU, NotImplementedError of TransformerLens
        raise _Stop(NO_MODEL, error) from None


def _text(options: argparse.Namespace, model: TransformerBridge) -> Any:
    from . import texts

    if options.ids:
        try:
            return [int(token) for token in (options.text or "").split()]
        except ValueError:
            raise _Stop(WRONG_USE, f"--ids wants integers in --text: {options.text!r}") from None
    if options.text is not None:
        return options.text
    if model.tokenizer is None:
        return list(range(min(16, model.cfg.d_vocab, model.cfg.n_ctx)))
    return model.to_tokens(texts.PASSAGES["story"])[:, :64]


def _checked(run: Any) -> Any:
    """What ``run`` returns; the library's errors become a status and one line."""
    from .audit import LedgerError
    from .readout import ReadoutError
    from .wiring import WiringError

    try:
        return run()
    except (LedgerError, WiringError, ReadoutError) as error:
        raise _Stop(OPEN, error) from None
    except (ValueError, TypeError, IndexError) as error:
        raise _Stop(WRONG_USE, error) from None
    except MemoryError as error:
        raise _Stop(NO_MODEL, f"out of memory: {error}") from None
    except RuntimeError as error:
        if "out of memory" in str(error):  # of a GPU
            raise _Stop(NO_MODEL, error) from None
        raise


def _audit(options: argparse.Namespace) -> int:
    from .stream import record

    model = _load(options)
    stream = _checked(lambda: record(model, _text(options, model)))
    found = stream.audit()
    if options.json:
        shape = {"model": model.cfg.model_name, "tokens": stream.tokens.shape[1],
                 "writes": len(stream.labels)}  # fmt: skip
        _print_json(shape | found.to_dict())
    else:
        print(found)
    return CLOSES if found.ok else OPEN


def _probe(options: argparse.Namespace) -> int:
    from .probe import probe
    from .probe_page import to_html

    if options.report is not None and not options.report.absolute().parent.is_dir():
        raise _Stop(WRONG_USE, f"--report: there is no folder {options.report.absolute().parent}")
    model = _load(options)
    target = options.target
    if options.ids and target is not None:
        if not target.isdecimal():
            raise _Stop(WRONG_USE, f"--ids wants an integer as --target: {target!r}")
        target = int(target)
    story = _checked(
        lambda: probe(
            model, _text(options, model), position=options.position, target=target, progress=True
        )
    )
    if options.report is not None:
        try:
            options.report.write_text(to_html(story), encoding="utf-8")
        except OSError as error:
            raise _Stop(WRONG_USE, f"--report: {error}") from None
    if options.json:
        _print_json(story.to_dict())
    else:
        print(story)
    return CLOSES


def _models(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from .catalogue import available

    if options.json:
        _print_json([asdict(entry) for entry in available()])
    else:
        print(available())
        print("\nHugging Face names, folders and .gguf files of Llama models are taken too.")
    return CLOSES


def _print_json(value: Any) -> None:
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    print(json.dumps(finite, indent=2, ensure_ascii=False, allow_nan=False))


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
