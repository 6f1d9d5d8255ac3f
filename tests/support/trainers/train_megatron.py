"""Trains a small GPT of Megatron's core as an exported ``megatron.args`` says, tensor parallel; each rank tells.

Its own code reads the arguments, makes the configuration, the model and what averages gradients; the loop and the
optimizer are not its own. What asks for CUDA is replaced: the current device and stream, a device's properties, its
synchronization, and the tracker of random numbers (there is no dropout). So is its norm for a CPU.
"""

# ruff: noqa: I001  # what makes the first import of Megatron possible stands before it
from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from tests.support.trainers import newer_python
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.training import arguments
from tests.support.trainers import small_llama


def replace_cuda() -> None:
    """Functions of torch, one of Megatron, and what its wheel asks of a newer Python."""
    replace = small_llama.replace
    replace(torch.cuda, "current_device", lambda: "cpu")
    replace(torch.cuda, "synchronize", lambda *_: None)
    replace(torch.cuda, "current_stream", lambda *_: None)
    properties = SimpleNamespace(major=9, minor=0, name="none", total_memory=2**36)
    replace(torch.cuda, "get_device_properties", lambda *_: properties)
    replace(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    replace(tensor_parallel.random.CudaRNGStatesTracker, "fork", lambda *_, **__: contextlib.nullcontext())
    small_llama.REPLACED.update(newer_python.GIVEN)


def norm(config: TransformerConfig, hidden_size: int, eps: float, **_: object) -> torch.nn.Module:
    """torch's, whose gradient Megatron sums over tensor parallel ranks where they split the sequence: its own for CPUs
    refuses that.
    """
    small_llama.REPLACED.add("Megatron's norm")
    made = torch.nn.RMSNorm(hidden_size, eps)
    made.weight.sequence_parallel = config.sequence_parallel
    return made


def built(given: str) -> tuple[object, torch.nn.Module]:
    """The arguments that Megatron understood, and its model."""
    sys.argv = ["pretrain_gpt.py", *shlex.split(given), "--use-cpu-initialization", "--transformer-impl", "local",
                "--no-persist-layer-norm", "--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion",
                "--no-bias-swiglu-fusion", "--no-rope-fusion"]  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr):
        args = arguments.parse_args()
        arguments.validate_args(args)
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(args.tensor_model_parallel_size)
    torch.manual_seed(args.seed)
    config = arguments.core_transformer_config_from_args(args)
    layer = get_gpt_layer_local_spec(normalization=args.normalization)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = norm
    layers = TransformerBlockSubmodules([layer] * args.num_layers, norm)
    model = GPTModel(config, layers, args.vocab_size, args.max_position_embeddings, position_embedding_type="rope",
                     share_embeddings_and_output_weights=False)  # fmt: skip
    return args, DistributedDataParallel(
        config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model
    )


if __name__ == "__main__":
    replace_cuda()
    args, model = built(Path(sys.argv[1]).read_text())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    rows, length = small_llama.text(), args.seq_length
    positions = torch.arange(length)[None].expand(args.micro_batch_size, -1)
    mask = torch.ones(1, 1, length, length).triu(1).bool()
    steps, losses, at = args.global_batch_size // args.micro_batch_size, [], 0
    for _ in range(small_llama.SHAPE.steps):
        model.zero_grad_buffer()
        total = 0.0
        for _ in range(steps):
            batch = rows[at : at + args.micro_batch_size, :length]
            at += args.micro_batch_size
            loss = model(batch, positions, mask, labels=batch.roll(-1, 1)).mean()
            (loss / steps).backward()
            total += float(loss.detach())
        finalize_model_grads([model])
        for weight in model.parameters():
            weight.grad = weight.main_grad.to(weight.dtype)
        optimizer.step()
        losses.append(total / steps)
        small_llama.step_done()
    parts = args.tensor_model_parallel_size
    whole = args.vocab_size * args.hidden_size
    held = model.module.embedding.word_embeddings.weight.numel()
    small_llama.tell(
        world=torch.distributed.get_world_size(),
        wrapper=type(model.module.decoder.layers[0].mlp.linear_fc1).__name__,
        steps=len(losses),
        losses=losses,
        whole=whole,
        held=held,
        parameters=sum(
            one.numel() * (parts if getattr(one, "tensor_model_parallel", False) else 1)
            for one in model.parameters()
        ),
    )
    torch.distributed.destroy_process_group()
