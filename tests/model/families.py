"""What the test run found, family by family, and the table of it in docs/models.md."""

from dataclasses import dataclass, field
from pathlib import Path

DOC = Path(__file__).parents[2] / "docs" / "models.md"
START, END = "<!-- made by the tests: begin -->", "<!-- made by the tests: end -->"
COLUMNS = ("logits", "decode", "chunked", "batched", "context's end")


@dataclass
class Report:
    """Worst errors against transformers, by fixture, length and container."""

    rows: dict[tuple[str, str, str], dict[str, float]] = field(default_factory=dict)

    def add(self, name: str, file: str, container: str, errors: dict[str, float]) -> None:
        self.rows[name, file, container] = errors

    def table(self) -> str:
        """Markdown; a checkpoint that ran at several lengths shows its worst."""
        lines = [
            f"| checkpoint | file | {' | '.join(COLUMNS)} | 64 greedy tokens |",
            f"|---|---|{'---|' * len(COLUMNS)}---|",
        ]
        for name, container in sorted({(n, c) for n, _, c in self.rows}):
            found = [v for (n, _, c), v in self.rows.items() if (n, c) == (name, container)]
            worst = [f"{max(errors[column] for errors in found):.0e}" for column in COLUMNS]
            lines.append(f"| {name} | {container} | {' | '.join(worst)} | identical |")
        return "\n".join(lines)

    def write(self) -> None:
        """Puts the table into docs/models.md, between its marks."""
        before, _, rest = DOC.read_text().partition(START)
        _, _, after = rest.partition(END)
        DOC.write_text(f"{before}{START}\n{self.table()}\n{END}{after}")
