"""The form of a study that tunes a command: the trainer that is recognised, what is turned of it, and what will run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from tuning.spec.objectives import KNOWN
from tuning.spec.study_file import StudyFile
from tuning.spec.terms import Budget, Constraints, StepSource
from tuning.spec.trainers import invocation
from tuning.spec.trainers.command_input import PREFIX
from tuning.spec.trainers.facts import Value
from tuning.spec.trainers.registry import TRAINERS
from tuning.spec.trainers.tuned_command import TunedCommand, name_of
from workbench.home.inputs import assignments, set_dotted
from workbench.pages.study import new_options, new_start
from workbench.pages.widgets import forms
from workbench.pages.widgets.common import grid, wrong_value
from workbench.text import command_plan, words

AUTO = "auto"
#: What can be asked of a command; the first: whichever of the others it tells enough for.
AIMS = ("", "tokens_per_second", "step_seconds")
#: Where its steps are read, by the key of ``trainer.steps``; the first: as this trainer prints them.
SOURCES = {
    "": "lines of its output, as this trainer prints them",
    "pattern": "lines of its output, by a pattern of mine",
    "file": "a file of JSON lines",
    "tensorboard": "TensorBoard's event files",
}
TRAIN = {"train.steps": None, "train.warmup": None, "train.step_timeout_seconds": None}
TERMS = {
    "sampler": None,
    "seed": None,
    "confirm_repeats": None,
    "confirm_runners_up": 1,
    "equal_within": None,
}
COLUMNS = 3


def form() -> None:
    """Every section; nothing of the command runs before the button is pressed."""
    with st.container(border=True, key="new-command-fixed"):
        st.markdown("**The command of every trial**")
        section, study = _command()
        known = _parse_command(section)
        base = _steps(known)
    searched = st.container()
    with st.expander("Advanced", icon=":material/tune:", key="new-advanced"):
        options, steps, more = _advanced_form()
    if steps:
        section["steps"] = steps
    with searched:
        space = _space(known) if known else {}
    tree = study | {"trainer": section, "base": base, "space": space} | options
    new_start.finish(_with_more(tree, more) if space else None, plan)


def _command() -> tuple[dict[str, Any], dict[str, Any]]:
    """The ``trainer`` section, and the study's own keys."""
    typed = st.text_area(
        "Command",
        key="new-command",
        height=80,
        placeholder="torchrun --nproc-per-node 4 train.py ARGS",
        help="As you type it in a terminal: `NAME=VALUE` in front are environment variables. It runs without a shell, "
        "as you, on this machine. (`trainer.command`)",
    )
    directory, kind, name, trials = st.columns([2, 2, 2, 1])
    where = directory.text_input(
        "Folder that it starts in",
        str(Path.cwd()),
        key="new-command-directory",
        help="Paths in the command are as seen from here. (`trainer.directory`)",
    )
    titles = {AUTO: "recognise it"} | {one.name: one.title for one in TRAINERS}
    chosen = kind.selectbox(
        "Trainer",
        list(titles),
        key="new-command-kind",
        format_func=titles.__getitem__,
        help="What its options are called and how its steps are read follows from it. (`trainer.kind`)",
    )
    section = {"command": typed.strip(), "directory": where.strip() or str(Path.cwd())}
    section |= {} if chosen == AUTO else {"kind": chosen}
    called = name.text_input(
        "Name",
        key="new-command-name",
        placeholder="follows from the command",
        help="The same command in the same folder has the same name, and continues its study. (`name`)",
    )
    count = forms.widget(forms.field(StudyFile, "trials"), "new-command-trials", None, trials)
    return section, {"name": called.strip() or _name(section), "trials": count}


def _name(section: dict[str, Any]) -> str:
    try:
        return name_of(section)
    except InputError:
        return new_start.free_name()


def _parse_command(section: dict[str, Any]) -> TunedCommand | None:
    """The command taken apart, with a line that says what it is; None while there is none."""
    if not section["command"]:
        st.caption(
            ":material/terminal: Type the command that starts your trainer. Nothing runs before Start."
        )
        return None
    try:
        if not Path(section["directory"]).expanduser().is_dir():
            raise InputError(
                "trainer.directory", section["directory"], "is no folder; give the one it starts in"
            )
        known = TunedCommand(section)
    except InputError as error:
        wrong_value(str(error))
        return None
    asked = "Asked for" if "kind" in section else "Recognised"
    ranks = words.several(known.today.ranks, "ranks")
    st.markdown(f":small[:green[:material/check:] {asked}: **{words.escape(known.kind.title)}**, {ranks}]")
    return known


