"""What quantisations of both real models cost: the tables and plots of docs/quantization.md.

    FLYWEIGHT_DATA=DIR python bench/quantization.py speeds    # writes both; on a quiet machine
    FLYWEIGHT_DATA=DIR python bench/quantization.py bars      # prints KLD by method and size; slow

Invariant: a block of the page between its two markers is the output of the first command.
Quality is judged on held-out stories, calibration reads others (tests/held_out.py).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from full_models import write_stories, write_stories3m  # noqa: E402
from held_out import CONTEXT, PriceTest, split_stories  # noqa: E402

PAGE, IMAGES = ROOT / "docs" / "quantization.md", ROOT / "docs" / "img"
MODELS = ("stories", "stories3m")
HEAD = ("", "size", "tok/s", "tok/s x16", "TTFT", "perplexity", "KLD", "top 1", "made")


def write_model(name: str, out: Path, data: Path) -> Path:
    """The float32 folder."""
    return write_stories(out) if name == "stories" else write_stories3m(out, data)


def compare(name: str, full: Path, texts: tuple[Path, Path]) -> str:
    """Runs `flyweight eval compare`, which draws the plot; the plot and both tables."""
    calibration, text = map(str, texts)
    plot = str(IMAGES / f"quantization-{name}.svg")
    words = ["eval", "compare", str(full), "--text", text, "--calibration", calibration]
    words += ["--context", str(CONTEXT), "--rounds", "5", "--plot", plot, "--json"]
    command = [sys.executable, "-m", "flyweight", *words]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    document = json.loads(found.stdout)
    kinds = [
        (one["type"], str(one["bytes_per_token"]), f"{one['kld_mean']:.5f}")
        for one in document["kv_cache"]
    ]
    image = f"![KLD and speed of quantisations of {name}](img/{Path(plot).name})\n\n"
    tables = make_table(HEAD, map(list_cells, document["models"]))
    return image + tables + "\n" + make_table(("K/V", "bytes a token", "KLD"), iter(kinds))


def list_cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["problem"]:
        return row["name"], *[""] * 7, row["problem"]
    return (
        f"**{row['name']}**" if row["best"] else row["name"],
        f"{row['bytes'] / 1e6:.2f} MB",
        f"{row['tokens_per_s']:.0f}",
        f"{row['tokens_per_s_16']:.0f}",
        f"{1000 * row['ttft_s']:.0f} ms",
        f"{row['perplexity']:.3f}",
        f"{row['kld_mean']:.5f}",
        f"{100 * row['top1_agreement']:.1f} %",
        f"{row['made_s']:.1f} s",
    )


def measure_bars(test: PriceTest) -> str:
    """KLD of methods in the same container, and of mixed types at the size of one type."""
    rows = [(m, test.measure(test.quantize(m, method=m))) for m in ("int8-dynamic", "int8-static")]
    found = make_table(("8 bits", "KLD"), ((name, f"{kld:.5f}") for name, kld in rows)) + "\n"
    found += make_table(("bits, grid", "rtn", "gptq", "awq"), _list_methods(test)) + "\n"
    return found + make_table(("types", "bytes", "KLD", "mixed", "ratio"), _list_mixed(test))


def _list_methods(test: PriceTest) -> Iterator[tuple[str, ...]]:
    for bits, symmetric in ((4, True), (4, False), (3, True), (3, False)):
        same = {"bits": bits, "symmetric": symmetric, "group_size": 64, "format": "gptq"}
        name = f"{bits}, {'symmetric' if symmetric else 'asymmetric'}"
        klds = [
            test.measure(test.quantize(f"{name} {method}", method=method, **same))
            for method in ("rtn", "gptq", "awq")
        ]
        yield name, *(f"{kld:.4f}" for kld in klds)


def _list_mixed(test: PriceTest) -> Iterator[tuple[str, ...]]:
    files = {f"{kind} for all": test.quantize_uniformly(kind) for kind in ("Q4_0", "IQ4_NL")}
    files |= {f"{kind} for all": test.quantize_uniformly(kind) for kind in ("Q5_0", "Q5_1")}
    files |= {"Q4_K_M": test.quantize("Q4_K_M.gguf", type="Q4_K_M")}
    for name, file in files.items():
        size = file.stat().st_size
        mixed = test.measure(test.quantize(f"mixed {name}.gguf", target_size=size))
        kld = test.measure(file)
        yield name, str(size), f"{kld:.4f}", f"{mixed:.4f}", f"{mixed / kld:.2f}"


def make_table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write_block(marker: str, words: str) -> None:
    """Between `<!-- marker -->` and `<!-- end -->` of the page."""
    page, first = PAGE.read_text("utf-8"), f"<!-- {marker} -->\n"
    head, _, rest = page.partition(first)
    assert rest, f"{PAGE.name} has no {first}"
    PAGE.write_text(head + first + words + rest[rest.index("<!-- end -->") :], "utf-8")


def main(what: str) -> None:
    data = Path(os.environ["FLYWEIGHT_DATA"])
    for name in MODELS:
        with TemporaryDirectory() as folder:
            out = Path(folder)
            full, texts = write_model(name, out / name, data), split_stories(data, out)
            if what == "speeds":
                write_block(f"{what} {name}", compare(name, full, texts))
            else:
                print(f"{name}\n\n{measure_bars(PriceTest(full, *texts, out))}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] not in (["speeds"], ["bars"]):
        sys.exit(__doc__)
    main(sys.argv[1])
