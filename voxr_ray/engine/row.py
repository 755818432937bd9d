"""A row: the job seated in a slot, and the audio it has not delivered yet. Owner thread."""

from __future__ import annotations

import numpy as np

from voxr_ray.engine.jobs import RenderJob
from voxr_ray.engine.model import ModelSpec
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.seating import Conditioning
from voxr_ray.errors import ModelError
from voxr_ray.messages import AudioChunk, StopReason, Summary, SynthResult


class Row:
    """Counts patches, decides when the take ends, and collects audio.

    Args:
        job: Whose take it is.
        conditioning: What it speaks with.
        spec: Rates and sizes.
        options: When chunks are due.
        since_s: When its slot was taken, on the engine's clock.
    """

    def __init__(
        self, job: RenderJob, conditioning: Conditioning, spec: ModelSpec, options: EngineOptions, since_s: float
    ) -> None:
        self.job = job
        self.conditioning = conditioning
        self.since_s = since_s
        self.drawn = 0
        self.ending: StopReason | None = None
        self._spec = spec
        self._options = options
        self._decoded = 0
        self._delivered = 0
        self._chunks = 0
        self._audio: list[np.ndarray] = []

    def draw(self, *, stop: bool) -> None:
        """Count a patch.

        Args:
            stop: Whether the stop head won for it. It counts only above ``min_len``; the patch is kept either way.
        """
        index = self.drawn
        self.drawn += 1
        if stop and index > self.job.request.min_len:
            self.ending = StopReason.STOP
        elif self.drawn >= self.job.budget_patches:
            self.ending = StopReason.LENGTH

    def add(self, samples: np.ndarray) -> None:
        """Take the decoded audio of the patches drawn since the last call.

        It is copied: the row outlives the call, and the model may reuse its buffer.

        Raises:
            ModelError: It is not one finite sample after the other, as many as the patches have.
        """
        expected = (self.drawn - self._decoded) * self._spec.samples_per_patch
        if samples.shape != (expected,):
            raise ModelError(f"the decoder returned samples of shape {samples.shape}, expected ({expected},)")
        if not np.isfinite(samples).all():
            raise ModelError(f"the decoder returned samples that are not finite at patch {self._decoded}")
        self._audio.append(np.array(samples, dtype=np.float32))
        self._decoded = self.drawn

    @property
    def chunk_due(self) -> bool:
        """Whether a streaming caller gets audio now."""
        wanted = self._options.stream_chunk_patches if self._chunks else self._options.first_chunk_patches
        return self._decoded - self._delivered >= wanted

    def cut(self) -> AudioChunk:
        """Take out everything collected as the next chunk; the take's last one carries its summary."""
        chunk = AudioChunk(
            samples=self._drain(),
            index=self._chunks,
            seed=self.job.seed,
            sample_rate_hz=self._spec.sample_rate_hz,
            summary=None if self.ending is None else self._summary(self.ending),
        )
        self._chunks += 1
        self._delivered = self._decoded
        return chunk

    def result(self, ending: StopReason) -> SynthResult:
        """The whole take of a buffered caller."""
        return SynthResult(self._drain(), self._summary(ending))

    def _drain(self) -> np.ndarray:
        audio, self._audio = self._audio, []
        return np.concatenate(audio)

    def _summary(self, ending: StopReason) -> Summary:
        return Summary(
            seed=self.job.seed,
            takes=self.job.take,
            stop_reason=ending,
            patches=self.drawn,
            text_tokens=self.job.plan.text_tokens,
            sample_rate_hz=self._spec.sample_rate_hz,
        )
