"""Widgets: their data, what stands in for them, what they refuse, and their colours."""

from __future__ import annotations

import base64
import io
import json
import re
from importlib.resources import files

import anywidget
import ipywidgets
import pandas as pd
import pytest
import torch
from PIL import Image

import residual_stream as rs
from residual_stream.figures.style import PALETTE, PALETTE_DARK
from residual_stream.path_gradients import PathGradients
from residual_stream.superposition import ToyModels, ToyRecipe, train_toys
from residual_stream.widgets.base import MAX_BYTES, MovableFigure, module_of

VIEW = "application/vnd.jupyter.widget-view+json"
SHIPPED = files("residual_stream.widgets")


def plain(**changes):
    return MovableFigure(
        **{"kind": "packing", "label": "L", "sentence": "S.", "data": {}} | changes
    )


def polygon(n, features=5, turn=0.0):
    angles = torch.arange(n) * 2 * torch.pi / n + turn
    return torch.cat([torch.stack([angles.cos(), angles.sin()]), torch.zeros(2, features - n)], 1)


def models(*weights, loss=None, sparsity=None, importance=1.0):
    count = len(weights)
    return ToyModels(
        W=torch.stack(weights),
        b=torch.zeros(count, weights[0].shape[1]),
        sparsity=torch.tensor(sparsity or [0.5] * count),
        importance=torch.full((count, weights[0].shape[1]), importance),
        loss=torch.tensor(loss or [1.0] * count),
        seeds=tuple(range(count)),
    )


def test_an_output_holds_widget_picture_and_sentence():
    figure = rs.figures.superposition.toy_features(models(polygon(5)))
    bundle, metadata = plain(still=figure, sentence="A pentagon.")._repr_mimebundle_()
    assert bundle["text/plain"] == "A pentagon."
    assert len(bundle[VIEW]["model_id"]) == 32
    assert metadata["image/png"]["alt"] == "A pentagon."
    picture = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    assert picture.size[0] > 100 and picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_a_widget_without_a_picture_leaves_its_sentence_and_no_address_of_an_object():
    widget = plain()
    bundle, _ = widget._repr_mimebundle_()
    assert set(bundle) == {"text/plain", VIEW}
    assert repr(widget) == "S."
    assert not callable(widget._ipython_display_)


def test_an_output_holds_the_widget_with_colabs_versions_too(monkeypatch):
    """ipywidgets 7 with anywidget 0.9 has no mime bundle to build on; IPython asks for ours."""
    monkeypatch.delattr(anywidget.AnyWidget, "_repr_mimebundle_")
    monkeypatch.delattr(ipywidgets.Widget, "_repr_mimebundle_")
    bundle, metadata = plain()._repr_mimebundle_()
    assert bundle["text/plain"] == "S." and len(bundle[VIEW]["model_id"]) == 32
    assert metadata == {}


def test_the_state_that_a_page_stores_holds_all_that_the_widget_needs():
    state = plain(data={"a": [1, 2]}, label="Name").get_state()
    assert state["data"] == {"a": [1, 2]} and state["label"] == "Name" and state["value"] == 0
    assert state["_esm"] == module_of("packing")
    assert state["_css"] == SHIPPED.joinpath("widgets.css").read_text(encoding="utf-8")
    json.dumps(state["data"], allow_nan=False)


