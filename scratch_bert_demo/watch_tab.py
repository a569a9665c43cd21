"""The tab that shows models as they learn: what each snapshot of a run predicts, beside the run's losses."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas

from .components import LIMIT, MASKS, SILENT, Results, column_of, predict, sentence_box, show_results
from .environment import gr
from .model import MASK
from .runs import Run, step_of


MAX_POINTS = 400  # of a curve
PLAY_SECONDS, FOLLOW_SECONDS = 1, 10  # between two snapshots, and between two looks for new ones
STEP_MARK = "shown"
COLORS = {"training": "#f97316", "validation": "#2a9d8f", "baseline": "#94a3b8", STEP_MARK: "#dc2626"}


def watch(name: str, runs: Sequence[Run], examples: Sequence[tuple[str, str]], page: gr.Blocks) -> Results:
    """The runs beside each other. Their snapshots are chosen together: the first, the last, or as far between them. `examples`
    are texts and the masked word of each."""
    answers = dict(examples)

    def length() -> int:
        return max(len(run.saved) for run in runs)

    def place_at(run: Run, position: int) -> Path:
        """The model at a position of the slider, from 1 to the number of those of the longest run."""
        saved, longest = run.saved, length()
        return saved[round((min(int(position), longest) - 1) / max(longest - 1, 1) * (len(saved) - 1))]

    def show_predictions(run: Run, place: Path, text: str) -> list[gr.Component]:
        return column_of(lambda: run.open(place), MASKS, partial(predict, k=5), text)

    def show_curve(run: Run, place: Path, title: str) -> list[gr.Component]:
        points = [
            (*point, name)
            for name, curve in run.curves.get(title, {}).items()
            for point in curve[:: len(curve) // MAX_POINTS + 1]
        ]
        if not points:  # of a run that has just begun
            return [gr.LinePlot(visible=False)]
        values = [value for _, value, _ in points]
        points += [(step_of(place), limit, STEP_MARK) for limit in (min(values), max(values))]  # a vertical line
        data = pandas.DataFrame(points, columns=["step", title, "curve"])
        return [gr.LinePlot(data, x="step", y=title, color="curve", color_title=" ", color_map=COLORS, visible=True)]

    def show_run(run: Run, text: str, position: int) -> list[gr.Component]:
        place = place_at(run, position)
        parts = show_predictions(run, place, text)  # first, since the page shows components as they are created
        return parts + [component for title in curves[run.name] for component in show_curve(run, place, title)]

    def say_answer(text: str) -> str:
        return f"In the text: **{answers[text]}**" if answers.get(text) else ""

    def span(position: int) -> dict[str, Any]:
        """The slider's range and value."""
        info = ", ".join(f"{run.title}: steps {run.steps[0]:,} to {run.steps[-1]:,}" for run in runs)
        return {"minimum": 1, "maximum": max(length(), 2), "value": position, "info": info}

    def advance(position: int) -> tuple[int, gr.Timer]:
        following = min(int(position) + 1, length())
        return following, gr.Timer(active=following < length())

    def follow(position: int, known: list[list[int]]) -> tuple[Any, list[list[int]], int]:
        """Add what runs that are still training have saved meanwhile, and show it if the latest was shown."""
        before = max(map(len, known))
        for run in runs:
            with suppress(OSError, ValueError):  # a file of the latest is being deleted
                run.refresh()
        steps = [run.steps for run in runs]
        if steps == known:
            return gr.skip(), known, newest()
        position = length() if int(position) >= before else min(int(position), length())
        return gr.Slider(**span(position)), steps, newest()

    def newest() -> int:
        """Another number when there is a new model of any run."""
        return sum(run.steps[-1] for run in runs)

    def predictions_at(text: str, step: int, run: str = "") -> dict[str, Any]:
        """The predictions of the snapshot nearest to a step, of the run with this title or the first."""
        chosen = next((candidate for candidate in runs if candidate.title == run), runs[0])
        place = min(chosen.saved, key=lambda place: abs(step_of(place) - step))
        top = chosen.open(place).fill_mask(text).value
        return {"run": chosen.title, "step": step_of(place), "predictions": [dict(row) for row in top]}

    curves = {run.name: list(run.curves) or ["MLM loss", "NSP loss"] for run in runs}
    gr.Markdown(
        "How predictions change in the training, and the losses. ▶ plays it; the page follows a run that is still training."
    )
    text, chips = sentence_box(list(answers), otherwise=f"The capital of France is {MASK}.")
    in_the_text = gr.Markdown(say_answer(text.value))
    text.change(say_answer, text, in_the_text, queue=False, **SILENT)
    with gr.Row():
        position = gr.Slider(**span(length()), step=1, label="Snapshot", scale=4)
        play = gr.Button("▶ Play", elem_classes="sb-button", scale=0, min_width=160)
    results = show_results([partial(show_run, run) for run in runs], [text, position], name, "Predict", chips)

    # Playing moves the slider, which updates the rest.
    clock = gr.Timer(PLAY_SECONDS, active=False)
    play.click(lambda: (1, gr.Timer(active=True)), None, [position, clock], queue=False, **SILENT)
    clock.tick(advance, position, [position, clock], queue=False, **SILENT)
    known = gr.State([run.steps for run in runs])  # in this browser
    shown = gr.Number(newest(), visible=False)
    outputs = [position, known, shown]
    following = {"fn": follow, "inputs": [position, known], "outputs": outputs, "queue": False, **SILENT}
    gr.Timer(FOLLOW_SECONDS).tick(**following)
    page.load(**following)
    # The slider may stay where it is: at the last of another run, or of as many checkpoints as before.
    shown.change(results.show, results.inputs, results.components, api_visibility="private", **LIMIT)
    gr.api(predictions_at, api_name="predictions_at", **LIMIT)
    return results
