// The fields of the page: examples, what they ask for, and which of them the server objects to.
const byId = (id) => document.getElementById(id);

const EXAMPLES = [
  ["A line", "Seven small boats left the harbour before the sun was up."],
  ["Announcement", "Good morning. The train to the coast leaves from platform four, in twelve minutes."],
  ["A story",
    "The lighthouse keeper had one rule: never answer the radio after midnight. For thirty years she kept it. " +
    "Then, on a night without wind, the radio said her name. She put down her tea. She counted to ten. And she answered."],
  ["Numbers", "It is a quarter past nine. Two of the five parcels are here; the other three follow on Monday."],
  ["Chinese", "今天天气很好，我们一起去公园散步吧。"],
];
const RATES_HZ = [8000, 16000, 22050, 24000, 44100, 48000];
const NUMBERS = { cfg: "cfg_value", steps: "inference_timesteps", "max-len": "max_len", rate: "sample_rate" };
const FIELDS = { input: "text", instructions: "style", name: "voice-name", ref_text: "ref-text", ref_audio: "browse" };

export class Form extends EventTarget {
  /** Sends "change" when any field changes. */
  constructor() {
    super();
    for (const [label, text] of EXAMPLES) {
      const chip = Object.assign(document.createElement("button"), { type: "button", textContent: label });
      chip.onclick = () => {
        byId("text").value = text;
        byId("text").focus();
        this.changed();
      };
      byId("examples").append(chip);
    }
    for (const rate of RATES_HZ) byId("rate").append(new Option(`${rate} Hz`, rate));
    byId("text").value = EXAMPLES[0][1];
    byId("speak").addEventListener("input", ({ target }) => {
      target.removeAttribute("aria-invalid");
      this.changed();
    });
    this.changed();
  }

  changed() {
    const text = byId("text").value;
    const words = text.trim().split(/\s+/).filter(Boolean).length;
    byId("count").textContent = text ? `${words} word${words === 1 ? "" : "s"} · ${[...text].length} characters` : "";
    this.dispatchEvent(new Event("change"));
  }

  /** A style steers nothing where speech goes on from a transcript: the server would refuse both together. */
  allowStyle(allowed) {
    byId("style").disabled = !allowed;
    byId("style-hint").textContent = allowed ? "Described in words, never spoken."
      : "Not beside a transcript: speech goes on in the manner of the recording.";
  }

  /** What the fields say, in the server's words; fields left alone are left out. */
  fields() {
    const body = { input: byId("text").value };
    const style = byId("style").value.trim();
    if (style && !byId("style").disabled) body.instructions = style;
    const seed = byId("seed").value.trim();
    if (seed) body.seed = /^-?\d{1,15}$/.test(seed) ? Number(seed) : seed; // what is no number, the server explains
    for (const [id, name] of Object.entries(NUMBERS)) {
      if (byId(id).value !== "") body[name] = Number(byId(id).value);
    }
    return body;
  }

  /** Point at the field a problem is about. */
  blame(param) {
    const field = byId(FIELDS[param] ?? "") ?? document.querySelector(`[data-param="${param}"]`);
    if (!field) return;
    field.setAttribute("aria-invalid", "true");
    for (let box = field.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    field.focus();
  }

  clean() {
    for (const field of document.querySelectorAll("#speak [aria-invalid]")) field.removeAttribute("aria-invalid");
  }
}
