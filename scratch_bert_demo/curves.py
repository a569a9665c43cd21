"""The losses of a run below what its model predicts, with a mark at the step that is shown."""

import pandas

from .components import Column
from .environment import gr
from .runs import MLM_LOSS, Moment, Run, step_of


MAX_POINTS = 400  # of a curve
STEP_MARK = "shown"
COLORS = {"training": "#f97316", "validation": "#2a9d8f", "baseline": "#94a3b8", STEP_MARK: "#dc2626"}


def with_curves(column: Column, run: Run) -> Column:
    """A column of the run's model, with the run's losses below."""
    panels = list(run.curves) or [MLM_LOSS, "NSP loss"]

    def show(moment: Moment, *inputs: object) -> list[gr.Component]:
        shown = step_of(run.place_at(moment))
        return [*column(moment, *inputs), *(plot(run, title, shown) for title in panels)]

    return show


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
    options = {"color": "curve", "color_title": " ", "color_map": COLORS, "visible": True}
    return gr.LinePlot(data, x="step", y=title, caption=run.masked if title == MLM_LOSS else None, **options)
