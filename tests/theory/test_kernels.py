"""The public function: identities of whole networks, error bars, AdamW, bad input."""

import numpy as np
import pytest
import torch
from scipy import stats

from orderone import kernels
from orderone.core.errors import ConfigError, OrderoneError
from orderone.theory.kernels import checked_settings
from orderone.theory.spec import KernelSpec, parse_spec, read_spec

X = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
VISION = {"stem": "vision", "inputs": X, "samples": 4096, "recursions": 8}
LANGUAGE = {"stem": "language", "inputs": [[0, 1, 2], [2, 1, 3]], "samples": 1024, "recursions": 4}


def test_the_stem_is_written_out():
    found = kernels(VISION, C={"patch": 0.7, "position": 0.2}, Lambda={"patch": 3.0}).blocks[0]
    rows = X.reshape(6, 5)
    position = torch.eye(3, dtype=torch.float64).repeat(2, 2)
    assert torch.allclose(found.G, 0.7 * rows @ rows.T / 5 + 0.2 * position)
    assert torch.allclose(found.Theta, 3.0 * rows @ rows.T / 5 + position)
    assert torch.equal(found.G_se, torch.zeros(6, 6, dtype=torch.float64))


def test_tokens_share_a_kernel_where_they_are_the_same():
    G = kernels(LANGUAGE, C={"word": 0.7, "position": 0.2}, encoders=0).blocks[0].G
    expected = torch.zeros(6, 6, dtype=torch.float64)
    words = [0, 1, 2, 2, 1, 3]
    for i, j in np.ndindex(6, 6):
        expected[i, j] = 0.7 * (words[i] == words[j]) + 0.2 * (i % 3 == j % 3)
    assert torch.allclose(G, expected)


def test_groups_and_learning_rates_add_up():
    """Θ is linear in Λ, and the sum of its groups'; both ways of computing it agree."""
    Lambda = {"Q": 0.3, "K": 2.0, "patch": 0.5, "W": 1.7, "head_bias": 0.0}
    whole = kernels(VISION, Lambda=Lambda, encoders=2)
    split = kernels(VISION, Lambda=Lambda, encoders=2, by_group=True)
    assert whole.head.by_group == {}
    for a, b in zip(whole.blocks, split.blocks, strict=True):
        total = torch.stack([each.value for each in b.by_group.values()]).sum(0)
        assert torch.allclose(b.Theta, total, rtol=1e-12)
        # Each part has control variates of its own: equal up to sampling.
        assert ((a.Theta - b.Theta).abs() <= 4 * (a.Theta_se + b.Theta_se) + 1e-12).all()
    assert float(split.head.by_group["head_bias"].value.abs().max()) == 0.0


def test_learning_only_the_head_bias_is_a_constant():
    Lambda = dict.fromkeys(("patch", "position", *"QKVUWX", "head"), 0.0)
    head = kernels(VISION, Lambda={**Lambda, "head_bias": 2.5}).head
    assert torch.allclose(head.Theta, torch.full((6, 6), 2.5, dtype=torch.float64))


def test_the_mean_pool_is_the_mean():
    per_token, mean = kernels(VISION).head, kernels(VISION, pool="mean").head
    for name in ("G", "Theta"):
        blocks = getattr(per_token, name).view(2, 3, 2, 3).mean((1, 3))
        assert torch.allclose(getattr(mean, name), blocks, rtol=1e-10)
    # Errors of positions are shared in part: propagated, not added in quadrature.
    assert (mean.G_se > 0).all()


def test_a_causal_first_position_sees_itself_alone():
    found = kernels(LANGUAGE, causal=True, C={"U": 0.6, "V": 1.5}).blocks
    stem, attention = found[0], found[1]
    assert torch.allclose(attention.G[0, 0], stem.G[0, 0] + 0.9 * stem.F[0, 0], rtol=1e-12)
    assert attention.G_se[0, 0] == 0.0


