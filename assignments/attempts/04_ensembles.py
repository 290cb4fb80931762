"""Answers to sheet 4, right and wrong. The first right one of each question is the reference."""

from itertools import combinations

import torch

from course.attempts import Attempts

attempts = Attempts()
right, wrong = attempts.right, attempts.wrong
MISSING = "chapter 4, Act two: a layer is missing"
PATHS = "chapter 4, Act one: paths"
LENGTHS = "chapter 4, Act three: the gradient"


def _logits(model, tokens, hooks=()):
    with torch.no_grad(), model.hooks(fwd_hooks=list(hooks)):
        return model(tokens)


def _kl(clean, other):
    p, q = clean.log_softmax(-1), other.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def _skip(layer, at=slice(None)):
    kept = {}

    def save(value, hook):
        kept["before"] = value.clone()

    def put_back(value, hook):
        value = value.clone()
        value[:, at] = kept["before"][:, at]
        return value

    block = f"blocks.{layer}.hook_resid"
    return [(f"{block}_pre", save), (f"{block}_post", put_back)]


def _sweep(model, tokens, measure, hooks=_skip):
    clean = _logits(model, tokens)
    found = [
        measure(clean, _logits(model, tokens, hooks(k)))
        for k in range(model.cfg.n_layers)
    ]
    return torch.stack(found)


# --- without ---------------------------------------------------------------------------------


@right("without")
def by_putting_back(model, tokens):
    return _sweep(
        model, tokens, lambda clean, other: _kl(clean, other)[:, 1:].mean()
    )


@right("without")
def by_zero_writes(model, tokens):
    def silent(layer):
        names = [
            f"blocks.{layer}.hook_{branch}_out" for branch in ("attn", "mlp")
        ]
        return [(name, lambda value, hook: 0 * value) for name in names]

    return _sweep(
        model,
        tokens,
        lambda clean, other: _kl(clean, other)[:, 1:].mean(),
        silent,
    )


@right("without")
def by_running_blocks(model, tokens):
    with torch.no_grad():
        target = model(tokens)[:, 1:].log_softmax(-1).flatten(0, 1)
        losses = []
        for gone in range(model.cfg.n_layers):
            x = model.W_E[tokens] + model.W_pos[: tokens.shape[1]]
            for layer, block in enumerate(model.blocks):
                if layer != gone:
                    x = block(x)
                    x = x[0] if isinstance(x, tuple) else x
            other = (
                model.unembed(model.ln_final(x))[:, 1:]
                .log_softmax(-1)
                .flatten(0, 1)
            )
            losses.append(
                torch.nn.functional.kl_div(
                    other, target, reduction="batchmean", log_target=True
                )
            )
    return torch.stack(losses)


@wrong(
    "without",
    "Position 0 is in the mean; it is reported apart.",
    "chapter 1, Nothing is ever overwritten",
)
def position_0_in_the_mean(model, tokens):
    return _sweep(model, tokens, lambda clean, other: _kl(clean, other).mean())


@wrong("without", "The other way round: the whole model is the one to compare with, so its probabilities weigh.",
       MISSING)  # fmt: skip
def other_direction(model, tokens):
    return _sweep(
        model, tokens, lambda clean, other: _kl(other, clean)[:, 1:].mean()
    )


@wrong(
    "without",
    "Only the MLP's write is gone. A block is both branches.",
    MISSING,
)
def mlp_only(model, tokens):
    def silent(layer):
        return [
            (f"blocks.{layer}.hook_mlp_out", lambda value, hook: 0 * value)
        ]

    return _sweep(
        model,
        tokens,
        lambda clean, other: _kl(clean, other)[:, 1:].mean(),
        silent,
    )


@wrong(
    "without",
    "Only attention's write is gone. A block is both branches.",
    MISSING,
)
def attention_only(model, tokens):
    def silent(layer):
        return [
            (f"blocks.{layer}.hook_attn_out", lambda value, hook: 0 * value)
        ]

    return _sweep(
        model,
        tokens,
        lambda clean, other: _kl(clean, other)[:, 1:].mean(),
        silent,
    )


