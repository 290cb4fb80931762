"""Figures of chapter 2: labelled, opaque, drawn from results alone."""

import pytest
import torch

from residual_stream.arrangements import phase
from residual_stream.directions import random_directions, running_max_cosine
from residual_stream.divisor import DivisorEffect
from residual_stream.figures import geometry, superposition
from residual_stream.packing import median_max_cosine, packing_table
from residual_stream.subspaces import bandwidth
from residual_stream.superposition import ToyRecipe, train_toys

SAMPLE = torch.rand(30, generator=torch.Generator().manual_seed(0))


def toys(features=5, hidden=2, count=5):
    return train_toys(
        features=features, hidden=hidden, sparsity=[0.5] * count, recipe=ToyRecipe(steps=3)
    )


DRAWINGS = {
    "packing_bounds": lambda: geometry.packing_bounds(
        packing_table([576, 4096], [0.1, 0.2, 0.3]), simulated={576: {0.1: 9}}
    ),
    "largest_cosines": lambda: geometry.largest_cosines(
        {16: running_max_cosine(random_directions(16, 20))}, {16: {20: median_max_cosine(16, 20)}}
    ),
    "divisor_law": lambda: geometry.divisor_law([DivisorEffect(1.0, 0.7, SAMPLE, 0.0)]),
    "spectra": lambda: geometry.spectra(
        {"heads": bandwidth(torch.eye(4))}, colors={"heads": "attn"}
    ),
    "overlap_map": lambda: geometry.overlap_map(
        torch.rand(4, 4), chance=0.1, rows="block that writes", columns="block that reads"
    ),
    "cosine_histograms": lambda: geometry.cosine_histograms({"rows": SAMPLE - 0.5}, width=576),
    "two_shocks": lambda: geometry.two_shocks(
        {"as trained": 30 * SAMPLE + 3, "rotated": SAMPLE + 2.5},
        {"as trained": SAMPLE, "rotated": SAMPLE / 9},
    ),
    "dimensionalities": lambda: superposition.dimensionalities(toys()),
    "phase_diagram": lambda: superposition.phase_diagram(
        [phase(toys(2, 1, 3).W)] * 2, importances=[0.1, 1.0, 10.0], densities=[1.0, 0.1]
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_labelled_axes_an_opaque_ground_and_no_title(name):
    figure = DRAWINGS[name]()
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert any(ax.get_xlabel() for ax in figure.axes)
    for ax in figure.axes:
        assert not ax.get_title()
        assert ax.get_ylabel() or any(other.get_ylabel() for other in figure.axes)
    figure.canvas.draw()


def test_toy_features_have_a_panel_a_model_that_names_sparsity_and_geometry():
    models = toys(count=5)
    figure = superposition.toy_features(models, columns=3)
    figure.canvas.draw()
    texts = [ax.texts[0].get_text() for ax in figure.axes if ax.texts]
    assert len(texts) == 5 and len(figure.axes) == 6
    for text, name in zip(texts, models.geometries(), strict=True):
        assert "S = 0.50" in text and name in text


def test_shades_run_from_dark_to_light():
    light = [sum(color[:3]) for color in geometry.shades(5)]
    assert light == sorted(light)
