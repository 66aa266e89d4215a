"""How long the tests of each folder of tests/ took, and the slowest files, printed at the
end of a run.

Durations are those of pytest's own reports, setup and teardown included, of all workers together.
It knows nothing of why a file is slow: `--durations=20` names its tests.
"""

from collections import Counter

import pytest

SLOWEST = 12  # files that are named


class FolderSeconds:
    """Adds up the reports; with `-n` those that reach the controller."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.split("::")[0].removeprefix("tests/")
        folder = file.split("/")[0]
        self.files[file] += report.duration
        self.seconds[folder] += report.duration
        self.tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.tests.total() > 1:
            terminalreporter.section("seconds per folder")
            for folder, seconds in self.seconds.most_common():
                terminalreporter.write_line(
                    f"{folder:<10} {seconds:7.1f} s {self.tests[folder]:6} tests"
                )
            named = [f"{file} {s:.0f} s" for file, s in self.files.most_common(SLOWEST)]
            terminalreporter.write_line("slowest files: " + ", ".join(named))
