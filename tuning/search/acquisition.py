"""What to try next and what not at all, given a prior as the trials corrected it, and in which words. Pure numpy.

Nothing is learned here: ``tuning.search.surrogate`` corrects the prior, and tells how wrong it was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tuning.search.surrogate import Array, Observations, Posterior, Prior, posterior

#: What one failed trial costs, as a share of the best throughput.
FAILURE = 0.05
#: Candidates that fail with a higher probability are skipped while others are left.
HOPELESS = 0.9
#: A study whose candidates all failed gives up where the probability that one of the rest runs is below.
GIVE_UP = 0.05
#: It asks for at least so many failures before it believes that, and says after so many what it has seen.
LEAST_FAILURES, MOST_FAILURES = 3, 12
#: Begins what predictions say of candidates that are left.
FORETOLD = "the probability that any"


class Proposal(NamedTuple):
    """A candidate to execute, the probability that it fails, its expected gain over the best so far as a share of
    throughput, and the reason in words.
    """

    row: int
    fails: float
    gain: float
    why: str


def propose(prior: Prior, observations: Observations) -> Proposal | None:
    """The candidate that promises most; None when all were tried. Skipped ones get their turn when no other is left."""
    open_rows = np.full(len(prior), True)
    open_rows[observations.rows] = False
    if not open_rows.any():
        return None
    corrected = posterior(prior, observations)
    fails, gains = corrected.fails, expected_gain(corrected, observations)
    worth = (1 - fails) * gains - FAILURE * fails
    promising = open_rows & (fails < HOPELESS)
    pool = np.flatnonzero(promising if promising.any() else open_rows)
    row = int(pool[np.argmax(worth[pool] if promising.any() else -fails[pool])])
    why = _reason(corrected, observations, row, is_repeat=not promising.any())
    return Proposal(row, float(fails[row]), float(gains[row]), why)


def expected_gain(corrected: Posterior, observations: Observations) -> Array:
    """Expected improvement of throughput over the best so far, in shares of it; before there is one, in shares of the
    best predicted throughput. Closed form of lognormal values (the call of F. Black and M. Scholes, 1973).
    """
    best = np.nanmin(observations.log_seconds) if (~observations.failed).any() else np.inf
    unit = best if np.isfinite(best) else float(corrected.median.min())
    fast = _call(unit - corrected.fast, corrected.spread, unit - best)
    slow = _call(unit - corrected.slow, corrected.spread, unit - best)
    return np.asarray(fast + corrected.slow_chance * (slow - fast), np.float64)


def explain_infeasibility(prior: Prior, observations: Observations) -> str:
    """Why a study whose trials all failed says that nothing runs; empty while it does not say so."""
    count = len(observations.rows)
    if count < min(LEAST_FAILURES, len(prior)) or not observations.failed.all():
        return ""
    nothing_runs = posterior(prior, observations).nothing_runs
    if nothing_runs >= 1 - GIVE_UP:
        begin = f"nothing runs: all {count} trials failed"
    elif count >= MOST_FAILURES:
        begin = f"nothing ran in {count} trials"
    else:
        return ""
    chance = f"{FORETOLD} of the {len(prior) - count} left runs is {1 - nothing_runs:.1%}"
    return "; ".join([begin, chance, *_reasons(prior)])


def _reasons(prior: Prior) -> list[str]:
    """What stands against the candidates, in words."""
    is_refused = np.array([bool(reason) for reason in prior.refusals], np.bool_)
    reasons = []
    if not is_refused.all():
        least = float(prior.fills[~is_refused].min())
        needs = f", the smallest {least:.0%} of what a device can hold" if np.isfinite(least) else ""
        risk = float(prior.risk[~is_refused].min())
        reasons.append(
            f"{(~is_refused).sum()} were predicted to need too much memory (at least {risk:.1%} sure){needs}"
        )
    for reason in dict.fromkeys(filter(None, prior.refusals)):
        reasons.append(f"{prior.refusals.count(reason)} are refused: {reason}")
    return reasons


def skipped_candidates(prior: Prior, observations: Observations) -> dict[int, str]:
    """Candidates that are not tried while others are left, with the reason of each."""
    fails, tried = posterior(prior, observations).fails, set(observations.rows.tolist())
    rows = [row for row in np.flatnonzero(fails >= HOPELESS).tolist() if row not in tried]
    return {row: prior.refusals[row] or _too_full(prior, fails, row) for row in rows}


def _too_full(prior: Prior, fails: Array, row: int) -> str:
    share = prior.fills[row]
    fills = f"needs {share:.0%} of what a device can hold, " if np.isfinite(share) else ""
    return f"{fills}probability to fail {fails[row]:.0%}"


def _reason(corrected: Posterior, observations: Observations, row: int, is_repeat: bool) -> str:
    fails = f"probability to fail {corrected.fails[row]:.0%}"
    if is_repeat:
        return f"a predicted failure gets a second look: nothing else is left; {fails}"
    speed = f"predicted {_seconds(corrected.median[row])}, {fails}"
    if not (~observations.failed).any():
        return f"the best prediction: {speed}"
    chance = corrected.slow_chance[row]
    slow = f", {chance:.0%} to be slow ({_seconds(corrected.slow[row])})" if chance > 0.02 else ""
    return f"promises most: {speed}{slow}; best so far {_seconds(float(np.nanmin(observations.log_seconds)))}"


def _seconds(log_seconds: float) -> str:
    return f"{np.exp(log_seconds):.3g} s"


def _call(up: Array, spread: Array, best: float) -> Array:
    """Mean of max(0, exp(up + spread z) - exp(best)) over a standard normal z; ``best`` may be minus infinity."""
    mean = np.exp(up + spread**2 / 2)
    if not np.isfinite(best):
        return np.asarray(mean, np.float64)
    from scipy.special import ndtr  # takes 0.2 s to load, and most commands propose nothing

    away = (up - best) / spread
    return np.asarray(mean * ndtr(away + spread) - np.exp(best) * ndtr(away), np.float64)
