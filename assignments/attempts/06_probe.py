"""Answers to sheet 6, right and wrong. The first right one of each question is the reference."""

import torch

from course.attempts import Attempts

attempts = Attempts()
right, wrong = attempts.right, attempts.wrong
TAKEN = "chapter 6, Most layers can be taken out"
LENS = "chapter 6, Read partway, the stream says something else"
SPLIT = "chapter 6, The score splits exactly, and not evenly"


def _logits(model, tokens, hooks=()):
    with torch.no_grad(), model.hooks(fwd_hooks=list(hooks)):
        return model(tokens)


def _silent(layer, branches=("attn", "mlp")):
    names = [f"blocks.{layer}.hook_{branch}_out" for branch in branches]
    return [
        (name, lambda value, hook: torch.zeros_like(value)) for name in names
    ]


def _survived(model, tokens, hooks=_silent, place=slice(-1, None)):
    said = _logits(model, tokens)[:, place].argmax(-1)
    same = [
        (_logits(model, tokens, hooks(k))[:, place].argmax(-1) == said)
        for k in range(model.cfg.n_layers)
    ]
    return torch.stack(same)  # [layer, batch, place]


# --- survivors -------------------------------------------------------------------------------


@right("survivors")
def by_silence(model, tokens):
    return _survived(model, tokens).sum(0)[:, 0]


@right("survivors")
def by_putting_back(model, tokens):
    said = _logits(model, tokens)[:, -1].argmax(-1)
    count = torch.zeros_like(said)
    for layer in range(model.cfg.n_layers):
        kept = []
        hooks = [
            (
                f"blocks.{layer}.hook_resid_pre",
                lambda x, hook, kept=kept: kept.append(x.clone()),
            ),
            (
                f"blocks.{layer}.hook_resid_post",
                lambda x, hook, kept=kept: kept[-1],
            ),
        ]
        count += _logits(model, tokens, hooks)[:, -1].argmax(-1) == said
    return count


@right("survivors")
def by_running_blocks(model, tokens):
    def run(gone):
        with torch.no_grad():
            x = model.W_E[tokens] + model.W_pos[: tokens.shape[1]]
            for layer, block in enumerate(model.blocks):
                if layer != gone:
                    x = block(x)
                    x = x[0] if isinstance(x, tuple) else x
            return model.unembed(model.ln_final(x))[:, -1].argmax(-1)

    whole = run(None)
    return sum(
        (run(layer) == whole).long() for layer in range(model.cfg.n_layers)
    )


@wrong(
    "survivors",
    "These are the deletions that change the prediction; asked are those that it survives.",
    TAKEN,
)
def broken_counted(model, tokens):
    return model.cfg.n_layers - by_silence(model, tokens)


@wrong(
    "survivors",
    "The first position's prediction was looked at; asked is the last one's.",
    TAKEN,
)
def first_position(model, tokens):
    return _survived(model, tokens, place=slice(0, 1)).sum(0)[:, 0]


@wrong(
    "survivors",
    "All positions were counted; asked is the last position alone.",
    TAKEN,
)
def all_positions(model, tokens):
    return _survived(model, tokens, place=slice(None)).sum((0, 2))


@wrong(
    "survivors", "Only the MLP was taken out. A layer is both branches.", TAKEN
)
def mlps_only(model, tokens):
    return _survived(
        model, tokens, lambda layer: _silent(layer, ("mlp",))
    ).sum(0)[:, 0]


@wrong(
    "survivors",
    "Only attention was taken out. A layer is both branches.",
    TAKEN,
)
def attention_only(model, tokens):
    return _survived(
        model, tokens, lambda layer: _silent(layer, ("attn",))
    ).sum(0)[:, 0]


@wrong(
    "survivors",
    "Layers were taken out one after the other and not put back: the k-th run lacks k layers.",
    TAKEN,
)
def not_put_back(model, tokens):
    def growing(layer):
        return [hook for k in range(layer + 1) for hook in _silent(k)]

    return _survived(model, tokens, growing).sum(0)[:, 0]


@wrong(
    "survivors",
    "Branches were taken out one by one: there are two per layer.",
    TAKEN,
)
def single_branches(model, tokens):
    halves = [
        _survived(model, tokens, lambda k, b=b: _silent(k, (b,)))
        for b in ("attn", "mlp")
    ]
    return sum(half.sum(0)[:, 0] for half in halves)


@wrong("survivors", "This is a share; asked is a number of deletions.", TAKEN)
def share(model, tokens):
    return by_silence(model, tokens) / model.cfg.n_layers


# --- settled ---------------------------------------------------------------------------------


def _states(model, tokens):
    """The stream at the last position: before block 0, and after every block."""
    names = ["blocks.0.hook_resid_pre"]
    names += [
        f"blocks.{layer}.hook_resid_post"
        for layer in range(model.cfg.n_layers)
    ]
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=names)
    return torch.stack(
        [cache[name][:, -1:] for name in names]
    )  # [depth, batch, 1, d_model]


