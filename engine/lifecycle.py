"""The two ends of a run: its start is recorded; its records are summed up and its ending is recorded.

Beside them, what the rules of its verdicts need from its configuration, and notes on settings that had no good
effect. No torch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from engine.config import layout
from engine.config.errors import InputError
from engine.config.formulas.batch_ramp import BATCH, grows
from engine.config.formulas.expert_rows import is_bucketed
from engine.config.formulas.network import shape_of
from engine.config.knobs.catalogue import KNOBS
from engine.config.layout import SEQUENCE, Layout, accumulation, layout_of, round_steps
from engine.config.presets import WorkloadFacts, is_decoder
from engine.config.run_config import RunConfig
from engine.config.sections import Lab
from engine.footprint import device_peaks, flops
from engine.footprint.activations import remembered_bytes, stage_activations
from engine.footprint.footprint import parts_of, plan_of, skips_of
from engine.run import run_folder
from engine.run.calibration import fingerprint, store
from engine.run.devices import selection
from engine.run.outcome import RunOutcome
from engine.run.ownership import this_process
from engine.run.progress import Progress
from engine.schedules.actions import Costs, Work
from engine.schedules.algorithms import NoFormError
from engine.schedules.closed_forms import bubble_fraction, busy_seconds, idle_seconds
from engine.schedules.credits import REGISTERS, fewest
from engine.schedules.registry import SCHEDULES, plan
from engine.schedules.simulate import simulate
from engine.schedules.skip_pipe import relative_sizes
from profilers.analysis.events import change_rows, resume_source
from profilers.model.rows import PartialProductsRow, PipelineRow
from profilers.model.run_summary import RunSummary, TrainedModel
from profilers.model.verdict import Pipeline, Setting, Thresholds
from profilers.records.reader import RunRecords
from profilers.records.schema import Event
from profilers.summary import RunFacts, summarize
from profilers.verdicts.job import generalize_advice

#: What records call the groups of a layout.
_GROUPS = {
    **{"dp": "data", "dp_cp": "data", "dp_shard": "shard", "dp_replicate": "replicate"},
    **{name: name for name in ("outer", "edp", "ep", "ep_island", "ep_between", "cp", "tp", "pp", "model")},
}


_OWN_LENGTHS = "documents have lengths of their own, and FLOPs by formula are of windows"
_SIMULATION = "the simulation of its list"


def setting_of(config: RunConfig) -> Setting:
    """Groups, schedule, limits and thresholds of a configuration, which need not keep the rules."""
    layout, limit = layout_of(config), config.memory.limit_gib
    return Setting(
        groups={label: layout.groups(kind) for label, kind in (_GROUPS | _shared_documents(layout)).items()},
        pipeline=_pipeline(config),
        memory_limit_bytes=None if limit is None else limit * 2**30,
        thresholds=Thresholds(**config.profile.thresholds.model_dump()),
        has_capacities=config.data.documents != "whole" and not is_bucketed(config),
    )


def _shared_documents(layout: Layout) -> dict[str, str]:
    return {name: name for name in (f"{SEQUENCE}{degree}" for degree in layout.sequence_degrees)}


def _pipeline(config: RunConfig) -> Pipeline | None:
    ranks, kind, chunks = config.parallel.pp, config.schedule.kind, config.schedule.chunks
    micro_batches = accumulation(config)
    if ranks == 1 or micro_batches < 1 or SCHEDULES[kind].chunks_problem(chunks):
        return None
    if skips := skips_of(config):

        def idle_of_paths(micro_batches: int, forward: float, backward: float) -> float:
            """The mean over ranks. Work is told by stage and micro-batch, as if none left out a stage."""
            schedule_plan = plan(kind, ranks, chunks, micro_batches, skips)
            factor = 1 / (sum(schedule_plan.trained_shares) / schedule_plan.stages)
            costs = Costs(forward * factor, backward * factor)
            timeline = simulate(schedule_plan, costs, relative_sizes(schedule_plan, skips.layers))
            return timeline.bubble_fraction * timeline.seconds

        return Pipeline(kind, chunks, micro_batches, config.batch.micro_batch, idle_of_paths, _SIMULATION)

    registers = config.schedule.registers

    def idle(micro_batches: int, forward: float, backward: float) -> float:
        """By closed form where one holds for any costs, else by simulation; a split backward has equal halves."""
        half = backward / 2
        costs = Costs(forward, backward, half, half)
        with contextlib.suppress(NoFormError):
            if registers is None:
                return idle_seconds(kind, ranks, chunks, micro_batches, costs)
        schedule_plan = plan(kind, ranks, chunks, micro_batches)
        enough = (
            None if registers is None else max(registers, fewest(schedule_plan))
        )  # asked of other numbers, too
        return simulate(schedule_plan, costs, registers=enough).seconds - busy_seconds(
            kind, chunks, micro_batches, costs
        )

    has_form = registers is None and SCHEDULES[kind].idle is not None and SCHEDULES[kind].idle_of_any_costs
    formula = "its closed form" if has_form else _SIMULATION
    return Pipeline(kind, chunks, micro_batches, config.batch.micro_batch, idle, formula)


def notes_of(config: RunConfig, devices: Sequence[str]) -> tuple[str, ...]:
    """What a reader of a run's numbers should know; ``devices`` are what its ranks computed on."""
    memory, notes = config.memory, []
    on_cpu = bool(devices) and set(devices) == {"cpu"}
    if on_cpu and "offload" in (memory.block_actions or ()):
        notes.append(
            "offload in memory.block_actions moved activations to other memory of the same host: disk frees it"
        )
    if memory.offload != "none" and on_cpu:
        notes.append(
            f"memory.offload={memory.offload} saved no memory and cost time: a CPU's memory is the host's already"
        )
    if memory.parameters == "bf16" and config.parallel.zero_stage >= 2:
        notes.append(
            "memory.parameters=bf16 changed nothing: with precision bf16, ZeRO 2 and 3 gather parameters in bf16, "
            "sum gradients in fp32 and update fp32 slices anyway"
        )
    if config.parallel.sequence_groups == "planned" and layout.sequence_degrees(config) == (1,):
        notes.append(
            "parallel.sequence_groups=planned formed no groups: neither 2, 4 nor 8 divides dp, heads and kv_heads "
            "here. Each document was one rank's, and cut where it had more tokens than that rank holds"
        )
    return tuple(notes)


