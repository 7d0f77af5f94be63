"""Transfer: optima on synthetic losses, and a real sweep that learns."""

import math

import polars as pl
import pytest
import torch

from orderone.core.errors import ConfigError, MissingPackageError
from orderone.experiments.transfer import as_json, parabola_vertex, summary, transfer
from orderone.experiments.trials import batches, fitted, text_material
from orderone.models import LanguageConfig, VisionConfig, build
from orderone.scaling.tasks import task

LRS = [2.0**power for power in range(-4, 5)]


def synthetic(shift: float, *, seeds: int = 3, spoil: bool = False) -> pl.DataFrame:
    """Losses (log₂ lr − shift·log₂(width/64) − 0.1·seed)², whose least is known."""
    rows = [
        {
            "width": width,
            "lr": lr,
            "seed": seed,
            "loss": (math.log2(lr) - shift * math.log2(width / 64) - 0.1 * seed) ** 2,
        }
        for width in (64, 128, 256)
        for lr in LRS
        for seed in range(seeds)
    ]
    if spoil:
        rows = [row | {"loss": math.inf} if row["lr"] == LRS[-1] else row for row in rows]
    return pl.DataFrame(rows)


@pytest.mark.parametrize("shift", [0.0, -1.0, 0.3])
@pytest.mark.parametrize("spoil", [False, True])
def test_the_shift_is_recovered(shift: float, spoil: bool) -> None:
    """A parabola's least is exact; diverged runs far from it change nothing."""
    found = summary(synthetic(shift, spoil=spoil), "neural-tangent")
    assert found.shift is not None
    assert found.shift.value == pytest.approx(shift, abs=1e-9)
    assert found.verdict == ("does not hold" if abs(shift) > 0.5 else "holds")
    first = found.optima[0]
    assert math.log2(first.lr) == pytest.approx(0.1)  # seeds lie at 0, 0.1, 0.2
    assert first.low < first.lr < first.high
    assert found.chart().to_dict()


def test_an_optimum_at_the_edge_is_unclear() -> None:
    found = summary(synthetic(-4.0), "standard")
    assert found.optima[-1].at_edge
    assert found.verdict == "unclear"


def test_a_width_at_which_every_run_diverged_has_no_optimum() -> None:
    frame = synthetic(0.0).with_columns(
        loss=pl.when(pl.col("width") == 128).then(math.inf).otherwise(pl.col("loss"))
    )
    found = summary(frame, "standard")
    assert found.diverged == (128,)
    assert found.shift is None
    assert found.verdict == "unclear"
    assert [each["lr"] is None for each in as_json(found)["optima"]] == [False, True, False]


def test_the_vertex_of_a_parabola_on_an_uneven_grid() -> None:
    x = [0.0, 1.0, 3.0]
    assert parabola_vertex(x, [2 * (a - 1.3) ** 2 + 5 for a in x]) == pytest.approx(1.3)


def tiny_words(width: int) -> torch.nn.Module:
    return build(LanguageConfig(n=width, H=2, encoders=1, T=16, n_vocab=280, head_tied=False))


def test_a_sweep_learns(tmp_path: pytest.TempPathFactory) -> None:
    """A middle rate beats hardly any learning; the same call gives the same numbers."""
    path = tmp_path / "text.txt"  # pyright: ignore[reportOperatorIssue]  # a Path
    path.write_text("\n".join("the cat sat on the mat and the dog did not" for _ in range(400)))

    def sweep() -> pl.DataFrame:
        found = transfer(
            tiny_words, [16, 32], [1e-4, 1.0, 2.0], seeds=1, steps=25, batch=4, text=str(path)
        )
        return found.frame

    frame = sweep()
    losses = {(row["width"], row["lr"]): row["loss"] for row in frame.to_dicts()}
    for width in (16, 32):
        assert losses[width, 1.0] < losses[width, 1e-4] - 1.0
    assert frame.equals(sweep())


def test_a_make_that_no_other_process_can_import_is_refused(
    tmp_path: pytest.TempPathFactory,
) -> None:
    path = tmp_path / "text.txt"  # pyright: ignore[reportOperatorIssue]  # a Path
    path.write_text("\n".join("one two three four five six seven" for _ in range(300)))
    with pytest.raises(ConfigError, match="no other process"):
        transfer(lambda w: tiny_words(w), [16], [0.1, 1.0, 2.0], text=str(path), processes=2)


def test_digits_fit_any_model_of_pixels() -> None:
    model = build(VisionConfig(n=16, H=2, encoders=1, image_size=16, patch=4, channels=3, n_out=10))
    images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    batch = next(batches(task(model), (images, labels), 4, seed=0))
    assert batch["inputs"].shape == (4, 3, 16, 16)
    assert torch.isfinite(task(model).loss(model, batch))
    assert torch.equal(fitted(images, (1, 8, 8)), images)


def test_bad_input_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="at least 3 positive rates"):
        transfer(tiny_words, [16], [1.0, 2.0])
    with pytest.raises(ConfigError, match="no seeds"):
        transfer(tiny_words, [16], [0.5, 1.0, 2.0], seeds=0)
    with pytest.raises(ConfigError, match="at least 260"):
        text_material(["a b"], ["a"], 100)
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingPackageError, match="ray"):
        transfer(tiny_words, [16], [0.1, 1.0, 2.0], engine="ray")
