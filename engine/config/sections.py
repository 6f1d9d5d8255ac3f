"""The sections of a run's configuration: every setting that a person can make, with its range and its usual value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from engine.config.methods import compression_methods, outer_methods
from engine.schedules.registry import SCHEDULES
from profilers.model.verdict import Thresholds as VerdictThresholds

#: Values of a run, each under its dotted key as ``--set`` has it (``parallel.tp``), as JSON has them.
KnobValues = dict[str, Any]
#: A configuration as its file has it: by section its values by key, and by key those that are in no section.
ConfigTree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Of a text field: it is one of these names, which are asked for each time; refused as a Literal would be."""

    names: Callable[[], Iterable[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """The check, before that of the type."""
        return core_schema.no_info_before_validator_function(self.check_value, handler(source))

    def check_value(self, value: Any) -> Any:
        """The value if it is a name.

        Raises:
            PydanticCustomError: it is none; of the kind that a Literal raises.
        """
        names = tuple(self.names())
        if value not in names:
            quoted = [repr(name) for name in names]
            expected = " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
        return value


@dataclass(frozen=True, slots=True)
class Automatic:
    """Of a field that has a list or nothing: a study can work that list out by itself."""


Count = Annotated[int, Field(ge=1)]
#: Matrices of the decoder that tp splits: those of a block are four groups.
TensorPart = Literal["embedding", "query_key_value", "attention_output", "gate_up", "down", "head"]
#: Ranks that may share a document.
SEQUENCE_DEGREES = (1, 2, 4, 8)
Fraction = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=10, le=10_000)]
_USUAL = VerdictThresholds()


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused, no silent conversion of strings, only finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Model(Section):
    """What is trained. ``workload`` is the decoder that is built in, another name that is shipped, or the factory of a
    model of one's own, as ``package.module:factory`` or ``file.py:factory``, called with ``options``.

    Parameters are shared by ``tied_embeddings``, where the head is the embedding's matrix, and by ``layer_groups``:
    layers are dealt, in order, to so many groups of equal size, and all layers of one have the same parameters.

    All else is about the decoder. It is Llama-style. ``preset`` names a size; every other field overrides the preset's.

    With ``experts`` each block's feed-forward is a mixture: a router sends every token to its best
    ``experts_per_token`` of them. ``capacity_factor`` bounds the tokens per expert; without it none is dropped.
    """

    workload: str = "decoder"
    options: dict[str, bool | int | float | str] = {}
    tied_embeddings: bool = False
    layer_groups: Count | None = None
    preset: str = "tiny"
    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    ffn_hidden: Count | None = None
    vocabulary: Annotated[int, Field(ge=256)] | None = None
    experts: Annotated[int, Field(ge=2)] | None = None
    experts_per_token: Count = 2
    expert_ffn_hidden: Count | None = None
    capacity_factor: Annotated[float, Field(gt=0)] | None = None
    balance_weight: Annotated[float, Field(ge=0)] = 0.01


class Task(Section):
    """One of several tasks that are trained together: its text, as ``data.path``, and its part of every global batch,
    ``share`` of the sum of all shares.
    """

    name: Annotated[str, Field(min_length=1)]
    path: str | None = None
    share: Count = 1


class Data(Section):
    """Text at byte level: a UTF-8 file or folder, or the text that comes with Python.

    With ``tasks`` several texts are trained together, each with its share of every global batch and an order of its
    own; held-out text is shared out alike.

    ``documents`` says what a token sees where a sequence holds several documents (files of a folder, topics of Python's
    text): ``joined`` text is one, of ``masked`` text each begins with a token of its own and sees no other. ``whole``
    documents are samples of their real lengths, each alone as in masked text, and batches count documents: ranks hold
    at most micro_batch x ``sequence_length`` tokens at a time, as many micro-batches as that takes. Longer than that,
    times the ranks of the largest group, no document is: the rest of it is cut off. ``longest_document`` cuts them
    there whatever groups hold, so that runs that differ in them train on the same text.

    With ``ahead`` a thread of each rank makes so many batches before their steps; 0 makes each as its step begins.
    """

    path: str | None = None
    tasks: list[Task] = []
    documents: Literal["joined", "masked", "whole"] = "joined"
    longest_document: Annotated[int, Field(ge=2)] | None = None
    ahead: Annotated[int, Field(ge=0, le=64)] = 0
    sequence_length: Annotated[int, Field(ge=2)] = 128
    held_out_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.05


