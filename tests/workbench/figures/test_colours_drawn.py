"""Colours as figures have them: two things of one figure never have one colour, and a phase's means that phase."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from tests.support.workbench.sent_figures import figures_of
from tests.workbench.pages.homes import home_of_every_page
from tests.workbench.pages.test_pages import visit
from tuning.spec.objectives import Aim
from workbench.analysis.compare import Row
from workbench.figures import base, compare, gpu, host, quality, study
from workbench.figures.anatomy import lanes
from workbench.figures.anatomy.lanes import ACTION, CALL, PHASE, LaneBar, LaneSeries
from workbench.figures.anatomy.schedule import WORDS
from workbench.figures.base import PHASE_NAMES
from workbench.figures.cluster import roofline
from workbench.figures.cluster.roofline import CollectiveRate, Product, RooflineSeries
from workbench.figures.gpu import GpuDetail, ThrottleSpan
from workbench.figures.host import RateSeries
from workbench.figures.palette import AXIS_COLORS, NEUTRAL, PHASE_COLORS, WORK_COLORS
from workbench.figures.search import sensitivity
from workbench.figures.search.front import FrontPoint, FrontSeries, front
from workbench.figures.search.sensitivity import DependenceSeries, EffectSeries, Panel, ShareSeries
from workbench.figures.steps import Line, LossSeries, PhaseSeries
from workbench.figures.study import ArmCurve, ImportanceSeries, TrialMark, TrialPoint, TrialSeries

#: What a trace with a phase's colour may be called: the phase, its action, a call while it runs, a peak in that phase.
NAMES = {phase: {PHASE_NAMES[phase], "peak"} for phase in PHASE_COLORS}
NAMES["communication_exposed"] |= {"exposed", "runs"}
for work in WORDS:
    for phase, color in PHASE_COLORS.items():
        if WORK_COLORS[work] == color:
            NAMES[phase] |= {f"{work.value}: {WORDS[work]}", WORDS[work]}


#: What names say beside the thing itself: a point that only checks a fit, an action's letter, of what was reached.
SAME = re.compile(r", held out$|^[FBIW]: |^.*, (?=reached$)")


def line(name: str) -> Line:
    return Line(name, [0.0, 1.0], [1.0, 2.0])


def point(number: int) -> FrontPoint:
    return FrontPoint(number, 1.0 + number, 2.0, (0.0, 0.0), (0.0, 0.0), "dp=2")


def trial(number: int) -> TrialPoint:
    return TrialPoint(number, 10.0, 1.0, 1.0, "dp=2")


TRIALS = TrialSeries(
    exact=[trial(0)],
    lossy=[trial(1)],
    repeated=[trial(2)],
    failed=[TrialMark(3, "oom", "out of memory")],
    running=[TrialMark(4, "running", "tp=2")],
    best_numbers=[0, 4],
    best_values=[10.0, 10.0],
    baseline=9.0,
    confirmed_value=10.0,
    floor=1.0,
    ruled_out=[trial(5)],
)
PANEL = Panel("dp", ["1", "2"], [1, 1], [0, 0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0])
BARS = [
    *(LaneBar(0, PHASE, phase, float(at), 1.0) for at, phase in enumerate(PHASE_COLORS)),
    *(LaneBar(0, ACTION, work.value, float(at), 1.0) for at, work in enumerate(WORDS)),
    *(
        LaneBar(0, CALL, axis, float(at), 1.0, "", "", 1, "")
        for at, axis in enumerate([*AXIS_COLORS, "world"])
    ),
]
CURVE = [{"step": 1, "loss": 2.0, "seconds": 1.0, "wire_bytes": 1e6}]
MADE: dict[str, Callable[[], go.Figure]] = {
    "step": lambda: base.phases(
        PhaseSeries("rank 0", [0, 1], 1, {phase: [1.0, 1.0] for phase in PHASE_COLORS}, [1.0, 1.0], 1)
    ),
    "step of runs": lambda: compare.phases([Row(name, [0.1, 0.1]) for name in [*PHASE_COLORS, "rest"]], "AB"),
    "lanes": lambda: lanes.lanes(LaneSeries(1, [0], BARS, 10.0, 0.0, [])),
    "axes": lambda: lanes.axis_bars({"dp": 0.1}, {"dp": 0.2}),
    "loss": lambda: base.loss(LossSeries([1, 2], [2.0, 1.0], 1.5)),
    "trials": lambda: study.trials(TRIALS),
    "rounds": lambda: study.confirmation(
        [ArmCurve(f"arm {at}", [1, 2], [1.0, 2.0], [0.0, 1.0], [2.0, 3.0], at == 2) for at in range(8)], 0.01, "again"
    ),
    "importance": lambda: study.importance(ImportanceSeries(["dp"], [1.0], ""), str),
    "front": lambda: front(FrontSeries(Aim(), Aim(), [point(0)], [point(1)], [point(2)], point(0))),
    "shares": lambda: sensitivity.shares(ShareSeries(["dp"], [0.5], [0.4], [0.1], "")),
    "effects": lambda: sensitivity.effects(
        EffectSeries(list("abcdef"), [1.0] * 6, ["up", "down", "mixed", "category", "none", "together"], "ms", "", ""),
        "effects",
    ),
    "dependence": lambda: sensitivity.dependence(DependenceSeries([PANEL], [], "tokens/s")),
    "roofline": lambda: roofline.draw(
        RooflineSeries(
            2e10, 1e10, [Product("a", 40.0, 10.0, 1.0, 2e10)], 4.0, 1e9, [CollectiveRate("dp", 1e6, 1e8, 2e8, 3e8)]
        )
    ),
    "clocks": lambda: gpu.clocks(
        GpuDetail(
            [], [], [], [], [line(name) for name in ("graphics", "SMs", "memory", "video", "highest clock")],
            [ThrottleSpan(reason, 0.0, 1.0) for reason in ("power cap", "heat", "power brake", "sync")], [],
        )
    ),
    "traffic": lambda: host.traffic(
        RateSeries([line(f"eth{at // 2} {'sent' if at % 2 else 'received'}") for at in range(10)]),
        RateSeries([line("disk read"), line("disk written")]),
    ),
    "quality": lambda: quality.quality(CURVE, CURVE),
}  # fmt: skip


def looks(figure: dict[str, Any]) -> dict[tuple[str, ...], set[str]]:
    """Colour, dash and pattern -> names of the traces that have them."""
    found: dict[tuple[str, ...], set[str]] = {}
    for trace in figure["data"]:
        marker, stroke = trace.get("marker", {}), trace.get("line", {})
        color = stroke.get("color") or marker.get("color")
        if not isinstance(color, str) or not trace.get("name"):
            continue
        look = (color, stroke.get("dash") or "solid", str(marker.get("pattern", {}).get("shape", "")))
        found.setdefault(look, set()).add(trace["name"])
    return found


def check(figure: dict[str, Any]) -> None:
    title = figure["layout"]["title"]["text"]
    for (color, *_), names in looks(figure).items():
        named = {SAME.sub("", name) for name in names}
        if color != NEUTRAL:
            assert len(named) == 1, f"{title}: {named} are all {color}"
        for phase, its in PHASE_COLORS.items():
            assert color != its or named <= NAMES[phase], f"{title}: {named} have the colour of {phase}"
    drawn = json.dumps([figure["layout"], *(trace.get("colorscale") for trace in figure["data"])])
    assert not [color for color in PHASE_COLORS.values() if color.lower() in drawn.lower()], title


@pytest.mark.parametrize("name", MADE)
def test_a_figure_has_a_colour_for_each_thing(name: str) -> None:
    figure = json.loads(MADE[name]().to_json())
    figure["layout"].pop("template", None)
    assert figure["data"]
    check(figure)


def test_the_check_finds_two_things_of_one_colour_and_a_phase_s() -> None:
    twice = {"type": "bar", "marker": {"color": "#123456"}}
    layout = {"title": {"text": "made up"}}
    with pytest.raises(AssertionError, match="are all #123456"):
        check({"data": [twice | {"name": "a"}, twice | {"name": "b"}], "layout": layout})
    phase = {"name": "best", "line": {"color": PHASE_COLORS["optimizer"]}}
    with pytest.raises(AssertionError, match="colour of optimizer"):
        check({"data": [phase], "layout": layout})


def test_figures_of_every_page_have_a_colour_for_each_thing(home: Path) -> None:
    skewed, going = home_of_every_page(home)
    others = ",".join(sorted(path.name for path in home.iterdir() if path.name.startswith("20"))[:3])
    asked = [
        ("runs", {"id": skewed}),
        ("live", {"run": going}),
        ("steps", {"run": skewed}),
        ("tune", {"study": "live"}),
        ("runs", {"id": "quickstart"}),
        ("compare", {"ids": others}),
        ("plan", {}),
    ]
    for page, query in asked:
        figures = figures_of(visit(page, **query))
        assert figures, page
        for figure in figures:
            check(figure)
