"""Findings and thresholds -> verdicts: named bottlenecks with evidence, threshold, knob and the gain to expect. Pure.

The rules are in ``profilers.findings``. ``judge`` compares what they found with thresholds, and can do that again with
others at any time.
"""

from profilers.diagnosis.decide import judge, rate
from profilers.diagnosis.setting import Pipeline, Setting
from profilers.diagnosis.thresholds import Thresholds
from profilers.diagnosis.verdict import Gain, Verdict

__all__ = ["Gain", "Pipeline", "Setting", "Thresholds", "Verdict", "judge", "rate"]
