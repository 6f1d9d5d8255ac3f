"""The study as Optuna keeps it in the same database, for its tools."""

from __future__ import annotations

from typing import Any

import optuna

from tuning.postgres.address import Address
from tuning.postgres.database import CONNECT_SECONDS

#: Marks a study of Optuna's as one that a journal stands behind.
MARK = "workbench_journal"


class InDatabase:
    """Optuna's tables; a study there with the same name that somebody else made is left alone."""

    name = "Optuna's study in the database"

    def __init__(self, address: Address, study: str) -> None:
        self.url, self._study = address.for_optuna, study
        self.engine_options: dict[str, Any] = {
            "pool_pre_ping": True,
            "pool_size": 1,
            "connect_args": {"connect_timeout": CONNECT_SECONDS},
        }

    def opened(self, study: optuna.Study) -> None:
        """Check whose it is.

        Raises:
            ValueError: somebody else's.
        """
        if MARK in study.user_attrs:
            return
        if study.get_trials(deepcopy=False):
            raise ValueError(f"the study {self._study} there was not made from this journal")
        study.set_user_attr(MARK, self._study)

    def mark(self) -> object:
        """Nothing: Optuna numbers its studies."""

    def harm(self) -> str:
        """The server looks after its files."""
        return ""

    def set_aside(self) -> str:
        """Delete it, if it is ours: the journal has all of it."""
        storage = optuna.storages.RDBStorage(self.url, engine_kwargs=self.engine_options)
        try:
            known = {summary.study_name: summary for summary in optuna.get_all_study_summaries(storage)}
            found = known.get(self._study)
            if found is not None:
                if MARK not in found.user_attrs:
                    raise ValueError(f"the study {self._study} there was not made from this journal")
                optuna.delete_study(study_name=self._study, storage=storage)
        finally:
            storage.remove_session()
            storage.engine.dispose()
        return "what was there is deleted"
