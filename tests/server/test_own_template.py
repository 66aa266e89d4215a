"""A chat template of the operator's: one that is broken is refused at the start, and what fails
later is the server's failure, not the client's.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from http_server import SERVE, WAIT, started

CHAT = "/v1/chat/completions"
BROKEN = {
    "{% for m in messages %}\n{{ m.content }": ", line 2: ",
    "{{ messages[0].content | nosuch }}": ", line 1: No filter named 'nosuch'",
    "{{ messages[5].content.x }}": "--chat-template",
    "{{ raise_exception('never') }}": "--chat-template: never",
}
LATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}\n"
    "{% if messages | length > 2 %}{{ missing.field }}{% endif %}\n"
    "{% if messages[0].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}"
)


@pytest.mark.parametrize("template", BROKEN)
def test_a_broken_template_is_refused_at_the_start(template: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.jinja"
    path.write_text(template)
    words = [sys.executable, *SERVE, "--port", "0", "--chat-template", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and last.startswith("error: --chat-template"), done.stderr
    assert BROKEN[template] in last and "Traceback" not in done.stderr


def test_what_fails_later_is_the_servers_failure(tmp_path: Path) -> None:
    path = tmp_path / "late.jinja"
    path.write_text(LATE)
    with started("--chat-template", str(path)) as running:
        user = {"role": "user", "content": "Hi"}
        assert running.post(CHAT, {"messages": [user], "max_tokens": 1}).status == 200
        got = running.post(CHAT, {"messages": [user] * 3, "max_tokens": 1})
        error = got.json["error"]
        assert got.status == 500 and "--chat-template" in error["message"], error
        assert error["type"] == "server_error"
        running.until(lambda: any("failed=UndefinedError line=2" in said for said in running.said))
        refused = running.post(CHAT, {"messages": [{"role": "assistant", "content": "Hi"}]})
        assert refused.status == 400 and refused.json["error"]["param"] == "messages"
