"""Where the time of a step goes, in words: phases, exposed communication, skew, bubble, warm-up, clocks and gaps; and
what becomes of its activations and of its compressed gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.config.layout import RANKS
from profilers.model.rows import (
    FIXED,
    ONE_OFF,
    ROTATING,
    AdapterRow,
    ClockRow,
    ExpertRow,
    ExpertSlotRow,
    GapRow,
    MemoryPlanRow,
    NetworkRow,
    PartialProductsRow,
    PipelineRow,
    PlanRow,
    PrefetchRow,
    SkewRow,
    TaskRow,
    UpdateRow,
)
from profilers.model.run_summary import RunSummary
from workbench.text import words
from workbench.text.quantities import COUNT, MEGABYTES, MILLISECONDS, PERCENT, RATIO, SECONDS, Column

AXES = (
    "Exposed seconds sum to the phase of that name. Waits for a pipeline's messages are the phase bubble; of pp only "
    "the wait for the last messages to leave, and for the gradient's norm, is here."
)
#: Phases below this share of a step are not listed.
_LEAST_SHARE = 0.005


#: What passes between two steps, beside the phases.
BETWEEN = "between_steps"


def add_between(seconds_by_phase: Mapping[str, float], between: float) -> dict[str, float]:
    """The phases, and what passes between two steps: together the mean step."""
    return {**seconds_by_phase, BETWEEN: between} if seconds_by_phase else {}


def phases(seconds_by_phase: Mapping[str, float], between: float = 0.0) -> str:
    """The phases of the mean step over all ranks, the longest first, with their shares."""
    seconds_by_phase = add_between(seconds_by_phase, between)
    whole = sum(seconds_by_phase.values())
    return ", ".join(
        f"{words.ending_words(name)} {words.seconds(seconds)} ({words.percent(seconds / whole)})"
        for name, seconds in sorted(seconds_by_phase.items(), key=lambda item: -item[1])
        if whole and seconds / whole >= _LEAST_SHARE
    )


def axes_text(exposed: Mapping[str, float], hidden: Mapping[str, float]) -> str:
    """Exposed and hidden seconds of each axis, the largest first."""
    axes = sorted({*exposed, *hidden}, key=lambda axis: -exposed.get(axis, 0.0))
    return ", ".join(
        f"{axis} {words.seconds(exposed.get(axis, 0.0))}"
        + (f" (hidden {words.seconds(hidden[axis])})" if axis in hidden else "")
        for axis in axes
    )


def straggler(summary: RunSummary) -> str:
    """Who is busiest, where, and how often."""
    if RANKS in summary.layout and summary.world_size > 1:
        return "One rank tells of the steps of all: no skew is known."
    if summary.slowest_rank is None:
        return "No step was measured." if summary.world_size != 1 else "A single rank has no skew."
    if summary.slowest_rank_share is None:
        return "A single rank has no skew."
    place = f"rank {summary.slowest_rank}" + (
        f" on {summary.slowest_rank_host}" if summary.slowest_rank_host else ""
    )
    skew, share = words.seconds(summary.rank_skew_seconds), words.percent(summary.slowest_rank_share)
    by_chance = summary.skew is not None and summary.slowest_rank not in summary.skew.ranks
    return (
        f"{place[0].upper()}{place[1:]} computes longest, {skew} more than the least busy rank in a mean step; it is "
        f"the busiest in {share} of the steps{', which is no more than chance explains' if by_chance else ''}."
    )


#: Kind of skew -> what it means.
SKEW_MEANINGS = {
    FIXED: "the same ranks are behind, more often than by chance",
    ROTATING: "another rank is behind each time",
    ONE_OFF: "a rank is far behind in a few steps",
}
_BY_CHANCE = "no rank is behind more often than chance explains"
#: How the kinds are told apart, for whoever asks.
SKEW_HELP = (
    "In each step one rank is last, by so much behind the median of the others. What steps that stand out (modified "
    "z-score above 3.5, at most a tenth of the steps) lie above the median step is one-off. Of the others, what is "
    "lost to ranks that are last more often than by chance (binomial test at 1 %, corrected for the number of ranks) "
    "is fixed. The rest is rotating. Steps in a row are not independent: a busy minute of a host can look fixed."
)


def skew(row: SkewRow) -> str:
    """Of which kind it is, what each kind costs, and who."""
    parts = {FIXED: row.fixed_seconds, ROTATING: row.rotating_seconds, ONE_OFF: row.one_off_seconds}
    parts_text = ", ".join(f"{kind} {words.seconds(seconds)}" for kind, seconds in parts.items())
    rank_text = ""
    if row.ranks:
        named = words.ranks(row.ranks)
        ranks, verb = ("Rank", "is") if len(row.ranks) == 1 else ("Ranks", "are")
        rank_text += f" {ranks} {named} {verb} last in {words.percent(row.ranks_share)} of the steps."
    if row.latest:
        worst = row.latest[0]
        steps = "1 step stands" if row.late_steps == 1 else f"{row.late_steps:,} steps stand"
        worst_of = f"rank {worst.rank:,} in step {worst.step:,}, {words.seconds(worst.seconds)} behind"
        rank_text += f" {steps} out; worst: {worst_of}."
    meaning = _BY_CHANCE if row.kind == ROTATING and not row.ranks else SKEW_MEANINGS[row.kind]
    return (
        f"The skew is {row.kind}: {meaning}. The last rank is {words.seconds(row.seconds)} behind the "
        f"median of the others in the mean step: {parts_text}.{rank_text}"
    )


def anatomy(summary: RunSummary) -> Iterator[str]:
    """One line each for the kind of skew, the bubble, the warm-up and the clocks."""
    if summary.skew is not None:
        yield skew(summary.skew)
    if summary.pipeline is not None:
        yield _bubble(summary.pipeline)
    if summary.tasks:
        yield f"{tasks(summary.tasks)}."
    if summary.experts:
        yield _experts(summary.experts)
    if summary.warmup_steps is not None:
        yield _warmup(summary.warmup_steps, summary.warmup_steps_found)
    if summary.clocks:
        yield _clocks(summary.clocks)


def _bubble(row: PipelineRow) -> str:
    parts = {
        "waiting for a neighbour": row.waiting_seconds,
        "transfer of messages": row.transfer_seconds,
        "gaps within the rank": row.gap_seconds,
    }
    idle = ", ".join(f"{name} {words.seconds(seconds)}" for name, seconds in parts.items())
    text = f"Bubble as the actions ran: {words.percent(row.bubble_fraction, 1)} of the pipeline's span"
    if row.formula_fraction is not None:
        text += f"; {words.percent(row.formula_fraction, 1)} by {row.formula_source} at these costs"
    text += f". Per rank and step: {idle}"
    if row.trained_shares:
        shares = ", ".join(words.percent(share) for share in row.trained_shares)
        text += f". Stages are trained by {shares} of the micro-batches"
    if row.registers is not None and row.most_held is not None:
        wait_text = words.seconds(row.register_seconds or 0.0)
        text += (
            f". Between stages with {words.several(row.registers, 'registers')} a rank held at most "
            f"{words.several(row.most_held, 'messages')} of one way, and waited {wait_text} a step for a free register"
        )
    if row.clock_error_seconds:
        text += f"; clocks are known to within {words.seconds(row.clock_error_seconds)}"
    return f"{text}."


def _experts(rows: Sequence[ExpertRow]) -> str:
    row = max(rows, key=lambda row: row.excess)
    text = (
        f"Experts: least even in layer {row.layer}, where the busiest of {len(row.load)} has "
        f"{words.percent(max(row.load))} of the choices and {words.percent(row.excess)} are beyond an even load"
    )
    if row.rank_load is not None:
        text += f"; the busiest rank of ep has {row.rank_load:.2f} times the mean"
    dropped_share = sum(row.dropped_fraction for row in rows) / len(rows)
    return f"{text}; {words.percent(dropped_share)} of all choices were dropped{_bucketing_text(rows)}."


def _bucketing_text(rows: Sequence[ExpertRow]) -> str:
    measured = [row for row in rows if row.sent_fraction is not None]
    if not measured:
        return ""
    sent_share = sum(row.sent_fraction or 0.0 for row in measured) / len(measured)
    residual = sum(row.residual or 0.0 for row in measured) / len(measured)
    return (
        f", and {words.percent(sent_share)} of them travelled for all, "
        f"{words.percent(residual)} of a token's length from it in the mean"
    )


def tasks(rows: Sequence[TaskRow]) -> str:
    """Who worked on which task: how even that is decides how long ranks wait for each other."""
    whole = sum(row.micro_batches for row in rows)
    micro_batches: dict[int, int] = {}
    for row in rows:
        for rank, count in row.ranks.items():
            micro_batches[rank] = micro_batches.get(rank, 0) + count
    text = ", ".join(
        f"{row.name} has {row.micro_batches:,} on {words.several(len(row.ranks), 'ranks')}" for row in rows
    )
    least, most = min(micro_batches.values()), max(micro_batches.values())
    ranks = f"each rank has {most:,}" if least == most else f"ranks have {least:,} to {most:,}"
    return f"Of {words.several(whole, 'micro-batches')} a step {text}; {ranks}"


def task_columns(rows: Sequence[TaskRow]) -> list[Column]:
    """What each task has of a step, and how far it came."""
    losses = [[loss for loss in row.losses if loss is not None] for row in rows]
    return [
        Column("task", [row.name for row in rows]),
        Column("micro-batches", [row.micro_batches for row in rows], COUNT, "Of a step."),
        Column("ranks", [len(row.ranks) for row in rows], COUNT, "That had some of them."),
        Column("first loss", [losses[0] if losses else None for losses in losses], RATIO),
        Column("last loss", [losses[-1] if losses else None for losses in losses], RATIO),
    ]  # fmt: skip


def expert_slots(row: ExpertSlotRow) -> str:
    """What a rank's slots were good for."""
    wanted = row.hits + row.ahead + row.misses
    shares = {"found": row.hits, "on their way": row.ahead, "waited for": row.misses}
    text = ", ".join(
        f"{words.percent(count / wanted if wanted else 0.0)} {name}" for name, count in shares.items()
    )
    return (
        f"rank {row.rank} has {row.slots} slots of {words.gib(row.slot_bytes)} for {row.experts} experts on "
        f"{'the host' if row.home == 'host' else 'disk'}: of {wanted:,} requests {text}; "
        f"{words.gib(row.fetched_bytes)} fetched, products waited {words.seconds(row.waited_seconds)}"
    )


