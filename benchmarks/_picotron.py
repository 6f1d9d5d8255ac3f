"""Picotron (github.com/huggingface/picotron) as a peer, from a checkout that whoever measures has at hand.

It trains on gloo in fp32, but its model imports three CUDA kernels of flash-attn by name: where that package is
missing, names stand in for them that nothing calls. Its train.py is a script around wandb and a download; the step
here makes the same calls in the same order. It does not clip, and its AdamW is fused on CUDA only.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import asdict
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks._ranks import whole_weights
from engine.comm.context import RankContext
from engine.config.presets import resolve
from engine.config.run_config import RunConfig

#: Names the checkout's folder to the ranks, which inherit it.
FOLDER = "PICOTRON_FOLDER"
KERNELS = {
    "flash_attn.flash_attn_interface": "flash_attn_func",
    "flash_attn.layers.rotary": "apply_rotary_emb",
    "flash_attn.ops.triton.layer_norm": "layer_norm_fn",
}
BLOCK_NAMES = {
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "attention.query": "attention.q_proj",
    "attention.key": "attention.k_proj",
    "attention.value": "attention.v_proj",
    "attention.output": "attention.out_proj",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
#: Matrices that tensor parallelism splits along their inputs.
ROW_PARALLEL = ("out_proj", "down_proj")


class PicotronLoop:
    """Picotron's training step on this rank, data or tensor parallel."""

    def __init__(self, rank: RankContext) -> None:
        _load(rank)
        layout, train = rank.layout, rank.config.train
        manager = importlib.import_module("picotron.process_group_manager")
        manager.setup_process_group_manager(tp_size=layout.tp, cp_size=1, pp_size=1, dp_size=layout.dp)
        self.model: Any = _model(rank.config, layout.tp, rank.groups.coordinates.tp)
        if layout.dp > 1:
            module = importlib.import_module("picotron.data_parallel.data_parallel")
            self.model = module.DataParallelBucket(self.model)
        self._micro_batch, self._averaged = rank.config.batch.micro_batch, layout.dp > 1
        weights = list(self.model.parameters())
        options: list[dict[str, Any]] = [{"params": [weight for weight in weights if weight.ndim > 1]}]
        options += [{"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(options, lr=train.learning_rate, weight_decay=train.weight_decay)

    def step(self, tokens: Tensor) -> tuple[float, None]:
        """Train on int64 [sequences, length + 1]; returns the mean loss. No norm is taken."""
        self.optimizer.zero_grad()
        total, parts = 0.0, tokens.split(self._micro_batch)
        for number, part in enumerate(parts, 1):
            if self._averaged:
                self.model.require_backward_grad_sync = number == len(parts)
            outputs = self.model(input_ids=part[:, :-1])
            loss = F.cross_entropy(outputs.flatten(0, 1), part[:, 1:].reshape(-1)) / len(parts)
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        if self._averaged:
            self.model.reset()
        return total, None


def _load(rank: RankContext) -> None:
    """Make the checkout importable, and tell it by its environment variables to stay on the CPU in fp32."""
    sys.path.insert(0, os.environ[FOLDER])
    os.environ |= {"FLASH_ATTEN": "0", "DEVICE": "cpu", "DTYPE": "float32", "CONTEXT_PARALLEL": "0"}
    os.environ["LOCAL_RANK"] = str(rank.rank)
    if importlib.util.find_spec("flash_attn") is None:
        for module, function in KERNELS.items():
            sys.modules[module] = ModuleType(module)
            setattr(sys.modules[module], function, None)


def _model(config: RunConfig, tp: int, place: int) -> Any:
    """Its model with the engine's first tensors, split if asked for."""
    shape = resolve(config.model)
    module = importlib.import_module("picotron.model")
    model = module.Llama(_sizes(asdict(shape), config.data.sequence_length))
    if tp > 1:
        importlib.import_module("picotron.tensor_parallel.tensor_parallel").apply_tensor_parallel(model)
    weights = {}
    for name, value in whole_weights(config).items():
        theirs = _name(name)
        split = value.chunk(tp, int(theirs.split(".")[-2] in ROW_PARALLEL))[place]
        weights[theirs] = value if value.ndim == 1 else split
    model.load_state_dict(weights)
    return model


def _sizes(shape: dict[str, int], sequence_length: int) -> SimpleNamespace:
    return SimpleNamespace(
        hidden_size=shape["hidden"],
        intermediate_size=shape["ffn_hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        vocab_size=shape["vocabulary"],
        max_position_embeddings=sequence_length,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
    )


def _name(ours: str) -> str:
    """A parameter's name there: ``blocks.0.attention.query.weight`` is ``decoder_layers.0.attention.q_proj.weight``."""
    if not ours.startswith("blocks."):
        return {"norm.weight": "final_norm.weight", "head.weight": "final_proj.weight"}.get(ours, ours)
    _, number, rest = ours.split(".", 2)
    return f"decoder_layers.{number}.{BLOCK_NAMES[rest.removesuffix('.weight')]}.weight"
