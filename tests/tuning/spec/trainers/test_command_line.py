"""Commands as people paste them: lines that go on, quotes, comments, variables, and what only a shell can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.errors import InputError
from tuning.spec.trainers.command_line import parse

WORDS = ("torchrun", "--nproc_per_node", "2", "t.py", "--lr", "1")


@pytest.mark.parametrize(
    "text",
    [
        "torchrun --nproc_per_node 2 t.py --lr 1",
        "torchrun \\\n  --nproc_per_node 2 \\\n  t.py --lr 1",
        "torchrun \\\r\n  --nproc_per_node 2 \\ \n  t.py --lr 1\r\n",
        "torchrun\n  --nproc_per_node 2\n  t.py --lr 1",
        "$ torchrun --nproc_per_node 2 t.py --lr 1",
        "\n\n  torchrun --nproc_per_node 2 t.py --lr 1  # don't stop here\n",
        "# it's two ranks\ntorchrun --nproc_per_node 2 \\\n  # the rate\n  t.py --lr 1",
        "torchrun '--nproc_per_node' \"2\" t.py --lr 1",
    ],
)
def test_a_pasted_command_is_the_one_that_a_shell_would_start(text: str) -> None:
    found = parse(text, Path("/nowhere"))
    assert (found.words, found.variables, found.ranks) == (WORDS, {}, 2)


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("A=1 B='two words' t.py", {"A": "1", "B": "two words"}),
        ("A=1 \\\n  B=2 \\\n t.py", {"A": "1", "B": "2"}),
        ("env A=1 B=2 t.py", {"A": "1", "B": "2"}),
        ("export A=1\nB=2\nexport C='3' D=4\nt.py", {"A": "1", "B": "2", "C": "3", "D": "4"}),
    ],
)
def test_variables_stand_before_it_or_in_lines_of_their_own(text: str, variables: dict[str, str]) -> None:
    found = parse(text, Path("/nowhere"))
    assert (found.words, found.variables) == (("t.py",), variables)
    assert parse(found.text, Path("/nowhere")) == found


def test_a_variable_that_the_text_itself_sets_is_filled_in() -> None:
    found = parse(
        'export N=2 TO="a b"\ntorchrun --nproc-per-node $N t.py --to "$TO/x" --is \'$N\'', Path("/nowhere")
    )
    assert found.words[1:] == ("--nproc-per-node", "2", "t.py", "--to", "a b/x", "--is", "$N")
    assert found.ranks == 2


def test_what_is_quoted_needs_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    text = r"""t.py --a 'x > y; z' --b "a & b" --c \<s\> --d a#b --e ' # ' ~/x --f=~/y"""
    found = parse(text, Path("/nowhere")).words
    assert found == ("t.py", "--a", "x > y; z", "--b", "a & b", "--c", "<s>", "--d", "a#b", "--e", " # ",
                     "/home/somebody/x", "--f=~/y")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t.py >log.txt", "has >, and runs without a shell"),
        ("t.py 2>&1 | tee log", "has 2>&1, and"),
        ("nohup t.py &", "has &, and"),
        ("export A=1; t.py", "has ;, and"),
        ("t.py --id $(date)", r"has \$\(, and"),
        ("t.py --id `date`", "has `, and"),
        ("torchrun --nproc-per-node $NGPU t.py", r"has \$NGPU, which only a shell fills in; write its value"),
        ('t.py "$HOME/x"', r"has \$HOME"),
        ("t.py ${NGPU}", r"has \$\{NGPU\}, which is no macro"),
        ("cd somewhere\nt.py", "--set trainer.directory=somewhere"),
        ("source env.sh\ntorchrun t.py", "several commands, the first of them source"),
        ("torchrun a.py\ntorchrun b.py", "several commands, the first of them torchrun"),
        ("t.py 'a", "close every quote"),
        ("t.py \"a'", "close every quote"),
        ("# nothing\n", "is empty"),
        ("A=1", "is empty"),
        ("", "is empty"),
        ("bash -c 'torchrun t.py --lr 1'", "in a text for a shell"),
        ("env A=1 /bin/sh -lc 'python t.py'", "in a text for a shell"),
        ("srun -N 2 torchrun t.py", r"one host alone \(-N 2\)"),
        ("srun --nodes=3 t.py", r"one host alone \(--nodes 3\)"),
    ],
)
def test_what_only_a_shell_can_do_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse(text, Path("/nowhere"))


def test_a_hosts_option_of_the_trainer_is_none_of_slurm() -> None:
    assert parse("python t.py -N 2 --nodes 3", Path("/nowhere")).ranks == 1
