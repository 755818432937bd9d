"""Settings: one validated, immutable value that the builder makes once and every deployment is given.

Sources, strongest first: arguments of the application (``serve run voxr_ray:app max_batch=16``, or ``args:`` in a
deployment file), environment variables ``VOXR_<NAME>`` of the process that builds the application, defaults.
:mod:`voxr_ray.config_source` reads them; fields, what they may be together, and what follows from them are here.

Everything wrong with the settings is found here, before anything is deployed, and said in one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    SecretStr,
    StrictBool,
    ValidationError,
    model_validator,
)

from voxr_ray.config_source import collect, read
from voxr_ray.errors import ConfigurationError

_SECRET_FIELDS = frozenset({"api_keys"})


def _not_a_boolean(value: Any) -> Any:
    """Pydantic reads ``true`` as 1; nobody who writes it means that."""
    if isinstance(value, bool):
        raise ValueError("a number is needed")
    return value


Count = Annotated[int, BeforeValidator(_not_a_boolean)]
Number = Annotated[FiniteFloat, BeforeValidator(_not_a_boolean)]
Word = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S+$")]
Folder = Annotated[str, Field(pattern="^/")]
Secret = Annotated[SecretStr, Field(min_length=1, max_length=500)]


class Settings(BaseModel):
    """Every option of the server."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), use_attribute_docstrings=True)

    # ---- model ----

    model: Annotated[str, Field(min_length=1)] = "default"
    """Checkpoint: ``default`` (the one inside the package), a folder, or a Hugging Face id."""
    model_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Name in ``/v1/models`` and in requests. Unset: what the checkpoint calls itself, else the last part of
    ``model``."""
    model_aliases: tuple[Word, ...] = ()
    """Other names that requests may use for the model, such as ``tts-1``; lists are JSON or separated by commas."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where replicas compute. ``auto`` looks at the machine that builds the application; a cluster file names it."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the language model's weights. ``auto``: as the checkpoint says on GPUs, float32 on CPUs."""
    cuda_graphs: StrictBool = True
    """Whether steps are captured as CUDA graphs on GPUs, when a replica starts. Not yet measured on any GPU."""
    cpu_graphs: StrictBool = True
    """Whether a CPU repeats the operators of steps and decodes without Python, once they are recorded. Same bits."""
    threads: Annotated[Count, Field(ge=1, le=256)] | None = None
    """CPU threads of a replica on ``cpu``. Unset: one. Also the CPUs it reserves."""

    # ---- replicas ----

    num_replicas: Annotated[Count, Field(ge=1, le=1000)] | None = None
    """Fixed number of replicas. Unset, with ``max_replicas`` unset too: one."""
    min_replicas: Annotated[Count, Field(ge=0, le=1000)] | None = None
    """Fewest replicas when autoscaling. Unset: one."""
    max_replicas: Annotated[Count, Field(ge=1, le=1000)] | None = None
    """Most replicas; setting it turns autoscaling on."""
    target_ongoing_requests: Annotated[Number, Field(gt=0)] | None = None
    """Requests per replica the autoscaler aims at. Unset: three quarters of ``max_batch``, at least one."""
    upscale_delay_s: Annotated[Number, Field(ge=0)] = 10.0
    """Seconds of high load before replicas are added."""
    downscale_delay_s: Annotated[Number, Field(ge=0)] = 600.0
    """Seconds of low load before replicas are removed."""
    scaling_look_back_s: Annotated[Number, Field(gt=0)] = 20.0
    """Seconds over which load is averaged for the autoscaler. Replicas and routers report every ten seconds (Ray's
    ``RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S`` and ``RAY_SERVE_REPLICA_…``)."""
    replica_options: dict[str, Any] = Field(default_factory=dict)
    """Ray actor options of a replica (``num_cpus``, ``num_gpus``, ``resources``, ``runtime_env``, …); they override
    what ``device`` and ``threads`` imply."""
    router_replicas: Annotated[Count, Field(ge=1, le=1000)] = 1
    """Number of routers."""
    routing_report_period_s: Annotated[Number, Field(gt=0)] | None = None
    """Seconds between two reports of a replica to the routers. Unset: a quarter, and with more than 25 replicas as many
    as keep the controller at 100 reports a second. A router that is alone hardly needs them."""
    routing_keep_s: Annotated[Number, Field(ge=0)] = 10.0
    """Seconds after its latest request for which a sampler counts as in use: as long as there are enough replicas, one
    is kept free for each sampler in use, so that its requests do not wait for others'."""
    max_ongoing_requests: Annotated[Count, Field(ge=1)] | None = None
    """Calls Serve lets into a replica. Unset: ``max_batch + max_queue`` and a margin, so that the engine refuses and
    never Serve."""

    # ---- engine ----

    max_batch: Annotated[Count, Field(ge=1, le=256)] = 16
    """Width: slots that are stepped together in a replica. Unset: as many as fit the memory of the device that the
    building machine has, at most 16 on a CPU and 64 on a GPU; 16 where replicas run on other machines."""
    max_queue: Annotated[Count, Field(ge=0, le=10_000)] = 64
    """Requests that may wait for a slot in a replica. Beyond them the answer is 503 with ``Retry-After``."""
    continuous_capacity: Annotated[Count, Field(ge=64, le=1_000_000)] = 4096
    """Cache positions of a slot: prefix plus patches of one request. Capped by the model's own limit. Unset: 4096, or
    2048 or 1024 where the memory has no room for four slots of more."""
    batch_window_ms: Annotated[Number, Field(ge=0, le=1000)] = 5.0
    """Milliseconds an idle engine waits after its first request so that others can join."""
    stream_chunk_patches: Annotated[Count, Field(ge=1, le=100)] = 2
    """Patches in a streamed chunk (a patch is 160 ms in VoxCPM2)."""
    first_chunk_patches: Annotated[Count, Field(ge=1, le=100)] = 1
    """Patches in the first streamed chunk: fewer make the first audio earlier."""
    reference_cache_bytes: Annotated[Count, Field(ge=0)] = 256 * 2**20
    """Bytes of encoded references a replica keeps."""
    prefill_piece_positions: Annotated[Count, Field(ge=1, le=65_536)] = 64
    """Positions of a prefix computed between two steps of running requests. Part of what fixes the samples."""
    encode_piece_patches: Annotated[Count, Field(ge=1, le=1000)] = 2
    """Patches of a recording encoded between two steps of running requests."""
    pieces_per_cycle: Annotated[Count, Field(ge=1, le=1000)] = 3
    """Such pieces done between two steps: more seat newcomers sooner, fewer keep the pace of running requests."""
    stall_timeout_s: Annotated[Number, Field(gt=0)] = 60.0
    """Seconds without progress, while there is work, after which a replica counts as hung and is replaced."""

    # ---- when a replica is lost ----

    max_failovers: Annotated[Count, Field(ge=0, le=20)] = 3
    """Lost replicas in a row, without a new sample in between, after which a request still goes on elsewhere."""
    silence_timeout_s: Annotated[Number, Field(gt=0)] = 20.0
    """Seconds without a word after which a router gives a replica up. Replicas speak four times as often."""

    # ---- what a request gets when it does not say ----

    cfg_value: Annotated[Number, Field(ge=0, le=10)] = 2.0
    """Guidance scale."""
    inference_timesteps: Annotated[Count, Field(ge=2, le=100)] = 10
    """Euler steps a patch."""
    min_len: Annotated[Count, Field(ge=0, le=100_000)] = 2
    """Patch index above which a stop counts; in each part of a long text."""
    max_len: Annotated[Count, Field(ge=1, le=100_000)] = 2000
    """Most patches of a take; of each part of a long text."""
    retry_badcase: StrictBool = True
    """Whether suspiciously long takes of buffered answers are made again."""
    retry_badcase_max_times: Annotated[Count, Field(ge=1, le=10)] = 3
    """Most takes in all."""
    retry_badcase_ratio_threshold: Annotated[Number, Field(gt=0, le=100)] = 6.0
    """Patches per text token from which a take counts as bad; it bounds every take."""

    normalize: StrictBool = False
    """Whether numbers, dates, money and abbreviations are spelled out (English, Chinese, Japanese). Needs
    ``pip install 'voxr_ray[normalize]'`` where routers run."""

    # ---- limits of a request ----

    max_input_chars: Annotated[Count, Field(ge=1, le=1_000_000)] = 4096
    """Longest ``input``, in characters. For whole chapters raise ``request_timeout_s`` with it."""
    max_part_chars: Annotated[Count, Field(ge=40, le=4096)] = 500
    """Longest text that is rendered in one piece; an ideograph counts as three characters. Longer ones are cut at
    sentences, and every part continues the one before."""
    min_reference_seconds: Annotated[Number, Field(ge=0, le=10)] = 0.1
    """Shortest recording that is accepted, in seconds."""
    max_reference_seconds: Annotated[Number, Field(gt=0, le=60)] = 60.0
    """Longest recording that is accepted, in seconds. Two minutes of clips are what one message between actors holds,
    and a request may carry two."""
    max_body_bytes: Annotated[Count, Field(ge=1024, le=2**30)] = 32 * 2**20
    """Largest request body; beyond it the answer is 413, before the body is read."""
    max_held_body_bytes: Annotated[Count, Field(ge=1024)] = 256 * 2**20
    """Bytes of all request bodies a router reads or works on at a time; beyond them the answer is 503."""
    max_batch_items: Annotated[Count, Field(ge=1, le=1000)] = 32
    """Most items of one ``/v1/audio/speech/batch`` request."""
    batch_concurrency: Annotated[Count, Field(ge=1, le=1000)] = 8
    """Items of one such request that are rendered at the same time."""
    request_timeout_s: Annotated[Number, Field(gt=0)] = 300.0
    """Seconds an answer may take in all: 408 before its first byte, a broken connection after it."""

    stream_lead_seconds: Annotated[Number, Field(gt=0)] | None = None
    """Seconds of audio an HTTP stream may be ahead of real time, which bounds what Serve's proxy keeps for a client
    that does not read. Unset: streams are as fast as they are made. With it ``request_timeout_s`` has to cover the
    playing time of the longest answer."""

    # ---- access ----

    api_keys: tuple[Secret, ...] = ()
    """Keys of which a request must carry one (``Authorization: Bearer``). Empty, with ``api_keys_file`` unset:
    anybody may call. Deployment files are shown in dashboards, so prefer ``VOXR_API_KEYS`` or the file."""
    api_keys_file: str | None = None
    """File with one key on each line, read when the application is built; lines that begin with ``#`` are comments."""
    cors_origins: tuple[Word, ...] = ()
    """Origins whose web pages may call, such as ``https://example.org``; ``*`` for all. Empty: none."""
    allowed_audio_hosts: tuple[Word, ...] = ()
    """Hosts (``name`` or ``name:port``) that recordings may be fetched from by ``http(s)://`` address. Empty: none."""
    allowed_audio_folders: tuple[Folder, ...] = ()
    """Folders, as the router sees them, that recordings may be read from by ``file://`` address. Empty: none."""

    # ---- voices ----

    voices_dir: Annotated[str, Field(min_length=1)] = "~/.voxr_ray/voices"
    """Folder of the named voices: recordings (name = stem) with an optional ``.txt`` transcript. Those added over HTTP
    are stored there too. On the node of the library deployment, or on storage all nodes share."""
    max_voices: Annotated[Count, Field(ge=0, le=10_000)] = 1000
    """Most voices the folder may hold before uploads are refused; 0 refuses all of them."""
    library_options: dict[str, Any] = Field(default_factory=dict)
    """Ray actor options of the library deployment; on several nodes, a resource that only the folder's node has."""

    # ---- WebSocket sessions ----

    ws_lead_seconds: Annotated[Number, Field(gt=0, le=3600)] = 30.0
    """Seconds of audio a session may be ahead of real time, for clients that do not confirm what they have read."""
    ws_idle_timeout_s: Annotated[Number, Field(gt=0)] = 600.0
    """Seconds after which a session that neither sends nor speaks is closed."""

    # ---- operation ----

    graceful_shutdown_timeout_s: Annotated[Number, Field(ge=0)] | None = None
    """Seconds a replica or router that is being removed may use to finish its answers. Unset: ``request_timeout_s``
    and ten more."""
    health_check_period_s: Annotated[Number, Field(gt=0)] = 10.0
    """Seconds between two health checks; three failures in a row replace a replica."""
    health_check_timeout_s: Annotated[Number, Field(gt=0)] = 30.0
    """Seconds a health check may take."""

    @classmethod
    def load(cls, args: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Settings from arguments and environment.

        Args:
            args: Values by field name; text is read as JSON where the field is not text.
            environ: Environment variables; those named ``VOXR_…`` are used where ``args`` has nothing, empty ones
                count as unset.

        Raises:
            ConfigurationError: A name is unknown, a value is out of range, or values contradict each other. One line.
        """
        given = collect(args, environ, cls.model_fields)
        try:
            return cls.model_validate({name: read(name, value) for name, value in given.items()})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"][:1])
            message = first["msg"].removeprefix("Value error, ")
            if not name:
                raise ConfigurationError(message) from error
            shown = "…" if name in _SECRET_FIELDS else repr(given.get(name))[:80]
            raise ConfigurationError(f"setting {name} = {shown}: {message}", param=name) from error

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse settings that defeat each other."""
        self._check_together()
        return self

    def _check_together(self) -> None:
        most = self.max_replicas
        if self.num_replicas is not None and (self.min_replicas is not None or most is not None):
            raise ValueError("num_replicas fixes the number of replicas: it excludes min_replicas and max_replicas")
        if most is None and self.min_replicas is not None:
            raise ValueError("min_replicas needs max_replicas: set both, or num_replicas alone")
        if most is None and self.target_ongoing_requests is not None:
            raise ValueError("target_ongoing_requests needs max_replicas: without it nothing scales")
        least = 1 if self.min_replicas is None else self.min_replicas
        if most is not None and least > most:
            raise ValueError(f"min_replicas = {least} is above max_replicas = {most}")
        if most is not None and self.downscale_delay_s < self.upscale_delay_s:
            raise ValueError(
                f"downscale_delay_s = {self.downscale_delay_s:g} is below upscale_delay_s = {self.upscale_delay_s:g}: "
                "replicas would go before a load as brief as theirs could bring them back"
            )
        room = self.max_batch + self.max_queue
        if self.max_ongoing_requests is not None and self.max_ongoing_requests < room:
            raise ValueError(
                f"max_ongoing_requests = {self.max_ongoing_requests} is below max_batch + max_queue = {room}: "
                "Serve would hold back requests that the engine has room for"
            )
        if self.target_ongoing_requests is not None and self.target_ongoing_requests > room:
            raise ValueError(
                f"target_ongoing_requests = {self.target_ongoing_requests:g} is above max_batch + max_queue = {room}: "
                "requests would be refused before a replica is added"
            )
        if self.first_chunk_patches > self.stream_chunk_patches:
            raise ValueError(
                f"first_chunk_patches = {self.first_chunk_patches} is above "
                f"stream_chunk_patches = {self.stream_chunk_patches}: the first chunk is there to be early"
            )
        if self.max_held_body_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_held_body_bytes = {self.max_held_body_bytes} is below max_body_bytes = {self.max_body_bytes}: "
                "a body of the allowed size could never be read"
            )
        if self.min_len + 2 > self.max_len:
            raise ValueError(f"max_len = {self.max_len} is below min_len + 2 = {self.min_len + 2}, the shortest take")
        if self.min_reference_seconds >= self.max_reference_seconds:
            raise ValueError(
                f"min_reference_seconds = {self.min_reference_seconds:g} is not below "
                f"max_reference_seconds = {self.max_reference_seconds:g}"
            )

    def with_size(self, max_batch: int, continuous_capacity: int) -> Self:
        """The same with a width and a capacity that were chosen for them.

        Raises:
            ConfigurationError: What the operator set contradicts the width.
        """
        sized = self.model_copy(update={"max_batch": max_batch, "continuous_capacity": continuous_capacity})
        try:
            sized._check_together()
        except ValueError as error:
            raise ConfigurationError(f"max_batch was not set and {max_batch} slots fit the memory: {error}") from error
        return sized

    @property
    def served_name(self) -> str:
        """Name under which the model is listed and asked for."""
        return self.model_name or self.model.rstrip("/").rsplit("/", 1)[-1] or self.model

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every name a request may use for the model."""
        return (self.served_name, *self.model_aliases)

    @property
    def replica_max_ongoing(self) -> int:
        """Calls Serve lets into a replica: all the engine has room for, refusals, encodes and queries."""
        room = self.max_batch + self.max_queue
        return self.max_ongoing_requests or 2 * room + 16

    @property
    def router_max_ongoing(self) -> int:
        """Calls Serve lets into a router: never the first limit to be met."""
        replicas = self.max_replicas or self.num_replicas or 1
        return max(1000, math.ceil(2 * replicas * self.replica_max_ongoing / self.router_replicas))

    @property
    def routing_report_s(self) -> float:
        """Seconds between two reports of a replica to the routers."""
        replicas = self.max_replicas or self.num_replicas or 1
        return self.routing_report_period_s or max(0.25, replicas / 100)

    @property
    def autoscaling_target(self) -> float:
        """Requests per replica the autoscaler aims at: a batch nearly full, with room for a burst."""
        return self.target_ongoing_requests or max(1.0, 0.75 * self.max_batch)

    @property
    def drain_s(self) -> float:
        """Seconds that answers may use to finish while their replica or router is being removed."""
        if self.graceful_shutdown_timeout_s is not None:
            return self.graceful_shutdown_timeout_s
        return self.request_timeout_s + 10.0
