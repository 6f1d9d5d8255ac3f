"""The rows of a run's summary: one dataclass for each table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline's bubble from its actions as they ran; seconds are means per rank over the detailed steps.

    ``bubble_fraction`` is idle over ranks times span. Idle time divides into waiting for a neighbour's action (and for
    the others to finish), the transfer of messages from then on, and gaps of the rank itself. ``action_seconds`` are
    the medians of F, B, I and W; ``formula_fraction`` is the bubble that the schedule has with these costs and no
    transfer time, by ``formula_source``. ``trained_shares`` has the share of the micro-batches that goes through each
    stage; it is empty where all go through all. Where messages between stages are bounded, ``most_held`` is the most of
    one way that a rank held, expected, in use, or sent and not let go of, beside the ``registers`` that it had, and
    ``register_seconds`` is what a rank waited for a free one in a step, which is part of the bubble.
    """

    ranks: int
    steps: int
    bubble_fraction: float
    idle_seconds: float
    waiting_seconds: float
    transfer_seconds: float
    gap_seconds: float
    action_seconds: dict[str, float] = field(default_factory=dict)
    clock_error_seconds: float = 0.0
    formula_fraction: float | None = None
    formula_source: str | None = None
    trained_shares: list[float] = field(default_factory=list)
    registers: int | None = None
    most_held: int | None = None
    register_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One of several tasks that are trained together. ``micro_batches`` are those of a step, ``ranks`` how many of them
    each rank had that had any, ranks of tp and cp included. ``losses`` has one for each step, from the first on.
    """

    name: str
    micro_batches: int
    ranks: dict[int, int]
    losses: list[float | None]


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """How the choices of all ranks' tokens fell on one layer's experts, over the detailed steps.

    ``load`` is each expert's share of all choices before any is dropped. ``excess`` is the share that would have to go
    to other experts for an even load; a capacity factor of 1 would drop as much. ``balance`` is experts * sum(load *
    mean probability): 1 when even, and what the balance loss weighs (arXiv 2101.03961). ``rank_load`` is the busiest ep
    rank's share over the mean one; None where experts are not spread. Where tokens that are alike travel as one,
    ``sent_fraction`` is the share of the choices that was sent, and ``residual`` the mean distance of a token from the
    one that was sent for it, over its length.
    """

    layer: int
    load: list[float]
    excess: float
    dropped_fraction: float
    balance: float
    rank_load: float | None = None
    sent_fraction: float | None = None
    residual: float | None = None


@dataclass(frozen=True, slots=True)
class ExpertSlotRow:
    """What became of a rank's requests for experts that lie at their ``home``, the host or disk, in the whole run.

    ``slots`` of ``slot_bytes`` hold some of its ``experts``. A request finds its expert there (``hits``), on its way
    (``ahead``), or has it fetched while products wait (``misses``): together ``waited_seconds``.
    """

    rank: int
    slots: int
    experts: int
    slot_bytes: int
    home: str
    hits: int
    ahead: int
    misses: int
    fetched_bytes: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class SequenceGroupRow:
    """A group of ``degree`` ranks and what it computed in a micro-batch of a step: so many whole documents and their
    tokens. ``planned_seconds`` are what that was predicted to take, by what groups took at the start and in the steps
    before;
    ``seconds`` what passed on the rank of it that came last, which waited for no other to begin.
    """

    step: int
    micro_batch: int
    degree: int
    documents: int
    tokens: int
    planned_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SequencePlanRow:
    """How the groups of a step were found: in ``planner_seconds``, beside the step before; ``waited_seconds`` are what
    rank 0 waited for that at the step's start. ``proven`` if it is the best plan, to the last bucket of lengths.
    ``factors`` are, by degree, how many times the seconds predicted from the start's measurements groups were taken to
    take, by what they took in the steps before.
    """

    step: int
    planner_seconds: float
    waited_seconds: float
    proven: bool
    factors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefetchRow:
    """What came of a rank's batches that a thread made ahead, at most ``registers`` at once, in the whole run.

    Of ``asked`` so many were ``ready``; for the others steps ``waited_seconds``. Making all took ``made_seconds``;
    ``dropped`` ones were made for nothing, as the run went back or changed its batch.
    """

    rank: int
    registers: int
    asked: int
    ready: int
    waited_seconds: float
    made_seconds: float
    dropped: int


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """What was trained beside a frozen model: its ``method`` and ``rank``, its parameters beside the frozen ones, and
    its ``share`` of both.

    The frozen ones came from the checkpoint ``source``. Their SHA-256 is ``sha256`` as they were loaded, and
    ``sha256_at_end`` after the last step: they are ``kept`` if that is the same.
    """

    method: str
    rank: int
    side_parameters: int
    frozen_parameters: int
    share: float
    source: str
    sha256: str
    sha256_at_end: str
    kept: bool


@dataclass(frozen=True, slots=True)
class PartialProductsRow:
    """Products of which steps leave out a part: with ``key`` "train.slice_keep" all but a ``share`` of every block's
    heads and width, with "memory.sample_tokens" weight gradients of all but a ``share`` of the tokens.

    By formula, of the pipeline stage that keeps most: the activations that a micro-batch leaves there, with the norms
    of gradients that sampling remembers, and what it would leave with nothing left out.
    """

    key: str
    share: float
    kept_bytes: int
    whole_bytes: int


@dataclass(frozen=True, slots=True)
class UpdatedLayerRow:
    """What is trained of a layer: weights of some output channels, biases. ``gain`` is by how much more these weights
    lowered the held-out loss, alone with biases and the head, than those did; None where nobody asked.
    """

    name: str
    channels: int
    trained_channels: int
    biases: bool
    gain: float | None


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """An update of parts of a network within a budget of bytes, chosen the ``way`` that its workload names.

    Bytes are by part, by the formula and as found in memory; none found where weights are not int8. ``sent_bytes`` are
    what a data rank gives to be averaged in a step.
    """

    way: str
    budget_bytes: int
    formula_bytes: dict[str, int]
    counted_bytes: dict[str, int]
    sent_bytes: int
    layers: list[UpdatedLayerRow]


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A rank's clock minus that of rank 0 in the middle of the measured steps, right within ``error_seconds``.

    Ranks of one host share a clock: both are 0 for those on rank 0's.
    """

    rank: int
    offset_seconds: float
    error_seconds: float