def batches_ahead(rows: Sequence[PrefetchRow]) -> str:
    """What making batches ahead was good for: of all ranks, and what steps waited on the one that waited longest."""
    wanted, ready = sum(row.asked for row in rows), sum(row.ready for row in rows)
    most = max(rows, key=lambda row: row.waited_seconds)
    seconds = words.seconds(sum(row.made_seconds for row in rows) / len(rows))
    dropped_count = sum(row.dropped for row in rows)
    return (
        f"at most {most.registers} made ahead: of {wanted:,} that steps asked for "
        f"{words.percent(ready / max(wanted, 1))} were ready; rank {most.rank} waited longest, "
        f"{words.seconds(most.waited_seconds)} in all, where making them took a rank {seconds}"
        + (f"; {dropped_count:,} were made for nothing" if dropped_count else "")
    )


_ISLANDS = {True: ", on one island", False: ", between islands", None: ""}


def networks(rows: Sequence[NetworkRow]) -> str:
    """What groups were given to send over, by where their members are."""
    return "; ".join(
        f"{row.axis} over {row.network or 'what its backend chose'}"
        f"{_ISLANDS[row.inside]} ({words.named_ranks(row.ranks)})"
        for row in rows
    )


def adapted_text(row: AdapterRow) -> str:
    """What was trained beside a frozen model, and whether that stayed as it was."""
    text = f"are to the bit what they were (SHA-256 {row.sha256[:12]})"
    changed = f"changed: SHA-256 {row.sha256[:12]} before, {row.sha256_at_end[:12]} after"
    return (
        f"{words.ADAPTERS[row.method]} of rank {row.rank} trained {row.side_parameters:,} parameters, "
        f"{100 * row.share:.3g} % of all; the {row.frozen_parameters:,} frozen ones {text if row.kept else changed}"
    )


