"""Names of models on the Hugging Face Hub, and which of a repository's files a name means.

Invariant: a choice is whole (every part of a split model) and holds nothing that is not read:
PyTorch's files only where there is nothing else, no other framework's weights.  Knows file names
and sizes only, no network.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from flyweight.errors import CheckpointError, nearest
from flyweight.validation.untrusted import printable, shown
from flyweight.weights.folder import SAFETENSORS, TORCH, Container
from flyweight.weights.formats import FORMATS

PART = "[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
REVISION = "[A-Za-z0-9][A-Za-z0-9._/-]{0,200}"
NAME = re.compile(
    rf"(?:(?:https?://)?(?:hf\.co|huggingface\.co)/)?(?P<repo>{PART}/{PART})"
    rf"(?:@(?P<before>{REVISION}))?(?::(?P<want>[^\s@:\\]{{1,300}}))?(?:@(?P<after>{REVISION}))?"
)
FILES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")  # a path to one of these is no Hub name
UNREAD = (".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
COMPANIONS = (  # what is read with safetensors and PyTorch's files
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "additional_chat_templates/*.jinja",
    "quantize_config.json", "quant_config.json", "hf_quant_config.json",
    "flyweight_passport.json",
)  # fmt: skip
VOCABULARIES = (  # the first of them is read
    "tokenizer.json", "tekken.json", "tokenizer.model", "tiktoken.model", "*.tiktoken",
    "spiece.model", "sentencepiece.bpe.model", "*.spm", "*.model.v*", "vocab.json", "vocab.txt",
)  # fmt: skip
NOT_MODELS = re.compile(r"mmproj|imatrix|(^|[-_.])vocab([-_.]|$)", re.I)
SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.I)
LABEL = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d(?:_[A-Za-z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|F32))"
    r"(?![A-Za-z0-9])",
    re.I,
)
# From the one to take first; each with the kinds of tensors it is made of.
PREFERENCE: Mapping[str, tuple[str, ...]] = {
    "Q4_K_M": ("q4_k", "q6_k"),
    "Q5_K_M": ("q5_k", "q6_k"),
    "Q6_K": ("q6_k",),
    "Q8_0": ("q8_0",),
    "Q4_K_S": ("q4_k", "q5_k", "q6_k"),
    "Q5_K_S": ("q5_k", "q6_k"),
    "Q4_0": ("q4_0", "q6_k"),
    "Q4_1": ("q4_1", "q6_k"),
    "Q5_0": ("q5_0", "q6_k"),
    "Q5_1": ("q5_1", "q6_k"),
    "IQ4_XS": ("iq4_xs", "q5_k", "q6_k"),
    "IQ4_NL": ("iq4_nl", "q5_k", "q6_k"),
    "Q3_K_L": ("q3_k", "q5_k", "q6_k"),
    "Q3_K_M": ("q3_k", "q4_k", "q5_k", "q6_k"),
    "Q3_K_S": ("q3_k", "q6_k"),
    "Q2_K": ("q2_k", "q3_k", "q4_k", "q6_k"),
    "MXFP4": ("mxfp4", "q8_0"),
    "BF16": ("bf16",),
    "F16": ("f16",),
    "F32": ("f32",),
}
LISTED = 8


@dataclass(frozen=True, slots=True)
class HubName:
    """`repo` is `org/name`; `want` a file, a quantisation or nothing; `revision` a branch, a tag or
    a commit, None for main.
    """

    repo: str
    want: str = ""
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo + (f":{self.want}" if self.want else "")


def name_checkpoint(path: Path) -> str:
    """The name of a file or folder, to be shown; of a folder in the Hub's cache, which is named
    after a commit, that of its repository.
    """
    repo = path.parent.parent.name
    if path.parent.name == "snapshots" and repo.startswith("models--"):
        return repo.removeprefix("models--").replace("--", "/", 1)
    return path.name


@dataclass(frozen=True, slots=True)
class FileChoice:
    """`weights` in order, the first is the one to open; `index` lists more of them, once it is
    read.  `what` they are and `why` these, for people.
    """

    weights: tuple[str, ...]
    companions: tuple[str, ...] = ()
    index: str = ""
    what: str = "safetensors"
    why: str = ""


def parse_hub_name(text: str, revision: str | None = None) -> HubName | None:
    """The Hub name in a text, if it can be one: `org/name[:file-or-quant][@revision]`."""
    found = NAME.fullmatch(text)
    if found is None or (not found["want"] and found["repo"].endswith(FILES)):
        return None
    given = revision or found["after"] or found["before"]
    if given and (not re.fullmatch(REVISION, given) or ".." in given):
        raise CheckpointError(
            f"revision = {shown(given)} is not valid; allowed: a branch, a tag or a commit"
        )
    return HubName(found["repo"], found["want"] or "", given)


def choose(name: HubName, files: Mapping[str, int], room: int | None = None) -> FileChoice:
    """The files a name means, of `files` with their sizes; `room` is the memory they may take when
    the choice is ours.  Raises `CheckpointError` that lists what there is.
    """
    groups = group_gguf_files(files)
    if name.want:
        return _choose_by_name(name, files, groups)
    if "config.json" in files and (tensors := _choose_safetensors(name, files)):
        return tensors
    if groups:
        return choose_gguf(name, files, room)
    if "config.json" in files and (tensors := _choose_published(files, TORCH)):
        return tensors
    raise CheckpointError(f"{name}: {_explain_nothing(files)}")


def choose_gguf(name: HubName, files: Mapping[str, int], room: int | None) -> FileChoice:
    """The first quantisation of `PREFERENCE` that we read and that fits."""
    groups = group_gguf_files(files)
    by_label: dict[str, list[str]] = {}
    for stem in groups:
        by_label.setdefault(find_label(stem), []).append(stem)
    known = [one for one in PREFERENCE if one in by_label and is_readable(one)]
    sizes = {one: sum(files[f] for f in groups[by_label[one][0]]) for one in known}
    fitting = [one for one in known if room is None or sizes[one] <= room]
    if known and not fitting:
        least = min(known, key=sizes.__getitem__)
        raise CheckpointError(
            f"{name}: no quantisation fits the {_format_size(room or 0)} allowed; the smallest is "
            f"{name.repo}:{least} of {_format_size(sizes[least])}"
        )
    if not fitting and len(groups) > 1:
        raise CheckpointError(f"{name}: which of its files? {_list(groups, files)}")
    stems = by_label[fitting[0]] if fitting else list(groups)
    if len(stems) > 1:
        raise CheckpointError(f"{name}: which of its files? {_list(stems, files)}")
    chosen = groups[stems[0]]
    what = find_label(stems[0]) or "GGUF"
    others = f"the first that fits of {', '.join(known)}" if len(known) > 1 else "the only one"
    return FileChoice(chosen, what=what, why=others if len(groups) > 1 else "the only one")


def group_gguf_files(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Models in GGUF files, by name without `.gguf` and without the numbers of parts."""
    found: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.lower().endswith(".gguf") and not NOT_MODELS.search(PurePosixPath(file).name):
            parts = SPLIT.fullmatch(file)
            found.setdefault(parts["stem"] if parts else file[: -len(".gguf")], []).append(file)
    return {stem: tuple(parts) for stem, parts in found.items() if _is_whole(parts)}