class Parallel(Section):
    """Degrees of parallelism; the world size is dp * tp * pp * cp.

    ``ep`` spreads experts over that many of the dp * cp ranks. With ``ep_island`` of them on each island, rows go in
    two stages: inside of it to the rank with their destination's place, then between islands. ``shard_ranks`` bounds
    how many ranks share one copy of the parameters under ``zero_stage`` 2 and 3 (hybrid sharding); without it all do.

    ``tp_regather`` keeps a rank's slice of what tp gathers in front of matrices, and gathers it again in backward:
    less memory, more messages. Of the decoder's matrices in ``tp_replicated`` each rank of tp has all, and multiplies
    its own slice of the sequence with them: no messages but where heads or columns meet slices, and their gradients are
    summed over tp once a step. ``reduce_every_micro_batch`` scatters gradients under ``zero_stage`` 2 and 3 after each
    micro-batch; without it whole gradients are summed until the last one.

    ``sequence_groups`` is how many dp ranks share whole documents, each its part of the tokens and, in attention, of
    the heads; planned chooses groups of 1, 2, 4 and 8 ranks for each batch, by what they were measured to take.

    With the ``embedding`` in columns each data rank holds hidden / (dp * cp) of its columns for all words: ranks
    exchange words and columns of their rows, and no gradient of the table.

    ``task_ranks`` deals the micro-batches of ``data.tasks`` to data ranks: even gives each task equally many ranks (or
    each rank equally many tasks), proportional each rank as many micro-batches as the others, to within one.

    ``placement`` says on which device each rank works: rank r on device ``placement[r]``, of devices that are counted
    through as ranks lie without it, host by host. It changes who is near whom, and nothing that is computed.
    """

    dp: Count = 1
    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    ep: Count = 1
    ep_island: Count | None = None
    cp_method: Literal["ring", "ulysses"] = "ring"
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    shard_ranks: Count | None = None
    tp_regather: bool = False
    tp_replicated: Annotated[Annotated[list[TensorPart], Field(min_length=1)] | None, Automatic()] = None
    reduce_every_micro_batch: bool = False
    embedding: Literal["replicated", "columns"] = "replicated"
    task_ranks: Literal["even", "proportional"] = "proportional"
    sequence_groups: Literal[1, 2, 4, 8, "planned"] = 1
    placement: Annotated[list[Annotated[int, Field(ge=0)]] | None, Automatic()] = None
    world_size: Count | None = None


class Batch(Section):
    """Sequences per optimizer step; accumulation follows as global_batch / (dp * micro_batch).

    With ``ramp_from`` the batch grows: the first steps have so many sequences, later ones twice, three times ... as
    many, in stretches of equally many steps, until from ``ramp_share`` of all steps on they have ``global_batch``.
    """

    micro_batch: Count = 2
    global_batch: Count = 48
    ramp_from: Count | None = None
    ramp_share: Annotated[float, Field(gt=0, lt=1)] = 0.6


class Schedule(Section):
    """Order of pipeline work. ``chunks`` is the number of stages a rank holds; ``stage_layers`` says how many layers
    each stage gets, from the first to the last; without it they are dealt evenly.

    With ``skip_share`` micro-batches leave out that share of all their visits of stages while training, never the first
    stage or the last; what is validated goes through all. With the ``skip_order`` planned, who leaves out what, and
    each rank's order, is made so that micro-batches do not collide; unplanned deals stages out in turn.

    With ``registers`` no more than so many messages from a stage to another are begun and not used up: a stage that is
    faster than the next waits, and memory is bounded.
    """

    kind: Annotated[str, OneOf(lambda: SCHEDULES)] = "1f1b"
    chunks: Count = 1
    stage_layers: Annotated[list[Annotated[int, Field(ge=1)]] | None, Automatic()] = None
    skip_share: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    skip_order: Literal["planned", "unplanned"] = "planned"
    registers: Annotated[int, Field(ge=1)] | None = None


