// The board: reads what every replica is doing, twice a second, and shows it.
import { call, key } from "./api.js";
import { Palette } from "./palette.js";
import { asProblem, plural } from "./problems.js";
import { element, ReplicaCard } from "./replica.js";
import { quantile } from "./strip.js";

const PERIOD_MS = 500;
const LATEST_S = 5; // the medians are of
const byId = (id) => document.getElementById(id);

const palette = new Palette();
const cards = new Map();
const still = matchMedia("(prefers-reduced-motion: reduce)");
let paused = false;

async function read() {
  const board = await (await call("v1/board?steps=256")).json();
  const present = new Set(board.replicas.map(({ id }) => id));
  for (const [id, card] of cards) {
    if (present.has(id)) continue;
    card.card.remove();
    cards.delete(id);
  }
  for (const replica of board.replicas) {
    if (!cards.has(replica.id)) {
      const card = new ReplicaCard(replica.id, palette);
      cards.set(replica.id, card);
      byId("replicas").append(card.card);
    }
    cards.get(replica.id).show(replica);
  }
  sum(board);
  showLegend();
  byId("blank").hidden = board.replicas.length > 0;
  byId("blank").textContent = "No replica runs now. One starts with the next request.";
}

function sum({ replicas, silent }) {
  const add = (name) => replicas.reduce((total, replica) => total + replica[name], 0);
  const silence = silent ? ` ${silent} silent` : "";
  text("sum-replicas", replicas.length, silence);
  text("sum-rows", replicas.reduce((total, { slots }) => total + slots.length, 0), ` of ${add("width")}`);
  text("sum-waiting", add("waiting"));
  text("sum-held", add("held"));
  const steps = [...cards.values()].flatMap(({ strip }) => strip.latest(LATEST_S));
  text("sum-step", steps.length ? quantile(steps, 0.5).toFixed(1) : "–", steps.length ? " ms" : "");
  text("sum-speech", [...cards.values()].reduce((total, { speech }) => total + speech, 0).toFixed(1), " s");
  byId("state").textContent = silent ? `${plural(silent, "replica")} did not answer.` : "";
}

function text(id, value, unit = "") {
  const small = element("small");
  small.textContent = unit;
  byId(id).replaceChildren(String(value), small);
}

function showLegend() {
  const items = [...palette.known].map(([name, colour]) => {
    const item = element("span");
    item.setAttribute("role", "listitem");
    const swatch = element("i", "swatch");
    swatch.style.background = colour;
    item.append(swatch, name);
    return item;
  });
  if (items.length) {
    const item = element("span");
    item.setAttribute("role", "listitem");
    item.append(element("i", "swatch reserved"), "being prepared");
    items.push(item);
  }
  if (items.length !== byId("legend").children.length) byId("legend").replaceChildren(...items);
}

function report(problem) {
  const closed = problem.code === "invalid_api_key";
  byId("key-form").hidden = !closed;
  byId("error").hidden = closed;
  byId("error-title").textContent = problem.title;
  byId("error-text").textContent = problem.text;
  if (closed) {
    byId("key").setAttribute("aria-invalid", String(key.get() !== ""));
    byId("key-hint").textContent = key.get() ? problem.text : byId("key-hint").textContent;
  }
  return closed;
}

/** Read again and again; without a key, not before there is one. */
async function watch() {
  const begun = performance.now();
  if (!paused && !document.hidden) {
    try {
      await read();
      byId("error").hidden = byId("key-form").hidden = true;
      if (still.matches) draw();
    } catch (error) {
      if (report(asProblem(error))) return;
    }
  }
  setTimeout(watch, Math.max(50, PERIOD_MS - (performance.now() - begun)));
}

function draw() {
  for (const { strip } of cards.values()) strip.draw();
}

function animate() {
  if (!paused && !still.matches) draw();
  requestAnimationFrame(animate);
}

byId("pause").onclick = ({ currentTarget }) => {
  paused = !paused;
  currentTarget.setAttribute("aria-pressed", String(paused));
  currentTarget.textContent = paused ? "Go on" : "Pause";
};
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  byId("key").value = "";
  watch();
});
watch();
animate();
