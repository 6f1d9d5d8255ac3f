"""An action for each block: none changes a number, each keeps what it says, and no plan exceeds its budget."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from benchmarks._saved_bytes import SavedBytes
from engine.compression.interface import Link
from engine.config.run_config import RunConfig, parse
from engine.config.sections import BlockAction
from engine.dry_run.fake_tensors import parameters_of
from engine.footprint import block_plan
from engine.footprint.activations import costs_of_block
from engine.footprint.block_plan import ACTIONS, BlockPlan, Cost
from engine.footprint.budget import least_budget, stage_surroundings
from engine.footprint.footprint import footprints, plan_of
from engine.model.activation_memory import Activations, Offload
from engine.model.copies import CopyThread, DiskCopies, ThreadCopies
from engine.model.decoder import Decoder
from engine.model.workloads.blueprint import open_blueprint
from engine.parallel.build import build_stages, set_micro_batches, single_rank_axes
from engine.parallel.pipeline import MicroBatches, PipelineExecutor
from engine.rank.loop import micro_batches, part_of_batch
from engine.schedules import actions as schedule
from tests.support.engine.local_sgd_runs import context_of
from tests.support.ranks import on_ranks

LAYERS = 6
MODEL = {"layers": LAYERS, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn_hidden": 96, "vocabulary": 256}
MIXES: list[Sequence[BlockAction]] = [
    *([action] * LAYERS for action in ACTIONS),
    ["offload", "full", "disk", "selective", "keep", "offload"],
    ["disk", "offload", "keep", "keep", "full", "disk"],
]


def config_of(**values: Any) -> RunConfig:
    base = {
        "model": MODEL,
        "data": {"sequence_length": 64},
        "batch": {"micro_batch": 2, "global_batch": 2},
    }
    return parse(base).with_values({key.replace("__", "."): value for key, value in values.items()})


def build(config: RunConfig, folder: Path, actions: Sequence[BlockAction]) -> Decoder:
    decoder = open_blueprint(config, single_rank_axes()).stage(range(LAYERS), single_rank_axes())
    assert isinstance(decoder, Decoder)
    decoder.keep(Activations(actions=tuple(actions)))
    if decoder.offload is not None:
        decoder.offload.folder = folder
    return decoder


def trained(decoder: Decoder) -> tuple[float, list[Tensor]]:
    """Loss and gradients of one micro-batch; the files and threads are gone afterwards."""
    generator = torch.Generator().manual_seed(0)
    tokens, targets = (torch.randint(256, (2, 64), generator=generator) for _ in range(2))
    loss = decoder.loss(decoder(tokens), targets)
    loss.backward()
    if decoder.offload is not None:
        decoder.offload.close()
    found = [one.grad for one in decoder.parameters()]
    assert all(one is not None for one in found)
    return loss.item(), [one for one in found if one is not None]


def counted(decoder: Decoder) -> int:
    """The most bytes that saved tensors held."""
    with SavedBytes(decoder.rotary, *decoder.parameters()) as counter:
        trained(decoder)
    return counter.peak


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_mix_changes_a_number(tmp_path: Path, precision: str) -> None:
    config = config_of(precision=precision)
    loss, gradients = trained(build(config, tmp_path, ["keep"] * LAYERS))
    for mix in MIXES:
        found, same = trained(build(config, tmp_path, mix))
        assert found == loss, mix
        assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True)), mix


class _Slow(ThreadCopies):
    """Holds what it copies for longer than a block computes."""

    def _copy_all(self, tensors: list[Tensor]) -> list[Tensor]:
        time.sleep(0.1)
        return super()._copy_all(tensors)


def test_copies_that_take_longer_than_blocks_hold_no_more_than_planned(tmp_path: Path) -> None:
    """A whole block is in transit while the next one computes; what came into the first one has left as well."""
    config = config_of()
    around, block = stage_surroundings(config, plan_of(config), 0), costs_of_block(config)
    actions: list[BlockAction] = ["offload", "full", "offload", "offload", "offload", "full"]
    plan = block_plan.evaluate([block] * LAYERS, actions, around)
    decoder = build(config, tmp_path, actions)
    assert decoder.offload is not None
    decoder.offload.take("host", _Slow())
    assert 0.98 * plan.peak_bytes < counted(decoder) <= plan.peak_bytes


def test_blocks_that_left_hold_nothing_until_their_backward(tmp_path: Path) -> None:
    config = config_of()
    whole = costs_of_block(config)["keep"].resident
    for tier in ("offload", "disk"):
        decoder = build(config, tmp_path, [tier] * (LAYERS - 1) + ["keep"])
        tokens = torch.zeros((2, 64), dtype=torch.int64)
        with SavedBytes(decoder.rotary, *decoder.parameters()) as counter:
            out = decoder(tokens)
            assert decoder.offload is not None
            decoder.offload.wait()
            left = counter.living()
        # The block that kept everything, what the head and the embedding save, and nothing of the five others.
        assert whole < left < 2 * whole
        assert decoder.offload.host_bytes + decoder.offload.device_bytes == pytest.approx(5 * whole, rel=0.01)
        assert decoder.offload.device_bytes < 0.01 * 5 * whole
        out.sum().backward()
        decoder.offload.close()


def with_times(block: Mapping[BlockAction, Cost]) -> dict[BlockAction, Cost]:
    """Copies are slow enough to matter, and fast enough to pay."""
    seconds = {"keep": 2.0, "selective": 2.3, "full": 3.0, "offload": 2.1, "disk": 2.1}
    copies = {"offload": 1.5, "disk": 4.0}
    return {
        action: replace(
            cost,
            forward_seconds=1.0,
            backward_seconds=seconds[action],
            out_seconds=copies.get(action, 0.0),
            back_seconds=copies.get(action, 0.0),
        )
        for action, cost in block.items()
    }


def plans(config: RunConfig, count: int) -> list[tuple[float, BlockPlan]]:
    """The best plan of each of so many budgets, from the least to all that there is."""
    around, block = stage_surroundings(config, plan_of(config), 0), costs_of_block(config)
    choices = [with_times(block)] * LAYERS
    least = block_plan.least_bytes(choices, around)
    assert least == least_budget(config)
    most = block_plan.evaluate(choices, ["keep"] * LAYERS, around).peak_bytes
    budgets = [least + (most - least) * number / (count - 1) for number in range(count)]
    found = [(budget, block_plan.best(choices, around, budget)) for budget in budgets]
    return [(budget, plan) for budget, plan in found if plan is not None]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_plan_exceeds_its_budget(tmp_path: Path, precision: str) -> None:
    config = config_of(precision=precision)
    found, seen = plans(config, 20), set[str]()
    assert len(found) == 20
    for budget, plan in found:
        peak = counted(build(config, tmp_path, plan.actions))
        assert peak <= budget, (plan, peak)
        # Counted to the last byte it is what was planned, or less where a copy was through early.
        assert peak >= 0.75 * plan.peak_bytes, (plan, peak)
        seen |= set(plan.actions)
    assert {"keep", "full", "offload"} <= seen
    assert found[-1][1].actions == ("keep",) * LAYERS


LAYOUTS: list[dict[str, Any]] = [
    {"parallel__tp": 2},
    {"parallel__tp": 2, "precision": "bf16"},
    {"parallel__cp": 2},
    {"parallel__cp": 2, "parallel__cp_method": "ulysses"},
    {"parallel__dp": 2, "precision": "bf16", "batch__global_batch": 4},
    {"parallel__dp": 2, "parallel__zero_stage": 3, "precision": "bf16", "batch__global_batch": 4},
]


def opened(rank: int, config: RunConfig, folder: str) -> tuple[PipelineExecutor, Decoder, MicroBatches]:
    """A rank as a run builds it, its part of the model, and of one batch."""
    context = context_of(rank, config, Path(folder))
    stages = build_stages(context)
    (replica,) = stages.stages.values()
    assert isinstance(replica.model, Decoder)
    part = part_of_batch(config, context.groups.coordinates.dp)
    context.timer.begin(0)
    batches = micro_batches(context, *stages.samples().training(part.start, len(part)))
    return stages, replica.model, batches


def counted_on_rank(
    rank: int, config: RunConfig, lists: list[tuple[BlockAction, ...]], folder: str
) -> list[int]:
    """The most bytes that this rank's saved tensors held in a step: by what ranks planned, then by each list."""
    stages, decoder, batches = opened(rank, config, folder)
    found = []
    for actions in (None, *lists):
        if actions is not None:
            decoder.keep(Activations(actions=actions))
        set_micro_batches({0: decoder}, config, plan_of(config), Path(folder))
        with parameters_of(decoder) as weights, SavedBytes(decoder.rotary, weights=weights) as counter:
            stages.run(batches)
        found.append(counter.peak)
    stages.close()
    return found


