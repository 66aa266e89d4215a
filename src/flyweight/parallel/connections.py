"""The groups that a rank takes part in, and the model that it computes with them.

Invariant: all ranks make their groups in the same order.  Imports torch.
"""

from datetime import timedelta
from typing import Any

import numpy as np

from flyweight.engine.runner import Model
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.models.stages import DecoderStage
from flyweight.ops.base import Comm, Ops
from flyweight.parallel.comm import FOREVER, KeyStore, RankGroup, StageLink
from flyweight.parallel.pipeline import PipelineStage
from flyweight.parallel.rendezvous import SharedKeys
from flyweight.parallel.sharding import RankPlace
from flyweight.spec import ModelSpec

SOON = timedelta(seconds=60)  # for ranks that have loaded


class RankConnections:
    """Of one rank, on a host of this `address`; `keys` are where ranks find each other.  `everyone`
    are all ranks, `tensor` those of its stage.
    """

    def __init__(self, keys: SharedKeys, place: RankPlace, address: str) -> None:
        """Raises `ConfigError` or `RankLost` where a rank has ended meanwhile.  Rank 0 is the last
        to connect.
        """
        patience = SOON if place.rank == 0 else FOREVER
        self.place = place
        store = KeyStore(keys, "ranks", patience)
        self.everyone = RankGroup(store, place.rank, place.size, patience, address)
        self.tensor: Comm = self.everyone
        if len(place.stages) > 1:
            self.tensor = SingleProcess()
            if place.tensor > 1:
                store = KeyStore(keys, f"stage-{place.stage.index}", patience)
                mine = place.shard.rank, place.tensor
                self.tensor = RankGroup(store, *mine, patience, address)
        self.everyone.broadcast(np.zeros(0, np.int32) if place.rank == 0 else None)  # all are here

    def make_model(self, ops: Ops, spec: ModelSpec, weights: Any, length: int) -> Model:
        """The rank's part of a model, that runs `length` tokens."""
        parts = Parts(ops, self.tensor, spec, weights)
        if len(self.place.stages) == 1:
            return Decoder(parts, length)
        stage = self.place.stage
        link = StageLink(self.everyone, self.place.column, stage.index)
        return PipelineStage(DecoderStage(parts, length, stage), link)
