"""Where the features of a recording come from: the request itself, the cache, or one shared encode. Owner thread.

Encodes run in pieces between two steps. Everyone who needs the same recording meanwhile (a seating job, an encode
job, several of each) shares one encode: each one's turn does its next piece.
"""

from __future__ import annotations

import copy

import numpy as np

from voxr_ray.engine.faults import blamed
from voxr_ray.engine.model import Padding, SlotModel, Work
from voxr_ray.engine.pieces import abandon, do_piece
from voxr_ray.engine.reference_cache import Key, ReferenceCache
from voxr_ray.errors import RequestError, VoxrError
from voxr_ray.messages import Recording


class _Encoding:
    """One encode under way, and how many wait for it."""

    def __init__(self, work: Work[np.ndarray]) -> None:
        self.work = work
        self.users = 0
        self.outcome: np.ndarray | VoxrError | None = None


class FeatureStore:
    """Features of recordings, each encoded once.

    Args:
        model: Encodes.
        cache: Keeps what was encoded.
    """

    def __init__(self, model: SlotModel, cache: ReferenceCache) -> None:
        self._model = model
        self._cache = cache
        self._encodings: dict[Key, _Encoding] = {}
        self.encoded = 0
        """Recordings encoded so far."""

    def known(self, recording: Recording, padding: Padding) -> np.ndarray | None:
        """Features that need no work.

        A request's own features are used as they are, and never stored: the cache holds only what this engine
        encoded from the samples that the digest was taken of.
        """
        if recording.features is not None:
            return recording.features
        return self._cache.get((recording.digest, padding))

    def encode(self, recording: Recording, padding: Padding) -> Work[np.ndarray]:
        """Encode ``recording``, or join its encode under way.

        A recording at fault fails everyone who shares it. Any other failure fails only the one whose turn it was;
        the others start again, because nothing says that theirs would fail.
        """
        if recording.clip is None:
            raise ValueError("a recording without a clip has nothing to encode")
        key = (recording.digest, padding)
        while True:
            # Someone else may have finished it between the call and the first piece.
            stored = self._cache.peek(key)
            if stored is not None:
                return stored
            encoding = self._join(key, recording.clip)
            try:
                while encoding.outcome is None:
                    self._advance(key, encoding)
                    if encoding.outcome is None:
                        yield
            finally:
                encoding.users -= 1
                if encoding.users == 0 and encoding.outcome is None:
                    del self._encodings[key]
                    abandon(encoding.work)
            if isinstance(encoding.outcome, RequestError):
                raise copy.copy(encoding.outcome)
            if isinstance(encoding.outcome, np.ndarray):
                return encoding.outcome

    def _join(self, key: Key, clip: np.ndarray) -> _Encoding:
        encoding = self._encodings.get(key)
        if encoding is None:
            with blamed("the encode of a recording"):
                encoding = _Encoding(self._model.encode(clip, key[1]))
            self._encodings[key] = encoding
        encoding.users += 1
        return encoding

    def _advance(self, key: Key, encoding: _Encoding) -> None:
        """Do the next piece; a failure ends the encode and is raised to whoever did the piece."""
        try:
            with blamed("the encode of a recording"):
                finished = do_piece(encoding.work)
            if finished is not None:
                encoding.outcome = finished.result
                self._cache.put(key, finished.result)
                self.encoded += 1
        except VoxrError as error:
            encoding.outcome = error
            raise
        finally:
            if encoding.outcome is not None:
                del self._encodings[key]
