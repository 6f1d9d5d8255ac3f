"""What each memory technique keeps between forward and backward, and what it costs, on a small decoder.

Bytes are exact: a hook sees every tensor that autograd saves. Memory that several of them share counts once;
parameters and the table of rotary angles, which are there anyway, do not count. Costs are CPU seconds of forward and
backward, taken in turn and in random order, against plain training; a second plain row (A/A) shows what is noise.
Offloading is measured on a CPU: there its copies bring nothing, and cost what copying in memory costs.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from benchmarks import _table as table
from benchmarks._ratio import ratio
from engine.config.presets import ModelShape
from engine.model.activation_memory import Activations, is_weight
from engine.model.axes import Axes, LocalExperts
from engine.model.decoder import Decoder, initialize
from engine.parallel.context.axis import WholeSequence
from engine.parallel.tensor import TensorParallel

SHAPE = ModelShape(layers=8, hidden=256, heads=4, kv_heads=4, ffn_hidden=704, vocabulary=256)
BATCH, SEQUENCE = 2, 256
KINDS = {
    "plain": Activations(),
    "plain again (A/A)": Activations(),
    "selective": Activations("selective"),
    "full": Activations("full"),
    "full, first 4 of 8 layers": Activations("full", layers=4),
    "offload": Activations(offload=True),
    "selective, offload": Activations("selective", offload=True),
    "full, offload": Activations("full", offload=True),
}
WARM_UP = 3


def build(kind: Activations) -> Decoder:
    """The decoder with equal weights for every kind."""
    axes = Axes(TensorParallel(), WholeSequence(), LocalExperts())
    decoder = Decoder(SHAPE, range(SHAPE.layers), axes, sequence_length=SEQUENCE, activations=kind)
    initialize(decoder, seed=0)
    return decoder


def forward(decoder: Decoder) -> Tensor:
    """A loss over fixed tokens."""
    tokens = torch.randint(SHAPE.vocabulary, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(0))
    logits = decoder(tokens)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.t().flatten())


def kept_bytes(decoder: Decoder) -> tuple[int, int]:
    """Bytes kept by one forward on the device and on the host."""
    seen: dict[int, int] = {}
    alive = []

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not is_weight(tensor) and storage.data_ptr() != decoder.rotary.untyped_storage().data_ptr():
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        forward(decoder)
    if decoder.offload is None:
        return sum(seen.values()), 0
    return sum(seen.values()) + decoder.offload.device_bytes, decoder.offload.host_bytes


def seconds(decoders: dict[str, Decoder], rounds: int) -> dict[str, np.ndarray]:
    """CPU seconds of each step of each kind."""
    taken: dict[str, list[float]] = {name: [] for name in decoders}
    for number in range(WARM_UP + rounds):
        for name in random.sample(list(decoders), len(decoders)):
            began = time.process_time()
            forward(decoders[name]).backward()
            spent = time.process_time() - began
            decoders[name].zero_grad()
            if number >= WARM_UP:
                taken[name].append(spent)
    return {name: np.array(values) for name, values in taken.items()}


def main() -> None:
    """Count, measure and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=60, help="steps of each kind")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    decoders = {name: build(kind) for name, kind in KINDS.items()}
    taken = seconds(decoders, given.rounds)
    rows = []
    for name, decoder in decoders.items():
        device, host = kept_bytes(decoder)
        cost = "" if name == "plain" else ratio(taken[name], taken["plain"]).added()
        rows.append([name, f"{device:,}", f"{host:,}", f"{1e3 * taken[name].mean():.1f}", cost])
    header = [
        "kind",
        "bytes kept on the device",
        "bytes on the host",
        "CPU ms, forward and backward",
        "added CPU",
    ]
    title = f"Activations of a small decoder: {SHAPE.layers} layers, hidden {SHAPE.hidden}, {BATCH * SEQUENCE} tokens"
    table.show("memory", title, header, rows, given.save)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