def adapter_text(train: Mapping[str, Any]) -> str:
    """Of a run that has not ended, by its settings; empty where all of it learns."""
    method = words.ADAPTERS.get(train.get("adapt") or "none")
    if method is None:
        return ""
    return f"{method} of rank {train.get('adapt_rank')} learns beside a frozen model, from {train.get('resume')}."


def partial_products(row: PartialProductsRow) -> str:
    """What steps leave out, and what that spares."""
    share, remaining = words.percent(row.share), "activations"
    part = f"a step trains {share} of each block's heads and, experts aside, feed-forward width"
    if row.key == "memory.sample_tokens":
        remaining = "activations and remembered norms of gradients"
        part = f"weight gradients come from {share} of the tokens"
    size, whole = words.gib(row.kept_bytes), words.gib(row.whole_bytes)
    return f"{part}; by formula a micro-batch leaves {size} of {remaining} in a stage in place of {whole}"


def update(row: UpdateRow) -> str:
    """What is trained, and in how many bytes."""
    trained_layers = [layer for layer in row.layers if layer.trained_channels]
    parts = ", ".join(f"{name} {_kib(size)}" for name, size in row.formula_bytes.items())
    formula_bytes, counted_bytes = sum(row.formula_bytes.values()), sum(row.counted_bytes.values())
    counted_text = f"; counted: {_kib(counted_bytes)}" if row.counted_bytes else ""
    if counted_bytes == formula_bytes:
        counted_text = "; as many were counted"
    return (
        f"{row.way}: weights of {len(trained_layers)} of {len(row.layers)} layers, biases of "
        f"{sum(layer.biases for layer in row.layers)}, in {_kib(formula_bytes)} of {_kib(row.budget_bytes)} "
        f"({parts}{counted_text}); a data rank sends {_kib(row.sent_bytes)}"
    )


