"""Answers to sheet 1, right and wrong. The first right one of each question is the reference."""

import torch

from course.attempts import Attempts

attempts = Attempts()
right, wrong = attempts.right, attempts.wrong
BUS = "chapter 1"


def _embedding(model):
    names = ["hook_embed"]
    if model.cfg.positional_embedding_type == "standard":
        names.append("hook_pos_embed")
    return names


def _branches(model, order=("attn", "mlp")):
    return [
        f"blocks.{layer}.hook_{branch}_out"
        for layer in range(model.cfg.n_layers)
        for branch in order
    ]


def _cache(model, tokens, names):
    with torch.no_grad():
        return model.run_with_cache(tokens, names_filter=list(names))[1]


def _start(model, cache):
    return [cache[name] for name in _embedding(model)]


def _blocks(model, tokens):
    """How many rows stand before block 0, and all rows."""
    return len(_embedding(model)), by_cache(model, tokens)


# --- ledger ----------------------------------------------------------------------------------


@right("ledger")
def by_cache(model, tokens):
    cache = _cache(model, tokens, [*_embedding(model), *_branches(model)])
    return torch.stack(
        [*_start(model, cache), *(cache[name] for name in _branches(model))]
    )


@right("ledger")
def by_own_hooks(model, tokens):
    rows = []

    def keep(value, hook):
        rows.append(value.detach().clone())

    names = [*_embedding(model), *_branches(model)]
    with torch.no_grad():
        model.run_with_hooks(
            tokens, fwd_hooks=[(name, keep) for name in names]
        )
    shape = max((row.shape for row in rows), key=len)
    return torch.stack([row.expand(shape) for row in rows])


