import pytest
import torch

from tests.models.reference import bart, dense_norm, encoder_decoder, words


def reals() -> tuple[torch.Tensor, torch.Tensor]:
    source, target = torch.ones(2, 11, dtype=torch.bool), torch.ones(2, 9, dtype=torch.bool)
    source[0, 6:] = False
    target[1, 5:] = False
    return source, target


def test_bart_with_our_weights_gives_our_outputs() -> None:
    ours = encoder_decoder(placement="post", bias=True, affine=True, pad=1)
    source, target = words(2, 11, seed=3), words(2, 9, seed=4)
    source_real, target_real = reals()
    with torch.no_grad():
        expected = bart(ours)(
            input_ids=source,
            attention_mask=source_real.long(),
            decoder_input_ids=target,
            decoder_attention_mask=target_real.long(),
            use_cache=False,
        ).logits
    given = (source, target, source_real, target_real)
    for found in (ours(*given), ours.trace(*given).output):
        torch.testing.assert_close(found[target_real], expected[target_real], atol=1e-4, rtol=0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_both_paths_agree(padded: bool, placement: str) -> None:
    model = encoder_decoder(placement=placement)
    given = (words(2, 11), words(2, 9), *(reals() if padded else (None, None)))
    traced = model.trace(*given)
    torch.testing.assert_close(model(*given), traced.output, atol=1e-5, rtol=1e-5)
    assert [tuple(Omega.shape) for Omega in traced.attention] == [
        *[(2, 3, 11, 11)] * 2,
        *[(2, 3, 9, 9), (2, 3, 9, 11)] * 2,
    ]
    assert [z.shape[1] for z in traced.hidden] == [11] * 5 + [9] * 7


def test_mixed_attention_looks_at_the_normalised_output_of_the_encoder() -> None:
    """[DYZ23] eq. (2.2)–(2.4): q from the decoder's s, k and v from s̄."""
    model = encoder_decoder()
    traced = model.trace(words(1, 11), words(1, 9))
    memory = dense_norm(traced.hidden[4], 1e-5)
    mixed = model.decoder.blocks[1]
    q = (dense_norm(traced.hidden[6], 1e-5) @ mixed.path.Q.weight.T).unflatten(-1, (3, 8))
    k = (memory @ mixed.path.K.weight.T).unflatten(-1, (3, 8))
    v = (memory @ mixed.path.V.weight.T).unflatten(-1, (3, 8))
    Omega = (torch.einsum("bqhc,bkhc->bhqk", q, k) / 8**0.5).softmax(-1)
    torch.testing.assert_close(Omega, traced.attention[3], atol=1e-5, rtol=1e-4)
    r = torch.einsum("bhqk,bkhc->bqhc", Omega, v).flatten(2) @ mixed.path.U.weight.T
    torch.testing.assert_close(traced.hidden[7], traced.hidden[6] + r, atol=1e-4, rtol=1e-4)


def test_both_stems_are_normalised_and_hold_their_own_positions() -> None:
    model = encoder_decoder()
    source, target = words(1, 11), words(1, 9)
    traced = model.trace(source, target)
    for side, tokens, z in (("encoder", source, 0), ("decoder", target, 5)):
        position = getattr(model, side).stem.position.weight[: tokens.shape[1]]
        expected = dense_norm(model.word.weight[tokens] + position, 1e-5)
        torch.testing.assert_close(traced.hidden[z], expected, atol=1e-5, rtol=1e-5)


def test_what_a_pad_holds_never_matters() -> None:
    model = encoder_decoder()
    source, target = words(2, 11), words(2, 9)
    source_real, target_real = reals()
    other = torch.where(source_real, source, (source + 1) % 31)
    other_target = torch.where(target_real, target, (target + 1) % 31)
    before = model(source, target, source_real, target_real)
    after = model(other, other_target, source_real, target_real)
    assert torch.equal(before[target_real], after[target_real])
    assert not torch.equal(before, model(other, target, None, target_real))


def test_the_decoder_is_causal_and_reads_the_whole_source() -> None:
    model = encoder_decoder()
    source, target = words(2, 11), words(2, 9)
    before = model(source, target)
    target = target.clone()
    target[:, 5:] = (target[:, 5:] + 1) % 31
    after = model(source, target)
    assert torch.equal(after[:, :5], before[:, :5])
    source = source.clone()
    source[:, -1] = (source[:, -1] + 1) % 31
    moved = (model(source, target) - after).abs().amax(-1)
    assert (moved > 1e-4).all()


def test_pad_starts_at_zero() -> None:
    from orderone.models import EncoderDecoderConfig, build

    model = build(
        EncoderDecoderConfig(n=8, H=2, encoders=1, decoders=1, n_vocab=9, T=4, pad=3), seed=0
    )
    word = dict(model.named_parameters())["word.weight"]
    assert (word[3] == 0).all()
    assert (word.abs().sum(1) > 0).sum() == 8
