// The take on stage: picture, player, what was measured, and the files to take home.
import { call } from "./api.js";
import { asProblem } from "./problems.js";
import { Picture } from "./picture.js";
import { Player, openContext } from "./player.js";

const byId = (id) => document.getElementById(id);
export const FORMATS = ["mp3", "wav", "flac", "opus", "aac", "pcm"];
const AT_END_S = 0.05; // so near the end, play begins anew

export class Stage extends EventTarget {
  /** Sends "problem" with detail.problem, and "seed" with detail.seed when one is to be kept. */
  constructor() {
    super();
    this.picture = new Picture(byId("wave"), byId("spectrum"));
    this.take = null;
    this.player = null;
    this.state = { position: 0, playing: false, dry: false, gaps: 0, played: 0 };
    byId("play").onclick = () => this.toggle();
    byId("seek").oninput = ({ target }) => this.seek(Number(target.value));
    byId("stage").addEventListener("click", ({ clientX }) => {
      const { left, width } = byId("stage").getBoundingClientRect();
      this.seek(((clientX - left) / width) * this.picture.span);
    });
    byId("keep-seed").onclick = () => {
      this.dispatchEvent(new CustomEvent("seed", { detail: { seed: this.take.seed } }));
    };
    const label = Object.assign(document.createElement("span"), { textContent: "Download" });
    byId("downloads").append(label, ...FORMATS.map((format) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: format });
      button.onclick = () => this.download(format, button);
      return button;
    }));
  }

  get live() { return byId("take").dataset.state === "waiting" || byId("take").dataset.state === "speaking"; }

  show(state, text) {
    byId("take").dataset.state = state;
    byId("status").textContent = text;
  }

  /** Clear the stage for a take. Call it in the click that asked for it: browsers let no other sound begin. */
  begin(take, likelyHz) {
    this.player?.close();
    this.player = null;
    this.take = take;
    this.context = openContext(likelyHz);
    this.context.resume().catch(() => {});
    this.state = { position: 0, playing: false, dry: false, gaps: 0, played: 0 };
    this.picture.clear();
    byId("downloads").hidden = true;
    byId("play").disabled = byId("seek").disabled = true;
    this.show("waiting", "Waiting for the first sound …");
    byId("take").scrollIntoView({ block: "nearest" }); // on a phone it lies below
    this.facts();
  }

  /** The answer has begun, and says at which rate. */
  async open() {
    const { take } = this;
    if (this.context.sampleRate !== take.rateHz) {
      this.context.close();
      this.context = openContext(take.rateHz);
    }
    const player = await Player.open(this.context, (state) => this.moved(player, state));
    if (this.take !== take) {
      player.close();
      return;
    }
    this.player = player;
    byId("take").dataset.player = player.kind;
    this.picture.start(take.rateHz);
    byId("play").disabled = byId("seek").disabled = false;
    this.show("speaking", "Speaking …");
  }

  hear(samples) {
    this.player.push(samples);
    this.picture.push(samples);
    this.facts();
  }

  /** No more will come: `text` says why. */
  end(text) {
    if (this.player) {
      this.player.end();
      this.picture.end();
    } else {
      this.context.close();
    }
    byId("downloads").hidden = !this.take.whole;
    this.show(this.take.samples ? "done" : "empty", text);
    this.facts();
  }

  moved(player, state) {
    if (player !== this.player) return;
    const gaps = state.gaps !== this.state.gaps;
    this.state = state;
    const seconds = this.seconds(state.position);
    const { take } = this;
    byId("take").dataset.played = state.played;
    byId("take").toggleAttribute("data-playing", state.playing);
    byId("play").setAttribute("aria-label", state.playing ? "Pause" : "Play");
    byId("seek").value = seconds;
    byId("clock").textContent = `${seconds.toFixed(1)} / ${take.seconds.toFixed(1)} s`;
    const width = byId("stage").clientWidth;
    byId("head").style.transform = `translateX(${Math.min(width - 2, (seconds / this.picture.span) * width)}px)`;
    this.picture.at(seconds);
    if (gaps) this.facts();
  }

  seconds(position) { return position / this.player.context.sampleRate; }

  toggle() {
    if (!this.player) return;
    if (this.state.playing) this.player.pause();
    else {
      if (this.take.whole && this.seconds(this.state.position) >= this.take.seconds - AT_END_S) this.player.seek(0);
      this.player.play();
    }
  }

  seek(seconds) {
    this.player?.seek(Math.min(seconds, this.take.seconds) * this.player.context.sampleRate);
  }

  facts() {
    const { take, state } = this;
    const first = take.firstMs === null ? "–" : take.firstMs < 1000 ? `${take.firstMs.toFixed(0)} ms` : `${(take.firstMs / 1000).toFixed(2)} s`;
    byId("fact-first").textContent = first;
    const factor = take.realTimeFactor;
    byId("fact-rtf").textContent = factor === null ? "–" : factor.toFixed(2);
    if (factor !== null) {
      const small = document.createElement("small");
      small.textContent = factor < 1 ? `${(1 / factor).toFixed(1)}× faster than speech` : "slower than speech";
      byId("fact-rtf").append(small);
    }
    byId("fact-gaps").textContent = take.samples ? (state.gaps ? String(state.gaps) : "none") : "–";
    byId("fact-seed").textContent = take.seed ?? "–";
    byId("keep-seed").hidden = take.seed === null;
    byId("seek").max = take.seconds.toFixed(2);
    byId("clock").textContent = `${byId("clock").textContent.split(" /")[0]} / ${take.seconds.toFixed(1)} s`;
    if (!take.samples) byId("clock").textContent = "0.0 / 0.0 s";
  }

  /** Equal request and equal seed make equal audio: the server makes the take again, as a file. */
  async download(format, button) {
    button.dataset.busy = "";
    button.disabled = true;
    try {
      const blob = await (await call("v1/audio/speech", { json: this.take.asFile(format) })).blob();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `speech-${this.take.seed}.${format}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } catch (error) {
      this.dispatchEvent(new CustomEvent("problem", { detail: { problem: asProblem(error) } }));
    }
    button.disabled = false;
    delete button.dataset.busy;
  }
}
