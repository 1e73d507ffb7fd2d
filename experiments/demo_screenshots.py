"""Takes the screenshots of docs/demo.md in headless Chromium, and prints the response times of the page.

Run: python experiments/demo_screenshots.py [MODELS...]
"""

import io
import sys
import time
from pathlib import Path

from PIL import Image

import lambdanets as ln

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from lambdanets.web.examples import example_images  # noqa: E402
from web.browser import open_page  # noqa: E402
from web.uploads import encode  # noqa: E402


def save(page, name):
    """Write a screenshot of the whole page as JPEG."""
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.wait_for_timeout(700)
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    image = image.resize((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.LANCZOS)
    image.save(ROOT / "docs" / name, quality=72, optimize=True)


def take_screenshots(names):
    """Print times and take a screenshot of the page of each model, and of the plan."""
    models = {name: ln.load(name) for name in names}
    for name, model in models.items():
        with open_page({name: model}) as tab:
            page = tab.page
            start = time.perf_counter()
            page.reload()
            page.locator("#upload input[type=file]").wait_for(state="attached")
            load_seconds = time.perf_counter() - start
            page.locator("#maps img").first.wait_for()
            page.wait_for_timeout(500)
            image = example_images(model)[1][0]
            start = time.perf_counter()
            tab.upload("my_image.png", encode(image))
            page.get_by_text("my_image.png: ").wait_for()
            upload_seconds = time.perf_counter() - start
            page.wait_for_timeout(500)
            start = time.perf_counter()
            tab.click_place(0.4, 0.6)
            row, column = int(0.6 * image.height), int(0.4 * image.width)
            page.get_by_text(f"At row {row}, column {column}").wait_for()
            click_seconds = time.perf_counter() - start
            print(f"{name}: page {load_seconds:.2f} s, upload {upload_seconds:.2f} s, click {click_seconds:.2f} s")
            save(page, f"demo_{Path(name).name}.jpg")
            if name == names[0]:
                page.get_by_role("tab", name="Plan a layer").click()
                save(page, "demo_plan.jpg")


if __name__ == "__main__":
    take_screenshots(sys.argv[1:] or ["digits"])
