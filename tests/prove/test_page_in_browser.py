"""The report of `prove` in a real browser: what is drawn fits, and nothing is fetched or broken.

FLYWEIGHT_PROVE_PAGE names a page that a run has written; without it a fake technique's is made.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_sides import JOB, FakeClock, FakeSide, cycle_times, make_technique

from flyweight.bench.facts import Surroundings
from flyweight.prove.page import write_page
from flyweight.prove.proved import ProvedSuite
from flyweight.prove.report import report_suite
from flyweight.prove.runner import ProvePlan, prove
from flyweight.prove.technique import ProveJob, Side, Technique

WRITTEN = os.environ.get("FLYWEIGHT_PROVE_PAGE", "")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--v=0", "--window-size=1000,900",
)  # fmt: skip
# Runs in the browser: boxes of what is drawn, as JSON in the page's title.
PROBE = """<script>
const boxes = [...document.querySelectorAll("svg, table")].map(e => e.getBoundingClientRect());
document.title = JSON.stringify({
  drawn: boxes.filter(b => b.width > 50 && b.height > 20).length, all: boxes.length,
  overflow: document.documentElement.scrollWidth > window.innerWidth,
  requests: performance.getEntriesByType("resource").length,
});
</script></body>"""


def make_page() -> str:
    clock, take = FakeClock(), cycle_times(2.0, 2.2, 1.9)

    def open_side(technique: Technique, job: ProveJob, name: str) -> Side:
        return FakeSide(name, clock, lambda *run: take(*run) * (1.0 if name == "on" else 1.5))

    found = prove(make_technique(), JOB, ProvePlan(seconds=50), open_side, clock=clock)
    suite = ProvedSuite("", Surroundings("a processor", 2, 8 << 30, "1.0", ""), (found,))
    return write_page(suite, report_suite(suite, ()), "flyweight prove fake")


@pytest.mark.long
@pytest.mark.skipif(not CHROMIUM and not WRITTEN, reason="needs chromium")
def test_the_page_is_drawn_in_chromium(tmp_path: Path) -> None:
    page = Path(WRITTEN).read_text(encoding="utf-8") if WRITTEN else make_page()
    (tmp_path / "page.html").write_text(page.replace("</body>", PROBE), encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
         f"--screenshot={tmp_path / 'page.png'}", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (title,) = re.findall(r"<title>(\{.*?\})</title>", done.stdout)
    tables = page.count("<table") + page.count("<svg")
    expected = f'{{"drawn":{tables},"all":{tables},"overflow":false,"requests":0}}'
    assert title == expected
    assert "CONSOLE" not in done.stderr, "nothing is reported as broken"
    assert (tmp_path / "page.png").stat().st_size > 5000