MOVING = ["packing", "ledger", "climb", "composition", "path_lengths", "variants"]
KINDS = [*MOVING, "prediction", "predictions"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_carries_the_shared_part_and_its_own_and_no_other(kind):
    module = module_of(kind)
    assert "function frame(" in module and f"function {kind}(" in module
    assert module.count("export default") == 1
    others = set(MOVING) - {kind}
    assert not any(f"function {other}(" in module for other in others)


def test_a_kind_that_nothing_draws_is_refused():
    with pytest.raises(ValueError, match="kind 'globe' is not known"):
        plain(kind="globe")


def test_the_climb_gives_each_depth_and_token_its_length_direction_and_words(bench):
    stream = rs.record(bench, "In the beginning God")
    figure = rs.widgets.climb(stream)
    depths, tokens = figure.data["depths"], figure.data["tokens"]
    assert depths == ["The row, before block 0", *(f"After block {i}" for i in range(4))]
    assert len(tokens) == stream.tokens.shape[1]
    assert figure.value == len(depths) * len(tokens) - 1  # the top of the last token
    for depth, label in enumerate(["pos_embed", *(f"{i}_mlp_out" for i in range(4))]):
        here = stream.after(label)[0]
        assert figure.data["norms"][depth] == pytest.approx(here.norm(dim=-1).tolist(), rel=0.01)
    assert figure.data["cosines"][0] == [1.0] * len(tokens)
    with torch.no_grad():
        first = bench(stream.tokens)[0].argmax(-1).tolist()
    said = [place[0][0] for place in figure.data["read"][-1]]
    assert said == [bench.to_single_str_token(i) for i in first]
    with pytest.raises(ValueError, match="2 rows"):
        rs.widgets.climb(rs.record(bench, ["In the", "In the"]))


def test_the_ledger_names_its_writes_and_says_where_guess_and_word_differ_most(bench):
    stream = rs.record(bench, "In the beginning God")
    found = rs.switch_off(stream, [5], writes=3)
    figure = rs.widgets.ledger([(stream, found)])
    (case,) = figure.data["cases"]
    assert case["labels"][:4] == ["row", "position", "L0 attention", "L0 MLP"]
    assert len(case["linear"]) == len(case["real"]) == len(case["top"]) == 8
    assert case["switches"] == found.switches
    gaps = (found.to_frame()["share"] - found.to_frame()["lost when run again"]).abs()
    assert f"{case['labels'][found.switches[int(gaps.argmax())]]} gave" in repr(figure)
    assert "image/png" in figure._repr_mimebundle_()[0]
    with pytest.raises(ValueError, match="no cases"):
        rs.widgets.ledger([])


def test_the_composition_figure_sends_every_pair_that_can_compose_in_one_byte():
    scores = torch.rand(3, 2, 3, 2, generator=torch.Generator().manual_seed(0))
    scores[0, 1, 2, 0] = 2.0
    figure = rs.widgets.composition(scores, kind="K", baseline=(0.5, 0.1), start=(0, 1))
    sent = list(base64.b64decode(figure.data["scores"]))
    pairs = [(a, b) for a in range(6) for b in range(6) if a // 2 < b // 2]
    assert len(sent) == len(pairs) == 12
    flat = scores.reshape(6, 6)
    for byte, (a, b) in zip(sent, pairs, strict=True):
        assert byte / 255 * figure.data["largest"] == pytest.approx(float(flat[a, b]), abs=0.005)
    assert repr(figure).startswith("L0H1 writes, and L2H0 hears it most through its keys: 2,")
    assert figure.value == 1
    for change, said in (
        ({"kind": "X"}, "'X' is not known"),
        ({"start": (3, 0)}, "does not exist"),
    ):
        with pytest.raises(ValueError, match=said):
            rs.widgets.composition(scores, **{"kind": "K", "baseline": (0.5, 0.1)} | change)


def path_gradients(*sizes):
    """Parts of these signed sizes along one direction, at position 0 the half, at another place."""
    values = torch.tensor(sizes)[:, None, None, None] * torch.tensor([[0.5], [1.0]])
    return PathGradients(values, values.sum(0), "sublayer", torch.ones(1, 1, 2))


def test_the_path_lengths_say_what_the_split_holds_and_leave_position_0_out_of_it():
    cancelling = path_gradients(1.0, -40.0, 41.0)  # they add up to 2
    cancelling.values[0, :, 0] *= 3  # position 0 has another story
    parts = {"a": path_gradients(3.0, 1.0), "b": cancelling}
    figure = rs.widgets.path_lengths(parts, pictured=["a", "b"], start=("b", 1))
    first, second = figure.data["frames"]
    assert first == {
        "name": "a", "size": [0.75, 0.25], "error": [0.25, 0.0], "first": [0.75, 0.25],
        "ratio": 1.0, "mean": 0.2,
    }  # fmt: skip
    assert second["size"] == [0.5, 20.0, 20.0] and second["error"] == [0.5, 20.0, 0.0]
    assert second["ratio"] == 41.0
    assert second["first"] == [1.5, 20.0, 20.0]
    assert figure.data["stride"] == 3 and figure.value == 4  # model b, paths of one branch
    assert "b: the largest part of the gradient comes by paths of 1 branch and is 20 times" in (
        repr(figure)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parts": {}}, "no models are given"),
        ({"pictured": ["b"]}, "no model 'b'"),
        ({"pictured": []}, "0 models pictured"),
        ({"start": ("a", 2)}, "no paths of 2 branches"),
    ],
)
def test_path_lengths_that_cannot_be_shown_are_refused(change, said):
    given = {"parts": {"a": path_gradients(3.0, 1.0)}, "pictured": ["a"], "start": ("a", 1)}
    with pytest.raises(ValueError, match=said):
        rs.widgets.path_lengths(**given | change)


def test_paths_too_small_to_be_seen_are_not_drawn_and_not_told_apart():
    parts = {"a": path_gradients(1.0, 3e-5, 0.5, 2e-5, 1e-5)}
    (frame,) = rs.widgets.path_lengths(parts, pictured=["a"], start=("a", 0)).data["frames"]
    assert len(frame["size"]) == 3 and frame["size"][1] == 0.0


def grid(**changes):
    """Two variants at two depths and two rates: one learns, the other does not or blows up."""
    rows = [
        {"task": "t", "variant": v, "n_layers": d, "rate": r, "losses": [2.5, last], "last": last,
         "diverged": None}
        for v, ends in {"pre-LN": (1.0, 1.1, 1.3, 1.2), "post-LN": (1.0, 1.0, 2.4, 2.45)}.items()
        for (d, r), last in zip([(2, 0.01), (2, 0.1), (8, 0.01), (8, 0.1)], ends, strict=True)
    ]  # fmt: skip
    rows[-1] |= {"losses": [], "last": None, "diverged": 4}
    return pd.DataFrame(rows).assign(**changes)


GRID = {"best": 0.9, "guess": 2.5, "start": (8, 0.1), "top": 3.0}


def test_the_variants_figure_holds_every_run_and_says_who_learned():
    figure = rs.widgets.variants(grid(), **GRID)
    data = figure.data
    assert (data["depths"], data["rates"], figure.value) == ([2, 8], ["0.01", "0.1"], 3)
    assert [(v["name"], v["colour"], v["dash"]) for v in data["variants"]] == [
        ("pre-LN", "attn", ""),
        ("post-LN", "mlp", ""),
    ]
    assert data["variants"][0]["runs"][1][0] == {
        "losses": [2.5, 1.3],
        "last": 1.3,
        "diverged": None,
    }
    assert data["variants"][1]["runs"][1][1] == {"losses": [], "last": None, "diverged": 4}
    assert repr(figure) == (
        "With 8 layers, each at its best rate: pre-LN (1.20 nats); at no rate better than guessing "
        "(2.5 nats): post-LN."
    )


@pytest.mark.parametrize(
    ("runs", "start", "said"),
    [
        (grid(task=["a"] * 7 + ["b"]), (8, 0.1), "pass one task"),
        (grid()[:-1], (8, 0.1), r"0 runs of \('post-LN', 8, 0.1\)"),
        (pd.concat([grid(), grid()[:1]]), (8, 0.1), "2 runs of"),
        (grid(), (4, 0.1), r"start = \(4, 0.1\) is no run"),
    ],
)
def test_runs_that_are_no_grid_are_refused(runs, start, said):
    with pytest.raises(ValueError, match=said):
        rs.widgets.variants(runs, **GRID | {"start": start})


def test_script_and_style_name_no_other_host():
    for name in ("widgets.js", "widgets.css"):
        text = SHIPPED.joinpath(name).read_text(encoding="utf-8")
        addresses = set(re.findall(r"\w+://[^\s\"')]+|@import|url\(", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, never asked for


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": {"x": "y" * MAX_BYTES}}, "at most 150,000"),
        ({"data": {"x": float("nan")}}, "no JSON"),
        ({"data": {"x": torch.ones(1)}}, "no JSON"),
        ({"label": " "}, "read aloud"),
        ({"sentence": ""}, "read aloud"),
    ],
)
def test_a_widget_that_would_not_travel_or_not_speak_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        plain(**change)


def test_the_packing_figure_tells_every_frame_in_words_and_numbers():
    toys = train_toys(
        features=5,
        hidden=2,
        sparsity=[0.0, 0.0, 0.9, 0.9],
        importance=0.9,
        recipe=ToyRecipe(steps=1500),
    )
    widget = rs.widgets.packing(toys, size=2, pictured=[0.0, 0.9])
    first, last = widget.data["frames"]
    assert first["sentence"] == (
        "At sparsity 0, each feature on 100 % of the time, two of five are kept, at a right angle "
        "(2 of 2 seeds)."
    )
    assert "five of five are kept, as a pentagon" in last["sentence"]
    assert first["kept"] == [True, True, False, False, False] and last["kept"] == [True] * 5
    assert first["share"][:2] == pytest.approx([1, 1], abs=0.05)
    assert last["share"] == pytest.approx([0.4] * 5, abs=0.05)
    assert widget.data["importance"] == [1.0, 0.9, 0.81, 0.729, 0.656]
    assert (first["label"], last["label"]) == ("0.00", "0.90")
    assert repr(widget) == f"{first['sentence']} {last['sentence']}"


def test_groups_follow_the_path_along_which_the_features_move_least():
    start, turned = polygon(5), polygon(5, turn=1.0)
    shuffled = turned[:, [0, 2, 4, 1, 3]]  # a pentagon too, in another order
    toys = models(start, start, shuffled, turned, loss=[1.0, 1.0, 1.0, 1.01])
    shown = toys.in_step(2)
    assert shown.seeds[1] == 3 and float((shown.W[1] - shown.W[0]).abs().max()) < 1e-5
    assert toys.in_step(2, tolerance=0.001).seeds[1] == 2


def test_in_step_turns_the_first_model_as_aligned_does_and_refuses_uneven_groups():
    toys = models(polygon(5, turn=0.4), polygon(5, turn=1.0))
    assert float(toys.in_step(1).W[0, 0, 0].abs()) < 1e-6
    with pytest.raises(ValueError, match="do not divide"):
        toys.in_step(3)


@pytest.mark.parametrize(
    ("toys", "pictured", "said"),
    [
        (models(torch.ones(3, 5), torch.ones(3, 5)), [0.5], "3 hidden dimensions"),
        (models(polygon(5), polygon(5), sparsity=[0.1, 0.5]), [0.1], "several sparsities"),
        (models(polygon(5), polygon(5)), [0.4], "no model has the sparsity 0.4"),
    ],
)
def test_models_that_are_no_path_over_sparsity_are_refused(toys, pictured, said):
    with pytest.raises(ValueError, match=said):
        rs.widgets.packing(toys, size=2, pictured=pictured)


def test_a_prediction_box_knows_its_letters_and_says_its_options():
    box = rs.widgets.predict("bus/B1", ["all of it", "half"], answer="b", question="What is left?")
    assert box.data["options"] == {"a": "all of it", "b": "half"}
    assert repr(box) == "What is left? (a) all of it, (b) half."
    assert box.label == "Your prediction for B1"
    assert (box.picked, box.compared) == ("", False)
    lettered = rs.widgets.predict("bus/B1", {"x": "one", "y": "two"}, answer="y")
    assert list(lettered.data["options"]) == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "options", "answer", "said"),
    [
        ("B1", ["one", "two"], "a", "chapter/claim"),
        ("a/b/c", ["one", "two"], "a", "chapter/claim"),
        ("bus/B1", ["one"], "a", "1 options"),
        ("bus/B1", ["one", "two"], "c", r"\['a', 'b'\]"),
    ],
)
def test_a_box_that_cannot_be_answered_is_refused(name, options, answer, said):
    with pytest.raises(ValueError, match=said):
        rs.widgets.predict(name, options, answer=answer)


