"""The snapshots that all tabs show: a slider moves through them, plays them, and follows a run that is still training."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .environment import LIMIT, SILENT, gr
from .runs import Run, step_of


PLAY_SECONDS, FOLLOW_SECONDS = 1, 10  # between two snapshots, and between two looks for new ones


class Timeline:
    """A step of the training of several runs, which a slider chooses for all tabs. Without runs, there is none.

    The slider's positions, from 1, are the snapshots of the run that has come furthest; the others show what they were
    at the same step.
    """

    def __init__(self, runs: Sequence[Run]):
        self.runs = runs
        self.controls: list[gr.Component] = []

    @property
    def steps(self) -> list[int]:
        return furthest([run.steps for run in self.runs])

    def step(self, *position: int) -> int | None:
        """The step at the slider's position, the value of `controls`."""
        return self.steps[min(int(position[0]), len(self.steps)) - 1] if position else None

    def add_controls(self) -> None:
        if self.runs:
            with gr.Row(elem_classes="sb-timeline"):
                slider = gr.Slider(**self._slider(len(self.steps)), step=1, label="Snapshot", scale=4)
                self.play = gr.Button("▶ Play", scale=0, min_width=120)
            self.controls = [slider]

    def connect(self, page: gr.Blocks, refresh: gr.Number) -> None:
        """Let the slider play, and follow the runs; the number `refresh` changes when snapshots come or go."""
        if not self.runs:
            return
        [slider] = self.controls
        clock = gr.Timer(PLAY_SECONDS, active=False)
        self.play.click(lambda: (1, gr.Timer(active=True)), None, [slider, clock], queue=False, **SILENT)
        clock.tick(self._advance, slider, [slider, clock], queue=False, **SILENT)
        known = gr.State([run.steps for run in self.runs])  # in this browser
        for listen in (gr.Timer(FOLLOW_SECONDS).tick, page.load):
            listen(self._follow, [slider, known], [slider, known, refresh], queue=False, **SILENT)
        gr.api(self.predictions_at, api_name="predictions_at", **LIMIT)

    def predictions_at(self, text: str, step: int, run: str = "") -> dict[str, Any]:
        """The predictions of the snapshot nearest to a step, of the run with this title or the first."""
        chosen = next((candidate for candidate in self.runs if candidate.title == run), self.runs[0])
        place = min(chosen.saved, key=lambda place: abs(step_of(place) - step))
        top = chosen.open(place).fill_mask(text).value
        return {"run": chosen.title, "step": step_of(place), "predictions": [dict(row) for row in top]}

    def _slider(self, position: int | None = None) -> dict[str, Any]:
        value = {} if position is None else {"value": position}
        return {"minimum": 1, "maximum": max(len(self.steps), 2)} | value

    def _advance(self, position: int) -> tuple[int, gr.Timer]:
        """The next position while it plays, and the timer, which stops at the last."""
        following = min(int(position) + 1, len(self.steps))
        return following, gr.Timer(active=following < len(self.steps))

    def _follow(self, position: int, known: list[list[int]]) -> tuple[Any, list[list[int]], Any]:
        """Add the new snapshots of runs that are still training, and show them if the latest was shown. Returns updates
        of the slider, the known steps, and the number `refresh`."""
        for run in self.runs:
            with suppress(OSError, ValueError):  # a file of the latest is being deleted
                run.refresh()
        steps = [run.steps for run in self.runs]
        if steps == known:
            return gr.skip(), known, gr.skip()
        before = len(furthest(known))
        following = len(self.steps) if int(position) >= before else min(int(position), len(self.steps))
        # A slider that is played meanwhile keeps its place.
        slider = gr.Slider(**self._slider(following if following != position else None))
        return slider, steps, sum(map(sum, steps))


def furthest(steps: list[list[int]]) -> list[int]:
    """The steps of the run that has come furthest, of which the one with most snapshots."""
    return max(steps, key=lambda steps: (steps[-1], len(steps)))