def _guesses(model, tokens, norm=True, place=-1):
    states = _states(model, tokens)
    with torch.no_grad():
        read = [
            model.unembed(model.ln_final(x) if norm else x) for x in states
        ]
    return torch.stack(
        [logits[:, 0].argmax(-1) for logits in read]
    )  # [depth, batch]


def _settle(guesses):
    right = guesses == guesses[-1]
    return len(right) - right.flip(0).long().cumprod(0).sum(0)


@right("settled")
def by_running_product(model, tokens):
    return _settle(_guesses(model, tokens))


@right("settled")
def by_loop(model, tokens):
    found = []
    for column in _guesses(model, tokens).T.tolist():
        depth = len(column) - 1
        while depth > 0 and column[depth - 1] == column[-1]:
            depth -= 1
        found.append(depth)
    return torch.tensor(found)


@right("settled")
def by_last_other(model, tokens):
    guesses = _guesses(model, tokens)
    other = (guesses != guesses[-1]).long()
    depth = torch.arange(1, len(guesses) + 1, device=other.device)[:, None]
    return (other * depth).amax(0)


@wrong(
    "settled",
    "This is the first depth at which the lens names the token. It may change its mind again.",
    LENS,
)
def first_time(model, tokens):
    guesses = _guesses(model, tokens)
    return (guesses == guesses[-1]).long().argmax(0)


@wrong("settled", "The stream was read without the final norm.", LENS)
def no_final_norm(model, tokens):
    raw, final = (
        _guesses(model, tokens, norm=False),
        _guesses(model, tokens)[-1],
    )
    right = torch.cat(
        [raw[:-1] == final, torch.ones_like(final, dtype=torch.bool)[None]]
    )
    return len(right) - right.flip(0).long().cumprod(0).sum(0)


@wrong(
    "settled", "Off by one: depth 0 is before block 0, depth 1 after it.", LENS
)
def off_by_one_depth(model, tokens):
    return by_running_product(model, tokens) - 1


@wrong(
    "settled",
    "Counted from the top: this is for how many depths it has been settled.",
    LENS,
)
def from_the_top(model, tokens):
    return model.cfg.n_layers + 1 - by_running_product(model, tokens)


@wrong(
    "settled", "This counts at how many depths the lens names the token.", LENS
)
def times_named(model, tokens):
    guesses = _guesses(model, tokens)
    return (guesses == guesses[-1]).sum(0)


@wrong(
    "settled",
    "The next depth's guess was compared, not the final one's.",
    LENS,
)
def compared_with_next(model, tokens):
    guesses = _guesses(model, tokens)
    return (guesses[1:] != guesses[:-1]).sum(0)


@wrong(
    "settled",
    "The stream at position 0 was read; asked is the last position.",
    LENS,
)
def first_place(model, tokens):
    return by_running_product(model, tokens[:, :1])


@wrong("settled", "Every second row from the bottom was read: those are not the depths between blocks. Here two rows stand "
       "below block 0, word and position.", LENS)  # fmt: skip
def rows_from_the_bottom(model, tokens):
    _, rows = _rows(model, tokens, ("hook_embed", "hook_pos_embed"))
    return _settle(_read(model, rows.cumsum(0)[::2]))


@wrong(
    "settled",
    "The stream in the middle of each block was read, between attention and MLP.",
    LENS,
)
def inside_blocks(model, tokens):
    _, rows = _rows(model, tokens)
    guesses = _read(model, rows.cumsum(0)[1::2])
    return _settle(torch.cat([guesses, _guesses(model, tokens)[-1:]]))


def _read(model, states):
    with torch.no_grad():
        return model.unembed(model.ln_final(states[:, :, None]))[
            :, :, 0
        ].argmax(-1)


# --- last_third ------------------------------------------------------------------------------


def _rows(model, tokens, below=("blocks.0.hook_resid_pre",)):
    names = list(below)
    for layer in range(model.cfg.n_layers):
        names += [
            f"blocks.{layer}.hook_attn_out",
            f"blocks.{layer}.hook_mlp_out",
        ]
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens, names_filter=names)
    return logits[:, -1], torch.stack([cache[name][:, -1] for name in names])


def _split(model, tokens, centre=True, gain=True, divide=True, width=True):
    """The share of each row in the logit of the predicted token, and that logit."""
    logits, rows = _rows(model, tokens)
    token = logits.argmax(-1)
    reader = model.W_U[:, token].T.detach()  # [batch, d_model]
    if centre:
        reader = reader - model.W_U.mean(1).detach()
    if gain:
        reader = reader * model.ln_final.weight.detach()
    if width:
        rows = rows - rows.mean(-1, keepdim=True)
    top = rows.sum(0)
    if divide:
        rows = (
            rows / (top.square().mean(-1, keepdim=True) + model.cfg.eps).sqrt()
        )
    whole = logits.gather(-1, token[:, None])[:, 0] - (
        logits.mean(-1) if centre else 0
    )
    return (rows * reader).sum(-1), whole.detach()