def test_one_encoder_of_a_decoder_is_that_encoder():
    targets = torch.tensor([[1, 2], [3, 0]])
    alone = kernels(LANGUAGE)
    both = kernels(LANGUAGE, targets=targets, decoders=1)
    names = [block.name for block in both.blocks]
    assert names[:3] == ["encoder.stem", "encoder.0.attention", "encoder.0.mlp"]
    assert names[3:] == [
        "decoder.stem", "decoder.0.attention", "decoder.0.mixed", "decoder.0.mlp", "head",
    ]  # fmt: skip
    assert torch.equal(both.blocks[2].G, alone.blocks[2].G)
    assert both.head.G.shape == (4, 4)


def test_standard_errors_are_honest():
    """Repeats under other seeds scatter about their mean as the errors say: χ² over entries.

    Two encoders, so that the first one's errors feed the second.
    """
    seeds = 16
    runs = [kernels(VISION, encoders=2, seed=s, samples=1024, recursions=8) for s in range(seeds)]
    for name in ("G", "Theta"):
        values = torch.stack([getattr(run.head, name) for run in runs])
        errors = torch.stack([getattr(run.head, f"{name}_se") for run in runs])
        keep = errors.mean(0) > 1e-12
        ratio = (values.var(0) / errors.square().mean(0))[keep].mean().item()
        # Entries are correlated; a lone entry's band is a safe one for their mean.
        low, high = stats.chi2.ppf([1e-3, 1 - 1e-3], seeds - 1) / (seeds - 1)
        assert low < ratio < high


def test_results_depend_on_the_seed_alone():
    first, again = kernels(VISION), kernels(VISION)
    assert first.to_json() == again.to_json()
    assert first.to_json() != kernels(VISION, seed=1).to_json()


def test_a_target_error_is_reached():
    found = kernels(VISION, target_error=2e-4, recursions=16)
    head = found.head
    assert head.G_se.max() <= 2e-4 * head.G.abs().max()
    assert head.Theta_se.max() <= 2e-4 * head.Theta.abs().max()


def test_adamw_divides_each_group_by_its_gradient():
    """With Λ̃_G = γ_G AdamW's kernel is SGD's at Λ = 1; the head's |g| is the paper's."""
    sgd = kernels(VISION, by_group=True)
    adamw = kernels(VISION, optimizer="adamw")
    sizes = adamw.gradient_sizes
    assert sizes["head_bias"] == pytest.approx(1.0)
    assert sizes["head"] == pytest.approx(1.0, abs=1e-5)
    assert sizes["position"] ** 2 * 3 == pytest.approx(
        float(sgd.head.by_group["position"].value.diagonal().mean())
    )
    same = kernels(VISION, optimizer="adamw", Lambda=sizes)
    assert torch.allclose(same.head.Theta, sgd.head.Theta, rtol=1e-10)


def test_gradient_sizes_are_those_of_a_network():
    """r.m.s. |g| over each group of dense networks of width 64, by autograd, within 6 %."""
    from tests.theory.test_finite_width import CASES, C, dense, predicted

    case, n, w = CASES["vision"], 64, 48
    sizes = predicted(case, optimizer="adamw").gradient_sizes
    network = dense(case, n)
    network.n_out = 3
    theta = network.draw(w, 5, torch.Generator().manual_seed(0))
    theta = {name: value.requires_grad_() for name, value in theta.items()}
    squares, counts = dict.fromkeys(sizes, 0.0), dict.fromkeys(sizes, 0)
    z = network.forward(theta, case["inputs"])[-1]
    for entry in z[..., 0].sum(0).flatten():
        gradients = torch.autograd.grad(entry, list(theta.values()), retain_graph=True)
        for name, g in zip(theta, gradients, strict=True):
            squares[name.split(".")[0]] += g.square().sum().item()
            counts[name.split(".")[0]] += g.numel()
    paper = {"W": (2 * n) ** -0.5, "head": 3**-0.5, "head_bias": 3**-0.5}
    for group, gamma in sizes.items():
        measured = (squares[group] / counts[group]) ** 0.5
        tolerance = 0.15 if group in "QK" else 0.06
        expected = gamma * paper.get(group, n**-0.5)
        assert measured == pytest.approx(expected, rel=tolerance), group
    assert C["patch"] == 0.8


