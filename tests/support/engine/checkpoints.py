"""Checkpoints in tests: made of files alone, read as a whole, and the state of a layout on real ranks."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from engine.checkpoint import checkpoint_folder
from engine.checkpoint.resume import identity
from engine.config.run_config import RunConfig


def whole(checkpoint: Path, scratch: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, put together by torch's own offline tool."""
    dcp_to_torch_save(checkpoint, scratch)
    found: dict[str, Tensor] = torch.load(scratch)
    return found


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """The same names with the same bits."""
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def made_up(run: Path, config: RunConfig, step: int, **files: str) -> Path:
    """A checkpoint folder whose files hold only text."""
    folder = run / checkpoint_folder.CHECKPOINTS / checkpoint_folder.name_of(step)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    sizes = {name: [len(text), zlib.crc32(text.encode())] for name, text in files.items()}
    manifest = checkpoint_folder.Manifest(step, identity(config.model), config.flat(), sizes)
    (folder / checkpoint_folder.MANIFEST).write_text(json.dumps(asdict(manifest)))
    (run / checkpoint_folder.CHECKPOINTS / checkpoint_folder.LAST).write_text(folder.name + "\n")
    return folder
