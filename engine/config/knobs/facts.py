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

    ``legal`` values may be had beside it. ``instead`` says what to do, where that is not to take one of those. In
    ``why`` and ``instead``, {value} is the refused value.
    """

    why: str = ""
    legal: tuple[Any, ...] = ()
    instead: str = ""


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
    """All that is said of one key, but for its default, which is that of its field in ``engine/config/sections.py``.

    **Values.**

    =====================  ============================================================  ==========================
    field                  what it says                                                  example
    =====================  ============================================================  ==========================
    neutral_default        with its default the knob does nothing: the baseline, plain   ``overlap.delay``: 0.
                           data parallelism, has that, and it makes no point complex.    Not of ``bucket_mb``: any
                           If ``changes`` has loss, no other value is exact.             size does something.
    reset_when_inactive    where it does not act it is set to its default, whatever the  ``parallel.ep``: 1 without
                           base says. As ``neutral_default``, unless this says           experts, though baselines
                           otherwise.                                                    keep the base's value.
    suggested              values of a study that names none, as its file has them, and  ``zero_stage``: 0, 1, 2, 3
                           of a form; None: no such knob there.                          on several ranks.
    also_listed            values that a form lists beside them, unchosen.               methods seldom worth it.
    searched_by_default    whether a study that names no space turns it.                 ``parallel.cp`` with long
                                                                                         sequences.
    why_not_searched       why it does not, where that is not plain from the rest.       "there are few ranks".
    refused                contexts in which it has to keep its default, each with the   ``compile``, by
                           reason; empty where the context's own words are enough.       ``FROZEN_MODEL``.
    =====================  ============================================================  ==========================

    **Words.** ``title`` is its name on a form, ``short`` that of a column, ``label`` its word in a trial's name;
    without them the key serves. Most knobs are left out of that name where they are as in the study's base; those
    ``named_anyway`` are not. ``unset`` is the word for no value. ``changes`` is what another value may change, and
    ``trade`` says in a few words what is gained and what it costs.

    **Effect.** ``acts`` tells whether it changes what runs. With an ``inactive_problem``, which says why it does
    nothing and what else to do, values other than the default are refused where it does not act; without one they are
    let through there. Where other knobs ask for its value to tell whether they
    act, ``decides`` is above 0: the order in which such knobs are reset before the others. ``loses_more`` tells towards
    which values a lossy method or loop loses more, all else being as it is. One that ``alters_learning`` changes what
    is learned of a token: only times to a loss compare such trials. One that ``alters_numbers`` loses nothing, but
    other values give a step's loss more than another rounding: a run that resumes says so. A ``product_share`` is the
    share of products that is computed, of which a summary tells what it saves. ``not_predicted`` says what predictions
    leave out where it has another value than its default.

    **While a run goes.** ``live`` is the part of a run that it turns while the run goes; one without says why it is
    decided ``at_start``, and what it would take to turn it. A plan for ``memory.budget_gib``, made at the start,
    counts with the values ``in_budget_plan``: a run that has such a plan does not turn them.

    **Kind.** A ``fixed`` key stays the same inside a study, or its trials could not be compared; a ``derived`` one
    follows from other keys. One ``outside_steps`` says nothing of what a step computes, only how many there are, where
    they begin, and what of them is measured; one ``outside_arithmetic`` not even that: it may differ between a run and
    its exact baseline. A ``degree`` is a count of ranks. A form lets people ``extend`` the values that it suggests.
    """

    title: str = ""
    short: str = ""
    label: str = ""
    named_anyway: bool = False
    unset: str = ""
    changes: tuple[Change, ...] = ()
    trade: str = ""
    neutral_default: bool = False
    reset_when_inactive: bool | None = None
    suggested: Callable[[Search], Any] = lambda search: None
    also_listed: Callable[[Search], Sequence[Any]] = lambda search: ()
    searched_by_default: bool | Callable[[Search], bool] = False
    why_not_searched: str = ""
    refused: Mapping[Context, str | Refusal] = field(default_factory=dict)
    acts: Callable[[Values], bool] = lambda now: True
    inactive_problem: str = ""
    decides: int = 0
    loses_more: Literal["", "lower", "higher"] = ""
    alters_learning: bool = False
    alters_numbers: bool = False
    product_share: bool = False
    not_predicted: str = ""
    live: str = ""
    at_start: str = ""
    in_budget_plan: bool = False
    fixed: bool = False
    derived: bool = False
    outside_steps: bool = False
    outside_arithmetic: bool = False
    degree: bool = False
    extend: bool = False

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
        found = self.searched_by_default
        return found if isinstance(found, bool) else found(search)
