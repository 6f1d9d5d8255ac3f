"""What became of the orders to a run: what its ranks tell in their records."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.config.errors import several
from engine.run import commands, progress, run_folder
from engine.run.ownership import is_alive
from profilers.analysis.events import VALIDATION_EVENT
from profilers.records.reader import RunRecords
from profilers.records.schema import Event

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RankReply:
    """What one rank did for one order; ``files`` are relative to the run's folder."""

    id: str
    rank: int
    command: str
    step: int
    files: list[str]
    note: str | None
    problem: str | None
    #: The first step that was recorded, and how many were; None for what is done between steps.
    first: int | None = None
    recorded: int | None = None
    #: On held-out text before the step, where this rank computes it and was asked for it.
    loss: float | None = None

    @property
    def text(self) -> str:
        """In one line: what went wrong, or what was written."""
        if self.problem:
            return f"failed before step {self.step:,}: {self.problem}"
        if not self.files:
            return self.note or "done"
        return ", ".join(self.files) + (f" ({self.note})" if self.note else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PendingOrder:
    """An order that not all ranks have answered: ``steps_done`` of ``steps`` are over, ``answered`` of ``ranks`` wrote.

    ``state`` is asked, recording or writing; ``first`` is None until ranks have agreed on a step.
    """

    id: str
    state: str
    steps: int
    first: int | None
    steps_done: int
    answered: int
    ranks: int

    @property
    def fraction(self) -> float:
        """How far it is; that ranks write counts as one more step."""
        return (self.steps_done + self.answered / self.ranks) / (self.steps + 1)


def orders_of_command(folder: Path, command: str) -> dict[str, int]:
    """The ids of all orders of a command, and over how many steps each was asked for."""
    orders = {}
    for path in (folder / run_folder.COMMANDS).glob("*.json"):
        document = run_folder.read_json(path) or {}
        if document.get("command") == command:
            arguments = document.get("arguments")
            steps = arguments.get("steps") if isinstance(arguments, dict) else None
            orders[path.stem] = steps if isinstance(steps, int) else commands.STEPS[command]
    return orders


def pending_orders(folder: Path, command: str) -> list[PendingOrder]:
    """Orders of a command that some rank has still to answer, the oldest first."""
    replies, ranks = run_answers(folder), run_folder.RunStatus.from_folder(folder).answering
    pending = []
    for key, steps in sorted(orders_of_command(folder, command).items()):
        answered = sum(answer.id == key for answer in replies)
        if answered < ranks:
            far = how_far(folder, key, command, steps)
            pending.append(PendingOrder(key, far[0], steps, far[1], far[2], answered, ranks))
    return pending


def how_far(folder: Path, key: str, command: str, steps: int) -> tuple[str, int | None, int]:
    """State, first step, and steps done by all ranks of an order that goes on."""
    number, announced = progress.last_announcement(folder)
    order = commands.read(folder, number) if number else None
    ranks = progress.read(folder)
    if order is None or order.id != key or not ranks:
        return "asked", None, 0
    first = announced + commands.WARM_UP[command]
    steps_done = max(0, min(rank.step for rank in ranks) - first)
    return ("writing" if steps_done >= steps else "recording"), first, min(steps_done, steps)


def answers(records: RunRecords) -> list[RankReply]:
    """All of a run, by order and rank."""
    replies = []
    for rank in records.ranks():
        for event in records.events(rank):
            if event.kind == commands.EVENT:
                replies.append(_answer(rank, event.data))
    return sorted(replies, key=lambda answer: (answer.id, answer.rank))


def _answer(rank: int, reply: dict[str, Any]) -> RankReply:
    return RankReply(
        id=str(reply.get("id")),
        rank=rank,
        command=str(reply.get("command")),
        step=int(reply.get("step") or 0),
        files=[str(name) for name in reply.get("files") or []],
        note=reply.get("note"),
        problem=reply.get("problem"),
        first=reply.get("first"),
        recorded=reply.get("recorded"),
        loss=reply.get("loss"),
    )


def losses_of_orders(folder: Path) -> dict[str, float]:
    """By the id of an order that asked for it, the loss on held-out text: also of steps that were undone since, which
    count in nothing else. Means over the ranks that computed it.
    """
    records = RunRecords(folder / run_folder.RECORDS)
    asked = {
        path.stem: run_folder.read_json(path) or {} for path in (folder / run_folder.COMMANDS).glob("*.json")
    }
    steps = {
        order: count
        for order, document in asked.items()
        if document.get("command") in (commands.TRY, commands.BACK)
        and isinstance(count := (document.get("arguments") or {}).get("steps"), int)
    }
    losses = defaultdict[str, list[float]](list)
    for rank in records.ranks():
        for order, loss in _losses_of_rank(records.events(rank), steps):
            losses[order].append(loss)
    return {order: sum(told) / len(told) for order, told in losses.items()}


def _losses_of_rank(events: Sequence[Event], steps: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """What one rank told: a loss counts for the last order that asked for one before this step."""
    wanted: tuple[str, int] | None = None
    for event in events:
        step, loss = event.data.get("step"), event.data.get("loss")
        if event.kind == commands.EVENT and not event.data.get("problem"):
            order = str(event.data.get("id"))
            if event.data.get("command") == commands.EVALUATE and isinstance(loss, float):
                yield order, loss
            if event.data.get("command") in (commands.TRY, commands.BACK):
                wanted = (order, int(step or 0) + steps[order]) if order in steps else None
        elif event.kind == VALIDATION_EVENT and wanted and step == wanted[1] and isinstance(loss, float):
            yield wanted[0], loss
            wanted = None


def report_files(replies: list[RankReply]) -> list[RankReply]:
    """Answers about files; what was changed is told by itself, and once for all ranks."""
    return [answer for answer in replies if answer.command not in commands.BETWEEN]


def refusals(replies: list[RankReply]) -> list[str]:
    """What was asked for between two steps and refused, each once."""
    turned = [answer for answer in replies if answer.command in commands.BETWEEN and answer.problem]
    first = {answer.id: answer for answer in reversed(turned)}
    return [f"before step {reply.step:,}: {reply.problem}" for reply in reversed(first.values())]


def run_answers(folder: Path) -> list[RankReply]:
    """As :func:`answers`; none without any order."""
    if not (folder / run_folder.ORDERS).is_dir():
        return []
    return answers(RunRecords(folder / run_folder.RECORDS))


def wait_for(folder: Path, order: str, ranks: int, patience: float) -> list[RankReply]:
    """The answers to one order, once all ``ranks`` gave theirs, the run is over or the process that ran it is gone, or
    after ``patience`` seconds without any change.
    """
    records = RunRecords(folder / run_folder.RECORDS)
    deadline, places = time.monotonic() + patience, None
    while True:
        ended = is_over(folder)
        records.refresh()
        replies = [answer for answer in answers(records) if answer.id == order]
        if len(replies) >= ranks or ended or time.monotonic() >= deadline:
            return replies
        before, places = places, [(rank.step, rank.phase) for rank in progress.read(folder)]
        moving = places != before or any(phase == "tracing" for _, phase in places)
        if moving and _has_begun(folder, order):
            deadline = time.monotonic() + patience
        time.sleep(_POLL_SECONDS)


def is_over(folder: Path) -> bool:
    """Whether nobody runs it any more: it ended, or the process that ran it is gone."""
    status = run_folder.RunStatus.from_folder(folder)
    return status.state == "ended" or (status.owner is not None and not is_alive(status.owner))


def unanswered_orders(folder: Path) -> list[str]:
    """The ids of orders that turn the run and that not all of its ranks have answered, the oldest first."""
    ranks = run_folder.RunStatus.from_folder(folder).answering
    reply_counts = Counter(answer.id for answer in answers(RunRecords(folder / run_folder.RECORDS)))
    documents = {
        path.stem: run_folder.read_json(path) for path in (folder / run_folder.COMMANDS).glob("*.json")
    }
    turning = [
        key for key, document in documents.items() if (document or {}).get("command") in commands.TURNING
    ]
    return sorted(key for key in turning if reply_counts[key] < ranks)


def _has_begun(folder: Path, order: str) -> bool:
    """Whether ranks have agreed on a step for an order, or for a later one."""
    number, _ = progress.last_announcement(folder)
    earlier_orders = [commands.read(folder, earlier) for earlier in range(1, number + 1)]
    return any(earlier is not None and earlier.id == order for earlier in earlier_orders)


def result_of_order(folder: Path, replies: list[RankReply], ranks: int) -> tuple[bool | None, str]:
    """Whether an order was carried out (None while some ranks have not answered), and a line that says so."""
    problems = [f"rank {answer.rank}: {answer.problem}" for answer in replies if answer.problem]
    if problems:
        problems_told = {answer.problem for answer in replies}
        return False, str(replies[0].problem) if len(problems_told) == 1 else "; ".join(problems)
    if not replies and is_over(folder):
        return False, f"{folder.name} ended before its ranks acted on it"
    if len(replies) < ranks:
        return None, f"sent; {len(replies)} of {ranks} ranks have answered, see {folder / run_folder.ORDERS}"
    files = [folder / name for answer in replies for name in answer.files]
    notes = dict.fromkeys(answer.note for answer in replies if answer.note)
    if not files:
        return True, "; ".join(notes)
    size = sum(path.stat().st_size for path in files if path.is_file())
    folders = sorted({str(path.parent) for path in files})
    return True, "; ".join(
        [f"{several(len(files), 'files')}, {size / 2**20:,.1f} MiB, in {', '.join(folders)}", *notes]
    )
