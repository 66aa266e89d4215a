"""A fixture cut for one rank, and loaded: for tests whose ranks are threads."""

from pathlib import Path

from flyweight.models.decoder import Decoder
from flyweight.models.linear import Parts
from flyweight.models.registry import find_family
from flyweight.models.shards import ModelShard, Shard, cut_model
from flyweight.models.stages import DecoderStage, StageRange, cut_stage
from flyweight.ops.base import Comm
from flyweight.ops.cpu import CpuOps
from flyweight.spec import Files
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.load import list_slot_kinds, load


def cut(path: Path, shard: Shard) -> ModelShard:
    checkpoint = open_checkpoint(path)
    whole = read_whole(checkpoint)
    found = cut_model(whole.spec, whole.plan, list_slot_kinds(checkpoint, whole.plan), shard)
    checkpoint.close()
    return found


def read_whole(checkpoint: Checkpoint) -> ModelShard:
    kind = find_family(checkpoint.config)
    spec = kind.read_spec(checkpoint.config)
    files = Files(checkpoint.converted, frozenset(checkpoint.tensors), checkpoint.joined)
    return ModelShard(spec, kind.plan(spec, files))


def load_part(path: Path, comm: Comm, by_expert: bool = False) -> Decoder:
    """One rank's model."""
    ops = CpuOps(1, None, "f32")
    found = cut(path, Shard(comm.rank, comm.size, by_expert))
    weights = load(open_checkpoint(path), found.plan, ops)
    return Decoder(Parts(ops, comm, found.spec, weights), found.spec.context)


def load_stage(path: Path, comm: Comm, stage: StageRange, ops: CpuOps) -> DecoderStage:
    """One rank's part of a stage, cut as `parallel.sharding.cut_description` does."""
    checkpoint = open_checkpoint(path)
    whole = read_whole(checkpoint)
    own = cut_stage(whole.spec, whole.plan, stage)
    kinds = list_slot_kinds(checkpoint, own.plan)
    found = cut_model(own.spec, own.plan, kinds, Shard(comm.rank, comm.size))
    weights = load(checkpoint, found.plan, ops)
    return DecoderStage(Parts(ops, comm, found.spec, weights), found.spec.context, stage)
