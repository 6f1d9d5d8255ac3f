"""Commands to a running job, which all ranks apply at the same step without an additional collective. No torch.

A command file becomes a numbered command of the run. The launcher raises the number in the file of progress, rank 0
answers with the step at which it applies, and each rank reads the command when it gets there. What a rank did is an
event of kind ``order`` in its own records, with the id of the command.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.progress import End, Progress
from profilers.rank.orders.effective_step import AHEAD, EVENT, WARM_UP, due_order

__all__ = ["EVENT", "WARM_UP"]

#: What is ordered over some steps, and over how many unless told.
STEPS = {"snapshot": 1, "trace": 3}
#: The fewest and the most steps; what is written grows with each of them.
BOUNDS = {"snapshot": (0, 1000), "trace": (1, 100)}
#: Changes values of the configuration between two steps; the keys and values are the command's arguments.
SET = "set"
#: The same, with a copy of what held before, to which ``BACK`` returns: weights, optimizer, values and step. It may
#: change values there, too. After so many ``steps``, if they say how many, the loss on held-out text is taken.
TRY, BACK = "try", "back"
#: Takes the loss on held-out text between two steps.
EVALUATE = "evaluate"
#: What is done between two steps; those that change values have them as their arguments.
BETWEEN, TURNING = (SET, TRY, BACK, EVALUATE), (SET, TRY, BACK)
COMMANDS = (*STEPS, *BETWEEN)


@dataclass(frozen=True, slots=True)
class Order:
    """``id`` is that of the command. With 0 ``steps`` it is done between two steps; of ``try`` and ``back`` they are
    those after which the loss is taken; so many seconds at most ranks ``wait`` then for what is ordered next.
    ``values`` are dotted keys that ``by`` wants changed.
    """

    number: int
    id: str
    command: str
    steps: int
    values: dict[str, Any] = field(default_factory=dict)
    by: str = ""
    wait: float = 0.0


def arguments_of(command: str, values: list[str]) -> dict[str, int]:
    """The checked arguments of an order, from what was typed after it: ``steps=N`` or nothing.

    Raises:
        InputError: something else, or a number that is too small or large.
    """
    arguments = {"steps": STEPS[command]}
    least, most = BOUNDS[command]
    for value in values:
        name, _, number = value.partition("=")
        remedy = f"give steps=N with N from {least} to {most:,}, or nothing"
        if name not in arguments or not number.isdecimal() or not least <= int(number) <= most:
            raise InputError(command, value, remedy)
        arguments[name] = int(number)
    return arguments


class OrderQueue:
    """The launcher's side: numbers the orders among a run's commands, oldest first."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder, self._progress = folder, progress
        self._seen: set[str] = set()
        self._number = 0

    def forward_orders(self) -> None:
        """Hand new orders to the ranks; what is no order, or half of one, is left alone."""
        inbox = self._folder / run_folder.COMMANDS
        try:
            for path in sorted(inbox.glob("*.json")):
                if path.name not in self._seen:
                    self._take(path)
                    self._seen.add(path.name)
        except OSError:
            return  # asked again at the next look

    def _take(self, path: Path) -> None:
        document = run_folder.read_json(path) or {}
        command, options = document.get("command"), document.get("arguments")
        if command not in COMMANDS:
            return
        arguments = options if isinstance(options, dict) else {}
        number = self._number + 1
        steps = arguments.get("steps")
        if command in BETWEEN:
            values = {key: value for key, value in arguments.items() if key not in ("steps", "wait")}
            after, wait = steps if isinstance(steps, int) else 0, arguments.get("wait")
            patience = float(wait) if after and isinstance(wait, int | float) else 0.0
            order = Order(number, path.stem, command, after, values, str(document.get("by", "")), patience)
        else:
            order = Order(number, path.stem, command, steps if isinstance(steps, int) else STEPS[command])
        write(self._folder, order)
        self._number = number
        self._progress.request_order(number)


def stop_commanded(folder: Path) -> bool:
    """Whether someone left a stop command in a run folder; an unreadable one is not a command."""
    commands = sorted((folder / run_folder.COMMANDS).glob("*.json"))
    return any((run_folder.read_json(path) or {}).get("command") == "stop" for path in commands)


def write(folder: Path, order: Order) -> None:
    """An order's document, for the ranks that read this folder. OSError if that is not possible."""
    (folder / run_folder.ORDERS).mkdir(exist_ok=True)
    run_folder.write_json(_path(folder, order.number), asdict(order))


