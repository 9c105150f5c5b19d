"""What a run would take, by arithmetic: tokens that servers of several kinds must compute, over usual rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceread.bench.stage import DryStage
from onceread.bench.texts import standard_library
from onceread.bench.twin import Prompter
from onceread.bench.workloads.contract import Workload, Writer, seeded

if TYPE_CHECKING:
    from onceread.native.model import Model

PREFILL, DECODE = 230.0, 60.0  # tokens a second of the demo model on two cores
START = 3.0  # seconds for a server to come up, and to go
_SHORT = 30.0


def estimated(workloads: Sequence[Workload], model: Model, passes: int) -> str:
    """A table in Markdown: a workload's tokens, and the seconds of a pass by what a server remembers."""
    prompter = Prompter(model)
    lines = [
        f"Prefill at {PREFILL:.0f} tokens/s, decode at {DECODE:.0f}, {START:.0f} s for each start; seconds of one pass",
        "for a server that remembers all, the last conversation only, and nothing.",
        "",
        "| workload | requests | new tokens | prompt tokens | written | all s | last s | nothing s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    sums = [0.0, 0.0, 0.0]
    for workload in workloads:
        stage = DryStage(prompter, Writer(standard_library(), 0))
        workload.play(stage, seeded(workload, standard_library()))
        around = START * (1 + stage.restarts)
        walls = [n / PREFILL + stage.completion / DECODE for n in (stage.ideal, stage.last, stage.prompts)]
        for i, wall in enumerate(walls):
            sums[i] += (wall + around) * (passes if wall < _SHORT else 1)
        figures = [stage.requests, stage.ideal, stage.prompts, stage.completion, *walls]
        lines.append(f"| {workload.name} | {' | '.join(f'{x:,.0f}' for x in figures)} |")
    said = ", ".join(f"{total / 60:.1f}" for total in sums)
    return "\n".join(
        [*lines, "", f"In all, with {passes} passes of what is short: {said} minutes for one server."]
    )
