#!/usr/bin/env python
"""Make the images of README.md from a pretraining run that kept its checkpoints:

    python scripts/pretrain.py --output_dir runs/readme --save_steps 200 --save_total_limit 100
    python docs/images/make.py runs/readme

Needs the extras demo and integrations, and Chromium."""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from scratch_bert.demo.answers import open_models
from scratch_bert.demo.page import build_page, serve


IMAGES = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"


def take(page: Page, name: str) -> None:
    """Save a screenshot of the page in 64 colours: a fifth of the size."""
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    picture.quantize(64).save(IMAGES / f"{name}.png", optimize=True)


def main() -> None:
    run = sys.argv[1]
    shutil.copy(Path(run, "curves.png"), IMAGES / "curves.png")
    page = build_page(*open_models([run]))
    address = serve(page)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-quic"])
        window = browser.new_page(viewport={"width": 1000, "height": 400})
        window.goto(address)
        sentence = "If the file does not exist, an [MASK] is raised."
        for tab, button, name in (("Masked words", "Predict", "page"), ("Watch it learn", "Predict", "watch")):
            window.get_by_role("tab", name=tab, exact=True).click()
            panel = window.get_by_role("tabpanel").filter(visible=True)
            panel.get_by_label("Sentence", exact=True).fill(sentence)
            panel.get_by_role("button", name=button, exact=True).click()
            window.wait_for_timeout(2000)
            take(window, name)
        browser.close()
    page.close()


if __name__ == "__main__":
    main()
