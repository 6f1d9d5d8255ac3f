"""What a format cannot say is in its list of losses, and everything else comes back from its file."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.config.validation import rules
from tests.support.drawn import SEED
from tests.support.trainers.results import OURS, noted
from tests.support.workbench.drawn_configs import legal
from workbench.export import importing
from workbench.export.mapping.rows import USUAL, Format, Level, ranks_of, settings_of
from workbench.export.mapping.unexpressed import settings
from workbench.export.targets import TARGETS

FORMATS = {target.name: target.format for target in TARGETS if target.format is not None}
EACH, MANY = 20, 1000


def beside(form: Format, config: RunConfig) -> dict[str, Any]:
    """What a file never says, set beside it: the model and its text, where its script has them."""
    values = settings_of(config)
    return {key: value for key, value in values.items()
            if key.startswith(("model.", "data.")) and form.row(key).level is Level.NOT}  # fmt: skip


def back(form: Format, config: RunConfig) -> importing.ImportResult:
    text = form.text(form.make_document(config))
    return importing.read_text(form, text, ranks_of(settings_of(config)), beside(form, config))


def differences(form: Format, config: RunConfig) -> set[str]:
    """Settings that are others after export and import, or that were set beside the file."""
    imported = back(form, config).config
    after = imported.flat() | settings_of(imported)
    found = {key for key, value in settings_of(config).items() if after.get(key) != value}
    return {key for key in found if not key.startswith("environment.")}  # these are in run.sh


def expressible(form: Format, config: RunConfig) -> RunConfig | None:
    """The configuration with the usual value of all that the format cannot say; None if that is not legal."""
    for _ in range(5):
        lost = [loss.setting for loss in form.unexpressed(config) if not form.row(loss.setting).always]
        if not lost:
            return config if next(rules.problems(config), None) is None else None
        config = config.with_values({key: USUAL[key] for key in lost})
    return None


def drawn(count: int, seed: str) -> list[RunConfig]:
    return legal(count, f"{SEED} {seed}")


@pytest.mark.parametrize("name", FORMATS)
def test_losses_are_what_does_not_come_back(name: str) -> None:
    form = FORMATS[name]
    for config in drawn(EACH, name):
        told = {loss.setting for loss in form.unexpressed(config)}
        different = differences(form, config)
        assert different <= told, config
        given = beside(form, config)
        assert {key for key in told - different if not form.row(key).always and key not in given} == set(), (
            config
        )


@pytest.mark.parametrize("name", FORMATS)
def test_what_it_can_say_comes_back_whole(name: str) -> None:
    form = FORMATS[name]
    # A third and more of what is drawn can be said: forty draws without three of those are no accident.
    found = [one for config in drawn(2 * EACH, name) if (one := expressible(form, config)) is not None]
    assert len(found) > 2
    for config in found:
        assert all(form.row(key).always for key in differences(form, config)), config
        # Of accelerate's file alone it does not follow how many sequences are accumulated.
        assert set(back(form, config).left_out) <= {"deepspeed_config.gradient_accumulation_steps"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FORMATS)
def test_a_thousand_come_back(name: str) -> None:
    form, count = FORMATS[name], 0
    for number in range(40):  # of what is drawn a third and more can be said
        for config in drawn(MANY // 10, f"{name} {number}"):
            told = {loss.setting for loss in form.unexpressed(config)}
            assert differences(form, config) <= told, config
            whole = expressible(form, config)
            if whole is not None:
                assert all(form.row(key).always for key in differences(form, whole)), whole
                count += 1
        if count >= MANY:
            noted(name, "round trip", "random legal configurations", f"{count:,} came back whole", OURS)
            return
    pytest.fail(f"only {count} of them can be said")


@pytest.mark.parametrize("name", FORMATS)
def test_every_setting_has_one_row(name: str) -> None:
    rows = FORMATS[name].rows
    for key in [*RunConfig().flat(), *settings_of(RunConfig())]:
        covering = [row for row in rows if row.covers(key)]
        assert covering, key
        assert sum(row.setting == key for row in rows) <= 1, key
    assert {row.setting for row in rows} <= set(settings()), "the matrix has a line for each"


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_keeps_our_own_rules(name: str) -> None:
    from workbench.export.mapping import documents

    form = FORMATS[name]
    for config in drawn(EACH, f"rules {name}"):
        document = form.make_document(config)
        assert form.document(form.text(document)) == document
        problems = form.problems(documents.usual(name) | document, ranks_of(settings_of(config)))
        assert list(problems) == [], config
