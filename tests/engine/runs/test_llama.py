"""A Llama whose weights transformers made has transformers' own losses, in one process and cut.

It needs transformers and safetensors: ``make test-slow`` runs it in the environment of Hugging Face's trainers, which
``python -m tests.support.trainers.environments hf`` makes.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config.errors import InputError
from engine.config.sections import Data
from engine.dry_run.inspection import inspect_workload
from engine.model.data import open_corpus
from engine.session import Session
from tests.support.runs import execute, small

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("safetensors")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LOSS_TOLERANCE, STEPS = 1e-5, 3
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
}
SIZES |= {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "rope_theta": 5000.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with weights that its own library made from a seed."""
    torch.manual_seed(11)
    place = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(
        place, max_shard_size="60KB"
    )
    assert (place / "model.safetensors.index.json").exists(), "several files"
    return place


def wanted(folder: Path, **more: Any) -> dict[str, Any]:
    options = {"path": str(folder), "sequence_length": 32}
    return {"model__workload": "llama", "model__options": options, "train__steps": STEPS, **more}


def their_losses(folder: Path) -> list[float]:
    """transformers' model, its own loss of labels, torch's AdamW and clipping."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train()
    matrices = [one for one in model.parameters() if one.ndim > 1]
    vectors = [one for one in model.parameters() if one.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer, losses = torch.optim.AdamW(groups, lr=1e-3), list[float]()
    corpus = open_corpus(Data(sequence_length=32), 0)
    for step in range(STEPS):
        windows = torch.from_numpy(corpus.training(8 * step, 8))
        loss: Tensor = model(input_ids=windows, labels=windows).loss  # it shifts labels by one
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"parallel__dp": 2, "parallel__zero_stage": 3, "memory__recompute": "full"},
        {"parallel__pp": 2, "parallel__dp": 2},
    ],
    ids=str,
)
def test_losses_are_those_of_transformers(session: Session, folder: Path, layout: dict[str, Any]) -> None:
    outcome, summary = execute(session, small(**wanted(folder, **layout)))
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(their_losses(folder), abs=LOSS_TOLERANCE, rel=0)
    assert summary.parameters == sum(one.numel() for one in _model(folder).parameters())
    assert summary.tokens_per_step == 8 * 32


def _model(folder: Path) -> torch.nn.Module:
    model: torch.nn.Module = transformers.LlamaForCausalLM.from_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"model_type": "gpt2"}, "is a model of type gpt2; give one of type llama"),
        ({"hidden_size": 64}, "weights of first.weight are [300, 48], and the model's are [300, 64]"),
        ({"tie_word_embeddings": True}, "ties its head to its embedding"),
        ({"vocab_size": 100}, "has 100 tokens; text is taken as 256 bytes"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    folder: Path, tmp_path: Path, change: dict[str, Any], remedy: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | change
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InputError) as told:
        inspect_workload(small(**wanted(tmp_path)))
    assert remedy in told.value.remedy and "\n" not in str(told.value)


def test_a_folder_without_a_model(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match="give a model's folder"):
        inspect_workload(small(**wanted(tmp_path)))
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(InputError, match="save the model with save_pretrained"):
        inspect_workload(small(**wanted(tmp_path)))