def _last(model):
    return 2 * (model.cfg.n_layers // 3)


@right("last_third")
def by_rows(model, tokens):
    shares, whole = _split(model, tokens)
    return shares[-_last(model) :].sum(0) / whole


@right("last_third")
def by_all_logits(model, tokens):
    logits, rows = _rows(model, tokens)
    token = logits.argmax(-1, keepdim=True)
    late = rows[-_last(model) :].sum(0)
    late = late - late.mean(-1, keepdim=True)
    scale = (
        rows.sum(0)
        .var(-1, correction=0, keepdim=True)
        .add(model.cfg.eps)
        .sqrt()
    )
    with torch.no_grad():
        part = (late / scale * model.ln_final.weight) @ model.W_U
    parts, whole = (
        (x - x.mean(-1, keepdim=True)).gather(-1, token)[:, 0]
        for x in (part, logits)
    )
    return parts / whole


@right("last_third")
def by_difference_of_states(model, tokens):
    cut = model.cfg.n_layers - model.cfg.n_layers // 3
    names = [
        f"blocks.{cut}.hook_resid_pre",
        f"blocks.{model.cfg.n_layers - 1}.hook_resid_post",
    ]
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens, names_filter=names)
        early, top = (cache[name][:, -1].double() for name in names)
        scale = (top.var(-1, correction=0) + model.cfg.eps).sqrt()[:, None]
        late = (top - early) - (top - early).mean(-1, keepdim=True)
        logits = logits[:, -1].double()
        token = logits.argmax(-1)
        W_U = model.W_U.double()
        reader = (
            W_U[:, token] - W_U.mean(1, keepdim=True)
        ).T * model.ln_final.weight.double()
        return (late / scale * reader).sum(-1) / (
            logits.amax(-1) - logits.mean(-1)
        )


@wrong("last_third", "Not measured from the mean of the vocabulary.", SPLIT)
def not_centred(model, tokens):
    shares, whole = _split(model, tokens, centre=False)
    return shares[-_last(model) :].sum(0) / whole


@wrong("last_third", "The gain of the final norm is missing.", SPLIT)
def no_gain(model, tokens):
    shares, whole = _split(model, tokens, gain=False)
    return shares[-_last(model) :].sum(0) / whole


@wrong("last_third", "Nothing was divided by the size of the top.", SPLIT)
def not_divided(model, tokens):
    shares, whole = _split(model, tokens, divide=False)
    return shares[-_last(model) :].sum(0) / whole


@wrong(
    "last_third",
    "Two rows per layer: the last third of the layers is twice as many rows.",
    SPLIT,
)
def half_as_many_rows(model, tokens):
    shares, whole = _split(model, tokens)
    return shares[-_last(model) // 2 :].sum(0) / whole


@wrong(
    "last_third",
    "This is the share of the first layers, not of the last.",
    SPLIT,
)
def first_third(model, tokens):
    shares, whole = _split(model, tokens)
    return shares[: 1 + _last(model)].sum(0) / whole


@wrong(
    "last_third", "The score itself; asked is its share of the whole.", SPLIT
)
def score_for_share(model, tokens):
    shares, _ = _split(model, tokens)
    return shares[-_last(model) :].sum(0)


@wrong(
    "last_third",
    "Divided by the sum of the sizes of all shares. Shares have signs and add up to the score.",
    SPLIT,
)
def share_of_sizes(model, tokens):
    shares, _ = _split(model, tokens)
    return shares[-_last(model) :].sum(0) / shares.abs().sum(0)


@wrong(
    "last_third",
    "Rounded up: a third of four layers is one layer here (n_layers // 3).",
    SPLIT,
)
def rounded_up(model, tokens):
    shares, whole = _split(model, tokens)
    return shares[-2 * (-(-model.cfg.n_layers // 3)) :].sum(0) / whole


@wrong("last_third", "The mean over the width is still in: a LayerNorm takes it out of what it reads, so out of every row.",
       SPLIT)  # fmt: skip
def mean_left_in(model, tokens):
    shares, whole = _split(model, tokens, width=False)
    return shares[-_last(model) :].sum(0) / whole


@wrong("last_third", "Divided by the token's logit as it stands; the whole score too is measured from the mean of the "
       "vocabulary.", SPLIT)  # fmt: skip
def whole_not_centred(model, tokens):
    shares, _ = _split(model, tokens)
    return shares[-_last(model) :].sum(0) / _rows(model, tokens)[0].amax(-1)


@wrong("last_third", "A third of the rows was taken, and the rows below block 0 counted with them; asked is a third of the "
       "layers.", SPLIT)  # fmt: skip
def third_of_the_rows(model, tokens):
    shares, whole = _split(model, tokens)
    return shares[-(len(shares) // 3) :].sum(0) / whole


@wrong("last_third", "Divided by the size of what the last third writes. The norm divides all that is at the top by one "
       "number, that of the top.", SPLIT)  # fmt: skip
def its_own_divisor(model, tokens):
    shares, whole = _split(model, tokens, divide=False)
    late = _rows(model, tokens)[1][-_last(model) :].sum(0)
    size = (late.var(-1, correction=0) + model.cfg.eps).sqrt()
    return shares[-_last(model) :].sum(0) / size / whole
