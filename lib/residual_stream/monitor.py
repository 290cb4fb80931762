"""A monitor for one's own training loop: what the stream does while the loss looks fine.

Nothing is on the module between samples: a sampled step puts its hooks on before the forward pass
and takes them off after the optimiser has stepped. :mod:`residual_stream.anatomy` finds the writes,
:mod:`residual_stream.gauges` measures them, :mod:`residual_stream.findings` judges.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor, nn

from .anatomy import AnatomyError, Block, find_blocks, norm_gains, plain_name
from .findings import Finding, judge
from .gauges import Gauges
from .history import FIELDS, History, Sample

_VERSION = 1


class StreamMonitor:
    """Watches the residual stream of a module in training.

    Call :meth:`step` after each optimiser step. Step 1 and every ``every``-th are sampled; the
    others run without a hook. A step is what lies between two calls, however many forward passes
    it has. On sampled steps compiled code runs eagerly; the compiled graph stays as it is. Of
    activation checkpointing, the kind with ``use_reentrant=False`` is seen; the reentrant kind
    hides its forward pass from autograd, and with it the gradients of what it wraps. Hooks are on
    from :meth:`step` to :meth:`step` around a sample: save ``state_dict()``, not the module.

    Args:
        module: Any module that is or holds a stack of blocks; compiled or wrapped is fine.
        every: Distance between sampled steps.
        blocks: The list of blocks, or each block, by name; the longest list if None.
        branches: Paths, inside a block, of the modules whose outputs are added to the stream, by
            kind; found by structure if None.
        tokens: Tokens of a forward pass that are measured, at most.
        keep: Samples that are kept at most; past that, every second of the older half goes.

    Raises:
        AnatomyError: The stack is not found; or, in the first sampled step, its writes, and then
            the monitor is removed.
        ValueError: A number that is not positive.

    Example:
        >>> import transformers
        >>> import residual_stream as rs
        >>> small = dict(n_layer=2, n_head=2, n_embd=16, vocab_size=11, n_positions=8)
        >>> model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**small))
        >>> optimiser = torch.optim.AdamW(model.parameters())
        >>> with rs.StreamMonitor(model) as monitor:
        ...     ids = torch.randint(11, (4, 8))
        ...     model(ids, labels=ids).loss.backward()
        ...     optimiser.step()
        ...     monitor.step()
        >>> monitor
        StreamMonitor(GPT2LMHeadModel: 2 blocks, 1 of 1 steps sampled, nothing found)
    """

    _eager: ClassVar[_Eager]

    def __init__(
        self,
        module: nn.Module,
        *,
        every: int = 10,
        blocks: str | Sequence[str] | None = None,
        branches: Mapping[str, str] | None = None,
        tokens: int = 1024,
        keep: int = 2048,
    ) -> None:
        """Find the blocks and get ready for step 1."""
        for name, value, least in (("every", every, 1), ("tokens", tokens, 1), ("keep", keep, 16)):
            if value < least:
                raise ValueError(f"StreamMonitor: {name} = {value}; pass {least} or more")
        if branches is not None and not branches:
            raise ValueError("StreamMonitor: branches = {}; pass {kind: path}, or None")
        found = find_blocks(module, blocks)
        self.every, self.tokens, self.keep = every, tokens, keep
        self._name = type(getattr(module, "_orig_mod", module)).__name__
        self._names, self._modules = [n for n, _ in found], [b for _, b in found]
        self._branches = None if branches is None else dict(branches)
        self._anatomy: dict[int, Block] = {}
        self._gains = _gains_by_layer(module, self._names)
        self._matrices = [_first_matrix(block) for block in self._modules]
        self._step, self._n_sampled = 0, 0
        self._before = self._snapshot()
        fresh = all(bool((g == g.flatten()[0]).all()) for _, _, g in self._gains)
        self.history = History(
            gains=[(layer, name) for layer, name, _ in self._gains],
            fresh=bool(self._gains) and fresh,
        )
        self._findings: list[Finding] = []
        self._gauges: Gauges | None = None
        self._removed = False
        self._prepare()

    # -- in the training loop ------------------------------------------------------------------

    def step(self) -> None:
        """Say that the optimiser has stepped.

        Raises:
            ValueError: The monitor was removed.
            AnatomyError: The first sampled step ran no forward pass that autograd could see.
        """
        if self._removed:
            raise ValueError("StreamMonitor.step: this monitor was removed; make a new one")
        self._step += 1
        if self._gauges is not None:
            gauges, self._gauges = self._gauges, None
            self._release(gauges)
            if gauges.passes:
                self._take(gauges)
            else:
                self._missed()
        self._prepare()

    def findings(self) -> list[Finding]:
        """Return what was found so far, in the order found; each says layer and step in words."""
        return list(self._findings)

    def remove(self) -> None:
        """Take the monitor off; the module is as if it had never been on. Findings stay."""
        if self._gauges is not None:
            gauges, self._gauges = self._gauges, None
            self._release(gauges)
        self._removed = True

    def __del__(self) -> None:
        """Remove a monitor that nobody holds any more."""
        if not getattr(self, "_removed", True):
            self.remove()

    def __enter__(self) -> StreamMonitor:
        """Return the monitor."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        self.remove()

    # -- what it saw ---------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Optimiser steps so far."""
        return self._step

    @property
    def n_layers(self) -> int:
        """Blocks that are watched."""
        return len(self._names)

    @property
    def blocks(self) -> list[Block]:
        """Where each block writes; empty before the first sampled step."""
        return [self._anatomy[layer] for layer in sorted(self._anatomy)]

    def to_frame(self) -> pd.DataFrame:
        """Return every measured value: one row per sampled step and part.

        ``part`` is ``stream`` (below block ``layer``; the last is the top) or a write. ``norm``,
        ``first`` (position 0), ``before`` (the stream that the write joins), ``varies`` (the part
        of the write that differs between tokens), ``gradient`` (of the loss, at that place) and
        ``weights_gradient`` (of the block's parameters) are root mean squares; ``ratio`` is
        ``norm / before``; ``lost`` the share of a write's entries that rounding swallowed.
        """
        parts = self.history.parts
        frames = [
            pd.DataFrame(sample.table.numpy(), columns=list(FIELDS)).assign(
                step=sample.step, layer=[p[0] for p in parts], part=[p[1] for p in parts]
            )
            for sample in self.history.samples
        ]
        columns = ["step", "layer", "part", *FIELDS, "ratio"]
        if not frames:
            return pd.DataFrame(columns=columns)
        frame = pd.concat(frames, ignore_index=True)
        return frame.assign(ratio=frame["norm"] / frame["before"])[columns]

    def to_jsonl(self, path: str | Path) -> None:
        """Write :meth:`to_frame`, one JSON object a line, then the findings.

        What is not finite becomes null: JSON knows neither nan nor infinity.
        """
        lines = []
        for row in self.to_frame().to_dict("records"):
            finite = {k: isinstance(v, str) or math.isfinite(v) for k, v in row.items()}
            lines.append({k: v if finite[k] else None for k, v in row.items()})
        lines += [{"finding": str(f), "kind": f.kind, "layer": f.layer, "step": f.step}
                  for f in self._findings]  # fmt: skip
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        Path(path).write_text(text, encoding="utf-8")

    def to_tensorboard(self, writer: Any) -> None:
        """Write every value as a scalar ``stream/…`` and every finding as text.

        Args:
            writer: A folder, for which tensorboard must be installed, or anything with
                ``add_scalar(tag, value, step)`` and ``add_text(tag, text, step)``.

        Raises:
            ImportError: A folder was given and tensorboard is not installed.
        """
        own = isinstance(writer, str | Path)
        if own:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as missing:
                raise ImportError(
                    "StreamMonitor.to_tensorboard: tensorboard is not installed; pip install "
                    "tensorboard, pass a writer of your own, or use to_jsonl"
                ) from missing
            writer = SummaryWriter(str(writer))
        frame = self.to_frame()
        for field in (*FIELDS, "ratio"):
            shown = frame[["step", "layer", "part", field]].dropna()
            for step, layer, part, value in shown.itertuples(index=False):
                writer.add_scalar(f"stream/{part}/{field}/{layer}", float(value), int(step))
        for finding in self._findings:
            writer.add_text(f"stream/findings/{finding.kind}", str(finding), finding.step)
        if own:
            writer.close()

    def __repr__(self) -> str:
        """One line: the module, the samples and the findings."""
        kinds = ", ".join(f"{f.kind} in layer {f.layer}" for f in self._findings)
        return (
            f"StreamMonitor({self._name}: {len(self._names)} blocks, {self._n_sampled} of "
            f"{self._step} steps sampled, {kinds or 'nothing found'})"
        )

    def _repr_markdown_(self) -> str:
        rows = [f"| {f.step} | {f.layer} | {f.kind} | {f} |" for f in self._findings]
        head = "| step | layer | kind | finding |\n|---|---|---|---|\n"
        return head + "\n".join(rows) if rows else f"`{self!r}`"

    # -- checkpoint and resume -----------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything to go on from, in plain types and tensors."""
        return {
            "version": _VERSION,
            "step": self._step,
            "sampled": self._n_sampled,
            "names": list(self._names),
            "before": [tensor.clone() for tensor in self._before],
            "history": self.history.state_dict(),
            "findings": [vars(finding) | {} for finding in self._findings],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: The monitor was removed; a state of another version or of a stack with
                other blocks.
        """
        if self._removed:
            raise ValueError(
                "StreamMonitor.load_state_dict: this monitor was removed; make a new one"
            )
        if state.get("version") != _VERSION:
            raise ValueError(
                f"StreamMonitor.load_state_dict: version {state.get('version')!r}; this library "
                f"reads version {_VERSION}"
            )
        if list(state["names"]) != self._names:
            raise ValueError(
                f"StreamMonitor.load_state_dict: the state is of blocks {state['names'][:1]}… "
                f"({len(state['names'])}), this monitor watches {self._names[:1]}… "
                f"({len(self._names)})"
            )
        if self._gauges is not None:
            self._release(self._gauges)
            self._gauges = None
        self._step, self._n_sampled = int(state["step"]), int(state["sampled"])
        here = [now.device for now in self._before]
        self._before = [t.to(d) for t, d in zip(state["before"], here, strict=True)]
        self.history = History.from_state_dict(state["history"])
        self._findings = [Finding(**fields) for fields in state["findings"]]
        self._prepare()

    # -- inside --------------------------------------------------------------------------------

    def _prepare(self) -> None:
        coming = self._step + 1
        if coming != 1 and coming % self.every:
            return
        self._gauges = Gauges(
            self._names, self._modules, self._anatomy, given=self._branches, tokens=self.tokens,
            give_up=weakref.WeakMethod(self.remove),
        )  # fmt: skip
        self._eager.enter()

    def _release(self, gauges: Gauges) -> None:
        gauges.remove()
        self._eager.leave()

    def _take(self, gauges: Gauges) -> None:
        if not self.history.parts:
            self.history.describe(self.blocks, dtype=gauges.dtype)
        now = self._snapshot()
        moved = torch.tensor(
            [not torch.equal(a, b) for a, b in zip(self._before, now, strict=True)]
        )
        self._before = now
        n_gains = len(self._gains)
        sample = Sample(
            self._step, gauges.length, gauges.table(self.history.parts),
            moved[:n_gains], moved[n_gains:],
        )  # fmt: skip
        self.history.add(sample, keep=self.keep)
        self._n_sampled += 1
        known = {finding.key for finding in self._findings}
        new = [finding for finding in judge(self.history) if finding.key not in known]
        self._findings += new
        self.history.found |= {finding.kind for finding in new}

    def _missed(self) -> None:
        what = (
            f"StreamMonitor.step: step {self._step} was to be sampled, but no forward pass that "
            "autograd sees ran through the blocks. Was the forward pass before the monitor was "
            "made, under no_grad, in another copy of the module, or inside a reentrant activation "
            "checkpoint (use_reentrant=False is seen)?"
        )
        if self._n_sampled == 0:
            self.remove()
            raise AnatomyError(what)
        warnings.warn(what, stacklevel=3)

    def _snapshot(self) -> list[Tensor]:
        gains = [gain for _, _, gain in self._gains]
        rows = [torch.zeros(0) if m is None else m[0].flatten() for m in self._matrices]
        return [tensor.detach().clone() for tensor in (*gains, *rows)]


class _Eager:
    """Keeps compiled code from running while any monitor samples."""

    def __init__(self) -> None:
        self.monitors, self.stance = 0, None

    def enter(self) -> None:
        self.monitors += 1
        # Only where something was compiled: the import alone takes seconds.
        if self.stance is None and "torch._dynamo" in sys.modules:
            self.stance = torch.compiler.set_stance("force_eager")

    def leave(self) -> None:
        self.monitors -= 1
        if self.monitors == 0 and self.stance is not None:
            self.stance.__exit__(None, None, None)
            self.stance = None


StreamMonitor._eager = _Eager()


def _gains_by_layer(module: nn.Module, names: Sequence[str]) -> list[tuple[int, str, nn.Parameter]]:
    """Every norm's gain with its block; the norms outside blocks stand at the number of blocks."""
    found = []
    for name, gain in norm_gains(module).items():
        layer = next(
            (i for i, block in enumerate(map(plain_name, names)) if name.startswith(f"{block}.")),
            len(names),
        )
        found.append((layer, name, gain))
    return found


def _first_matrix(block: nn.Module) -> nn.Parameter | None:
    return next((p for p in block.parameters() if p.ndim >= 2 and p.requires_grad), None)
