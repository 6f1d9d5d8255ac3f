"""The built-in decoder as a workload: text at byte level, and stages that know tp, cp and ep."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config.formulas.tied_parameters import Sharing, sharing_of
from engine.config.layout import longest_document
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.model.activation_memory import activations_of
from engine.model.axes import Axes
from engine.model.data import Corpus, Tokens
from engine.model.decoder import Decoder, initialize
from engine.model.experts.mixture import MixtureShape
from engine.model.stage import MessageKind, Stage
from engine.model.workloads.adapters import SideDecoder, attach_adapter, fill_sides
from engine.model.workloads.task_texts import TaskTexts, open_texts


def compute_dtype(config: RunConfig) -> torch.dtype:
    """dtype of activations; parameters stay fp32 unless ``memory.parameters`` says otherwise, gradients do."""
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


@dataclass(frozen=True)
class DecoderBlueprint:
    """The decoder that a configuration's model section describes."""

    config: RunConfig

    @property
    def blocks(self) -> int:
        """Its layers."""
        return self._shape.layers

    @property
    def sharing(self) -> Sharing:
        """As the model section says."""
        return sharing_of(self.config.model)

    def stage(self, layers: range, axes: Axes, on_meta: bool = False) -> Decoder:
        """These layers."""
        config = self.config
        with torch.device("meta" if on_meta else "cpu"):
            kind = functools.partial(SideDecoder, rank=config.train.adapt_rank)
            decoder: Decoder = (kind if config.train.adapt == "losa" else Decoder)(
                self._shape,
                layers,
                axes,
                mixture=_mixture(config, self._shape),
                sequence_length=config.data.sequence_length,
                masked=config.data.documents == "masked",
                longest=longest_document(config) if config.data.documents == "whole" else None,
                dtype=compute_dtype(config),
                activations=activations_of(config),
            )
            attach_adapter(decoder, config.train)
        if not on_meta:
            initialize(decoder, config.train.seed, self.sharing)
            fill_sides(decoder, config.train.seed)
        return decoder

    def messages(self, blocks: Sequence[int], axes: Axes, micro_batch: int) -> list[MessageKind]:
        """Hidden states [sequence / (cp * tp), batch, hidden] after any block."""
        config = self.config
        sequence = config.data.sequence_length // (axes.context.size * axes.tensor.size)
        return [((sequence, micro_batch, self._shape.hidden), compute_dtype(config))] * len(blocks)

    def samples(self, stage: Stage) -> Windows:
        """Windows of text at a stage's places in the sequence."""
        assert isinstance(stage, Decoder)
        data, seed = self.config.data, self.config.train.seed
        if data.documents == "whole":  # steps take them by themselves, and ask for no window
            return Windows(Corpus((), data.sequence_length, data.held_out_fraction, seed), stage.positions)
        return Windows(open_texts(self.config), stage.positions)

    @property
    def _shape(self) -> ModelShape:
        return resolve(self.config.model)


@dataclass(frozen=True)
class Windows:
    """A corpus as one rank computes on it: ``positions`` int64 [sequence / cp] are its places in the sequence."""

    corpus: Corpus | TaskTexts
    positions: Tensor

    def training(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Tokens and the ones that follow them, int64 [count, sequence / cp]."""
        return self._inputs_and_targets(self.corpus.training(first, count))

    def validation(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """The same of held-out text."""
        return self._inputs_and_targets(self.corpus.validation(first, count))

    def _inputs_and_targets(self, windows: Tokens) -> tuple[Tensor, Tensor]:
        tokens = torch.from_numpy(windows)
        return tokens[:, self.positions], tokens[:, self.positions + 1]


def _mixture(config: RunConfig, shape: ModelShape) -> MixtureShape | None:
    model = config.model
    if model.experts is None:
        return None
    width = model.expert_ffn_hidden or shape.ffn_hidden
    top_k = model.experts_per_token
    return MixtureShape(
        shape.hidden, width, model.experts, top_k, model.capacity_factor, model.balance_weight
    )