def _kib(size: int) -> str:
    return f"{size / 1024:,.1f} KiB"


def update_columns(row: UpdateRow) -> list[Column]:
    """What is trained of each layer."""
    layers = row.layers
    return [
        Column("layer", [layer.name for layer in layers]),
        Column("output channels", [layer.channels for layer in layers], COUNT),
        Column("their weights trained", [layer.trained_channels for layer in layers], COUNT),
        Column("biases trained", ["yes" if layer.biases else "no" for layer in layers]),
        Column("lower loss", [layer.gain for layer in layers], RATIO,
               "By how much more these weights lowered the held-out loss, with biases and head alone, than those did."),
    ]  # fmt: skip


def expert_columns(rows: Sequence[ExpertRow]) -> list[Column]:
    """How evenly each layer's experts are loaded."""
    columns = [
        Column("layer", [row.layer for row in rows]),
        Column("busiest expert", [row.load.index(max(row.load)) for row in rows]),
        Column("its share", [max(row.load) for row in rows], PERCENT, "Of all choices of the layer."),
        Column("beyond even", [row.excess for row in rows], PERCENT,
               "Choices that would have to go to others for an even load."),
        Column("dropped", [row.dropped_fraction for row in rows], PERCENT, "Choices that found no slot."),
        Column("balance", [row.balance for row in rows], RATIO,
               "What the balance loss weighs: 1 when the load is even."),
    ]  # fmt: skip
    if rows and rows[0].rank_load is not None:
        loads = [row.rank_load for row in rows]
        columns.append(Column("busiest ep rank", loads, RATIO, "Its choices over the mean rank's."))
    if rows and rows[0].sent_fraction is not None:
        columns += [
            Column("sent", [row.sent_fraction for row in rows], PERCENT,
                   "Tokens that travelled, each for those of its bucket, of all choices."),
            Column("residual", [row.residual for row in rows], PERCENT,
                   "Mean distance of a token from the one that was sent for it, over its length."),
        ]  # fmt: skip
    return columns


