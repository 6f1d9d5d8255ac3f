"""Texts of several tasks as one endless order of windows: each global batch has its part of every one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np

from engine.config.errors import InputError
from engine.config.formulas.task_ranks import task_batches
from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.model.data import Corpus, Tokens, check_path, open_corpus, open_documents


@dataclass(frozen=True)
class TaskTexts:
    """Of every batch so many windows are of each corpus, in turn; each corpus goes on in an order of its own."""

    corpora: tuple[Corpus, ...]
    batches: tuple[int, ...]

    @property
    def left_out(self) -> int:
        """How many files of folders are not read."""
        return sum(corpus.left_out for corpus in self.corpora)

    def training(self, first: int, count: int) -> Tokens:
        """Windows ``first`` .. ``first + count`` of the endless training order: int64 [count, length + 1]."""
        return self._draw_windows(first, count, Corpus.training)

    def validation(self, first: int, count: int) -> Tokens:
        """The same of held-out windows; a task's start again when there are too few."""
        return self._draw_windows(first, count, Corpus.validation)

    def _draw_windows(self, first: int, count: int, draw: Callable[[Corpus, int, int], Tokens]) -> Tokens:
        """Consecutive windows of one task are read at once."""
        ends = list(accumulate(self.batches))
        places = [divmod(position, ends[-1]) for position in range(first, first + count)]
        pieces = []
        for (step, task), members in groupby(places, lambda place: (place[0], bisect_right(ends, place[1]))):
            rows = [place for _, place in members]
            index = step * self.batches[task] + rows[0] - (ends[task] - self.batches[task])
            pieces.append(draw(self.corpora[task], index, len(rows)))
        return np.concatenate(pieces)


def check_texts(config: RunConfig) -> None:
    """Refuse texts that cannot be trained on.

    Raises:
        InputError: one is missing, empty, unreadable, not UTF-8 text, or too short.
    """
    if config.trainer or not is_decoder(config.model):  # which read it in a way of their own
        check_path(config.data.path)
    elif config.data.documents == "whole":
        open_documents(config.data, config.data.sequence_length, config.train.seed)
    else:
        open_texts(config)


def open_texts(config: RunConfig) -> Corpus | TaskTexts:
    """What a configuration trains on.

    Raises:
        InputError: a path is unusable, or a text is shorter than two windows.
    """
    data, seed = config.data, config.train.seed
    if not data.tasks:
        return open_corpus(data, seed)
    texts = []
    for place, task in enumerate(data.tasks):
        try:
            texts.append(open_corpus(data.model_copy(update={"path": task.path}), seed))
        except InputError as problem:
            raise InputError(f"data.tasks.{place}.path", task.path, problem.remedy) from None
    return TaskTexts(tuple(texts), tuple(task_batches(config)))
