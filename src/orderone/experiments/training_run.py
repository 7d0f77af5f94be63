"""A configuration carried out: models, plan and data brought to the training loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orderone.core.errors import ConfigError, ModelError
from orderone.core.run import RunFolder, new_run_path
from orderone.data.batches import Batch, PackedStream, SentenceBatches
from orderone.data.bpe import BytePairs
from orderone.data.corpora import corpus
from orderone.data.tokenizer import Tokenizer
from orderone.data.vocabulary import Vocabulary
from orderone.experiments.run_config import DataConfig, RunConfig, model_source, words_of
from orderone.scaling.adapters import Source
from orderone.scaling.plan import plan
from orderone.training.config import differences
from orderone.training.course import Attach, Outcome
from orderone.training.distributed import Ranks, checkpoint_activations, distribute, launched
from orderone.training.losses import mean_loss, next_word_loss, next_word_loss_of_transformers
from orderone.training.optimizers import scaling_kind
from orderone.training.resume import clear_unborn, refuse_other
from orderone.training.rollback import train

Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that has ended."""

    run: RunFolder
    outcome: Outcome
    leads: bool
    """Whether this process is the one that speaks of it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """A corpus, tokenised."""

    tokenizer: Tokenizer
    training: Iterable[Batch]
    validation: list[Batch]


def train_run(
    config: RunConfig,
    *,
    to: Path | None = None,
    resumes: bool = False,
    attach: Attach | None = None,
    quiet: bool = True,
) -> Ended:
    """Carries ``config`` out in the folder ``to``; with ``resumes``, goes on where it was left."""
    with launched(config.parallel, timeout=config.timeout) as ranks:
        _seed(config.seed, ranks)
        text = _text(config, ranks)
        model, groups, loss = _model(config, text.tokenizer, ranks)
        run, goes_on = _folder(config, to, resumes, ranks)
        if ranks.leads:
            _save_tokenizer(text.tokenizer, run.path)
        outcome = train(
            model,
            groups,
            text.training,  # pyright: ignore[reportArgumentType]  # Epochs, of two kinds
            loss=loss,
            spikes=config.spikes,
            config=config,
            attach=attach,
            evaluate=lambda: mean_loss(
                model, text.validation, loss=loss, precision=config.precision, ranks=ranks
            ),
            run=run,
            resumes=goes_on,
            ranks=ranks,
            quiet=quiet,
        )
        if ranks.leads:
            run.finish("done", asdict(outcome))
        return Ended(run=run, outcome=outcome, leads=ranks.leads)


def _seed(seed: int, ranks: Ranks) -> None:
    """Generators that ranks do not share: dropout must differ between them."""
    random.seed(seed + ranks.rank)
    np.random.seed((seed + ranks.rank) % 2**32)
    torch.manual_seed(seed + ranks.rank)


def _text(config: RunConfig, ranks: Ranks) -> Text:
    data = config.data
    found = corpus(data.corpus, folder=data.folder, limit=data.limit)
    tokenizer = _tokenizer(data, found.train)
    make = _packed if data.batches == "packed" else _sentences
    held_out = make(tokenizer, found.validation, config, ranks, shuffle=False)
    count = max(1, config.evaluation_batches // ranks.world)
    return Text(
        tokenizer=tokenizer,
        training=make(tokenizer, found.train, config, ranks, shuffle=True),
        validation=list(islice(held_out, count)),
    )


def _tokenizer(data: DataConfig, lines: list[str]) -> Tokenizer:
    if data.tokenizer == "words":
        return Vocabulary.build(lines, size=data.vocabulary)
    return BytePairs.train(lines, size=data.vocabulary)


def _packed(
    tokenizer: Tokenizer, lines: list[str], config: RunConfig, ranks: Ranks, *, shuffle: bool
) -> PackedStream:
    return PackedStream(
        tokenizer.encode_many(lines).tokens,
        T=config.data.T,
        batch_size=config.part,
        seed=config.seed,
        shuffle=shuffle,
        epochs=None if shuffle else 1,
        rank=ranks.rank,
        world=ranks.world,
    )


def _sentences(
    tokenizer: Tokenizer, lines: list[str], config: RunConfig, ranks: Ranks, *, shuffle: bool
) -> SentenceBatches:
    return SentenceBatches(
        tokenizer.encode_many(lines),
        pad=tokenizer.pad,
        T=config.data.T,
        batch_size=config.part,
        seed=config.seed,
        shuffle=shuffle,
        epochs=None if shuffle else 1,
        rank=ranks.rank,
        world=ranks.world,
    )


def _model(
    config: RunConfig, tokenizer: Tokenizer, ranks: Ranks
) -> tuple[nn.Module, list[dict[str, Any]], Loss]:
    """The model on its ranks, its groups, and its loss."""
    chosen = model_source(config.model, words_of(tokenizer, config.data))
    model = chosen.build(device="cpu", seed=config.seed)
    _require_words(model, chosen, len(tokenizer))
    asked = config.plan
    made = plan(
        model,
        asked.strategy,
        s=asked.s,
        constants=asked.constants,
        base_width=asked.base_width,
        make=None if asked.base_width is None else chosen.build,
    )
    made.initialize_(seed=config.seed)
    model.to(ranks.device)
    if config.activation_checkpointing:
        checkpoint_activations(model)
    placed = distribute(model, config.parallel, ranks)
    if config.compile:
        placed.compile()
    optimizer = config.optimizer
    groups = made.param_groups(
        optimizer.lr,
        optimizer.weight_decay,
        optimizer=scaling_kind(optimizer.name),
        model=placed,
    )
    transformers = chosen.kind == "transformers"
    base = next_word_loss_of_transformers if transformers else next_word_loss
    return placed, groups, lambda network, batch: base(network, batch.to(ranks.device))


def _require_words(model: nn.Module, chosen: Source, words: int) -> None:
    if chosen.kind == "timm":
        raise ConfigError(
            f"model '{chosen.name}', of images",
            expected="a causal language model, which learns the next word of a corpus",
            do="choose another model",
        )
    if chosen.kind != "transformers":
        return
    if not type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        raise ModelError(
            f"a {type(model).__name__}",
            expected="a causal language model, such as LlamaForCausalLM",
            do="name one under 'architectures' in its config.json",
        )
    settings: Any = model.config
    if settings.vocab_size < words:
        raise ConfigError(
            f"vocab_size = {settings.vocab_size} for a text of {words} words",
            expected="a row for every word",
            do="enlarge the model's vocabulary, or lower data.vocabulary",
        )


def _folder(
    config: RunConfig, to: Path | None, resumes: bool, ranks: Ranks
) -> tuple[RunFolder, bool]:
    """The run's folder, made by the leading rank alone; and whether something is resumed."""
    settings = config.model_dump(mode="json")
    path, goes_on = "", False
    if ranks.leads:
        run, goes_on = _opened(settings, to, resumes, config.seed)
        path = str(run.path)
    return RunFolder(Path(ranks.told_text(path))), bool(ranks.told(int(goes_on)))