def _warmup(left_out: int, by_times: int | None) -> str:
    shares = (
        "the step times do not show how long it lasts" if by_times is None else f"{by_times:,} by their times"
    )
    return f"Warm-up: {words.several(left_out, 'steps')} left out, {shares}."


def _clocks(rows: Sequence[ClockRow]) -> str:
    worst = max(rows, key=lambda row: row.error_seconds)
    farthest = max(rows, key=lambda row: abs(row.offset_seconds))
    return (
        f"Clocks: rank {farthest.rank} is {farthest.offset_seconds * 1e3:+,.3f} ms from rank 0, the largest; "
        f"known within {worst.error_seconds * 1e3:,.3f} ms."
    )


def _gap_ends(row: GapRow) -> str:
    """What was before and after a gap."""
    if row.after is None and row.before is None:
        return "the whole step"
    if row.after is None:
        return f"start of the step, {words.ending_words(row.before)}"
    before = "end of the step" if row.before is None else words.ending_words(row.before)
    return f"{words.ending_words(row.after)}, {before}"


def longest_gap(row: GapRow) -> str:
    """The costliest gap in one line."""
    return (
        f"{words.seconds(row.seconds)} a step between {_gap_ends(row)}; at most "
        f"{words.seconds(row.longest_seconds)}, on rank {row.rank} in step {row.step:,}"
    )


def gap_columns(rows: Sequence[GapRow]) -> list[Column]:
    """The costliest gaps between named phases."""
    fine_milliseconds = MILLISECONDS._replace(format="%,.3f")
    caption = "Mean over ranks and the steps whose spans were kept."
    return [
        Column("between", [_gap_ends(row) for row in rows]),
        Column("time per step", [row.seconds for row in rows], fine_milliseconds, caption),
        Column("longest", [row.longest_seconds for row in rows], fine_milliseconds),
        Column("on rank", [row.rank for row in rows]),
        Column("in step", [row.step for row in rows], COUNT),
    ]


def memory_plan(row: MemoryPlanRow) -> str:
    """What a stage does with the activations of its blocks, and what that is worth."""
    blocks = ", ".join(_stretch(*stretch) for stretch in stretches(row))
    comparison = "no way to treat all blocks alike fits"
    if set(row.actions) == {row.uniform}:
        comparison = "as all blocks alike"
    elif row.uniform_seconds is not None and row.micro_batch_seconds:
        gain = words.percent(row.uniform_seconds / row.micro_batch_seconds - 1, 1)
        comparison = f"{row.uniform} for all blocks would take {gain} longer"
    return (
        f"stage {row.stage} holds at most {words.gib(row.peak_bytes)} of activations of {words.gib(row.budget_bytes)}: "
        f"{blocks}; {words.seconds(row.micro_batch_seconds)} a micro-batch as planned, {comparison}"
    )


def stretches(row: MemoryPlanRow) -> list[tuple[str, int, int]]:
    """Blocks in a row with the same action: the action, and the numbers of the first and the last."""
    runs: list[tuple[str, int, int]] = []
    for number, action in enumerate(row.actions, row.first):
        if runs and runs[-1][0] == action:
            runs[-1] = action, runs[-1][1], number
        else:
            runs.append((action, number, number))
    return runs


def _stretch(action: str, first: int, last: int) -> str:
    return f"{action} {first}" if first == last else f"{action} {first}-{last}"


