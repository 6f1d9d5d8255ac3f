"""Parameters and floating-point operations (FLOPs) of a training step by formula. Pure.

Model FLOPs follow arXiv 2104.04473 (eq. 3 and the appendix behind it): only matrix products count, a multiply-add is 2,
backward is twice forward, attention is counted in full without the saving of its causal mask, logits are
included. That paper's formulas are for a GPT; here the same rule is applied to each matrix of our decoder.
Of layers, heads and widths that a step leaves out, and of what is frozen, they have none: the step's model is
smaller. Weight gradients from a sample of the tokens stand for those of all, so model FLOPs count them whole.
Hardware FLOPs (arXiv 2205.05198, appendix A) add the forward work that recomputation does again, and leave out what
sampling spares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from engine.config.layout import layers_of_stages
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import BlockAction
from engine.footprint.activations import spared_flops
from engine.footprint.footprint import parts_of, plan_of, skips_of
from engine.footprint.side_factors import adapts, side_flops
from engine.schedules.registry import SCHEDULES

#: What the two figures count, as shown beside every utilization.
CONVENTION = (
    "72-convention of arXiv 2104.04473 (matrix products, multiply-add = 2, backward = 2 x forward, attention in full, "
    "logits included); recomputation, and tokens that weight gradients leave out, count in hardware FLOPs only "
    "(arXiv 2205.05198)"
)

#: What is said of another workload's.
COUNTED = (
    "counted by torch's FlopCounterMode in forward and backward of a micro-batch on meta tensors (matrix products, "
    "convolutions, attention, multiply-add = 2); what recomputation adds is not counted"
)

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True)
class Workload:
    """What one optimizer step computes. ``global_batch`` is in sequences of ``sequence_length`` tokens.

    ``recomputed_layers`` of the whole model recompute, None for all of them; "selective" means their attention core.
    With ``block_actions`` each layer does what its own says.
    ``recomputes_whole_block``: full recomputation makes a dense block's last matrix product again as well.
    ``layer_share`` of the layers is what a token goes through in the mean, where micro-batches leave out some, and
    ``slice_share`` of heads and of a dense feed-forward's width is what a step trains.
    With ``experts``, each layer has a router and that many feed-forwards of ``expert_ffn_hidden`` units (by default
    the shape's), of which a token takes ``experts_per_token``. Parameters are shared as the model section says; what is
    computed with them is the same. Where the model is frozen, ``side_flops`` of a step are those of a forward through
    what is trained beside it, and of input gradients there that nobody needs. ``sampled_flops`` of a step's weight
    gradients are not computed, as they come from a sample of the tokens.
    """

    shape: ModelShape
    sequence_length: int
    global_batch: int
    recompute: Recompute = "none"
    recomputed_layers: int | None = None
    experts: int | None = None
    experts_per_token: int = 2
    expert_ffn_hidden: int | None = None
    recomputes_whole_block: bool = False
    block_actions: tuple[BlockAction, ...] = ()
    layer_share: float = 1.0
    slice_share: float = 1.0
    layer_groups: int | None = None
    tied_embeddings: bool = False
    adapt: Literal["none", "lora", "losa"] = "none"
    side_flops: tuple[int, int] = (0, 0)
    sampled_flops: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence_length


def workload_of(config: RunConfig) -> Workload:
    """The workload a configuration asks for.

    Raises:
        InputError: the model's own sizes do not fit together.
    """
    shape = resolve(config.model)
    return Workload(
        shape=shape,
        sequence_length=config.data.sequence_length,
        global_batch=config.batch.global_batch,
        recompute=config.memory.recompute,
        recomputed_layers=_recomputed_layers(config, shape),
        block_actions=tuple(config.memory.block_actions or ()),
        recomputes_whole_block=_splits_backward(config),
        experts=config.model.experts,
        experts_per_token=config.model.experts_per_token,
        expert_ffn_hidden=config.model.expert_ffn_hidden,
        layer_share=_layer_share(config),
        slice_share=config.train.slice_keep,
        layer_groups=config.model.layer_groups,
        tied_embeddings=config.model.tied_embeddings,
        adapt=config.train.adapt,
        side_flops=side_flops(config) if adapts(config) else (0, 0),
        sampled_flops=_sampled_flops(config),
    )


def _sampled_flops(config: RunConfig) -> int:
    """Of all ranks, with every micro-batch on all stages."""
    if config.memory.sample_tokens == 1:
        return 0
    parallel, batch = config.parallel, config.batch
    of_rank = sum(spared_flops(config, part) for part in parts_of(config, plan_of(config)))
    return of_rank * parallel.tp * parallel.cp * batch.global_batch // batch.micro_batch


def _layer_share(config: RunConfig) -> float:
    if (skips := skips_of(config)) is None:
        return 1.0
    shares_and_layers = zip(plan_of(config).trained_shares, skips.layers, strict=True)
    return sum(share * layers for share, layers in shares_and_layers) / sum(skips.layers)


def _splits_backward(config: RunConfig) -> bool:
    schedule = config.schedule
    return SCHEDULES[schedule.kind].splits_backward and config.parallel.pp * schedule.chunks > 1


def _recomputed_layers(config: RunConfig, shape: ModelShape) -> int | None:
    """The first layers of each stage, summed over stages; None for all of them."""
    first, schedule = config.memory.recompute_layers, config.schedule
    if first is None:
        return None
    stages = config.parallel.pp * schedule.chunks
    return sum(
        min(first, len(layers)) for layers in layers_of_stages(shape.layers, stages, schedule.stage_layers)
    )


def layer_parameters(work: Workload) -> int:
    """Parameters of one block: attention, feed-forward or router and experts, two norms."""
    return _attention(work.shape) + _feed_forward(work, work.experts or 1) + 2 * work.shape.hidden


def parameters(work: Workload) -> int:
    """All parameters; one that is shared counts once."""
    shape, embeddings = work.shape, 1 if work.tied_embeddings else 2
    ends = embeddings * shape.vocabulary * shape.hidden + shape.hidden
    return _parameter_sets(work) * layer_parameters(work) + ends


def shared_parameters(work: Workload) -> int:
    """How many fewer those are than without any sharing."""
    return parameters(replace(work, layer_groups=None, tied_embeddings=False)) - parameters(work)


def model_flops_per_step(work: Workload) -> int:
    """Forward and backward FLOPs of a step without recomputation.

    For a block of 12 h^2 matrix parameters this is 72 B s l h^2 (1 + s / (6 h) + V / (12 l h)). Of experts, those a
    token is sent to count, as if a capacity factor dropped and padded nothing.
    """
    shape = work.shape
    logits = 2 * shape.vocabulary * shape.hidden
    if work.adapt != "none":
        return _beside_frozen(work, logits)
    return 3 * work.tokens * (round(shape.layers * _block_forward(work) * work.layer_share) + logits)


def _beside_frozen(work: Workload, logits: int) -> int:
    """Frozen matrices have no gradients of their own. With LoRA a backward goes through all of them but those that read
    the embedding, with LoSA through the head alone.
    """
    shape, (side, spared) = work.shape, work.side_flops
    side_flops = 3 * side - spared
    if work.adapt == "losa":
        return work.tokens * (shape.layers * _block_forward(work) + 2 * logits) + side_flops
    core = shape.layers * _attention_core(work)
    first = 2 * shape.hidden * (shape.hidden + 2 * shape.kv_heads * shape.head_dim)
    return work.tokens * (2 * (shape.layers * _block_forward(work) + logits) + core - first) + side_flops


def hardware_flops_per_step(work: Workload) -> int:
    """Model FLOPs and what is computed a second time, without what sampled weight gradients leave out.

    torch stops recomputing a block once the last tensor that backward needs is there: a dense block's last
    matrix product is left out, with experts nothing is (the router's gradient needs their results), nor where a
    schedule takes gradients of matrices later (they note their input behind their product), nor of slices, which are
    multiplied in the same way: with selective recomputation that is the output matrix's product. Hence full
    recomputation comes to 96 B s l h^2 (1 + s / (6 h) + V / (16 l h)) less 2 B s l h times the feed-forward's width.
    Of layers that are left out, those that recompute are taken to be as many as of all.
    What a fused attention kernel computes again inside its own backward pass is not counted, as in the papers.
    """
    layers = work.shape.layers if work.recomputed_layers is None else work.recomputed_layers
    if work.block_actions:
        recomputed = sum(_recomputed_flops(work, action) for action in work.block_actions)
    else:
        recomputed = layers * _recomputed_flops(work, work.recompute)
    spared = round(work.sampled_flops * work.layer_share)
    return model_flops_per_step(work) + work.tokens * round(recomputed * work.layer_share) - spared


def _recomputed_flops(work: Workload, kind: str) -> int:
    """Forward FLOPs per token that one layer does again."""
    if kind not in ("selective", "full"):
        return 0
    sizes, is_sliced = work.shape, work.slice_share < 1
    if kind == "selective":
        output = 2 * sizes.hidden**2 if is_sliced else 0
        return round(work.slice_share * (_attention_core(work) + output))
    makes_last = work.experts or work.recomputes_whole_block or is_sliced
    return _block_forward(work) - (0 if makes_last else 2 * sizes.hidden * sizes.ffn_hidden)


def _block_forward(work: Workload) -> int:
    """Forward FLOPs of one block per token."""
    active = work.experts_per_token if work.experts else 1
    attention, fed = 2 * _attention(work.shape) + _attention_core(work), 2 * _feed_forward(work, active)
    if work.experts:
        return round(work.slice_share * attention) + fed
    return round(work.slice_share * (attention + fed))


def _attention_core(work: Workload) -> int:
    """Scores and weighted values: two products of the whole sequence per token."""
    return 4 * work.sequence_length * work.shape.hidden


def _attention(shape: ModelShape) -> int:
    """Entries of the query, key, value and output matrices."""
    return 2 * shape.hidden * (shape.hidden + shape.kv_heads * shape.head_dim)


def _feed_forward(work: Workload, count: int) -> int:
    """Matrix entries of one feed-forward, or of the router and ``count`` experts."""
    if work.experts is None:
        return 3 * work.shape.hidden * work.shape.ffn_hidden
    return work.experts * work.shape.hidden + count * _expert(work)


def _parameter_sets(work: Workload) -> int:
    return work.layer_groups or work.shape.layers


def _expert(work: Workload) -> int:
    return 3 * work.shape.hidden * (work.expert_ffn_hidden or work.shape.ffn_hidden)