@wrong("without", "The whole stream was set to zero behind the block. Without a block the stream passes on as it was.",
       MISSING)  # fmt: skip
def stream_zeroed(model, tokens):
    def zero(layer):
        return [
            (f"blocks.{layer}.hook_resid_post", lambda value, hook: 0 * value)
        ]

    return _sweep(
        model,
        tokens,
        lambda clean, other: _kl(clean, other)[:, 1:].mean(),
        zero,
    )


@wrong(
    "without",
    "These are bits; asked are nats, the natural logarithm's.",
    "notation",
)
def bits(model, tokens):
    return by_putting_back(model, tokens) / torch.tensor(2.0).log()


@wrong(
    "without",
    "This is the share of positions whose first token changed, not the divergence.",
    MISSING,
)
def first_token_changed(model, tokens):
    def changed(clean, other):
        return (clean.argmax(-1) != other.argmax(-1))[:, 1:].double().mean()

    return _sweep(model, tokens, changed)


@wrong(
    "without",
    "Blocks were taken out one after the other and not put back: the k-th run lacks k + 1 blocks.",
    MISSING,
)
def not_put_back(model, tokens):
    def growing(layer):
        names = [
            f"blocks.{k}.hook_{branch}_out"
            for k in range(layer + 1)
            for branch in ("attn", "mlp")
        ]
        return [(name, lambda value, hook: 0 * value) for name in names]

    return _sweep(
        model,
        tokens,
        lambda clean, other: _kl(clean, other)[:, 1:].mean(),
        growing,
    )


@wrong("without", "The biases are still written: what was set to zero stands before the output matrices. Set the writes "
       "themselves to zero.", MISSING)  # fmt: skip
def biases_left(model, tokens):
    def silent(layer):
        names = [
            f"blocks.{layer}.{at}" for at in ("attn.hook_z", "mlp.hook_post")
        ]
        return [(name, lambda value, hook: 0 * value) for name in names]

    return _sweep(
        model,
        tokens,
        lambda clean, other: _kl(clean, other)[:, 1:].mean(),
        silent,
    )


@wrong(
    "without",
    "Only the last position was read; asked is the mean over all but the first.",
    MISSING,
)
def last_position(model, tokens):
    return _sweep(
        model, tokens, lambda clean, other: _kl(clean, other)[:, -1].mean()
    )


@wrong("without", "Summed over positions; asked is the mean.", MISSING)
def summed(model, tokens):
    return _sweep(
        model,
        tokens,
        lambda clean, other: _kl(clean, other)[:, 1:].sum(1).mean(),
    )


# --- by_length -------------------------------------------------------------------------------


@right("by_length")
def by_recursion(jacobians):
    n, d, _ = jacobians.shape
    terms = torch.zeros(n + 1, d, d)
    terms[0] = torch.eye(d)
    for jacobian in jacobians:  # through the branch, or past it
        through = jacobian @ terms[:-1]
        terms = terms.clone()
        terms[1:] += through
    return terms


@right("by_length")
def by_enumeration(jacobians):
    n, d, _ = jacobians.shape
    terms = []
    for length in range(n + 1):
        total = torch.zeros(d, d)
        for path in combinations(range(n), length):
            product = torch.eye(d)
            for branch in path:
                product = jacobians[branch] @ product
            total += product
        terms.append(total)
    return torch.stack(terms)


@right("by_length")
def by_interpolation(jacobians):
    n, d, _ = jacobians.shape
    ts = torch.arange(n + 1, dtype=torch.float64) / n
    values = []
    for t in (
        ts
    ):  # the product with t in front of every branch is a polynomial in t
        product = torch.eye(d, dtype=torch.float64)
        for jacobian in jacobians.double():
            product = product + t * jacobian @ product
        values.append(product)
    powers = ts[:, None] ** torch.arange(n + 1)
    flat = torch.linalg.solve(powers, torch.stack(values).flatten(1))
    return flat.reshape(n + 1, d, d).float()


@wrong(
    "by_length",
    "The factors stand in the other order: what is entered first stands rightmost.",
    PATHS,
)
def other_order(jacobians):
    n, d, _ = jacobians.shape
    terms = torch.zeros(n + 1, d, d)
    terms[0] = torch.eye(d)
    for jacobian in jacobians:
        through = terms[:-1] @ jacobian
        terms = terms.clone()
        terms[1:] += through
    return terms


