"""Rounds with peers: a stand-in interpreter plays the peer, so that nothing need be installed."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from flyweight.bench.facts import OtherProcesses, read_process_seconds
from flyweight.bench.kernels import KernelRun, RunListener, find_missing, run, start_neighbours
from flyweight.bench.peer import PeerArgument, PeerError, PeerMethod, PeerSetup
from flyweight.bench.peer_programs import name_programs
from flyweight.bench.peers import PeerProcess, open_peer
from flyweight.bench.rows import BenchRow
from flyweight.bench.workloads import Workload
from flyweight.describe import ASSETS
from flyweight.errors import ConfigError

TESTS = [Workload(prompt=24), Workload(gen=3), Workload(gen=2, seqs=2)]
ROOM = PeerSetup(tokens=64, seqs=2, kv_bytes=1 << 20)
PEER = """#!{python}
import json, sys
kind, model, options = sys.argv[2:5]
print(json.dumps({hello}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    answer = {answer}
    if answer is None:
        break
    print(json.dumps(answer), flush=True)
"""


def stand_in(folder: Path, answer: str, hello: str = '{"version": "peer 1"}') -> PeerMethod:
    """An interpreter that answers every command with an expression of `command`."""
    path = folder / "python"
    path.write_text(PEER.format(python=sys.executable, hello=hello, answer=answer))
    path.chmod(0o755)
    return PeerMethod(python=str(path))


class Heard(RunListener):
    """Keeps its messages."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.reported: list[BenchRow] = []
        self.rounds: list[tuple[str, int, int]] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def round(self, test: str, done: int, total: int) -> None:
        self.rounds.append((test, done, total))

    def rows(self, rows: Sequence[BenchRow]) -> None:
        self.reported += rows


def requested(
    means: PeerMethod | None = None, tests: Sequence[Workload] = TESTS, rounds: int = 2
) -> KernelRun:
    peers = [PeerArgument.of("openvino")] if means else []
    return KernelRun("stories", tests, rounds=rounds, peers=peers, means=means or PeerMethod())


def test_every_test_has_a_row_with_its_figures() -> None:
    heard = Heard()
    rows = run(requested(), (), heard)
    assert [row.test for row in rows] == ["pp24", "tg3", "tg2 b2"]
    assert heard.reported == rows and heard.warnings == []
    begun = list(dict.fromkeys(heard.rounds))
    assert begun == [(t.name, 2 * i + r, 6) for i, t in enumerate(TESTS) for r in (0, 1)]
    for row, test in zip(rows, TESTS, strict=True):
        assert len(row.samples_ns) == 2 and row.ratio is None
        assert row.samples_ts[0] == pytest.approx(1e9 * test.timed / row.samples_ns[0], rel=1e-6)
        assert 0 < row.share.least <= row.share.median <= row.share.most
        assert row.gbps > 0 and row.gops > 0 and row.limit_read > 0
        assert row.model_size == (ASSETS / "stories.gguf").stat().st_size
        assert row.model_filename == "assets/stories.gguf" and row.model_type == "llama 2.76M Q8_0"


def test_a_peer_takes_its_turn_and_the_ratio_is_a_rounds(tmp_path: Path) -> None:
    means = stand_in(tmp_path, '{"seconds": 100.0}')
    ours, theirs = run(requested(means, [Workload(gen=3)]))
    assert (theirs.engine, theirs.version, theirs.isa) == ("openvino", "peer 1", ours.isa)
    assert theirs.avg_ts == pytest.approx(0.03)
    assert theirs.ratio is not None
    ratios = sorted(100.0 / (ns / 1e9) for ns in ours.samples_ns)
    assert theirs.ratio.least == pytest.approx(ratios[0], rel=1e-6)
    assert theirs.ratio.most == pytest.approx(ratios[-1], rel=1e-6)


def test_a_peer_is_given_the_same_tokens(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    note = f'open({str(seen)!r}, "a").write(line) and {{"seconds": 1.0}}'
    run(requested(stand_in(tmp_path, note), [*TESTS, Workload(prompt=8, depth=32)], rounds=1))
    lines = [json.loads(line) for line in seen.read_text().splitlines()]
    assert len(lines) == 8  # before each a short one that is not timed
    first, second, third, fourth = lines[1::2]
    vocab = 2048
    assert first == {"do": "prefill", "before": [], "tokens": TESTS[0].make_fresh_prompt(vocab, 0)}
    assert second == {"do": "decode", "prompts": [[1]], "shared": 0, "gen": 3}
    assert third["prompts"] == TESTS[2].make_prompts(vocab)
    assert (len(fourth["before"]), len(fourth["tokens"])) == (32, 8)


@pytest.mark.parametrize(
    "answer, said",
    [
        ('{"error": "no such quantisation"}', "openvino: no such quantisation"),
        ("None", "ended without an answer (exit code 0)"),
    ],
)
def test_a_peer_that_fails_is_named_and_left_out(tmp_path: Path, answer: str, said: str) -> None:
    heard = Heard()
    rows = run(requested(stand_in(tmp_path, answer), TESTS[:1]), (), heard)
    assert [row.engine for row in rows] == ["flyweight"]
    assert len(heard.warnings) == 1 and said in heard.warnings[0]
    assert heard.warnings[0].endswith("left out")


def test_a_peer_that_cannot_read_the_file_is_left_out(tmp_path: Path) -> None:
    heard = Heard()
    means = stand_in(tmp_path, "None", '{"error": "Unsupported quantization type"}')
    rows = run(requested(means, TESTS[:1]), (), heard)
    assert [row.engine for row in rows] == ["flyweight"]
    assert heard.warnings == ["openvino: Unsupported quantization type; it is left out"]


def test_a_peer_that_cannot_begin_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[PeerProcess] = []
    close = PeerProcess.close

    def noted(child: PeerProcess) -> None:
        close(child)
        closed.append(child)

    monkeypatch.setattr(PeerProcess, "close", noted)
    means = stand_in(tmp_path, "None", '{"error": "no"}')
    with pytest.raises(PeerError, match="openvino: no"):
        open_peer(PeerArgument("openvino"), "none.gguf", ROOM, means)
    (process,) = [child.process for child in closed]
    assert process.returncode is not None and process.stdout is not None and process.stdout.closed


@pytest.mark.parametrize(
    "name, package",
    [
        ("openvino", "openvino-genai"),
        ("llama.cpp", "llama-cpp-python"),
        ("transformers", "transformers torch"),
    ],
)
def test_a_peer_that_is_not_installed_is_refused_with_its_package(
    tmp_path: Path, name: str, package: str
) -> None:
    """The real child, run by an interpreter that sees the standard library only."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    for programs in (None, {}):
        with pytest.raises(ConfigError, match=f"pip install {package}") as refused:
            open_peer(
                PeerArgument(name),
                "none.gguf",
                ROOM,
                PeerMethod(python=str(python), programs=programs),
            )
        hinted = name == "llama.cpp" and programs is not None
        assert ("--vs-binary" in str(refused.value)) == hinted


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "llama-cpp",
            "vs = 'llama-cpp' is not a known peer; allowed: llama.cpp, openvino, transformers, "
            "ik_llama.cpp",
        ),
        ("openvino=/none.gguf", "there is not a file '/none.gguf'"),
        ("llama.cpp 'x", "No closing quotation"),
        ("", "vs = '' is not a known peer"),
    ],
)
def test_peers_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PeerArgument.of(text)
    assert said in str(refused.value)


def test_a_peer_may_have_flags_and_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "f16.gguf"
    file.touch()
    assert PeerArgument.of("llama.cpp -fa off").label == "llama.cpp -fa off"
    assert PeerArgument.of(f"openvino={file}") == PeerArgument("openvino", str(file))


def test_finished_tests_are_passed_over() -> None:
    heard = Heard()
    done = run(requested(tests=TESTS[:2], rounds=1))
    assert run(requested(rounds=1), done, heard)[0].test == "tg2 b2"
    assert {name for name, _, _ in heard.rounds} == {"tg2 b2"}
    assert run(requested(tests=TESTS[:2], rounds=1), done) == []
    with_peer = KernelRun("stories", TESTS[:2], peers=[PeerArgument("openvino")])
    known = {row.key for row in done}
    assert (
        find_missing(with_peer, known, RunListener()) == TESTS[:2]
    )  # the peer's rows are not there yet


LLAMA_BENCH = """#!{python}
import json, pathlib, sys
open({seen!r}, "a").write(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + chr(10))
print("warning: something")
print(json.dumps(dict(build_commit="c0ffee", samples_ns=[2_000_000_000], t_tg=4.0)))
"""


def test_llama_bench_itself_may_be_the_peer(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    for name in ("llama-bench", "llama-batched-bench"):
        program = tmp_path / name
        program.write_text(LLAMA_BENCH.format(python=sys.executable, seen=str(seen)))
        program.chmod(0o755)
    peer = open_peer(
        PeerArgument.of("llama.cpp -fa off"),
        "m.gguf",
        ROOM,
        PeerMethod(2, programs={"llama.cpp": str(tmp_path)}),
    )
    assert peer.measure(Workload(gen=9, depth=64), 512, 0).seconds == 2.0
    assert peer.version == "llama.cpp c0ffee"
    assert peer.measure(Workload(gen=9, seqs=4, shared=100), 512, 0).seconds == 4.0
    single, batched = [json.loads(line) for line in seen.read_text().splitlines()]
    assert single == [
        "llama-bench", "-r", "1", "-p", "0", "-n", "9", "-d", "64", "-o", "jsonl",
        "-m", "m.gguf", "-t", "2", "-fa", "off",
    ]  # fmt: skip
    assert batched[:7] == ["llama-batched-bench", "-npp", "100", "-ntg", "9", "-npl", "4"]
    assert {"-pps", "-kvu"} <= set(batched)


IK_BENCH = """#!{python}
import json, sys
open({seen!r}, "a").write(json.dumps(sys.argv[1:]) + chr(10))
print("======= repacking")
print(json.dumps([dict(build_commit="c0ffee", samples_ns=[3_000_000_000])], indent=2))
"""


def test_ik_llama_cpp_gets_its_own_options(tmp_path: Path) -> None:
    seen, program = tmp_path / "seen", tmp_path / "llama-bench"
    program.write_text(IK_BENCH.format(python=sys.executable, seen=str(seen)))
    program.chmod(0o755)
    means = PeerMethod(2, programs=name_programs(["/other", f"ik_llama.cpp={program}"]))
    assert means.programs == {"llama.cpp": "/other", "ik_llama.cpp": str(program)}
    peer = open_peer(PeerArgument.of("ik_llama.cpp -rtr 1"), "m.gguf", ROOM, means)
    assert peer.measure(Workload(prompt=9), 512, 0).seconds == 3.0
    peer.measure(Workload(gen=9, depth=64), 512, 0)
    assert peer.version == "ik_llama.cpp c0ffee"
    prompt, deep = [json.loads(line) for line in seen.read_text().splitlines()]
    rest = ["-o", "json", "-m", "m.gguf", "-t", "2", "-rtr", "1"]
    assert prompt == ["-r", "1", "-p", "9", "-n", "0", *rest]
    assert deep == ["-r", "1", "-p", "0", "-n", "0", "-gp", "64,9", *rest]
    for beyond in (Workload(prompt=9, depth=64), Workload(gen=9, seqs=2)):
        with pytest.raises(PeerError, match="its llama-bench"):
            peer.measure(beyond, 512, 0)


def test_ik_llama_cpp_that_cannot_read_a_file_is_left_out(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\necho [\necho error: failed to load model >&2\nexit 1\n")
    program.chmod(0o755)
    means = PeerMethod(programs={"ik_llama.cpp": str(program)})
    peer = open_peer(PeerArgument("ik_llama.cpp"), "m.gguf", ROOM, means)
    with pytest.raises(PeerError, match="llama-bench says error: failed to load model"):
        peer.measure(Workload(gen=1), 512, 0)
    program.write_text("#!/bin/sh\necho [\necho nothing\n")
    with pytest.raises(PeerError, match="says nothing"):
        peer.measure(Workload(gen=1), 512, 0)


def test_ik_llama_cpp_needs_its_program() -> None:
    with pytest.raises(ConfigError, match="needs --vs-binary ik_llama"):
        open_peer(PeerArgument("ik_llama.cpp"), "m.gguf", ROOM, PeerMethod(programs={}))
    with pytest.raises(PeerError, match="only its llama-bench"):  # where programs cannot be peers
        open_peer(PeerArgument("ik_llama.cpp"), "m.gguf", ROOM, PeerMethod())


def test_a_program_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the path of llama"):
        open_peer(
            PeerArgument("llama.cpp"),
            "m.gguf",
            ROOM,
            PeerMethod(programs={"llama.cpp": str(tmp_path / "llama-bench")}),
        )
    failing = tmp_path / "llama-bench"
    failing.write_text("#!/bin/sh\necho error: failed to load model >&2\nexit 1\n")
    failing.chmod(0o755)
    peer = open_peer(
        PeerArgument("llama.cpp"), "m.gguf", ROOM, PeerMethod(programs={"llama.cpp": str(failing)})
    )
    with pytest.raises(PeerError, match="llama-bench says error: failed to load model"):
        peer.measure(Workload(gen=1), 512, 0)
    with pytest.raises(PeerError, match="no llama-batched-bench next to"):
        peer.measure(Workload(gen=1, seqs=2), 512, 0)


def test_busy_neighbours_end_with_the_block() -> None:
    with start_neighbours(1) as (pid,):
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_our_own_time_is_not_others(tmp_path: Path) -> None:
    """Figures of a made-up /proc: 10 s of others, then 13 s with one of them ours."""
    (tmp_path / "7").mkdir()

    def written(user: int, child: int) -> None:
        (tmp_path / "stat").write_text(f"cpu  {user} 0 0 50 0 0 0 0 0 0\ncpu0 1\n")
        fields = " ".join(["S", *["0"] * 10, str(child), "0", "0"])
        (tmp_path / "7" / "stat").write_text(f"7 (a name) with) {fields}\n")

    ticks = os.sysconf("SC_CLK_TCK")
    written(1000 * ticks, 0)
    around = OtherProcesses([7], tmp_path)
    before = around._others
    written(1003 * ticks, 1 * ticks)
    assert read_process_seconds(7, tmp_path) == 1.0
    assert around._read() - before == pytest.approx(2.0, abs=0.5)  # our own seconds move on
