"""``voxr-ray say``: speak a text, into a file or aloud."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from voxr_ray.cli.client import KEY_VARIABLE, key_option
from voxr_ray.cli.outputs import FORMATS, PLAYERS, SUFFIXES, Output, choose_output
from voxr_ray.cli.speaker import Fields, Speaker
from voxr_ray.cli.texts import read_text

if TYPE_CHECKING:
    from tqdm import tqdm


@click.command()
@click.argument("text")
@click.option("-o", "--output", metavar="FILE", help="Write here, in the format of the suffix; - is standard output.")
@click.option("-f", "--format", "wanted", type=click.Choice(FORMATS), help="Format, whatever the suffix.")
@click.option("--player", type=click.Choice(list(PLAYERS)), help="Play with this one.")
@click.option("--voice", metavar="NAME|FILE", help="A stored voice, or a recording to imitate.")
@click.option("--voice-text", metavar="TEXT", help="What the recording says: speech then continues from it.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Equal seeds sound equal.")
@click.option("--cfg", type=click.FloatRange(0, 10), help="Guidance scale.")
@click.option("--steps", type=click.IntRange(2, 100), help="Euler steps a patch.")
@click.option("--instructions", metavar="TEXT", help="How to speak, in words.")
@click.option("--normalize", is_flag=True, help="Spell out numbers, dates and money first.")
@click.option("--url", help="Speak through this server instead of an engine in this process.")
@key_option
@click.option("--model", help="Checkpoint: default, a folder, or a Hugging Face id.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Where to compute.")
@click.option("--threads", type=click.IntRange(1, 256), help="CPU threads.")
@click.option("--progress/--no-progress", default=None, help="Show a bar; by default where there is a terminal.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def say(
    text: str,
    output: str | None,
    wanted: str | None,
    player: str | None,
    voice: str | None,
    voice_text: str | None,
    url: str | None,
    api_key: str | None,
    progress: bool | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Speak TEXT: words, the path of a UTF-8 text file of any length, or - for standard input.

    Without -o it is played while it is made, with the first of ffplay, paplay, aplay and play that is there.

    Settings of the engine may also come from VOXR_ variables, as a server's do. A long text is spoken part by part in
    one voice; when it is interrupted, the file holds the parts that were complete.

    \b
    voxr-ray say "Hello world."                                   play it
    voxr-ray say "Hello world." -o hello.mp3 --seed 7
    voxr-ray say book.txt -o book.opus --voice alice --url http://localhost:8000
    echo "Hello." | voxr-ray say - -o - -f wav | aplay
    voxr-ray say "In my voice." -o mine.flac --voice me.wav
    """
    if quiet:
        logging.getLogger().setLevel(logging.ERROR)
    spoken = read_text(text)
    sink = choose_output(output, wanted, player)
    fields = _fields(spoken, voice, voice_text, options)
    engine = {name: value for name in ("model", "device", "threads") if (value := options[name]) is not None}
    if url is not None and engine:
        raise click.UsageError(f"--{next(iter(engine))} is for an engine in this process, not for --url")
    speaker = _speaker(url, api_key, engine, quiet)
    asyncio.run(_say(speaker, fields, sink, _Teller(output, progress, quiet)))


def _speaker(url: str | None, api_key: str | None, engine: dict[str, Any], quiet: bool) -> Speaker:
    if url is not None:
        from voxr_ray.cli.remote import RemoteSpeaker

        return RemoteSpeaker(url, api_key)
    from voxr_ray.cli.local import open_local

    if not quiet:
        logging.getLogger("voxr_ray.voxcpm2.progress").setLevel(logging.INFO)  # downloads and large models take long
        if sys.stderr.isatty():
            click.echo("loading the model …", err=True)
    # The key is for servers: an engine takes variables of that kind for settings.
    return open_local(engine, {name: value for name, value in os.environ.items() if name != KEY_VARIABLE})