@pytest.mark.drawn(2)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_nor_does_any_on_ranks(layout: dict[str, Any], tmp_path: Path) -> None:
    config = config_of(**layout)
    found = plans(config, 20)
    middle = found[10][0]
    planned = config.with_values({"memory.budget_gib": middle / 2**30})
    lists = [plan.actions for _, plan in found]
    for own, *peaks in on_ranks(2, counted_on_rank, planned, lists, str(tmp_path)):
        assert own <= middle
        for (budget, plan), peak in zip(found, peaks, strict=True):
            assert 0.75 * plan.peak_bytes <= peak <= budget, (plan, peak)


@pytest.mark.parametrize(
    "values",
    [
        {"batch__global_batch": 8},
        {"parallel__tp": 2, "batch__global_batch": 8},
        {"data__documents": "masked"},
        {"data__documents": "masked", "precision": "bf16", "batch__global_batch": 8},
    ],
    ids=str,
)
def test_nor_with_many_micro_batches_or_a_mask(values: dict[str, Any], tmp_path: Path) -> None:
    """Tokens and targets of all micro-batches are there at once, and a mask is as large as its scores."""
    config = config_of(**values)
    found = plans(config, 5)
    planned = config.with_values({"memory.budget_gib": (found[0][0] + 1) / 2**30})
    lists = [plan.actions for _, plan in found]
    for own, *peaks in on_ranks(config.parallel.tp, counted_on_rank, planned, lists, str(tmp_path)):
        assert own <= found[0][0] + 1
        for (budget, plan), peak in zip(found, peaks, strict=True):
            assert 0.75 * plan.peak_bytes <= peak <= budget, (plan, peak)


