#!/usr/bin/env python
"""Make the images of README.md and docs/commands.md from a pretraining run:

    python scripts/pretrain.py --output_dir runs/readme
    python docs/images/make.py runs/readme

Needs the extras demo and integrations, and Chromium."""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

from scratch_bert_demo.page import build_page, serve
from scratch_bert_demo.runs import open_models


IMAGES = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"


def take(page: Page) -> Image.Image:
    """A screenshot of the page in 64 colours: a fifth of the size."""
    return Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB").quantize(64)


def main() -> None:
    directory = sys.argv[1]
    shutil.copy(Path(directory, "curves.png"), IMAGES / "curves.png")
    models, runs = open_models([directory])
    page = build_page(models, runs)
    address = serve(page)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-quic"])
        window = browser.new_page(viewport={"width": 1000, "height": 800})
        window.goto(address)

        def open_tab(name: str, action: str, text: str) -> Locator:
            window.get_by_role("tab", name=name, exact=True).click()
            panel = window.get_by_role("tabpanel").filter(visible=True)
            panel.get_by_label("Sentence", exact=True).fill(text)
            panel.get_by_role("button", name=action, exact=True).click()
            window.wait_for_timeout(2000)
            return panel

        masked = "If the file does not exist, an [MASK] is raised."
        open_tab("Masked words", "Predict", masked)
        take(window).save(IMAGES / "page.png", optimize=True)
        panel = open_tab("Attention", "Show", masked.replace("[MASK]", "error"))
        panel.get_by_role("button", name="Layer 1, head 3").click()
        window.wait_for_timeout(2000)
        take(window).save(IMAGES / "attention.png", optimize=True)
        window.get_by_role("tab", name="Embeddings", exact=True).click()
        window.wait_for_timeout(1000)
        take(window).save(IMAGES / "embeddings.png", optimize=True)
        panel = open_tab("Masked words", "Predict", masked)
        slider = window.get_by_label("number input for Snapshot")
        window.set_viewport_size({"width": 1000, "height": 1600})  # for places that don't depend on scrolling
        window.wait_for_timeout(1000)
        top = slider.bounding_box()["y"] - 50
        frames = []
        for number in range(len(runs[0].saved)):
            slider.fill(str(number + 1))
            slider.press("Tab")
            window.wait_for_timeout(1500)
            curve = panel.locator(".vega-embed").first.bounding_box()
            frames.append(take(window).crop((0, top, 1000, curve["y"] + curve["height"] + 20)))
        tallest = max(frame.height for frame in frames)
        frames = [frame.crop((0, 0, frame.width, tallest)) for frame in frames]
        durations = [600] * (len(frames) - 1) + [3000]
        frames[0].save(IMAGES / "watch.gif", save_all=True, append_images=frames[1:], duration=durations, loop=0)
        browser.close()
    page.close()


if __name__ == "__main__":
    main()
