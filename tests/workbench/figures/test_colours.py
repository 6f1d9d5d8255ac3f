"""Colours are told apart with any colour vision, texts are read on both backgrounds, a colour means one thing."""

from __future__ import annotations

import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.figures.palette import AXIS_COLORS, FAMILIES, LINE_COLORS, PHASE_COLORS, WORK_COLORS, line_look

ROOT = Path(__file__).parents[3]
#: Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color vision deficiency",
#: severity 1.0, on linear RGB.
VISION = {
    "normal": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
#: IEC 61966-2-1: linear sRGB to XYZ under D65.
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
#: CIE 1976 difference; 2.3 is just noticeable side by side (Mahy 1994), bars of a chart lie apart.
LEAST_DIFFERENCE = 12.0
#: WCAG 2.1, 1.4.3, of text; and the part of a text's colour that a page's captions have.
TEXT, CAPTION = 4.5, 0.6
Numbers = np.ndarray[Any, np.dtype[np.float64]]


def linear(color: str) -> Numbers:
    parts = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(light: Numbers) -> Numbers:
    """CIE L*a*b* of linear sRGB."""
    x, y, z = np.cbrt(XYZ @ light / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """WCAG 2.1's ratio of relative luminances."""
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(color)) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def mixed(text: str, background: str, share: float) -> str:
    parts = [(int(text[at : at + 2], 16), int(background[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(share * one + (1 - share) * other):02x}" for one, other in parts)


#: So much a colour of a line or a trial differs from that of every phase: three times what is just noticeable.
FROM_A_PHASE = 7.0
#: WCAG 2.1, 1.4.11, asks 3 of what has no words beside it; these have. Half of it tells a mark from the page.
MARK = 1.5


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("name", FAMILIES)
def test_no_two_colours_look_alike(name: str, vision: str) -> None:
    seen = {
        key: lab(np.clip(np.array(VISION[vision]) @ linear(color), 0.0, 1.0))
        for key, color in FAMILIES[name].items()
    }
    close = {
        (one, other): round(float(difference), 1)
        for one, other in combinations(seen, 2)
        if (difference := np.linalg.norm(seen[one] - seen[other])) < LEAST_DIFFERENCE
    }
    assert close == {}


@pytest.mark.parametrize("name", ["lines", "roles", "ways"])
def test_nothing_else_looks_like_a_phase(name: str) -> None:
    near = {
        (key, phase): round(float(np.linalg.norm(lab(linear(color)) - lab(linear(other)))), 1)
        for key, color in FAMILIES[name].items()
        for phase, other in PHASE_COLORS.items()
    }
    assert min(near.values()) >= FROM_A_PHASE, near


def test_every_colour_is_seen_on_both_backgrounds() -> None:
    pale = {
        (family, key, color): scheme
        for family, colors in FAMILIES.items()
        for key, color in colors.items()
        for scheme in ("light", "dark")
        if contrast(color, theme(scheme)["backgroundColor"]) < MARK
    }
    assert pale == {}


def test_more_lines_than_colours_are_told_apart_by_dashes() -> None:
    looks = [line_look(number) for number in range(32)]
    assert len(set(looks)) == 32
    assert {look.dash for look in looks[: len(LINE_COLORS)]} == {"solid"}


def test_the_measure_finds_what_looks_alike() -> None:
    """Pink and grey, as the bubble and the rest once were, with and without deuteranopia; black on white is 21:1."""
    pink, grey = linear("#CC79A7"), linear("#9AA3AF")
    seen = np.array(VISION["deuteranopia"])
    assert np.linalg.norm(lab(seen @ pink) - lab(seen @ grey)) < 4
    assert np.linalg.norm(lab(pink) - lab(grey)) > LEAST_DIFFERENCE
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert lab(linear("#ffffff")) == pytest.approx([100, 0, 0], abs=0.01)


def test_a_colour_of_a_phase_means_nothing_else() -> None:
    same = {work.value for work, color in WORK_COLORS.items() if color in PHASE_COLORS.values()}
    assert same == {"F", "B"}, "forward and backward are phases, too"
    assert len(set(PHASE_COLORS.values())) == len(PHASE_COLORS)
    assert not {*AXIS_COLORS.values(), *LINE_COLORS} & {*PHASE_COLORS.values()}


def theme(scheme: str) -> dict[str, str]:
    found: dict[str, str] = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text("utf-8"))["theme"][
        scheme
    ]
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("background", ["backgroundColor", "secondaryBackgroundColor"])
def test_text_and_captions_are_read_on_every_background(scheme: str, background: str) -> None:
    text, behind = theme(scheme)["textColor"], theme(scheme)[background]
    assert contrast(text, behind) >= TEXT
    assert contrast(mixed(text, behind, CAPTION), behind) >= TEXT
