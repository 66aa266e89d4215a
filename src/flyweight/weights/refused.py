"""What is known of architectures that are not supported: why, or which supported one is the same.

Invariant: a hint names a family only where its files are read and computed in the same way; names
that merely look alike give no hint.  Takes the names of config.json and of GGUF files.
"""

import re

# Layers that carry a state from token to token: state-space models, linear attention, short
# convolutions.  Names in lower case, letters and digits only.
RECURRENT = re.compile(
    "a?rwkv.*|mamba.*|falconmamba|falconh1|jamba|bamba|zamba.*|nemotronh.*|granite(moe)?hybrid"
    "|qwen3next|qwen35.*|kimilinear|lfm2.*|recurrentgemma|griffin|plamo2|minimax(text01|m1)?"
    "|olmohybrid|xlstm|retnet|hgrn.*|deltanet"
)
ENCODERS = re.compile(".*(bert|nomic|xlmroberta|roberta|electra|t5encoder).*")
SAME = {"aquila": "llama", "xverse": "llama"}  # config.json's model_type


def explain(name: object) -> str:
    """The end of an error's line, "" where nothing is known."""
    plain = re.sub("[^a-z0-9]", "", str(name)[:80].lower())
    if RECURRENT.fullmatch(plain):
        return "; its recurrent layers need state slots, not built yet"
    if ENCODERS.fullmatch(plain):
        return "; encoders (BERT, Nomic and the like) are out of scope"
    if plain in SAME:
        return f"; its files are those of {SAME[plain]!r}: say so in config.json"
    return ""
