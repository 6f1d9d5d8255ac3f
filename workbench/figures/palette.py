"""Colours of figures by what they mean: one family for each kind of thing, and nowhere else a colour is written.

``tests/workbench/figures/test_colours.py`` holds that of one family no two look alike with any colour vision, that
no figure has one colour for two things, and that a colour of a phase means that phase wherever it is.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.schedules.actions import Work

#: Parts of a step: Okabe and Ito's colours with a darker grey, which nobody takes for the bubble's pink. Nothing else
#: has them.
PHASE_COLORS = {
    "data": "#E69F00",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "communication_exposed": "#D55E00",
    "bubble": "#CC79A7",
    "optimizer": "#009E73",
    "other": "#6B7280",
}
#: Communication that ran beside computation: paler than what was waited for.
HIDDEN_COMMUNICATION = "#F0B08A"
#: Actions of a pipeline schedule: forward and backward are phases, too.
WORK_COLORS = {
    Work.FORWARD: PHASE_COLORS["forward"],
    Work.BACKWARD: PHASE_COLORS["backward"],
    Work.INPUT: "#882255",
    Work.WEIGHT: "#DDCC77",
}
#: Communication of an axis, drawn below the phases and unlike each of them.
AXIS_COLORS = {"dp": "#9486FA", "tp": "#9C561E", "pp": "#355E78", "cp": "#7829CF", "ep": "#CB999F"}
OTHER_AXIS = "#7D6449"
#: One of several that a legend names: ranks, GPUs, hosts, runs, operations. Paul Tol's bright scheme.
LINE_COLORS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#999933", "#BBBBBB")
#: Once all colours are taken they come again with another dash.
_DASHES = ("solid", "dash", "dot", "dashdot")
#: What belongs to none: others, a limit, a baseline, what a panel's title names.
NEUTRAL = "#6E7B95"

#: What a number of a study or a run is.
MEASURED, PREDICTED, BEST = "#5281F2", "#2844E3", "#4CA688"
LOSSY, REPEATED, RUNNING = "#A89707", "#7F55A6", "#38716E"
FAILED, RULED_OUT, FRONT = "#E35947", "#8B470E", "#96A6C9"
ROLE_COLORS = {
    "measured": MEASURED,
    "predicted": PREDICTED,
    "best": BEST,
    "lossy": LOSSY,
    "measured again": REPEATED,
    "running": RUNNING,
    "failed": FAILED,
    "ruled out": RULED_OUT,
    "front": FRONT,
    "baseline": NEUTRAL,
}
#: How a measure answers to a knob.
WAY_COLORS = {
    "up": LINE_COLORS[2],
    "down": LINE_COLORS[1],
    "mixed": LINE_COLORS[3],
    "category": LINE_COLORS[0],
    "none": NEUTRAL,
    "together": LINE_COLORS[4],
}
#: What held a GPU's clocks down, from the end that the lines of clocks do not reach.
REASON_COLORS = LINE_COLORS[:3:-1]

#: Much is bright, in grey and for any colour vision: Nuñez, Anderton and Renslow 2018, PLOS ONE 13(7), e0199239.
SEQUENTIAL = "Cividis"
#: Blue is ahead, brown behind: ends that everybody tells apart.
DIVERGING = ((0.0, "#1F5FA8"), (0.5, "#F4F4F4"), (1.0, "#9C4A00"))

#: Families whose members stand beside each other in one figure.
FAMILIES: dict[str, dict[str, str]] = {
    "a step": {
        **PHASE_COLORS,
        "hidden": HIDDEN_COMMUNICATION,
        "I": WORK_COLORS[Work.INPUT],
        "W": WORK_COLORS[Work.WEIGHT],
        **AXIS_COLORS,
        "another axis": OTHER_AXIS,
    },
    "lines": {str(number): color for number, color in enumerate(LINE_COLORS)},
    "roles": ROLE_COLORS,
    "ways": WAY_COLORS,
}


class LineLook(NamedTuple):
    """What tells one of several lines from the others."""

    color: str
    dash: str


def line_look(number: int) -> LineLook:
    """Of the line of that number, from 0 on: the first 32 differ."""
    round_number, place = divmod(number, len(LINE_COLORS))
    return LineLook(LINE_COLORS[place], _DASHES[round_number % len(_DASHES)])


def axis_color(axis: str) -> str:
    """Of an axis or a part of it, as in ``dp_shard``."""
    return AXIS_COLORS.get(axis.partition("_")[0], OTHER_AXIS)