def test_json_is_what_the_house_says():
    printed = kernels(VISION, encoders=0, pool="mean").to_json()
    assert [sorted(block) for block in printed["blocks"]] == [
        ["F", "G", "G_se", "Theta", "Theta_se", "name"]
    ] * 2
    assert len(printed["blocks"][0]["G"]) == 6
    assert len(printed["blocks"][1]["Theta"]) == 2


BAD = {
    "unknown setting 'heads'": {"heads": 3},
    "unknown setting 'query' of InitialConstants": {"C": {"query": 1.0}},
    "W = -1.0 for LearningRates": {"Lambda": {"W": -1.0}},
    "activation 'gulu'": {"activation": "gulu"},
    "epsilon": {"epsilon": 0.0},
    "shape 2×3": {"inputs": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]},
    "different lengths": {"inputs": [[[1.0]], [[1.0], [2.0]]]},
    "not finite": {"inputs": [[[float("nan")]]]},
    "rename it to patch": {"C": {"word": 1.0}},
    "decoders": {"decoders": 1},
    "targets": {"targets": [[1]]},
    "pool = 'class'": {"pool": "class"},
    "skip coefficients": {"xi": [1.0, 1.0, 1.0]},
    "second moment": {"activation": "torch:exp2", "C": {"W": 1e4}},
    "stem": {"stem": "audio"},
    "samples": {"samples": 0},
    "samples = 2147483648": {"samples": 2**31},
    "encoders = 10001": {"encoders": 10_001},
    "recursions = 10001": {"recursions": 10_001},
    "encoders = '2'": {"encoders": "2"},
    "encoders = True": {"encoders": True},
    "causal = 'yes'": {"causal": "yes"},
    "Q = '0.5'": {"C": {"Q": "0.5"}},
    "xi": {"xi": ["1.0", 1.0]},
}


@pytest.mark.parametrize(("said", "changes"), BAD.items(), ids=BAD)
def test_bad_input_is_one_line(said, changes):
    with pytest.raises(OrderoneError, match=said) as error:
        kernels(VISION, **changes)
    assert "\n" not in str(error.value)


BAD_WORDS = {
    "token 3 in inputs; expected tokens from 0 to 2": {"n_vocab": 3},
    "token -1": {"inputs": [[-1, 0]]},
    "whole numbers": {"inputs": [[0.5, 1.0]]},
    "token 9 in targets": {"targets": [[9], [0]], "decoders": 1, "n_vocab": 5},
    "2 inputs with 1 targets": {"targets": [[0]], "decoders": 1},
    "causal encoder": {"targets": [[0], [0]], "decoders": 1, "causal": True},
}


@pytest.mark.parametrize(("said", "changes"), BAD_WORDS.items(), ids=BAD_WORDS)
def test_bad_words_are_one_line(said, changes):
    with pytest.raises(OrderoneError, match=said):
        kernels(LANGUAGE, **changes)


def test_a_kernel_may_stand_for_inputs():
    rows = X.reshape(6, 5)
    settings = {name: value for name, value in VISION.items() if name != "inputs"}
    given = kernels(settings, input_kernel=rows @ rows.T / 5, positions=3)
    assert torch.allclose(given.head.Theta, kernels(VISION).head.Theta, rtol=1e-6)


BAD_KERNELS = {
    "not positive semidefinite": {"input_kernel": [[1.0, 2.0], [2.0, 1.0]], "positions": 2},
    "positive": {"input_kernel": [[1.0, 0.5], [0.2, 1.0]], "positions": 2},
    "multiple of 2": {"input_kernel": [[1.0]], "positions": 2},
    "shape 1×2": {"input_kernel": [[1.0, 2.0]], "positions": 1},
    "both or neither": {"input_kernel": [[1.0]]},
    "or neither": {},
}


