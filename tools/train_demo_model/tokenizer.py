"""Trains the vocabulary: byte-level BPE over the excerpt's training stories, GPT-2's word pattern.

Byte-level means that any text can be written; GPT-2's pattern is one that GGUF readers know by
name (`tokenizer.ggml.pre = "gpt-2"`). Piece 0 is `<|endoftext|>`: it begins and ends every story.
"""

import argparse
from pathlib import Path

from stories import SEPARATOR, split_excerpt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def train(stories: list[str], pieces: int) -> Tokenizer:
    """A tokenizer of exactly `pieces` pieces, the 256 bytes and the end marker among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(stories, trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--excerpt", type=Path, required=True)
    parser.add_argument("--pieces", type=int, default=2048)
    parser.add_argument("--out", type=Path, required=True, help="tokenizer.json to write")
    args = parser.parse_args()
    training, held_out = split_excerpt(args.excerpt)
    tokenizer = train(training, args.pieces)
    tokenizer.save(str(args.out))
    size = sum(len(story.encode()) for story in held_out)
    count = sum(len(ids.ids) for ids in tokenizer.encode_batch(held_out))
    print(f"{tokenizer.get_vocab_size()} pieces; held out: {size / count:.3f} bytes per token")


if __name__ == "__main__":
    main()
