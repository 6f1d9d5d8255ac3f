"""Rules about waiting between the stages of a pipeline: what the schedule costs, and what messages cost on top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from profilers.model.rows import PipelineRow
from profilers.model.run_summary import CommunicationRow
from profilers.model.verdict import Gain, Pipeline, Verdict
from profilers.records.operations import POINT_TO_POINT
from profilers.verdicts.communication import exposed_finding
from profilers.verdicts.evidence import Exposure, RuleInputs, percent, seconds


def pipeline_findings(
    inputs: RuleInputs, rows: Sequence[CommunicationRow], ran: PipelineRow | None
) -> Iterator[Verdict]:
    """The schedule's own bubble, and messages over pp that ranks waited for; none without a pipeline.

    What ranks wait is, by the mean over them: what the schedule's formula says for actions as long as they were; what
    a stage works longer than the mean one; and messages under way. ``ran`` tells these last from the actions as they
    ran; without it they are what is left.
    """
    waited = float(inputs.mean("bubble").mean())
    pipeline = inputs.setting.pipeline
    if not waited:
        return
    work = inputs.mean("forward", "backward")
    most = waited if ran is None else max(0.0, waited - ran.transfer_seconds)
    by_schedule = most if pipeline is None else min(most, _idle(inputs, pipeline, 1))
    unexplained = max(0.0, waited - by_schedule - float(work.max() - work.mean()))
    unexplained = unexplained if ran is None else min(waited, ran.transfer_seconds)
    yield _bubble(inputs, by_schedule, waited)
    messages = [
        exposure
        for exposure in inputs.exposures
        if (exposure.axis, exposure.operation) == ("pp", POINT_TO_POINT)
    ]
    sent = messages[0] if messages else Exposure("pp", POINT_TO_POINT, 0.0, 0.0)
    if unexplained + sent.seconds > 0:
        bubble_evidence = f"; {seconds(unexplained)} of it between stages, beyond the schedule's own bubble"
        yield exposed_finding(
            inputs,
            rows,
            replace(sent, seconds=sent.seconds + unexplained),
            bubble_evidence if unexplained else "",
        )


def _idle(inputs: RuleInputs, pipeline: Pipeline, finer: int) -> float:
    """Seconds that the schedule makes a rank wait, with ``finer`` times the micro-batches, each that much shorter."""
    actions = pipeline.chunks * pipeline.micro_batches
    forward = float(inputs.mean("forward").mean()) / actions
    backward = float(inputs.mean("backward").mean()) / actions
    return pipeline.idle_seconds(finer * pipeline.micro_batches, forward / finer, backward / finer)


def _bubble(inputs: RuleInputs, by_schedule: float, waited: float) -> Verdict:
    share, pipeline = by_schedule / inputs.step_seconds, inputs.setting.pipeline
    text = (
        f"a rank waits {seconds(by_schedule)} of a mean step ({percent(share)}) for its turn in the pipeline"
    )
    if pipeline is not None:
        text += (
            f", the bubble of {pipeline.kind} with {pipeline.micro_batches} micro-batches by {pipeline.formula}; "
            f"{seconds(waited)} were measured in total"
        )
    remedy = "more micro-batches: a larger batch.global_batch"
    if pipeline is None or pipeline.micro_batch > 1:
        remedy = "more micro-batches: a smaller batch.micro_batch, or a larger batch.global_batch"
    return Verdict(
        name="pipeline_bubble",
        evidence=text,
        threshold=None,
        advice=f"{remedy}; another schedule.kind or more schedule.chunks; a smaller parallel.pp",
        threshold_name="bubble",
        share=share,
        seconds=by_schedule,
        axis="pp",
        knobs=["batch.micro_batch", "batch.global_batch", "schedule.kind", "schedule.chunks", "parallel.pp"],
        gain=_gain(inputs, pipeline, by_schedule),
    )


def _gain(inputs: RuleInputs, pipeline: Pipeline | None, by_schedule: float) -> Gain:
    if pipeline is None:
        return Gain(by_schedule / inputs.step_seconds, "bubble / step, if nobody waited")
    now = _idle(inputs, pipeline, 1)
    fraction = (1 - _idle(inputs, pipeline, 2) / now) * by_schedule / inputs.step_seconds if now else 0.0
    m = pipeline.micro_batches
    return Gain(
        max(0.0, fraction), f"(bubble at {m} - bubble at {2 * m} micro-batches) / step, by {pipeline.formula}"
    )
