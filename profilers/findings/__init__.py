"""The rules of the verdicts: each gives its number, evidence, knob and gain, above its threshold or not. Pure."""
