"""Named model sizes and workloads, and the exact shape that a configuration asks for."""

from __future__ import annotations

import json
from dataclasses import dataclass

from engine.config.errors import InputError
from engine.config.sections import Model


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder; head_dim is hidden / heads, the norm has one weight per hidden unit."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    vocabulary: int

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def layer_parameters(self) -> int:
        """Parameters of one block: attention, SwiGLU and its two norms."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * self.head_dim
        return attention + 3 * self.hidden * self.ffn_hidden + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, with separate input and output embeddings."""
        return self.layers * self.layer_parameters + 2 * self.vocabulary * self.hidden + self.hidden


# layers, hidden, heads, kv_heads, ffn_hidden, vocabulary. 22b, 175b and 1t take depth, width and heads from the
# launch scripts of the Frontier paper's authors; 7b, 13b, 70b from arXiv 2307.09288. SwiGLU is about 8/3 wide.
PRESETS: dict[str, ModelShape] = {
    "tiny": ModelShape(4, 160, 4, 4, 448, 256),
    "mini": ModelShape(8, 320, 8, 4, 896, 256),
    "small": ModelShape(12, 768, 12, 4, 2048, 256),
    "350m": ModelShape(24, 1024, 16, 8, 2816, 32000),
    "1b": ModelShape(16, 2048, 32, 8, 8192, 32000),
    "3b": ModelShape(28, 3072, 24, 8, 8192, 32000),
    "7b": ModelShape(32, 4096, 32, 32, 11008, 32000),
    "13b": ModelShape(40, 5120, 40, 40, 13824, 32000),
    "22b": ModelShape(48, 6144, 48, 48, 16384, 51200),
    "70b": ModelShape(80, 8192, 64, 8, 28672, 32000),
    "175b": ModelShape(96, 12288, 96, 96, 32768, 51200),
    "1t": ModelShape(128, 25600, 128, 128, 68352, 51200),
}


FIELD = "model.workload"
DECODER = "decoder"


@dataclass(frozen=True, slots=True)
class ShippedWorkload:
    """A workload that comes with this package: ``workload`` of its ``module`` makes it.

    One that ``reads_text`` takes its data as the section ``data`` says; others have their own. ``extra`` is what this
    package is installed with for it, "" for nothing.
    """

    module: str
    reads_text: bool = False
    extra: str = ""


#: By short name; the decoder is none of them.
SHIPPED: dict[str, ShippedWorkload] = {
    "vision": ShippedWorkload("engine.model.workloads.vision"),
    "llama": ShippedWorkload("engine.model.workloads.llama", reads_text=True, extra="huggingface"),
    "masked_text": ShippedWorkload("engine.model.workloads.masked_text", reads_text=True),
    "saddle": ShippedWorkload("engine.model.workloads.published.saddle"),
    "convolutions": ShippedWorkload("engine.model.workloads.published.convolutions"),
    "partitioned": ShippedWorkload("engine.model.workloads.published.intermediate_labels"),
    "driving": ShippedWorkload("engine.model.workloads.published.driving", extra="driving"),
    "sparse_update": ShippedWorkload("engine.model.workloads.published.sparse.sparse_update"),
}


def reads_text(workload: str) -> bool:
    """Whether a workload is known to take its data as the section ``data`` says; a person's own says nothing of it."""
    return workload == DECODER or (workload in SHIPPED and SHIPPED[workload].reads_text)


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What a workload that is not the decoder was found to be.

    ``tokens`` is what a sample counts in rates, ``splits`` the axes over which it says how it is split. ``flops``
    are those of one sample's forward and backward, counted; ``flops_reason`` says why there are none, ``shapes_reason``
    why nobody knows what a block gives. ``metric`` is the name of what is measured beside the loss.
    ``shared_parameters`` is how many more parameters there would be if none were shared. ``own_step`` are the axes over
    which a step of its own works, None of one that the engine steps; ``step_samples`` how many it needs. Of the
    blocks' ``torch.nn.Linear`` the ``narrowest`` side is so long, and all blocks give [samples, *``places_width``];
    None where there is no such thing.
    """

    name: str
    blocks: int
    parameters: int
    tokens: int
    splits: tuple[str, ...]
    flops: int | None
    flops_reason: str
    shapes_reason: str
    metric: str | None
    shared_parameters: int = 0
    own_step: tuple[str, ...] | None = None
    step_samples: int | None = None
    narrowest: int | None = None
    places_width: tuple[int, int] | None = None


_KNOWN: dict[str, WorkloadFacts] = {}


def remember(model: Model, facts: WorkloadFacts) -> None:
    """What rules are to know of a workload from now on, in this process: they load no code of others themselves."""
    _KNOWN[_key(model)] = facts


def facts_of(model: Model) -> WorkloadFacts | None:
    """What was found of a workload; None of one that nobody looked at yet, and of the decoder."""
    return _KNOWN.get(_key(model)) if _KNOWN else None


def _key(model: Model) -> str:
    sharing = [model.tied_embeddings, model.layer_groups]
    return json.dumps([model.workload, model.options, sharing], sort_keys=True)


def is_decoder(model: Model) -> bool:
    """Whether it is the one that formulas know."""
    return model.workload == DECODER


def blocks_of(model: Model) -> int | None:
    """What a pipeline can cut between; None of a workload that nobody looked at yet."""
    if is_decoder(model):
        return resolve(model).layers
    facts = facts_of(model)
    return None if facts is None else facts.blocks


def resolve(model: Model) -> ModelShape:
    """The shape a model section asks for.

    Raises:
        InputError: the preset is unknown, the sizes do not fit together, or it is not the decoder.
    """
    if not is_decoder(model):
        remedy = "formulas know the decoder alone: nothing is predicted of another model; measure it"
        raise InputError(FIELD, model.workload, remedy)
    if model.preset not in PRESETS:
        raise InputError("model.preset", model.preset, f"unknown; choose one of {', '.join(PRESETS)}")
    base = PRESETS[model.preset]
    sizes = {name: getattr(model, name) or getattr(base, name) for name in ModelShape.__dataclass_fields__}
    shape = ModelShape(**sizes)
    if shape.hidden % shape.heads or (shape.hidden // shape.heads) % 2:
        raise InputError(
            "model.heads", shape.heads, f"hidden={shape.hidden} / heads must be a whole, even number"
        )
    if shape.heads % shape.kv_heads:
        raise InputError("model.kv_heads", shape.kv_heads, f"must divide heads={shape.heads}")
    return shape
