"""Both ends of a resumed answer: what the router remembers of it, and how a replica leaves out what was delivered.

A replica that takes an answer over renders it from the beginning, because the state of a row lives on its device and
dies with it; equal request and seed give equal samples, so the ones the caller has need not travel again. Nothing
here is taken on trust: if the audio at the joint is not what the caller has, the answer fails instead of going on as
another one. Pure; the event loop of its deployment.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from voxr_ray.errors import ResumeMismatch
from voxr_ray.messages import AudioChunk
from voxr_ray.serve.values import Delivered


def checksum(samples: np.ndarray, before: int = 0) -> int:
    """CRC-32 of float32 ``samples`` ``(samples,)``, continued from that of the ones before them."""
    return zlib.crc32(np.ascontiguousarray(samples, dtype="<f4").data, before)


class Progress:
    """What a caller has of its answer. The router's end.

    Keeping it costs nothing while all goes well: only a reference to the latest chunk is held.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.complete = False
        self._chunks = 0
        self._latest: AudioChunk | None = None

    def follow(self, chunk: AudioChunk) -> AudioChunk:
        """Take note of a chunk about to be passed on.

        Returns:
            The chunk with its number in the answer, which is another one than in the replica's if that took it over.
        """
        numbered = chunk if chunk.index == self._chunks else replace(chunk, index=self._chunks)
        self._chunks += 1
        self.samples += len(chunk.samples)
        self.complete = chunk.summary is not None
        if len(chunk.samples):
            self._latest = chunk
        return numbered

    @property
    def delivered(self) -> Delivered:
        """What another replica has to know to go on."""
        if self._latest is None:
            return Delivered()
        return Delivered(self.samples, len(self._latest.samples), checksum(self._latest.samples))


class Remainder:
    """Leaves out of an answer's chunks what its caller has. The replica's end.

    Args:
        delivered: What the caller has.
    """

    def __init__(self, delivered: Delivered) -> None:
        self._delivered = delivered
        self._tail_start = delivered.samples - delivered.tail_samples
        self._seen = 0
        self._checksum = 0
        self._checked = delivered.samples == 0

    def of(self, chunk: AudioChunk) -> AudioChunk | None:
        """What is left of the next chunk.

        Returns:
            The part its caller has not, if there is one or if it brings the summary.

        Raises:
            ResumeMismatch: It is not the audio that the caller has the beginning of.
        """
        if self._checked:
            return chunk
        start, self._seen = self._seen, self._seen + len(chunk.samples)
        known = chunk.samples[: self._delivered.samples - start]
        self._checksum = checksum(known[max(0, self._tail_start - start) :], self._checksum)
        if self._seen < self._delivered.samples:
            if chunk.summary is not None:
                raise ResumeMismatch(
                    f"an answer cannot go on: the caller has {self._delivered.samples} samples of it, and this replica "
                    f"made only {self._seen}"
                )
            return None
        if self._checksum != self._delivered.tail_checksum:
            raise ResumeMismatch(
                f"an answer cannot go on after {self._delivered.samples} samples: this replica made other audio than "
                "the one before it; replicas must have the same kind of processor and the same build"
            )
        self._checked = True
        rest = chunk.samples[len(known) :]
        return replace(chunk, samples=rest) if len(rest) or chunk.summary is not None else None
