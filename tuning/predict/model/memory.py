"""What the fullest rank holds, for many configurations at a time: ``engine.footprint.footprint`` on arrays. Pure.

For 1F1B and its interleaved form, without experts, offloading, compression or an outer loop. The fullest rank is at one
of three places of the pipeline: the first has the embedding and most in flight, the second a copy of its input, the
last the head. Slices are not rounded up here; with several chunks a rank the micro-batches are a multiple of the ranks.
Bytes then agree with the engine's formula to the last digits as a rule, and within 5 in 100 where stages are uneven.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuning.predict.model.cases import FULL, NO_RECOMPUTE, Array, Cases

_FP32, _INDEX, _MIB = 4, 8, 2**20
_BUCKET_BYTES = 25 * _MIB


class Place(NamedTuple):
    """A place of the pipeline: its number, its layers, what is in flight there and how that is dealt to its stages.

    ``flying`` counts stages times micro-batches, ``flying_layers`` the layers of those; ``first_flying`` and
    ``last_flying`` are micro-batches in the model's first and last stage.
    """

    is_first: Array
    is_last: Array
    neighbours: Array
    layers: Array
    most_layers: Array
    flying: Array
    flying_layers: Array
    first_flying: Array
    last_flying: Array


def largest(cases: Cases) -> Array:
    """Bytes of the rank that holds most."""
    places = (np.zeros(len(cases)), np.minimum(1.0, cases.pp - 1), cases.pp - 1)
    held_bytes: Array = np.max([_bytes(cases, _place(cases, number)) for number in places], axis=0)
    return held_bytes


def _place(cases: Cases, number: Array) -> Place:
    """Chunks are visited in rounds of ``turn`` micro-batches: so are those in flight dealt to them."""
    pp, chunks, count = cases.pp, cases.chunks, cases.micro_batches
    turn = np.ceil(count / np.maximum(1, count // pp))
    places_after = pp - number - 1
    warm_up = np.where(chunks > 1, (chunks - 1) * turn + 2 * places_after, places_after)
    flying = np.minimum(warm_up + 1, count * chunks)
    base, extra_layers = np.divmod(cases.layers, pp * chunks)
    longer = np.clip(np.ceil((extra_layers - number) / pp), 0, chunks)
    rounds, remainder = np.divmod(flying, turn * chunks)
    ends = np.where(chunks > 1, 1.0, 0.0)
    return Place(
        is_first=np.where(number == 0, 1.0, 0.0),
        is_last=np.where(places_after == 0, 1.0, 0.0),
        neighbours=np.minimum(np.where(number > 0, 1, ends) + np.where(places_after > 0, 1, ends), pp - 1),
        layers=base * chunks + longer,
        most_layers=base + np.minimum(longer, 1),
        flying=flying,
        flying_layers=base * flying + _in_longer(cases, longer, flying, turn),
        first_flying=rounds * turn + np.minimum(remainder, turn),
        last_flying=rounds * turn + np.clip(remainder - (chunks - 1) * turn, 0, turn),
    )


def _in_longer(cases: Cases, longer: Array, flying: Array, turn: Array) -> Array:
    """Most micro-batches at once in a rank's stages with a layer more, its first ``longer`` ones.

    After as many pairs of a forward and a backward as there were, forwards have gone on through the chunks, backwards
    from the last chunk on. The most is there at the start, when the last forward of a round reaches these stages, or
    before the first backward does.
    """
    period, remainder = turn * cases.chunks, cases.micro_batches * cases.chunks - flying
    starts = (np.zeros(len(cases)), np.mod(longer * turn - flying, period), (cases.chunks - longer) * turn)
    most = np.zeros(len(cases))
    for pairs in (np.minimum(start, remainder) for start in starts):
        ahead, back = np.divmod(flying + pairs, period), np.divmod(pairs, period)
        forwards = ahead[0] * longer * turn + np.minimum(ahead[1], longer * turn)
        backwards = back[0] * longer * turn + np.maximum(back[1] - (cases.chunks - longer) * turn, 0)
        most = np.maximum(most, forwards - backwards)
    return most


def _bytes(cases: Cases, place: Place) -> Array:
    narrow = _narrow(cases)
    whole = _sets(cases, place) * _block(cases) + _root(cases, place) + place.is_last * cases.hidden
    kept_elements, updated = _kept_elements(cases, place, whole), _updated_elements(cases, place, whole)
    sums_whole = (cases.zero_stage < 2) | ((cases.micro_batches > 1) & (cases.reduce_every_micro_batch == 0))
    steady = kept_elements * np.where(narrow, 2, _FP32) + _FP32 * np.where(sums_whole, whole, kept_elements)
    steady = steady + _FP32 * updated * np.where(narrow, 3, 2)
    total: Array = steady + _activations(cases, place) + _buffers(cases, place)
    return total


def _narrow(cases: Cases) -> NDArray[np.bool_]:
    """Whether parameters are kept in bf16: nothing that is sharded is."""
    narrow: NDArray[np.bool_] = (cases.weight_bytes < _FP32) & (cases.zero_stage < 2)
    return narrow


def _block(cases: Cases) -> Array:
    """Elements of a block on a tp rank."""
    key_value = cases.kv_heads * cases.head_dim
    matrices = 2 * cases.hidden + 2 * key_value + 3 * cases.ffn_hidden
    return cases.hidden * matrices / cases.tp + (1 - 1 / cases.tp) * cases.whole_block + 2 * cases.hidden


def _root(cases: Cases, place: Place) -> Array:
    """Elements of both embeddings, or of the one that they are."""
    embedding, head = (_split(cases, whole) for whole in (cases.whole_embedding, cases.whole_head))
    first, last = place.is_first * embedding, place.is_last * head
    ends = np.where(cases.tied > 0, np.maximum(first, last), first + last)
    root: Array = ends * cases.vocabulary * cases.hidden
    return root


def _split(cases: Cases, whole: Array) -> Array:
    """The part of something that a tp rank has: all of what is ``whole``."""
    return np.where(whole > 0, 1.0, 1 / cases.tp)


def _sets(cases: Cases, place: Place) -> Array:
    """Sets of a layer's parameters in a rank's layers, which begin with a set."""
    sets: Array = np.ceil(place.layers / cases.sharing_layers)
    return sets


def _norms(cases: Cases, place: Place) -> Array:
    """Elements that ZeRO 2 and 3 leave on every rank: norms, where the others travel in bf16."""
    elements = (2 * _sets(cases, place) + place.is_last) * cases.hidden
    return np.where(cases.value_bytes < _FP32, elements, 0.0)


def _kept_elements(cases: Cases, place: Place, whole: Array) -> Array:
    norms = _norms(cases, place)
    return np.where(cases.zero_stage >= 2, (whole - norms) / (cases.dp * cases.cp) + norms, whole)


def _updated_elements(cases: Cases, place: Place, whole: Array) -> Array:
    return np.where(cases.zero_stage == 1, whole / (cases.dp * cases.cp), _kept_elements(cases, place, whole))


def _activations(cases: Cases, place: Place) -> Array:
    element, tokens = cases.value_bytes, cases.micro_batch * cases.sequence / cases.cp
    boundary = element * tokens * cases.hidden / cases.tp
    copies = np.where((element < _FP32) & (cases.recompute != FULL), boundary, 0.0)
    indices = _words(cases, tokens, cases.whole_embedding, _INDEX + 1)
    logits = _FP32 * tokens * cases.vocabulary / cases.tp
    whole_output = np.where(cases.whole_head > 0, 1 / cases.tp, 1.0)
    head = _norms_kept(cases, tokens, 1, whole_output) + logits + _words(cases, tokens, cases.whole_head, 1)
    whole, kept_bytes = _of_block(cases, tokens)
    total: Array = (
        place.flying * (boundary + copies)
        + place.flying_layers * kept_bytes
        + place.is_first * place.first_flying * (indices - copies)
        + place.is_last * place.last_flying * (head - boundary)
        + whole
        - kept_bytes
    )
    return total


def _of_block(cases: Cases, tokens: Array) -> tuple[Array, Array]:
    """Bytes of a micro-batch in one block: without recomputation, and as it was asked for."""
    element, part = cases.value_bytes, tokens * cases.hidden / cases.tp
    key_value = tokens * cases.kv_heads * cases.head_dim / cases.tp
    results = np.where(cases.cp > 1, 2, 3)
    attention = element * (results * part + 2 * key_value) + _FP32 * tokens * cases.heads / cases.tp
    selective_rest = (
        _norms_kept(cases, tokens, 2, cases.norm_outputs) + 4 * element * tokens * cases.ffn_hidden / cases.tp
    )
    whole, selective = selective_rest + attention, selective_rest + element * (part + 2 * key_value)
    kept_bytes = np.where(cases.recompute == FULL, element * part, selective)
    return whole, np.where(cases.recompute == NO_RECOMPUTE, whole, kept_bytes)


def _words(cases: Cases, tokens: Array, whole: Array, extra_bytes: int) -> Array:
    """Tokens or targets that an embedding or head keeps; ``extra_bytes`` a token where its words are split."""
    split = tokens * (_INDEX + np.where(cases.tp > 1, extra_bytes, 0))
    return np.where(whole > 0, _INDEX * tokens / cases.tp, split)


def _norms_kept(cases: Cases, tokens: Array, count: int, outputs: Array) -> Array:
    """Of so many norms, with so many whole activations as their outputs."""
    part = tokens * cases.hidden / cases.tp
    kept_bytes = count * (2 * _FP32 * part + _FP32 * tokens / cases.tp)
    kept_bytes = kept_bytes + outputs * cases.value_bytes * tokens * cases.hidden
    return kept_bytes + np.where(_narrow(cases), count * _FP32 * cases.hidden, 0.0)


def _buffers(cases: Cases, place: Place) -> Array:
    element, ranks = cases.value_bytes, cases.dp * cases.cp
    message = element * cases.micro_batch * cases.sequence / cases.cp * cases.hidden / cases.tp
    biggest = np.maximum(cases.ffn_hidden * cases.hidden / cases.tp, cases.whole_matrix)
    ends = ((place.is_first, cases.whole_embedding), (place.is_last, cases.whole_head))
    for has, whole in ends:
        biggest = np.maximum(biggest, has * _split(cases, whole) * cases.vocabulary * cases.hidden)
    bucket = np.maximum(_BUCKET_BYTES, _FP32 * biggest) / ranks
    first = np.where((cases.zero_stage == 1) & (ranks > 1), bucket, 0.0)
    return (
        place.neighbours * message
        + first
        + np.where(cases.zero_stage >= 2, _gathered_bytes(cases, place), 0.0)
    )


def _gathered_bytes(cases: Cases, place: Place) -> Array:
    """ZeRO 3 gathers a block beside what is outside of blocks, ZeRO 2 all; then a message more, and fp32 gradients."""
    norms = np.where(cases.value_bytes < _FP32, cases.hidden, 0.0)
    block = _block(cases) - 2 * norms
    root = _root(cases, place) + place.is_last * (cases.hidden - norms)
    has_separate_root = (cases.chunks > 1) & (place.is_first + place.is_last > 1) & (cases.tied == 0)
    at_once = block + np.where(has_separate_root, root / 2, root)
    gathered = np.where(cases.zero_stage == 2, _sets(cases, place) * block + root, at_once)
    unit = np.maximum(block, root)
    total: Array = cases.value_bytes * (gathered + unit) + _FP32 * unit
    return total