def read(folder: Path, number: int) -> Order | None:
    """An order by its number; None if it cannot be read."""
    return parse_order(run_folder.read_json(_path(folder, number)))


def parse_order(document: dict[str, Any] | None) -> Order | None:
    """An order from its plain values; None if they are not one's."""
    try:
        return Order(**(document or {}))
    except TypeError:
        return None


def _path(folder: Path, number: int) -> Path:
    return folder / run_folder.ORDERS / f"{number}.json"


def most_steps_apart(config: RunConfig) -> int:
    """By how many steps more than one ranks can differ. A replica of an outer loop may be at the end of a round while
    another one is at the beginning of the round before; with delayed gradients a rank waits a step later.
    """
    outer = config.outer
    rounds = 0 if outer.method == "none" else 2 * outer.period + outer.overlap
    return rounds + config.overlap.delay


class _Control:
    """Ranks can be some steps more than one apart. Once so, they stay: some may still be behind."""

    def __init__(self, progress: Progress | None, rank: int) -> None:
        self._progress, self._rank = progress, rank
        self._apart = self._redone = 0

    def redo(self, steps: int) -> None:
        """So many steps are done again: moments are counted in all that were done."""
        self._redone += steps

    def widen(self, apart: int) -> None:
        """From now on ranks may be this far apart."""
        self._apart = max(self._apart, apart)


class StopControl(_Control):
    """Rank 0 announces before which step the run ends: soon where the launcher asks it to stop, or where it ``plans``
    its whole length. Ranks take over what was announced at the same step.
    """

    def should_stop(self, step: int) -> bool:
        """Whether this rank must not run ``step`` any more, though the run is not whole."""
        if self._progress is None:
            return False
        step += self._redone
        if self._rank == 0:
            self._progress.settle()
        end = self._progress.end()
        if self._rank == 0 and self._progress.stop_requested() and self._may_announce(end, step):
            soon = step + AHEAD + self._apart
            end = End(soon, soon)
            self._progress.announce_end(end)
        return end is not None and not end.is_whole and step >= end.step

    def plan(self, step: int, steps: int, period: int = 1) -> None:
        """Rank 0, before ``step``: the run has so many steps in all, whole rounds of ``period``, and ``AHEAD`` more
        than are done at the least. Nothing where ranks may not have taken over what was announced before.
        """
        if self._progress is None:
            return
        step, steps, end = step + self._redone, steps + self._redone, self._progress.end()
        if self._may_announce(end, step) and not self._progress.stop_requested():
            first = step + AHEAD + self._apart
            last = max(first, steps)
            last += (self._redone - last) % period
            self._progress.announce_end(End(last, first, is_whole=True))

    def planned_steps(self, step: int) -> int | None:
        """How many steps the run has in all, as is known before ``step``."""
        end = None if self._progress is None else self._progress.end()
        if end is None or not end.is_whole or step + self._redone < end.first:
            return None
        return end.step - self._redone

    def _may_announce(self, end: End | None, step: int) -> bool:
        """Whether every rank knows it already and another may be announced; a stop is the last."""
        return end is None or (end.is_whole and step > end.first + self._apart)


class OrderControl(_Control):
    """Rank 0 sees the launcher's numbered orders and announces a step for one after the other."""

    def __init__(self, progress: Progress | None, rank: int) -> None:
        super().__init__(progress, rank)
        self._done = 0

    def due(self, step: int, busy: bool) -> int | None:
        """The number of the order that applies from ``step`` on; ``busy`` while one before it still goes on."""
        if self._progress is None:
            return None
        if self._rank == 0:
            self._progress.settle()
        number = due_order(
            self._progress, self._rank == 0, self._done, step + self._redone, busy, self._apart
        )
        self._done = number or self._done
        return number

    def check_hold(self, step: int, over: bool) -> tuple[bool, int | None]:
        """Of a rank that waits before ``step``, as all of them do: whether it still has to, and the number of the order
        that ends it. Nobody is further, so an order holds at once; rank 0 lets all go on once it is ``over``.
        """
        if self._progress is None:
            return False, None
        step += self._redone
        if self._rank == 0:
            self._progress.settle()
            over = over or self._progress.stop_requested()
        number, first = self._progress.announced_order()
        if self._rank == 0 and number == self._done and first != step:
            if self._progress.requested_order() > number:
                self._progress.announce_order(number + 1, step)
            elif over:
                self._progress.announce_order(number, step)
            number, first = self._progress.announced_order()
        if number > self._done and step >= first:
            self._done = number
            return False, number
        return number == self._done and first != step and not over, None
