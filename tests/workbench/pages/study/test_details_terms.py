"""Several objectives, constraints and budgets on the pages of a study, and in the form of a new one."""

from __future__ import annotations

from pathlib import Path

from tests.support.studies.fake import run_study
from tests.support.studies.weighed import Weighed, asked
from tests.workbench.pages.test_pages import charts, texts, visit
from tests.workbench.pages.test_tune import draft
from tuning.spec import study_file

SEVERAL = ["tokens_per_second", "peak_memory_bytes"]


def test_a_front_is_drawn_and_listed(home: Path) -> None:
    file = asked(
        limit_gib=2.2, objective=SEVERAL, trials=5, confirm_repeats=0, constraints={"memory_headroom": 0.2},
        price={"per_gpu_hour": 2.0, "currency": "EUR"}, budget={"money": 9.0},
    )  # fmt: skip
    found = run_study(file, home / "studies" / "first", Weighed())
    for app in (visit("tune", view="watch", study="first"), visit("runs", id="first")):
        assert not app.exception
        assert {"Tokens per second and peak memory of a rank", "Tokens per second of each trial"} <= set(
            charts(app)
        )
        drawn = next(
            chart.proto.json
            for chart in app.get("bidi_component")
            if "breaks a constraint" in chart.proto.json
        )
        assert "Tokens per second of each trial" in drawn
        said = texts(app)
        assert "Budget: 5 of 5 trials; " in said and " of 9 EUR" in said and "trials are used up" in said
        assert "The best meets every constraint: free memory at the peak" in said
        assert "trial 0: free memory at the peak 9.09 %, at least 20 % asked for: missed by 10.9 %" in said
        front = next(table.value for table in app.dataframe if "decides" in table.value.columns)
        assert list(front["trial"]) == [point["trial"] for point in found["pareto"]]
        assert list(front.columns) == ["trial", "decides", "tokens/s", "GiB", "configuration"]


def test_other_objectives_have_their_own_units(home: Path) -> None:
    file = asked(objective="peak_memory_bytes", trials=2, confirm_repeats=0)
    run_study(file, home / "studies" / "first", Weighed())
    app = visit("tune", view="watch", study="first")
    assert not app.exception
    assert "Peak memory of a rank of each trial" in charts(app)
    assert [tile.label for tile in app.metric][:2] == ["Best, GiB", "Baseline, GiB"]
    assert "GiB" in app.dataframe[-1].value.columns


def test_the_form_asks_what_is_wanted(home: Path) -> None:
    app = visit("tune", view="new")
    assert {"objective", "price", "constraints", "budget"}.isdisjoint(draft(app))
    app.multiselect(key="new-objectives").set_value([*SEVERAL, "time_to_loss"]).run()
    app.selectbox(key="new-prefer").set_value("peak_memory_bytes")
    app.number_input(key="new-price-per-gpu-hour").set_value(2.5)
    app.number_input(key="new-constraints-memory-headroom").set_value(0.1)
    app.number_input(key="new-budget-money").set_value(5.0).run()
    file = study_file.parse(draft(app))
    assert [aim.name for aim in file.aims] == [*SEVERAL, "time_to_loss"]
    assert (file.objective, file.target_loss, file.config.train.validate_every) == (
        "peak_memory_bytes",
        3.0,
        4,
    )
    assert file.price and (file.price.per_gpu_hour, file.price.currency) == (2.5, "USD")
    assert file.constraints and file.constraints.bounds() == {"memory_headroom": 0.1}
    assert file.budget and file.budget.money == 5.0
    app.number_input(key="new-price-per-gpu-hour").set_value(None).run()
    assert "needs a price" in app.error[0].value


def test_the_form_knows_what_few_studies_change(home: Path) -> None:
    run_study(asked(trials=2, confirm_repeats=0), home / "studies" / "first", Weighed())
    app = visit("tune", view="new")
    usual = draft(app)
    assert {"racing", "sampler", "prior", "inherit", "confirm_repeats", "budget"}.isdisjoint(usual)
    app.selectbox(key="new-study-sampler").set_value("random")
    app.selectbox(key="new-study-prior").set_value("none")
    app.number_input(key="new-study-confirm-repeats").set_value(3)
    app.number_input(key="new-study-confirm-runners-up").set_value(0)
    app.number_input(key="new-racing-settle").set_value(0.02)
    app.number_input(key="new-budget-wall-seconds").set_value(900.0)
    app.multiselect(key="new-study-inherit").set_value(["first"]).run()
    assert {key: value for key, value in draft(app).items() if usual.get(key) != value} == {
        "sampler": "random",
        "prior": "none",
        "confirm_repeats": 3,
        "confirm_runners_up": 0,
        "racing": {"settle": 0.02},
        "budget": {"wall_seconds": 900.0},
        "inherit": ["first"],
    }
    assert study_file.parse(draft(app)).budget_seconds == 900
    app.toggle(key="new-study-racing").set_value(False).run()
    assert study_file.parse(draft(app)).races is None
