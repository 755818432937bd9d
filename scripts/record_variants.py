"""Record what the official package gives on the checkpoints of ``tests/checkpoints.py``.

Run it in an environment of its own that has the official package beside this project's sources:

    pip install --no-deps voxcpm==2.0.3
    pip install torch transformers einops librosa soundfile safetensors tqdm tokenizers pydantic
    touch "$(python -c 'import site; print(site.getsitepackages()[0])')/torchaudio.py"
    PYTHONPATH=. python scripts/record_variants.py tests/data/variants.npz
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile
import torch
from voxcpm.model import VoxCPM2Model
from voxcpm.model.utils import next_and_close

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.checkpoints import VARIANTS, variant_config, write_checkpoint

TEXT = "One more variant."
PATCHES = 12
CLIP_SAMPLES = 2001


def record(name: str, clip: Path, folder: Path) -> dict[str, np.ndarray]:
    """Latents and audio of one variant, zero-shot and with a reference and a prompt."""
    model = VoxCPM2Model.from_local(str(write_checkpoint(folder / name, variant_config(name))), optimize=False)
    found: dict[str, np.ndarray] = {}
    for mode, extra in {
        "zero_shot": {},
        "combined": {"prompt_wav_path": str(clip), "prompt_text": "A clip, ", "reference_wav_path": str(clip)},
    }.items():
        torch.manual_seed(3)
        cache = model.build_prompt_cache(**extra) if extra else None
        wav, _, feat = next_and_close(
            model._generate_with_prompt_cache(
                target_text=TEXT, prompt_cache=cache, min_len=PATCHES, max_len=PATCHES, inference_timesteps=5
            )
        )
        found[f"{name}|{mode}|feat"] = feat.float().numpy()
        found[f"{name}|{mode}|wav"] = wav.reshape(-1).numpy()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the official package on the variants.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--clip", type=Path, default=Path("tests/data/reference/cases/prompt_16k.wav"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recorded: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        # Some variants have patches of a few samples: a whole clip would not fit their rope tables.
        samples, rate_hz = soundfile.read(arguments.clip, dtype="int16")
        clip = Path(folder) / "clip.wav"
        soundfile.write(clip, samples[:CLIP_SAMPLES], rate_hz)
        for name in VARIANTS:
            recorded |= record(name, clip, Path(folder))
    np.savez_compressed(arguments.out, **recorded)
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes, {len(recorded)} arrays")


if __name__ == "__main__":
    main()
