"""What the page at `/` makes of replies: Markdown as elements, hostile text as text."""

from typing import Any

import pytest

from browser import CHAT, answer_with, say, wait_for_end

pytestmark = pytest.mark.long
HOSTILE = """<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>
<svg onload="window.hacked=3"> <iframe srcdoc="<script>parent.hacked=4</script>"></iframe>

[one](javascript:window.hacked=5) [two](data:text/html,<script>window.hacked=6</script>)
[three](JaVaScRiPt:window.hacked=7) <javascript:window.hacked=8> [four]( javascript:window.hacked=9)
![picture](https://evil.example/pixel.png) ![x](x" onerror="window.hacked=10)

| <b onclick=window.hacked=11>a</b> | b |
|---|---|
| <style>*{display:none}</style> | <link rel=stylesheet href=https://evil.example/x.css> |

```html"><img src=x onerror=window.hacked=12>
</code></pre><script>window.hacked=13</script>
```
- <object data=https://evil.example/x> **<a href=javascript:window.hacked=14>c</a>**
"""


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "in pieces"])
def test_hostile_replies_run_no_script(fed: Any, streamed: bool) -> None:
    say(fed, HOSTILE)
    size = 7 if streamed else len(HOSTILE)
    for start in range(0, len(HOSTILE), size):
        fed.evaluate("text => feed(text)", HOSTILE[start : start + size])
    fed.evaluate("finish()")
    wait_for_end(fed)
    check_harmless(fed)
    links = fed.eval_on_selector_all("#messages a", "all => all.map(a => [a.href, a.rel])")
    assert [link for link, _ in links] == [
        "https://evil.example/pixel.png", "https://evil.example/x.css", "https://evil.example/x",
    ]  # fmt: skip
    assert {rel for _, rel in links} == {"noopener noreferrer"}
    shown = fed.inner_text(".body")
    for text in ('<img src=x onerror="window.hacked=1">', "<script>window.hacked=2</script>",
                 "[one](javascript:window.hacked=5)", "</code></pre><script>"):  # fmt: skip
        assert text in shown


def test_hostile_errors_and_reasoning_run_no_script(page: Any) -> None:
    answer_with(page, HOSTILE, reasoning=HOSTILE)
    say(page, "Hello")
    wait_for_end(page)
    page.click(".reasoning summary")
    assert "<img src=x" in page.inner_text(".reasoning p")
    page.unroute(CHAT)
    refusal = {"error": {"message": HOSTILE}}
    page.route(CHAT, lambda route: route.fulfill(status=400, json=refusal))
    say(page, "Hello")
    page.wait_for_selector(".note.error")
    check_harmless(page)


def check_harmless(page: Any) -> None:
    """No element but those of Markdown was made, and no script ran."""
    made = page.eval_on_selector_all("#messages *", "all => all.map(e => e.localName)")
    markdown = {
        "article", "p", "div", "span", "button", "details", "summary", "pre", "code", "a", "strong",
        "em", "ul", "li", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert set(made) <= markdown
    attributes = page.eval_on_selector_all(
        "#messages *", "all => all.flatMap(e => [...e.attributes].map(a => a.name))"
    )
    assert not any(name.startswith("on") or name in ("style", "srcdoc") for name in attributes)
    assert page.evaluate("typeof window.hacked") == "undefined"


def test_the_policy_stops_what_a_script_of_the_page_would_let_through(page: Any) -> None:
    """If a future script made HTML from text, the browser would refuse it."""
    make = "document.getElementById('messages').innerHTML = '<img src=x onerror=window.hacked=1>'"
    assert "TrustedHTML" in page.evaluate(
        f"() => {{ try {{ {make} }} catch (e) {{ return e.message }} }}"
    )
    assert page.evaluate("typeof window.hacked") == "undefined"


def test_markdown_is_shown_as_elements(page: Any) -> None:
    answer_with(page, (
        "# Title\n\nText *a* **b** `c`\n\n1. one\n2. two\n   - inner\n\n> quote\n\n"
        "```python\nif a < b:\n    print(a)\n```\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n"
        "[link](https://example.org/a_b) snake_case_name 2 * 3 * 4"
    ))  # fmt: skip
    say(page, "Hello")
    wait_for_end(page)
    text = {
        tag: page.inner_text(f".body {tag}")
        for tag in ("h3", "em", "strong", "p code", "ol > li", "ul li", "blockquote", "pre", "td")
    }
    assert text == {
        "h3": "Title", "em": "a", "strong": "b", "p code": "c", "ol > li": "one",
        "ul li": "inner", "blockquote": "quote", "pre": "if a < b:\n    print(a)", "td": "1",
    }  # fmt: skip
    assert page.inner_text(".code-head span") == "python"
    assert page.get_attribute(".body a", "href") == "https://example.org/a_b"
    assert "snake_case_name 2 * 3 * 4" in page.inner_text(".body")