class Compression(Section):
    """Compression of gradients before they are summed over dp, from ``start_step`` on.

    ``docs/reference/names.md`` has the methods: which fields act with each, and which feed back errors by themselves.
    ``ratio`` is the share of values that are sent, ``rank`` that of the factors that are sent in place of a matrix.
    ``bucket_values`` values have one scale. With ``error_feedback`` what was not sent is added to the next gradient;
    without a value the method decides. ``stochastic`` rounds to integers without bias; without a value that is done
    where errors are not fed back; else values go to the nearest.
    ``layers`` gives parameters another ratio, rank or number of bits, by their name or a glob; "none" leaves them
    alone. topk picks from each of them by itself, and from all others of a bucket together. With the ``plan`` l_greco
    the other layers get theirs by what they cost and what they lose: before step 10 and every ``plan_every`` steps
    the fewest bytes are chosen that keep ``plan_alpha`` times the budget of the one value for all. With ``plan_budget``
    error, as the paper has it, errors add up; with loss what counts is the share of a layer's gradient that is lost, by
    the layer's weight for the loss, and a plan that saves less than 5 % of the bytes is none.

    zero_stage 1 to 3 take methods that can send a gradient to the rank alone that needs it. ``weights`` is what
    zero_stage 2 and 3 gather parameters in, and ``experts`` what ep sends tokens and their gradients in, forward and
    backward. With lsh tokens that are alike travel as their mean, so many that ``expert_rate`` of the bytes is sent
    (one for each expert at least), and with ``expert_residual`` a token's distance from the mean is added to what
    comes back; lsh_int8 sends means as int8, and the rate is that of both together. At evaluation all tokens travel.
    """

    method: Annotated[str, OneOf(compression_methods.names)] = "none"
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    rank: Count = 4
    bucket_values: Annotated[int, Field(ge=8, multiple_of=8)] = 1024
    stochastic: bool | None = None
    error_feedback: bool | None = None
    start_step: Annotated[int, Field(ge=0)] = 2
    layers: dict[str, Annotated[float, Field(gt=0)] | Literal["none"]] = {}
    plan: Literal["none", "l_greco"] = "none"
    plan_every: Count = 200
    plan_budget: Literal["loss", "error"] = "loss"
    plan_alpha: Annotated[float, Field(gt=0)] = 1.0
    weights: Literal["none", "int8"] = "none"
    experts: Literal["none", "bf16", "int8", "lsh", "lsh_int8"] = "none"
    expert_rate: Annotated[float, Field(gt=0, le=1)] = 0.2
    expert_residual: bool = False


class Outer(Section):
    """Replicas that train by themselves for ``period`` steps a round, and then meet: by the mean of their weights
    (local), by a Nesterov step on it (diloco), in fragments beside the next steps (streaming), or by a mean that is a
    round late and costs no waiting (co2).

    ``replicas`` is their number; without it each dp rank is one. Inside of one gradients are averaged at every step.
    ``learning_rate`` and ``momentum`` are the outer step's; without a value what the method's authors use. co2 clips
    its momentum to ``clip`` and divides by the staleness ``gap``; ``variant`` says what a round begins with. streaming
    takes over one of its ``fragments`` ``overlap`` steps after it was sent, and keeps ``mixing`` of the own weights.
    """

    method: Annotated[str, OneOf(outer_methods.names)] = "none"
    period: Count = 12
    replicas: Annotated[int, Field(ge=2)] | None = None
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    clip: Annotated[float, Field(gt=0)] | None = 1.0
    gap: outer_methods.Gap = "none"
    variant: outer_methods.Variant = "keep_local"
    fragments: Count = 2
    overlap: Annotated[int, Field(ge=0)] = 1
    mixing: Fraction = 0.5


class Overlap(Section):
    """What is sent beside computation. Gradients of dp leave in buckets of ``bucket_mb`` while backward goes on.

    ``prefetch`` is how many layers ahead zero_stage 2 and 3 gather, and on the CPU how many behind they reduce; with
    ``fused_gathers`` they gather a layer's parameters in one message, without it each in one of its own.
    ``gather_with_optimizer`` starts to gather each bucket of zero_stage 1 as soon as it is updated; the next forward
    waits for it. ``tp_chunks`` cuts what tp gathers and scatters along the sequence, and computes one part while the
    next is sent. With ``delay`` 1 gradients are averaged beside the next step and applied at its end: one step late.
    """

    bucket_mb: Annotated[float, Field(gt=0)] = 25.0
    prefetch: Annotated[int, Field(ge=0, le=16)] = 0
    fused_gathers: bool = True
    gather_with_optimizer: bool = False
    tp_chunks: Annotated[int, Field(ge=1, le=64)] = 1
    delay: Annotated[int, Field(ge=0, le=1)] = 0


def _recompute(value: object) -> object:
    return {True: "full", False: "none"}.get(value, value) if isinstance(value, bool) else value


#: What becomes of a block's activations.
BlockAction = Literal["keep", "selective", "full", "offload", "disk"]


