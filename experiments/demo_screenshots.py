"""Takes the screenshots of docs/demo.md in headless Chromium, and prints the response times of the page.

Run: python experiments/demo_screenshots.py [MODELS...]
"""

import io
import sys
import time
from pathlib import Path

from pages import ROOT
from PIL import Image

import lambdanets as ln
from lambdanets_lab.demo.examples import example_images

sys.path.insert(0, str(ROOT / "tests"))
from lab.demo.browser import encode, open_page


def save(page, name):
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    image.save(ROOT / "docs" / name, quality=72, optimize=True)


def take_screenshots(names):
    """Print times and take a screenshot of the page of each model."""
    for name in names:
        model = ln.load(name)
        with open_page({name: model}) as tab:
            page = tab.page
            start = time.perf_counter()
            page.reload()
            page.locator("#examples img").first.wait_for()
            load_seconds = time.perf_counter() - start
            page.locator("#maps").wait_for()
            tab.wait()
            image = example_images(model)[1][0]
            start = time.perf_counter()
            tab.upload("my_image.png", encode(image))
            upload_seconds = time.perf_counter() - start
            start = time.perf_counter()
            tab.click_position(0.4, 0.6)
            click_seconds = time.perf_counter() - start
            print(f"{name}: page {load_seconds:.2f} s, upload {upload_seconds:.2f} s, click {click_seconds:.2f} s")
            save(page, f"demo_{Path(name).name}.jpg")


if __name__ == "__main__":
    take_screenshots(sys.argv[1:] or ["digits", "nuclei"])