def note_start(
    folder: Path, config: RunConfig, chosen: selection.Devices, network: str | None = None
) -> None:
    """Give a run its owner, its devices, its page of progress and the calibration that it refers to.

    ``network`` tells of links between ranks that are not this host's own.
    """
    run_layout = layout.layout_of(config)
    Progress(folder, run_layout.world_size).close()
    run_folder.update_status(
        folder,
        state="running",
        owner=this_process(),
        started_unix=time.time(),
        world_size=run_layout.world_size,
        layout=run_layout.as_dict(),
        backend=chosen.backend,
        backend_reason=chosen.reason,
        devices=list(chosen.names),
        placement=config.parallel.placement,
        lab_hosts=lab_hosts(config),
        **store.reference(folder.parent, fingerprint.this_machine(network)),
    )


def note_job_start(folder: Path) -> None:
    """The same of a job that is not ours, whose ranks are not known yet."""
    reference = store.reference(folder.parent, fingerprint.this_machine(None))
    run_folder.update_status(folder, owner=this_process(), started_unix=time.time(), layout={}, **reference)


def network_of(lab: Lab) -> str | None:
    """A lab in words; None where ranks talk over this host's own links."""
    shape = shape_of(lab)
    return None if shape is None else f"a lab of {shape}"


def lab_hosts(config: RunConfig) -> list[int] | None:
    """The lab's host of each rank; None without a lab."""
    shape = shape_of(config.lab)
    return None if shape is None else shape.hosts_of_ranks(layout.devices_of(config))


_NO_TOKENS = "nobody told the tokens of a step: give base.batch.global_batch and base.data.sequence_length"


def note_ranks(folder: Path, config: RunConfig, ranks: int) -> None:
    """Of another trainer, whose layout nobody told: how many ranks it has. One of them answers for all."""
    run_folder.update_status(folder, world_size=ranks, voices=1, layout=_of_ranks(config, ranks))


