"""Text as bytes: files streamed from disk, a seeded held-out split, the same order for every layout. No torch."""

from __future__ import annotations

import codecs
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.config.errors import InputError, several
from engine.config.sections import Data

Bytes = npt.NDArray[np.uint8]
Tokens = npt.NDArray[np.int64]

#: Begins each document where they are masked: a byte that UTF-8 never has.
BORDER = 0xFF

_PROBE_BYTES = 1 << 20
_FEISTEL_ROUNDS = 4


def check_path(path: str | None) -> None:
    """Refuse a data path that cannot be trained on.

    Raises:
        InputError: missing, empty, unreadable, or not UTF-8 text.
    """
    if path is not None:
        _text_files(Path(path))


def left_out_note(files: int, field: str) -> str:
    """What a run tells of a folder of which so many files are not read."""
    return f"{files} {'file' if files == 1 else 'files'} of {field} left out: empty, unreadable or not UTF-8 text"


def _text_files(path: Path) -> tuple[list[Path], int]:
    """Those that are read, and how many are not."""
    if not path.exists():
        raise InputError(
            "data.path", str(path), "no such file or folder; give a UTF-8 text file, or a folder of them"
        )
    if path.is_file():
        problem = _problem(path)
        if problem:
            raise InputError("data.path", str(path), problem)
        return [path], 0
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    usable = [file for file in files if _problem(file) is None]
    if not usable:
        raise InputError(
            "data.path", str(path), f"none of its {several(len(files), 'files')} is non-empty UTF-8 text"
        )
    return usable, len(files) - len(usable)


def _problem(file: Path) -> str | None:
    try:
        with file.open("rb") as stream:
            probe = stream.read(_PROBE_BYTES)
            complete = not stream.read(1)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not probe:
        return "is empty; give a file with text"
    if b"\0" in probe:
        return "looks binary (it holds NUL bytes); give UTF-8 text"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(probe, final=complete)
    except UnicodeDecodeError as error:
        return f"is not UTF-8 text (byte {error.start}); give UTF-8 text"
    return None


@functools.cache
def _builtin_text() -> Bytes:
    return np.frombuffer("\n\n".join(_topics()).encode("utf-8"), dtype=np.uint8)


def _topics() -> list[str]:
    from pydoc_data.topics import topics  # 465,126 characters that every Python has

    return list(topics.values())


def _documents(path: str | None) -> tuple[list[Bytes], int]:
    """Each topic of Python's text, or each file that can be read; and how many cannot."""
    if path is None:
        return [np.frombuffer(topic.encode("utf-8"), dtype=np.uint8) for topic in _topics()], 0
    files, left_out = _text_files(Path(path))
    return [_map(file) for file in files], left_out


@dataclass(frozen=True)
class Corpus:
    """Bytes of all files one after the other, cut into windows of ``sequence_length`` tokens plus a target.

    A seeded permutation deals the windows: the first part of it is held out, the rest is trained on, each
    window once per epoch in an order that depends on the seed and the epoch alone. ``left_out`` is how many files of
    the folder are not read.
    """

    parts: tuple[Bytes, ...]
    sequence_length: int
    held_out_fraction: float
    seed: int
    left_out: int = 0

    @property
    def windows(self) -> int:
        """All windows, held-out ones included."""
        return (sum(len(part) for part in self.parts) - 1) // self.sequence_length

    @property
    def held_out(self) -> int:
        """Windows kept for validation; at least one."""
        return max(1, int(self.windows * self.held_out_fraction))

    def training(self, first: int, count: int) -> Tokens:
        """Windows ``first`` .. ``first + count`` of the endless training order: int64 [count, length + 1]."""
        per_epoch = self.windows - self.held_out
        drawn = []
        for position in range(first, first + count):
            shuffled = _shuffle_position(position, per_epoch, self.seed)
            drawn.append(self._window(_permute(self.held_out + shuffled, self.windows, self.seed)))
        return np.stack(drawn)

    def validation(self, first: int, count: int) -> Tokens:
        """Held-out windows, the same for every layout; starts again when there are too few."""
        places = [(first + i) % self.held_out for i in range(count)]
        return np.stack([self._window(_permute(place, self.windows, self.seed)) for place in places])

    def _window(self, index: int) -> Tokens:
        begin = index * self.sequence_length
        end = begin + self.sequence_length + 1
        pieces, offset = [], 0
        for part in self.parts:
            if offset < end and offset + len(part) > begin:
                pieces.append(part[max(0, begin - offset) : end - offset])
            offset += len(part)
        return np.concatenate(pieces).astype(np.int64)


