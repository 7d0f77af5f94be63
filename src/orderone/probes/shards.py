"""The part of a sharded tensor that this rank holds, and sums over all ranks.

FSDP2 and tensor parallelism hand out DTensors, which know their own mesh: nothing here needs to
know of process groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from jaxtyping import Float64
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate


def local(x: Tensor, like: Tensor | None = None) -> Tensor:
    """This rank's elements of ``x``, laid out as ``like`` is."""
    if not isinstance(x, DTensor):
        return x
    placements = (like if isinstance(like, DTensor) else x).placements
    # A partial sum has no norm of its own before it is summed.
    whole = [Replicate() if each.is_partial() else each for each in placements]
    same = list(x.placements) == whole
    return (x if same else x.redistribute(x.device_mesh, whole)).to_local().detach()


def over_ranks(
    sums: Float64[Tensor, "q tensors"], parameters: Sequence[Tensor]
) -> Float64[Tensor, "q tensors"]:
    """Sums over the ranks that hold different elements: one collective for each layout."""
    columns: dict[tuple[object, ...], list[int]] = {}
    for index, parameter in enumerate(parameters):
        if isinstance(parameter, DTensor):
            layout = (parameter.device_mesh, *(p.is_shard() for p in parameter.placements))
            columns.setdefault(layout, []).append(index)
    for (_, *shards), indices in columns.items():
        if any(shards):
            parameter = parameters[indices[0]]
            assert isinstance(parameter, DTensor)
            placements = [Partial() if shard else Replicate() for shard in shards]
            part = DTensor.from_local(
                sums[:, indices].to(parameter.to_local().device),
                parameter.device_mesh,
                placements,
                run_check=False,
            )
            sums[:, indices] = part.full_tensor().to(sums.device)
    return sums


def rank_of(model: nn.Module, parameters: Iterable[Tensor]) -> int:
    """This process's rank: from the mesh of sharded parameters, from DDP's own group, from
    torchrun's environment; 0 in a process alone."""
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            return parameter.device_mesh.get_rank()
    if isinstance(model, nn.parallel.DistributedDataParallel) and model.process_group is not None:
        return model.process_group.rank()
    return int(os.environ.get("RANK", "0"))
