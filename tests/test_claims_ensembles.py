"""Chapter 4: every claim's experiment runs alone, and goes red when what it shows is broken."""

from dataclasses import replace

import pytest
import torch

import residual_stream as rs
from chapter_cells import ClaimTests, patching, replacing, without_write
from residual_stream import teacher

pytestmark = [pytest.mark.real, pytest.mark.slow]


def one_path_lost(gradient_of_every_path):
    return lambda *args, **kwargs: gradient_of_every_path(*args, **kwargs)[1:]


def a_term_lost(expand_paths):
    def lose(*args):
        held = expand_paths(*args)
        return replace(held, terms=held.terms * (torch.arange(25) != 5)[:, None, None, None])

    return lose


def positions_ignored(delete_layers):
    return lambda model, text, *, positions=None, **options: delete_layers(model, text, **options)


def layers_confused(delete_layers):
    def shifted(*args, **kwargs):
        runs = delete_layers(*args, **kwargs)
        return replace(runs, kept_at=runs.kept_at.roll(7, 0), kl_at=runs.kl_at.roll(7, 0))

    return shifted


def layer_11_like_the_others(stored):
    def without_the_notch(name):
        found = stored(name)
        found["layer"]["top1_kept"][11] = found["layer"]["top1_kept"][12]
        return found

    return without_the_notch


def no_branches(stream_gradients):
    def identity_only(*args):
        gradients = stream_gradients(*args)
        return replace(gradients, values=gradients.values[-1:].expand_as(gradients.values))

    return identity_only


def already_trained(untrained):
    return lambda model: model


def a_length_lost(gradient_by_path_length):
    def lose(*args, **kwargs):
        split = gradient_by_path_length(*args, **kwargs)
        return replace(split, values=split.values * (torch.arange(len(split.values)) != 3).to(
            split.values)[:, None, None, None])  # fmt: skip

    return lose


def plain_with_a_shortcut(train_on_teacher):
    def train(variant, *args, **kwargs):
        return train_on_teacher(variant.replace("plain, LN", "residual, pre-LN"), *args, **kwargs)

    return train


def vanishing(train_on_teacher):
    def train(*args, **kwargs):
        run = train_on_teacher(*args, **kwargs)
        shrink = 0.7 ** torch.arange(len(run.first_gradients)).flip(0)
        return replace(run, first_gradients=run.first_gradients * shrink)

    return train


def slow_to_train(train_on_teacher):
    def train(variant, *args, **kwargs):
        steps = 3 if variant.startswith("highway") else kwargs.pop("steps")
        return train_on_teacher(variant, *args, **(kwargs | {"steps": steps}))

    return train


MUTATIONS = {
    "a path is lost": ("E1", {"mutation": patching(rs, "gradient_of_every_path", one_path_lost)}),
    "a layer reads what layers read": (
        "E2",
        {"rewrite": ("f(layer + 1, f1)", "f(layer + 1, x0 + f1) - f2")},
    ),
    "the control is not linear": (
        "E2",
        {"rewrite": ("(x0 @ A) @ B\nlinear", "(x0 @ A).tanh() @ B\nlinear")},
    ),
    "a term of the expansion is lost": (
        "E2",
        {"mutation": patching(rs, "expand_paths", a_term_lost)},
    ),
    "branches are entered unevenly": (
        "E3",
        {"rewrite": ("math.comb(60, n) / 2**60", "math.comb(60, n) * 0.2**n * 0.8 ** (60 - n)")},
    ),
    "a token skips a branch": ("E4", {"mutation": replacing("stream", without_write(9))}),
    "the layers are confused": ("E5", {"mutation": patching(rs, "delete_layers", layers_confused)}),
    "layer 11 is like the others": (
        "E5",
        {"mutation": replacing("stored", layer_11_like_the_others)},
    ),
    "positions are ignored": (
        "E6",
        {"mutation": patching(rs, "delete_layers", positions_ignored)},
    ),
    "another layer's write": (
        "E6",
        {"rewrite": ('stream.write("11_mlp_out")', 'stream.write("10_mlp_out")')},
    ),
    "half of the branch": ("E7", {"rewrite": ("writes[0] + writes[1]", "writes[1]")}),
    "only the identity": ("E8", {"mutation": patching(rs, "stream_gradients", no_branches)}),
    "the start is the end": ("E9", {"mutation": patching(rs, "untrained", already_trained)}),
    "a length is lost": (
        "E9",
        {"mutation": patching(rs, "gradient_by_path_length", a_length_lost)},
    ),
    "plain stacks have a shortcut": (
        "E10",
        {"mutation": patching(teacher, "train_on_teacher", plain_with_a_shortcut)},
    ),
    "gates do not train": (
        "E11",
        {"mutation": patching(teacher, "train_on_teacher", slow_to_train)},
    ),
    "gate and carry are confused": (
        "E11",
        {"rewrite": ("through * (1 - ", "through * (0.0 + ")},
    ),
    "the gradient vanishes": (
        "E12",
        {"mutation": patching(teacher, "train_on_teacher", vanishing)},
    ),
}


class TestClaims(ClaimTests):
    name = "04_ensembles"
    claims = tuple(f"E{n}" for n in range(1, 13))
    mutations = MUTATIONS
