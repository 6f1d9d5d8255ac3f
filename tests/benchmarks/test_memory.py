"""Closed forms of memory: published activations and states, the engine's own counts, and measured peaks."""

import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published import megatron, memory, nanotron, playbook
from benchmarks.published.columns import cases, take
from benchmarks.published.memory import MemoryConstants, held, in_flight, layer_activations, rank_elements
from benchmarks.published.peaks import fit_peaks
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.footprint.footprint import footprints
from engine.schedules import closed_forms
from tests.support.drawn import SEED
from tests.support.studies.layouts import draw
from tuning.predict.model.cases import FULL, SELECTIVE, Cases, cases_of

SCORED = Path(__file__).parents[2] / "benchmarks" / "data"
#: Of 22B, 175B, 530B and 1T in arXiv 2205.05198, table 3: one sequence a micro-batch but for the first.
PUBLISHED = Cases.from_columns(
    layers=[48, 96, 105, 128],
    hidden=[6144, 12288, 20480, 25600],
    heads=[64, 96, 128, 160],
    vocabulary=51200,
    sequence=2048,
    micro_batch=[4, 1, 1, 1],
    micro_batches=[1, 64, 280, 512],
    tp=8,
    pp=[1, 8, 35, 64],
    chunks=[1, 3, 3, 1],
    dropout=1,
)


def test_states_are_those_of_figure_1() -> None:
    state = megatron.memory(SCORED / "megatron_2205_fig1_memory.csv")["state_bytes"]
    layers = memory.stage_layers(PUBLISHED, "first") * PUBLISHED.block_parameters / PUBLISHED.tp
    assert np.allclose(18 * layers, state, rtol=1e-3)


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        ("activations_bytes", {}),
        ("selective_activations_bytes", {"sequence_parallel": 1.0, "recompute": float(SELECTIVE)}),
    ],
)
def test_activations_are_those_of_figure_1(column: str, changes: dict[str, float]) -> None:
    published = megatron.memory(SCORED / "megatron_2205_fig1_memory.csv")[column]
    asked = _changed(PUBLISHED, changes)
    layers = in_flight(asked, "first") * memory.stage_layers(asked, "first")
    assert np.allclose(layers * layer_activations(asked), published, rtol=1e-6)


def test_activation_shares_are_those_of_figure_7() -> None:
    shares = megatron.activation_shares(SCORED / "megatron_2205_fig7_activation_pct.csv")
    variants = {
        "sequence_parallel": {"sequence_parallel": 1.0},
        "selective": {"recompute": float(SELECTIVE)},
        "both": {"sequence_parallel": 1.0, "recompute": float(SELECTIVE)},
        "full": {"recompute": float(FULL)},
    }
    whole = layer_activations(PUBLISHED)
    for name, changes in variants.items():
        assert np.allclose(layer_activations(_changed(PUBLISHED, changes)) / whole, shares[name], atol=0.0015)


def test_in_flight_is_the_engines_closed_form() -> None:
    grid = [(p, v, m) for p in (1, 2, 4, 8) for v in (1, 2, 3) for m in (1, 2, 4, 8, 16, 32)]
    grid = [(p, v, m) for p, v, m in grid if v == 1 or (p > 1 and m % p == 0)]
    own = _changed(PUBLISHED.take(np.zeros(len(grid), np.int64)), {})
    columns = np.array(grid, np.float64).T
    own = own.put(pp=columns[0], chunks=columns[1], micro_batches=columns[2])
    for row, (p, v, m) in enumerate(grid):
        kind = "interleaved" if v > 1 else "1f1b"
        exact = closed_forms.peak_in_flight(kind, p, v, m)
        assert in_flight(own, "first")[row] * v == exact[0]
        assert in_flight(own, "last")[row] * v == exact[-1]


def test_elements_and_states_are_those_of_the_engine() -> None:
    random_ = random.Random(SEED)
    drawn = [draw(random_) for _ in range(1200)]
    kept = [config for config in drawn if not list(rules.problems(config)) and _is_plain(config)]
    assert len(kept) > 20
    own = cases_of(kept)
    first, last = rank_elements(own, "first"), rank_elements(own, "last")
    for row, config in enumerate(kept):
        ends = footprints(config)
        assert first[row] == pytest.approx(ends[0].parameters, rel=0.01)
        assert last[row] == pytest.approx(ends[-1].parameters, rel=0.01)


