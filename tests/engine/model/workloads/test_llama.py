"""The seam to transformers, as far as it needs none of it; losses are compared in tests/engine/runs/test_llama.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine.config.errors import InputError
from engine.model.workloads.llama import their_name, workload


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("first.weight", "model.embed_tokens.weight"),
        ("blocks.12.layer.self_attn.q_proj.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("last.norm.weight", "model.norm.weight"),
        ("last.head.weight", "lm_head.weight"),
    ],
)
def test_names(ours: str, theirs: str) -> None:
    assert their_name(ours) == theirs


@pytest.mark.skipif(importlib.util.find_spec("transformers") is not None, reason="transformers is installed")
def test_without_transformers_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pip install 'training-workbench\[huggingface\]'"):
        workload(str(tmp_path))
