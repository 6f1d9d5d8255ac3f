"""What is said of a knob: :class:`KnobFacts`, and the words that its fields are in. Pure, without torch.

``conditions`` has when knobs act, ``suggestions`` which values of them are worth trying.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Literal, NamedTuple

from engine.config.environment import THREADS
from engine.config.run_config import RunConfig

Values = Mapping[str, Any]
Change = Literal["speed", "memory", "loss"]

#: A value of a study's space, never of a run: the value that suits the rest of the point.
AUTO = "auto"
#: Another one, of a knob that can be automatic: the list that the study's base has.
FROM_BASE = "base"
#: Parts of a run that can be turned while it goes; ``engine/rank/reconfigure.py`` has a function for each.
GRADIENTS, SCHEDULE, ACTIVATIONS, ROUNDS = "gradients", "schedule", "activations", "rounds"
PRODUCTS, UPDATES = "products", "updates"
#: Of a trainer that is not this project's: it turns them itself.
TRAINER = "trainer"
#: What a turn of each part costs, beside the step or two until all ranks make it at once.
TURNS = {
    GRADIENTS: "buckets are dealt and methods made anew; nothing is sent",
    SCHEDULE: "another plan of micro-batches, with buffers for its messages",
    ACTIVATIONS: "nothing: the next forward keeps other activations",
    ROUNDS: "nothing: the next round has the new length, the next message the new values",
    PRODUCTS: "nothing: the next products are cut another way",
    UPDATES: "updates are grouped anew, each with the state that it has",
    THREADS: "nothing: the next operators have as many threads",
}


class Context(Enum):
    """Kinds of runs in which some keys have to keep their defaults: their entries say which, and why.

    ``engine/config/validation/`` knows when a run is one, and says so in the words of that rule.
    """

    OTHER_MODEL = "model.workload is not the decoder"
    OWN_STEP = "model.workload takes steps of its own"
    FROZEN_MODEL = "train.adapt: what is trained stands beside a frozen model"
    WHOLE_DOCUMENTS = "data.documents is whole"
    TASKS = "data.tasks has several"
    PARTIAL_PRODUCTS = "memory.sample_tokens or train.slice_keep is below 1"
    TRAINED_SLICE = "train.slice_keep is below 1"
    SKIPPED_STAGES = "schedule.skip_share is above 0"
    BLOCK_ACTIONS = "memory.block_actions or memory.budget_gib decide what becomes of activations"
    ACTIVATION_BUDGET = "memory.budget_gib is given"
    EXPERT_SLOTS = "memory.expert_slots is given"
    OUTER_LOOP = "outer.method is not none"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a key has to keep its default, where more than the reason is to be said.

    ``legal`` values may be had beside it. ``remedy`` says what to do, where that is not to take one of those. In
    ``why`` and ``remedy``, {value} is the refused value.
    """

    why: str = ""
    legal: tuple[Any, ...] = ()
    remedy: str = ""


class Search(NamedTuple):
    """What the suggested values of a knob depend on: a study's base and how many ranks there are."""

    base: RunConfig
    ranks: int
    #: Whether the study asks for a time to a loss.
    in_time: bool = False

    @property
    def degrees(self) -> list[int]:
        """What divides the ranks."""
        return [degree for degree in range(1, self.ranks + 1) if self.ranks % degree == 0]


