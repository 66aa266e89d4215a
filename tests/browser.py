"""A headless Chromium for tests, driven by Playwright, and the server's page in it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
CHAT = "**/v1/chat/completions"
# Replaces the answers to chats by what a test feeds: `feed(text)`, `finish()`.
FEEDER = """
const plain = window.fetch;
window.fetch = (path, options) => {
  if (!String(path).endsWith("chat/completions")) return plain(path, options);
  const body = new ReadableStream({
    start(stream) {
      const send = (data) => stream.enqueue(new TextEncoder().encode(`data: ${data}\\n\\n`));
      window.feed = (content) => send(JSON.stringify({ choices: [{ index: 0, delta: { content } }],
        usage: { prompt_tokens: 7, completion_tokens: 3,
          prompt_tokens_details: { cached_tokens: 2 } } }));
      window.finish = () => { send("[DONE]"); stream.close(); };
      options.signal.addEventListener("abort", () => {
        window.aborted = true;
        stream.error(new DOMException("aborted", "AbortError"));
      });
    },
  });
  return Promise.resolve(new Response(body));
};
"""
WAIT = 120_000.0  # milliseconds, for anything that should take one second


@contextmanager
def launched() -> Iterator[Any]:
    """Playwright's browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, address: str, script: str = "", **options: Any) -> Iterator[Any]:
    """A new tab, where `script` runs before the page's; at its end no script has failed and nothing
    was requested from another server.
    """
    context = browser.new_context(viewport={"width": 1400, "height": 860}, **options)
    context.set_default_timeout(WAIT)
    page = context.new_page()
    broken: list[str] = []
    requested: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    context.on("request", lambda request: requested.append(request.url))
    if script:
        page.add_init_script(script)
    page.goto(address)
    yield page
    context.close()
    assert broken == []
    own = urlsplit(address).netloc
    assert [url for url in requested if urlsplit(url).netloc != own] == []


def answer_with(page: Any, content: str, **more: Any) -> None:
    """The next chats are answered with this text."""
    page.route(CHAT, lambda route: fulfil(route, content, **more))


def fulfil(route: Any, content: str, **more: Any) -> None:
    """Answers a chat with this text."""
    delta = {"role": "assistant", "content": content, **more}
    event = json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]})
    body = f"data: {event}\n\ndata: [DONE]\n\n"
    route.fulfill(content_type="text/event-stream", body=body)


def say(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def read_answers(page: Any) -> list[str]:
    return [str(text) for text in page.locator(".assistant .body").all_inner_texts()]


def read_bodies(page: Any) -> list[Any]:
    """Where the bodies of chats are collected from now on."""
    found: list[Any] = []

    def note(request: Any) -> None:
        if request.url.endswith("/v1/chat/completions"):
            found.append(request.post_data_json)

    page.on("request", note)
    return found


def wait_for_end(page: Any, answers: int = 1) -> None:
    page.wait_for_selector(".assistant .again")
    page.wait_for_function(
        "n => document.querySelectorAll('.assistant[aria-busy=false]').length === n", arg=answers
    )
