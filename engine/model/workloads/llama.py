"""A Llama of Hugging Face's transformers, from a folder with its configuration and its weights as safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config.errors import InputError
from engine.config.sections import Data
from engine.model.data import Corpus, Tokens, open_corpus
from engine.model.workload import Workload

_PATH = "model.options.path"
#: Text is taken byte by byte.
_BYTES = 256


def workload(path: str, text: str = "", sequence_length: int = 128, seed: int = 0) -> Workload:
    """The model in a folder as ``save_pretrained`` writes it, trained on a text file or folder, or on the text that
    comes with Python. Nothing is downloaded.

    Raises:
        InputError: transformers or safetensors is not installed; the folder is none of a Llama with weights of its own
            in every part; the text cannot be used.
    """
    config, folder = _config(Path(path)), Path(path)
    return Workload(
        name=f"llama ({folder.name})",
        first=lambda: nn.Embedding(config.vocab_size, config.hidden_size),
        blocks=[lambda: Block(config)] * config.num_hidden_layers,
        last=lambda: Head(config),
        batches=Windows(open_corpus(Data(path=text or None, sequence_length=sequence_length), seed)),
        loss=lambda logits, targets: F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()),
        tokens=sequence_length,
        weights=Weights(folder, _files(folder)),
    )


class Block(nn.Module):
    """One decoder layer of transformers, with the table of angles that it is given there."""

    def __init__(self, config: Any) -> None:
        from transformers.models.llama import modeling_llama as llama

        super().__init__()
        self.layer = llama.LlamaDecoderLayer(config, 0)
        self.rotary = llama.LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        """[samples, length, hidden] -> the same; without a mask its attention is causal."""
        places = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        out: Tensor = self.layer(x, position_embeddings=self.rotary(x, position_ids=places))
        return out


class Head(nn.Module):
    """Logits [samples, length, vocabulary]."""

    def __init__(self, config: Any) -> None:
        from transformers.models.llama import modeling_llama as llama

        super().__init__()
        self.norm = llama.LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x))
        return logits


@dataclass(frozen=True)
class Windows:
    """Text, and the bytes that follow."""

    corpus: Corpus

    def training(self, first: int, count: int) -> tuple[Tokens, Tokens]:
        """Tokens and targets, int64 [count, length] each."""
        windows = self.corpus.training(first, count)
        return windows[:, :-1], windows[:, 1:]

    def validation(self, first: int, count: int) -> tuple[Tokens, Tokens]:
        """The same of held-out text."""
        windows = self.corpus.validation(first, count)
        return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True)
class Weights(Mapping[str, Tensor]):
    """Tensors by the engine's names, each read from its file when it is asked for; ``files`` are by transformers'."""

    folder: Path
    files: Mapping[str, str]

    def __getitem__(self, name: str) -> Tensor:
        from safetensors import safe_open

        stored_name = their_name(name)
        with safe_open(self.folder / self.files[stored_name], framework="pt") as opened:
            values: Tensor = opened.get_tensor(stored_name)
        return values.float()

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def their_name(name: str) -> str:
    """What transformers calls a parameter of the engine."""
    named = {"first.weight": "model.embed_tokens.weight", "last.norm.weight": "model.norm.weight"}
    named["last.head.weight"] = "lm_head.weight"
    part, number, suffix = (*name.split(".", 2), "", "")[:3]
    return (
        named.get(name)
        or f"{part.replace('blocks', 'model.layers')}.{number}.{suffix.removeprefix('layer.')}"
    )


def _config(folder: Path) -> Any:
    try:
        import safetensors  # noqa: F401
        from transformers import LlamaConfig
    except ImportError as error:
        remedy = (
            f"needs transformers and safetensors ({error}): pip install 'training-workbench[huggingface]'"
        )
        raise InputError("model.workload", "llama", remedy) from None
    file = folder / "config.json"
    try:
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError) as error:
        raise InputError(
            _PATH, str(folder), f"{file.name} cannot be read ({error}); give a model's folder"
        ) from None
    if kind != "llama":
        raise InputError(_PATH, str(folder), f"is a model of type {kind}; give one of type llama")
    config = LlamaConfig.from_pretrained(folder, local_files_only=True)
    if config.tie_word_embeddings:
        remedy = (
            "ties its head to its embedding, which lie on two stages; save it with tie_word_embeddings=False"
        )
        raise InputError(_PATH, str(folder), remedy)
    if config.vocab_size < _BYTES:
        raise InputError(
            _PATH, str(folder), f"has {config.vocab_size} tokens; text is taken as {_BYTES} bytes"
        )
    config._attn_implementation = "sdpa"  # the one that is causal where no mask is given
    return config


def _files(folder: Path) -> Mapping[str, str]:
    """The file of each tensor."""
    from safetensors import SafetensorError, safe_open

    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        if index.is_file():
            files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return files
        with safe_open(single, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), single.name)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        remedy = f"{single.name} cannot be read ({str(error).splitlines()[0]}); save the model with save_pretrained"
        raise InputError(_PATH, str(folder), remedy) from None
