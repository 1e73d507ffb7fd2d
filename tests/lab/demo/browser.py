"""The page in headless Chromium, with its server in this process."""

import contextlib
import io
import shutil
from dataclasses import dataclass, field
from urllib.parse import urlsplit

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Tab:
    """A page in the browser. requests: requested URLs. messages: console messages and uncaught exceptions."""

    page: object
    url: str
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def other_hosts(self):
        own = urlsplit(self.url).netloc
        addresses = [urlsplit(address) for address in self.requests]
        return {address.netloc for address in addresses if address.scheme not in ("data", "blob")} - {own}

    def upload(self, name, content):
        """Choose a file and wait for the result, or for the sentence about it."""
        file = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
        self.page.locator("#file").set_input_files(file)
        self.wait()

    def click_position(self, x, y):
        """Click the image at a fraction of its width and height, and wait for the maps."""
        stage = self.page.locator("#stage")
        box = stage.bounding_box()
        stage.click(position={"x": x * box["width"], "y": y * box["height"]})
        self.wait()

    def wait(self):
        self.page.locator("body:not(.busy)").wait_for()

    def source_of_map(self, name):
        return self.page.locator(f"[data-map={name}]").get_attribute("src")


@contextlib.contextmanager
def open_page(models, width=1200, height=900):
    """Serve models by name and open the page; yields a `Tab` within the block, after the first example is shown."""
    from playwright.sync_api import sync_playwright

    from lambdanets_lab.demo.app import serve

    with serve(models) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = Tab(browser.new_page(viewport={"width": width, "height": height}), server.url)
        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.on("console", lambda log: tab.messages.append(f"{log.type}: {log.text} {log.location['url']}"))
        tab.page.on("pageerror", lambda error: tab.messages.append(f"exception: {error}"))
        tab.page.goto(server.url)
        tab.page.locator("#result").wait_for()
        tab.wait()
        yield tab
        browser.close()


def encode(image):
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()