def _fields(text: str, voice: str | None, voice_text: str | None, options: dict[str, Any]) -> Fields:
    """The request, as HTTP takes it."""
    chosen = {
        "seed": options["seed"],
        "cfg_value": options["cfg"],
        "inference_timesteps": options["steps"],
        "instructions": options["instructions"],
        "normalize": options["normalize"] or None,
    }
    fields = {"input": text} | {name: value for name, value in chosen.items() if value is not None}
    recording = None if voice is None else Path(voice)
    if recording is not None and recording.is_file():
        fields["ref_audio"] = base64.b64encode(recording.read_bytes()).decode()
        if voice_text is not None:
            fields["ref_text"] = voice_text
        return fields
    if voice_text is not None:
        raise click.UsageError("--voice-text needs --voice FILE, the recording it belongs to")
    if voice is not None:
        from voxr_ray.serve.voice_files import SUFFIXES as RECORDINGS

        if "/" in voice or Path(voice).suffix.lower() in {*SUFFIXES, *RECORDINGS}:
            raise click.UsageError(f"--voice {voice}: there is no such file")
        fields["voice"] = voice
    return fields


async def _say(speaker: Speaker, fields: Fields, output: Output, teller: _Teller) -> None:
    """Speak all parts. The output is complete or, after whatever went wrong, ends with what was spoken."""
    loop = asyncio.get_running_loop()
    # One thread, so that nothing is written at the same time as the end is.
    with ThreadPoolExecutor(1, thread_name_prefix="output") as thread:
        try:
            parts = await speaker.begin(fields)
            teller.begins(parts)
            for part in parts:
                async with aclosing(speaker.speak(part, live=output.live)) as sounds:
                    async for sound in sounds:
                        teller.hears(len(sound.samples) / sound.rate_hz, sound.seed)
                        await loop.run_in_executor(thread, output.write, sound.samples, sound.rate_hz)
                teller.spoke(part)
            await loop.run_in_executor(thread, output.close)
        except BaseException:
            output.hush()
            await loop.run_in_executor(thread, output.stop)
            raise
        finally:
            teller.ends()
            await speaker.close()


class _Teller:
    """Tells the person at the terminal how far it is.

    Args:
        path: Where the speech goes, if it goes into a file.
        progress: Whether there is a bar; ``None`` if there is a terminal to show it.
        quiet: Say nothing.
    """

    def __init__(self, path: str | None, progress: bool | None, quiet: bool) -> None:
        self._path = path
        self._quiet = quiet
        self._hidden = True if quiet else None if progress is None else not progress
        self._bar: tqdm[Any] | None = None
        self._seconds = 0.0
        self._seed: int | None = None
        self._parts = self._spoken = 0

    def begins(self, parts: list[str]) -> None:
        """The parts are known."""
        from tqdm import tqdm

        self._parts = len(parts)
        characters = sum(map(len, parts))
        # The whole bar is redrawn for each part, however long that took.
        self._bar = tqdm(total=characters, unit="char", disable=self._hidden, miniters=0, mininterval=0.0)
        self._show()

    def hears(self, seconds: float, seed: int | None) -> None:
        """Some audio came."""
        self._seconds += seconds
        self._seed = seed if self._seed is None else self._seed
        self._show()

    def spoke(self, part: str) -> None:
        """A part is complete."""
        self._spoken += 1
        if self._bar is not None:
            self._bar.update(len(part))
        self._show()

    def ends(self) -> None:
        """Nothing more will come; say what there is."""
        if self._bar is not None:
            self._bar.close()
        if self._quiet or not self._seconds:
            return
        if self._spoken < self._parts and self._parts > 1:
            said = f"stopped after {self._spoken} of {self._parts} parts, {self._seconds:.1f} s of speech"
        else:
            said = f"{self._seconds:.1f} s of speech" + ("" if self._seed is None else f", seed {self._seed}")
        click.echo(f"{self._path}: {said}" if self._path not in (None, "-") else said, err=True)

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"part {min(self._spoken + 1, self._parts)}/{self._parts}, {self._seconds:.1f} s")