class Memory(Section):
    """What is kept, where, and what is computed again; ``limit_gib`` caps a CPU rank's own memory.

    ``recompute`` forgets a block's activations (full) or those of its attention core (selective) until backward; with
    ``recompute_layers`` only so many layers of each stage do, counted from its first. ``offload`` keeps activations,
    or the optimizer's state and weights, in host memory. ``block_actions`` says it for each of the model's blocks, from
    first to last: keep, selective, full, offload (to host memory) or disk (to a file in the run's folder).
    ``budget_gib`` is the most that a rank's activations may take on its device; of all such lists the run takes the one
    that is shortest by the times it measures when it starts. ``parameters`` in bf16 have fp32 gradients and an fp32
    copy that the optimizer updates.

    ``sample_tokens`` is the share of a micro-batch's tokens that the gradients of a block's matrices are taken from:
    those that weigh most, and a draw from the others that is weighed up, so that the mean is exact. Only their rows of
    what these matrices read are kept. Experts' matrices see all of theirs.

    With ``expert_slots`` a CPU rank's experts lie at their ``expert_home``, in host memory or in a file of the run's
    folder, and so many of them at a time in slots: those that are asked for most often stay. With ``expert_ahead`` the
    next one that the gate has chosen is fetched beside the products of the one before.
    """

    recompute: Annotated[Literal["none", "selective", "full"], BeforeValidator(_recompute)] = "none"
    recompute_layers: Count | None = None
    offload: Literal["none", "activations", "optimizer", "both"] = "none"
    block_actions: Annotated[list[BlockAction], Field(min_length=1)] | None = None
    budget_gib: Annotated[float, Field(gt=0)] | None = None
    parameters: Literal["fp32", "bf16"] = "fp32"
    limit_gib: Annotated[float, Field(gt=0)] | None = None
    sample_tokens: Annotated[float, Field(gt=0, le=1)] = 1.0
    expert_slots: Count | None = None
    expert_home: Literal["host", "disk"] = "host"
    expert_ahead: bool = True


class Train(Section):
    """Length, optimizer and deadlines. ``warmup`` steps come first and are not measured. ``resume`` is a run's folder,
    or one of its checkpoints: training goes on from there, in any layout, up to ``steps`` in all. The loss on held-out
    text, of ``validation_batches``, is taken at the end, and after every ``validate_every`` steps if that is given.
    The learning rate rises over the first ``learning_rate_warmup`` steps in equal parts: step t, from 1 on, has
    t / ``learning_rate_warmup`` of it. From there to the last step it stays (constant), or falls in a line (linear) or
    half a wave (cosine) to ``learning_rate_floor`` of it; in one cycle (one_cycle) it rises over the first half of all
    steps and falls in a line over the other. ``learning_rate_scaling`` makes it larger with the batch: as
    ``batch.global_batch`` over ``learning_rate_batch``, for which ``learning_rate`` was chosen, or as the root of that.

    With ``seconds`` the run has as many steps as fit into that time, however many ``steps`` says; it counts from when
    ranks begin to build the model to the end of the last checkpoint and of the loss on held-out text, which is taken
    before the first step, too. The learning rate then goes as the steps that are expected to fit, and only rises where
    these are fewer than its warm-up.

    ``optimizer`` is AdamW, SGD with ``momentum``, LAMB, LARS, or Muon for the blocks' matrices beside AdamW for all
    else. ``beta1``, ``beta2`` and ``epsilon`` are AdamW's and LAMB's, ``momentum`` is SGD's, LARS's and Muon's, and
    ``trust`` is by how much of its length LARS moves a matrix at a learning rate of 1. Gradients are scaled to a global
    norm of at most ``clip_norm``; then each of their values is cut to ``clip_value``.

    With ``slice_keep`` each step trains that share of every block's heads and of its feed-forward's width: a slice that
    begins at random, the same for all micro-batches and data ranks. Experts are not cut, held-out text sees everything.

    With ``adapt`` the parameters of the checkpoint in ``resume`` stay as they are, and what is trained stands beside
    them, of rank ``adapt_rank``: a pair of factors for each of the blocks' matrices (lora), or a network that refines
    what the blocks gave, without a backward through them (losa). Only that is sent, updated and saved.
    """

    steps: Count = 24
    seconds: Annotated[float, Field(gt=0)] | None = None
    warmup: Annotated[int, Field(ge=0)] = 4
    seed: Annotated[int, Field(ge=0)] = 0
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    learning_rate_warmup: Annotated[int, Field(ge=0)] = 0
    learning_rate_schedule: Literal["constant", "linear", "cosine", "one_cycle"] = "constant"
    learning_rate_floor: Fraction = 0.0
    learning_rate_scaling: Literal["none", "linear", "square_root"] = "none"
    learning_rate_batch: Count | None = None
    optimizer: Literal["adamw", "sgd", "lamb", "lars", "muon"] = "adamw"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    trust: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    clip_value: Annotated[float, Field(gt=0)] | None = None
    slice_keep: Annotated[float, Field(gt=0, le=1)] = 1.0
    adapt: Literal["none", "lora", "losa"] = "none"
    adapt_rank: Count = 8
    validation_batches: Annotated[int, Field(ge=0)] = 1
    validate_every: Count | None = None
    resume: str | None = None
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    step_timeout_seconds: Annotated[float, Field(gt=0)] = 60.0

    @property
    def known_steps(self) -> int | None:
        """How many steps a run has; None where its ``seconds`` end it."""
        return self.steps if self.seconds is None else None


