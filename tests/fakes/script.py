"""Directives in a text that make the fake model misbehave for that one request.

A directive looks like ``@patches=12@`` and is part of the spoken text, so it travels through every layer and every
actor that a real text travels through:

===========================  ==========================================================================================
``@patches=12@``             the stop head wins from the 12th patch on
``@patches=never@``          the stop head never wins
``@patches=30,30,5@``        a length for each take: the one at ``seed % 3``
``@fail=prefill@``           ``prefill`` or ``admit`` raises; ``fail=release`` too (which is fatal to an engine)
``@fail=decode:3@``          ``decode`` raises when it meets the 3rd patch; ``fail=step:3`` when drawing it (fatal)
``@sleep=step:0.05@``        every such call takes that much longer: ``prefill`` (each piece), ``step``, ``decode``
``@hang=prefill@``           every such call blocks until ``model.unhang`` is set: ``prefill``, ``step``, ``decode``
``@audio=nan@``              decodes to NaN; ``audio=none`` decodes to no sample at all
``@tokens=none@``            has no token: ``plan`` refuses
===========================  ==========================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_DIRECTIVE = re.compile(r"@(patches|fail|sleep|hang|audio|tokens)=([a-z0-9.:,]+)@")


@dataclass(frozen=True)
class Script:
    """What the directives of one text ask for."""

    lengths: tuple[int | None, ...] = ()
    fail: dict[str, int] = field(default_factory=dict)
    sleep: dict[str, float] = field(default_factory=dict)
    hang: frozenset[str] = frozenset()
    audio: str = ""
    no_tokens: bool = False

    @classmethod
    def of(cls, text: str) -> Script:
        lengths: tuple[int | None, ...] = ()
        fail: dict[str, int] = {}
        sleep: dict[str, float] = {}
        hang: set[str] = set()
        audio, no_tokens = "", False
        for verb, value in _DIRECTIVE.findall(text):
            name, _, argument = value.partition(":")
            if verb == "patches":
                lengths = tuple(None if part == "never" else int(part) for part in value.split(","))
            elif verb == "fail":
                fail[name] = int(argument or 1)
            elif verb == "sleep":
                sleep[name] = float(argument)
            elif verb == "hang":
                hang.add(name)
            elif verb == "audio":
                audio = value
            else:
                no_tokens = True
        return cls(lengths, fail, sleep, frozenset(hang), audio, no_tokens)

    def length(self, text: str, seed: int) -> int | None:
        """Patches until the stop head wins, ``None`` for never. Without a directive it grows with the text."""
        if self.lengths:
            return self.lengths[seed % len(self.lengths)]
        return 2 + 2 * len(text.split())
