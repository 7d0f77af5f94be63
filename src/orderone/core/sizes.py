"""Sizes of memory as people write them."""

import re

from orderone.core.errors import ConfigError

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)


def memory_bytes(text: int | str, *, least: int = 1) -> int:
    """ "512MiB" in bytes; K, M, G and T are powers of 1024."""
    match = _SIZE.fullmatch(str(text).strip())
    size = 0
    if match is not None:
        size = int(min(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "), 2**62))
    if size < least:
        floor = f" from {least >> 20}MiB on" if least > 1 else ""
        raise ConfigError(f"memory = {text!r}", expected=f"a size{floor}", do="for example 512MiB")
    return size
