"""How a trial of a command ended, from what is known of its processes and what they printed last.

What the trainer says itself is shown. Rank and signal are those of torchrun's report of the first failure.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence

from engine.config.errors import several
from engine.launch.ending import SENT_FROM_OUTSIDE, describe_exit
from engine.run.outcome import Ending, RunOutcome, named_ending, printed_cause
from tuning.execution.command.process import Exit

#: So many last lines are kept.
KEPT_LINES = 40
#: ``error: unrecognized arguments: --x`` of argparse, what Hugging Face's parser says, and what others raise.
_REFUSED = re.compile(
    r"(?:^|\s)error: (?P<argparse>.+)|(?P<hf>Some specified arguments are not used by .+)|"
    r"Error: (?P<click>No such option.*|Invalid value.*)|"
    r"(?P<getopt>(?:unrecognized|unknown|invalid|illegal) option\b.*)"
)
_ERROR = re.compile(r"^(?:\[[^\]]*\]:\s*)?(?P<words>(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt)\b.*)$")
_SAID_NO = ("ValueError", "AssertionError", "TypeError", "NotImplementedError")
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\)")
_KERNEL = "the kernel killed the trainer's process for want of memory"
_NO_STEP = "the trainer ended well, and told of no step that could be read"
_OF_A_LAUNCHER = ("ChildFailedError", "CalledProcessError", "SignalException")


def outcome_of_command(
    end: Exit,
    lines: Sequence[str],
    steps: int,
    killed_for_memory: Callable[[int | None], bool],
    place: str = "",
) -> RunOutcome:
    """Of a trainer that ended by itself after so many recorded steps, fewer than were asked for; ``place`` says it in
    other words. The kernel is asked whether it killed a process for want of memory, by its number if that is known.

    A cause that it printed comes first; then that it refuses what it was given; then the signal that ended it.
    """
    last = tuple(lines[-KEPT_LINES:])
    if end.code == 0:
        return _without_failure(end, last, steps)
    rank, code, pid = _failed_rank(lines, end.code)
    if (cause := _outcome_of_cause(lines, rank)) is not None:
        return cause
    if code == -signal.SIGKILL and killed_for_memory(pid):
        return RunOutcome(Ending.OOM, _KERNEL, rank, None, last)
    place = place or (f", after {several(steps, 'steps')}" if steps else ", before its first step")
    refusal_text = refusal(lines)
    if refusal_text and not steps:
        return RunOutcome(Ending.ILLEGAL, _shorten(f"the trainer refuses: {refusal_text}"), rank, None, last)
    if code is None:
        words = f"the process that watched over the trainer was killed{place}"
        return RunOutcome(Ending.CRASHED, words, None, None, last, True)
    if code < 0:
        process, outside = "the trainer" if rank is None else f"rank {rank}", -code in SENT_FROM_OUTSIDE
        return RunOutcome(
            Ending.CRASHED, f"{process} {describe_exit(code)}{place}", rank, None, last, outside
        )
    error = (
        refusal_text
        or last_error(lines)
        or ("" if steps else next((line.strip() for line in reversed(lines)), ""))
    )
    words = f"the trainer {describe_exit(code)}{place}" + (f": {error}" if error else "")
    return RunOutcome(named_ending(error, printed=True) or Ending.CRASHED, _shorten(words), rank, None, last)


def outcome_of_silence(words: str, lines: Sequence[str], rank: int | None) -> RunOutcome:
    """Of one that tells of no step any more: a rank that printed what it ended of is the cause, though its launcher may
    take longer to notice it.
    """
    hang = RunOutcome(Ending.HANG, words, rank, None, tuple(lines[-KEPT_LINES:]))
    return _outcome_of_cause(lines, rank) or hang


def printed_no_step(outcome: RunOutcome) -> bool:
    """Whether that ended a trainer of which no step was heard, though nothing else is known to be wrong with it."""
    return outcome.ending is Ending.HANG or outcome.reason == _NO_STEP


def refusal(lines: Sequence[str]) -> str:
    """What a trainer says of its arguments, where it says no to them; empty if it does not."""
    for line in reversed(lines):
        if match := _REFUSED.search(line):
            return next(words for words in match.groups() if words).strip()
        if (error := _ERROR.match(line.strip())) and _kind(error["words"]) in _SAID_NO:
            return error["words"].strip()
    return ""


def last_error(lines: Sequence[str]) -> str:
    """The last error of a trainer's own; its launcher tells of the same one again."""
    errors = [error["words"] for line in lines if (error := _ERROR.match(line.strip()))]
    trainer_errors = [words for words in errors if _kind(words) not in _OF_A_LAUNCHER]
    first_of_all = [words for words in trainer_errors if not _is_consequence(words)]
    return next(iter([*first_of_all[-1:], *trainer_errors[-1:]]), "")


def _without_failure(end: Exit, last: tuple[str, ...], steps: int) -> RunOutcome:
    if end.survivors and not steps:
        others = ", ".join(dict.fromkeys(end.survivors))
        words = f"the command came back at once and went on in the background ({others}); it was ended"
        return RunOutcome(Ending.CRASHED, f"{words}: start the trainer in the foreground", None, None, last)
    if not steps:
        return RunOutcome(Ending.ILLEGAL, _NO_STEP, None, None, last)
    words = f"the trainer ended well after {several(steps, 'steps')}, fewer than are measured"
    if end.survivors:
        words += f", and left {', '.join(dict.fromkeys(end.survivors))} running: start it in the foreground"
    return RunOutcome(Ending.ILLEGAL, words, None, None, last)


def _outcome_of_cause(lines: Sequence[str], rank: int | None) -> RunOutcome | None:
    """By what was printed; None if no line speaks of a cause."""
    printed = printed_cause(lines)
    if printed is None:
        return None
    words = f"the trainer {printed[0].facts.count_phrase}: {printed[1]}"
    return RunOutcome(printed[0], _shorten(words), rank, None, tuple(lines[-KEPT_LINES:]))


def _is_consequence(error: str) -> bool:
    """Whether an error speaks of what follows when another rank ended."""
    ending = named_ending(error, printed=True)
    return ending is not None and ending.facts.consequence


def _failed_rank(lines: Sequence[str], code: int | None) -> tuple[int | None, int | None, int | None]:
    """Rank, exit code and process of the first that failed, as far as they are told."""
    for line in lines:
        if match := _FAILED.search(line):
            return int(match["rank"]), int(match["code"]), int(match["pid"])
    return None, code, None


def _kind(words: str) -> str:
    return words.partition(":")[0].rpartition(".")[2].strip()


def _shorten(words: str, most: int = 400) -> str:
    return words if len(words) <= most else f"{words[:most]} ..."
