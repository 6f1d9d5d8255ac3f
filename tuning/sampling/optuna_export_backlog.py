"""Optuna's database catches up with the whole journal: at a study's end, and when indexes are made again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from engine.run import run_folder
from tuning.sampling.optuna_export import Mirror, lag
from tuning.space.encoding import Encoding
from tuning.spec import study_file
from tuning.storage import controllers
from tuning.storage.journal_reader import JournalReader
from tuning.storage.lock import TURN, FileLock
from tuning.storage.study_folder import DATABASE, JOURNAL, LAG

#: Who waits for a turn gets it between two lots.
BREATH_SECONDS = 0.005
#: How far it is is said so often.
APART_SECONDS = 5.0
#: Trouble that comes again ends it: the next start tries anew.
_MOST_TROUBLES = 2


def drain(
    mirror: Mirror,
    lot: Callable[[], str],
    tell: Callable[[str], None],
    stopped: Callable[[], object] = lambda: False,
) -> None:
    """Add all that is missing: ``lot`` adds some, in a turn of its own, and says what was wrong. ``tell`` is told how
    many are left, now and then, if there are many; once it is ``stopped``, what is left waits for the next time.
    """
    said, troubles = 0.0, 0
    while mirror.missing and troubles < _MOST_TROUBLES and not stopped():
        if mirror.slow and time.monotonic() - said >= APART_SECONDS:
            said = time.monotonic()
            tell(f"{mirror.name} lacks {mirror.missing:,} trials; adding them (Ctrl-C leaves them for later)")
        troubles += bool(lot())
        time.sleep(BREATH_SECONDS)


def rebuild(folder: Path, tell: Callable[[str], None] = lambda _: None, most: int | None = None) -> str:
    """Make a study's Optuna file agree with its journal; says what had to be done, if anything. It may run meanwhile.
    A study of more than ``most`` trials is left as it is.

    Raises:
        InputError: the journal's own study file is refused by this version.
    """
    reader = JournalReader(folder / JOURNAL)
    state = reader.look()
    if state.file is None:
        return "the journal names no study"
    file = study_file.parse(state.file)
    if most is not None and len(state.trials) > most:
        return _noted(folder, lag(DATABASE, len(state.trials)))
    encoding, notes = Encoding(file.search_space), list[str]()
    with closing(Mirror(folder, encoding, file.aims if file.objectives else ())) as mirror:
        with _turn(folder):
            notes.append(mirror.check(reader.look()))

        def lot() -> str:
            with _turn(folder):
                notes.append(mirror.follow(reader.look()))
            return notes[-1]

        drain(mirror, lot, tell)
        notes.append(_noted(folder, mirror.lag))
    return "; ".join(note for note in notes if note)


def _noted(folder: Path, lag: str) -> str:
    """Those words, which a study's status has from now on, too, unless somebody runs it."""
    status = run_folder.read_json(folder / run_folder.STATUS)
    if status and status.get(LAG, "") != lag and not controllers.is_alive(status):
        with suppress(OSError):
            run_folder.write_json(folder / run_folder.STATUS, status | {LAG: lag})
    return lag


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Nobody else writes meanwhile; where the folder cannot be written, nobody does."""
    lock = FileLock(folder / TURN)
    try:
        lock.__enter__()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.__exit__(None, None, None)
