"""What each number on a tile and in the table of trials is, how it is taken, and how far to trust it;
``docs/profiles.md`` has more.
"""

from __future__ import annotations

#: Tile of a run, ended or going -> what one should know of it.
RUN = {
    "Tokens/s": "Tokens of a step over the mean wall time of measured steps, or of whole rounds of an outer loop. "
    "Below it the 95 % interval of a moving-block bootstrap: neighbouring steps depend on each other.",
    "Step time, mean": "Wall time of a step and what comes before it, the mean over ranks; warm-up does not count.",
    "Step time": "Wall time of a step and what comes before it, the mean over ranks and the last steps.",
    "Communication": "The share of the step in which a rank's main thread stood and waited for a collective, the mean "
    "over ranks. What was hidden behind computation is not in it; waits for a pipeline's messages are the bubble. "
    "Verdicts call exposed what the calls cost by themselves, and count waits for late ranks as straggler.",
    "Peak memory": "The largest peak of a rank: resident memory on a CPU, torch's allocator on a GPU, whose context "
    "and NCCL's buffers come on top.",
    "Memory, largest rank": "The largest peak of a rank so far: resident memory on a CPU, torch's allocator on a GPU.",
    "Last loss": "Nats per token on the training text of the last step, the mean over ranks that know it. One step "
    "says little; the validation loss is on text that was held out.",
    "Loss": "Nats per token on the training text of the last step, the mean over ranks that know it.",
    "Parameters": "Of the whole model, with input and output embeddings. MFU: model FLOPs without recomputation over "
    "the peak of all devices (arXiv 2204.02311, appendix B).",
    "Step": "Steps that the slowest rank has ended, of those asked for; of a run with a time, of those that fit "
    "into it by the pace so far.",
}
#: Tile of a study.
STUDY = {
    "Trials": "Trials that have ended, failed ones too, of those that the budget allows. Windows that measured one "
    "again are not trials.",
    "Best so far": "The leading trial's value as it was searched: chance flatters whoever leads. After the search the "
    "best are measured again, unless the study says otherwise.",
    "Best": "The winner's value as it was measured again where that was done, else as it was searched.",
    "Baseline": "The point that everything is compared with: measured like any other trial.",
    "Gain": "The best over the baseline, with the 95 % interval of what was measured again; a search alone flatters "
    "its winner. In turns: by windows beside whoever led then, as the machine may have changed between the two values.",
}
#: Tile of a configuration that is exported.
EXPORT = {
    "Run": "How the run that this configuration comes from ended, and what it was a part of.",
    "Tokens/s of this run": "Tokens of a step over the mean wall time of its measured steps, with the 95 % interval of "
    "a moving-block bootstrap. This one run reached it: a study's winner may have been measured again.",
    "Ranks": "Processes of the run, one for each device, and where they ran. On other devices, or another number of "
    "them, speeds are others.",
}
#: Column of the table of trials.
TRIALS = {
    "95 % interval": "By a moving-block bootstrap over the trial's own measured steps. How much a second run of the "
    "same configuration differs is not in it: that shows when the leaders are measured again.",
    "seconds": "Wall time of the whole trial: start of its ranks, warm-up, measured steps and end.",
    "proposed by": "sampler: chosen by the search; baseline: what everything is compared with; by hand: added by a "
    "person; retry of: again after an ending that says nothing of the configuration; re-measures: a window for a "
    "leader, to be sure.",
}
WINDOWS = (
    "Windows are the short runs with which a study measures its leaders again; other kinds leave them out."
)


def find_help(label: str) -> str | None:
    """What a tile's number is; None if nobody wrote it down. What follows a comma is a unit, or how it was taken."""
    entries = RUN | STUDY | EXPORT
    return entries.get(label) or entries.get(label.partition(",")[0])
