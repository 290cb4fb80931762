"""Answers to sheet 5, right and wrong. The first right one of each question is the reference."""

import math

import numpy as np
import torch

from course.attempts import Attempts

attempts = Attempts()
right, wrong = attempts.right, attempts.wrong
RATIO = "chapter 5, The ratio does not fall"
LAW = "chapter 5, The root of the depth is a law of the start"
START = "chapter 5, Where the norm stands decides what the last layer feels"


# --- ratios ----------------------------------------------------------------------------------


def _parts(writes):
    update = writes[1::2] + writes[2::2]  # [layer, batch, pos, d_model]
    return update, writes.cumsum(0)[:-1:2]


def _median(values):
    return values[:, :, 1:].flatten(1).median(1).values


@right("ratios")
def by_slices(writes):
    update, found = _parts(writes)
    return _median(update.norm(dim=-1) / found.norm(dim=-1))


@right("ratios")
def by_loop(writes):
    stream, ratios = writes[0], []
    for attention, mlp in zip(writes[1::2], writes[2::2], strict=True):
        update = attention + mlp
        ratio = update.norm(dim=-1) / stream.norm(dim=-1)
        ratios.append(ratio[:, 1:].median())
        stream = stream + update
    return torch.stack(ratios)


@right("ratios")
def by_states(writes):
    states = writes[:, :, 1:].double().cumsum(0)[::2]
    ratio = (
        states.diff(dim=0).square().sum(-1).sqrt()
        / states[:-1].square().sum(-1).sqrt()
    )
    return (
        ratio.reshape(len(ratio), -1)
        .sort(dim=1)
        .values[:, (ratio[0].numel() - 1) // 2]
    )


@wrong(
    "ratios",
    "The lengths of the two writes were added. A layer's update is one vector, the sum of both.",
    RATIO,
)
def lengths_added(writes):
    lengths = writes[1::2].norm(dim=-1) + writes[2::2].norm(dim=-1)
    return _median(lengths / _parts(writes)[1].norm(dim=-1))


@wrong(
    "ratios",
    "Divided by the stream after the layer; asked is the stream that the layer finds.",
    RATIO,
)
def stream_after(writes):
    return _median(
        _parts(writes)[0].norm(dim=-1) / writes.cumsum(0)[2::2].norm(dim=-1)
    )


@wrong(
    "ratios",
    "Position 0 is in the median; it is reported apart.",
    "chapter 1, Nothing is ever overwritten",
)
def position_0_in_the_median(writes):
    update, found = _parts(writes)
    return (
        (update.norm(dim=-1) / found.norm(dim=-1)).flatten(1).median(1).values
    )


@wrong(
    "ratios", "Only the MLP's write was taken. A layer writes twice.", RATIO
)
def mlp_only(writes):
    return _median(writes[2::2].norm(dim=-1) / _parts(writes)[1].norm(dim=-1))


@wrong(
    "ratios",
    "The mean was taken. A few tokens with very short streams decide it; asked is the median.",
    RATIO,
)
def mean(writes):
    update, found = _parts(writes)
    return (
        (update.norm(dim=-1) / found.norm(dim=-1))[:, :, 1:].flatten(1).mean(1)
    )


@wrong("ratios", "One ratio per write; asked is one per layer.", RATIO)
def per_write(writes):
    return _median(
        writes[1:].norm(dim=-1) / writes.cumsum(0)[:-1].norm(dim=-1)
    )


@wrong(
    "ratios",
    "Divided by the row that went in at the bottom, not by the stream at that depth.",
    RATIO,
)
def of_the_row(writes):
    return _median(_parts(writes)[0].norm(dim=-1) / writes[0].norm(dim=-1))


@wrong("ratios", "The median length was divided by the median length. The ratio of medians is not the median of "
       "ratios.", RATIO)  # fmt: skip
def ratio_of_medians(writes):
    update, found = _parts(writes)
    return _median(update.norm(dim=-1)) / _median(found.norm(dim=-1))


@wrong("ratios", "The middle two values were averaged, as `quantile` does; asked is the lower one, as `torch.median` gives "
       "it.", RATIO)  # fmt: skip
def middle_two_averaged(writes):
    update, found = _parts(writes)
    ratio = (update.norm(dim=-1) / found.norm(dim=-1))[:, :, 1:]
    return ratio.flatten(1).quantile(0.5, dim=1)


@wrong(
    "ratios",
    "The median was taken text by text, and then over the texts; asked is one over all tokens.",
    RATIO,
)
def text_by_text(writes):
    update, found = _parts(writes)
    ratio = (update.norm(dim=-1) / found.norm(dim=-1))[:, :, 1:]
    return ratio.median(2).values.mean(1)


@wrong(
    "ratios",
    "The first text was left out, not the first position: the axes are [layer, batch, pos].",
    RATIO,
)
def first_text_left_out(writes):
    update, found = _parts(writes)
    ratio = update.norm(dim=-1) / found.norm(dim=-1)
    return ratio[:, 1:].flatten(1).median(1).values


# --- laws ------------------------------------------------------------------------------------


def _r2(y, fitted):
    return 1 - (y - fitted).square().sum() / (y - y.mean()).square().sum()


def _line(y):
    x = torch.arange(len(y), dtype=torch.float64)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (
        x - x.mean()
    ).square().sum()
    return slope, y.mean() + slope * (x - x.mean())


@right("laws")
def by_formula(norms):
    logs, squares = norms.double().log(), norms.double().square()
    slope, fitted = _line(logs)
    return torch.stack(
        [slope, _r2(logs, fitted), _r2(squares, _line(squares)[1])]
    )


@right("laws")
def by_polyfit(norms):
    y = norms.double().numpy()
    x = np.arange(len(y))
    found = [np.polyfit(x, np.log(y), 1)[0]]
    for values in (np.log(y), y**2):
        rest = values - np.polyval(np.polyfit(x, values, 1), x)
        found.append(1 - rest.var() / values.var())
    return torch.tensor(found)


@right("laws")
def by_least_squares(norms):
    y = norms.double()
    design = torch.stack(
        [torch.ones(len(y)), torch.arange(float(len(y)))], 1
    ).double()
    rate = torch.linalg.lstsq(design, y.log()[:, None]).solution[1, 0]
    both = torch.stack([design[:, 1], y.log(), y.square()])
    return torch.cat([rate[None], torch.corrcoef(both)[0, 1:].square()])


@wrong(
    "laws",
    "The logarithm to base 10 was taken: the rate is too small by a factor of 2.3.",
    LAW,
)
def base_10(norms):
    given = by_formula(norms)
    return torch.cat([given[:1] / math.log(10), given[1:]])


@wrong(
    "laws",
    "The rate is that of the square length: twice that of the length.",
    LAW,
)
def rate_of_squares(norms):
    given = by_formula(norms)
    return torch.cat([2 * given[:1], given[1:]])


@wrong(
    "laws",
    "The straight line was fitted to the length. The law √depth makes the *square* a straight line.",
    LAW,
)
def line_through_lengths(norms):
    y = norms.double()
    return torch.cat([by_formula(norms)[:2], _r2(y, _line(y)[1])[None]])


@wrong("laws", "These are correlations; R² is their square.", LAW)
def correlation(norms):
    given = by_formula(norms)
    return torch.cat([given[:1], given[1:].sqrt()])


@wrong(
    "laws",
    "The two R² stand in the other order: first that of the logarithms, then that of the squares.",
    LAW,
)
def laws_exchanged(norms):
    return by_formula(norms)[[0, 2, 1]]


@wrong("laws", "The R² of the first law was measured on the lengths; asked is that of the fit, on the logarithms.",
       LAW)  # fmt: skip
def judged_on_lengths(norms):
    given, y = by_formula(norms), norms.double()
    r2 = _r2(y, _line(y.log())[1].exp())
    return torch.stack([given[0], r2, given[2]])


@wrong(
    "laws",
    "Three numbers are asked: the rate, its own R², and that of the root.",
    LAW,
)
def without_its_own_r2(norms):
    return by_formula(norms)[[0, 2]]


@wrong(
    "laws",
    "The lines go through the origin. The stream is not empty at depth 0.",
    LAW,
)
def through_the_origin(norms):
    x = torch.arange(len(norms)).double()
    logs, squares = norms.double().log(), norms.double().square()
    fits = [(x @ y) / (x @ x) for y in (logs, squares)]
    return torch.stack(
        [fits[0], _r2(logs, fits[0] * x), _r2(squares, fits[1] * x)]
    )


@wrong(
    "laws", "The rate was read off the two ends; a fit uses every layer.", LAW
)
def two_ends(norms):
    logs = norms.double().log()
    rate = (logs[-1] - logs[0]) / (len(logs) - 1)
    return torch.cat([rate[None], by_formula(norms)[1:]])


@wrong("laws", "This is the factor per layer; the rate is its logarithm.", LAW)
def factor_for_rate(norms):
    given = by_formula(norms)
    return torch.cat([given[:1].exp(), given[1:]])


# --- initialise ------------------------------------------------------------------------------


def _scaled(weights, chosen, factor):
    return {
        name: w * factor if chosen(name) else w for name, w in weights.items()
    }


def _writer(name):
    return name.endswith(("W_O", "W_out"))


@right("initialise")
def by_ending(weights, layers):
    return _scaled(weights, _writer, (2 * layers) ** -0.5)


@right("initialise")
def by_names(weights, layers):
    new = {name: w.clone() for name, w in weights.items()}
    for layer in range(layers):
        for name in ("attn.W_O", "mlp.W_out"):
            new[f"blocks.{layer}.{name}"] /= math.sqrt(2 * layers)
    return new


@right("initialise")
def by_counting_the_writers(weights, layers):
    writers = [name for name in weights if "W_O" in name or "W_out" in name]
    scale = torch.tensor(1.0 / len(writers)).sqrt()
    return {
        name: scale * w if name in writers else w
        for name, w in weights.items()
    }


@wrong(
    "initialise",
    "Divided by √L. There are two branches per layer, so 2L writes are added.",
    START,
)
def root_of_layers(weights, layers):
    return _scaled(weights, _writer, layers**-0.5)


@wrong(
    "initialise",
    "The root is missing: squares of lengths add, so each is to be 1/2L and the length its root.",
    START,
)
def no_root(weights, layers):
    return _scaled(weights, _writer, 1 / (2 * layers))


@wrong(
    "initialise",
    "All matrices of the blocks were scaled; asked are those that write to the stream.",
    START,
)
def every_matrix(weights, layers):
    return _scaled(
        weights,
        lambda name: "W_" in name and "blocks" in name,
        (2 * layers) ** -0.5,
    )


@wrong(
    "initialise", "The embedding was scaled too. It is not a branch.", START
)
def embedding_too(weights, layers):
    return _scaled(
        weights,
        lambda n: _writer(n) or n in ("W_E", "W_pos"),
        (2 * layers) ** -0.5,
    )


@wrong("initialise", "What reads the stream was scaled (W_Q, W_K, W_V, W_in). A norm stands in front of it and "
       "nothing that is added gets smaller by W_Q or W_K.", START)  # fmt: skip
def readers(weights, layers):
    return _scaled(
        weights,
        lambda n: n.endswith(("W_Q", "W_K", "W_V", "W_in")),
        (2 * layers) ** -0.5,
    )


@wrong(
    "initialise",
    "Only attention's output was scaled. The MLP writes as well.",
    START,
)
def attention_only(weights, layers):
    return _scaled(weights, lambda n: n.endswith("W_O"), (2 * layers) ** -0.5)


@wrong(
    "initialise",
    "Layer l was scaled with its own depth; asked is one factor for all.",
    START,
)
def own_depth(weights, layers):
    def factor(name):
        return (
            (2 * (int(name.split(".")[1]) + 1)) ** -0.5 if _writer(name) else 1
        )

    return {name: w * factor(name) for name, w in weights.items()}


@wrong("initialise", "Multiplied, not divided.", START)
def multiplied(weights, layers):
    return _scaled(weights, _writer, (2 * layers) ** 0.5)


@wrong(
    "initialise",
    "Biases were scaled too. Asked are the matrices that write.",
    START,
)
def biases_too(weights, layers):
    return _scaled(
        weights,
        lambda n: _writer(n) or n.endswith("b_out"),
        (2 * layers) ** -0.5,
    )


@wrong("initialise", "The new weights are right, but the tensors that were given have been changed with them. Return new ones.",
       START)  # fmt: skip
def in_place(weights, layers):
    for name, w in weights.items():
        if _writer(name):
            w /= math.sqrt(2 * layers)
    return weights