class _Noted(ThreadCopies):
    """Over a link, with the moments at which what came back was there."""

    def __init__(self) -> None:
        super().__init__(rate=2e7)
        self.back = list[float]()

    def start_fetch(self, away: Any) -> Any:
        coming = super().start_fetch(away)
        coming._found.add_done_callback(lambda _: self.back.append(time.monotonic()))
        return coming


def exchanged(rank: int, config: RunConfig, folder: str) -> tuple[list[float], list[float]]:
    """When each bucket of gradients began to be averaged, and when each block was back."""
    stages, decoder, batches = opened(rank, config, folder)
    assert decoder.offload is not None
    copies, sent, start = _Noted(), list[float](), Link.all_reduce
    decoder.offload.take("host", copies)

    def noted(link: Link, x: Tensor) -> Any:
        sent.append(time.monotonic())
        return start(link, x)

    with mock.patch.object(Link, "all_reduce", noted):
        stages.run(batches)
    stages.close()
    return sent, copies.back


def test_gradients_are_exchanged_while_blocks_still_come_back(tmp_path: Path) -> None:
    """Those of the last blocks are under way before the first ones are asked for, however fast copies are."""
    values = {"memory__block_actions": ["offload"] * LAYERS, "overlap__bucket_mb": 0.05}
    config = config_of(parallel__dp=2, batch__global_batch=4, **values)
    for sent, back in on_ranks(2, exchanged, config, str(tmp_path)):
        assert len(back) == LAYERS < len(sent)
        assert sum(moment < max(back) for moment in sent) > len(sent) / 2


def test_what_a_plan_holds_is_what_a_footprint_says(tmp_path: Path) -> None:
    config = config_of()
    for mix in MIXES:
        (row,) = footprints(config.with_values({"memory.block_actions": list(mix)}))
        assert counted(build(config, tmp_path, mix)) <= row.activation_bytes + 64
        away = mix.count("offload") * costs_of_block(config)["offload"].away
        assert row.host_bytes == away
    (capped,) = footprints(config.with_values({"memory.budget_gib": 2**-12}))
    assert capped.activation_bytes == 2**18


