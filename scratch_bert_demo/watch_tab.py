"""The tab that replays trainings: what each snapshot of a run predicts, beside the run's losses."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pandas

from . import components as ui
from .environment import gr
from .model import MASK
from .runs import Run, step_of


MAX_POINTS = 400  # of a curve
PLAY_SECONDS, FOLLOW_SECONDS = 1, 10  # between two snapshots, and between two looks for new ones
STEP_MARK = "shown"
COLORS = {"training": "#f97316", "validation": "#2a9d8f", "baseline": "#94a3b8", STEP_MARK: "#dc2626"}


class Player:
    """Runs side by side. A slider chooses the snapshots of all, by their relative place from the first to the last."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = runs
        self.panels = {run.name: list(run.curves) or ["MLM loss", "NSP loss"] for run in runs}

    @property
    def last(self) -> int:
        """The slider's last position: the number of snapshots of the longest run. The first is 1."""
        return max(len(run.saved) for run in self.runs)

    @property
    def steps(self) -> list[list[int]]:
        return [run.steps for run in self.runs]

    def newest(self) -> int:
        """A number that changes when any run has a new snapshot."""
        return sum(run.steps[-1] for run in self.runs)

    def slider(self, position: int) -> dict[str, Any]:
        info = ", ".join(f"{run.title}: steps {run.steps[0]:,} to {run.steps[-1]:,}" for run in self.runs)
        return {"minimum": 1, "maximum": max(self.last, 2), "value": position, "info": info}

    def show_run(self, run: Run, text: str, position: int) -> list[gr.Component]:
        """The predictions of the snapshot at this position of the slider, and the run's losses."""
        saved, last = run.saved, self.last
        place = saved[round((min(int(position), last) - 1) / max(last - 1, 1) * (len(saved) - 1))]
        # The predictions first, since the page shows components as they are created.
        parts = ui.column_of(lambda: run.open(place), ui.MASKS, partial(ui.predict, k=5), text)
        return parts + [plot(run, title, step_of(place)) for title in self.panels[run.name]]

    def advance(self, position: int) -> tuple[int, gr.Timer]:
        """The next position while it plays, and the timer, which stops at the last."""
        following = min(int(position) + 1, self.last)
        return following, gr.Timer(active=following < self.last)

    def follow(self, position: int, known: list[list[int]]) -> tuple[Any, list[list[int]], Any]:
        """Add the new snapshots of runs that are still training, and show them if the latest was shown. Returns updates
        of the slider, the known steps, and the number of `newest`."""
        before = max(map(len, known))
        for run in self.runs:
            with suppress(OSError, ValueError):  # a file of the latest is being deleted
                run.refresh()
        if self.steps == known:
            return gr.skip(), known, gr.skip()
        following = self.last if int(position) >= before else min(int(position), self.last)
        # The slider shows the results if it moves, or else the number: of two requests, the one for the old position
        # could be answered last.
        newest = self.newest() if following == position else gr.skip()
        return gr.Slider(**self.slider(following)), self.steps, newest

    def predictions_at(self, text: str, step: int, run: str = "") -> dict[str, Any]:
        """The predictions of the snapshot nearest to a step, of the run with this title or the first."""
        chosen = next((candidate for candidate in self.runs if candidate.title == run), self.runs[0])
        place = min(chosen.saved, key=lambda place: abs(step_of(place) - step))
        top = chosen.open(place).fill_mask(text).value
        return {"run": chosen.title, "step": step_of(place), "predictions": [dict(row) for row in top]}


def plot(run: Run, title: str, step: int) -> gr.LinePlot:
    """The curves of one loss, with a vertical line at the step."""
    points = [
        (*point, name)
        for name, curve in run.curves.get(title, {}).items()
        for point in curve[:: len(curve) // MAX_POINTS + 1]
    ]
    if not points:  # of a run that has just begun
        return gr.LinePlot(visible=False)
    values = [value for _, value, _ in points]
    points += [(step, limit, STEP_MARK) for limit in (min(values), max(values))]
    data = pandas.DataFrame(points, columns=["step", title, "curve"])
    return gr.LinePlot(data, x="step", y=title, color="curve", color_title=" ", color_map=COLORS, visible=True)


def watch(name: str, runs: Sequence[Run], examples: Sequence[tuple[str, str]], page: gr.Blocks) -> ui.Results:
    """The runs side by side, with a slider for their snapshots. `examples` are texts and their masked words."""
    player, answers = Player(runs), dict(examples)

    def say_answer(text: str) -> str:
        return f"In the text: **{answers[text]}**" if answers.get(text) else ""

    follows = "▶ plays it; the page follows a run that is still training."
    gr.Markdown(f"How predictions change in the training, and the losses. {follows}")
    text, chips = ui.sentence_box(list(answers), otherwise=f"The capital of France is {MASK}.")
    in_the_text = gr.Markdown(say_answer(text.value))
    text.change(say_answer, text, in_the_text, queue=False, **ui.SILENT)
    with gr.Row():
        position = gr.Slider(**player.slider(player.last), step=1, label="Snapshot", scale=4)
        play = gr.Button("▶ Play", elem_classes="sb-button", scale=0, min_width=160)
    columns = [partial(player.show_run, run) for run in runs]
    results = ui.show_results(columns, [text, position], name, "Predict", chips)

    # Playing moves the slider, which updates the rest.
    clock = gr.Timer(PLAY_SECONDS, active=False)
    play.click(lambda: (1, gr.Timer(active=True)), None, [position, clock], queue=False, **ui.SILENT)
    clock.tick(player.advance, position, [position, clock], queue=False, **ui.SILENT)
    known = gr.State(player.steps)  # in this browser
    newest = gr.Number(player.newest(), visible=False)
    for listen in (gr.Timer(FOLLOW_SECONDS).tick, page.load):
        listen(player.follow, [position, known], [position, known, newest], queue=False, **ui.SILENT)
    # The slider may stay where it is: at the last of another run, or of as many checkpoints as before.
    results.show_on(newest.change)
    gr.api(player.predictions_at, api_name="predictions_at", **ui.LIMIT)
    return results