#: Kinds of skew: the same ranks are behind, another one each time, or one now and then.
FIXED, ROTATING, ONE_OFF = "fixed", "rotating", "one-off"


@dataclass(frozen=True, slots=True)
class LateStep:
    """A step in which a rank was far behind: by so many seconds behind the median of the others."""

    step: int
    rank: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SkewRow:
    """By how much the last rank of a step is behind the median of the others in what it computes itself, in the mean
    step, and of which kind that is: ``fixed``, ``rotating`` or ``one-off``, whichever part is the largest.

    The three parts sum to ``seconds``. ``ranks`` are last more often than by chance, in ``ranks_share`` of the steps
    together. ``late_steps`` stand out, and ``latest`` are the worst of them. How it is divided:
    ``profilers/analysis/steps.py``.
    """

    kind: str
    seconds: float
    fixed_seconds: float
    rotating_seconds: float
    one_off_seconds: float
    ranks: list[int] = field(default_factory=list)
    ranks_share: float = 0.0
    late_steps: int = 0
    latest: list[LateStep] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GapRow:
    """Time between two named phases in which nothing named ran; ``seconds`` are per step and rank.

    ``longest_seconds`` is the longest one, on ``rank`` in ``step``. None names the edge of a step.
    """

    after: str | None
    before: str | None
    seconds: float
    longest_seconds: float
    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One value of the configuration that was changed while the run went: ``new`` holds from ``step`` on.

    The seconds are means of the measured steps back to the change before this one, and on to the next; changes at
    one step share them.
    """

    step: int
    key: str
    old: Any
    new: Any
    by: str = ""
    time_unix: float = 0.0
    #: The command that asked for it.
    id: str = ""
    seconds_before: float | None = None
    seconds_after: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One save: ``step`` is the next one to do after it, ``paused_seconds`` the time that training waited for it,
    ``problem`` why it failed.
    """

    step: int
    seconds: float
    paused_seconds: float
    asynchronous: bool
    bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeRow:
    """The run and step that a run continued from, and the keys that decide a step and differ: [then, now]. ``batch``:
    sequences of its first step, if its batch grows.
    """

    run: str
    step: int
    folder: str
    seconds: float
    changed: dict[str, list[Any]] = field(default_factory=dict)
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """What groups of an ``axis`` send over, the groups of these ``ranks``: an interface on CPUs, one of NCCL's networks
    on GPUs, what the backend chose by itself if None. ``inside``: all members of each group are on one island;
    None where nobody told which ranks are.
    """

    axis: str
    network: str | None
    inside: bool | None
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class InterfaceRow:
    """An interface of a lab during the measured steps, and the ranks that use it; headers included.

    ``data``, ``inside`` (its second card) and ``lo`` are a host's own, ``uplink`` is the link of its island to the
    others. Utilizations are fractions
    of the rate in 10^6 bits per second that the interface is held to; None where it is not.
    """

    host: str | None
    ranks: list[int]
    interface: str
    sent_bytes_per_second: float
    received_bytes_per_second: float
    rate_mbit: float | None = None
    sent_utilization: float | None = None
    received_utilization: float | None = None


