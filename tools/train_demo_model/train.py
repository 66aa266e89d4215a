"""Trains the embedded model, or its draft, on the excerpt and the sampled shards; one CPU thread.

The text comes in portions: first the excerpt alone, then one portion per shard with some excerpt
stories mixed in. A portion's batches depend on the seed and its number only, so a run is the same
whether the shards were all there or `--follow` waited for each, and whether or not it was resumed.
A row is one story between two end markers: short rows keep attention cheap and every story clean.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from muon import Muon
from rotary import fill
from stories import SEPARATOR, read_stories, split_excerpt
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from model import SHAPES, Llama, Shape

IGNORE = -100


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read, in which order; `portion(k)` is a pure function of this and k."""

    excerpt: list[list[int]]
    shards: Path
    first_shard: int
    shard_count: int
    excerpt_portions: int  # portions of half the excerpt each, before the first shard
    excerpt_per_shard: int  # excerpt stories mixed into each shard's portion
    follow: bool
    tokenizer: Tokenizer
    tokens_per_batch: int
    context: int
    seed: int

    @property
    def portions(self) -> int:
        return self.excerpt_portions + self.shard_count

    def portion(self, number: int) -> list[tuple[Tensor, Tensor]]:
        """Batches (ids, targets) of one portion, each [stories, time]."""
        shard, half = number - self.excerpt_portions, len(self.excerpt) // 2
        if shard < 0:
            stories = self._excerpt(number * half, half)
        else:
            before = self.first_shard + shard  # portions, their share of the excerpt read
            first = self.excerpt_portions * half + before * self.excerpt_per_shard
            stories = self._excerpt(first, self.excerpt_per_shard) + self._shard(shard)
        rng = random.Random(f"{self.seed} portion {self.first_shard + number}")
        return self._batches(stories, rng)

    def _excerpt(self, first: int, count: int) -> list[list[int]]:
        """Stories first, first + 1, ... of the endless row of shuffled epochs."""
        size = len(self.excerpt)
        taken: list[list[int]] = []
        for epoch in range(first // size, (first + count - 1) // size + 1):
            order = random.Random(f"{self.seed} epoch {epoch}").sample(self.excerpt, size)
            taken += order[max(0, first - epoch * size) : max(0, first + count - epoch * size)]
        return taken

    def _shard(self, number: int) -> list[list[int]]:
        path = self.shards / f"shard-{self.first_shard + number:05d}.txt"
        while self.follow and not path.exists():
            time.sleep(5)
        return encode(self.tokenizer, read_stories(path), self.context)

    def _batches(self, stories: list[list[int]], rng: random.Random) -> list[tuple[Tensor, Tensor]]:
        """Stories of like length together, so that little is padding; batches in random order."""
        stories = sorted(stories, key=lambda story: len(story) * rng.uniform(0.97, 1.03))
        batches: list[list[list[int]]] = [[]]
        for story in stories:
            longest = max([len(story), *map(len, batches[-1])])
            if batches[-1] and longest * (len(batches[-1]) + 1) > self.tokens_per_batch:
                batches.append([])
            batches[-1].append(story)
        rng.shuffle(batches)
        return [pad(batch) for batch in batches]


def encode(tokenizer: Tokenizer, stories: list[str], context: int) -> list[list[int]]:
    """Each story between end markers, cut to one token more than the context."""
    end = tokenizer.token_to_id(SEPARATOR)
    return [[end, *e.ids, end][: context + 1] for e in tokenizer.encode_batch(stories)]


def pad(stories: list[list[int]]) -> tuple[Tensor, Tensor]:
    time_ = max(map(len, stories)) - 1
    ids = torch.zeros(len(stories), time_, dtype=torch.long)
    targets = torch.full((len(stories), time_), IGNORE)
    for row, story in enumerate(stories):
        ids[row, : len(story) - 1] = torch.tensor(story[:-1])
        targets[row, : len(story) - 1] = torch.tensor(story[1:])
    return ids, targets


def held_out_loss(model: Llama, stories: list[list[int]]) -> float:
    """Mean negative log-likelihood per token in nats, end markers counted."""
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(stories), 8):
            ids, targets = pad(stories[start : start + 8])
            logits = model(ids).float().flatten(0, 1)
            total += F.cross_entropy(logits, targets.flatten(), reduction="sum").item()
            count += int((targets != IGNORE).sum())
    return total / count


def rate(progress: float, step: int, args: argparse.Namespace) -> float:
    """Warm-up over the first steps, flat, then a straight line to zero."""
    return min(1.0, (step + 1) / args.warmup, (1.0 - progress) / args.decay)