def find_label(stem: str) -> str:
    """`Q4_K_M` of a file's name, or of its folder's; empty when it says none."""
    path = PurePosixPath(stem)
    for text in (path.name, path.parent.name):
        if found := LABEL.findall(text):
            return str(found[-1]).upper()
    return ""


def is_readable(one: str) -> bool:
    """Whether we read every kind of tensor this quantisation is made of."""
    return all(kind in FORMATS for kind in PREFERENCE[one])


def list_companions(files: Iterable[str]) -> tuple[str, ...]:
    """Config and vocabulary, as far as they are there."""
    words = list_vocabulary_files(files)
    known = (*COMPANIONS, *words)
    return tuple(f for f in sorted(files) if any(fnmatchcase(f, one) for one in known))


def list_vocabulary_files(files: Iterable[str]) -> tuple[str, ...]:
    """The files of the vocabulary that the tokenizer will choose."""
    here = sorted(file for file in files if "/" not in file)
    for pattern in VOCABULARIES:
        found = [file for file in here if fnmatchcase(file, pattern)]
        if pattern == "vocab.json" and "merges.txt" not in here:
            continue
        if found:
            return (found[0], "merges.txt") if pattern == "vocab.json" else (found[0],)
    return ()


def _is_whole(parts: Sequence[str]) -> bool:
    first = SPLIT.fullmatch(parts[0])
    return first is None or (int(first["part"]) == 1 and int(first["parts"]) == len(parts))