def _of_ranks(config: RunConfig, ranks: int | None) -> dict[str, int]:
    of_others = {} if ranks is None else {layout.RANKS: ranks}
    return layout.layout_of(config).as_dict() | of_others


def finish(
    folder: Path, config: RunConfig, backend: str, outcome: RunOutcome, ranks: int | None = None
) -> RunSummary:
    """Sum up a run's records and note its ending; a full disk loses the summary, not the records.

    ``config`` is what the run began with; where it was changed, what it ended with is summed up. ``ranks`` are those
    of another trainer, as in :func:`note_ranks`.
    """
    records = RunRecords(folder / run_folder.RECORDS)
    config = run_folder.last_config(folder) or config
    summary = summary_of(config, folder.name, backend, records, calibration_or_reason(folder))
    if ranks is not None:
        summary = replace(summary, world_size=ranks, layout=_of_ranks(config, ranks))
    with contextlib.suppress(OSError):
        run_folder.write_json(folder / run_folder.SUMMARY, summary.as_dict())
        # A turn between two stages of ZeRO is no other layout, but for its name.
        ended = {"state": "ended", "ended_unix": time.time(), "outcome": outcome.as_dict()}
        run_folder.update_status(folder, **ended, layout=_of_ranks(config, ranks))
    return summary


def finish_job(folder: Path, outcome: RunOutcome) -> RunSummary:
    """As :func:`finish`, of a job that is not ours."""
    summary, over = summary_of_job(folder, RunRecords(folder / run_folder.RECORDS)), time.time()
    with contextlib.suppress(OSError):
        run_folder.write_json(folder / run_folder.SUMMARY, summary.as_dict())
        run_folder.update_status(folder, state="ended", ended_unix=over, outcome=outcome.as_dict(), hang=None)
    return summary


def summary_of_job(folder: Path, records: RunRecords) -> RunSummary:
    """The records of a job that is not ours; what it computes on, and so its FLOPs and its layout, nobody told."""
    job = run_folder.ForeignJob.from_folder(folder) or run_folder.ForeignJob()
    status = run_folder.RunStatus.from_folder(folder)
    calibrated, backend = calibration_or_reason(folder), status.backend or "none"
    facts = RunFacts(
        run=folder.name,
        layout={},
        world_size=status.world_size or 0,
        backend=backend,
        tokens_per_step=job.tokens_per_step,
        model_flops_per_step=None,
        peak_flops_per_second=None,
        peak_source="a foreign job does not tell in which precision it computes",
        parameters=None,
        model=TrainedModel(None),
        notes=(*job.notes, *_rank_notes(records)),
        links=calibrated.links(backend),
        links_reason=calibrated.reason,
    )
    return generalize_advice(summarize(records, facts))


def summary_of_refused(config: RunConfig, backend: str) -> RunSummary:
    """Of a configuration that breaks a rule: nothing ran, and no formula need hold of it."""
    run_layout = layout.layout_of(config)
    facts = RunFacts(
        run="",
        layout=run_layout.as_dict(),
        world_size=run_layout.world_size,
        backend=backend,
        tokens_per_step=config.tokens_per_step,
        model_flops_per_step=None,
        peak_flops_per_second=None,
        peak_source="nothing ran",
        parameters=None,
        model=TrainedModel(None),
    )
    return summarize(RunRecords(Path()), facts)


def calibration_or_reason(folder: Path) -> store.CalibrationLookup:
    """The calibration that a run folder refers to, or why there is none."""
    return store.calibration_of_run(folder.parent, run_folder.RunStatus.from_folder(folder))


