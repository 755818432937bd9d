"""``voxr-ray serve`` is ``serve run`` of this application. Its builder runs before any cluster is started."""

from __future__ import annotations

from tests.unit.cli.command import started


def test_what_is_wrong_is_said_in_one_line() -> None:
    for arguments, words in ((["nonsense=1"], "'nonsense' is no setting"), (["--no-such-option"], "--no-such-option")):
        with started("serve", *arguments) as process:
            said = process.communicate(timeout=120)[1].decode()
        assert process.returncode in (1, 2)
        (line,) = [line for line in said.splitlines() if line.startswith("Error: ")]
        assert words in line
        assert "Traceback" not in said
