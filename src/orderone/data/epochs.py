"""Batches of epoch after epoch, with a state of two counters that restores them bit-exactly."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from orderone.core.errors import ConfigError, DataError

B = TypeVar("B")


class Epochs(ABC, Generic[B]):
    """An iterator over the batches that ``rank`` of ``world`` gets.

    Everything random in a batch is a function of (seed, epoch, number of the batch), so the
    position is two integers and no generator is stored. The position counts batches over all ranks:
    a run may be resumed on another number of them.

    ``epochs`` None runs for ever, and all ranks together get the batches that one would get: a step
    may take its last ones from the next epoch. Else, where the last step of an epoch lacks a batch
    for some rank, the epoch ends before it, so that no rank waits for another. After the last epoch
    a new ``for`` loop starts again from the first, as a validation set wants; a restored position
    that lies at the end stays there once.
    """

    def __init__(self, *, seed: int, epochs: int | None, rank: int, world: int) -> None:
        if seed < 0 or not 0 <= rank < world or (epochs is not None and epochs < 1):
            raise ConfigError(
                f"seed={seed}, rank={rank}, world={world}, epochs={epochs}",
                expected="seed ≥ 0, 0 ≤ rank < world, epochs ≥ 1 or None",
                do="change them",
            )
        self.seed, self.epochs, self.rank, self.world = seed, epochs, rank, world
        self.epoch = 0
        self._taken = 0
        self._ended = False
        self._planned: tuple[int, int] | None = None  # epoch, its number of batches

    @abstractmethod
    def _plan(self, epoch: int) -> int:
        """Orders the batches of ``epoch``; how many there are over all ranks."""

    @abstractmethod
    def _batch(self, index: int) -> B:
        """Batch ``index`` of the epoch last planned."""

    @abstractmethod
    def _identity(self) -> dict[str, int]:
        """All that a saved position presumes beyond the seed."""

    @property
    def steps(self) -> int:
        """Batches that each rank gets in the present epoch."""
        return self._count() // self.world

    def __iter__(self) -> Iterator[B]:
        if self._ended:
            self.epoch, self._taken, self._ended = 0, 0, False
        return self

    def __next__(self) -> B:
        if self.epochs is None:
            return self._flowing()
        while self.epoch < self.epochs:
            if self._taken + self.world <= self._count():
                index = self._taken + self.rank
                self._taken += self.world
                return self._batch(index)
            self.epoch, self._taken = self.epoch + 1, 0
        self._ended = True
        raise StopIteration

    def _flowing(self) -> B:
        """This rank's next batch, of the next epoch where this one has no more for it."""
        index, self._taken = self._taken + self.rank, self._taken + self.world
        while index >= (count := self._count()):
            self.epoch, self._taken, index = self.epoch + 1, self._taken - count, index - count
        return self._batch(index)

    def _count(self) -> int:
        if self._planned is None or self._planned[0] != self.epoch:
            count = self._plan(self.epoch)
            if count < self.world:
                raise DataError(
                    f"{count} batches an epoch for {self.world} ranks",
                    expected="at least one batch for each",
                    do="use more text, smaller batches or fewer ranks",
                )
            self._planned = (self.epoch, count)
        return self._planned[1]

    def rng(self, *key: int) -> np.random.Generator:
        """The generator that belongs to (seed, epoch, key) and to nothing else."""
        return np.random.default_rng([self.seed, self.epoch, *key])

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it presumes: small, and plain JSON."""
        presumed = {"seed": self.seed, **self._identity()}
        return {"epoch": self.epoch, "taken": self._taken, "presumed": presumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from ``state``; refused where it was saved with other data or settings."""
        presumed = {"seed": self.seed, **self._identity()}
        found = state.get("presumed")
        if not isinstance(found, Mapping):
            raise _no_state("nothing presumed")
        for name, value in presumed.items():
            if found.get(name) != value:
                raise ConfigError(
                    f"a position saved with {name}={found.get(name)}",
                    expected=f"{name}={value}, as here",
                    do="resume with the same data and settings, or start anew",
                )
        epoch, taken = state.get("epoch"), state.get("taken")
        if not isinstance(epoch, int) or not isinstance(taken, int) or min(epoch, taken) < 0:
            raise _no_state(f"epoch={epoch}, taken={taken}")
        self.epoch, self._taken, self._ended = epoch, taken, False


def _no_state(why: str) -> DataError:
    return DataError(
        f"no position of batches ({why})", expected="what state_dict returned", do="start anew"
    )