class Checkpoint(Section):
    """Saves after every so many steps and at the end; without ``every_steps`` nothing is saved. ``asynchronous`` writes
    while training goes on. ``keep`` is how many are kept.
    """

    every_steps: Count | None = None
    asynchronous: bool = False
    keep: Count = 2


class Lab(Section):
    """A network to train over: ``hosts`` as network namespaces of this machine, ranks that follow each other on one.

    ``islands`` splits them into groups, each with a switch of its own: how many of equal size, or the hosts of each.
    ``rate_mbit`` (10^6 bits per second, in each direction) holds every host's link to a rate, ``rates_mbit`` those of
    each island to one of its own, and ``between_mbit`` each island's link to the others; without a rate, or with null
    in the list, a link is as fast as it goes. With ``inside_mbit`` every host has a second card of that rate, on a
    switch that joins the hosts of its island and no others (``network``). Ranks run on the CPU.
    """

    hosts: Annotated[int, Field(ge=2, le=250)] | None = None
    islands: (
        Annotated[int, Field(ge=2, le=16)] | Annotated[list[Count], Field(min_length=2, max_length=16)] | None
    ) = None
    rate_mbit: Rate | None = None
    rates_mbit: Annotated[list[Rate | None], Field(min_length=2, max_length=16)] | None = None
    between_mbit: Rate | None = None
    inside_mbit: Rate | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether there is to be one."""
        return self.hosts is not None or isinstance(self.islands, list)


class Network(Section):
    """What each group of ranks sends over, chosen by where its members are: a group whose ranks are all on one island
    has ``inside``, any other ``between``.

    On CPUs these are names of interfaces, such as eth1. On GPUs they are names of NCCL's networks: IB, Socket, or that
    of a plug-in. Without a name gloo and NCCL choose by themselves, and in a lab with ``lab.inside_mbit`` groups of one
    island have the second card, inside; all others have data. Islands are those of the lab; elsewhere
    ``island_devices`` tells them: of how many devices each is, or those of each, counted through as ranks lie.
    """

    inside: Annotated[str, Field(min_length=1)] | None = None
    between: Annotated[str, Field(min_length=1)] | None = None
    island_devices: Count | Annotated[list[Count], Field(min_length=2)] | None = None


class Thresholds(Section):
    """Fractions from which on a run's verdicts name a bottleneck: those of ``profilers.model.verdict.Thresholds``."""

    input: Fraction = _USUAL.input
    host: Fraction = _USUAL.host
    exposed: Fraction = _USUAL.exposed
    bubble: Fraction = _USUAL.bubble
    straggler: Fraction = _USUAL.straggler
    memory: Fraction = _USUAL.memory
    clock: Fraction = _USUAL.clock
    experts: Fraction = _USUAL.experts


class Profile(Section):
    """What is recorded. Steps always are. Phases, collectives, actions and memory are of every step as long as that
    costs at most ``budget`` of it, else of one step in 2, 4, 8 ..., drawn at random; null records all of them, whatever
    it costs. Processors, network, disk, ranks' processes and GPUs are read each ``host_interval_seconds``.
    ``thresholds`` decide what a summary calls a bottleneck.
    """

    collectives: bool = True
    memory: bool = True
    budget: Annotated[float, Field(gt=0, le=1)] | None = 0.002
    host_interval_seconds: Annotated[float, Field(gt=0)] = 0.1
    thresholds: Thresholds = Thresholds()
