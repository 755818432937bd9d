// The recording of a voice somebody brings: dropped, chosen or recorded; shown as a waveform, and heard on demand.
import { call } from "./api.js";
import { fitted } from "./picture.js";
import { Problem } from "./problems.js";

const LONGEST_S = 60;
const MOST_BYTES = 10 * 2 ** 20;
const byId = (id) => document.getElementById(id);

export class Clip extends EventTarget {
  /** Sends "change" when a recording comes or goes, "said" with a sentence in detail.text. */
  constructor() {
    super();
    this.blob = null;
    this.name = "";
    this.audio = null; // a decoded AudioBuffer, or null if this browser cannot read the file (the server may)
    this.recorder = null;
    byId("browse").onclick = () => byId("file").click();
    byId("file").onchange = ({ target }) => {
      if (target.files.length) this.take(target.files[0], target.files[0].name);
      target.value = "";
    };
    byId("record").onclick = () => (this.recorder ? this.recorder.stop() : this.record());
    byId("clip-play").onclick = () => (this.source ? this.hush() : this.listen());
    byId("clip-drop").onclick = () => {
      this.drop();
      byId("browse").focus();
    };
    this.acceptDrops(byId("drop"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(byId("clip-wave"));
  }

  get transcript() { return byId("ref-text").value.trim(); }

  acceptDrops(zone) {
    let depth = 0;
    const over = (change) => {
      depth = Math.max(0, depth + change);
      zone.classList.toggle("over", depth > 0);
    };
    // Anywhere on the page: a file that misses the zone would otherwise replace the page.
    addEventListener("dragenter", () => over(1));
    addEventListener("dragleave", () => over(-1));
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      event.preventDefault();
      depth = 0;
      over(0);
      const [file] = event.dataTransfer.files;
      if (file) this.take(file, file.name);
    });
  }

  say(text, bad = false) {
    this.dispatchEvent(new CustomEvent("said", { detail: { text, bad } }));
  }

  async take(blob, name) {
    if (blob.size > MOST_BYTES) {
      this.say(`${name} has ${(blob.size / 2 ** 20).toFixed(1)} MiB; a recording may have ${MOST_BYTES / 2 ** 20}.`, true);
      return;
    }
    this.hush();
    this.blob = blob;
    this.name = name;
    this.audio = null;
    this.encoded = null;
    try {
      this.audio = await new OfflineAudioContext(1, 1, 48000).decodeAudioData(await blob.arrayBuffer());
    } catch {
      // The server reads more formats than browsers do, and says what is wrong with a damaged one.
    }
    byId("clip").hidden = false;
    byId("clip-name").textContent = name;
    byId("clip-facts").textContent = this.audio ? `${this.audio.duration.toFixed(1)} s` : "no preview in this browser";
    byId("clip-play").disabled = !this.audio;
    byId("ref-text").value = "";
    if (this.audio?.duration > LONGEST_S) this.say(`It is longer than ${LONGEST_S} s, the most a voice may have.`, true);
    else this.say("");
    this.draw();
    this.dispatchEvent(new Event("change"));
  }

  drop() {
    this.hush();
    this.blob = this.audio = this.encoded = null;
    byId("clip").hidden = true;
    byId("keep").open = false;
    this.dispatchEvent(new Event("change"));
  }

  async record() {
    if (!navigator.mediaDevices?.getUserMedia) {
      this.say("Browsers give pages the microphone over https or on localhost only. Choose a file instead.", true);
      return;
    }
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    } catch (error) {
      const denied = error.name === "NotAllowedError";
      this.say(denied ? "The browser does not let this page use the microphone." : "No microphone was found.", true);
      return;
    }
    const parts = [];
    const recorder = new MediaRecorder(stream);
    this.recorder = recorder;
    const begun = performance.now();
    const tick = setInterval(() => {
      const seconds = (performance.now() - begun) / 1000;
      byId("record-label").textContent = `Stop · ${seconds.toFixed(0)} s`;
      if (seconds >= LONGEST_S && recorder.state === "recording") recorder.stop();
    }, 200);
    recorder.ondataavailable = ({ data }) => parts.push(data);
    recorder.onstop = () => {
      clearInterval(tick);
      this.recorder = null;
      delete byId("record").dataset.recording;
      byId("record-label").textContent = "Record";
      for (const track of stream.getTracks()) track.stop();
      this.take(new Blob(parts, { type: recorder.mimeType }), "My recording");
    };
    byId("record").dataset.recording = "";
    byId("record-label").textContent = "Stop · 0 s";
    recorder.start();
    this.say("Recording. Read a sentence or two in your usual voice.");
  }

  listen() {
    const context = new AudioContext();
    const source = new AudioBufferSourceNode(context, { buffer: this.audio });
    source.connect(context.destination);
    source.onended = () => {
      context.close();
      if (this.source === source) this.source = null;
      byId("clip-play").textContent = "Listen";
    };
    this.source = source;
    byId("clip-play").textContent = "Stop";
    source.start();
  }

  hush() { this.source?.stop(); }

  /** The recording as the field of a request. */
  async base64() {
    this.encoded ??= await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
      reader.onerror = () => reject(new Problem({ message: "The recording cannot be read any more; choose it again." }));
      reader.readAsDataURL(this.blob);
    });
    return this.encoded;
  }

  /** Store it on the server under a name. */
  async save(name) {
    const form = new FormData();
    form.set("name", name);
    form.set("audio_sample", this.blob, this.name);
    form.set("consent", `confirmed on the page, ${new Date().toISOString()}`);
    if (this.transcript) form.set("ref_text", this.transcript);
    return (await call("v1/audio/voices", { method: "POST", body: form })).json();
  }

  draw() {
    const canvas = byId("clip-wave");
    if (!this.audio || !canvas.clientWidth) return;
    const context = fitted(canvas);
    const samples = this.audio.getChannelData(0);
    const step = 3 * Math.max(1, Math.round(devicePixelRatio));
    const bars = Math.floor(canvas.width / step);
    const peaks = Array.from({ length: bars }, (_, b) => {
      let peak = 0;
      const end = Math.floor(((b + 1) * samples.length) / bars);
      for (let i = Math.floor((b * samples.length) / bars); i < end; i += 4) peak = Math.max(peak, Math.abs(samples[i]));
      return peak;
    });
    const loudest = Math.max(0.02, ...peaks);
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--wave");
    peaks.forEach((peak, b) => {
      const tall = Math.max(step / 2, (peak / loudest) * canvas.height * 0.8);
      context.beginPath();
      context.roundRect(b * step, (canvas.height - tall) / 2, step * 0.66, tall, step / 3);
      context.fill();
    });
  }
}
