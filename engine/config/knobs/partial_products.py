"""Knobs of products that leave out tokens or parts of matrices. A part of the catalogue."""

from __future__ import annotations

from engine.config.knobs import facts as rules
from engine.config.knobs.facts import ACTIVATIONS, KnobFacts

PARTIAL_PRODUCTS: dict[str, KnobFacts] = {
    "memory.sample_tokens": KnobFacts(
        "Tokens of weight gradients",
        "sampled tokens",
        acts=rules.keeps_inputs,
        at_rest=1.0,
        plain=1.0,
        exact=1.0,
        offered=rules.offer_decoder(rules.always_offered(1.0, 0.3)),
        usual=rules.never,
        live=ACTIVATIONS,
        changes=("speed", "memory", "loss"),
        loses_more="lower",
        trade="matrices keep a part of their inputs, and their gradients scatter around the exact ones",
    ),
    "train.slice_keep": KnobFacts(
        "Share of heads and width trained",
        "trained slice",
        at_rest=1.0,
        plain=1.0,
        exact=1.0,
        offered=rules.offer_decoder(rules.always_offered(1.0, 0.75)),
        usual=rules.never,
        live=ACTIVATIONS,
        changes=("speed", "memory", "loss"),
        loses_more="lower",
        trade="less is computed, kept and sent in a step, which trains a part of each layer",
    ),
}
