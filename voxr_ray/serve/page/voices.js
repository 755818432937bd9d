// The list of voices: the server's, and the recording at hand if there is one.
import { call } from "./api.js";
import { asProblem } from "./problems.js";

const byId = (id) => document.getElementById(id);
const ONCE = "\n"; // no voice can have this name

export class Voices extends EventTarget {
  /** Sends "change" when another voice is chosen or the recording at hand changes, "problem" with detail.problem. */
  constructor(clip) {
    super();
    this.clip = clip;
    this.names = [];
    this.chosen = "default";
    this.box = byId("voices");
    this.box.addEventListener("change", ({ target }) => this.choose(target.value));
    clip.addEventListener("change", () => {
      if (clip.blob) this.chosen = ONCE;
      else if (this.chosen === ONCE) this.chosen = "default";
      this.draw();
      this.changed();
    });
    clip.addEventListener("said", ({ detail }) => this.say(detail.text, detail.bad));
    byId("ref-text").addEventListener("input", () => this.changed());
    byId("save-voice").onclick = () => this.save();
    byId("voice-name").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.save();
    });
  }

  get once() { return this.chosen === ONCE; }

  /** Whether speech goes on from a transcript, which excludes a style. */
  get continues() { return this.once && this.clip.transcript !== ""; }

  changed() { this.dispatchEvent(new Event("change")); }

  choose(name) {
    this.chosen = name;
    this.changed();
  }

  say(text, bad = false) {
    byId("voice-said").textContent = text;
    byId("voice-said").classList.toggle("bad", bad);
  }

  async load() {
    const { voices } = await (await call("v1/audio/voices")).json();
    this.names = voices;
    if (!this.once && !voices.some(({ name }) => name === this.chosen)) this.chosen = "default";
    this.draw();
    this.changed();
  }

  draw() {
    const rows = this.names.map((voice) => this.row(voice.name, voice.name === "default" ? "the model’s own choice"
      : voice.has_transcript ? "recording with transcript" : "recording", voice.name !== "default"));
    if (this.clip.blob) rows.push(this.row(ONCE, "used once, not stored", false, "This recording"));
    this.box.replaceChildren(...rows);
  }

  row(value, about, removable, shown = value) {
    const row = document.createElement("label");
    row.className = "voice";
    const input = Object.assign(document.createElement("input"), { type: "radio", name: "voice", value });
    input.checked = value === this.chosen;
    const face = Object.assign(document.createElement("span"), { className: "face", textContent: [...shown][0].toUpperCase() });
    face.setAttribute("aria-hidden", "true");
    const who = Object.assign(document.createElement("span"), { className: "who", textContent: shown });
    who.append(Object.assign(document.createElement("small"), { textContent: about }));
    row.append(input, face, who);
    if (removable) {
      const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "Delete" });
      remove.setAttribute("aria-label", `Delete the voice ${value}`);
      remove.onclick = (event) => {
        event.preventDefault();
        this.remove(value, remove);
      };
      row.append(remove);
    }
    return row;
  }

  /** Deletes at the second press: a recording cannot be brought back. */
  async remove(name, button) {
    if (!button.classList.contains("sure")) {
      button.classList.add("sure");
      button.textContent = "Really?";
      button.addEventListener("blur", () => {
        button.classList.remove("sure");
        button.textContent = "Delete";
      }, { once: true });
      button.focus();
      return;
    }
    await this.guarded(async () => {
      await call(`v1/audio/voices/${encodeURIComponent(name)}`, { method: "DELETE" });
      await this.load();
      this.say(`${name} is deleted.`);
      this.box.querySelector("input:checked")?.focus();
    });
  }

  async save() {
    const name = byId("voice-name");
    name.setAttribute("aria-invalid", String(!name.value.trim()));
    if (!name.value.trim()) {
      this.say("Give the voice a name.", true);
      name.focus();
      return;
    }
    if (!byId("consent").checked) {
      this.say("A voice is kept only with the consent of the one who speaks.", true);
      byId("consent").focus();
      return;
    }
    byId("save-voice").disabled = true;
    await this.guarded(async () => {
      const voice = await this.clip.save(name.value.trim());
      this.chosen = voice.name;
      name.value = "";
      byId("consent").checked = false;
      this.clip.drop();
      await this.load();
      this.say(`${voice.name} is stored and ready on every replica.`);
      this.box.querySelector("input:checked")?.focus();
    });
    byId("save-voice").disabled = false;
  }

  async guarded(work) {
    try {
      await work();
    } catch (error) {
      const problem = asProblem(error);
      this.say(`${problem.title} ${problem.text}`, true);
      this.dispatchEvent(new CustomEvent("problem", { detail: { problem } }));
    }
  }

  /** Fields of a request that name the voice. */
  async fields() {
    if (!this.once) return { voice: this.chosen };
    const text = this.clip.transcript;
    return { ref_audio: await this.clip.base64(), ...(text && { ref_text: text }) };
  }
}