@wrong(
    "by_length",
    "The path that enters no branch is missing: its derivative is the identity.",
    PATHS,
)
def no_identity(jacobians):
    return by_recursion(jacobians)[1:]


@wrong("by_length", "A branch was entered more than once: row k held its own new paths already when row k + 1 was made. "
       "Go down from the longest, or make all new rows from the old ones.", PATHS)  # fmt: skip
def entered_again(jacobians):
    terms = torch.zeros(len(jacobians) + 1, *jacobians.shape[1:])
    terms[0] = torch.eye(jacobians.shape[1])
    for jacobian in jacobians:
        for k in range(len(jacobians)):
            terms[k + 1] += jacobian @ terms[k]
    return terms


@wrong(
    "by_length",
    "These are means over the paths of each length; their sum is asked.",
    PATHS,
)
def means(jacobians):
    n = len(jacobians)
    counts = [len(list(combinations(range(n), k))) for k in range(n + 1)]
    return by_recursion(jacobians) / torch.tensor(counts)[:, None, None]


@wrong(
    "by_length",
    "Running sums: row k holds all paths of up to k branches.",
    PATHS,
)
def running_sums(jacobians):
    return by_recursion(jacobians).cumsum(0)


@wrong(
    "by_length",
    "Only paths through neighbouring branches are counted. A path may skip any branch.",
    PATHS,
)
def neighbours_only(jacobians):
    n, d, _ = jacobians.shape
    terms = [torch.eye(d)]
    for length in range(1, n + 1):
        total = torch.zeros(d, d)
        for start in range(n - length + 1):
            product = torch.eye(d)
            for branch in range(start, start + length):
                product = jacobians[branch] @ product
            total += product
        terms.append(total)
    return torch.stack(terms)


@wrong(
    "by_length",
    "Only the paths that enter the first branches, 0 to k − 1, are counted: one of each length.",
    PATHS,
)
def one_of_each(jacobians):
    terms = [torch.eye(jacobians.shape[1])]
    for jacobian in jacobians:
        terms.append(jacobian @ terms[-1])
    return torch.stack(terms)


@wrong(
    "by_length",
    "Each branch was entered any number of times. A path enters a branch once or not at all.",
    PATHS,
)
def powers(jacobians):
    return torch.stack(
        [
            torch.matrix_power(jacobians.sum(0), k)
            for k in range(len(jacobians) + 1)
        ]
    )


@wrong(
    "by_length",
    "Sizes were added, not matrices: what cancels among paths of one length is lost.",
    LENGTHS,
)
def sizes(jacobians):
    return by_recursion(jacobians.abs())


# --- where -----------------------------------------------------------------------------------


def _everywhere(model, tokens, layer, places, measure):
    clean = _logits(model, tokens)
    seen = [
        _kl(clean, _logits(model, tokens, _skip(layer, at))) for at in places
    ]
    return torch.stack([measure(kl, p) for p, kl in enumerate(seen)])


def _places(tokens):
    return [slice(p, p + 1) for p in range(tokens.shape[1])]


@right("where")
def by_position(model, tokens, layer):
    return _everywhere(
        model, tokens, layer, _places(tokens), lambda kl, p: kl[:, -1].mean()
    )


@right("where")
def by_one_batch(model, tokens, layer):
    clean = _logits(model, tokens)[:, -1].log_softmax(-1)
    batch, length = tokens.shape
    many = tokens.repeat_interleave(length, 0)  # [batch × place, pos]
    mask = torch.eye(length, dtype=torch.bool, device=tokens.device).repeat(
        batch, 1
    )
    kept = {}

    def save(value, hook):
        kept["before"] = value

    def put_back(value, hook):
        return torch.where(mask[..., None], kept["before"], value)

    block = f"blocks.{layer}.hook_resid"
    other = _logits(
        model, many, [(f"{block}_pre", save), (f"{block}_post", put_back)]
    )
    other = other[:, -1].log_softmax(-1).unflatten(0, (batch, length))
    return (clean.exp()[:, None] * (clean[:, None] - other)).sum(-1).mean(0)


