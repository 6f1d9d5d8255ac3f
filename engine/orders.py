"""Orders: what a running job is asked to do over some steps, on all ranks from the same step on. No torch.

A command file becomes a numbered order of the run, the launcher raises the number on the page of progress, rank 0
answers with the step at which it applies, and each rank reads the order when it gets there. What a rank did is an event
of kind ``order`` in its own records, with the id of the command.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine import rundir
from engine.errors import InputError
from engine.progress import Progress

#: What is ordered over some steps, and over how many unless told.
STEPS = {"snapshot": 1, "trace": 3}
#: Steps between its announced one and the first that counts, in which ranks get ready.
WARM_UP = {"snapshot": 0, "trace": 1}
#: The fewest and the most steps; what is written grows with each of them.
BOUNDS = {"snapshot": (0, 1000), "trace": (1, 100)}
#: Changes values of the configuration between two steps; the keys and values are the command's arguments.
SET = "set"
KINDS = (*STEPS, SET)
#: The kind of the event in which a rank tells what it did.
EVENT = "order"


@dataclass(frozen=True, slots=True)
class Order:
    """``id`` is that of the command. With 0 ``steps`` it is done between two steps. ``values`` are dotted keys that
    ``by`` wants changed.
    """

    number: int
    id: str
    command: str
    steps: int
    values: dict[str, Any] = field(default_factory=dict)
    by: str = ""


def arguments_of(command: str, values: list[str]) -> dict[str, int]:
    """The checked arguments of an order, from what was typed after it: ``steps=N`` or nothing.

    Raises:
        InputError: something else, or a number that is too small or large.
    """
    found = {"steps": STEPS[command]}
    least, most = BOUNDS[command]
    for value in values:
        name, _, number = value.partition("=")
        remedy = f"give steps=N with N from {least} to {most:,}, or nothing"
        if name not in found or not number.isdecimal() or not least <= int(number) <= most:
            raise InputError(command, value, remedy)
        found[name] = int(number)
    return found


class OrderBook:
    """The launcher's side: numbers the orders among a run's commands, oldest first."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder, self._progress = folder, progress
        self._seen: set[str] = set()
        self._number = 0

    def pass_on(self) -> None:
        """Hand new orders to the ranks; what is no order, or half of one, is left alone."""
        inbox = self._folder / rundir.COMMANDS
        try:
            for path in sorted(inbox.glob("*.json")):
                if path.name not in self._seen:
                    self._take(path)
                    self._seen.add(path.name)
        except OSError:
            return  # asked again at the next look

    def _take(self, path: Path) -> None:
        found = rundir.read_json(path) or {}
        command, given = found.get("command"), found.get("arguments")
        if command not in KINDS:
            return
        arguments = given if isinstance(given, dict) else {}
        number = self._number + 1
        if command == SET:
            order = Order(number, path.stem, SET, 0, arguments, str(found.get("by", "")))
        else:
            steps = arguments.get("steps")
            order = Order(number, path.stem, command, steps if isinstance(steps, int) else STEPS[command])
        write(self._folder, order)
        self._number = number
        self._progress.request_order(number)


def stop_commanded(folder: Path) -> bool:
    """Whether someone left a stop command in a run folder; an unreadable one is not a command."""
    commands = sorted((folder / rundir.COMMANDS).glob("*.json"))
    return any((rundir.read_json(path) or {}).get("command") == "stop" for path in commands)


def write(folder: Path, order: Order) -> None:
    """An order's document, for the ranks that read this folder. OSError if that is not possible."""
    (folder / rundir.ORDERS).mkdir(exist_ok=True)
    rundir.write_json(_path(folder, order.number), asdict(order))


def read(folder: Path, number: int) -> Order | None:
    """An order by its number; None if it cannot be read."""
    return from_document(rundir.read_json(_path(folder, number)))


def from_document(found: dict[str, Any] | None) -> Order | None:
    """An order from its plain values; None if they are not one's."""
    try:
        return Order(**(found or {}))
    except TypeError:
        return None


def _path(folder: Path, number: int) -> Path:
    return folder / rundir.ORDERS / f"{number}.json"
