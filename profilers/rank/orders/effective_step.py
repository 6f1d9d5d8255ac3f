"""From which step an order holds, without an additional collective. No torch.

The launcher raises a number on the page of the run, one rank answers with the step from which it holds, and each rank
reads the order's file when it gets there. What a rank did is an event in its own records, with the order's id.
"""

from __future__ import annotations

from profilers.steps.shared_status import SharedStatus

#: The kind of the event in which a rank tells what it did.
EVENT = "order"
#: Steps between its announced one and the first that counts, in which ranks get ready.
WARM_UP = {"snapshot": 0, "trace": 1}
#: Ranks are less than one step apart where each step ends with a reduction over all of them. A step announced
#: two ahead is therefore seen by every rank before it gets there.
AHEAD = 2


def due_order(
    page: SharedStatus, leads: bool, last_order: int, step: int, busy: bool, apart: int = 0
) -> int | None:
    """The number of the order that holds from ``step`` on, ``last_order`` being what this rank did last.

    The rank that ``leads`` announces one after the other, none while one before it keeps it ``busy``. Ranks may be so
    many steps more than one ``apart``.
    """
    number, first = page.announced_order()
    # The leading rank got so far past the announced step that every rank has begun it: it may be replaced.
    begun = number == 0 or step > first + apart
    if leads and number == last_order and not busy and begun and page.requested_order() > number:
        number, first = number + 1, step + AHEAD + apart
        page.announce_order(number, first)
    return None if number <= last_order or step < first else number
