"""A :class:`~voxr_ray.engine.model.SlotModel` made of hashes: no network, no torch, a few microseconds a patch.

What it is good for:

* A patch is a pure function of what went into it (tokens, features, seed, sampler, patch number, the patches
  before it), so any render has one right answer: :func:`tests.fakes.solo.render_alone`.
* A lane chains everything onto what it already holds. An engine that forgets to release a lane, releases the wrong
  one or decodes a patch twice gets other audio, or an error that names the misuse.
* Texts script failures, slowness and length (:mod:`tests.fakes.script`); ``hooks`` run before any call, and may
  raise or block.
* Every call is recorded, and calls from a second thread are refused (``plan`` excepted).

Clips script failures of ``encode`` by their first sample: :data:`FAILING_CLIP` and :data:`BAD_CLIP`.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.fakes.script import Script
from voxr_ray.engine.model import ModelSpec, Padding, Plan, Work
from voxr_ray.errors import BadAudio, ConfigurationError, InvalidRequest
from voxr_ray.messages import Recording, Sampler, SynthRequest

FAILING_CLIP = 32001
"""A clip that begins with this sample makes ``encode`` raise a RuntimeError."""
BAD_CLIP = 32002
"""A clip that begins with this sample makes ``encode`` raise BadAudio."""


@dataclass(frozen=True)
class Call:
    """One call of the model.

    ``op`` is open, plan, encode, prefill (once a piece, both), admit, step, decode or release. ``slots`` are the
    lanes it touches: for a step, the seated ones below its width.
    """

    op: str
    thread: int
    slots: tuple[int, ...] = ()
    width: int = 0
    text: str = ""
    sampler: Sampler | None = None


@dataclass
class _Handoff:
    text: str
    script: Script
    condition: bytes
    prompt: bytes


@dataclass
class _Lane:
    """A slot's state. ``history`` and ``decoder`` are chained, never assigned, so that what stays behind shows."""

    handoff: _Handoff | None = None
    seed: int = 0
    drawn: int = 0
    decoded: int = 0
    history: bytes = b""
    decoder: bytes = b""
    latents: list[bytes] = field(default_factory=list)


def _digest(*parts: bytes | str | int | float) -> bytes:
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.digest()


def _noise(key: bytes, size: int) -> np.ndarray:
    """``size`` float32 numbers in [-0.5, 0.5) that only ``key`` decides."""
    raw = hashlib.shake_128(key).digest(2 * size)
    return np.frombuffer(raw, dtype="<i2").astype(np.float32) / 65536.0


