"""Answers to sheet 3, right and wrong. The first right one of each question is the reference."""

import torch

from course.attempts import Attempts

attempts = Attempts()
right, wrong = attempts.right, attempts.wrong
SPLIT = "chapter 3, A logit is a sum of shares, to the last decimal"
PAIR = "chapter 3, Two heads make one circuit, and they appear together"
WORTH = "chapter 3, What a head wrote is not what it is worth"


def _rms(x, eps):
    return (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def _direction(W_U, token):
    return W_U[:, token] - W_U.mean(1)


# --- shares ----------------------------------------------------------------------------------


@right("shares")
def by_direction(writes, W_U, gamma, eps, token):
    return (writes * gamma / _rms(writes.sum(0), eps)) @ _direction(W_U, token)


@right("shares")
def by_all_logits(writes, W_U, gamma, eps, token):
    logits = (
        writes / _rms(writes.sum(0), eps) * gamma
    ) @ W_U  # [write, batch, pos, vocabulary]
    return logits[..., token] - logits.mean(-1)


@right("shares")
def by_einsum(writes, W_U, gamma, eps, token):
    top = torch.einsum("wbpd->bpd", writes)
    scale = (top.square().sum(-1) / top.shape[-1] + eps).rsqrt()
    reader = gamma * (W_U[:, token] - W_U.sum(1) / W_U.shape[1])
    return torch.einsum("wbpd,d,bp->wbp", writes, reader, scale)


@wrong(
    "shares",
    "The gain γ is missing: the readout multiplies each coordinate by it.",
    SPLIT,
)
def no_gain(writes, W_U, gamma, eps, token):
    return (writes / _rms(writes.sum(0), eps)) @ _direction(W_U, token)


@wrong(
    "shares",
    "These are shares of the logit itself, not measured from the mean of the vocabulary.",
    SPLIT,
)
def not_centred(writes, W_U, gamma, eps, token):
    return (writes * gamma / _rms(writes.sum(0), eps)) @ W_U[:, token]


@wrong(
    "shares",
    "Every write was divided by its own size. The divisor is one number: that of the top.",
    SPLIT,
)
def own_divisor(writes, W_U, gamma, eps, token):
    return (writes * gamma / _rms(writes, eps)) @ _direction(W_U, token)


@wrong(
    "shares",
    "Nothing was divided. The norm divides by the size of the top.",
    SPLIT,
)
def not_divided(writes, W_U, gamma, eps, token):
    return (writes * gamma) @ _direction(W_U, token)


@wrong("shares", "Every write was divided by the size of the stream at its own depth. That is the lens's divisor; "
       "its differences are not shares.", "chapter 3, The lens reads, it does not divide")  # fmt: skip
def divisor_at_depth(writes, W_U, gamma, eps, token):
    return (writes * gamma / _rms(writes.cumsum(0), eps)) @ _direction(
        W_U, token
    )


@wrong("shares", "These are lens readings: each row holds all writes up to that depth.",
       "chapter 3, The lens reads, it does not divide")  # fmt: skip
def readings(writes, W_U, gamma, eps, token):
    return by_direction(writes, W_U, gamma, eps, token).cumsum(0)


@wrong("shares", "Divided by the length of the top, not by its root mean square: too small by the root of the "
       "width.", SPLIT)  # fmt: skip
def length_for_rms(writes, W_U, gamma, eps, token):
    top = (writes.sum(0).square().sum(-1, keepdim=True) + eps).sqrt()
    return (writes * gamma / top) @ _direction(W_U, token)


@wrong(
    "shares",
    "The mean over the width was taken out of the writes. An RMSNorm does not do that.",
    SPLIT,
)
def layer_norm(writes, W_U, gamma, eps, token):
    centred = writes - writes.mean(-1, keepdim=True)
    return (centred * gamma / _rms(centred.sum(0), eps)) @ _direction(
        W_U, token
    )


@wrong(
    "shares",
    "eps is missing. It stands under the root, beside the mean square.",
    SPLIT,
)
def no_eps(writes, W_U, gamma, eps, token):
    return (writes * gamma / _rms(writes.sum(0), 0)) @ _direction(W_U, token)


@wrong("shares", "eps stands outside the root here.", SPLIT)
def eps_outside(writes, W_U, gamma, eps, token):
    return (writes * gamma / (_rms(writes.sum(0), 0) + eps)) @ _direction(
        W_U, token
    )


@wrong("shares", "Every write was divided by its own size, and the logit is not measured from the mean of the "
       "vocabulary.", SPLIT)  # fmt: skip
def own_divisor_not_centred(writes, W_U, gamma, eps, token):
    return (writes * gamma / _rms(writes, eps)) @ W_U[:, token]


# --- k_composition ---------------------------------------------------------------------------


def _ov(w):
    return w["W_V"] @ w["W_O"]  # [head, d, d]


def _qk(r):
    return r["W_Q"] @ r["W_K"].transpose(1, 2)


def _norm(x):
    return torch.linalg.matrix_norm(x)


def _score(product, left, right):
    return _norm(product) / (_norm(left)[:, None] * _norm(right)[None])


@right("k_composition")
def by_products(writers, readers):
    ov, qk = _ov(writers), _qk(readers)
    return _score(ov[:, None] @ qk.transpose(1, 2)[None], ov, qk)


@right("k_composition")
def by_loop_over_heads(writers, readers):
    count = len(writers["W_V"]), len(readers["W_Q"])
    scores = torch.zeros(count)
    for i in range(count[0]):
        for j in range(count[1]):
            ov = writers["W_V"][i] @ writers["W_O"][i]
            qk = readers["W_Q"][j] @ readers["W_K"][j].T
            scores[i, j] = (ov @ qk.T).norm() / (ov.norm() * qk.norm())
    return scores


@right("k_composition")
def by_einsum_of_four(writers, readers):
    ov = torch.einsum("idh,ihe->ide", writers["W_V"], writers["W_O"])
    qk = torch.einsum("jdh,jeh->jde", readers["W_Q"], readers["W_K"])
    both = torch.einsum(
        "ide,jfe->ijdf", ov, qk
    )  # the key side of qk reads what ov writes
    sizes = [x.flatten(1).pow(2).sum(1).sqrt() for x in (ov, qk)]
    return both.flatten(2).norm(dim=-1) / torch.outer(*sizes)


@wrong(
    "k_composition",
    "This is Q-composition: the query side reads what the writer wrote.",
    PAIR,
)
def q_composition(writers, readers):
    ov, qk = _ov(writers), _qk(readers)
    return _score(ov[:, None] @ qk[None], ov, qk)


@wrong(
    "k_composition",
    "This is V-composition: what the reader's values take from the writer.",
    PAIR,
)
def v_composition(writers, readers):
    ov, after = _ov(writers), _ov(readers)
    return _score(ov[:, None] @ after[None], ov, after)


@wrong(
    "k_composition",
    "The writer's matrix is transposed: this compares with what the writer reads.",
    PAIR,
)
def writer_transposed(writers, readers):
    ov, qk = _ov(writers), _qk(readers)
    return _score(
        ov.transpose(1, 2)[:, None] @ qk.transpose(1, 2)[None], ov, qk
    )


@wrong(
    "k_composition",
    "Not divided by the sizes of the two matrices: large heads win.",
    PAIR,
)
def not_divided_by_sizes(writers, readers):
    return _norm(_ov(writers)[:, None] @ _qk(readers).transpose(1, 2)[None])


@wrong(
    "k_composition",
    "Rows are readers and columns are writers here; asked is [writer, reader].",
    PAIR,
)
def reader_first(writers, readers):
    return by_products(writers, readers).T


@wrong(
    "k_composition",
    "Only the largest singular value was taken; asked are Frobenius norms.",
    PAIR,
)
def spectral(writers, readers):
    ov, qk = _ov(writers), _qk(readers)
    norm = [
        torch.linalg.matrix_norm(x, ord=2)
        for x in (ov[:, None] @ qk.transpose(1, 2)[None], ov, qk)
    ]
    return norm[0] / (norm[1][:, None] * norm[2][None])


@wrong(
    "k_composition",
    "The squares of the norms were divided: the score comes out squared.",
    PAIR,
)
def squared(writers, readers):
    return by_products(writers, readers).square()


@wrong(
    "k_composition",
    "The writer's values are missing: W_O says what can be written, W_V W_O what is.",
    PAIR,
)
def output_only(writers, readers):
    out, qk = writers["W_O"], _qk(readers)
    return _score(out[:, None] @ qk.transpose(1, 2)[None], out, qk)


@wrong(
    "k_composition",
    "The queries are missing: W_K says what can be read, W_Q W_K^T what counts.",
    PAIR,
)
def keys_only(writers, readers):
    ov, keys = _ov(writers), readers["W_K"]
    return _score(ov[:, None] @ keys[None], ov, keys)


# --- lost ------------------------------------------------------------------------------------


def _logits(model, tokens, hooks=()):
    with torch.no_grad(), model.hooks(fwd_hooks=list(hooks)):
        return model(tokens)


def _off(layer, head):
    def zero(z, hook):
        z = z.clone()
        z[:, :, head] = 0
        return z

    return (f"blocks.{layer}.attn.hook_z", zero)


def _difference(clean, other, said):
    return (clean - other).gather(-1, said[..., None])[:, 1:, 0]


@right("lost")
def by_zeroed_z(model, tokens, layer, head):
    clean = _logits(model, tokens)
    return _difference(
        clean, _logits(model, tokens, [_off(layer, head)]), clean.argmax(-1)
    )


@right("lost")
def by_taking_out_the_write(model, tokens, layer, head):
    with torch.no_grad():
        clean, cache = model.run_with_cache(
            tokens, names_filter=[f"blocks.{layer}.attn.hook_z"]
        )
    z = cache[f"blocks.{layer}.attn.hook_z"][:, :, head]
    write = (z @ model.W_O[layer, head]).detach()
    hook = (f"blocks.{layer}.hook_attn_out", lambda value, hook: value - write)
    other, said = _logits(model, tokens, [hook]), clean.max(-1)
    return (said.values - other.gather(-1, said.indices[..., None])[..., 0])[
        :, 1:
    ]


@right("lost")
def by_masking(model, tokens, layer, head):
    def mask(z, hook):
        keep = torch.ones(z.shape[2], device=z.device)
        keep[head] = 0
        return z * keep[:, None]

    clean = _logits(model, tokens)[:, 1:]
    other = _logits(model, tokens, [(f"blocks.{layer}.attn.hook_z", mask)])[
        :, 1:
    ]
    best = clean.argmax(-1, keepdim=True)
    return (
        torch.take_along_dim(clean, best, -1)
        - torch.take_along_dim(other, best, -1)
    ).squeeze(-1)


@wrong(
    "lost",
    "Position 0 is in it; it is reported apart.",
    "chapter 1, Nothing is ever overwritten",
)
def position_0_included(model, tokens, layer, head):
    clean = _logits(model, tokens)
    other = _logits(model, tokens, [_off(layer, head)])
    return (clean - other).gather(-1, clean.argmax(-1)[..., None])[..., 0]


@wrong("lost", "The largest logits of the two runs are compared. They may be two different tokens'; asked is the "
       "token that the whole model says.", WORTH)  # fmt: skip
def two_winners(model, tokens, layer, head):
    other = _logits(model, tokens, [_off(layer, head)])
    return (_logits(model, tokens).amax(-1) - other.amax(-1))[:, 1:]


@wrong(
    "lost", "The sign: what is lost is positive where the logit falls.", WORTH
)
def other_sign(model, tokens, layer, head):
    return -by_zeroed_z(model, tokens, layer, head)


@wrong("lost", "All heads of the layer were taken out.", WORTH)
def whole_layer(model, tokens, layer, head):
    clean = _logits(model, tokens)
    hook = (
        f"blocks.{layer}.hook_attn_out",
        lambda value, hook: torch.zeros_like(value),
    )
    return _difference(clean, _logits(model, tokens, [hook]), clean.argmax(-1))


@wrong(
    "lost",
    "Off by one head, or by one layer: heads and layers are counted from 0.",
    WORTH,
)
def off_by_one_head(model, tokens, layer, head):
    return by_zeroed_z(model, tokens, layer, head - 1)


@wrong(
    "lost",
    "Off by one head, or by one layer: heads and layers are counted from 0.",
    WORTH,
)
def off_by_one_layer(model, tokens, layer, head):
    return by_zeroed_z(model, tokens, layer - 1, head)


@wrong("lost", "These are log probabilities. Taking the head out moves the others' logits too, and the "
       "normaliser with them.", SPLIT)  # fmt: skip
def log_probabilities(model, tokens, layer, head):
    clean = _logits(model, tokens).log_softmax(-1)
    other = _logits(model, tokens, [_off(layer, head)]).log_softmax(-1)
    return _difference(clean, other, clean.argmax(-1))


@wrong("lost", "This is what the head put in by itself, with nothing run again. What is lost without it is "
       "another question.", WORTH)  # fmt: skip
def direct_only(model, tokens, layer, head):
    names = [f"blocks.{layer}.attn.hook_z", "ln_final.hook_in"]
    with torch.no_grad():
        clean, cache = model.run_with_cache(tokens, names_filter=names)
        write = cache[names[0]][:, :, head] @ model.W_O[layer, head]
        other = model.unembed(model.ln_final(cache[names[1]] - write))
    return _difference(clean, other, clean.argmax(-1))


@wrong(
    "lost",
    "The last token's row only, or all positions into one number: every position has its own.",
    WORTH,
)
def averaged(model, tokens, layer, head):
    return by_zeroed_z(model, tokens, layer, head).mean(-1)


@wrong("lost", "The head was left in at position 0, as the chapter does it; here it is taken out at every position.",
       PAIR)  # fmt: skip
def kept_at_position_0(model, tokens, layer, head):
    def zero(z, hook):
        z = z.clone()
        z[:, 1:, head] = 0
        return z

    hook = (f"blocks.{layer}.attn.hook_z", zero)
    clean = _logits(model, tokens)
    return _difference(clean, _logits(model, tokens, [hook]), clean.argmax(-1))


@wrong("lost", "The head's mean was put in its place; asked is zero.", WORTH)
def mean_for_zero(model, tokens, layer, head):
    def flatten(z, hook):
        z = z.clone()
        z[:, :, head] = z[:, :, head].mean((0, 1))
        return z

    hook = (f"blocks.{layer}.attn.hook_z", flatten)
    clean = _logits(model, tokens)
    return _difference(clean, _logits(model, tokens, [hook]), clean.argmax(-1))


@wrong(
    "lost",
    "All heads of the layer were taken out: index the head's axis, the third.",
    WORTH,
)
def all_heads(model, tokens, layer, head):
    hook = (f"blocks.{layer}.attn.hook_z", lambda z, hook: torch.zeros_like(z))
    clean = _logits(model, tokens)
    return _difference(clean, _logits(model, tokens, [hook]), clean.argmax(-1))


@wrong("lost", "This is the logit of the token that comes next in the text; asked is the one that the whole model "
       "puts first.", WORTH)  # fmt: skip
def next_token(model, tokens, layer, head):
    clean = _logits(model, tokens)
    other = _logits(model, tokens, [_off(layer, head)])
    following = tokens[:, 1:, None]
    return (clean - other)[:, :-1].gather(-1, following)[..., 0]


@wrong("lost", "This is the logit of the token that the model without the head puts first; asked is the whole "
       "model's.", WORTH)  # fmt: skip
def first_without_the_head(model, tokens, layer, head):
    clean = _logits(model, tokens)
    other = _logits(model, tokens, [_off(layer, head)])
    return _difference(clean, other, other.argmax(-1))


@wrong(
    "lost",
    "Measured from the mean logit of the vocabulary; asked is the logit as the model gives it.",
    WORTH,
)
def from_the_mean(model, tokens, layer, head):
    clean = _logits(model, tokens)
    other = _logits(model, tokens, [_off(layer, head)])
    clean, other = (x - x.mean(-1, keepdim=True) for x in (clean, other))
    return _difference(clean, other, clean.argmax(-1))
