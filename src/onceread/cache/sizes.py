"""Sizes in words."""

from __future__ import annotations


def binary(size: int) -> str:
    """A number of bytes as people read it: 4096 bytes, 2.0 MiB, 1.5 GiB."""
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if size >= 2**power:
            return f"{size / 2**power:.1f} {unit}"
    return "1 byte" if size == 1 else f"{size} bytes"
