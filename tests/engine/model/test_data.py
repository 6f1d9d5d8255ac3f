"""Text, its held-out part, and the order in which every layout sees it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config.errors import InputError
from engine.config.sections import Data
from engine.model.data import _permute, check_path, open_corpus
from engine.model.workloads.task_texts import check_texts
from engine.session import Session
from tests.support.runs import small


@given(st.integers(1, 3000), st.integers(0, 100))
def test_permutation_hits_every_index_once(size: int, seed: int) -> None:
    assert sorted(_permute(index, size, seed) for index in range(size)) == list(range(size))


def test_embedded_text_is_pythons_own() -> None:
    corpus = open_corpus(Data(sequence_length=128), seed=0)
    assert len(bytes(corpus.parts[0]).decode("utf-8")) == 465_126
    assert "assert" in bytes(corpus.parts[0]).decode("utf-8")


def test_held_out_windows_are_never_trained_on() -> None:
    corpus = open_corpus(Data(sequence_length=512), seed=3)
    epoch = corpus.windows - corpus.held_out
    trained = {bytes(row.astype(np.uint8)) for row in corpus.training(0, epoch)}
    held_out = {bytes(row.astype(np.uint8)) for row in corpus.validation(0, corpus.held_out)}
    assert len(trained) + len(held_out) == corpus.windows
    assert not trained & held_out


def test_every_epoch_has_its_own_order_and_seeds_differ() -> None:
    corpus = open_corpus(Data(sequence_length=512), seed=3)
    epoch = corpus.windows - corpus.held_out
    assert not np.array_equal(corpus.training(0, 8), corpus.training(epoch, 8))
    other = open_corpus(Data(sequence_length=512), seed=4)
    assert not np.array_equal(corpus.training(0, 8), other.training(0, 8))


def test_parts_of_a_batch_are_the_batch() -> None:
    corpus = open_corpus(Data(), seed=0)
    whole = corpus.training(40, 8)
    assert whole.shape == (8, 129)
    assert np.array_equal(whole, np.concatenate([corpus.training(40, 4), corpus.training(44, 4)]))


def test_a_folder_is_one_text_and_windows_cross_files(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b" * 50)
    (tmp_path / "a.txt").write_text("a" * 50)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / ".hidden").write_text("h" * 50)
    corpus = open_corpus(Data(path=str(tmp_path), sequence_length=11), seed=0)
    assert corpus.windows == 9
    seen = b"".join(bytes(corpus._window(i)[:-1].astype(np.uint8)) for i in range(9))
    assert seen == b"a" * 50 + b"b" * 49


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"abc\0def", "binary"),
        (b"\xff\xfe text", "not UTF-8"),
        (b"short", "holds 5 bytes"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "data.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        open_corpus(Data(path=str(file)), seed=0)
    assert str(file) in str(caught.value)


def test_missing_paths_and_folders_without_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        check_path(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="none of its 0 files"):
        check_path(str(tmp_path))
    check_path(None)


@pytest.mark.parametrize(
    ("documents", "content", "remedy"),
    [
        ("joined", "short", "give more text, or set data.sequence_length to at most 2"),
        ("masked", "short", "give more text, or set data.sequence_length to at most 2"),
        ("whole", "long enough " * 100, "give a folder with a file for each document"),
    ],
)
def test_text_that_is_too_short_is_told_before_ranks_start(
    tmp_path: Path, documents: str, content: str, remedy: str
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text(content)
    config = small(data__path=str(folder), data__documents=documents)
    with Session(tmp_path) as session, pytest.raises(InputError, match=remedy) as caught:
        session.execute(config, {}, lambda: False)
    assert (caught.value.field, caught.value.value) == ("data.path", str(folder))


def test_what_is_advised_for_a_short_text_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "data.txt"
    for size in range(5, 12):
        file.write_text("x" * size)
        config = small(data__path=str(file), data__sequence_length=64)
        with pytest.raises(InputError) as caught:
            check_texts(config)
        told = int(caught.value.remedy.rpartition(" ")[2])
        check_texts(config.with_values({"data.sequence_length": told}))


@pytest.mark.parametrize("documents", ["joined", "masked", "whole"])
def test_files_that_are_no_text_are_noted(tmp_path: Path, documents: str) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, content in (("a", b"a" * 200), ("b", b"b" * 200), ("empty", b""), ("latin", b"\xe4\xf6")):
        (folder / name).write_bytes(content)
    config = small(data__path=str(folder), data__documents=documents, train__steps=2, train__warmup=1)
    with Session(tmp_path) as session:
        outcome, summary = session.execute(config, {}, lambda: False)
    assert outcome.good, outcome
    assert "2 files of data.path left out: empty, unreadable or not UTF-8 text" in summary.notes


def test_a_long_text_whose_probe_ends_inside_a_character(tmp_path: Path) -> None:
    file = tmp_path / "data.txt"
    file.write_text("ä" * 600_000 + "\n", encoding="utf-8")
    check_path(str(file))
    file.write_text("x" + "ä" * 600_000, encoding="utf-8")
    check_path(str(file))