def summary_of(
    config: RunConfig,
    run: str,
    backend: str,
    records: RunRecords | None,
    calibrated: store.CalibrationLookup = store.UNKNOWN,
    since: int | None = None,
    settling: int | None = None,
) -> RunSummary:
    """A run's records with what its configuration says about them; without records, an empty summary.

    ``calibrated`` is what the machine was measured to reach. Only steps ``since`` one of them count, or since the last
    change, without the first ``settling`` ones; None leaves out those that ranks did not measure.
    """
    records = records or RunRecords(Path())
    config = _with_last_batch(config, records)
    run_layout = layout.layout_of(config)
    work = _work(config, records)
    peak, peak_source = _peak(config, records)
    several_stages = config.parallel.pp * config.schedule.chunks > 1
    facts = RunFacts(
        run=run,
        layout=run_layout.as_dict(),
        world_size=run_layout.world_size,
        backend=backend,
        tokens_per_step=work.tokens,
        model_flops_per_step=work.model_flops,
        model=work.model,
        peak_flops_per_second=peak,
        peak_source=peak_source,
        parameters=work.parameters,
        hardware_flops_per_step=work.hardware_flops,
        mfu_convention=work.convention,
        notes=notes_of(config, _devices(records)) + _rank_notes(records),
        links=calibrated.links(backend),
        links_reason=calibrated.reason,
        round_steps=round_steps(config),
        setting=setting_of(config),
        pipelines=tuple(map(tuple, run_layout.groups("pp"))) if several_stages else (),
        since=since,
        settling=settling,
        ranks_alike=run_layout.tp * run_layout.pp if not config.trainer and is_decoder(config.model) else 0,
    )
    summary = summarize(records, facts)
    if config.trainer and work.tokens is None and summary.step_seconds is not None:
        summary = replace(summary, tokens_per_second_reason=_NO_TOKENS)
    if records.ranks():  # others may ask for what cannot be
        summary = replace(summary, partial_products=_partial_products(config))
    if summary.pipeline is None:
        return summary
    # The measured bubble beside the one that the schedule has at the measured costs.
    fraction, source = _expected_bubble(config, summary.pipeline.action_seconds)
    shares = plan_of(config).trained_shares if config.schedule.skip_share else ()
    row = replace(
        summary.pipeline, formula_fraction=fraction, formula_source=source, trained_shares=list(shares)
    )
    return replace(summary, pipeline=_with_registers(row, records))


def _partial_products(config: RunConfig) -> PartialProductsRow | None:
    """None where products are whole. No two shares of them are below 1."""
    shares = {key: config.value_of(key) for key, knob in KNOBS.items() if knob.product_share}
    key = next((key for key, share in shares.items() if share < 1), None)
    if key is None or config.trainer or not is_decoder(config.model):
        return None
    parts = parts_of(config, plan_of(config))
    whole, kept_bytes = (
        [stage.device + stage.host + remembered_bytes(variant, part)
         for part in parts for stage in [stage_activations(variant, part)]]
        for variant in (config.with_values({key: 1.0}), config)
    )  # fmt: skip
    place = whole.index(max(whole))
    return PartialProductsRow(key, shares[key], kept_bytes[place], whole[place])


def _with_registers(row: PipelineRow, records: RunRecords) -> PipelineRow:
    """With what ranks told of the registers between their stages, if there is a bound."""
    reports = [
        event.data for rank in records.ranks() for event in records.events(rank) if event.kind == REGISTERS
    ]
    if not reports:
        return row
    return replace(
        row,
        registers=reports[0]["registers"],
        most_held=max(report["most_held"] for report in reports),
        register_seconds=fmean(report["seconds"] for report in reports),
    )


def _with_last_batch(config: RunConfig, records: RunRecords) -> RunConfig:
    """With the batch of the last steps, which are measured; one that grows may not have come to its end."""
    if not grows(config):
        return config
    grown, resumed = [row.new for row in change_rows(records) if row.key == BATCH], resume_source(records)
    first = config.batch.ramp_from if resumed is None else resumed.batch or config.batch.ramp_from
    return config.with_values({BATCH: grown[-1] if grown else first})


@dataclass(frozen=True, slots=True)
class _Work:
    """What a step computes, all ranks together."""

    tokens: int | None
    model: TrainedModel = field(default_factory=TrainedModel)
    parameters: int = 0
    model_flops: float | None = None
    hardware_flops: float | None = None
    convention: str = flops.CONVENTION