def _steps(known: TunedCommand | None) -> dict[str, Any]:
    """The ``base``: how long a trial is, and the tokens of a step where the command does not say."""
    values = forms.changed_values(RunConfig, forms.section(RunConfig, TRAIN, "new-command", COLUMNS))
    sequences, length = known.kind.tokens(known.today) if known else (None, None)
    places = st.columns(2)
    for place, key, label, told in (
        (places[0], "batch.global_batch", "Sequences of a step, on all ranks", sequences),
        (places[1], "data.sequence_length", "Tokens of a sequence", length),
    ):
        given = place.number_input(
            label,
            1,
            value=None,
            key=f"new-command-{words.identifier(key)}",
            placeholder=f"{told}, as the command says" if told else "not told: no rate in tokens",
            help=f"With both of them known, trials are compared by tokens per second. (`base.{key}`)",
        )
        values |= {} if given is None else {key: given}
    return new_start.nest_values(values, {})


def _space(known: TunedCommand) -> dict[str, Any]:
    """What the trainer is known to turn, and any other option of its command."""
    with st.container(border=True, key="new-command-space"):
        st.markdown("**What is searched**")
        offered = known.offered
        turned = _arguments(list(offered)) if offered else []
        others = st.multiselect(
            "Other options of the command",
            [name for name in _options(known) if name not in offered],
            key="new-command-others",
            accept_new_options=True,
            placeholder="none",
            help="Whoever turns such an option answers for it that steps stay comparable. (`space.trainer.NAME`)",
        )
        names = [name for name in offered if name in turned] + [
            name for name in others if name not in offered
        ]
        if not names:
            wrong_value("nothing is turned yet: choose an argument above, or name an option of the command")
        places = grid(len(names), COLUMNS)
        return {
            PREFIX + name: _values(place, known, name, offered.get(name))
            for place, name in zip(places, names, strict=False)
        }


def _arguments(offered: list[str]) -> list[str]:
    """Those that are turned: all of them at first, as on the command line."""
    return st.pills(
        "Arguments",
        offered,
        selection_mode="multi",
        default=offered,
        key=f"new-command-knobs-{'-'.join(offered)}",
        label_visibility="collapsed",
    )


def _options(known: TunedCommand) -> list[str]:
    """Names of the options behind its script: those of a launcher are no affair of the training."""
    typed = known.today.words
    script = next((place for place, word in enumerate(typed) if word.endswith(".py")), 0)
    names = (word.partition("=")[0].lstrip("-") for word in typed[script + 1 :] if word.startswith("-"))
    return list(dict.fromkeys(name for name in names if name and not name[0].isdigit()))


def _values(place: Any, known: TunedCommand, name: str, offered: Sequence[Value] | None) -> list[Any]:
    """The values to try of one name: what the trainer is known to take, else today's and what is typed."""
    now = known.has(name)
    given = [*offered] if offered else [] if now is None else [now]
    argument = known.kind.argument(name)
    about = f"{words.escape(argument.trade)}. " if argument else ""
    with place.container(gap="xsmall"):
        chosen = st.multiselect(
            f"{name}, today {now}" if now is not None else f"{name}, not in the command today",
            _near(given),
            default=given,
            key=f"new-command-values-{words.identifier(name)}",
            accept_new_options=True,
            format_func=str,
            help=f"{about}(`space.{PREFIX}{name}`)",
            wrap=True,
        )
        if len(chosen) < 2:
            wrong_value(
                "type at least two values to compare" if not chosen else "type another value to compare"
            )
    return [invocation.read(item) if isinstance(item, str) else item for item in chosen]


def _near(given: Sequence[Value]) -> list[Value]:
    """Beside a lone number of today its half and its double are in the list, and not chosen."""
    if len(given) != 1 or isinstance(given[0], bool | str) or not given[0]:
        return [*given, not given[0]] if len(given) == 1 and isinstance(given[0], bool) else [*given]
    now = given[0]
    half = now / 2 if isinstance(now, float) or now % 2 else now // 2
    return [*([half] if isinstance(now, float) or not now % 2 else []), now, now * 2]