def test_published_activations_are_those_the_engine_quotes() -> None:
    random_ = random.Random(SEED)
    drawn = [draw(random_) for _ in range(1200)]
    kept = [config for config in drawn if not list(rules.problems(config)) and _is_plain(config)]
    quoted = [(config, one) for config in kept for one in footprints(config)[:1] if one.published_bytes]
    assert quoted
    own = cases_of([config for config, _ in quoted])
    # The paper's block: two matrices of 4 h, as many heads of keys and values, dropout, 16 bits, the core not kept,
    # and inputs whole where blocks are computed again.
    gpt = _changed(own, {"mlp_matrices": 2.0, "dropout": 1.0, "value_bytes": 2.0}).put(
        ffn_hidden=4 * own.hidden,
        kv_heads=own.heads,
        recompute=np.where(own.recompute == FULL, float(FULL), 0.0),
        sequence_parallel=np.where(own.recompute == FULL, 0.0, 1.0),
    )
    found = in_flight(gpt, "first") * memory.stage_layers(gpt, "first") * layer_activations(gpt)
    expected = np.array([one.published_bytes for _, one in quoted], np.float64)
    assert np.allclose(found, expected, rtol=0.01)


def test_zero_slices_what_it_says() -> None:
    one = PUBLISHED.take(np.array([1, 1, 1, 1])).put(dp=np.full(4, 8.0), zero_stage=np.arange(4.0))
    parts = held(one.put(micro_batches=np.ones(4)), "first", MemoryConstants(gradient_copies=1e-12))
    assert np.allclose(parts.optimizer / parts.optimizer[0], [1, 1 / 8, 1 / 8, 1 / 8])
    assert np.allclose(parts.gradients / parts.gradients[0], [1, 1, 1 / 8, 1 / 8])
    assert np.allclose(parts.parameters / parts.parameters[0], [1, 1, 1, 1 / 8])


def test_only_the_last_stage_has_logits_and_nothing_waits_without_tp() -> None:
    parts = {stage: held(PUBLISHED, stage, MemoryConstants()) for stage in memory.STAGES}
    assert (parts["last"].logits > 0).all()
    assert (parts["middle"].logits[1:] == 0).all()
    asked = PUBLISHED.put(sequence_parallel=np.ones(4), tp=np.array([1.0, 8, 8, 8]))
    waiting = held(asked, "first", MemoryConstants()).waiting
    assert waiting[0] == 0
    assert (waiting[1:] > 0).all()


def test_peaks_of_a_size_are_told_by_other_sizes() -> None:
    trials = playbook.trials()
    ran = take(trials, ~trials["failed"])
    own, peaks = nanotron.dealt(cases(ran)), ran["memory_bytes"]
    off = np.zeros(len(own))
    for model in dict.fromkeys(ran["model"].tolist()):
        out = ran["model"] == model
        told = fit_peaks(own.take(~out), peaks[~out])
        off[out] = np.abs(told.bytes(own.take(out)) / peaks[out] - 1)
    assert off.mean() < 0.09
    assert np.median(off) < 0.06


def test_peaks_find_planted_constants() -> None:
    trials = playbook.trials()
    own = nanotron.dealt(cases(take(trials, ~trials["failed"])))
    planted = MemoryConstants(activation_share=1.3, logit_copies=3.0, waiting_values=1.6)
    ahead = np.random.default_rng(5).random(len(own)) < 0.5
    peaks = held(own, "first", planted, ahead.astype(np.float64)).bytes
    found = fit_peaks(own, peaks).constants
    assert found.activation_share == pytest.approx(1.3, rel=0.03)
    assert found.waiting_values == pytest.approx(1.6, rel=0.1)
    assert found.logit_copies == pytest.approx(3.0, rel=0.15)


def _changed(own: Cases, changes: dict[str, float]) -> Cases:
    return own.put(**{name: np.full(len(own), value) for name, value in changes.items()})


def _is_plain(config: RunConfig) -> bool:
    """What both count alike: whole parameters, split over tp, no experts, layers dealt evenly."""
    even = _layers(config) % (config.parallel.pp * config.schedule.chunks) == 0
    split = config.parallel.tp_replicated is None
    return config.parallel.zero_stage < 2 and split and not config.model.experts and even


def _layers(config: RunConfig) -> int:
    return int(cases_of([config]).layers[0])