class Trainer:
    """The model, its optimisers and the place in the plan; a checkpoint is this object's state."""

    def __init__(self, shape: Shape, plan: Plan, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.model, self.plan, self.args = Llama(shape, torch.bfloat16), plan, args
        model = self.model
        if args.init:
            fill(model, args.init)
        whole = [[model.attn_out.shape[1]], [model.down.shape[1]]]
        parts = [list(shape.qkv), whole[0], [shape.hidden] * 2, whole[1]]
        groups = [
            {"params": [weight], "parts": part}
            for weight, part in zip(model.matrices(), parts, strict=True)
        ]
        rest = [model.embed, model.attn_norm, model.ffn_norm, model.out_norm]
        self.optimisers = [
            Muon(groups, lr=args.lr),
            torch.optim.Adam(rest, lr=args.embed_lr, betas=(0.9, 0.95), eps=1e-10),
        ]
        # Fused element-wise passes: 1.7 x the tokens per second, for two minutes at the start.
        self.loss = torch.compile(self._loss, dynamic=True)
        self.portion = self.batch = self.step = self.tokens = 0
        self.seconds, self.saved = 0.0, time.monotonic()

    def run(self, held_out: list[list[int]]) -> None:
        while self.portion < self.plan.portions:
            batches = self.plan.portion(self.portion)
            losses = list(self._portion(batches))
            self.portion, self.batch = self.portion + 1, 0
            last = self.portion == self.plan.portions
            report = {"portion": self.portion, "step": self.step, "tokens": self.tokens}
            report |= {"seconds": round(self.seconds), "loss": round(sum(losses) / len(losses), 4)}
            if last or self.portion % self.args.eval_every == 0:
                report["held_out"] = round(held_out_loss(self.model, held_out), 4)
            print(json.dumps(report), flush=True)
        self.save()

    def _portion(self, batches: list[tuple[Tensor, Tensor]]) -> Iterator[float]:
        while self.batch < len(batches):
            start = time.process_time()
            done = (self.portion + self.batch / len(batches)) / self.plan.portions
            yield self._step(*batches[self.batch], rate(done, self.step, self.args))
            self.batch, self.step = self.batch + 1, self.step + 1
            self.seconds += time.process_time() - start
            if time.monotonic() - self.saved > self.args.save_seconds:
                self.save()

    def _step(self, ids: Tensor, targets: Tensor, factor: float) -> float:
        loss = self.loss(ids, targets)
        loss.backward()
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = factor * group.setdefault("peak", group["lr"])
            optimiser.step()
            optimiser.zero_grad()
        self.tokens += int((targets != IGNORE).sum())
        return loss.item()

    def _loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(ids).float().flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE)

    def save(self) -> None:
        place = {k: getattr(self, k) for k in ("portion", "batch", "step", "tokens", "seconds")}
        state = {
            "shape": self.model.shape.to_dict(),
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "place": place,
        }
        partial = self.args.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.args.checkpoint)
        self.saved = time.monotonic()

    def resume(self) -> None:
        state = torch.load(self.args.checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        for name, value in state["place"].items():
            setattr(self, name, value)


def load_model(checkpoint: Path, low: torch.dtype = torch.float32) -> Llama:
    state = torch.load(checkpoint, weights_only=True)
    model = Llama(Shape(**state["shape"]), low)
    model.load_state_dict(state["model"])
    return model.eval()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(SHAPES))
    parser.add_argument("--excerpt", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, help="resumed if it is there")
    parser.add_argument("--shards", type=Path, default=Path("shards"))
    parser.add_argument("--first-shard", type=int, default=0)
    parser.add_argument("--shard-count", type=int, default=0)
    parser.add_argument("--init", type=Path, help="exported file to begin from, not from nothing")
    parser.add_argument("--follow", action="store_true", help="wait for shards not there yet")
    parser.add_argument("--excerpt-portions", type=int, default=4)
    parser.add_argument("--excerpt-per-shard", type=int, default=100)
    parser.add_argument("--tokens-per-batch", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=0.02, help="of the matrices (Muon)")
    parser.add_argument("--embed-lr", type=float, default=0.01, help="of the rest (Adam)")
    parser.add_argument("--warmup", type=int, default=50, help="steps")
    parser.add_argument("--decay", type=float, default=0.4, help="last part of the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-every", type=int, default=4, help="portions")
    parser.add_argument("--save-seconds", type=float, default=120.0)
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    shape = SHAPES[args.model]
    training, held_out = (
        encode(tokenizer, stories, shape.context) for stories in split_excerpt(args.excerpt)
    )
    plan = Plan(
        excerpt=training,
        shards=args.shards,
        first_shard=args.first_shard,
        shard_count=args.shard_count,
        excerpt_portions=args.excerpt_portions,
        excerpt_per_shard=args.excerpt_per_shard,
        follow=args.follow,
        tokenizer=tokenizer,
        tokens_per_batch=args.tokens_per_batch,
        context=shape.context,
        seed=args.seed,
    )
    trainer = Trainer(shape, plan, args)
    if args.checkpoint.exists():
        trainer.resume()
        print(f"resumed at step {trainer.step}", file=sys.stderr)
    trainer.run(held_out)


if __name__ == "__main__":
    main()