@right("where")
def by_taking_out_both_writes(model, tokens, layer):
    def silent(place):
        def zero(value, hook):
            value = value.clone()
            value[:, place] = 0
            return value

        names = (
            f"blocks.{layer}.hook_attn_out",
            f"blocks.{layer}.hook_mlp_out",
        )
        return [(name, zero) for name in names]

    clean = _logits(model, tokens)[:, -1]
    found = []
    for place in range(tokens.shape[1]):
        other = _logits(model, tokens, silent(place))[:, -1]
        found.append(_kl(clean, other).mean())
    return torch.stack(found)


@wrong(
    "where",
    "The block was deleted everywhere, at all positions at once.",
    MISSING,
)
def everywhere_at_once(model, tokens, layer):
    places = [slice(None)] * tokens.shape[1]
    return _everywhere(
        model, tokens, layer, places, lambda kl, p: kl[:, -1].mean()
    )


@wrong(
    "where",
    "What is measured is the prediction at the place itself; asked is the last position's.",
    MISSING,
)
def at_the_place_itself(model, tokens, layer):
    return _everywhere(
        model, tokens, layer, _places(tokens), lambda kl, p: kl[:, p].mean()
    )


@wrong(
    "where",
    "What is measured is the mean over all positions; asked is the last position's prediction.",
    MISSING,
)
def over_all_positions(model, tokens, layer):
    return _everywhere(
        model, tokens, layer, _places(tokens), lambda kl, p: kl.mean()
    )


@wrong(
    "where",
    "Everything from the place on was deleted; asked is the place alone.",
    MISSING,
)
def from_there_on(model, tokens, layer):
    places = [slice(p, None) for p in range(tokens.shape[1])]
    return _everywhere(
        model, tokens, layer, places, lambda kl, p: kl[:, -1].mean()
    )


def _one_branch(model, tokens, layer, branch):
    clean = _logits(model, tokens)[:, -1]
    found = []
    for place in range(tokens.shape[1]):

        def zero(value, hook, place=place):
            value = value.clone()
            value[:, place] = 0
            return value

        hook = (f"blocks.{layer}.hook_{branch}_out", zero)
        found.append(_kl(clean, _logits(model, tokens, [hook])[:, -1]).mean())
    return torch.stack(found)


@wrong(
    "where",
    "Only the MLP's write is gone. A block is both branches.",
    MISSING,
)
def mlp_only_there(model, tokens, layer):
    return _one_branch(model, tokens, layer, "mlp")


@wrong(
    "where",
    "Only attention's write is gone. A block is both branches.",
    MISSING,
)
def attention_only_there(model, tokens, layer):
    return _one_branch(model, tokens, layer, "attn")


@wrong("where", "Summed over the batch; asked is the mean.", MISSING)
def summed_over_the_batch(model, tokens, layer):
    return len(tokens) * by_position(model, tokens, layer)


@wrong("where", "The block was deleted at every position but one.", MISSING)
def everywhere_else(model, tokens, layer):
    places = [
        [q for q in range(tokens.shape[1]) if q != p]
        for p in range(tokens.shape[1])
    ]
    return _everywhere(
        model, tokens, layer, places, lambda kl, p: kl[:, -1].mean()
    )


@wrong("where", "Off by one layer: blocks are counted from 0.", MISSING)
def off_by_one_layer(model, tokens, layer):
    return by_position(model, tokens, layer - 1)


@wrong(
    "where",
    "Off by one position: the list begins at the place after the first.",
    MISSING,
)
def off_by_one_place(model, tokens, layer):
    return by_position(model, tokens, layer).roll(-1)


@wrong(
    "where",
    "The other way round: the whole model is the one to compare with.",
    MISSING,
)
def kl_turned(model, tokens, layer):
    clean = _logits(model, tokens)
    seen = [
        _kl(_logits(model, tokens, _skip(layer, at)), clean)
        for at in _places(tokens)
    ]
    return torch.stack([kl[:, -1].mean() for kl in seen])
