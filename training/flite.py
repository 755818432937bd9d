"""Flite in this process: a program started for every word costs more than the speech it makes."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

RATE_HZ = 16000


class _Wave(ctypes.Structure):
    """``cst_wave`` of flite's ``cst_wave.h``."""

    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class Flite:
    """The shared libraries of Debian's ``libflite1``. Not thread-safe.

    Raises:
        OSError: The libraries are not installed (``apt-get install flite``).
    """

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
        for name, result, arguments in (
            ("flite_synth_text", ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_void_p)),
            ("utt_wave", ctypes.POINTER(_Wave), (ctypes.c_void_p,)),
            ("utt_relation", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)),
            ("relation_head", ctypes.c_void_p, (ctypes.c_void_p,)),
            ("item_next", ctypes.c_void_p, (ctypes.c_void_p,)),
            ("item_feat_string", ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_char_p)),
            ("item_feat_float", ctypes.c_float, (ctypes.c_void_p, ctypes.c_char_p)),
            ("delete_utterance", None, (ctypes.c_void_p,)),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        library.flite_init()
        self._voices: dict[str, Any] = {}

    def say(self, text: str, speaker: str) -> tuple[np.ndarray, list[tuple[str, float]]]:
        """Speak one utterance: int16 samples, and the phones with their end times in seconds."""
        library = self._library
        utterance = library.flite_synth_text(text.encode("ascii"), self._voice(speaker))
        try:
            wave = library.utt_wave(utterance).contents
            if wave.sample_rate != RATE_HZ:
                raise ValueError(f"{speaker} speaks at {wave.sample_rate} Hz, not {RATE_HZ}")
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).copy()
            times = []
            item = library.relation_head(library.utt_relation(utterance, b"Segment"))
            while item:
                name = library.item_feat_string(item, b"name").decode("ascii")
                times.append((name, float(library.item_feat_float(item, b"end"))))
                item = library.item_next(item)
        finally:
            library.delete_utterance(utterance)
        return samples, times

    def _voice(self, speaker: str) -> Any:
        if speaker not in self._voices:
            voice = ctypes.CDLL(f"libflite_cmu_us_{speaker}.so.1", mode=ctypes.RTLD_GLOBAL)
            register = getattr(voice, f"register_cmu_us_{speaker}")
            register.restype, register.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
            self._voices[speaker] = register(None)
        return self._voices[speaker]


@cache
def flite() -> Flite:
    """The one instance of this process."""
    return Flite()