def _choose_by_name(
    name: HubName, files: Mapping[str, int], groups: Mapping[str, tuple[str, ...]]
) -> FileChoice:
    """What is requested by the name of a file or a quantisation, however it is written."""
    want = name.want.lower()
    if want.endswith(UNREAD):
        raise CheckpointError(f"{name}: {_UNREAD}")
    if want == TORCH.single and (found := _choose_published(files, TORCH)):
        return found
    whole = {file.lower(): stem for stem, parts in groups.items() for file in parts}
    stems = [stem for file, stem in whole.items() if want in (file, PurePosixPath(file).name)]
    stems = stems or [stem for stem in groups if _ends_with(stem, want)]
    if len(set(stems)) == 1:
        one = find_label(stems[0])
        if one in PREFERENCE and not is_readable(one):
            can = [x for x in map(find_label, groups) if x in PREFERENCE and is_readable(x)]
            some = f"; readable here: {', '.join(can)}" if can else ""
            raise CheckpointError(f"{name}: {one} is not read yet{some}")
        return FileChoice(groups[stems[0]], what=one or "GGUF", why="as requested")
    tensors = [f for f in files if f.lower().endswith(".safetensors") and want in f.lower()]
    exact = [f for f in tensors if want in (f.lower(), PurePosixPath(f).name.lower())]
    if want == "safetensors" and (found := _choose_safetensors(name, files)):
        return found
    if len(exact) == 1:
        return FileChoice((exact[0],), list_companions(files), why="as requested")
    if stems:
        raise CheckpointError(f"{name}: which of its files? {_list(sorted(set(stems)), files)}")
    names = [*{find_label(stem) for stem in groups} - {""}, *groups, *tensors]
    hint = nearest(name.want.upper(), names) or nearest(name.want, names)
    some = _list(groups, files) if groups else _explain_nothing(files)
    raise CheckpointError(f"{name}: no file or quantisation {shown(name.want)}{hint}; {some}")


def _ends_with(stem: str, want: str) -> bool:
    """`q4_k_m` ends `Model-Q4_K_M` and `Q4_K_M/Model`, but not `IQ4_K_M`."""
    path = PurePosixPath(stem.lower())
    ends = [path.name, path.parent.name]
    return any(e == want or (e.endswith(want) and e[-len(want) - 1] in "-._") for e in ends)


def _choose_safetensors(name: HubName, files: Mapping[str, int]) -> FileChoice | None:
    """The files `FolderCheckpoint` will open."""
    found = [f for f in files if f.endswith(".safetensors") and "/" not in f]
    if whole := _choose_published(files, SAFETENSORS):
        return whole
    if len(found) > 1:
        raise CheckpointError(f"{name}: which of its files? {', '.join(map(printable, found[:5]))}")
    return FileChoice((found[0],), list_companions(files), why="the only one") if found else None


def _choose_published(files: Mapping[str, int], container: Container) -> FileChoice | None:
    """The files of a kind under their usual names."""
    why = "as its authors published it"
    what = "safetensors" if container is SAFETENSORS else container.single
    if container.single in files:
        return FileChoice((container.single,), list_companions(files), what=what, why=why)
    if container.index in files:
        return FileChoice((), list_companions(files), container.index, what, why)
    return None


def _list(stems: Iterable[str], files: Mapping[str, int]) -> str:
    """Names to choose from, each with what it takes."""
    groups = group_gguf_files(files)
    words = [
        f"{printable(find_label(stem) or stem)[:80]} "
        f"({_format_size(sum(files[f] for f in groups[stem]))})"
        for stem in stems
    ]
    if len(set(words)) < len(words) or len({w.split()[0] for w in words}) < len(words):
        words = [printable(f"{stem}.gguf")[:80] for stem in stems]
    more = f", and {len(words) - LISTED} more" if len(words) > LISTED else ""
    return "it has " + ", ".join(words[:LISTED]) + more


_UNREAD = (
    f"it is not read: of PyTorch's files {TORCH.single} and its parts are; take a repository with "
    "safetensors or GGUF files (often the same name with -GGUF), or convert it with transformers' "
    "save_pretrained(folder, safe_serialization=True)"
)


def _explain_nothing(files: Mapping[str, int]) -> str:
    """Why there is nothing to run."""
    others = [f for f in files if f.endswith((*UNREAD, TORCH.suffix))]
    if others:
        return f"{shown(others[0])} is all there is: {_UNREAD}"
    return "it has no config.json with safetensors or pytorch_model.bin, and no GGUF files"


def _format_size(n: int) -> str:
    return f"{n / (1 << 30):.2f} GiB" if n >= 1 << 30 else f"{n / (1 << 20):.1f} MiB"
