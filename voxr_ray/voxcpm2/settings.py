"""What a checkpoint says of itself beside the official files: ``voxr.json``, optional."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from voxr_ray.errors import CheckpointError

SETTINGS_FILE = "voxr.json"


class RequestDefaults(BaseModel):
    """Values that a request gets where it says nothing; ``None`` leaves the program's own default.

    A model has a guidance and a speaking rate at which it does best, so they belong to the checkpoint. The limits are
    those of :class:`~voxr_ray.messages.SynthRequest`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cfg_value: Annotated[float, Field(ge=0.0, le=10.0, allow_inf_nan=False)] | None = None
    """Classifier-free guidance scale."""
    inference_timesteps: Annotated[StrictInt, Field(ge=2, le=100)] | None = None
    """Euler steps a patch."""
    retry_badcase_ratio_threshold: Annotated[float, Field(gt=0.0, le=100.0, allow_inf_nan=False)] | None = None
    """Patches per text token from which a take counts as bad."""
    normalize: StrictBool | None = None
    """Whether numbers, dates, money and abbreviations are spelled out."""


class CheckpointSettings(BaseModel):
    """The file's content; every field may be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    """What the model calls itself."""
    notice: str | None = None
    """What its users must know, shown in the log, in ``/v1/models`` and in a response header."""
    defaults: RequestDefaults = RequestDefaults()
    """What a request gets where it says nothing."""
    max_part_chars: Annotated[StrictInt, Field(ge=40, le=4096)] | None = None
    """Longest text that the model says reliably in one piece; longer ones are cut at sentences."""


def load_settings(folder: Path) -> CheckpointSettings:
    """Read ``voxr.json`` of a checkpoint folder, or its defaults where there is none.

    Raises:
        CheckpointError: The file is there and wrong.
    """
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return CheckpointSettings()
    try:
        return CheckpointSettings.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise CheckpointError(f"cannot read {path}: {err.strerror or err}") from err
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise CheckpointError(f"{path}: {where}: {first['msg']}") from err
