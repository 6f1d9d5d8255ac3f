"""Each private name of Optuna's is there and does what the project needs of it; nobody else uses one."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import optuna
from optuna.samplers import NSGAIISampler

ROOT = Path(__file__).parents[3]
#: What ``tuning/sampling/samplers.py`` uses of Optuna that is not documented.
NAMES = ("_elite_population_selection_strategy",)
#: A private module, a private name imported from one, or a private attribute of what Optuna made.
PRIVATE = re.compile(
    r"optuna(\.\w+)*\._[a-z]|from optuna[\w.]* import _|\b(study|storage|sampler|inner)\._[a-z]"
)


def test_nobody_else_uses_a_private_name() -> None:
    """The file that may use some uses the listed ones and no other."""
    own = ROOT / "tuning" / "sampling" / "samplers.py"
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in ("tuning", "workbench")
        for path in (ROOT / package).rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if PRIVATE.search(re.sub(r"self\._\w+", "", line))
        or (path != own and any(name in line for name in NAMES))
    ]
    assert not found
    inherited = {
        name for name in dir(NSGAIISampler(seed=0)) if name.startswith("_") and not name.startswith("__")
    }
    used = set(re.findall(r"(?:self|super\(\))\.(_\w+)", own.read_text("utf-8"))) & inherited
    assert used == set(NAMES)


def test_the_elite_of_a_population_is_selected_by_rank_and_crowding() -> None:
    sampler = NSGAIISampler(seed=0, population_size=3)
    select = sampler._elite_population_selection_strategy
    assert list(inspect.signature(select.__call__).parameters)[:2] == ["study", "population"]
    study = optuna.create_study(directions=["maximize", "maximize"], sampler=sampler)
    for values in ((0.0, 0.0), (3.0, 0.0), (0.0, 3.0), (2.0, 2.0), (1.0, 1.0)):
        study.add_trial(optuna.trial.create_trial(values=values))
    elite = select(study, study.get_trials(deepcopy=False))
    assert {trial.number for trial in elite} == {1, 2, 3}