def memory_plan_columns(row: MemoryPlanRow) -> list[Column]:
    """What each action of a block was measured to cost, and how many blocks take it."""
    actions = list(row.costs)

    def of(name: str) -> list[float | None]:
        return [row.costs[action].get(name) for action in actions]

    return [
        Column("action", actions),
        Column("blocks", [row.actions.count(action) for action in actions], COUNT),
        Column("stays", of("resident"), MEGABYTES, "Between its forward and its backward."),
        Column("in its backward", of("backward_bytes"), MEGABYTES, "While its backward computes."),
        Column("forward", of("forward_seconds"), MILLISECONDS),
        Column("backward", of("backward_seconds"), MILLISECONDS, "With what is computed again."),
        Column("copied away in", of("out_seconds"), MILLISECONDS, "Beside what blocks behind it compute."),
        Column("back in", of("back_seconds"), MILLISECONDS, "Beside the backward of blocks behind it."),
    ]


def compression_plan(row: PlanRow) -> str:
    """One plan of compression: what it chose, and what that saves."""
    values, since = list(row.layers.values()), f"from step {row.step:,} on {row.method}"
    if not values:
        better = "sends 5 % less and keeps the loss" if row.budget_of == "loss" else "sends less"
        return f"{since} stays at {row.default:.3g} for every layer: no other choice {better}"
    text = f"{since} has {min(values):.3g} to {max(values):.3g} for {len(values):,} layers"
    if row.taken_from:
        return f"{text}, as in {row.taken_from}"
    sizes = (row.bytes_after, row.bytes_uniform)
    planned_size, uniform_size = (words.NOTHING if size is None else f"{size / 1e6:,.3f}" for size in sizes)
    return (
        f"{text}: {planned_size} MB a step where {row.default:.3g} for all sends {uniform_size}, {_plan_budget(row)}; "
        f"planned in {words.seconds(row.seconds)}"
    )


def _plan_budget(row: PlanRow) -> str:
    """What of its budget a plan uses."""
    if row.budget_of != "loss":
        return f"with {words.percent(_budget_share(row), 1)} of the error allowed"
    effect_text, uniform_effect = (words.percent(effect, 1) for effect in (row.effect, row.effect_uniform))
    return (
        f"with errors {_times(_error_share(row))} as large, but {effect_text} lost of what counts for the loss where "
        f"one value loses {uniform_effect}"
    )


def _times(ratio: float | None) -> str:
    return words.NOTHING if ratio is None else f"{ratio:.2f} times"


def _error_share(row: PlanRow) -> float | None:
    """The ``plan_alpha`` that a plan comes to: its errors over those of one value."""
    return row.error / row.error_uniform if row.error is not None and row.error_uniform else None


def _budget_share(row: PlanRow) -> float | None:
    effect = row.effect if row.budget_of == "loss" else row.error
    return effect / row.budget if effect is not None and row.budget else None


def compression_plan_columns(rows: Sequence[PlanRow]) -> list[Column]:
    """Every plan of compression that a run followed."""
    fine_megabytes = MEGABYTES._replace(format="%,.3f")
    by_formula, same = "On the wire, by formula, of a rank.", "With the same value for every layer."
    budget = "Of the loss or the error that one value for all costs."
    error = "What layers lose, as a sum, over that with one value for all."
    effect = "The share of gradients' squares that is lost, layers by their weight for the loss."
    return [
        Column("from step", [row.step for row in rows], COUNT),
        Column("sent per step", [row.bytes_after for row in rows], fine_megabytes, by_formula),
        Column("with one value", [row.bytes_uniform for row in rows], fine_megabytes, same),
        Column("budget used", [_budget_share(row) for row in rows], RATIO, budget),
        Column("error / one value's", [_error_share(row) for row in rows], RATIO, error),
        Column("lost of what counts", [row.effect for row in rows], PERCENT, effect),
        Column("with one value's", [row.effect_uniform for row in rows], PERCENT, effect),
        Column("planned in", [row.seconds for row in rows], SECONDS),
    ]