def test_files_have_no_name_and_are_closed_and_threads_end(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before, threads = open_files(), threading.active_count()
    decoder = build(config_of(), tmp_path, ["disk"] * LAYERS)
    loss = decoder(torch.zeros((2, 64), dtype=torch.int64)).sum()
    assert open_files() == before + 1
    assert list(tmp_path.iterdir()) == []
    loss.backward()
    assert decoder.offload is not None
    decoder.offload.close()
    assert (open_files(), threading.active_count()) == (before, threads)


def test_places_in_a_file_are_used_again(tmp_path: Path) -> None:
    copies = DiskCopies(torch.device("cpu"), tmp_path)
    values = torch.arange(5000, dtype=torch.uint8)
    for step in range(3):
        away = [copies.start_offload([values + step, values[:10] + step]) for _ in range(2)]
        back = [copies.start_fetch(one).wait() for one in away]
        assert all(torch.equal(large, values + step) for large, _ in back)
        assert all(torch.equal(small, values[:10] + step) for _, small in back)
        del away, back
        assert os.fstat(copies._file.number).st_size == 2 * 5010
    copies.close()


def test_a_thread_can_be_as_slow_as_a_link() -> None:
    lane = CopyThread("slow", rate=1e6)
    start = time.perf_counter()
    futures = [lane.submit(lambda: None, 20_000) for _ in range(3)]
    for future in futures:
        future.result()
    assert 0.04 < time.perf_counter() - start < 0.5
    lane.close()


def test_a_copy_that_fails_ends_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"run's folder \(No space left on device\): make room on its disk"):
        trained(build(config_of(), tmp_path, ["disk"] * LAYERS))


def test_a_block_that_writes_over_what_it_saved_is_found_out() -> None:
    class Careless(nn.Module):
        def forward(self, x: Tensor, _: Tensor | None) -> Tensor:
            y = x * 2
            out = y * y
            y.add_(1)
            return out

    offload = Offload(smallest_bytes=1)
    with pytest.raises(RuntimeError, match="changed a tensor in place"):
        offload.run([Careless()], torch.ones(8, requires_grad=True), None)
    offload.close()


def test_threads_bring_back_what_they_took() -> None:
    copies = ThreadCopies()
    flats = [torch.randint(255, (n,), dtype=torch.uint8) for n in (1, 4097, 100_000)]
    wanted = [one.clone() for one in flats]
    away = copies.start_offload(flats)
    away.leave()()
    assert away.nbytes == sum(one.nbytes for one in wanted)
    assert all(torch.equal(a, b) for a, b in zip(copies.start_fetch(away).wait(), wanted, strict=True))
    copies.close()


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
def test_nor_with_several_micro_batches_in_flight(tmp_path: Path, kind: str) -> None:
    """The actions of each rank of a pipeline, with stand-ins for its neighbours."""
    config = config_of(
        parallel__pp=2, schedule__kind=kind, batch__global_batch=8, model__layers=2 * LAYERS, precision="bf16"
    )
    chosen, block = plan_of(config), with_times(costs_of_block(config))
    for stage in (0, 1):
        around, choices = stage_surroundings(config, chosen, stage), [block] * LAYERS
        assert around.in_flight == {"1f1b": (2, 1), "gpipe": (4, 4)}[kind][stage]
        least = block_plan.least_bytes(choices, around)
        for budget in (least, 1.3 * least, 2.5 * least):
            plan = block_plan.best(choices, around, budget)
            assert plan is not None
            layers = range(stage * LAYERS, (stage + 1) * LAYERS)
            peak = counted_actions(config, chosen.actions[stage], layers, plan.actions, tmp_path)
            assert 0.6 * plan.peak_bytes <= peak <= budget, (plan, peak)


def counted_actions(
    config: RunConfig,
    work: Sequence[schedule.Action],
    layers: range,
    actions: Sequence[BlockAction],
    folder: Path,
) -> int:
    decoder = open_blueprint(config, single_rank_axes()).stage(layers, single_rank_axes())
    assert isinstance(decoder, Decoder)
    decoder.keep(Activations(actions=(*["keep"] * layers.start, *actions, *["keep"] * LAYERS)))
    if decoder.offload is not None:
        decoder.offload.folder = folder
    held: dict[int, Tensor] = {}
    with SavedBytes(decoder.rotary, *decoder.parameters()) as counter:
        for one in work:
            if one.work is schedule.Work.FORWARD:
                held[one.micro_batch] = result_of(decoder)
                continue
            out = held.pop(one.micro_batch)
            out.backward(None if decoder.head is not None else torch.ones_like(out))
            del out
    if decoder.offload is not None:
        decoder.offload.close()
    return counter.peak


def result_of(decoder: Decoder) -> Tensor:
    """A hidden state for the next stage, or the loss."""
    tokens = torch.zeros((2, 64), dtype=torch.int64)
    if decoder.embedding is not None:
        return cast(Tensor, decoder(tokens))
    x = torch.ones((64, 2, 64), dtype=torch.bfloat16, requires_grad=True)
    return decoder.loss(decoder(x), tokens)
