"""Legal configurations over all knobs at once, on few ranks, and what has to hold for whatever they ran."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

from engine.config.errors import InputError
from engine.config.knobs.catalogue import is_lossy
from engine.config.layout import accumulation, layout_of
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import problems
from engine.run.run_folder import RECORDS
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from profilers.records.schema import CommSample
from tests.support.runs import execute
from tuning.predict.traffic.rank import Pipeline, traffic_of, why_not_known
from tuning.space.knobs import offered_space, other_values, parse_space

#: Operation, axis, ranks of the group, bytes; None where a formula does not know them.
Call = tuple[str, str, int, int | None]

MOST_RANKS = 4
LOSS, LOSS_BF16 = 1e-5, 0.02
#: What Muon's products in bf16 may differ by where gradients are summed in another order.
LOSS_MUON = 1e-3
SHAPE: dict[str, Any] = {
    "preset": "tiny", "layers": 4, "hidden": 32, "heads": 4, "kv_heads": 4, "vocabulary": 512, "ffn_hidden": 64,
}  # fmt: skip
TREE: dict[str, Any] = {
    "data": {"sequence_length": 32}, "batch": {"global_batch": 8, "micro_batch": 1}, "device": "cpu",
    "train": {"steps": 4, "warmup": 1, "validation_batches": 0}, "profile": {"budget": None},
}  # fmt: skip
DENSE, EXPERTS = parse({"model": SHAPE} | TREE), parse({"model": SHAPE | {"experts": 4}} | TREE)
#: What no form offers, as it is for people to say.
BY_HAND: dict[str, list[Any]] = {
    "memory.block_actions": [["keep", "full", "selective", "offload"], ["full", "keep", "keep", "full"]],
    "memory.expert_slots": [2, 4],
    "memory.expert_home": ["host", "disk"],
    "memory.expert_ahead": [False],
    "parallel.tp_replicated": [["gate_up"], ["embedding", "head"], ["query_key_value", "attention_output"]],
    "parallel.embedding": ["columns"],
    "model.tied_embeddings": [True],
    "model.layer_groups": [1, 2],
    "model.capacity_factor": [1.5],
    "train.clip_norm": [0.5],
    "data.documents": ["masked"],
    "data.ahead": [1, 3],
    "precision": ["bf16"],
}  # fmt: skip
#: What acts only together, of which each point may have one.
TOGETHER: list[dict[str, Any]] = [
    {"parallel.pp": 2, "schedule.kind": "interleaved", "schedule.chunks": 2},
    {"parallel.pp": 2, "schedule.kind": "breadth_first", "schedule.chunks": 2},
    {"parallel.pp": 2, "schedule.kind": "layered", "schedule.chunks": 2},
    {"parallel.pp": 2, "schedule.kind": "zb_v", "schedule.chunks": 2},
    {"parallel.pp": 1, "schedule.kind": "layered", "schedule.chunks": 2, "data.documents": "masked"},
    {"parallel.pp": 1, "schedule.kind": "breadth_first", "schedule.chunks": 2},
    {"parallel.pp": 1, "schedule.kind": "interleaved", "schedule.chunks": 4},
    {"parallel.pp": 2, "schedule.stage_layers": [1, 3]},
    {"parallel.pp": 4, "schedule.skip_share": 0.25, "parallel.dp": 1, "parallel.tp": 1, "parallel.cp": 1},
    {"parallel.dp": 4, "parallel.zero_stage": 3, "parallel.shard_ranks": 2},
    {"parallel.dp": 2, "parallel.zero_stage": 2, "parallel.reduce_every_micro_batch": True},
    {
        "parallel.dp": 2,
        "parallel.zero_stage": 3,
        "overlap.fused_gathers": False,
        "compression.weights": "none",
    },
    {"parallel.dp": 2, "parallel.zero_stage": 3, "compression.weights": "int8"},
    {"parallel.ep": 2, "compression.experts": "int8"},
    {"parallel.ep": 2, "compression.experts": "lsh_int8"},
    {"parallel.dp": 2, "parallel.tp": 2, "parallel.placement": [0, 2, 1, 3]},
    {"precision": "bf16", "memory.parameters": "bf16"},
    {"parallel.dp": 2, "compression.method": "powersgd", "compression.plan": "l_greco"},
    {"batch.global_batch": 8, "batch.ramp_from": 4, "batch.ramp_share": 0.5},
    {"memory.expert_slots": 2, "memory.expert_home": "disk"},
    {"memory.expert_slots": 2, "memory.expert_ahead": False},
    {
        "data.tasks": [{"name": "a", "share": 3}, {"name": "b"}],
        "parallel.dp": 2,
        "parallel.task_ranks": "even",
    },
    {"data.tasks": [{"name": "a", "share": 3}, {"name": "b"}], "parallel.dp": 4},
    {"train.learning_rate_warmup": 2},
    {"train.learning_rate_batch": 4, "train.learning_rate_scaling": "linear"},
    {"memory.budget_gib": 0.0005},
    {"memory.budget_gib": 0.0005, "data.documents": "masked"},
    {"memory.recompute": "full", "memory.recompute_layers": 2},
    {"parallel.dp": 2, "parallel.zero_stage": 1, "overlap.gather_with_optimizer": True},
]
#: Keys that say what is learned: the one process has them, too.
_LEARNED = ("model.", "train.", "data.", "batch.global_batch", "batch.ramp", "precision")


@dataclass(frozen=True, slots=True)
class Compared:
    """What was held against what: whether losses were those of one process, by how much at the most they differ, and
    how many calls were as by formula; None where neither can be.
    """

    loss_difference: float | None
    calls: int | None


@cache
def values_of(experts: bool) -> dict[str, list[Any]]:
    """By knob, every value that a form lists, and what is for people to say."""
    base = EXPERTS if experts else DENSE
    found, rare = dict[str, list[Any]](), other_values(base, MOST_RANKS, in_time=True)
    for key, values in offered_space(base, MOST_RANKS, in_time=True).items():
        found[key] = [*parse_space({key: values}, base)[0].grid(), *rare.get(key, [])]
    return found | {key: [*found.get(key, []), *values] for key, values in BY_HAND.items()}


def turned_keys() -> set[str]:
    """What points turn: all that is suggested at one of the bases, and what is said here."""
    return set(values_of(False)).union(values_of(True), *TOGETHER)


def draw(numbers: random.Random) -> RunConfig:
    """A legal configuration of 2 to 4 ranks with two to ten knobs at random values."""
    while True:
        experts = numbers.random() < 0.25
        base, values = EXPERTS if experts else DENSE, values_of(experts)
        degrees = ["dp", "tp", "pp", "cp"] + (["ep"] if experts else [])
        chosen = {f"parallel.{key}": numbers.choice((1, 1, 2, 2, 4)) for key in degrees}
        for key in numbers.sample(sorted(values), numbers.randint(2, 10)):
            chosen[key] = numbers.choice(values[key])
        chosen |= numbers.choice([{}, *TOGETHER])
        if any(value == "auto" for value in chosen.values()):
            continue
        try:
            config = base.with_values(chosen)
            broken = any(True for _ in problems(config))
            ranks = layout_of(config).world_size
        except InputError:
            continue
        if not broken and 1 < ranks <= MOST_RANKS:
            return config


def in_one_process(config: RunConfig) -> RunConfig | None:
    """The same model, learned from the same text in one process; None where it would learn otherwise."""
    flat = config.flat()
    if is_lossy(flat) or config.outer.method != "none":
        return None
    mixture = config.model.experts is not None
    apart = bool(config.data.tasks)  # experts are balanced over a rank's own micro-batch
    if mixture and ((accumulation(config) > 1 and not apart) or config.model.capacity_factor is not None):
        return None  # the balancing loss, and what a full expert drops, are of a micro-batch
    base = (EXPERTS if mixture else DENSE).flat()
    learned = {key: value for key, value in flat.items() if key.startswith(_LEARNED)}
    whole = (config.batch.micro_batch if apart else config.batch.global_batch) if mixture else 1
    values = {key: value for key, value in learned.items() if base.get(key) != value}
    return (EXPERTS if mixture else DENSE).with_values(values | {"batch.micro_batch": whole})


def check(session: Session, config: RunConfig) -> Compared:
    """Run it; AssertionError where it does not complete, learns otherwise than one process, or sends other calls than
    its formula has.
    """
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert summary.losses and all(loss is not None and 0 < loss < 20 for loss in summary.losses), (
        summary.losses
    )
    return Compared(_against_one(session, config, summary), _against_formulas(session, config, summary.id))


def _against_one(session: Session, config: RunConfig, summary: RunSummary) -> float | None:
    alone = in_one_process(config)
    if alone is None:
        return None
    outcome, reference = execute(session, alone)
    assert outcome.good, outcome
    bound = loss_bound(config)
    differences = [abs(one - other) for one, other in zip(summary.losses, reference.losses, strict=True)]
    assert max(differences) <= bound, f"losses {summary.losses}, of one process {reference.losses}"
    return max(differences)


def loss_bound(config: RunConfig) -> float:
    """How far losses may be from those of one process."""
    if config.precision == "bf16" or config.memory.parameters == "bf16":
        return LOSS_BF16
    return LOSS_MUON if config.train.optimizer == "muon" else LOSS


def _against_formulas(session: Session, config: RunConfig, run: str) -> int | None:
    if why_not_known(config) is not None:
        return None
    records, last, calls = RunRecords(session.home / run / RECORDS), config.train.steps - 1, 0
    pipeline = Pipeline.from_config(config)
    for rank in range(layout_of(config).world_size):
        rows = records.table(rank, "comm").rows()
        sent = [row for row in rows if isinstance(row, CommSample) and row.step == last]
        found = [
            (row.operation, row.axis, row.group_size, row.bytes)
            for row in sent
            if not _is_credit(row, config)
        ]
        told = traffic_of(pipeline, rank).calls
        expected = [(one.operation, one.axis, one.group_size, one.bytes) for one in told]
        if config.schedule.registers is not None:  # when a message is asked for depends on who is faster
            found, expected = _in_one_order(found, expected)
        for place, (one, other) in enumerate(zip(found, expected, strict=False)):
            known = one if other[-1] is not None else (*one[:-1], None)
            assert known == other, f"rank {rank}, call {place}: {one}, by formula {other}"
        assert len(found) == len(expected), f"rank {rank}: {len(found)} calls, by formula {len(expected)}"
        calls += len(found)
    return calls


def _in_one_order(found: list[Call], expected: list[Call]) -> tuple[list[Call], list[Call]]:
    """Both sorted: first the calls that both have, then what is left of each, which fits where the formula does not
    know the bytes.
    """
    rest = Counter(found)
    known = [call for call in expected if call[-1] is not None]
    shared = sorted((rest & Counter(known)).elements(), key=str)
    rest -= Counter(shared)
    missing = Counter(expected) - Counter(shared)
    return shared + sorted(rest.elements(), key=str), shared + sorted(missing.elements(), key=str)


def _is_credit(row: CommSample, config: RunConfig) -> bool:
    """One byte that says that a register is free: when that is, depends on who is faster."""
    return config.schedule.registers is not None and row.axis == "pp" and row.bytes == 1


def changes(config: RunConfig) -> dict[str, Any]:
    """By dotted key, what a drawn configuration has otherwise than its base."""
    base = (EXPERTS if config.model.experts is not None else DENSE).flat()
    return {key: value for key, value in config.flat().items() if base.get(key) != value}