def _opened(
    settings: dict[str, Any], to: Path | None, resumes: bool, seed: int
) -> tuple[RunFolder, bool]:
    if resumes:
        to = to or _left(settings)
        if (to / "run.json").exists():
            run = RunFolder.open(to)
            if run.command != "train":
                raise ConfigError(
                    f"'{to}', a run of orderone {run.command}",
                    expected="a run of orderone train",
                    do="name another folder",
                )
            refuse_other(run.config, settings)
            return run, True
        clear_unborn(to)
    path = to or new_run_path(name="train")
    return RunFolder.create(path, command="train", config=settings, seed=seed), False


def _left(settings: dict[str, Any]) -> Path:
    """The newest run of this configuration under ``runs/``."""
    for path in sorted(Path("runs").glob("train-*"), reverse=True):
        if (path / "run.json").exists():
            run = RunFolder.open(path)
            if run.command == "train" and not differences(run.config, settings):
                return path
    raise ConfigError(
        "--resume, and no run of this configuration under 'runs'",
        expected="a run that was started with it",
        do="name its folder with --to",
    )


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    if isinstance(tokenizer, BytePairs):
        tokenizer.save(folder / "tokenizer")
    elif isinstance(tokenizer, Vocabulary):
        tokenizer.save(folder / "vocabulary.json")