@dataclass(frozen=True)
class Documents:
    """Documents of their real lengths, each behind a border; those of more than ``longest`` bytes are cut there.

    They are dealt as the windows of a ``Corpus`` are. ``left_out`` is how many files of the folder are not read.
    """

    parts: tuple[Bytes, ...]
    longest: int
    held_out_fraction: float
    seed: int
    left_out: int = 0

    @property
    def held_out(self) -> int:
        """Documents kept for validation; at least one."""
        return max(1, int(len(self.parts) * self.held_out_fraction))

    @property
    def cut(self) -> int:
        """How many are longer."""
        return sum(len(part) > self.longest for part in self.parts)

    def training(self, first: int, count: int) -> list[int]:
        """Numbers of documents ``first`` to ``first + count`` of the endless training order."""
        total, held_out = len(self.parts), self.held_out
        return [
            _permute(held_out + _shuffle_position(position, total - held_out, self.seed), total, self.seed)
            for position in range(first, first + count)
        ]

    def validation(self, first: int, count: int) -> list[int]:
        """The same of held-out ones; starts again when there are too few."""
        return [_permute((first + i) % self.held_out, len(self.parts), self.seed) for i in range(count)]

    def length(self, number: int) -> int:
        """Tokens that a document is computed on."""
        return min(len(self.parts[number]), self.longest)

    def tokens(self, number: int) -> Tokens:
        """The border and the document's bytes: int64 [length + 1]."""
        text = self.parts[number][: self.longest]
        return np.concatenate(([BORDER], text)).astype(np.int64)


def open_documents(data: Data, longest: int, seed: int) -> Documents:
    """The documents of a data section.

    Raises:
        InputError: the path is unusable, or there is one document alone.
    """
    parts, left_out = _documents(data.path)
    if len(parts) < 2:
        remedy = "is one document, and one has to be held out; give a folder with a file for each document"
        raise InputError("data.path", data.path, remedy)
    return Documents(tuple(parts), longest, data.held_out_fraction, seed, left_out)


def open_corpus(data: Data, seed: int) -> Corpus:
    """The corpus of a data section; files stay on disk and are read window by window.

    Raises:
        InputError: the path is unusable, or the text is shorter than two windows.
    """
    if data.documents == "masked" or data.path is not None:
        parts, left_out = _documents(data.path)
    else:
        parts, left_out = [_builtin_text()], 0
    if data.documents == "masked":
        border = np.array([BORDER], dtype=np.uint8)
        parts = [part for document in parts for part in (border, document)]
    corpus = Corpus(tuple(parts), data.sequence_length, data.held_out_fraction, seed, left_out)
    if corpus.windows < 2:
        size, length = sum(len(part) for part in parts), data.sequence_length
        most = (size - 1) // 2
        lower = f", or set data.sequence_length to at most {most}" if most >= 2 else ""
        needs = f"holds {size} bytes; sequence_length={length} needs {2 * length + 1}"
        raise InputError("data.path", data.path, f"{needs}: give more text{lower}")
    return corpus


def _map(file: Path) -> Any:
    return np.memmap(file, dtype=np.uint8, mode="r")


def _shuffle_position(position: int, per_epoch: int, seed: int) -> int:
    """Place in an epoch's own order of a position in the endless one."""
    epoch, place = divmod(position, per_epoch)
    return _permute(place, per_epoch, seed * 7919 + epoch + 1)


def _permute(index: int, size: int, seed: int) -> int:
    """A seeded permutation of 0..size-1 without a table: Feistel rounds, repeated until the result is in range."""
    half_bits = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & mask
        for turn in range(_FEISTEL_ROUNDS):
            left, right = right, left ^ (_mix(right, seed, turn) & mask)
        index = (left << half_bits) | right
        if index < size:
            return index


def _mix(value: int, seed: int, turn: int) -> int:
    """Finalizer of splitmix64 (Steele, Lea and Flood 2014) over value, seed and round."""
    word = (value + (seed + 1) * 0x9E3779B97F4A7C15 + turn * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return word ^ (word >> 31)
