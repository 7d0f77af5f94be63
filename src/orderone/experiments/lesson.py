"""What a run learns from: text to be continued or restored, or images to be told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from orderone.core.errors import ConfigError
from orderone.data.augmentation import augmentation
from orderone.data.batches import PackedStream, SentenceBatches
from orderone.data.bpe import BytePairs
from orderone.data.corpora import corpus
from orderone.data.denoising import DenoisingBatches
from orderone.data.images import ImageBatches, images
from orderone.data.tokenizer import Tokenizer
from orderone.data.vocabulary import Vocabulary
from orderone.experiments.demands import Demands, Pictures, Spans, Words
from orderone.experiments.run_config import DataConfig, ImagesConfig, RunConfig
from orderone.training.course import Batches
from orderone.training.distributed import Ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """Batches without end to learn from, a few that are held out, and what both demand."""

    training: Batches
    validation: Callable[[], Iterable[Any]]
    """The same ones at every call."""
    demands: Demands
    tokenizer: Tokenizer | None = None

    def save(self, folder: Path) -> None:
        """The tokenizer, without which a model of words means nothing."""
        if isinstance(self.tokenizer, BytePairs):
            self.tokenizer.save(folder / "tokenizer")
        elif isinstance(self.tokenizer, Vocabulary):
            self.tokenizer.save(folder / "vocabulary.json")


def lesson_of(config: RunConfig, ranks: Ranks) -> Lesson:
    """The rank's share of the data that a configuration names."""
    if config.images is not None:
        return _images(config.images, config, ranks)
    return _text(config.data, config, ranks)


def _images(chosen: ImagesConfig, config: RunConfig, ranks: Ranks) -> Lesson:
    found = images(chosen.name, size=chosen.size, folder=chosen.folder)
    channels, height, width = found.shape
    if height != width:
        raise ConfigError(
            f"images of {height}×{width} in '{chosen.name}'",
            expected="square ones",
            do="set images.size",
        )
    share: dict[str, Any] = {"batch_size": config.part, "rank": ranks.rank, "world": ranks.world}
    recipe = augmentation(chosen.augmentation)
    count = max(1, config.evaluation_batches // ranks.world)

    def validation() -> Iterable[Any]:
        held_out = ImageBatches(found, split=chosen.held_out, epochs=1, shuffle=False, **share)
        return islice(held_out, count)

    return Lesson(
        training=ImageBatches(found, augmentation=recipe, seed=config.seed, **share),
        validation=validation,
        demands=Pictures(channels=channels, size=height, classes=len(found.classes)),
    )


def _text(data: DataConfig, config: RunConfig, ranks: Ranks) -> Lesson:
    found = corpus(data.corpus, folder=data.folder, limit=data.limit)
    tokenizer = _tokenizer(data, found.train)
    training = _batches(tokenizer, found.train, config, ranks, shuffle=True)
    held_out = _batches(tokenizer, found.validation, config, ranks, shuffle=False)
    kept = list(islice(held_out, max(1, config.evaluation_batches // ranks.world)))
    room = {"vocabulary": len(tokenizer), "T": data.T}
    return Lesson(
        training=training,
        validation=lambda: kept,
        demands=Spans(**room, pad=tokenizer.pad) if data.batches == "spans" else Words(**room),
        tokenizer=tokenizer,
    )


def _tokenizer(data: DataConfig, lines: list[str]) -> Tokenizer:
    if data.tokenizer == "byte-pairs":
        if data.tokenizer_folder is not None:
            return BytePairs.load(data.tokenizer_folder)
        return BytePairs.train(lines, size=data.vocabulary)
    if data.batches == "spans" or data.tokenizer_folder is not None:
        what = "batches = 'spans'" if data.batches == "spans" else "tokenizer_folder"
        raise ConfigError(
            f"data.{what} with data.tokenizer = 'words'",
            expected="byte pairs, which have a [MASK]",
            do="set data.tokenizer = 'byte-pairs'",
        )
    return Vocabulary.build(lines, size=data.vocabulary)


def _batches(
    tokenizer: Tokenizer, lines: list[str], config: RunConfig, ranks: Ranks, *, shuffle: bool
) -> PackedStream | SentenceBatches | DenoisingBatches:
    data = config.data
    common: dict[str, Any] = {
        "T": data.T,
        "batch_size": config.part,
        "seed": config.seed,
        "shuffle": shuffle,
        "epochs": None if shuffle else 1,
        "rank": ranks.rank,
        "world": ranks.world,
    }
    if data.batches == "packed":
        return PackedStream(tokenizer.encode_many(lines).tokens, **common)
    if data.batches == "sentences":
        return SentenceBatches(tokenizer.encode_many(lines), pad=tokenizer.pad, **common)
    assert isinstance(tokenizer, BytePairs)
    # White space of their own: nothing else parts the sentences once they are permuted.
    sentences = tokenizer.encode_many((f"{line}\n" for line in lines), end=False)
    return DenoisingBatches(sentences, special=tokenizer.special, **common)
