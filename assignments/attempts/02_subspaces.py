"""Answers to sheet 2, right and wrong. The first right one of each question is the reference."""

import torch
import torch.nn.functional as F

from course.attempts import Attempts

attempts = Attempts()
right, wrong = attempts.right, attempts.wrong
DIVISOR = "chapter 2, An orthogonal write still changes what you read"
CHANNEL = "chapter 2, No layer owns a channel"
STAYS = "chapter 2, What is written stays, until the opposite is written"


def _rms(x, eps):
    return (x.pow(2).mean(-1) + eps).sqrt()


# --- louder ----------------------------------------------------------------------------------


@right("louder")
def ratio_of_divisors(x, w, eps):
    return _rms(x, eps) / _rms(x + w, eps)


@right("louder")
def by_reading(x, w, eps):
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    unit = F.normalize(w, dim=-1)
    reader = (
        other - (other * unit).sum(-1, keepdim=True) * unit
    )  # does not read w
    before, after = (F.rms_norm(v, v.shape[-1:], eps=eps) for v in (x, x + w))
    return (after * reader).sum(-1) / (before * reader).sum(-1)


@right("louder")
def by_lengths(x, w, eps):
    own = x.shape[-1] * eps
    squares = [v.square().sum(-1) + own for v in (x, x + w)]
    return (squares[0] / squares[1]).sqrt()


@wrong(
    "louder",
    "Upside down: this is how much the divisor grew. What is read is divided by it.",
    DIVISOR,
)
def upside_down(x, w, eps):
    return _rms(x + w, eps) / _rms(x, eps)


@wrong(
    "louder",
    "eps is missing. It stands under the root of every divisor.",
    DIVISOR,
)
def no_eps(x, w, eps):
    return x.norm(dim=-1) / (x + w).norm(dim=-1)


@wrong("louder", "This is the law for a write that is orthogonal to the stream. A write with or against the "
       "stream has a cross term.", DIVISOR)  # fmt: skip
def orthogonal_law(x, w, eps):
    own = x.shape[-1] * eps
    return (1 + w.square().sum(-1) / (x.square().sum(-1) + own)).rsqrt()


@wrong(
    "louder",
    "The root is missing: the divisor is the root of the mean square.",
    DIVISOR,
)
def no_root(x, w, eps):
    return (x.pow(2).mean(-1) + eps) / ((x + w).pow(2).mean(-1) + eps)


@wrong("louder", "eps stands outside the root here.", DIVISOR)
def eps_outside(x, w, eps):
    return (x.pow(2).mean(-1).sqrt() + eps) / (
        (x + w).pow(2).mean(-1).sqrt() + eps
    )


@wrong("louder", "The mean was taken out, as a LayerNorm does. An RMSNorm divides and does nothing else.",
       DIVISOR)  # fmt: skip
def layer_norm(x, w, eps):
    return (x.var(-1, correction=0) + eps).sqrt() / (
        (x + w).var(-1, correction=0) + eps
    ).sqrt()


@wrong(
    "louder",
    "Lengths add here as if the write lay along the stream: 1/(1 + a).",
    DIVISOR,
)
def lengths_added(x, w, eps):
    return 1 / (1 + w.norm(dim=-1) / x.norm(dim=-1))


@wrong(
    "louder",
    "The squares are summed over the width, not averaged; eps then weighs too little.",
    DIVISOR,
)
def sum_for_mean(x, w, eps):
    return (x.pow(2).sum(-1) + eps).sqrt() / (
        (x + w).pow(2).sum(-1) + eps
    ).sqrt()


@wrong("louder", "This is the law for a write that is orthogonal to the stream, and eps is missing. A write with or "
       "against the stream has a cross term.", DIVISOR)  # fmt: skip
def orthogonal_law_without_eps(x, w, eps):
    return (1 + w.square().sum(-1) / x.square().sum(-1)).rsqrt()


# --- inside ----------------------------------------------------------------------------------


def _basis(rows):
    return torch.linalg.qr(rows.T)[0]  # [d, k]


@right("inside")
def by_qr(a, b):
    return (_basis(a).T @ _basis(b)).square().sum() / len(a)


@right("inside")
def by_projectors(a, b):
    p, q = (torch.linalg.pinv(rows) @ rows for rows in (a, b))
    return torch.trace(p @ q) / torch.linalg.matrix_rank(a)


@right("inside")
def by_principal_angles(a, b):
    bases = [torch.linalg.svd(rows, full_matrices=False).Vh for rows in (a, b)]
    return (
        torch.linalg.svdvals(bases[0] @ bases[1].T).pow(2).sum() / a.shape[0]
    )


@wrong("inside", "The rows were made length one, and not orthogonal to each other: directions that rows share "
       "are counted more than once.", CHANNEL)  # fmt: skip
def unit_rows(a, b):
    return (
        F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T
    ).square().sum() / len(a)


@wrong(
    "inside",
    "The rows were used as they are. A subspace does not depend on which vectors span it.",
    CHANNEL,
)
def raw_rows(a, b):
    return (a @ b.T).square().sum() / len(a)


@wrong("inside", "The cosines are not squared. The share of a length that lies inside is a squared cosine.",
       CHANNEL)  # fmt: skip
def not_squared(a, b):
    return torch.linalg.svdvals(_basis(a).T @ _basis(b)).sum() / len(a)


@wrong(
    "inside",
    "Divided by the dimensions of b: this is the share of b that lies in a.",
    CHANNEL,
)
def share_of_b(a, b):
    return (_basis(a).T @ _basis(b)).square().sum() / len(b)


