"""Steps over documents of their real lengths (FlexSP, arXiv 2412.01523): each batch is planned anew, groups of ranks
share documents, and the loss is a mean over all tokens of the step, whoever computes them.

All-to-alls go over groups that are made once, at the start. Planned groups are found on rank 0, in a thread beside the
step before, and told through the ranks' store; what groups took goes the other way, and corrects what the next ones are
predicted to take. Given ones, and those of held-out text, follow by formula from what every rank knows: a run that is
made again, or goes on, has the same losses to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from engine.comm import host_values
from engine.comm.context import RankContext
from engine.comm.store import RankStore
from engine.config.layout import longest_document, rank_tokens, sequence_degrees
from engine.model.data import Documents, left_out_note, open_documents
from engine.model.decoder import Decoder
from engine.model.experts.mixture import Text
from engine.parallel.context.axis import DocumentAttention
from engine.parallel.context.sequence_costs import SequenceCosts, costs_by_formula
from engine.parallel.context.sequence_learning import GroupFactors
from engine.parallel.context.sequence_measure import exchanged_bytes
from engine.parallel.context.sequence_planner import (
    BUDGET_SECONDS,
    GroupRanks,
    SequenceGroup,
    SequencePlan,
    plan_documents,
    program_solver,
)
from engine.parallel.data.replica import Replica
from engine.run.processes import lower_thread_priority
from profilers.analysis.events import SEQUENCE_GROUPS_EVENT

#: The first step makes what the others find, and the second plan comes after it: nothing is learned of it.
_FIRST_LEARNED = 2


class Share(NamedTuple):
    """What a rank computes of its group's documents, padded so that all its ranks have equally many tokens.

    ``inputs`` and ``targets`` are int64 [1, tokens], the first ``real`` of which are of documents; ``places`` [tokens]
    are those in their document. ``lengths`` are of all documents of the group, the padding being the last.
    """

    inputs: Tensor
    targets: Tensor
    places: Tensor
    lengths: tuple[int, ...]
    real: int


def share_of(documents: Sequence[Tensor], degree: int, place: int) -> Share:
    """Of documents as int64 [length + 1] each, for one of so many ranks; without documents it is padding alone."""
    lengths = [len(document) - 1 for document in documents]
    real = sum(lengths)
    padding = -real % degree or (0 if real else degree)
    blank = torch.zeros(padding, dtype=torch.int64)
    inputs = torch.cat([*(document[:-1] for document in documents), blank])
    targets = torch.cat([*(document[1:] for document in documents), blank])
    lengths += [padding] if padding else []
    places = torch.cat([torch.arange(length) for length in lengths])
    rank_tokens = len(inputs) // degree
    own_range = slice(place * rank_tokens, (place + 1) * rank_tokens)
    real_here = max(0, min(rank_tokens, real - place * rank_tokens))
    return Share(
        inputs[None, own_range], targets[None, own_range], places[own_range], tuple(lengths), real_here
    )


def my_group(groups: Sequence[SequenceGroup], rank: int) -> tuple[int, SequenceGroup, int]:
    """The number of a rank's group, the group, and the rank's place in it; behind all groups it is alone."""
    first = 0
    for number, group in enumerate(groups):
        if rank < first + group.degree:
            return number, group, rank - first
        first += group.degree
    return len(groups), SequenceGroup(1, ()), 0


@dataclass(frozen=True)
class Batch:
    """The documents of a step by their numbers, and who computes what."""

    numbers: list[int]
    plan: SequencePlan
    tokens: int
    waited_seconds: float


class DocumentSteps:
    """Forwards and backwards of one rank over whole documents."""

    def __init__(self, rank: RankContext, replica: Replica, costs: SequenceCosts) -> None:
        config = rank.config
        assert isinstance(replica.model, Decoder)
        assert isinstance(replica.model.context, DocumentAttention)
        self._rank, self._replica, self._costs = rank, replica, costs
        self._formula = costs_by_formula(config, exchanged_bytes(config))
        self._model, self._axis = replica.model, replica.model.context
        self._documents = open_documents(config.data, longest_document(config), config.train.seed)
        degrees, wanted = sequence_degrees(config), config.parallel.sequence_groups
        self._plans = wanted == "planned" and config.parallel.dp > 1
        usable = degrees if wanted == "planned" else (int(wanted),)
        self._ranks = GroupRanks(config.parallel.dp, usable, rank_tokens(config))
        self._store = RankStore(rank, "sequences") if self._plans else None
        self._thread = (
            ThreadPoolExecutor(1, "sequence-planner", lower_thread_priority)
            if self._plans and rank.rank == 0
            else None
        )
        self._ahead: tuple[tuple[int, int], Future[SequencePlan]] | None = None
        # Where groups wait for each other within a step, a group's seconds are those of all.
        apart = config.parallel.zero_stage < 2 and config.parallel.ep == 1
        self._factors = GroupFactors(usable) if self._plans and apart else None
        self._posted = ""
        self._turn, self._batch = 0, Batch([], SequencePlan(()), 0, 0.0)
        #: What this rank computed on in the last step.
        self.tokens = 0
        if self._thread is not None:
            program_solver()
        if cut := self._documents.cut:
            rank.note(_cut_note(self._documents, cut, config.data.longest_document is not None))
        if left_out := self._documents.left_out:
            rank.note(left_out_note(left_out, "data.path"))

    @property
    def last_plan(self) -> SequencePlan:
        """Of the step that was loaded last."""
        return self._batch.plan

    def load(self, first: int, count: int) -> None:
        """The next step is over documents ``first`` to ``first + count`` of the training order."""
        numbers = self._documents.training(first, count)
        began = time.monotonic()
        plan = self._by_hand(numbers) if self._store is None else self._share_plan(self._store, first, count)
        self._batch = Batch(numbers, plan, self._tokens(numbers), time.monotonic() - began)

    def run(self) -> float:
        """The step's forwards and backwards, and averaged gradients of the mean loss over all its tokens. This rank's
        part of that loss, times the number of ranks.
        """
        batch, losses, reports = self._batch, list[Tensor](), list[list[float]]()
        costs = replace(self._costs, factors=dict(batch.plan.factors))
        self.tokens, parts = 0, batch.plan.micro_batches
        for place, groups in enumerate(parts):
            number, group, share = self._begin(groups, batch.numbers, batch.tokens)
            began = self._now()
            loss = self._forward(share, batch.tokens)
            with self._rank.timer.phase("backward"):
                self._replica.backward(loss, None, last=place == len(parts) - 1)
            losses.append(loss.detach())
            self.tokens += share.real
            lengths = [self._documents.length(batch.numbers[document]) for document in group.documents]
            planned = costs.group(lengths, group.degree) if lengths else 0.0
            row = [number, group.degree, len(lengths), sum(lengths), planned, self._now() - began]
            reports.append(row)
        self._replica.finish()
        if self._factors is not None and self._store is not None:
            self._posted = f"{self._turn}.took"
            self._store.post(self._posted, reports)
        self._tell(reports)
        return host_values.number(torch.stack(losses).sum())

    def evaluate(self, first: int, count: int) -> tuple[float, float | None]:
        """The mean loss over the tokens of held-out documents ``first`` to ``first + count``, as ``run`` gives it."""
        numbers = self._documents.validation(first, count)
        plan, tokens, total = self._by_hand(numbers), self._tokens(numbers), 0.0
        with torch.no_grad():
            for groups in plan.micro_batches:
                _, _, share = self._begin(groups, numbers, tokens)
                total += host_values.number(self._forward(share, tokens))
        return total, None

    def close(self) -> None:
        """Let the planner's thread end."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(
        self, groups: Sequence[SequenceGroup], numbers: Sequence[int], tokens: int
    ) -> tuple[int, SequenceGroup, Share]:
        """The next forward is of this rank's share, of a step of so many tokens: the number of its group, the group and
        the share.
        """
        number, group, place = my_group(groups, self._rank.groups.coordinates.dp)
        documents = [
            torch.from_numpy(self._documents.tokens(numbers[document])) for document in group.documents
        ]
        share = share_of(documents, group.degree, place)
        device = self._rank.device
        self._axis.begin(group.degree, share.lengths)
        self._model.read_at(share.places.to(device), Text(share.real, tokens / self._ranks.count))
        return number, group, share._replace(inputs=share.inputs.to(device), targets=share.targets.to(device))

    def _forward(self, share: Share, tokens: int) -> Tensor:
        """Averaged over ranks it is the sum over this micro-batch's tokens, divided by those of the whole step."""
        with self._rank.timer.phase("forward"):
            out = self._replica.forward(share.inputs)
            if not share.real:
                return out.float().sum() * 0.0
            mean = self._model.loss(out[: share.real], share.targets[:, : share.real])
            return mean * (share.real * self._ranks.count / tokens)

    def _tokens(self, numbers: Sequence[int]) -> int:
        return sum(map(self._documents.length, numbers))

    def _by_hand(self, numbers: Sequence[int]) -> SequencePlan:
        """The same on every rank."""
        return plan_documents(list(map(self._documents.length, numbers)), self._ranks, self._formula, 0.0)

    def _share_plan(self, store: RankStore, first: int, count: int) -> SequencePlan:
        """What rank 0 found, which then begins with the batch behind this one."""
        self._turn += 1
        costs = self._learn_costs(store)
        shared_plan = store.broadcast(
            f"{self._turn}.plan", lambda: self._take_plan(first, count, costs).as_document()
        )
        if self._thread is not None:
            ahead = first + count, count
            self._ahead = ahead, self._thread.submit(self._program, *ahead, costs)
        return SequencePlan.from_document(shared_plan)

    def _learn_costs(self, store: RankStore) -> SequenceCosts:
        """On rank 0, corrected by what all ranks' groups took in the last step."""
        if self._factors is None:
            store.forget()
            return self._costs
        ranks = store.collect(self._posted) if self._posted else []
        self._posted = ""
        if self._rank.rank:
            return self._costs
        if self._turn > _FIRST_LEARNED:
            self._factors.learn(ranks, dict(self.last_plan.factors))
        return replace(self._costs, factors=self._factors.next())

    def _take_plan(self, first: int, count: int, costs: SequenceCosts) -> SequencePlan:
        """The plan made ahead, unless the run came to another batch."""
        if self._ahead is not None and self._ahead[0] == (first, count):
            return self._ahead[1].result()
        return self._program(first, count, costs)

    def _program(self, first: int, count: int, costs: SequenceCosts) -> SequencePlan:
        lengths = [self._documents.length(document) for document in self._documents.training(first, count)]
        return plan_documents(lengths, self._ranks, costs, BUDGET_SECONDS)

    def _now(self) -> float:
        if self._rank.device.type == "cuda":
            host_values.wait_for_device(self._rank.device)
        return time.monotonic()

    def _tell(self, rows: list[list[float]]) -> None:
        plan = self.last_plan
        facts = {
            "planner_seconds": plan.seconds,
            "proven": plan.proven,
            "waited_seconds": self._batch.waited_seconds,
            "factors": {str(degree): value for degree, value in plan.factors},
        }
        self._rank.writer.event(SEQUENCE_GROUPS_EVENT, step=self._rank.timer.step, groups=rows, **facts)


def _cut_note(documents: Documents, cut: int, was_asked: bool) -> str:
    why = "which is what the largest group holds"
    remedy = "data.sequence_length, batch.micro_batch or parallel.sequence_groups"
    if was_asked:
        why, remedy = "as data.longest_document says", "that"
    return (
        f"{cut} of {len(documents.parts)} documents are longer than {documents.longest:,} tokens, {why}, and are cut "
        f"there: raise {remedy}"
    )
