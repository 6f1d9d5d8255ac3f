"""Compressors by the names that configurations use."""

from __future__ import annotations

from engine.channel import Group
from engine.compression.cast import Fp16
from engine.compression.compressor import Compressor, Plain
from engine.compression.sparsify import TopK
from engine.config import Compression


def build(settings: Compression, group: Group) -> Compressor:
    """The compressor a configuration asks for."""
    if settings.method == "fp16":
        return Fp16(group)
    if settings.method == "topk":
        return TopK(group, settings.ratio, settings.error_feedback)
    return Plain(group)