@dataclass(frozen=True, slots=True)
class OuterRow:
    """The averages that rank 0 took over from other replicas, ``averages`` of them in ``rounds`` rounds.

    Staleness is in rounds: 0 for an average of the running round, 1 for one of the round before. ``delay_steps`` is
    the mean number of steps for which an average was under way, ``wait_seconds`` the mean time waited for one. What was
    still under way after the last step was waited for ``end_wait_seconds``, once, and counts in neither; None if none
    was, and in older summaries.
    """

    averages: int
    rounds: int
    least_staleness: int
    most_staleness: int
    delay_steps: float
    wait_seconds: float
    end_wait_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A value of ``method`` for each layer from ``step`` on, where ``default`` was the value of all.

    Bytes go over the wire in a step, by formula and as the mean over ranks: with the default everywhere, with what held
    before, and with this plan. ``error`` is the sum over layers of what they lose of the gradients that the plan was
    made for; ``effect`` is the share of gradients' squares that is lost, layers by their weight for the loss; beside
    them both with the default. ``budget`` is what the effect may be, or the error: ``budget_of`` loss or error. Without
    layers the default was kept. A plan that was taken over from the run ``taken_from`` was made there; its numbers are
    there too.
    """

    step: int
    method: str
    default: float
    layers: dict[str, float] = field(default_factory=dict)
    bytes_uniform: float | None = None
    bytes_before: float | None = None
    bytes_after: float | None = None
    error: float | None = None
    error_uniform: float | None = None
    effect: float | None = None
    effect_uniform: float | None = None
    budget: float | None = None
    #: "loss" or "error".
    budget_of: str = "error"
    #: That training waited for it.
    seconds: float | None = None
    taken_from: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryPlanRow:
    """What a pipeline ``stage`` does with the activations of its blocks, the first of which is number ``first``,
    so that a rank never holds more than ``budget_bytes`` of them.

    ``peak_bytes`` is what it holds at the most, ``micro_batch_seconds`` what forward and backward of one micro-batch
    take, as planned from ``costs``: bytes and seconds of one block by action. ``least_bytes`` is the smallest budget
    that can be kept. ``uniform`` is the fastest way to do the same with all blocks that fits, None where none does.
    ``seconds`` passed while blocks were measured.
    """

    stage: int
    first: int
    actions: list[str]
    budget_bytes: int
    peak_bytes: int
    least_bytes: int
    micro_batch_seconds: float
    uniform: str | None = None
    uniform_seconds: float | None = None
    costs: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class QualityRow:
    """The loss on held-out text before ``step``, when a run had trained for ``seconds`` (validation is no part of it)
    and a rank had sent ``wire_bytes`` (the mean over ranks, by formula; None where one is not known).
    """

    step: int
    loss: float
    seconds: float
    wire_bytes: float | None = None
