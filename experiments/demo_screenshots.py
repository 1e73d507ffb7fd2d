"""Takes the screenshots of docs/demo.md in headless Chromium, and prints the response times of the page.

Run: python experiments/demo_screenshots.py [MODELS...]

It uploads an image and clicks into it. It fails if the console has errors, or if the page asks another host.
"""

import contextlib
import io
import shutil
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from pages import ROOT
from PIL import Image

import lambdanets as ln
from lambdanets_lab.demo.app import serve
from lambdanets_lab.demo.examples import example_images

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def open_page(models):
    """Serve models by name and open the page; yields it within the block, after the first example is shown."""
    from playwright.sync_api import sync_playwright

    messages, hosts = [], set()
    with serve(models) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.on("request", lambda request: hosts.add(urlsplit(request.url)[:2]))
        page.on("console", lambda log: messages.append(f"{log.type}: {log.text}"))
        page.on("pageerror", lambda error: messages.append(f"error: {error}"))
        page.goto(server.url)
        wait(page)
        yield page
        browser.close()
    assert not [message for message in messages if message.startswith("error")], messages
    assert {host for scheme, host in hosts if scheme not in ("data", "blob")} == {urlsplit(server.url).netloc}, hosts


def wait(page):
    page.locator("#maps").wait_for()
    page.locator("body:not(.busy)").wait_for()


def upload(page, image):
    content = io.BytesIO()
    image.save(content, "PNG")
    file = {"name": "my_image.png", "mimeType": "image/png", "buffer": content.getvalue()}
    page.locator("#file").set_input_files(file)


def click(page):
    stage = page.locator("#stage")
    box = stage.bounding_box()
    stage.click(position={"x": 0.4 * box["width"], "y": 0.6 * box["height"]})


def seconds(page, action, *arguments):
    """Return the seconds until the page shows the result of an action."""
    start = time.perf_counter()
    action(*arguments)
    wait(page)
    return time.perf_counter() - start


def take_screenshots(names):
    """Print times and take a screenshot of the page of each model."""
    for name in names:
        model = ln.load(name)
        with open_page({name: model}) as page:
            times = {
                "page": seconds(page, page.reload),
                "upload": seconds(page, upload, page, example_images(model)[1][0]),
                "click": seconds(page, click, page),
            }
            print(name, {action: round(duration, 2) for action, duration in times.items()})
            page.evaluate("document.activeElement.blur()")
            page.mouse.move(0, 0)
            page.wait_for_timeout(300)
            image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
            image.save(ROOT / "docs" / f"demo_{Path(name).name}.jpg", quality=72, optimize=True)


if __name__ == "__main__":
    take_screenshots(sys.argv[1:] or ["digits", "nuclei"])
