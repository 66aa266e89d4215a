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
from flyweight.ops.base import Comm, OnDevice, Ops
from flyweight.parallel.comm import FOREVER, KeyStore, RankGroup, StageLink
from flyweight.parallel.device_comm import DeviceGroup
from flyweight.parallel.pipeline import PipelineStage
from flyweight.parallel.rendezvous import SharedKeys
from flyweight.parallel.sharding import RankPlace
from flyweight.spec import ModelSpec

SOON = timedelta(seconds=60)  # for ranks that have loaded


class RankConnections:
    """Of one rank, on a host of this `address`; `keys` are where ranks find each other.  `everyone`
    are all ranks, `tensor` those of its stage where there are several.
    """

    def __init__(self, keys: SharedKeys, place: RankPlace, address: str) -> None:
        """Raises `ConfigError` or `RankLost` where a rank has ended meanwhile.  Rank 0 is the last
        to connect.
        """
        patience = SOON if place.rank == 0 else FOREVER
        self.place, self._keys = place, keys
        store = KeyStore(keys, "ranks", patience)
        self.everyone = RankGroup(store, place.rank, place.size, patience, address)
        self.tensor: RankGroup | None = self.everyone
        self._device: DeviceGroup | None = None
        if len(place.stages) > 1:
            self.tensor = None
            if place.tensor > 1:
                store = KeyStore(keys, f"stage-{place.stage.index}", patience)
                mine = place.shard.rank, place.tensor
                self.tensor = RankGroup(store, *mine, patience, address)
        self.everyone.broadcast(np.zeros(0, np.int32) if place.rank == 0 else None)  # all are here

    def make_model(self, ops: Ops, spec: ModelSpec, weights: Any, length: int) -> Model:
        """The rank's part of a model, that runs `length` tokens."""
        parts = Parts(ops, self._connect_devices(ops), spec, weights)
        if len(self.place.stages) == 1:
            return Decoder(parts, length)
        stage = self.place.stage
        link = StageLink(self.everyone, self.place.column, stage.index)
        return PipelineStage(DecoderStage(parts, length, stage), link)

    def finish_step(self) -> None:
        """Ends a step that devices may still compute: waits until those of all other ranks have.
        A rank that is lost is noticed here, before this one waits for a device that waits for it.
        """
        if self._device is not None:
            if self.place.rank:
                self._device.synchronize()
            self.everyone.meet()

    def close(self) -> None:
        """Ends what devices compute together."""
        if self._device is not None:
            self._device.close()

    def _connect_devices(self, ops: Ops) -> Comm:
        """What ranks of one stage add and gather with, in the memory that the backend computes
        in.
        """
        if self.tensor is None:
            return SingleProcess()
        if not isinstance(ops, OnDevice):
            return self.tensor
        store = KeyStore(self._keys, f"devices-{self.place.stage.index}")
        self._device = DeviceGroup(self.tensor, ops.device, store)
        return self._device
