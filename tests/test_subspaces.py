"""Read and write subspaces: closed forms, TransformerLens's kernel, the real model's bandwidth."""

import math

import pytest
import torch
from transformer_lens.tools.analysis.projection_kernel import (
    orthonormal_subspace,
    projection_kernel,
    random_projection_kernel_moments,
)

import residual_stream as rs
from handmade import random_model
from residual_stream.subspaces import (
    Port,
    bandwidth,
    cosines,
    mean_by_block,
    overlaps,
    ports,
    principal_angles,
    stacked,
)

DRAW = torch.Generator().manual_seed(0)


def test_equal_directions_count_fully_and_a_dominant_one_counts_as_one():
    equal = bandwidth(torch.eye(10)[:4] * 3)
    assert (equal.rank, equal.participation, equal.stable) == (
        4,
        pytest.approx(4),
        pytest.approx(4),
    )
    spiked = torch.eye(10) * 0.01
    spiked[0, 0] = 100
    lone = bandwidth(spiked)
    assert lone.rank == 10 and lone.participation == pytest.approx(1, abs=1e-3)
    assert lone.directions_for(0.99) == 1 and equal.directions_for(1.0) == 4


def test_the_gram_route_gives_the_singular_values_of_the_matrix():
    matrix = torch.randn(5000, 20, generator=DRAW) * torch.logspace(0, -2, 20)
    found = bandwidth(matrix).singular_values
    assert torch.allclose(found, torch.linalg.svdvals(matrix), rtol=1e-4)


@pytest.mark.parametrize("count", [30, 300])
def test_rank_is_that_of_the_span(count):
    spread = torch.randn(count, 7, generator=DRAW) @ torch.randn(7, 40, generator=DRAW)
    assert bandwidth(spread).rank == 7


def test_centring_takes_the_common_part_out():
    vectors = torch.randn(200, 12, generator=DRAW) + 100
    assert bandwidth(vectors).participation < 1.1
    assert bandwidth(vectors, center=True).participation > 9


def test_principal_angles_are_the_known_ones():
    turn = math.radians(30)
    first = torch.eye(4)[:, :2]
    second = torch.stack(
        [torch.tensor([math.cos(turn), 0, math.sin(turn), 0]), torch.tensor([0.0, 0, 0, 1])], 1
    )
    assert torch.allclose(principal_angles(first, second), torch.tensor([30.0, 90.0]), atol=1e-3)


def test_readers_have_the_gain_in_and_layer_norms_the_mean_out():
    llama, gpt2 = random_model("llama"), random_model("gpt2")
    port = ports(llama, direction="read", kinds=["q"], layers=[1])[2]
    gain = llama.blocks[1].ln1.weight
    assert torch.allclose(port.matrix, gain[:, None] * llama.blocks[1].attn.W_Q[2], atol=1e-6)
    for port in ports(gpt2, direction="read"):
        assert float(port.matrix.sum(0).abs().max()) < 1e-4


def test_what_lies_outside_a_read_subspace_does_not_change_the_reading():
    model = random_model("gpt2", dtype=torch.float64)
    block, x = model.blocks[0], torch.randn(3, 16, generator=DRAW, dtype=torch.float64)
    basis = ports(model, direction="read", kinds=["k"], layers=[0])[1].subspace.basis
    inside = x @ basis @ basis.T
    norm = rs.divisor.read_norm(block.ln1)
    read = norm.gain * norm.center(x - inside) @ block.attn.W_K[1].detach()
    assert float(read.abs().max()) < 1e-9


def test_writers_write_where_their_write_is():
    model = random_model("llama")
    stream = rs.record(model, torch.tensor([[1, 5, 9, 2]]))
    basis = torch.linalg.qr(
        torch.cat([p.matrix for p in ports(model, direction="write", kinds=["o"], layers=[1])], 1)
    ).Q
    write = stream.write("1_attn_out")
    assert torch.allclose(write @ basis @ basis.T, write, atol=1e-4)


