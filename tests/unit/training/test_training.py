"""The training code: its passes are the served ones, its files load, and its stages fit together."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("wordfreq")
pytest.importorskip("tqdm")

from training import corpus, latents, lexicon, lm, phones, start, teacher, vae
from training.align import align
from training.export import export
from training.features import BLOCK, Latents, pitch, raw_features
from training.files import read_json, write_json
from training.lexicon import build_tokenizer, pronounce, symbol_ids
from training.schedule import learning_rate
from training.settings import LATENT_DIM, PATCH_SIZE
from training.student import new_network, run_stack, velocity
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, load_network
from voxr_ray.voxcpm2.settings import load_settings

LEXICON = {"hello": "HƏLO", "it": "ÏT", "it's": "ÏTS", "seven": "SƐVƏN", "a": "Ə", "two": "TU", "hundred": "HɅNDRƏD"}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Hello!", "HƏLO."),
        ("It's  a “hello”…", "ÏTS Ə HƏLO."),
        ("7", "SƐVƏN"),
        ("207", "TU HɅNDRƏD and SƐVƏN"),
        ("1999", "nineteen ninety nine"),
        ("1,200", "one thousand TU HɅNDRƏD"),
        ("2000", "TU thousand"),
        ("3.5 %", "three point five percent"),
        ("Café & bar", "cafe and bar"),
        ("!!!", ""),
    ],
)
def test_the_tokenizer_says_numbers_and_words(text: str, spoken: str) -> None:
    tokens = build_tokenizer(LEXICON).encode(text, add_special_tokens=False).tokens
    assert "".join(tokens).replace("▁", " ").strip() == spoken


def test_training_and_tokenizer_agree() -> None:
    tokenizer, ids = build_tokenizer(LEXICON), symbol_ids()
    rng = random.Random(0)
    for _ in range(200):
        text = " ".join(rng.choice([*LEXICON, "other", "words", "don't"]) for _ in range(rng.randint(1, 6)))
        text += rng.choice(["", ".", "?", ", hello"])
        spelled = [ids[symbol] for symbol in " " + pronounce(text, LEXICON)]
        assert tokenizer.encode(text, add_special_tokens=False).ids == spelled


def test_speech_is_found_in_its_text() -> None:
    said = [("pau", 1), ("hh", 2), ("ax", 1), ("l", 2), ("ow", 3), ("pau", 2)]
    labels = np.array([phones.INDEX[phone] for phone, count in said for _ in range(count)])
    path = align(" HƏLO.", labels)
    assert np.diff(path).min() >= 0
    assert [" HƏLO."[index] for index in path[:9]] == list(" HHƏLLOOO")


def test_pitch_of_a_tone() -> None:
    time = torch.arange(16000) / 16000
    wave = sum(torch.sin(2 * np.pi * 140.0 * part * time) / part for part in range(1, 6))
    frequency, correlation = pitch(0.1 * torch.as_tensor(wave))
    assert (frequency[4:] - 140.0).abs().max() < 3.0
    assert correlation[4:].min() > 0.9


def test_latents_are_causal_and_scaled() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = 0.1 * torch.randn(400 * BLOCK, generator=generator)
    raw = raw_features(samples)
    projected = Latents.fit(raw, LATENT_DIM)(raw)
    assert projected.square().mean().sqrt() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(raw_features(samples[: 10 * BLOCK]), raw[:10])


def test_the_passes_are_the_served_ones() -> None:
    network = new_network(3)
    torch.nn.init.normal_(network.feat_decoder.estimator.out_proj.weight)
    x = torch.randn(1, 12, network.config.lm_config.hidden_size)
    stack = network.base_lm
    cache = stack.new_cache(1, 12, dtype=torch.float32, device=torch.device("cpu"))
    dit = network.feat_decoder.estimator
    noisy, previous = torch.randn(2, 3, PATCH_SIZE, LATENT_DIM).unbind(0)
    mu, times = torch.randn(3, 2, dit.hidden), torch.full((3,), 0.3)
    with torch.no_grad():
        torch.testing.assert_close(run_stack(stack, x, causal=True), stack.prefill(x, cache, 0), atol=1e-4, rtol=1e-4)
        token = dit.time_tokens(times[:1], torch.zeros(1)).view(1, 1, -1)
        served = dit(noisy, *(dit.tokens(known) for known in (mu, token, dit.cond_proj(previous))))
        torch.testing.assert_close(velocity(dit, noisy, mu, times, previous), served, atol=1e-4, rtol=1e-4)


def test_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(progress / 100, 1.0, warm_up=0.1) for progress in range(101)]
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[0] < 0.1
    assert rates[-1] < 0.05


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of a few utterances, spoken by a stand-in that hums."""

    def hum(text: str, speaker: str) -> tuple[np.ndarray, list[tuple[str, float]]]:
        count = len(text.split())
        height = 100 + 30 * list(corpus.SPEAKERS).index(speaker)
        time = np.arange(int((0.3 * count + 0.2) * 16000)) / 16000
        samples = (8000 * np.sin(2 * np.pi * height * time)).astype(np.int16)
        return samples, [("pau", 0.06), *(("hh", 0.06 + 0.3 * (index + 1)) for index in range(count))]

    monkeypatch.setattr(teacher, "say", hum)
    corpus.run(tmp_path, 40)
    write_json(tmp_path / "lexicon.json", LEXICON)
    teacher.run(tmp_path)
    latents.run(tmp_path)
    return tmp_path


