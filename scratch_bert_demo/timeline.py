"""The snapshots that all tabs show: a slider moves through them, plays them, and follows a run that is still training."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .environment import LIMIT, SILENT, gr
from .runs import EXAMPLES_SEEN, SECONDS, STEPS, TOKENS_SEEN, Moment, Run, step_of


PLAY_SECONDS, FOLLOW_SECONDS = 1, 10  # between two snapshots, and between two looks for new ones
MEASURES = {"steps": STEPS, "examples": EXAMPLES_SEEN, "tokens": TOKENS_SEEN, "time": SECONDS}


class Timeline:
    """A moment of the training of several runs, which a slider chooses for all tabs. Without runs, there is none.

    The slider's positions, from 1, are the snapshots of the run that has come furthest; the others show what they were
    at the same moment, after as many steps or, as is chosen beside, as many examples or tokens or as much time.
    """

    def __init__(self, runs: Sequence[Run]):
        self.runs = runs
        self.controls: list[gr.Component] = []

    def amounts(self, measure: str = STEPS) -> list[float]:
        return furthest([run.amounts(measure) for run in self.runs])

    def moment(self, *values: Any) -> Moment | None:
        """The moment that the values of `controls` choose: the slider's position, and the measure if there is one."""
        if not values:
            return None
        position, *measure = values
        amounts = self.amounts(*measure)
        return Moment(amounts[min(int(position), len(amounts)) - 1], *measure)

    def add_controls(self) -> None:
        if not self.runs:
            return
        with gr.Row(elem_classes="sb-timeline"):
            last = len(self.amounts())
            slider = gr.Slider(**_range(last, last), step=1, label="Snapshot", scale=4)
            self.controls = [slider]
            known = [item for item in MEASURES.items() if all(any(run.amounts(item[1])) for run in self.runs)]
            if len(self.runs) > 1 and len(known) > 1:
                self.controls.append(gr.Radio(known, value=STEPS, label="Align runs by", scale=2, min_width=180))
            self.play = gr.Button("▶ Play", scale=0, min_width=120)

    def connect(self, page: gr.Blocks, refresh: gr.Number) -> None:
        """Let the slider play, and follow the runs; the number `refresh` changes when snapshots come or go."""
        if not self.runs:
            return
        slider, *measure = self.controls
        clock = gr.Timer(PLAY_SECONDS, active=False)
        self.play.click(lambda: (1, gr.Timer(active=True)), None, [slider, clock], queue=False, **SILENT)
        clock.tick(self._advance, self.controls, [slider, clock], queue=False, **SILENT)
        known = gr.State([run.amounts() for run in self.runs])  # in this browser
        looks = [gr.Timer(FOLLOW_SECONDS).tick, page.load, *(radio.change for radio in measure)]
        for listen in looks:
            listen(self._follow, [known, *self.controls], [slider, known, refresh], queue=False, **SILENT)
        gr.api(self.predictions_at, api_name="predictions_at", **LIMIT)

    def predictions_at(self, text: str, step: int, run: str = "") -> dict[str, Any]:
        """The predictions of the snapshot nearest to a step, of the run with this title or the first."""
        chosen = next((candidate for candidate in self.runs if candidate.title == run), self.runs[0])
        place = min(chosen.saved, key=lambda place: abs(step_of(place) - step))
        top = chosen.open(place).fill_mask(text).value
        return {"run": chosen.title, "step": step_of(place), "predictions": [dict(row) for row in top]}

    def _advance(self, position: int, *measure: str) -> tuple[int, gr.Timer]:
        """The next position while it plays, and the timer, which stops at the last."""
        last = len(self.amounts(*measure))
        following = min(int(position) + 1, last)
        return following, gr.Timer(active=following < last)

    def _follow(self, known: list[list[float]], position: int, *measure: str) -> tuple[Any, list[list[float]], Any]:
        """Add the new snapshots of runs that are still training, and show them if the latest was shown. Returns updates
        of the slider, the known amounts, and the number `refresh`."""
        for run in self.runs:
            with suppress(OSError, ValueError):  # a file of the latest is being deleted
                run.refresh()
        amounts = [run.amounts(*measure) for run in self.runs]
        if amounts == known:
            return gr.skip(), known, gr.skip()
        before, last = len(furthest(known)), len(furthest(amounts))
        following = last if int(position) >= before else min(int(position), last)
        # A slider that is played meanwhile keeps its place.
        slider = gr.Slider(**_range(last, following if following != position else None))
        return slider, amounts, sum(map(sum, amounts))


def _range(positions: int, value: int | None = None) -> dict[str, Any]:
    return {"minimum": 1, "maximum": max(positions, 2)} | ({} if value is None else {"value": value})


def furthest(amounts: list[list[float]]) -> list[float]:
    """The amounts of the run that has come furthest, of which the one with most snapshots."""
    return max(amounts, key=lambda amounts: (amounts[-1], len(amounts)))
