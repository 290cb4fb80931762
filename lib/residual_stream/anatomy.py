"""Where any PyTorch stack of blocks writes to its stream, found by watching one forward pass.

Nothing is assumed of the module but that it is a stack: blocks of one class, each of which takes
the stream and returns it. A block's *write* is the last tensor that carries a branch's output alone
before it is added. The sum is then checked: a block whose output is not its input plus its writes,
nor the norm of that, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_INNER = "_original_component"
_ATTENTION = ("attn", "attention", "mixer", "mamba", "ssm", "recurrent", "conv")
#: Roundings that may lie between a block's output and the sum of its input and writes.
_ROUNDINGS = 4.0


class AnatomyError(ValueError):
    """The stack, a branch or a write was not found; the message says what was and what to pass."""


@dataclass(frozen=True)
class Call:
    """One call of a module inside a block: its path there, what it read and what it returned.

    ``seen_by_autograd`` is False where gradients were switched off during the call, as in the
    forward pass of a reentrant activation checkpoint.
    """

    path: str
    module: nn.Module
    read: Tensor | None
    returned: Tensor
    seen_by_autograd: bool = True


@dataclass(frozen=True)
class Branch:
    """A branch of a block.

    Attributes:
        kind: ``"attn"``, ``"mlp"``, or the name given.
        path: The module, inside the block, whose output is the write.
        closing: In a post-norm block, the norm that takes the sum; None elsewhere.
        reads_before: Whether it reads the stream after the branch before it (not in a parallel
            block).
        scaled: Whether the write joins the stream times a factor, which is then measured.
        trainable: Whether anything in the branch is trained.
    """

    kind: str
    path: str
    closing: str | None
    reads_before: bool
    scaled: bool
    trainable: bool


@dataclass(frozen=True)
class Block:
    """A block and where it writes.

    Attributes:
        name: Its name in the module.
        placement: ``"pre"`` if its output is its input plus its writes, ``"post"`` if it is the
            norm of that.
        branches: In the order written.
    """

    name: str
    placement: str
    branches: tuple[Branch, ...]


def plain_name(name: str) -> str:
    """Return a module's name without the layers that compiling or sharding put around it.

    Example:
        >>> plain_name("_orig_mod.model.layers.3")
        'model.layers.3'
    """
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


def find_blocks(
    module: nn.Module, names: str | Sequence[str] | None = None
) -> list[tuple[str, nn.Module]]:
    """Return the blocks of a stack in order, with their names.

    Args:
        module: Any module.
        names: The list that holds the blocks, or each block by name. If None, the longest
            ``ModuleList`` or ``Sequential`` whose children are of one class and have parameters;
            lists inside another such list (experts, heads) do not count.

    Returns:
        Pairs of name and module.

    Raises:
        AnatomyError: No such list, two that are equally long, or a name that does not exist.

    Example:
        >>> stack = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        >>> [name for name, _ in find_blocks(nn.ModuleDict({"layers": stack, "top": stack[0]}))]
        ['layers.0', 'layers.1', 'layers.2', 'layers.3']
    """
    known = {plain_name(name): child for name, child in module.named_modules()}
    if isinstance(names, str):
        if names not in known:
            raise AnatomyError(_unknown("list of blocks", names, known))
        found = {f"{names}.{key}": child for key, child in known[names].named_children()}
        if not found:
            raise AnatomyError(f"find_blocks: {names!r} holds no modules")
        return list(found.items())
    if names is not None:
        for name in names:
            if name not in known:
                raise AnatomyError(_unknown("block", name, known))
        return [(name, known[name]) for name in names]
    lists = {
        name: list(child.children())
        for name, child in known.items()
        if isinstance(child, nn.ModuleList | nn.Sequential)
    }
    stacks = {
        name: children
        for name, children in lists.items()
        if len({type(child) for child in children}) == 1
        and any(True for _ in children[0].parameters())
    }
    outer = {
        name: children
        for name, children in stacks.items()
        if not any(name != other and name.startswith(f"{other}.") for other in stacks)
    }
    if not outer:
        held = ", ".join(f"{name!r} ({len(children)})" for name, children in lists.items())
        raise AnatomyError(
            f"find_blocks: {type(module).__name__} has no list of blocks of one class (lists: "
            f"{held or 'none'}); pass blocks= the name of the list, or the blocks' names"
        )
    longest = max(map(len, outer.values()))
    best = [name for name, children in outer.items() if len(children) == longest]
    if len(best) > 1:
        raise AnatomyError(
            f"find_blocks: {type(module).__name__} has {len(best)} lists of {longest} blocks, "
            f"{best}; pass blocks= one of them"
        )
    prefix = f"{best[0]}." if best[0] else ""
    return [(f"{prefix}{i}", child) for i, child in enumerate(outer[best[0]])]


def _unknown(what: str, name: str, known: Mapping[str, nn.Module]) -> str:
    lists = [n for n, m in known.items() if isinstance(m, nn.ModuleList | nn.Sequential) and n]
    return f"find_blocks: no {what} called {name!r}; the lists are {lists}"


def is_norm(module: nn.Module) -> bool:
    """Return whether a module normalises: its class is called so (LayerNorm, RMSNorm, …)."""
    return "norm" in type(module).__name__.lower()


def norm_gains(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the gain of every norm inside a module, by name: its first vector of parameters."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for name, norm in module.named_modules():
        if not is_norm(norm):
            continue
        vectors = [p for _, p in norm.named_parameters() if p.ndim == 1 and p.numel() > 1]
        if vectors and id(vectors[0]) not in seen:
            seen.add(id(vectors[0]))
            found[plain_name(name).replace(f".{_INNER}", "")] = vectors[0]
    return found


def resolve(
    layer: int,
    name: str,
    block: nn.Module,
    entered: Tensor,
    left: Tensor,
    calls: Sequence[Call],
    given: Mapping[str, str] | None,
) -> Block:
    """Return where a block writes, from one forward pass through it.

    Args:
        layer: Its place in the stack.
        name: Its name in the module.
        block: The block.
        entered: The stream before it.
        left: The stream after it.
        calls: Every call of a module inside it, in the order in which they returned.
        given: Paths of the writing modules inside the block, by kind; found by structure if None.

    Returns:
        The block's placement and branches.

    Raises:
        AnatomyError: No branch, a sum that does not close, or a stream that is not finite.
    """
    where = f"block {layer} ({name}, a {type(_core(block)).__name__})"
    for what, stream in (("input", entered), ("output", left)):
        if not bool(stream.isfinite().all()):
            raise AnatomyError(
                f"{where}: its {what} is not finite in the first sampled step, so there is no sum "
                "to find its writes by; look for the first value that is not, below it"
            )
    written = _writes(where, block, left, calls, given)
    last = next((c for c in reversed(calls) if is_norm(c.module) and _same(c.returned, left)), None)
    if last is not None:
        branches = []
        for kind, path, at in written:
            closing = next((c.path for c in calls[at + 1 :] if _takes_the_sum(c, left)), None)
            if closing is None:
                raise AnatomyError(
                    f"{where} ends in a norm (post-norm), but no norm takes the {kind} branch "
                    f"after {path!r}; pass branches={{kind: path}} with the modules whose output "
                    "is added"
                )
            branches.append(Branch(kind, path, closing, True, False, _trainable(block, path)))
        return Block(name, "post", tuple(branches))
    values = [calls[at].returned.reshape(left.shape) for _, _, at in written]
    factors = factors_of(entered, left, values)
    if factors is None:
        raise AnatomyError(
            f"{where}: its output is not its input plus {' and '.join(p for _, p, _ in written)}"
            ", nor the norm of that: gated, rescaled or replaced streams are not monitored, nor a "
            "dropout that is a function and no module, unless its rate is 0. If the writes are "
            "elsewhere, pass branches={kind: path}; its modules are "
            f"{sorted({c.path for c in calls if c.path.count('.') < 2})}"
        )
    running, branches = entered, []
    for (kind, path, _), value, factor in zip(written, values, factors, strict=True):
        branches.append(
            Branch(kind, path, None, _is_read(running, entered, calls), factor != 1.0,
                   _trainable(block, path))
        )  # fmt: skip
        running = running + value if factor == 1.0 else running + factor * value
    return Block(name, "pre", tuple(branches))


def fits(value: Tensor, stream: Tensor) -> bool:
    """Return whether a tensor holds one vector of the stream's width per token, flat or not."""
    return value.shape[-1:] == stream.shape[-1:] and value.numel() == stream.numel()


