"""What is proposed next: the sampler of the moment, inside the mask of the moment, over the trials of a journal."""

from __future__ import annotations

from dataclasses import replace

from tuning.analysis import leaderboard
from tuning.sampling.optuna_study import Draw, OptunaStudy
from tuning.search import budgets, phases, policy
from tuning.search.budgets import LEFT_OUT, SPACE_IS_MEASURED
from tuning.search.prediction_prior import PredictionPrior
from tuning.search.surrogate import PredictionRecord
from tuning.space.encoding import Encoding
from tuning.space.points import Point, point_key
from tuning.space.space import Space
from tuning.spec import sampler_choice
from tuning.spec.study_file import StudyFile
from tuning.storage import effective_config
from tuning.storage.effective_config import Mask
from tuning.storage.journal import Journal
from tuning.storage.state import StudyState


class Proposer:
    """Asks Optuna, as commands have it by now.

    Raises:
        InputError: the sampler that the file asks for does not fit its space.
    """

    def __init__(
        self,
        file: StudyFile,
        journal: Journal,
        encoding: Encoding,
        prior: PredictionPrior | None = None,
        place: int = 0,
    ) -> None:
        sampler_choice.check(file.sampler, file.search_space, len(file.aims), file.constraints is not None)
        self._given, self._journal, self._encoding, self._prior = file, journal, encoding, prior
        self._place, self._told = place, set[int]()
        self._sampler = self._choice()
        aims = file.aims if file.objectives else ()
        self._index = OptunaStudy(encoding, *self._plan(), self._sampler, aims)
        self._exhausted: Mask | None = None
        self._narrowed: tuple[Mask, Space] | None = None

    @property
    def file(self) -> StudyFile:
        """The file, with what commands changed in it since."""
        state = self._journal.state
        return state.once("file", None, lambda: effective_config.steer_file(self._given, state))

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing was left when the sampler was asked last, and the mask is still the same."""
        return self._exhausted == self._mask

    def tell_inherited(self) -> None:
        """Take over what earlier studies measured for the same question."""
        for earlier in self._journal.state.inherited:
            for trial in earlier.trials if earlier.same else ():
                self._index.tell(trial)

    def tell_new(self) -> None:
        """Take over what ended by now, whoever ran it, and what runs at other controllers. Ours are not under way when
        this is asked.
        """
        state, file = self._journal.state, self.file
        for trial in state.trials:
            if trial.outcome is None:
                self._index.runs_elsewhere(trial)
            elif trial.number not in self._told:
                self._told.add(trial.number)
                self._index.tell(leaderboard.level_trial(state, trial, file))
        self._index.only_elsewhere([trial.number for trial in state.under_way])

    def draw(self) -> Draw | None:
        """A point inside the mask, of the phase that is on; None, and a note, when nothing is left there."""
        state, file = self._journal.state, self.file
        if (name := self._choice()) != self._sampler:
            self._sampler = name
            self._index.replace_sampler(name, *self._plan())
            self._note_turn(file, state)
        if self._nothing_runs(state):
            self._exhausted = self._mask
            return None
        for phase, mask in phases.open_now(state, file):
            if (drawn := self._draw_point(state, file, mask)) is not None:
                return replace(drawn, group=phase)
        self._exhausted = self._mask
        masked = f"every legal point inside the mask ({self._mask}) was measured"
        note = masked if self._mask.limits else SPACE_IS_MEASURED
        left_out = (LEFT_OUT,) if leaderboard.forbidden_trials(state, file) else ()
        for text in (*left_out, note):
            if text not in state.notes:
                self._journal.append("note", text=text)
        return None

    def _draw_point(self, state: StudyState, file: StudyFile, mask: Mask) -> Draw | None:
        """What predictions want next inside a mask, else the sampler."""
        if (foreseen := self._predicted_draw(state, file, mask)) is not None:
            return foreseen
        predicted_failures = self.predicted_failures()
        return self._index.ask(
            leaderboard.visited_keys(state, file.search_space),
            lambda point: policy.is_wanted(point, state, file) and point_key(point) not in predicted_failures,
            self._space_of(mask) if mask.limits else None,
        )

    def _note_turn(self, file: StudyFile, state: StudyState) -> None:
        """Say which sampler goes on, and why; whoever asked for one by command was told."""
        choice = effective_config.sampler(file, state)
        text = f"sampler: {choice.name} from here on: {choice.reason}"
        if choice.name != file.sampler and text not in state.notes:
            self._journal.append("note", text=text)

    def _nothing_runs(self, state: StudyState) -> bool:
        """Whether nothing will run; says so, or that nothing ran so far, once."""
        prior = self._prior
        reason = prior.nothing_runs(state) if prior else budgets.infeasible_by_trials(state)
        if reason is None:
            return False
        begin = budgets.CERTAIN if reason.ends else budgets.SO_FAR
        if not any(note.startswith(begin) for note in state.notes):
            self._journal.append("note", text=reason.words)
        return reason.ends

    def predicted_failures(self) -> frozenset[str]:
        """Keys of points that are predicted to fail."""
        return self._prior.predicted_failures(self._journal.state) if self._prior else frozenset()

    def predictions(self) -> PredictionRecord | None:
        """How wrong they were so far; None where they are not asked."""
        return self._prior.record(self._journal.state) if self._prior else None

    def _predicted_draw(self, state: StudyState, file: StudyFile, open_now: Mask) -> Draw | None:
        """What predictions would measure next."""
        if self._prior is None:
            return None
        space = self._given.search_space
        visited = leaderboard.visited_keys(state, space)

        def allows(point: Point) -> bool:
            return (
                point_key(point) not in visited
                and policy.is_wanted(point, state, file)
                and open_now.allows(point, space)
            )

        proposal = self._prior.propose(state, allows)
        if proposal is None:
            return None
        return Draw(proposal.point, self._encoding.encode(proposal.point) or {}, 0, "prior", proposal.why)

    @property
    def _mask(self) -> Mask:
        return effective_config.build_mask(self._journal.state, self._given.search_space)

    def _choice(self) -> str:
        return effective_config.sampler(self.file, self._journal.state).name

    def _plan(self) -> tuple[int, int, int]:
        """Seed, trials that explore, and the budget. A resumed study must not draw the same again, nor another
        controller that began at the same time.
        """
        file = self.file
        seed = (file.seed + len(self._journal.state.trials) + 7_919 * self._place) % 2**31
        return seed, policy.startup_trials(file.trials), file.trials

    def _space_of(self, open_now: Mask) -> Space:
        if self._narrowed is None or self._narrowed[0] != open_now:
            self._narrowed = (open_now, effective_config.narrow_space(self._given.search_space, open_now))
        return self._narrowed[1]