@pytest.mark.parametrize(("said", "changes"), BAD_KERNELS.items(), ids=BAD_KERNELS)
def test_bad_kernels_are_one_line(said, changes):
    with pytest.raises(OrderoneError, match=said):
        kernels({"stem": "vision"}, **changes)


def test_whole_numbers_and_lists_of_toml_are_constants():
    spec = parse_spec({"stem": "vision", "inputs": [[[1]]], "xi": [1, 2.0], "C": {"Q": 1}})
    assert spec.block_xi == (1.0, 2.0)
    assert spec.constants("Q") == 1.0
    assert parse_spec({"stem": "vision", "inputs": [[[1]]], "xi": 2}).block_xi == (2.0, 2.0)


def test_inputs_of_any_floating_type():
    x = X.bfloat16()
    found = kernels(VISION, inputs=x.requires_grad_(), encoders=0)
    assert torch.equal(
        found.blocks[0].G, kernels(VISION, inputs=x.double(), encoders=0).blocks[0].G
    )


def test_inputs_come_from_files_beside_the_spec(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    (tmp_path / "spec.toml").write_text('stem = "vision"\ninputs = "x.npy"\n[C]\nQ = 0.5\n')
    spec = read_spec(tmp_path / "spec.toml")
    assert spec.C.Q == 0.5
    found = kernels(spec, samples=64, encoders=0)
    assert torch.equal(found.blocks[0].G, kernels(VISION, encoders=0).blocks[0].G)


def test_files_that_would_run_code_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(OrderoneError, match="without Python objects"):
        kernels(VISION, inputs=str(tmp_path / "x.npy"))
    with pytest.raises(OrderoneError, match="cannot be read"):
        kernels(VISION, inputs=tmp_path / "none.npy")


def test_archives_and_headers_that_lie_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", x=X.numpy())
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(OrderoneError, match="cannot be read: the magic string"):
        kernels(VISION, inputs=tmp_path / "x.npy")
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**15, 3, 5)}
    with (tmp_path / "y.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(OrderoneError, match="cannot be read"):
        kernels(VISION, inputs=tmp_path / "y.npy")


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": 1e200 * X},
        {"C": {"Q": 1e200, "K": 1e200}},
        {"Lambda": {"Q": 1e308}, "by_group": True},
        {"Lambda": {"X": 1e308, "W": 1e308}},
        {"xi": 1e200},
        {"C": {"patch": 1e300}, "placement": "branch", "final_norm": False, "xi": 1e10},
    ],
)
def test_kernels_that_overflow_are_one_line(changes):
    with pytest.raises(OrderoneError, match="leave the range of float64"):
        kernels(VISION, **changes)


def test_a_spec_is_text_and_frozen(tmp_path):
    (tmp_path / "bad.toml").write_text("stem = \n")
    with pytest.raises(OrderoneError, match="TOML"):
        read_spec(tmp_path / "bad.toml")
    with pytest.raises(OrderoneError, match="activation"):
        parse_spec({"stem": "vision", "inputs": [[[1.0]]], "activation": 3})
    spec = KernelSpec(**VISION)
    with pytest.raises(ValueError, match="frozen"):
        spec.encoders = 3


def test_what_is_no_spec_is_one_line():
    with pytest.raises(ConfigError, match="an architecture that is a str; expected a KernelSpec"):
        checked_settings("spec.toml")


def test_printing_is_a_line_a_block():
    found = kernels(LANGUAGE)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[2:]] == [block.name for block in found.blocks]
    assert float(lines[-1].split()[1]) == pytest.approx(
        found.head.G.diagonal().mean().item(), abs=1e-4
    )
    assert "tensor(" not in repr(found)
