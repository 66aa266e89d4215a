"""Malformations that ended other engines, by what they did there, where no other test has them: the
table is docs/hostile-files.md.
"""

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from filewriters import write_gguf
from flyweight.describe import describe
from flyweight.errors import CheckpointError
from tiny_model import CONFIG, tiny_folder

ROOT = Path(__file__).parents[2]
KEYS = (
    *CONFIG, "head_dim", "sliding_window", "rope_scaling", "rope_parameters", "attention_bias",
    "layer_types", "num_local_experts", "quantization_config", "partial_rotary_factor",
    "torch_dtype", "pad_token_id",
)  # fmt: skip
WILD = [
    0, -1, 1, 3, 2**31, 2**63, 10**18, 1.5, 1e308, float("nan"), float("inf"),
    True, None, "4", "", [], [4], {}, "__import__('os').system('touch mark')",
]  # fmt: skip
CODE = "raise SystemExit('run')"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("wild") / "m")


@pytest.mark.parametrize("key", KEYS)
def test_a_config_of_wild_values(key: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No heads, layers beyond counting, text for numbers, code for names: a line, or a model."""
    monkeypatch.chdir(tiny)
    config = CONFIG | {"bos_token_id": 480}
    for value in WILD:
        (tiny / "config.json").write_text(json.dumps(config | {key: value}))
        try:
            describe(tiny).checkpoint.close()
        except CheckpointError as error:
            assert str(error).isprintable() and len(str(error)) < 700, (key, value)
        except Exception as error:
            raise AssertionError(f"{key} = {value!r}: {error!r}") from error
    assert not (tiny / "mark").exists()


@pytest.mark.parametrize(
    "heads, kv, hidden", [(0, 0, 32), (4, 0, 32), (3, 2, 32), (4, 3, 32), (5, 5, 32), (4, 2, 0)]
)
def test_heads_that_do_not_divide(heads: int, kv: int, hidden: int, tiny: Path) -> None:
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv, "hidden_size": hidden}
    (tiny / "config.json").write_text(json.dumps(CONFIG | shape))
    with pytest.raises(CheckpointError):
        describe(tiny)


@pytest.mark.parametrize("count", [2**20, 2**31, 2**32 - 1])
def test_layers_beyond_counting(count: int, tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": count,
        "llama.context_length": 128,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": 512,
    }
    start = time.process_time()
    with pytest.raises(CheckpointError, match=r"block_count|num_hidden_layers|missing"):
        describe(write_gguf(tmp_path / "m.gguf", metadata, {}))
    assert time.process_time() - start < 20


def test_code_next_to_a_model_is_not_run(tmp_path: Path) -> None:
    """auto_map, trust_remote_code, and modules by every name that other loaders look for."""
    more = {
        "auto_map": {"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": "modeling_x.X"},
        "trust_remote_code": True,
        "custom_pipelines": {"x": {"impl": "pipeline.X"}},
    }
    folder = tiny_folder(
        tmp_path / "m", more, auto_map={"AutoTokenizer": ["tokenization_x.X", None]}
    )
    for name in ("configuration_x", "modeling_x", "tokenization_x", "pipeline", "__init__"):
        (folder / f"{name}.py").write_text(CODE)
    describe(folder)


@pytest.mark.parametrize("name", ["hidden_act", "model_type", "architectures", "torch_dtype"])
def test_names_are_looked_up_and_not_evaluated(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    value = [code] if name == "architectures" else code
    try:
        describe(tiny_folder(tmp_path / "m", {name: value}))
    except CheckpointError as error:
        assert name in str(error)
    assert not mark.exists()


UNCHECKED = """
import sys, tempfile
from pathlib import Path
from flyweight.errors import CheckpointError
from flyweight.weights.gguf import read_gguf
from flyweight.weights.safetensors import read_safetensors
import test_hostile_gguf, test_hostile_safetensors
assert not __debug__ or sys.exit("asserts are on")
path = Path(tempfile.mkdtemp()) / "model"
for module, read in ((test_hostile_gguf, read_gguf), (test_hostile_safetensors, read_safetensors)):
    for name, (raw, expected) in module.ATTACKS.items():
        path.write_bytes(raw)
        try:
            read(path)
        except CheckpointError as error:
            if expected in str(error):
                continue
        sys.exit(f"{name} is not refused")
print("all refused")
"""


def test_refusals_are_no_asserts() -> None:
    """`python -O` leaves asserts out."""
    paths = [str(Path(__file__).parent), *(p for p in sys.path if p)]
    done = subprocess.run(
        [sys.executable, "-O", "-c", UNCHECKED],
        capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.stdout == "all refused\n", done.stdout + done.stderr[-500:]


def calls(tree: ast.Module) -> Iterator[str]:
    """Names that are called, `x.y` as `x.y`, and modules that are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def test_nothing_in_the_package_runs_what_it_reads() -> None:
    """No eval, no pickle, and one place where templates are made: in the immutable sandbox."""
    banned = {"eval", "exec", "__import__", "pickle", "marshal", "shelve", "dill", "cloudpickle",
              "os.system", "np.load", "numpy.load", "yaml.load", "torch.load"}  # fmt: skip
    strays: list[str] = []
    environments: set[str] = set()
    for path in sorted((ROOT / "src" / "flyweight").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        strays += [f"{path.name}: {name}" for name in calls(ast.parse(text)) if name in banned]
        found = re.findall(r"\b\w*Environment\b|jinja2\.Template\b", text)
        environments |= {f"{path.name}: {name}" for name in found}
    assert strays == []
    assert environments == {"sandbox.py: ImmutableSandboxedEnvironment"}


def test_the_sandbox_is_one_without_known_holes() -> None:
    """3.1.6 closed the last that are public."""
    assert '"jinja2>=3.1.6"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_numbers_past_a_vocabulary_cannot_be_requested(tiny: Path) -> None:
    """End ids past the rows of the embedding are never drawn, and never looked up."""
    (tiny / "config.json").write_text(json.dumps(CONFIG | {"eos_token_id": [481, 2**31 - 1]}))
    found = describe(tiny)
    assert max(found.stop_ids) < found.spec.vocab
    assert np.iinfo(np.int32).max in found.checkpoint.eos_ids
