"""A vendor's management library behind one interface: answers are values or None, and no exception gets out."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from profilers.records.schema import EventData, GpuSample

#: Until a library is started anew for a GPU that does not answer, and at most: a start takes time from the others, and
#: one GPU may stay away for good. Twice as long each time, until all of them answer again.
_REOPEN_SECONDS, _LONGEST_REOPEN_SECONDS = 5.0, 60.0
#: Limits, counters and processes are read at this interval, and all else that is slow to read.
READ_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """What a GPU has and may do, without what changes as it works; each None where the driver does not tell it."""

    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    power_limit_watts: float | None = None
    sm_clock_max_mhz: float | None = None
    #: What someone set it to.
    sm_clock_set_mhz: float | None = None


class GpuIdentity(msgspec.Struct, frozen=True):
    """What tells a GPU from all others; None is what the driver does not tell."""

    #: As the library numbers it.
    gpu: int
    name: str | None
    uuid: str | None
    pci_bus_id: str | None
    #: The number of the GPU that tells its energy, where that is not its own.
    energy_of: int | UnsetType = UNSET

    def as_dict(self) -> dict[str, Any]:
        """For an event; without what is UNSET."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class GpuLibrary(ABC):
    """Opened at the first question. GPUs are numbered as the driver does.

    ``module`` stands in for the library's Python module in tests; ``wall_clock`` gives the time of a sample in unix
    seconds, ``clock`` is monotonic. ``ranks`` are the process numbers whose GPU memory is told apart.
    """

    #: Whose GPUs these are, what the library is called, and how it calls the links between GPUs.
    vendor: ClassVar[str]
    library: ClassVar[str]
    links: ClassVar[str]
    #: The functions that begin, end, and give the handle of a GPU by its number, which ``_handle`` may replace.
    _init: ClassVar[str]
    _shutdown: ClassVar[str]
    #: Codes that do not change while a driver runs, and those after which only a new start of the library can help.
    _for_good: ClassVar[frozenset[int]]
    _reopen: ClassVar[frozenset[int]]

    def __init__(
        self,
        module: Any = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given, self.module = module, module
        self._wall_clock, self.clock = wall_clock, clock
        self.ranks: frozenset[int] = frozenset()
        self._opened = self._worked = False
        self._reason: str | None = None
        #: What a call raises where the library has no such function, and all else that it may raise.
        self._absent: tuple[type[Exception], ...] = (AttributeError,)
        self._errors: tuple[type[Exception], ...] = (OSError, TypeError, ValueError)
        self._handles: dict[int, Any] = {}
        self._missed: dict[str, str] = {}
        self._never: set[tuple[Any, ...]] = set()
        self._second_due: dict[int, float] = {}
        self._reopen_at: float | None = None
        self._patience = _REOPEN_SECONDS
        self._failed: dict[int, EventData] = {}
        self._troubled: dict[int, EventData] = {}

    @property
    def reason(self) -> str | None:
        """Why there is no such library here, in one line; None if there is."""
        self._open()
        return self._reason

    @property
    def missing(self) -> list[str]:
        """One line for each function that a driver or GPU did not answer, with its first error."""
        return list(self._missed.values())

    @property
    @abstractmethod
    def device_count(self) -> int:
        """GPUs that the driver shows; 0 without the library."""

    @property
    @abstractmethod
    def driver_version(self) -> str | None:
        """Such as "570.86.15"."""

    @abstractmethod
    def name(self, index: int) -> str | None:
        """A GPU's product name."""

    @abstractmethod
    def is_divided(self, index: int) -> bool:
        """Whether a GPU is used in parts that are no devices here (MIG)."""

    @abstractmethod
    def identity(self, index: int) -> GpuIdentity:
        """What tells a GPU from all others, whatever its number."""

    @abstractmethod
    def limits(self, index: int) -> GpuLimits:
        """What a GPU has and may do."""

    @abstractmethod
    def tells_energy(self, index: int) -> bool:
        """Whether the joules of a GPU can be known."""

    def sample(self, index: int) -> GpuSample:
        """A reading of one GPU, once a second all of it."""
        readings: dict[str, Any] = dict.fromkeys(GpuSample.__dataclass_fields__)
        readings |= {"time_unix": self._wall_clock(), "gpu": index}
        self._reopen_if_due()
        self._failed.pop(index, None)
        return GpuSample(**(readings | self._read(index)))

    @abstractmethod
    def _read(self, index: int) -> dict[str, Any]:
        """Fields of ``GpuSample`` that could be read now."""

    def error_transitions(self) -> list[tuple[str, EventData]]:
        """GPUs that failed or came back since the last call: ``gpu_error`` and ``gpu_recovered``, with their data."""
        began = [(index, data) for index, data in self._failed.items() if index not in self._troubled]
        ended = [index for index in self._troubled if index not in self._failed]
        for index in ended:
            del self._troubled[index]
        self._troubled.update(began)
        if not self._troubled:
            self._patience = _REOPEN_SECONDS
        return [("gpu_error", data) for _, data in began] + [("gpu_recovered", {"gpu": gpu}) for gpu in ended]

    def close(self) -> None:
        """Lets go of the driver; a later question opens it again."""
        if self._opened and self._reason is None:
            self._forget()
            self.ask(self._shutdown)
        self._opened = False
        self._reason = self._reopen_at = None
        self._handles.clear()
        self._never.clear()

    def constant(self, name: str) -> Any:
        """One of the module's numbers or structures; None if it has no such name or is not here."""
        self._open()
        return getattr(self.module, name, None)

    def clear_missing(self, function: str) -> None:
        """Another function gave what this one did not: it is no longer among those ``missing``."""
        self._missed.pop(function, None)

    def lacks(self, reading: str, why: str) -> None:
        """A function answered, but not this part of it."""
        self._missed.setdefault(reading, f"{reading}: {why}")

    def query(self, index: int, function: str, *arguments: Any) -> Any:
        """What a function says of one GPU; ``arguments`` come after the GPU."""
        # A sample of GPM is a pointer of ctypes, which has no hash; what is asked of it does not depend on it.
        key = index, function, tuple(part for part in arguments if isinstance(part, int | str | tuple))
        if key in self._never:
            return None
        if index not in self._handles:
            handle = self._handle(index)
            if handle is None:
                return None
            self._handles[index] = handle
        return self.ask(function, self._handles[index], *arguments, gpu=index, key=key)

    def ask(self, function: str, *arguments: Any, gpu: int | None = None, key: tuple[Any, ...] = ()) -> Any:
        """What a function answers, or None. ``gpu`` is whom an error concerns, ``key`` what to ask no more."""
        self._open()
        if self._reason is not None:
            if gpu is not None and self._worked:
                self._failed.setdefault(gpu, {"gpu": gpu, "function": self._init, "error": self._reason})
            return None
        try:
            answer = getattr(self.module, function)(*arguments)
        except (*self._absent, *self._errors) as error:
            self._miss(function, error, gpu, key)
            return None
        return self._check_answer(function, answer)

    @abstractmethod
    def _handle(self, index: int) -> Any:
        """What the library's functions know a GPU by; None if it gives none."""

    @abstractmethod
    def _start(self) -> str | None:
        """Sets ``module`` and starts the library; or the reason, in one line, why that cannot be."""

    @abstractmethod
    def _code(self, error: Exception) -> int | None:
        """The library's own number of an error."""

    @abstractmethod
    def _forget(self) -> None:
        """Gives back what was taken from the library besides handles."""

    def _words(self, error: Exception) -> str:
        return str(error)

    def _check_answer(self, function: str, answer: Any) -> Any:
        return answer

    def _miss(self, function: str, error: Exception, gpu: int | None, key: tuple[Any, ...]) -> None:
        words, code = self._words(error), self._code(error)
        self.lacks(function, words)
        if isinstance(error, self._absent) or code in self._for_good:
            self._never.add(key)
        elif gpu is not None:
            self._failed.setdefault(gpu, {"gpu": gpu, "function": function, "error": words})
            if code in self._reopen and self._reopen_at is None:
                self._reopen_later()

    def _reopen_if_due(self) -> None:
        if self._reopen_at is not None and self.clock() >= self._reopen_at:
            self.close()
            self._open()
            if self._reason is not None:
                self._reopen_later()

    def _reopen_later(self) -> None:
        self._reopen_at = self.clock() + self._patience
        self._patience = min(2 * self._patience, _LONGEST_REOPEN_SECONDS)

    def _is_due(self, times: dict[int, float], index: int, first: float) -> bool:
        now = self.clock()
        if now < times.setdefault(index, now + first):
            return False
        times[index] = now + READ_SECONDS
        return True

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._reason = self._start()
            self._worked = self._worked or self._reason is None