@dataclass(frozen=True)
class KnobFacts:
    """All that is said of one key, but for its default, which is that of its field in ``engine/config/sections.py``."""

    #: Its name on a form.
    title: str = ""
    #: The title of its column in tables; without one, words made of the key.
    short: str = ""
    #: Its word in a trial's name; without one, the key's own.
    label: str = ""
    #: It is in every trial's name; other knobs only where they differ from the study's base.
    always_in_label: bool = False
    #: The word for no value.
    unset: str = ""
    #: What another value may change.
    changes: tuple[Change, ...] = ()
    #: In a few words, what is gained and what it costs.
    trade: str = ""
    #: With its default the knob does nothing, as ``overlap.delay`` with 0: the baseline has that, and it makes no point
    #: complex. Not so ``overlap.bucket_mb``: any size does something. If ``changes`` has loss, no other value is exact.
    neutral_default: bool = False
    #: Where it does not act it is set to its default, whatever the base says; None: as ``neutral_default`` says.
    reset_when_inactive: bool | None = None
    #: Values of a study that names none, on forms and in study files; None: no such knob there.
    suggested: Callable[[Search], Any] = lambda search: None
    #: Further values that a form lists, unselected.
    unselected_values: Callable[[Search], Sequence[Any]] = lambda search: ()
    #: Whether a study that names no space turns it, as ``parallel.cp`` with long sequences.
    searched_by_default: bool | Callable[[Search], bool] = False
    #: Why it does not, where that is not plain from the rest: "there are few ranks".
    why_not_searched: str = ""
    #: Contexts in which it has to keep its default, each with the reason; empty where the context's words are enough.
    refused: Mapping[Context, str | Refusal] = field(default_factory=dict)
    #: Whether it changes what runs, given all values.
    acts: Callable[[Values], bool] = lambda now: True
    #: Why it does nothing where it does not act, and what else to do: other values than its default are refused there
    #: with these words. Empty: they are let through, and do nothing.
    inactive_problem: str = ""
    #: Above 0 where other knobs' ``acts`` reads its value: such knobs are reset in this order, before all others.
    reset_order: int = 0
    #: Towards which values a lossy method or loop loses more, all else equal.
    loses_more: Literal["", "lower", "higher"] = ""
    #: It changes what is learned from a token: only times to a loss compare such trials.
    alters_learning: bool = False
    #: It loses nothing, but values differ by more than rounding in a step's loss: a run that resumes says so.
    alters_numbers: bool = False
    #: It is the share of products that is computed; a summary tells what that saves.
    product_share: bool = False
    #: What predictions leave out where it is not at its default.
    not_predicted: str = ""
    #: The part of a run that it turns while the run goes (``TURNS``); empty: it is set when a run starts.
    live: str = ""
    #: Why it is set when a run starts, and what it would take to turn it later; a knob has either this or ``live``.
    why_only_at_start: str = ""
    #: A plan for ``memory.budget_gib`` counts with its value: a run that has such a plan does not turn it.
    in_budget_plan: bool = False
    #: It stays the same inside a study, or its trials could not be compared.
    fixed_in_study: bool = False
    #: Its value follows from other keys.
    derived_from_keys: bool = False
    #: It says nothing of what a step computes: only how many there are, where they begin, what of them is measured.
    outside_steps: bool = False
    #: Not even that: it may differ between a run and its exact baseline.
    outside_arithmetic: bool = False
    #: It is a count of ranks.
    degree: bool = False
    #: A form lets people add values to the suggested ones.
    user_extendable: bool = False

    def __post_init__(self) -> None:
        if self.title and bool(self.live) == bool(self.why_only_at_start):
            raise ValueError(
                f"the entry of {self.title!r} needs one of `live`, the part of a run that it turns while the run goes, "
                "and `why_only_at_start`, why it turns none and what it would take"
            )

    @cached_property
    def decides_loss(self) -> bool:
        """Whether it decides what is lost, or how. Learning otherwise is another matter."""
        return "loss" in self.changes and not self.alters_learning

    @cached_property
    def is_lossy(self) -> bool:
        """Whether all values but its default lose something."""
        return self.neutral_default and self.decides_loss

    @cached_property
    def resets(self) -> bool:
        """Whether it is set to its default where it does not act."""
        return self.neutral_default if self.reset_when_inactive is None else self.reset_when_inactive

    def is_searched(self, search: Search) -> bool:
        """Whether a study that names no space turns it, where values are suggested."""
        condition = self.searched_by_default
        return condition if isinstance(condition, bool) else condition(search)
