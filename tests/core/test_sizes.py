"""Sizes of memory."""

import pytest

from orderone.core.errors import ConfigError
from orderone.core.sizes import memory_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 2**29),
        ("1g", 2**30),
        ("2 GB", 2**31),
        (".5K", 512),
        (2**26, 2**26),
        ("9" * 400 + "G", 2**62),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert memory_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "lots", "-5G", "1.2.3M", "nan", "1e3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match=r"memory = .*expected a size; for example"):
        memory_bytes(text)


def test_less_than_the_least() -> None:
    with pytest.raises(ConfigError, match="a size from 16MiB on"):
        memory_bytes("1MiB", least=16 << 20)
