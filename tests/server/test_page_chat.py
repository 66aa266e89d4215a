"""The chat of the page at `/` in a real browser, and its keys, keyboard use and colours."""

import re
from typing import Any

import pytest

from browser import answer_with, opened, read_answers, read_bodies, say, wait_for_end
from http_server import Running, started

pytestmark = pytest.mark.long
KEY = "sk-schlüssel"


def set_option(page: Any, name: str, value: float) -> None:
    page.evaluate("document.getElementById('settings').open = true")
    page.fill(f"input[name={name}]", str(value))


def test_a_chat_streams_and_shows_the_times_of_the_server(page: Any) -> None:
    bodies = read_bodies(page)
    set_option(page, "max_tokens", 60)
    say(page, "Once upon a time")
    wait_for_end(page)
    (answer,) = read_answers(page)
    assert len(answer) > 20
    figures = page.inner_text(".figures")
    assert re.search(r"[\d.]+ tokens/s · first token [\d.]+ m?s", figures)
    assert re.search(r"\d+ tokens · prompt \d+, 0 cached$", figures)
    say(page, "And then")
    wait_for_end(page, 2)
    say(page, "The end")  # the plain template changes the first turn, but not the second
    wait_for_end(page, 3)
    first, second, _ = bodies
    assert first["stream"] is True and first["model"] == "stories"
    assert [one["role"] for one in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"].split() == answer.split()
    cached = re.search(r", (\d+) cached$", page.locator(".figures").nth(2).inner_text())
    assert cached and int(cached[1]) > 0, "the history is in the prefix cache"


def test_text_appears_while_it_is_generated(fed: Any) -> None:
    say(fed, "Hello")
    fed.evaluate("feed('one **two')")
    fed.locator(".body", has_text="one").wait_for()
    assert fed.inner_text(".figures") == "3 tokens · prompt 7, 2 cached"
    assert fed.locator(".assistant").get_attribute("aria-busy") == "true"
    fed.evaluate("feed('** three'), finish()")
    wait_for_end(fed)
    assert read_answers(fed) == ["one two three"]
    assert fed.inner_text(".body strong") == "two"


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_stop_ends_the_request_and_keeps_the_text(fed: Any, way: str) -> None:
    say(fed, "Hello")
    fed.evaluate("feed('The begin')")
    fed.locator(".body", has_text="The begin").wait_for()
    assert not fed.is_visible("#send")
    if way == "button":
        fed.click("#stop")
    else:
        fed.keyboard.press("Escape")
    wait_for_end(fed)
    assert fed.evaluate("window.aborted") is True
    assert read_answers(fed) == ["The begin"] and fed.inner_text(".note") == "Stopped."
    assert fed.is_visible("#send") and not fed.is_visible("#stop")


def test_stop_releases_the_blocks_of_the_server(page: Any, server: Running) -> None:
    with server.paused():
        say(page, "Once upon a time")
        page.wait_for_selector("#stop:visible")
        page.click("#stop")
        wait_for_end(page)
    server.until(server.empty)


def test_messages_around_an_answer_without_text_are_sent_as_one(page: Any, server: Running) -> None:
    bodies = read_bodies(page)
    set_option(page, "max_tokens", 4)
    with server.paused():
        say(page, "Once upon")
        page.wait_for_selector("#stop:visible")
        page.click("#stop")
        wait_for_end(page)
    say(page, "a time")
    wait_for_end(page, 2)
    assert [body["messages"] for body in bodies] == [
        [{"role": "user", "content": "Once upon"}],
        [{"role": "user", "content": "Once upon\n\na time"}],
    ]
    assert page.locator(".user").count() == 2


def test_regenerate_sends_the_same_messages_again(page: Any) -> None:
    bodies = read_bodies(page)
    set_option(page, "seed", 5)
    set_option(page, "max_tokens", 12)
    say(page, "Once upon a time")
    wait_for_end(page)
    before = read_answers(page)
    page.click(".again")
    wait_for_end(page)
    assert page.locator(".message").count() == 2
    assert read_answers(page) == before, "the seed is the same"
    assert bodies[0] == bodies[1]
    assert "maximum number of tokens" in page.inner_text(".note")


def test_settings_are_sent_and_refusals_are_shown(page: Any) -> None:
    bodies = read_bodies(page)
    page.click("#settings summary")
    page.fill("#system", "Be brief.")
    set_option(page, "temperature", -1)
    say(page, "Hello")
    page.wait_for_selector(".note.error")
    assert page.inner_text(".note") == (
        "temperature = -1 is not valid; allowed: 0 to 1000000; nearest valid: 0"
    )
    set_option(page, "temperature", 0)
    set_option(page, "max_tokens", 3)
    page.click(".again")
    page.wait_for_selector(".note:not(.error)")
    assert page.locator(".note.error").count() == 0
    sent = bodies[-1]
    assert sent["temperature"] == 0 and sent["max_tokens"] == 3 and "top_p" not in sent
    assert [one["role"] for one in sent["messages"]] == ["system", "user"]


def test_the_selected_model_is_requested(page: Any) -> None:
    cards = {"data": [{"id": "first"}, {"id": "<b>second</b>"}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=cards))
    answer_with(page, "Hello")
    page.reload()
    page.wait_for_selector("#model option >> nth=1", state="attached")
    page.select_option("#model", "<b>second</b>")
    bodies = read_bodies(page)
    say(page, "Hello")
    wait_for_end(page)
    assert bodies[0]["model"] == "<b>second</b>"
    assert page.inner_text(".who") == "<b>second</b>"


def test_a_wrong_key_is_refused_clearly_and_a_right_one_is_kept(browser: Any) -> None:
    with (
        started("--api-key", KEY) as locked,
        opened(browser, f"http://127.0.0.1:{locked.port}/") as page,
    ):
        page.wait_for_selector("#ask[open]")
        assert page.inner_text("#ask-reason") == "This server requires an API key."
        assert page.locator(":focus").get_attribute("id") == "key"
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.get_by_text("The server did not accept this key.").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("No current figures: an API key is required").wait_for()
        say(page, "Hello")
        page.wait_for_selector("#ask[open]")
        page.fill("#key", KEY)
        page.click("#ask .primary")
        wait_for_end(page)
        assert page.locator(".note.error").count() == 0
        page.wait_for_selector("#model option", state="attached")
        page.wait_for_selector("#techniques td")
        page.reload()
        page.wait_for_selector("#techniques td", state="attached")
        assert not page.is_visible("#ask") and KEY not in page.url
        assert page.evaluate("document.cookie + Object.keys(localStorage).length") == "0"


# Answers to this path arrive late.
LATE = """
const plain = window.fetch;
window.fetch = async (path, options) => {
  const answer = await plain(path, options);
  if (String(path).endsWith("v1/models")) await new Promise((done) => setTimeout(done, 1500));
  if (String(path).endsWith("v1/models")) window.late = (window.late ?? 0) + 1;
  return answer;
};
"""


def test_a_late_answer_does_not_ask_for_a_key_again(browser: Any) -> None:
    with (
        started("--api-key", KEY) as locked,
        opened(browser, f"http://127.0.0.1:{locked.port}/", script=LATE) as page,
    ):
        page.wait_for_selector("#ask[open]")
        page.keyboard.press("Escape")
        page.wait_for_function("() => window.late > 0")
        page.wait_for_timeout(200)
        assert page.locator("#ask[open]").count() == 0
        page.get_by_text("No current figures: an API key is required").wait_for()


def test_a_conversation_needs_no_mouse(fed: Any) -> None:
    assert fed.locator(":focus").get_attribute("id") == "prompt"
    fed.keyboard.type("one")
    fed.keyboard.press("Shift+Enter")
    fed.keyboard.type("two")
    fed.keyboard.press("Enter")
    assert fed.inner_text(".user") == "one\ntwo"
    fed.evaluate("feed('Yes.'), finish()")
    wait_for_end(fed)
    fed.keyboard.press("Shift+Tab")
    assert fed.locator(":focus").inner_text() == "Regenerate"
    assert fed.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    fed.keyboard.press("Enter")
    fed.evaluate("feed('No.'), finish()")
    wait_for_end(fed)
    assert read_answers(fed) == ["No."]
    fed.keyboard.type("three")
    assert fed.input_value("#prompt") == "three", "the focus is back in the message"


def test_every_control_is_reached_by_tab_and_has_a_name(page: Any) -> None:
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert {"model", "view", "theme", "messages", "prompt", "send", "clear"} <= reached
    names = page.eval_on_selector_all(
        "button, input, select, textarea, canvas, table",
        """all => all.filter(e => e.checkVisibility()).map(e => e.ariaLabel || e.textContent.trim()
          || e.labels?.[0]?.textContent.trim() || e.getAttribute('aria-labelledby'))""",
    )
    assert len(names) > 8 and all(names)


def test_light_and_dark_follow_the_system_and_the_button(browser: Any, server: Running) -> None:
    read_back = "getComputedStyle(document.body).backgroundColor"
    found = {}
    for scheme in ("light", "dark"):
        with opened(browser, f"http://127.0.0.1:{server.port}/", color_scheme=scheme) as page:
            assert page.inner_text("#theme") == "Theme: system"
            found[scheme] = page.evaluate(read_back)
    assert found["light"] != found["dark"]
    with opened(browser, f"http://127.0.0.1:{server.port}/", color_scheme="light") as page:
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(read_back) == found["dark"], "it follows a change of the system"
        page.click("#theme")
        assert page.inner_text("#theme") == "Theme: light"
        assert page.evaluate(read_back) == found["light"]
        page.reload()
        assert page.evaluate(read_back) == found["light"]
        page.click("#theme")
        assert page.evaluate(read_back) == found["dark"]


@pytest.mark.parametrize("width", [380, 800, 1400])
def test_nothing_is_wider_than_the_window(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    answer_with(
        page, "a" * 500 + "\n\n```\n" + "b" * 500 + "\n```\n\n| c |\n|---|\n| " + "d" * 300 + " |"
    )
    say(page, "e" * 500)
    wait_for_end(page)
    for view in ("chat", "both", "dashboard"):
        page.check(f"input[value={view}]")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