@wrong("inside", "Only the closest pair of directions is counted.", CHANNEL)
def closest_pair(a, b):
    return torch.linalg.svdvals(_basis(a).T @ _basis(b)).max().square()


@wrong(
    "inside",
    "Divided by the width. a has as many dimensions as it has rows.",
    CHANNEL,
)
def by_width(a, b):
    return (_basis(a).T @ _basis(b)).square().sum() / a.shape[1]


@wrong(
    "inside",
    "The root is one too many: squared cosines are to be averaged, not their root.",
    CHANNEL,
)
def rooted(a, b):
    return by_qr(a, b).sqrt()


@wrong("inside", "Averaged over the smaller of the two. The mean goes over the dimensions of a, also over those that "
       "find no partner in b.", CHANNEL)  # fmt: skip
def smaller_dimension(a, b):
    return torch.linalg.svdvals(_basis(a).T @ _basis(b)).square().mean()


@wrong("inside", "The cosines are not squared, and averaged over the smaller of the two. The share of a length that "
       "lies inside is a squared cosine; the mean goes over the dimensions of a.", CHANNEL)  # fmt: skip
def mean_cosine(a, b):
    return torch.linalg.svdvals(_basis(a).T @ _basis(b)).mean()


@wrong("inside", "Averaged over all pairs of directions. Of one direction of a, the squared cosines with all of b's "
       "are summed; only the sums are averaged.", CHANNEL)  # fmt: skip
def all_pairs_averaged(a, b):
    return (_basis(a).T @ _basis(b)).square().mean()


@wrong(
    "inside",
    "The closest pair of directions, and its cosine is not squared.",
    CHANNEL,
)
def closest_cosine(a, b):
    return torch.linalg.svdvals(_basis(a).T @ _basis(b)).max()


@wrong("inside", "b is right, and the mean goes over the rows of a as they were given. They lean towards what they "
       "share; a subspace does not. a needs an orthonormal basis too.", CHANNEL)  # fmt: skip
def mean_over_given_rows(a, b):
    return (F.normalize(a, dim=-1) @ _basis(b)).square().sum(-1).mean()


# --- taken_back ------------------------------------------------------------------------------


def _before(writes):
    return writes.cumsum(0)[:-1]


@right("taken_back")
def by_sign(writes):
    stream, write = _before(writes), writes[1:]
    undone = torch.minimum(stream.abs(), write.abs()) * (stream * write < 0)
    return undone.sum(-1) / write.abs().sum(-1)


@right("taken_back")
def by_books(writes):
    # what is written = what grows + what only takes back; the sizes' change is their difference
    stream, write = _before(writes), writes[1:]
    grown = (stream + write).abs() - stream.abs()
    return (write.abs() - grown).sum(-1) / 2 / write.abs().sum(-1)


@right("taken_back")
def by_loop(writes):
    stream, shares = writes[0], []
    for write in writes[1:]:
        against = torch.where(stream > 0, -write, write).clamp(min=0)
        shares.append(
            torch.min(against, stream.abs()).sum(-1) / write.abs().sum(-1)
        )
        stream = stream + write
    return torch.stack(shares)


@wrong("taken_back", "There is no ceiling: a write of −5 on a 3 takes back 3 and builds up 2 on the other side.",
       STAYS)  # fmt: skip
def no_ceiling(writes):
    stream, write = _before(writes), writes[1:]
    return (write.abs() * (stream * write < 0)).sum(-1) / write.abs().sum(-1)


@wrong(
    "taken_back",
    "Coordinates were counted; asked is how much of the written size.",
    STAYS,
)
def coordinates_counted(writes):
    return (_before(writes) * writes[1:] < 0).float().mean(-1)


@wrong(
    "taken_back", "The stream was taken after the write had joined it.", STAYS
)
def stream_after(writes):
    stream, write = writes.cumsum(0)[1:], writes[1:]
    return (
        torch.minimum(stream.abs(), write.abs()) * (stream * write < 0)
    ).sum(-1) / write.abs().sum(-1)


@wrong(
    "taken_back",
    "Squares instead of sizes: large coordinates count for much more.",
    STAYS,
)
def squares(writes):
    stream, write = _before(writes), writes[1:]
    undone = torch.minimum(stream.abs(), write.abs()) * (stream * write < 0)
    return undone.square().sum(-1) / write.square().sum(-1)


@wrong(
    "taken_back",
    "Divided by the size of the stream, not by that of the write.",
    STAYS,
)
def of_the_stream(writes):
    stream, write = _before(writes), writes[1:]
    undone = torch.minimum(stream.abs(), write.abs()) * (stream * write < 0)
    return undone.sum(-1) / stream.abs().sum(-1)


@wrong(
    "taken_back",
    "The same sign was counted: this is the share that adds to what is there.",
    STAYS,
)
def same_sign(writes):
    stream, write = _before(writes), writes[1:]
    return (
        torch.minimum(stream.abs(), write.abs()) * (stream * write > 0)
    ).sum(-1) / write.abs().sum(-1)


@wrong(
    "taken_back",
    "Each write is compared with the write before it, not with the sum of all before.",
    STAYS,
)
def previous_write(writes):
    stream, write = writes[:-1], writes[1:]
    return (
        torch.minimum(stream.abs(), write.abs()) * (stream * write < 0)
    ).sum(-1) / write.abs().sum(-1)


@wrong(
    "taken_back",
    "This is how much smaller coordinates became. A −5 on a 3 leaves a −2: smaller by 1, and 3 were taken back.",
    STAYS,
)
def net_fall(writes):
    stream, write = _before(writes), writes[1:]
    fall = stream.abs() - (stream + write).abs()
    return fall.clamp(min=0).sum(-1) / write.abs().sum(-1)
