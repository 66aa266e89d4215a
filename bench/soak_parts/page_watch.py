"""The server's page, open in a headless Chromium for a whole run.

Invariant: it talks to the server only; an error of its scripts, or of the browser, is kept and
reported at the end.  Playwright and Chromium are needed.
"""

import threading
import time
from typing import Any

from browser import CHROMIUM, launched, opened, say

CHAT_EVERY, HEAP_EVERY = 60.0, 10.0  # seconds
HEAP = "performance.memory ? performance.memory.usedJSHeapSize : 0"
SECOND = 1000.0  # milliseconds


class PageWatcher(threading.Thread):
    """`heap` has the seconds since its start and the bytes that the page's scripts hold."""

    def __init__(self, port: int, key: str) -> None:
        super().__init__(daemon=True)
        self.address, self.key = f"http://127.0.0.1:{port}/", key
        self.heap: list[tuple[float, int]] = []
        self.chats = 0
        self.trouble = "it was not opened"
        self._ended = threading.Event()
        if not CHROMIUM:
            raise SystemExit("--browser needs an installed Chromium")

    def run(self) -> None:
        try:
            with launched() as browser, opened(browser, self.address) as page:
                self._watch(page)
        except Exception as error:  # the run goes on, and its report has this
            self.trouble = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        self._ended.set()
        self.join(180.0)

    def _watch(self, page: Any) -> None:
        page.wait_for_selector("#ask[open]")
        page.fill("#key", self.key)
        page.keyboard.press("Enter")
        page.wait_for_selector("#models td", state="attached")
        begun = last_chat = last_heap = time.monotonic()
        while not self._ended.is_set():
            page.wait_for_timeout(SECOND)
            now = time.monotonic()
            if now - last_heap >= HEAP_EVERY:
                self.heap.append((round(now - begun, 1), int(page.evaluate(HEAP))))
                last_heap = now
            if now - last_chat >= CHAT_EVERY:
                self._chat(page)
                last_chat = time.monotonic()
        page.wait_for_selector("#trouble", state="hidden")  # its figures are current
        self.trouble = ""

    def _chat(self, page: Any) -> None:
        """One answer, or the error that is shown in its place."""
        page.click("#clear")
        say(page, "Once upon a time there was a big red ball.")
        page.wait_for_selector(".assistant .again")
        self.chats += 1