def test_a_list_of_predictions_needs_names():
    shelf = rs.widgets.predictions("bus", ["B1", "B2"])
    assert shelf.data["chapters"] == [{"title": "", "names": ["bus/B1", "bus/B2"]}]
    with pytest.raises(ValueError, match="no claims"):
        rs.widgets.predictions("bus", [])


def test_looking_back_over_chapters_needs_boxes_in_each():
    shelf = rs.widgets.look_back({"One": ["bus/B1"], "Two": ["a/A1"]}, links={"Two": "two.html"})
    assert shelf.data["chapters"] == [
        {"title": "One", "href": "", "names": ["bus/B1"]},
        {"title": "Two", "href": "two.html", "names": ["a/A1"]},
    ]
    for chapters in ({}, {"One": []}):
        with pytest.raises(ValueError, match="each with the names of its boxes"):
            rs.widgets.look_back(chapters)


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--rs-([\w-]+): (#\w{6});", block))


def contrast(one: str, other: str) -> float:
    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_the_stylesheet_has_the_colours_of_the_book_and_they_can_be_told_from_the_ground(theme):
    blocks = re.findall(
        r"\{(\s+--rs-ground.*?)\}", SHIPPED.joinpath("widgets.css").read_text(), re.S
    )
    assert len(blocks) == 2
    found = colours(blocks[theme])
    for name, colour in (PALETTE, PALETTE_DARK)[theme].items():
        assert found[name.replace(" ", "-")] == colour
    assert contrast(found["ink"], found["ground"]) >= 7
    for name in ("stream", "attn", "mlp", "embed", "norm", "other"):  # what widgets draw lines with
        assert contrast(found[name], found["ground"]) >= 3, name