def test_ports_are_counted_and_labelled():
    model = random_model("llama")  # 2 blocks, 4 heads, 2 key–value heads
    readers = ports(model, direction="read")
    assert len(readers) == 2 * (4 + 2 + 2 + 1 + 1)
    assert len(ports(model, direction="write")) == 2 * (4 + 1)
    assert readers[0].label == "L0.H0.q" and readers[-1].label == "L1.mlp.gate"


def test_overlaps_are_transformer_lenss_projection_kernel():
    model = random_model("llama")
    heads = ports(model, direction="write", kinds=["o"])
    readers = ports(model, direction="read", kinds=["v"])
    found = overlaps(heads, readers)
    for i, j in ((0, 0), (3, 1), (7, 3)):
        own = projection_kernel(
            orthonormal_subspace(heads[i].matrix), orthonormal_subspace(readers[j].matrix)
        )
        assert float(found[i, j]) == pytest.approx(float(own.normalized), abs=1e-5)
    assert torch.allclose(overlaps(heads, heads).diagonal(), torch.ones(8), atol=1e-5)


def test_random_subspaces_overlap_by_rank_over_width():
    draws = [Port(0, "o", i, torch.randn(60, 6, generator=DRAW)) for i in range(40)]
    off = overlaps(draws, draws)[~torch.eye(40, dtype=torch.bool)]
    expected = random_projection_kernel_moments(60, 6).mean / 6
    assert expected == pytest.approx(6 / 60)
    assert float(off.mean()) == pytest.approx(expected, abs=0.005)


def test_a_block_mean_leaves_each_port_itself_out():
    axes = torch.eye(6)
    heads = [
        Port(0, "o", 0, axes[:, :2]),
        Port(0, "o", 1, axes[:, 1:3]),
        Port(2, "o", 0, axes[:, :2]),
    ]
    means = mean_by_block(overlaps(heads, heads), heads, heads)
    assert means.shape == (3, 3)
    assert float(means[0, 0]) == pytest.approx(0.5) and float(means[0, 2]) == pytest.approx(0.75)
    assert bool(means[1].isnan().all()) and bool(means[2, 2].isnan())


def test_stacked_ports_count_the_same_whatever_their_size():
    small, large = Port(0, "o", 0, torch.eye(6)[:, :1]), Port(0, "o", 1, 100 * torch.eye(6)[:, 1:2])
    assert bandwidth(stacked([small, large])).participation == pytest.approx(2)


def test_cosines_of_random_directions_have_spread_one_over_root_width():
    found = cosines(torch.randn(2000, 100, generator=DRAW), pairs=50_000)
    assert float(found.mean()) == pytest.approx(0, abs=0.002)
    assert float(found.std()) == pytest.approx(0.1, rel=0.03)
    assert torch.allclose(cosines(torch.eye(2)), torch.zeros(()))  # never a row with itself


def test_bad_requests_say_what_there_is():
    model = random_model("gpt2")
    with pytest.raises(ValueError, match=r"'o' is not a read kind"):
        ports(model, direction="read", kinds=["o"])
    with pytest.raises(ValueError, match=r"no 'gate'"):
        ports(model, direction="read", kinds=["gate"])
    with pytest.raises(ValueError, match="all zero"):
        bandwidth(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="allowed is 0 < share"):
        bandwidth(torch.eye(3)).directions_for(0.0)
    with pytest.raises(ValueError, match="needs two"):
        cosines(torch.eye(3)[:1])


@pytest.mark.real
@pytest.mark.slow
def test_the_real_models_writers_span_the_whole_stream(smollm2):
    heads = ports(smollm2, direction="write", kinds=["o"])
    assert {port.bandwidth.rank for port in heads[::30]} == {64}
    assert bandwidth(stacked(heads)).rank == 576
    assert bandwidth(stacked(heads)).participation > 300
    assert (
        bandwidth(ports(smollm2, direction="write", kinds=["out"], layers=[15])[0].matrix.T).rank
        == 576
    )
    found = overlaps(heads[::9], heads[::9])
    off = found[~torch.eye(len(found), dtype=torch.bool)]
    assert float(off.min()) > 0.02 and float(off.median()) == pytest.approx(64 / 576, rel=0.2)
