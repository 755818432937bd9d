// The page to talk to: what the form asks for becomes a take on the stage.
import { call, key } from "./api.js";
import { Clip } from "./clip.js";
import { Code } from "./code.js";
import { Form } from "./form.js";
import { asProblem } from "./problems.js";
import { Stage } from "./stage.js";
import { Take } from "./take.js";
import { Voices } from "./voices.js";

const byId = (id) => document.getElementById(id);

const form = new Form();
const voices = new Voices(new Clip());
const stage = new Stage();
const code = new Code(() => ({ model: model.id, ...(voices.once ? once() : { voice: voices.chosen }), ...form.fields() }));
let model = { id: "voxr", sample_rate: 48000 };
let take = null; // under way

function once() {
  const text = voices.clip.transcript;
  return { ref_audio: true, ...(text && { ref_text: text }) };
}

function report(problem) {
  if (problem.code === "invalid_api_key") {
    askForKey(problem);
    return;
  }
  byId("error-title").textContent = problem.title;
  byId("error-text").textContent = problem.text;
  byId("error").hidden = false;
  byId("error-again").hidden = problem.param !== null;
  if (problem.param) form.blame(problem.param);
}

async function speak() {
  take?.stop();
  const mine = new Take(null);
  take = mine;
  byId("error").hidden = true;
  form.clean();
  running(true);
  stage.begin(mine, Number(byId("rate").value) || model.sample_rate);
  let end = "";
  try {
    mine.request = { model: model.id, ...(await voices.fields()), ...form.fields() };
    await mine.run(() => stage.open(), (samples) => { if (take === mine) stage.hear(samples); });
    end = `${mine.seconds.toFixed(1)} s of speech.`;
  } catch (error) {
    const problem = asProblem(error);
    end = mine.samples ? `Stopped after ${mine.seconds.toFixed(1)} s.` : problem ? "No speech." : "Stopped.";
    if (problem && take === mine) report(problem);
    if (!problem) stage.player?.pause();
  }
  if (take !== mine) return; // another has taken its place
  take = null;
  stage.end(end);
  running(false);
}

function running(on) {
  byId("go-label").textContent = on ? "Stop" : "Speak";
  byId("go").toggleAttribute("data-running", on);
}

function stop() {
  take?.stop();
}

function askForKey(problem) {
  byId("key-form").hidden = false;
  byId("key-hint").textContent = key.get() ? problem.text : "It stays in this tab and is forgotten when you close it.";
  byId("key").setAttribute("aria-invalid", String(key.get() !== ""));
  byId("key").focus();
}

/** What the server is: its model, and its voices. */
async function greet() {
  try {
    [model] = (await (await call("v1/models")).json()).data;
    byId("model").textContent = `${model.id} · ${model.sample_rate / 1000} kHz`;
    byId("notice").hidden = !model.notice;
    byId("notice").textContent = model.notice ? `Note: ${model.notice}.` : "";
    await voices.load();
    byId("key-form").hidden = true;
    byId("forget").hidden = !key.get();
    document.body.dataset.ready = "";
  } catch (error) {
    report(asProblem(error));
  }
}

byId("speak").addEventListener("submit", (event) => {
  event.preventDefault();
  if (take) stop();
  else speak();
});
byId("error-again").onclick = () => (document.body.dataset.ready === undefined ? greet().then(speak) : speak());
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  byId("key").value = "";
  greet().then(() => { if (byId("key-form").hidden) byId("text").focus(); });
});
byId("forget").onclick = () => {
  key.forget();
  location.reload();
};
addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    speak();
  }
});
stage.addEventListener("problem", ({ detail }) => report(detail.problem));
stage.addEventListener("seed", ({ detail }) => {
  byId("seed").value = detail.seed;
  document.querySelector(".advanced").open = true;
  form.changed();
  byId("seed").focus();
});
voices.addEventListener("problem", ({ detail }) => {
  if (detail.problem.code === "invalid_api_key") askForKey(detail.problem);
});
for (const source of [form, voices]) {
  source.addEventListener("change", () => {
    form.allowStyle(!voices.continues);
    code.draw();
  });
}
code.draw();
greet();
