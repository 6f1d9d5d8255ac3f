"""Whether checks had room for their files: on a full disk nothing is known of what they are to prove."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

#: How a full disk is told, by the system and in tracebacks.
_WORDS = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
#: What small runs with their traces leave, and what a verdict takes.
RUN_BYTES, VERDICT_BYTES = 16 << 20, 64 << 10


def is_blamed(said: str) -> bool:
    """Whether an error or an output tells of a full disk; it need not be that of the scratch folder."""
    return any(word in said for word in _WORDS)


def why_none(scratch: Path, needed: int) -> str | None:
    """That a scratch folder does not take so many bytes; None if it does."""
    trial = scratch / ".room"
    try:
        trial.write_bytes(bytes(needed))
    except OSError as error:
        return refused(error)
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
    return None


def refused(error: OSError) -> str:
    """That the folder for temporary files takes none, and what to do; its name would be scrubbed."""
    why = error.strerror or type(error).__name__
    return (
        f"the folder for temporary files takes no more ({why}); free room there, or set TMPDIR to another one"
    )
