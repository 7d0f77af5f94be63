"""Random generators named after what they are for."""

import hashlib

import torch


def generator_for(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator fixed by ``(seed, name)`` alone, whatever else was drawn before or beside it.

    Adding a parameter or a worker thus changes no other's numbers, which ``torch.manual_seed`` and
    one shared stream cannot promise. torch's CPU engine keeps only the lowest 32 bits of a seed, so
    among k names two share a stream with probability k²/2³³.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(device=device)
    # The low word comes first: it is all that the CPU engine takes in.
    return generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