class FakeSlotModel:
    """See the module. All arguments have defaults fit for fast tests (10 ms patches).

    Args:
        spec: Sizes and rates; keyword arguments of :class:`ModelSpec` replace single values.
        hooks: Called with the :class:`Call` before the operation of that name acts.
        delays: Seconds that every call of an operation sleeps.
        encode_patches_per_piece: Patches that one piece of ``encode`` makes.
        prefill_positions_per_piece: Positions that one piece of ``prefill`` fills.
        length_of: ``(text, seed)`` to the patches after which stop wins, instead of the text's own script.
        fail_open: Message of the RuntimeError that ``open`` raises.
        leaky: Break :meth:`release`: the lane keeps its history. For tests of the tests.
    """

    def __init__(
        self,
        *,
        hooks: Mapping[str, Callable[[Call], None]] | None = None,
        delays: Mapping[str, float] | None = None,
        encode_patches_per_piece: int = 4,
        prefill_positions_per_piece: int = 256,
        length_of: Callable[[str, int], int | None] | None = None,
        fail_open: str = "",
        leaky: bool = False,
        record_calls: int = 200_000,
        **spec: int,
    ) -> None:
        facts: dict[str, int] = {
            "sample_rate_hz": 48_000,
            "input_sample_rate_hz": 16_000,
            "samples_per_patch": 480,
            "input_samples_per_patch": 160,
            "patch_size": 2,
            "feat_dim": 4,
            "max_positions": 32_768,
        }
        self._spec = ModelSpec(**(facts | spec))
        self.hooks: dict[str, Callable[[Call], None]] = dict(hooks or {})
        self.delays: dict[str, float] = dict(delays or {})
        self._encode_piece = encode_patches_per_piece
        self._prefill_piece = prefill_positions_per_piece
        self._length_of = length_of
        self._fail_open = fail_open
        self._leaky = leaky
        self.calls: deque[Call] = deque(maxlen=record_calls)
        self.unhang = threading.Event()
        self.open_works = 0
        """Generators handed out, neither finished nor closed. Zero when the engine is idle."""
        self._owner: int | None = None
        self._lanes: list[_Lane] = []
        self.width = 0
        self.capacity = 0

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def seated_slots(self) -> list[int]:
        """Lanes that hold a row now."""
        return [slot for slot, lane in enumerate(self._lanes) if lane.handoff is not None]

    def count(self, op: str) -> int:
        """How often an operation was called."""
        return sum(call.op == op for call in list(self.calls))

    def plan(self, request: SynthRequest) -> Plan:
        self.calls.append(Call("plan", threading.get_ident(), text=request.text))
        self._pause("plan", Script())
        if hook := self.hooks.get("plan"):
            hook(self.calls[-1])
        text = re.sub(r"\s+", " ", request.text)
        if Script.of(text).no_tokens:
            raise InvalidRequest("text has no token: give at least one character to speak", param="text")
        target = text.encode()
        tokens = (request.prompt.text.encode() if request.prompt else b"") + target
        seq_len = len(tokens) + 1
        if request.reference is not None:
            seq_len += self._patches(request.reference) + 2
        if request.prompt is not None:
            seq_len += self._patches(request.prompt)
        return Plan(token_ids=tuple(tokens), text_tokens=len(target), seq_len=seq_len)

    def open(self, width: int, capacity: int) -> None:
        self._begin("open", width=width)
        if self._fail_open:
            raise RuntimeError(self._fail_open)
        self.width, self.capacity = width, capacity
        self._lanes = [_Lane() for _ in range(width)]

    def encode(self, clip: np.ndarray, padding: Padding) -> Work[np.ndarray]:
        return self._counted(self._encode(clip, padding))

    def _encode(self, clip: np.ndarray, padding: Padding) -> Work[np.ndarray]:
        size = self._spec.input_samples_per_patch
        patches = math.ceil(len(clip) / size)
        missing = patches * size - len(clip)
        fill = (missing, 0) if padding is Padding.LEFT else (0, missing)
        rows = np.pad(clip, fill).reshape(patches, size)
        key, features = b"", []
        for index in range(patches):
            if index % self._encode_piece == 0:
                if index:
                    yield
                self._begin("encode")
                if len(clip) and clip[0] == FAILING_CLIP:
                    raise RuntimeError("scripted failure of encode")
                if len(clip) and clip[0] == BAD_CLIP:
                    raise BadAudio("scripted: this recording cannot be used", param="reference")
            key = _digest(key, rows[index].tobytes())
            features.append(_noise(key, self._spec.patch_size * self._spec.feat_dim))
        return np.stack(features).reshape(patches, self._spec.patch_size, self._spec.feat_dim)

    def prefill(self, plan: Plan, reference: np.ndarray | None, prompt: np.ndarray | None) -> Work[Any]:
        return self._counted(self._prefill(plan, reference, prompt))

    def _prefill(self, plan: Plan, reference: np.ndarray | None, prompt: np.ndarray | None) -> Work[Any]:
        text = bytes(plan.token_ids[len(plan.token_ids) - plan.text_tokens :]).decode()
        script = Script.of(text)
        length = len(plan.token_ids) + 1
        length += 0 if reference is None else len(reference) + 2
        length += 0 if prompt is None else len(prompt)
        if length != plan.seq_len:
            raise ValueError(f"prefill fills {length} positions, the plan says {plan.seq_len}")
        for start in range(0, plan.seq_len, self._prefill_piece):
            if start:
                yield
            self._begin("prefill", text=text, script=script)
            if "prefill" in script.fail:
                raise RuntimeError("scripted failure of prefill")
        parts: list[bytes | int] = [bytes(plan.token_ids), plan.text_tokens]
        parts += [b"" if features is None else features.tobytes() for features in (reference, prompt)]
        context = b"" if prompt is None else prompt[-3:].tobytes()
        return _Handoff(text, script, _digest(*parts), context)

    def admit(self, slot: int, handoff: Any, seed: int) -> None:
        self._begin("admit", slots=(slot,), text=handoff.text, script=handoff.script)
        lane = self._lanes[slot]
        if lane.handoff is not None:
            raise RuntimeError(f"misuse: lane {slot} is taken")
        if "admit" in handoff.script.fail:
            raise RuntimeError("scripted failure of admit")
        lane.handoff = handoff
        lane.seed = seed
        lane.history = _digest(lane.history, handoff.condition)
        lane.decoder = _digest(lane.decoder, handoff.prompt)

    def step(self, width: int, sampler: Sampler) -> np.ndarray:
        seated = tuple(self.seated_slots)
        scripts = [lane.handoff.script for lane in self._lanes if lane.handoff is not None]
        self._begin("step", slots=seated, width=width, sampler=sampler, scripts=scripts)
        if not seated or width > self.width or seated[-1] >= width:
            raise RuntimeError(f"misuse: a step of {width} lanes of {self.width} with {seated} seated")
        stops = np.ones(width, dtype=bool)
        for slot in seated:
            lane = self._lanes[slot]
            handoff = lane.handoff
            if handoff is None:
                continue
            if handoff.script.fail.get("step") == lane.drawn + 1:
                raise RuntimeError("scripted failure of step")
            lane.history = _digest(lane.history, lane.seed, lane.drawn, sampler.cfg_value, sampler.inference_timesteps)
            lane.latents.append(lane.history)
            lane.drawn += 1
            length_of = self._length_of or handoff.script.length
            length = length_of(handoff.text, lane.seed)
            stops[slot] = length is not None and lane.drawn >= length
        return stops

    def decode(self, slots: Sequence[int]) -> list[np.ndarray]:
        lanes = [self._lanes[slot] for slot in slots]
        scripts = [lane.handoff.script for lane in lanes if lane.handoff is not None]
        self._begin("decode", slots=tuple(slots), scripts=scripts)
        if len(set(slots)) != len(slots) or len(scripts) != len(slots) or not all(lane.latents for lane in lanes):
            raise RuntimeError(f"misuse: decode of {tuple(slots)} with {self.seated_slots} seated")
        for lane, script in zip(lanes, scripts, strict=True):
            if lane.decoded < script.fail.get("decode", 0) <= lane.drawn:
                raise RuntimeError("scripted failure of decode")
        return [self._decode_lane(lane, script) for lane, script in zip(lanes, scripts, strict=True)]

    def _decode_lane(self, lane: _Lane, script: Script) -> np.ndarray:
        patches = []
        for latent in lane.latents:
            lane.decoder = _digest(lane.decoder, latent)
            patches.append(_noise(lane.decoder, self._spec.samples_per_patch))
        lane.decoded += len(lane.latents)
        lane.latents.clear()
        samples = np.concatenate(patches)
        if script.audio == "nan":
            samples[0] = np.nan
        return samples[:0] if script.audio == "none" else samples

    def release(self, slot: int) -> None:
        lane = self._lanes[slot]
        script = Script() if lane.handoff is None else lane.handoff.script
        self._begin("release", slots=(slot,), script=script)
        if lane.handoff is None:
            raise RuntimeError(f"misuse: lane {slot} is free already")
        if "release" in script.fail:
            raise RuntimeError("scripted failure of release")
        kept = lane.history if self._leaky else b""
        self._lanes[slot] = _Lane(history=kept)

    def _counted(self, work: Generator[None, None, Any]) -> Work[Any]:
        """Count ``work`` as open from its first piece to its end, however it ends."""
        self.open_works += 1
        try:
            return (yield from work)
        finally:
            self.open_works -= 1

    def _begin(
        self,
        op: str,
        *,
        slots: tuple[int, ...] = (),
        width: int = 0,
        text: str = "",
        sampler: Sampler | None = None,
        script: Script | None = None,
        scripts: Sequence[Script] = (),
    ) -> None:
        """Record the call, refuse a second thread, then run what is scripted for it."""
        thread = threading.get_ident()
        call = Call(op, thread, slots, width, text, sampler)
        self.calls.append(call)
        if self._owner is None:
            self._owner = thread
        elif self._owner != thread:
            raise RuntimeError(f"misuse: {op} was called from a second thread")
        if hook := self.hooks.get(op):
            hook(call)
        for each in [script] if script else scripts:
            self._pause(op, each)
        if op in self.delays:
            time.sleep(self.delays[op])

    def _pause(self, op: str, script: Script) -> None:
        if op in script.hang:
            self.unhang.wait(3600)
        if op in script.sleep:
            time.sleep(script.sleep[op])

    def _patches(self, recording: Recording) -> int:
        if recording.clip is None:
            return 0 if recording.features is None else len(recording.features)
        return math.ceil(len(recording.clip) / self._spec.input_samples_per_patch)


def make_fake_model(*, fail_load: str = "", load_s: float = 0.0, **arguments: Any) -> FakeSlotModel:
    """Build a fake model as a loader would: slowly, or not at all.

    A module-level function, so ``functools.partial(make_fake_model, ...)`` pickles into a replica.

    Raises:
        ConfigurationError: ``fail_load`` is set.
    """
    time.sleep(load_s)
    if fail_load:
        raise ConfigurationError(fail_load)
    return FakeSlotModel(**arguments)