def factors_of(entered: Tensor, left: Tensor, writes: Sequence[Tensor]) -> list[float] | None:
    """Return the factors with which writes join the stream, all 1 if those close, None if none do.

    Closed means that ‖left − entered − Σ c·write‖ is no more than a few roundings of the terms.
    """
    rows = [entered.detach().double(), *(w.detach().double() for w in writes)]
    change = (left.detach().double() - rows[0]).flatten()
    terms = torch.stack([row.flatten() for row in rows[1:]])  # [write, entry]
    eps = max(torch.finfo(t.dtype).eps for t in (entered, left))
    allowed = _ROUNDINGS * eps * (rows[0].norm() + sum(term.norm() for term in terms))
    if (change - terms.sum(0)).norm() <= allowed:
        return [1.0] * len(writes)
    gram = terms @ terms.T
    factors = torch.linalg.pinv(gram, hermitian=True) @ (terms @ change)
    if (change - factors @ terms).norm() <= allowed:
        return factors.tolist()
    return None


def _core(block: nn.Module) -> nn.Module:
    """The block itself, inside a TransformerLens bridge of it."""
    while _INNER in block._modules:
        block = block._modules[_INNER]
    return block


def _writes(
    where: str,
    block: nn.Module,
    left: Tensor,
    calls: Sequence[Call],
    given: Mapping[str, str] | None,
) -> list[tuple[str, str, int]]:
    """The writes as kind, path and index of the call, in the order written."""
    last = {call.path: at for at, call in enumerate(calls)}
    if given is not None:
        for kind, path in given.items():
            if path not in last:
                raise AnatomyError(
                    f"{where}: no module {path!r} ran for branch {kind!r}; those that ran are "
                    f"{sorted(p for p in last if p.count('.') < 2)}"
                )
        return sorted(((kind, path, last[path]) for kind, path in given.items()), key=_order)
    hooks = [p for p in last if p in ("hook_attn_out", "hook_mlp_out")]
    if hooks:  # TransformerLens's name for a write
        return sorted(((p.split("_")[1], p, last[p]) for p in hooks), key=_order)
    found: dict[str, tuple[str, str, int]] = {}
    for path, child in _candidates(block):
        if path not in last or not fits(calls[last[path]].returned, left):
            continue
        at = last[path]
        for later in range(at + 1, len(calls)):  # dropout, layer scale, a sandwich's second norm
            call = calls[later]
            follows = call.read is not None and _same(call.read, calls[at].returned)
            if follows and fits(call.returned, left) and not _has_matrix(call.module):
                at = later
        kind = _kind(path, child)
        if kind in found:
            kind = path.rpartition(".")[2]
        found[kind] = (kind, calls[at].path, at)
    if not found:
        children = sorted({c.path for c in calls if "." not in c.path})
        raise AnatomyError(
            f"{where}: no branch found, that is, no child with a weight matrix that returns the "
            f"stream's shape {tuple(left.shape)}; its modules are {children}; pass "
            "branches={kind: path}"
        )
    return sorted(found.values(), key=_order)


