"""Batches of images from a seed, with a place in the epoch that can be saved."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orderone.core.errors import ConfigError, RunError
from orderone.data.augmentation import AUGMENTATIONS, Augmentation, augmented
from orderone.data.image_set import ImageSet, ImageSplit

SHUFFLE, AUGMENT = 0, 1  # streams of random numbers under one seed


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageBatch:
    """Normalised images, and class numbers or (with smoothing or mixing) probabilities."""

    images: Float[Tensor, "b c h w"]
    targets: Int[Tensor, "b"] | Float[Tensor, "b k"]

    def to(self, device: torch.device | str) -> "ImageBatch":
        """The same batch on ``device``."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in vars(self).items()}
        return ImageBatch(**moved)


class ImageBatches:
    """An iterator over batches whose every number follows from (seed, step, rank).

    ``batch_size`` is that of one rank. Step t's world·batch_size images are the same however many
    ranks share them; rank r takes every world-th of them from the r-th on. ``epochs`` None goes on
    for ever. A shuffled pass leaves out the images that do not fill a batch (others come next
    time); a pass in order ends with what is left, and then ranks may get unequal or empty batches.
    """

    def __init__(
        self,
        source: ImageSet,
        *,
        batch_size: int,
        split: Literal["train", "validation", "test"] = "train",
        augmentation: Augmentation = AUGMENTATIONS["none"],
        seed: int = 0,
        epochs: int | None = None,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._source = source
        self._split: ImageSplit = getattr(source, split)
        self._augmentation = augmentation
        self._seed, self._epochs, self._shuffle = seed, epochs, shuffle
        self._rank, self._world = rank, world
        self._total = batch_size * world
        self._step = 0
        self._order: tuple[int, np.ndarray[Any, np.dtype[np.int64]]] | None = None
        self._check(batch_size)

    def _check(self, batch_size: int) -> None:
        count = len(self._split)
        bad = None
        if batch_size < 1 or not 0 <= self._rank < self._world:
            bad = f"batch_size {batch_size}, rank {self._rank} of {self._world}"
        elif self._seed < 0 or (self._epochs is not None and self._epochs < 0):
            bad = f"seed {self._seed}, epochs {self._epochs}"
        if bad is not None:
            raise ConfigError(
                bad,
                expected="positive sizes, 0 <= rank < world, a seed and epochs from 0 on",
                do="change the setting",
            )
        if self.steps_per_epoch == 0:
            raise ConfigError(
                f"{self._world} × {batch_size} images a step and {count} in the set",
                expected="at least one whole batch in an epoch",
                do="make the batch smaller",
            )

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass."""
        count = len(self._split)
        return count // self._total if self._shuffle else -(-count // self._total)

    def __iter__(self) -> "ImageBatches":
        return self

    def __next__(self) -> ImageBatch:
        epoch, place = divmod(self._step, self.steps_per_epoch)
        if self._epochs is not None and epoch >= self._epochs:
            raise StopIteration
        batch = self._batch(epoch, place)
        self._step += 1  # only now: a batch that failed to load is asked for again
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The place to go on from, and what must be the same there."""
        return {"step": self._step, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the step after the last one that was handed out when ``state`` was taken."""
        mine = self._identity()
        differing = [key for key, value in mine.items() if state.get(key) != value]
        if differing:
            found = ", ".join(f"{key} {state.get(key)} (here {mine[key]})" for key in differing)
            raise RunError(
                f"a saved place in other data: {found}",
                expected="the same set, seed, images a step and augmentation",
                do="resume with the settings of the first run",
            )
        step = state.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise RunError(
                f"a saved step of {step!r}", expected="an integer from 0 on", do="restart"
            )
        self._step = step

    def _identity(self) -> dict[str, Any]:
        return {
            "name": self._source.name,
            "images": len(self._split),
            "images_a_step": self._total,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "augmentation": asdict(self._augmentation),
        }

    def _batch(self, epoch: int, place: int) -> ImageBatch:
        start = place * self._total
        chosen = self._epoch_order(epoch)[start : start + self._total][self._rank :: self._world]
        indices = torch.from_numpy(chosen.copy())
        images, targets = augmented(
            self._split.take(indices),
            self._split.labels[indices],
            recipe=self._augmentation,
            classes=len(self._source.classes),
            mean=self._source.mean,
            std=self._source.std,
            rng=np.random.default_rng([self._seed, AUGMENT, self._step, self._rank]),
        )
        return ImageBatch(images=images, targets=targets)

    def _epoch_order(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if self._order is None or self._order[0] != epoch:
            order = np.arange(len(self._split))
            if self._shuffle:
                order = np.random.default_rng([self._seed, SHUFFLE, epoch]).permutation(order)
            self._order = (epoch, order)
        return self._order[1]