def test_the_stages_fit_together(work: Path, tmp_path: Path) -> None:
    lm.train(work, steps=2, positions=200, rate=1e-3, seed=1, until=None)
    for half in ("decoder", "encoder"):
        vae.train(work, half, steps=1, rows=1, rate=1e-3, seed=1, until=None, compiled=False)
    lm.train(work, steps=3, positions=200, rate=1e-3, seed=1, until=None)  # goes on from its checkpoint
    folder = tmp_path / "checkpoint"
    export(work, folder)

    assert load_settings(folder).defaults.cfg_value is not None
    network = load_network(CheckpointFiles.find(folder))
    averaged = torch.load(work / "lm.pt", weights_only=True)
    assert averaged["done"] == 3
    trained = new_network(0)
    trained.load_state_dict(averaged["average"])
    text = torch.tensor([110, 120])
    torch.testing.assert_close(network.embed_text(text), trained.embed_text(text).detach(), atol=0.02, rtol=0.01)
    halves = vae.new_vae(0)
    for half in ("decoder", "encoder"):
        getattr(halves, half).load_state_dict(torch.load(work / f"{half}.pt", weights_only=True)["average"])
    frames = torch.randn(1, 4, LATENT_DIM)
    with torch.no_grad():
        expected, _ = halves.decode(frames, halves.decoder.new_state(1))
        audio, _ = network.audio_vae.decode(frames, network.audio_vae.decoder.new_state(1))
        torch.testing.assert_close(audio, expected, atol=0.02, rtol=0.02)
        expected, _ = halves.encode(expected, halves.encoder.new_state(1))
        found, _ = network.audio_vae.encode(audio, network.audio_vae.encoder.new_state(1))
        torch.testing.assert_close(found, expected, atol=0.1, rtol=0.05)


def test_training_is_taken_up_from_a_packed_state(work: Path, tmp_path: Path) -> None:
    lm.train(work, steps=2, positions=150, rate=1e-3, seed=1, until=None)
    vae.train(work, "decoder", steps=1, rows=1, rate=1e-3, seed=1, until=None, compiled=False)
    start.pack(work, tmp_path / "start.pt")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("corpus.json", "lexicon.json", "teacher", "latents"):
        (elsewhere / name).symlink_to(work / name)
    start.unpack(tmp_path / "start.pt", elsewhere)
    with pytest.raises(FileExistsError):
        start.unpack(tmp_path / "start.pt", elsewhere)
    lm.train(elsewhere, steps=1, positions=150, rate=1e-3, seed=1, until=None, begin=0.5)
    vae.train(elsewhere, "decoder", steps=2, rows=1, rate=1e-3, seed=1, until=None, compiled=False)
    assert torch.load(elsewhere / "lm.pt", weights_only=True)["done"] == 3
    assert torch.load(elsewhere / "decoder.pt", weights_only=True)["done"] == 2


def test_the_test_sentences_are_not_trained(work: Path) -> None:
    trained = {part.strip() for line in read_json(work / "corpus.json") for part in line["text"].split(",")}
    test = read_json(work / "test.json")
    assert not trained & {*test["closed"], *test["harvard"]}
    assert len(set(test["closed"])) == corpus.TEST_SENTENCES
    assert lexicon.load(work) == LEXICON


def test_the_kept_state_loads(tmp_path: Path) -> None:
    start.unpack(start.KEPT, tmp_path)
    new_network(0).load_state_dict(torch.load(tmp_path / "lm.pt", weights_only=True)["average"])
    assert Latents.load(tmp_path / "latents.npz").forward_matrix.shape[1] == LATENT_DIM