def _order(write: tuple[str, str, int]) -> int:
    return write[2]


def _candidates(block: nn.Module) -> list[tuple[str, nn.Module]]:
    """Children with a weight matrix that are no norm, looked for inside a bridge's wrapper."""
    core, prefix = block, ""
    while _INNER in core._modules:
        core, prefix = core._modules[_INNER], f"{prefix}{_INNER}."
    return [
        (f"{prefix}{name}", child)
        for name, child in core.named_children()
        if _has_matrix(child) and not is_norm(child)
    ]


def _has_matrix(module: nn.Module) -> bool:
    return any(p.ndim >= 2 for p in module.parameters())


def _kind(path: str, child: nn.Module) -> str:
    described = f"{path.rpartition('.')[2]} {type(child).__name__}".lower()
    return "attn" if any(word in described for word in _ATTENTION) else "mlp"


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and a.data_ptr() == b.data_ptr())


def _takes_the_sum(call: Call, left: Tensor) -> bool:
    return is_norm(call.module) and call.read is not None and fits(call.returned, left)


def _is_read(running: Tensor, entered: Tensor, calls: Sequence[Call]) -> bool:
    """Whether any module read the stream as it stood after the writes so far."""
    if running is entered:
        return True
    eps, size = torch.finfo(running.dtype).eps, running.detach().norm()
    return any(
        call.read is not None
        and fits(call.read, running)
        and (call.read.detach().reshape(running.shape) - running.detach()).norm()
        <= _ROUNDINGS * eps * size
        for call in calls
    )


def _trainable(block: nn.Module, path: str) -> bool:
    """Whether the child of the block in which ``path`` lies has trained parameters.

    A hook point or a dropout has none of its own; then the whole block answers.
    """
    at = block
    for part in path.split("."):
        at = at._modules[part]
        own = list(at.parameters())
        if part != _INNER and own:
            return any(p.requires_grad for p in own)
    return any(p.requires_grad for p in block.parameters())
