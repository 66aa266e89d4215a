"""A runner without a model."""

from collections.abc import Iterator

import msgspec

from flyweight.batch.rows import RowAnswer, RowIndex


class EchoRunner:
    """Answers with the row; rows of `fails` are errors, and it ends before row `breaks`."""

    def __init__(self, fails: frozenset[int] | set[int] = frozenset(), breaks: int = 0) -> None:
        self.fails, self.breaks = fails, breaks
        self.answered: list[int] = []

    def answer(self, index: RowIndex) -> Iterator[RowAnswer]:
        for row in index.read_pending():
            if row.number == self.breaks:
                raise RuntimeError("broken")
            self.answered.append(row.number)
            failed = row.number in self.fails
            error = {"code": "x"} if failed else None
            body = {} if failed else {"choices": [{"text": "echo"}], "row": row.data.decode()}
            response = {"status_code": 400 if failed else 200, "body": body}
            line = {"id": row.id, "custom_id": "", "response": response, "error": error}
            yield RowAnswer(row.number, msgspec.json.encode(line) + b"\n", failed)