def _advanced_form() -> tuple[dict[str, Any], dict[str, Any], str]:
    """Keys of the study file, its ``trainer.steps``, and whatever else is typed as KEY=VALUE."""
    found = _aim() | forms.changed_values(StudyFile, forms.section(StudyFile, TERMS, "new-command", COLUMNS))
    if found.get("confirm_runners_up") == TERMS["confirm_runners_up"]:
        del found["confirm_runners_up"]  # what a study of a command has where its file does not say
    found |= new_options.racing() | new_options.inherit()
    limits = forms.section(Budget, {"wall_seconds": None}, "new-command-budget", 2)
    keeps = forms.section(Constraints, {"max_step_seconds": None}, "new-command-constraints", 2)
    for name, values in (("budget", limits), ("constraints", keeps)):
        if given := {key: value for key, value in values.items() if value is not None}:
            found[name] = given
    steps = _source()
    more = st.text_area(
        "Anything else of the study file, one KEY=VALUE a line",
        key="new-command-more",
        height=80,
        placeholder="base.train.timeout_seconds=1200",
        help="As --set on the command line; such a line counts more than what is above.",
    )
    return found, steps, more


def _aim() -> dict[str, Any]:
    names = {"": "tokens per second where the command tells of tokens, else seconds per step"}
    chosen = st.selectbox(
        "Objective",
        AIMS,
        key="new-command-objective",
        format_func=lambda name: names.get(name) or KNOWN[name].title,
        help="(`objective`)",
    )
    return {"objective": chosen} if chosen else {}


def _source() -> dict[str, Any]:
    """Where steps are read, and by which keys."""
    chosen = st.selectbox(
        "Where its steps are read",
        list(SOURCES),
        key="new-command-source",
        format_func=SOURCES.__getitem__,
        help="(`trainer.steps`)",
    )
    if not chosen:
        return {}
    keys = {chosen: None} | ({"step": None, "seconds": None} if chosen == "file" else {})
    values = forms.section(StepSource, keys, "new-command-steps", len(keys))
    return {chosen: values.pop(chosen) or ""} | forms.changed_values(StepSource, values)


def _with_more(tree: dict[str, Any], more: str) -> dict[str, Any] | None:
    """With what was typed beside it."""
    try:
        for key, value in assignments([line for line in more.splitlines() if line.strip()]).items():
            set_dotted(tree, key, value)
    except InputError as error:
        st.error(words.escape(str(error)), icon=":material/error:")
        return None
    return tree


def plan(file: StudyFile) -> None:
    """What the command line prints before a study of a command: what trial 0 is, and which trials follow it. Nothing of
    another study.
    """
    if file.trainer is None:
        return
    told = command_plan.plan(file)
    with st.container(border=True, key="new-command-plan"):
        st.markdown("**What will run**")
        where = words.escape(told["directory"])
        st.caption(f"Trial 0, in {where}: the command as it is, so that its steps can be read.")
        st.code(command_plan.readable_command(told["first_trial"]), language="bash", wrap_lines=True)
        others, aim = words.several(file.trials - 1, "others"), KNOWN[told["objective"]].title.lower()
        st.caption(
            f"Then at most {others}, {told['steps']} steps each, {told['warmup']} of them warm-up; compared by {aim}. "
            "Each is ended, with all that it started, once its steps are measured."
        )
        if refused := _refusal_text(file):
            st.caption(f":material/block: {refused}")


def _refusal_text(file: StudyFile) -> str:
    """How many combinations the trainer would refuse, and the reason of one."""
    among = file.search_space.combinations
    if file.command is None or among > new_start.COUNTED_COMBINATIONS:
        return ""
    keys, grids = [knob.key.removeprefix(PREFIX) for knob in file.knobs], [knob.grid() for knob in file.knobs]
    points = (dict(zip(keys, values, strict=True)) for values in itertools.product(*grids))
    reasons = [why for point in points if (why := file.command.refusal(file.config.trainer | point))]
    if not reasons:
        return ""
    what = f"{words.several(len(reasons), 'combinations')} of {among:,} break a rule of the trainer"
    return f"{what} and are never tried, such as {words.escape(reasons[0])}"