def _work(config: RunConfig, records: RunRecords) -> _Work:
    """By formula of the decoder, and as rank 0 told it of another workload; of a trainer that is not this project's
    nobody knows it.
    """
    tokens = config.tokens_per_step
    if config.trainer:
        return _Work(tokens, TrainedModel(None))
    if not is_decoder(config.model):
        return _work_told(config, records)
    try:
        work = flops.workload_of(config)
    except InputError:
        work = None
    if work is None:
        return _Work(tokens)
    if config.data.documents == "whole":
        trained = TrainedModel(flops_reason=_OWN_LENGTHS, shared_parameters=flops.shared_parameters(work))
        return _Work(None, model=trained, parameters=flops.parameters(work))
    return _Work(
        tokens,
        model=TrainedModel(shared_parameters=flops.shared_parameters(work)),
        parameters=flops.parameters(work),
        model_flops=flops.model_flops_per_step(work),
        hardware_flops=flops.hardware_flops_per_step(work) if config.memory.budget_gib is None else None,
    )


def _work_told(config: RunConfig, records: RunRecords) -> _Work:
    """Recomputed work was not counted: hardware FLOPs are known where there is none. Nor was any beside a frozen
    model.
    """
    events = [event for rank in records.ranks() for event in records.events(rank) if event.kind == "workload"]
    if not events:
        return _Work(config.batch.global_batch, TrainedModel(config.model.workload))
    facts, batch = WorkloadFacts(**events[-1].data), config.batch.global_batch
    if config.train.adapt != "none":
        facts = replace(facts, flops=None, flops_reason="beside a frozen model FLOPs are not counted")
    model = None if facts.flops is None else facts.flops * batch
    return _Work(
        tokens=facts.tokens * batch,
        model=TrainedModel(facts.name, facts.metric, facts.flops_reason, facts.shared_parameters),
        parameters=facts.parameters,
        model_flops=model,
        hardware_flops=model if _recomputes_nothing(config) else None,
        convention=flops.COUNTED,
    )


def _recomputes_nothing(config: RunConfig) -> bool:
    actions = config.memory.block_actions or []
    return config.memory.recompute == "none" and "full" not in actions


def _peak(config: RunConfig, records: RunRecords) -> tuple[float | None, str]:
    """Mean peak of the ranks' devices, for the dtype and the fp32 precision that they told; or the one they told."""
    environments = _environments(records)
    if environments and environments[0].data.get("peak_flops"):  # of a device that only a model has
        return float(environments[0].data["peak_flops"]), str(environments[0].data["peak_source"])
    names = _devices(records)
    tf32 = any(event.data.get("fp32_precision", "highest") != "highest" for event in environments)
    return device_peaks.mean_peak(names, config.precision, tf32)


def _environments(records: RunRecords) -> list[Event]:
    return [
        event for rank in records.ranks() for event in records.events(rank) if event.kind == "environment"
    ]


def _rank_notes(records: RunRecords) -> tuple[str, ...]:
    """What ranks noted themselves, each thing once."""
    events = [event for rank in records.ranks() for event in records.events(rank) if event.kind == "note"]
    return tuple(dict.fromkeys(str(event.data.get("text")) for event in events))


def _devices(records: RunRecords) -> list[str]:
    """What each rank computed on, as it told."""
    return [str(event.data["device"]) for event in _environments(records) if "device" in event.data]


def _expected_bubble(config: RunConfig, seconds: Mapping[str, float]) -> tuple[float, str]:
    """The fraction with actions of so many ``seconds`` by kind of work (F, B, I, W) and messages that take none.

    Also says where it is from: the closed form or, where that needs equal costs, a simulation of the lists.
    """
    whole = seconds.get("B", seconds.get("I", 0.0) + seconds.get("W", 0.0))
    costs = Costs(
        forward=seconds.get(Work.FORWARD, 0.0),
        backward=whole,
        input=seconds.get(Work.INPUT, 0.0),
        weight=seconds.get(Work.WEIGHT, 0.0),
    )
    if skips := skips_of(config):
        schedule_plan = plan_of(config)
        timeline = simulate(schedule_plan, costs, relative_sizes(schedule_plan, skips.layers))
        return timeline.bubble_fraction, "simulation of its lists"
    kind, ranks, chunks = config.schedule.kind, config.parallel.pp, config.schedule.chunks
    micro_batches = accumulation(config)
    registers = config.schedule.registers
    with contextlib.suppress(NoFormError):
        if registers is None:
            return bubble_fraction(kind, ranks, chunks, micro_batches, costs), "closed form"
    timeline = simulate(plan(kind, ranks, chunks, micro_batches), costs, registers=registers)
    return timeline.bubble_fraction, "simulation of its lists"