@right("ledger")
def by_difference(model, tokens):
    names = [
        f"blocks.{layer}.hook_resid_pre" for layer in range(model.cfg.n_layers)
    ]
    names += [f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"]
    names += [
        f"blocks.{layer}.hook_attn_out" for layer in range(model.cfg.n_layers)
    ]
    cache = _cache(model, tokens, names)
    states = [cache[name] for name in names[: model.cfg.n_layers + 1]]
    rows = [model.W_E[tokens].detach()]
    if model.cfg.positional_embedding_type == "standard":
        rows.append(states[0] - rows[0])
    for layer in range(model.cfg.n_layers):
        attention = cache[f"blocks.{layer}.hook_attn_out"]
        rows += [attention, states[layer + 1] - states[layer] - attention]
    return torch.stack(rows)


@wrong("ledger", "The position's row is missing: in this model the stream starts as token row plus "
       "position row, at two hook points.", f"{BUS}, Position is not always in the stream")  # fmt: skip
def no_position(model, tokens):
    cache = _cache(model, tokens, ["hook_embed", *_branches(model)])
    return torch.stack(
        [cache["hook_embed"], *(cache[name] for name in _branches(model))]
    )


@wrong("ledger", "Token row and position row are one row here, their sum; each is a write of its own.",
       f"{BUS}, Position is not always in the stream")  # fmt: skip
def position_merged(model, tokens):
    start, rows = _blocks(model, tokens)
    return torch.cat([rows[:start].sum(0, keepdim=True), rows[start:]])


@wrong("ledger", "These are the states of the stream, not the writes: each row holds everything that "
       "was written before it too.", f"{BUS}, The sum is exact")  # fmt: skip
def states_not_writes(model, tokens):
    return by_cache(model, tokens).cumsum(0)


@wrong("ledger", "All attention writes come first and all MLP writes after them; asked is the order in "
       "which the model makes them.", f"{BUS}, The sum is exact")  # fmt: skip
def attention_first(model, tokens):
    start, rows = _blocks(model, tokens)
    return torch.cat([rows[:start], rows[start::2], rows[start + 1 :: 2]])


@wrong("ledger", "In every block the MLP's write stands before attention's.",
       f"{BUS}, The sum is exact")  # fmt: skip
def branches_swapped(model, tokens):
    cache = _cache(model, tokens, [*_embedding(model), *_branches(model)])
    names = _branches(model, ("mlp", "attn"))
    return torch.stack(
        [*_start(model, cache), *(cache[name] for name in names)]
    )


@wrong("ledger", "There is one row per block. A block writes twice: attention's write and the MLP's are "
       "two rows.", f"{BUS}, The first block writes more than it was given")  # fmt: skip
def one_row_per_block(model, tokens):
    start, rows = _blocks(model, tokens)
    return torch.cat([rows[:start], rows[start::2] + rows[start + 1 :: 2]])


@wrong("ledger", "Attention's write lacks the output bias b_O: the heads add up to the write less the "
       "bias.", f"{BUS}, The attention write is a sum over heads")  # fmt: skip
def no_output_bias(model, tokens):
    start, rows = _blocks(model, tokens)
    rows = rows.clone()
    for layer in range(model.cfg.n_layers):
        rows[start + 2 * layer] -= model.b_O[layer].detach()
    return rows


@wrong("ledger", "These are the normalised copies that the branches read, not what they write.",
       f"{BUS}, A block reads a normalised copy")  # fmt: skip
def reads_not_writes(model, tokens):
    names = [f"blocks.{layer}.{norm}.hook_out" for layer in range(model.cfg.n_layers)
             for norm in ("ln1", "ln2")]  # fmt: skip
    cache = _cache(model, tokens, [*_embedding(model), *names])
    return torch.stack(
        [*_start(model, cache), *(cache[name] for name in names)]
    )


@wrong(
    "ledger",
    "What stands in the stream before block 0 is missing.",
    f"{BUS}, The sum is exact",
)
def no_embedding(model, tokens):
    start, rows = _blocks(model, tokens)
    return rows[start:]


# --- turn ------------------------------------------------------------------------------------


@right("turn")
def by_cumsum(writes):
    before = writes.cumsum(0)[:-1]
    return torch.cosine_similarity(writes[1:], before, dim=-1)


@right("turn")
def by_loop(writes):
    stream, turns = writes[0], []
    for write in writes[1:]:
        turns.append(
            (write * stream).sum(-1)
            / (write.norm(dim=-1) * stream.norm(dim=-1))
        )
        stream = stream + write
    return torch.stack(turns)


@right("turn")
def by_unit_vectors(writes):
    stream = torch.stack([writes[:k].sum(0) for k in range(1, len(writes))])
    unit = [x / x.norm(dim=-1, keepdim=True) for x in (writes[1:], stream)]
    return torch.einsum("wbpd,wbpd->wbp", *unit)


@wrong("turn", "This is the cosine with the stream after the write has joined it. The write is then part "
       "of what it is compared with, which makes every value too large.",
       f"{BUS}, A coordinate is written up by hundreds and taken back")  # fmt: skip
def stream_after_the_write(writes):
    return torch.cosine_similarity(writes[1:], writes.cumsum(0)[1:], dim=-1)


@wrong("turn", "This is the dot product. Its size is that of the vectors; a cosine has their lengths "
       "divided out.", f"{BUS}, Nothing is ever overwritten")  # fmt: skip
def dot_product(writes):
    return (writes[1:] * writes.cumsum(0)[:-1]).sum(-1)


@wrong("turn", "Every write is compared with the top of the stream, not with the stream that it joins.",
       f"{BUS}, A coordinate is written up by hundreds and taken back")  # fmt: skip
def with_the_top(writes):
    return torch.cosine_similarity(writes[1:], writes.sum(0), dim=-1)


@wrong("turn", "Every write is compared with the write before it. It joins the sum of all writes before "
       "it.", f"{BUS}, The sum is exact")  # fmt: skip
def with_the_previous_write(writes):
    return torch.cosine_similarity(writes[1:], writes[:-1], dim=-1)


@wrong("turn", "Every write is compared with the first row. After one block little of the stream is that "
       "row.", f"{BUS}, Nothing is ever overwritten")  # fmt: skip
def with_the_row(writes):
    return torch.cosine_similarity(writes[1:], writes[:1], dim=-1)


@wrong("turn", "The sign is gone: a write that takes back (−) and one that adds to what is there (+) look "
       "the same.", f"{BUS}, A coordinate is written up by hundreds and taken back")  # fmt: skip
def sign_lost(writes):
    return by_cumsum(writes).abs()


@wrong("turn", "Off by one: each write is compared with a stream that lacks the write just before it.",
       f"{BUS}, The sum is exact")  # fmt: skip
def off_by_one_write(writes):
    stream = torch.cat([writes[:1], writes.cumsum(0)[:-2]])
    return torch.cosine_similarity(writes[1:], stream, dim=-1)


@wrong("turn", "The cosine is taken along the positions; a vector of the stream lies along d_model, the "
       "last axis.", "notation")  # fmt: skip
def along_positions(writes):
    return torch.cosine_similarity(writes[1:], writes.cumsum(0)[:-1], dim=2)


# --- swallowed -------------------------------------------------------------------------------


@right("swallowed")
def by_equality(writes):
    rounded = writes.bfloat16()
    stream, shares = rounded[0], []
    for write in rounded[1:]:
        new = stream + write
        there = write != 0
        shares.append(((new == stream) & there).sum() / there.sum())
        stream = new
    return torch.stack(shares)


@right("swallowed")
def by_counting(writes):
    stream = writes[0].to(torch.bfloat16)
    shares = torch.zeros(len(writes) - 1)
    for k in range(1, len(writes)):
        write = writes[k].to(torch.bfloat16)
        total = (stream.float() + write.float()).to(torch.bfloat16)
        lost = total.eq(stream)[write.ne(0)]
        shares[k - 1] = lost.double().mean()
        stream = total
    return shares


@right("swallowed")
def by_difference_of_states(writes):
    rounded = list(writes.to(torch.bfloat16))
    states = [rounded[0]]
    for write in rounded[1:]:
        states.append(states[-1].add(write))
    moved = torch.stack(states).float().diff(dim=0)
    there = torch.stack(rounded[1:]).float() != 0
    return ((moved == 0) & there).flatten(1).sum(1) / there.flatten(1).sum(1)


@wrong("swallowed", "The running sum is in float32, where next to nothing is lost. (bfloat16 plus "
       "float32 is float32: convert the writes too, and let every addition round.)", f"{BUS}, Rounding grows with the stream")  # fmt: skip
def sum_in_float32(writes):
    stream, shares = writes[0], []
    for write in writes[1:]:
        shares.append(
            ((stream + write == stream) & (write != 0)).sum()
            / (write != 0).sum()
        )
        stream = stream + write
    return torch.stack(shares)


@wrong("swallowed", "bfloat16 plus float32 is float32: the sum was promoted and never rounded. Convert the "
       "writes as well.", f"{BUS}, Rounding grows with the stream")  # fmt: skip
def promoted(writes):
    stream, shares = writes[0].bfloat16(), []
    for write in writes[1:]:
        new = stream + write
        shares.append(
            ((new == stream) & (write != 0)).sum() / (write != 0).sum()
        )
        stream = new
    return torch.stack(shares)


@wrong("swallowed", "Entries that were zero to begin with are counted as swallowed.",
       f"{BUS}, Rounding grows with the stream")  # fmt: skip
def zeros_counted(writes):
    rounded = writes.bfloat16()
    stream, shares = rounded[0], []
    for write in rounded[1:]:
        shares.append((stream + write == stream).double().mean())
        stream = stream + write
    return torch.stack(shares)


@wrong(
    "swallowed",
    "These are numbers of entries; asked are shares, from 0 to 1.",
    "",
)
def counts(writes):
    rounded = writes.bfloat16()
    stream, found = rounded[0], []
    for write in rounded[1:]:
        found.append(((stream + write == stream) & (write != 0)).sum())
        stream = stream + write
    return torch.stack(found)


@wrong("swallowed", "Every write is added to the top. It joins the stream as it was at that time, which "
       "was shorter and rounded more finely.", f"{BUS}, Rounding grows with the stream")  # fmt: skip
def against_the_top(writes):
    rounded = writes.bfloat16()
    top = rounded[0]
    for write in rounded[1:]:
        top = top + write
    return torch.stack(
        [
            ((top + w == top) & (w != 0)).sum() / (w != 0).sum()
            for w in rounded[1:]
        ]
    )


@wrong("swallowed", "The format is float16. It keeps eleven bits of a number, bfloat16 keeps eight.",
       f"{BUS}, Rounding grows with the stream")  # fmt: skip
def in_float16(writes):
    rounded = writes.half()
    stream, shares = rounded[0], []
    for write in rounded[1:]:
        shares.append(
            ((stream + write == stream) & (write != 0)).sum()
            / (write != 0).sum()
        )
        stream = stream + write
    return torch.stack(shares)


@wrong("swallowed", "This counts what is smaller than a whole rounding step. A sum rounds to the nearest: "
       "from half a step on it moves.", f"{BUS}, Rounding grows with the stream")  # fmt: skip
def whole_step(writes):
    rounded = writes.bfloat16()
    stream, shares = rounded[0], []
    for write in rounded[1:]:
        step = (
            torch.finfo(torch.bfloat16).eps
            * 2 ** stream.abs().float().log2().floor()
        )
        shares.append(
            ((write.abs().float() < step) & (write != 0)).sum()
            / (write != 0).sum()
        )
        stream = stream + write
    return torch.stack(shares)


@wrong("swallowed", "One share per write was asked, over all tokens and coordinates; here every token has "
       "its own.", "")  # fmt: skip
def per_token(writes):
    rounded = writes.bfloat16()
    stream, shares = rounded[0], []
    for write in rounded[1:]:
        shares.append(
            ((stream + write == stream) & (write != 0)).sum(-1)
            / (write != 0).sum(-1)
        )
        stream = stream + write
    return torch.stack(shares)


@wrong("swallowed", "Divided by all entries. Entries that are zero have nothing to lose: they are left out of "
       "what is counted and out of what it is divided by.", f"{BUS}, Rounding grows with the stream")  # fmt: skip
def of_all_entries(writes):
    rounded = writes.bfloat16()
    stream, shares = rounded[0], []
    for write in rounded[1:]:
        lost = (stream + write == stream) & (write != 0)
        shares.append(lost.double().mean())
        stream = stream + write
    return torch.stack(shares)


def _unmoved(states, rounded):
    """Shares of entries at which two states of the stream are the same."""
    same, there = states[1:] == states[:-1], rounded[1:] != 0
    return (same & there).flatten(1).sum(1) / there.flatten(1).sum(1)


@wrong("swallowed", "The sum runs in float32 and is rounded afterwards (`cumsum` of bfloat16 does so too). The "
       "model rounds after every addition, and goes on from the rounded number.",
       f"{BUS}, Rounding grows with the stream")  # fmt: skip
def rounded_afterwards(writes):
    rounded = writes.bfloat16()
    return _unmoved(rounded.float().cumsum(0).bfloat16(), rounded)


@wrong("swallowed", "The states of the float32 stream are rounded and compared. The model rounds after every "
       "addition, and goes on from the rounded number.", f"{BUS}, Rounding grows with the stream")  # fmt: skip
def states_rounded(writes):
    return _unmoved(writes.cumsum(0).bfloat16(), writes.bfloat16())


# --- push ------------------------------------------------------------------------------------


def _top(model):
    return f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"


def _run(model, tokens, hooks=(), names=()):
    with torch.no_grad(), model.hooks(fwd_hooks=list(hooks)):
        return model.run_with_cache(tokens, names_filter=list(names))[1]


def _scaling(layer, eps, branch="mlp"):
    return (
        f"blocks.{layer}.hook_{branch}_out",
        lambda value, hook: value * (1 + eps),
    )


@right("push")
def by_two_runs(model, tokens, layer, eps):
    name = f"blocks.{layer}.hook_mlp_out"
    clean = _run(model, tokens, names=[name, _top(model)])
    pushed = _run(model, tokens, [_scaling(layer, eps)], [_top(model)])
    moved = (pushed[_top(model)] - clean[_top(model)])[:, 1:].norm(dim=-1)
    return moved / (eps * clean[name][:, 1:]).norm(dim=-1)


@right("push")
def by_ledger(model, tokens, layer, eps):
    before = by_cache(model, tokens)
    with model.hooks(fwd_hooks=[_scaling(layer, eps)]):
        after = by_cache(model, tokens)
    extra = eps * before[len(_embedding(model)) + 1 + 2 * layer]
    moved = after.sum(0) - before.sum(0)
    return (moved.norm(dim=-1) / extra.norm(dim=-1))[:, 1:]


@right("push")
def by_adding_to_the_stream(model, tokens, layer, eps):
    name = f"blocks.{layer}.hook_mlp_out"
    clean = _run(model, tokens, names=[name, _top(model)])
    extra = eps * clean[name]

    def add(value, hook):
        return value + extra

    pushed = _run(
        model,
        tokens,
        [(f"blocks.{layer}.hook_resid_post", add)],
        [_top(model)],
    )
    moved = pushed[_top(model)] - clean[_top(model)]
    ratio = moved.pow(2).sum(-1).sqrt() / extra.pow(2).sum(-1).sqrt()
    return ratio[:, 1:]


@wrong("push", "Position 0 is in it. Its stream is on another scale, so it is reported apart.",
       f"{BUS}, Nothing is ever overwritten")  # fmt: skip
def position_0_included(model, tokens, layer, eps):
    name = f"blocks.{layer}.hook_mlp_out"
    clean = _run(model, tokens, names=[name, _top(model)])
    pushed = _run(model, tokens, [_scaling(layer, eps)], [_top(model)])
    moved = (pushed[_top(model)] - clean[_top(model)]).norm(dim=-1)
    return moved / (eps * clean[name]).norm(dim=-1)


@wrong("push", "The move is divided by the whole write. What was put in is eps times the write.",
       f"{BUS}, The sum is additive, the network is not linear")  # fmt: skip
def per_whole_write(model, tokens, layer, eps):
    return by_two_runs(model, tokens, layer, eps) * eps


@wrong("push", "This is the length of the pushed top, not of its difference from the top of the plain run.",
       f"{BUS}, The sum is additive, the network is not linear")  # fmt: skip
def not_subtracted(model, tokens, layer, eps):
    name = f"blocks.{layer}.hook_mlp_out"
    clean = _run(model, tokens, names=[name])
    pushed = _run(model, tokens, [_scaling(layer, eps)], [_top(model)])
    return pushed[_top(model)][:, 1:].norm(dim=-1) / (
        eps * clean[name][:, 1:]
    ).norm(dim=-1)


@wrong("push", "Attention's write was pushed; asked is the MLP's.",
       f"{BUS}, The first block writes more than it was given")  # fmt: skip
def attention_pushed(model, tokens, layer, eps):
    name = f"blocks.{layer}.hook_attn_out"
    clean = _run(model, tokens, names=[name, _top(model)])
    pushed = _run(model, tokens, [_scaling(layer, eps, "attn")], [_top(model)])
    moved = (pushed[_top(model)] - clean[_top(model)])[:, 1:].norm(dim=-1)
    return moved / (eps * clean[name][:, 1:]).norm(dim=-1)


@wrong("push", "Off by one layer: the write that was pushed is that of the block above.",
       f"{BUS}, The sum is additive, the network is not linear")  # fmt: skip
def off_by_one_layer(model, tokens, layer, eps):
    return by_two_runs(
        model, tokens, min(layer + 1, model.cfg.n_layers - 1), eps
    )


@wrong("push", "The whole stream after the block was scaled, not the one write.",
       f"{BUS}, The sum is additive, the network is not linear")  # fmt: skip
def whole_stream_scaled(model, tokens, layer, eps):
    name, at = (
        f"blocks.{layer}.hook_mlp_out",
        f"blocks.{layer}.hook_resid_post",
    )
    clean = _run(model, tokens, names=[name, _top(model)])
    hooks = [(at, lambda value, hook: value * (1 + eps))]
    pushed = _run(model, tokens, hooks, [_top(model)])
    moved = (pushed[_top(model)] - clean[_top(model)])[:, 1:].norm(dim=-1)
    return moved / (eps * clean[name][:, 1:]).norm(dim=-1)


@wrong("push", "The difference is taken behind the final norm, which has divided the length out.",
       f"{BUS}, A block reads a normalised copy")  # fmt: skip
def behind_the_final_norm(model, tokens, layer, eps):
    name, top = f"blocks.{layer}.hook_mlp_out", "ln_final.hook_out"
    clean = _run(model, tokens, names=[name, top])
    pushed = _run(model, tokens, [_scaling(layer, eps)], [top])
    return (pushed[top] - clean[top])[:, 1:].norm(dim=-1) / (
        eps * clean[name][:, 1:]
    ).norm(dim=-1)


@wrong("push", "All values are 1: the stream is compared right after the write. What the blocks above do "
       "with it is the question.", f"{BUS}, The sum is additive, the network is not linear")  # fmt: skip
def right_after_the_write(model, tokens, layer, eps):
    name, at = (
        f"blocks.{layer}.hook_mlp_out",
        f"blocks.{layer}.hook_resid_post",
    )
    clean = _run(model, tokens, names=[name, at])
    pushed = _run(model, tokens, [_scaling(layer, eps)], [at])
    return (pushed[at] - clean[at])[:, 1:].norm(dim=-1) / (
        eps * clean[name][:, 1:]
    ).norm(dim=-1)


@wrong("push", "The write is taken from the pushed run, where it is 1 + eps times as long already.",
       f"{BUS}, The sum is additive, the network is not linear")  # fmt: skip
def write_of_the_pushed_run(model, tokens, layer, eps):
    return by_two_runs(model, tokens, layer, eps) / (1 + eps)
