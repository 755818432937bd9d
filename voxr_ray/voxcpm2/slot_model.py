"""VoxCPM2 behind the engine's :class:`~voxr_ray.engine.model.SlotModel` protocol.

It cuts long work into pieces, moves requests in and out of lanes, and turns tensors into numpy at the border. Where
a piece is cut depends on the request and on settings fixed at start, never on load. Owner thread only, except
:meth:`VoxCPM2SlotModel.plan`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from voxr_ray.engine.model import ModelSpec, Padding, Plan, Work
from voxr_ray.errors import InvalidRequest
from voxr_ray.messages import Recording, Sampler, SynthRequest
from voxr_ray.voxcpm2.captured import CapturedSteps
from voxr_ray.voxcpm2.graphs import GraphOptions
from voxr_ray.voxcpm2.lanes import Handoff, Lanes, round_up
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.noise import NoiseStream
from voxr_ray.voxcpm2.row_step import eager_step, warm_up
from voxr_ray.voxcpm2.row_workers import RowWorkers
from voxr_ray.voxcpm2.sequence import CONTEXT_PATCHES, Prefix, count_positions
from voxr_ray.voxcpm2.streams import Streams, streams_of
from voxr_ray.voxcpm2.tokenizer import TextTokenizer, collapse_spaces
from voxr_ray.voxcpm2.vae import State

DECODE_ROWS = 4
"""Rows that a CPU decodes at once: with more, the activations of one stage leave the processor's caches."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How long work is cut. Changing a number changes the bytes of an answer, so it is a setting, not a load measure.

    Attributes:
        prefill_positions: Positions of a prefill piece.
        encode_patches: Patches of a recording encoded in a piece.
    """

    prefill_positions: int = 64
    encode_patches: int = 2


class VoxCPM2SlotModel:
    """A loaded network with its tokenizer and lanes.

    Args:
        network: Loaded for inference.
        tokenizer: Of the same checkpoint.
        pieces: How to cut.
        name: What to call the model.
        notice: What its users must know of it, if anything.
        graphs: How to capture steps and decodes; ``None`` runs them kernel by kernel.
        warm_up_s: Seconds that :meth:`open` may take to have every width stepped once, where steps are not captured.
        streams: Where decodes and encodes run; those of the network's device if not given.
    """

    def __init__(
        self,
        network: VoxCPM2,
        tokenizer: TextTokenizer,
        *,
        pieces: Pieces | None = None,
        name: str = "voxcpm2",
        notice: str | None = None,
        graphs: GraphOptions | None = None,
        warm_up_s: float = 0.0,
        streams: Streams | None = None,
    ) -> None:
        config = network.config
        vae = config.audio_vae_config
        self.name = name
        self.notice = notice
        self._network = network
        self._tokenizer = tokenizer
        self._pieces = pieces or Pieces()
        self._graph_options = graphs
        self._warm_up_s = warm_up_s
        self._streams = streams or streams_of(network.device)
        self._captured: CapturedSteps | None = None
        self._lanes: Lanes | None = None
        self._workers = RowWorkers(torch.get_num_threads() if network.device.type == "cpu" else 1)
        self._spec = ModelSpec(
            sample_rate_hz=vae.out_sample_rate,
            input_sample_rate_hz=vae.sample_rate,
            samples_per_patch=config.patch_size * vae.decoder_hop,
            input_samples_per_patch=config.patch_size * vae.encoder_hop,
            patch_size=config.patch_size,
            feat_dim=config.feat_dim,
            max_positions=config.lm_config.max_position_embeddings,
        )

    @property
    def spec(self) -> ModelSpec:
        """Facts of the model."""
        return self._spec

    @property
    def lanes(self) -> Lanes:
        """The lanes, once open."""
        if self._lanes is None:
            raise RuntimeError("the model is not open: call open() first")
        return self._lanes

    def plan(self, request: SynthRequest) -> Plan:
        """See :meth:`SlotModel.plan`.

        Raises:
            InvalidRequest: The text has no token, or features do not have this model's shape.
        """
        target = collapse_spaces(request.text)
        text_tokens = self._tokenizer.encode(target)
        if not text_tokens:
            raise InvalidRequest("the text has no token this model can speak", param="input")
        prompt_text = "" if request.prompt is None else request.prompt.text
        token_ids = self._tokenizer.encode(prompt_text + target) if prompt_text else text_tokens
        reference = self._count_patches(request.reference, "ref_audio")
        prompt = self._count_patches(request.prompt, "prompt_audio")
        return Plan(
            token_ids=tuple(token_ids),
            text_tokens=len(text_tokens),
            seq_len=count_positions(len(token_ids), reference, prompt),
        )

    def open(self, width: int, capacity: int) -> None:
        """See :meth:`SlotModel.open`."""
        self._captured = None  # it holds the lanes it was made for
        self._lanes = Lanes(self._network, width, capacity, whole=self._graph_options is not None)
        if self._graph_options is not None:
            self._captured = CapturedSteps(self._network, self._lanes, self._graph_options, self._streams)
            self._captured.warm_up()
        elif self._warm_up_s:
            warm_up(self._network, width, capacity, self._workers, decode_rows=DECODE_ROWS, most_s=self._warm_up_s)

    def encode(self, clip: np.ndarray, padding: Padding) -> Work[np.ndarray]:
        """See :meth:`SlotModel.encode`."""
        whole = round_up(len(clip), self._spec.input_samples_per_patch)
        samples = np.zeros(whole, dtype=np.float32)
        where = slice(whole - len(clip), None) if padding is Padding.LEFT else slice(0, len(clip))
        samples[where] = clip.astype(np.float32) / 32768.0
        piece = self._pieces.encode_patches * self._spec.input_samples_per_patch
        state: State | None = None
        frames: list[np.ndarray] = []
        for start in range(0, whole, piece):
            if start:
                yield
            encoded, state = self._encode_piece(samples[start : start + piece], state)
            frames.append(encoded)
        return np.concatenate(frames).reshape(-1, self._spec.patch_size, self._spec.feat_dim)

    def prefill(self, plan: Plan, reference: np.ndarray | None, prompt: np.ndarray | None) -> Work[Handoff]:
        """See :meth:`SlotModel.prefill`."""
        network, spec = self._network, self._spec
        prefix = Prefix.build(
            plan.token_ids,
            reference,
            prompt,
            patch_shape=(spec.patch_size, spec.feat_dim),
            device=network.device,
        )
        if len(prefix) != plan.seq_len:
            raise RuntimeError(f"the prefix has {len(prefix)} positions where {plan.seq_len} were planned")
        handoff = self._empty_handoff(len(prefix))
        if len(prefix.prompt):
            handoff.previous = prefix.prompt[-1]
            handoff.decoder_state = self._decode_context(prefix.prompt[-CONTEXT_PATCHES:])
            yield
        for start in range(0, len(prefix), self._pieces.prefill_positions):
            if start:
                yield
            self._prefill_piece(handoff, prefix, start)
        return handoff

    @torch.inference_mode()
    def admit(self, slot: int, handoff: Handoff, seed: int) -> None:
        """See :meth:`SlotModel.admit`."""
        noise = NoiseStream(seed, feat_dim=self._spec.feat_dim, patch_size=self._spec.patch_size)
        self.lanes.admit(slot, handoff, noise)
        self._streams.mark()  # a decode beside the steps would read the lane's state

    @torch.inference_mode()
    def step(self, width: int, sampler: Sampler) -> np.ndarray:
        """See :meth:`SlotModel.step`."""
        lanes = self.lanes
        if self._captured is None:
            stop, patches = eager_step(self._network, lanes, width, sampler, self._workers)
            stops = stop.cpu().numpy()
            self._streams.mark()
        else:
            stops, patches = self._captured.step(width, sampler)
        lanes.advance(patches)
        return stops

    @torch.inference_mode()
    def decode(self, slots: Sequence[int]) -> list[np.ndarray]:
        """See :meth:`SlotModel.decode`."""
        counts = {len(self.lanes.seats[slot].pending) for slot in slots}
        if self._captured is None or counts != {1}:
            return self._decode_in_groups(slots)
        with self._streams.beside():
            audio = self._captured.decode(slots)
        self.lanes.drop_pending(slots)
        return [audio[slot].numpy().copy() for slot in slots]

    def _decode_in_groups(self, slots: Sequence[int]) -> list[np.ndarray]:
        lanes = self.lanes
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for slot in slots:
            groups[len(lanes.seats[slot].pending)].append(slot)
        empty = np.zeros(0, dtype=np.float32)
        audio = dict.fromkeys(groups.pop(0, []), empty)
        most = DECODE_ROWS if self._network.device.type == "cpu" else len(slots)
        parts = [each[at : at + most] for each in groups.values() for at in range(0, len(each), most)]
        with self._streams.beside():
            results = self._workers.run([partial(self._decode_rows, part) for part in parts])
            hosted = [self._streams.to_host(samples) for samples, _ in results]
            for part, (_, state) in zip(parts, results, strict=True):
                lanes.store_decoder_rows(part, state)
        for part, samples in zip(parts, hosted, strict=True):
            lanes.drop_pending(part)
            # Rows are copied: a view would keep the samples of the whole batch alive for as long as one caller waits.
            audio.update((slot, row.copy()) for slot, row in zip(part, samples.numpy(), strict=True))
        return [audio[slot] for slot in slots]

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """See :meth:`SlotModel.release`."""
        self.lanes.release(slot)

    # Each piece enters and leaves inference mode by itself: the mode belongs to the thread, and a generator that
    # yielded inside it would leave it switched on for whatever runs next.

    @torch.inference_mode()
    def _encode_piece(self, samples: np.ndarray, state: State | None) -> tuple[np.ndarray, State]:
        with self._streams.beside():
            if state is None:
                state = self._network.audio_vae.encoder.new_state(1)
            tensor = torch.from_numpy(samples)[None].to(self._network.device)
            frames, state = self._network.audio_vae.encode(tensor, state)
            hosted = self._streams.to_host(frames[0])
        return hosted.numpy(), state

    @torch.inference_mode()
    def _empty_handoff(self, positions: int) -> Handoff:
        network, spec = self._network, self._spec
        dtype = torch.float32 if network.device.type == "cpu" else network.dtype
        hidden = torch.zeros(1, network.config.lm_config.hidden_size, dtype=network.dtype, device=network.device)
        return Handoff(
            base_cache=network.base_lm.new_cache(1, positions, dtype=dtype, device=network.device),
            residual_cache=network.residual_lm.new_cache(1, positions, dtype=dtype, device=network.device),
            base_hidden=hidden,
            residual_hidden=hidden,
            previous=torch.zeros(spec.patch_size, spec.feat_dim, device=network.device),
            decoder_state=network.audio_vae.decoder.new_state(1),
        )

    def _decode_rows(self, slots: list[int]) -> tuple[Tensor, State]:
        """Audio and next states of slots with equally many pending patches."""
        frames = torch.stack([torch.cat(self.lanes.seats[slot].pending) for slot in slots])
        return self._network.audio_vae.decode(frames, self.lanes.decoder_rows(slots))

    @torch.inference_mode()
    def _decode_context(self, patches: Tensor) -> State:
        """The decoder's state behind the last prompt patches ``(patches, patch_size, feat_dim)``; no audio is kept."""
        vae = self._network.audio_vae
        _, state = vae.decode(patches.flatten(0, 1)[None], vae.decoder.new_state(1))
        return state

    @torch.inference_mode()
    def _prefill_piece(self, handoff: Handoff, prefix: Prefix, start: int) -> None:
        network = self._network
        piece = slice(start, min(start + self._pieces.prefill_positions, len(prefix)))
        is_audio = prefix.is_audio[piece]
        embedded = network.embed_text(prefix.token_ids[piece])
        count = int(is_audio.sum())
        if count:
            first = int(prefix.is_audio[:start].sum())
            embedded[is_audio] = network.embed_patches(prefix.patches[first : first + count])
        handoff.base_hidden, handoff.residual_hidden = network.prefill(
            embedded, is_audio, handoff.base_cache, handoff.residual_cache, start
        )

    def _count_patches(self, recording: Recording | None, param: str) -> int:
        if recording is None:
            return 0
        if recording.features is not None:
            shape = recording.features.shape
            if len(shape) != 3 or shape[1:] != (self._spec.patch_size, self._spec.feat_dim) or not shape[0]:
                expected = f"(patches, {self._spec.patch_size}, {self._spec.feat_dim})"
                raise InvalidRequest(f"features have shape {shape}, this model's have {expected}", param=param)
            return int(shape[0])
        samples = 0 if recording.clip is None else len(recording.clip)
        if not samples:
            raise InvalidRequest("the recording has no samples", param=param)
        return round_up(samples, self._spec.input_samples_per_patch) // self._spec.input_samples_per_patch
