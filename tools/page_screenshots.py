"""Takes the pictures of docs/page.md, or with several models those of docs/several-models.md: the
page of a running server under some load.

    flyweight serve --port 8000
    python tools/page_screenshots.py http://127.0.0.1:8000/ docs/img
    flyweight serve tales=stories tiny=stories-draft --port 8001
    python tools/page_screenshots.py http://127.0.0.1:8001/ docs/img

It needs Playwright and an installed Chromium; nothing is downloaded.
"""

import json
import shutil
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

STORY = (
    "Once upon a time there was a little girl named Lily. She loved to play in the park with her "
    "friends. One sunny day she saw a big red ball under a tree. "
)
ENDS = ("She picked it up", "Her mom said", "A dog came", "The ball was", "Then it rained", "Tom")
SHOTS = {  # name: colours, view, size
    "page-light": ("light", "both", (1400, 900)),
    "page-dashboard-dark": ("dark", "dashboard", (1200, 1250)),
}
SHOTS_OF_SEVERAL = {
    "page-models-light": ("light", "dashboard", (1200, 900)),
    "page-models-dark": ("dark", "dashboard", (1200, 900)),
}


def list_models(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}v1/models") as reply:
        return [one["id"] for one in json.load(reply)["data"]]


def post(address: str, body: dict[str, Any]) -> None:
    head = {"content-type": "application/json"}
    request = urllib.request.Request(
        f"{address}v1/completions", json.dumps(body).encode(), headers=head
    )
    with urllib.request.urlopen(request) as reply:
        reply.read()


@contextmanager
def loaded(address: str, models: list[str]) -> Iterator[None]:
    """Requests with a common beginning, in turn in several threads; each has one of the models."""
    ended = threading.Event()

    def work(end: str, model: str) -> None:
        body = {"prompt": STORY + end, "max_tokens": 300, "ignore_eos": True, "n": 2}
        while not ended.is_set():
            post(address, {**body, "model": model})

    threads = [
        threading.Thread(target=work, args=(end, models[i % len(models)]))
        for i, end in enumerate(ENDS)
    ]
    for thread in threads:
        thread.start()
    yield
    ended.set()
    for thread in threads:
        thread.join()


def take(browser: Browser, address: str, path: Path, shot: tuple[str, str, Any]) -> None:
    colours, view, (width, height) = shot
    page = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if colours == "dark" else "light",
    )
    page.set_default_timeout(120_000)
    page.goto(address)
    page.check(f"input[value={view}]")
    if view == "both":
        for text in ("Once upon a time there was a dog named Max.", "Max saw a cat."):
            page.fill("#prompt", text)
            page.press("#prompt", "Enter")
            page.wait_for_selector(".message:last-child .again")
    page.wait_for_timeout(20_000)  # so that the charts have some length
    page.screenshot(path=path)
    page.close()


def main() -> None:
    address, folder = sys.argv[1], Path(sys.argv[2])
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    models = list_models(address)
    shots = SHOTS if len(models) == 1 else SHOTS_OF_SEVERAL
    with sync_playwright() as playwright, loaded(address, models):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, shot in shots.items():
            take(browser, address, folder / f"{name}.png", shot)
        browser.close()


if __name__ == "__main__":
    main()
