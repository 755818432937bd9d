"""Several processes that train the same weights on different batches and average them now and then.

On shared cores two processes of one thread each get more done than one of two threads, whose halves wait for each
other at every operation. Nobody waits here: whoever is due writes its weights and averages with the latest of the
others.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

from training.files import read_state, write_state

FRESH_S = 300.0
"""Older weights are those of a process that has ended."""


class Peers:
    """One process of ``count``.

    Args:
        folder: Where the weights are exchanged.
        rank: Number of this process.
        count: Number of processes.
    """

    def __init__(self, folder: Path, rank: int, count: int) -> None:
        self.rank = rank
        self._paths = [folder / f"{index}.pt" for index in range(count)]

    @torch.no_grad()
    def exchange(self, modules: nn.ModuleList) -> None:
        """Write the weights and average them with those of the others."""
        if len(self._paths) == 1:
            return
        weights = modules.state_dict()
        write_state(self._paths[self.rank], weights)
        found = [weights]
        for rank, path in enumerate(self._paths):
            if rank != self.rank and path.exists() and time.time() - path.stat().st_mtime < FRESH_S:
                found.append(read_state(path) or weights)
        for name, tensor in weights.items():
            tensor.copy_(torch.stack([state[name] for state in found]).mean(dim=0))
