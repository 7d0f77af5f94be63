"""One of some gloo processes that train together; started by test_distributed.py under torchrun's
environment as ``python two_ranks.py JOB FOLDER``. Every process prints nothing and leaves files.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
from small import config, small, stream

from orderone.core.errors import OrderoneError, RunError
from orderone.core.run import RunFolder
from orderone.training import checkpoint
from orderone.training.course import train
from orderone.training.distributed import Ranks, distribute, launched
from orderone.training.losses import mean_loss, next_word_loss
from orderone.training.resume import clear_unborn

STEPS = 8


def learned(
    path: Path, parallel: str, ranks: Ranks, *, steps: int = STEPS, stop: int | None = None
) -> None:
    """A run in ``path``, resumed where one is there; stopped after ``stop`` as if by a kill."""
    chosen = config(
        steps=steps, batch_size=8, micro_batch=2, checkpoint_every=4, parallel=parallel, timeout=60
    )
    torch.manual_seed(0)
    model = distribute(small(dropout=0.0), chosen.parallel, ranks)
    held_out = list(stream(shuffle=False, ranks=ranks))[:2]  # 4 in all
    goes_on = (path / "run.json").exists()
    ranks.wait()
    if ranks.leads and not goes_on:
        clear_unborn(path)
        RunFolder.create(path, command="train", config={}, seed=0)
    ranks.wait()

    def stopped(event: Any) -> None:
        if event.step == stop:
            raise KeyboardInterrupt

    try:
        train(
            model,
            [{"params": list(model.parameters())}],
            stream(batch=2, ranks=ranks),
            loss=next_word_loss,
            config=chosen,
            evaluate=lambda: mean_loss(model, held_out, ranks=ranks),
            observers=[stopped],
            run=RunFolder(path),
            resumes=goes_on,
            ranks=ranks,
        )
    except KeyboardInterrupt:
        ranks.wait()


def main(job: str, folder: Path) -> int:
    torch.set_num_threads(1)
    if job == "ends":
        ends()
        return 0
    try:
        with launched("fsdp", timeout=60) as ranks:
            for each in job.split(","):
                kind, _, what = each.partition("-")
                if what == "dies":
                    dies(kind, ranks)
                if kind == "read":
                    reads(Path(what), folder, ranks)
                    continue
                if what == "full":
                    fills(folder, kind, ranks)
                    continue
                path, _, stop = what.partition(":")
                learned(folder / path, kind, ranks, stop=int(stop) if stop else None)
    except OrderoneError as error:
        sys.stderr.write(str(error))
        return 2
    return 0


def ends(rounds: int = 6) -> None:
    """Models that outlive their ranks, while no thread ever takes Python's lock from another."""
    sys.setswitchinterval(1000)
    port = int(os.environ["MASTER_PORT"])
    for k in range(rounds):
        os.environ["MASTER_PORT"] = str(port + k)
        with launched("ddp", timeout=60) as ranks:
            model = distribute(small(), "ddp", ranks)
            model(torch.zeros(2, 3, dtype=torch.int64)).sum().backward()
            for _ in range(3):
                ranks.any(False)
            ranks.wait()
        del model
    sys.setswitchinterval(0.005)


def dies(kind: str, ranks: Ranks) -> None:
    """Rank 1 is killed after its third step."""

    def kill(event: Any) -> None:
        if event.step == 3 and ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    model = distribute(small(dropout=0.0), "ddp" if kind == "ddp" else "fsdp", ranks)
    train(
        model,
        [{"params": list(model.parameters())}],
        stream(batch=2, ranks=ranks),
        loss=next_word_loss,
        config=config(batch_size=8, micro_batch=2, parallel=kind),
        observers=[kill],
        ranks=ranks,
    )


def fills(folder: Path, kind: str, ranks: Ranks) -> None:
    """Rank 1's disk is full from the start; what each rank says goes to a file of its own.

    A limit on the size of files stands for the full disk.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if ranks.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    said = "nothing"
    try:
        learned(folder / f"{kind}full", kind, ranks)
    except RunError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (folder / f"{kind}full" / f"said{ranks.rank}").write_text(said)
    ranks.wait()


def reads(source: Path, folder: Path, ranks: Ranks) -> None:
    """Sharded weights of other ranks, gathered again from these."""
    model = distribute(small(), "fsdp", ranks)
    checkpoint.load_weights(source, model)
    whole = {name: each.full_tensor() for name, each in model.named_parameters()}
    if ranks.leads:
        save_file(whole, folder / "weights.safetensors")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
