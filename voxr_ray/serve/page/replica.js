// One replica on the board: its slots, its strip, its numbers.
import { label } from "./palette.js";
import { plural } from "./problems.js";
import { Strip } from "./strip.js";

const STUCK_S = 5; // without progress, while there is work

export class ReplicaCard {
  constructor(id, palette) {
    this.palette = palette;
    this.strip = new Strip(palette);
    this.card = element("article", "card replica");
    this.card.dataset.replica = id;
    const head = element("header");
    this.title = element("h2");
    this.title.textContent = id;
    this.host = element("span", "hint");
    this.pill = element("span", "pill");
    head.append(this.title, this.host, this.pill);
    this.slots = element("div", "slots");
    this.slots.setAttribute("role", "img");
    this.numbers = element("p", "numbers");
    this.card.append(head, this.slots, this.strip.canvas, this.numbers);
    this.before = null; // the reading before, to tell rates
    this.speech = 0; // seconds of speech made a second
  }

  show(replica) {
    this.strip.add(replica);
    this.measure(replica);
    this.host.textContent = replica.host;
    this.showPill(replica);
    this.showSlots(replica);
    const { counts, cache } = replica;
    const finished = total(counts.finished);
    this.numbers.replaceChildren(
      ...fact(finished, "finished"), ...fact(counts.cancelled, "cancelled"), ...fact(total(counts.failed), "failed"),
      ...fact(total(counts.refused), "refused"), ...fact(counts.retakes, "made again"),
      ...fact(`${replica.waiting}`, `waiting (${replica.held} held)`), ...fact(replica.encodes, "recordings"),
      ...fact(share(cache.hits, cache.hits + cache.misses), "cache hits"),
    );
    this.strip.canvas.setAttribute("aria-label",
      `The latest seconds of ${replica.id}: ${plural(replica.rows, "row")} seated, ${replica.waiting} waiting`);
  }

  measure(replica) {
    const { before } = this;
    if (before && replica.now_s > before.now_s) {
      const patches = replica.counts.patches - before.counts.patches;
      const now = (patches * replica.patch_s) / (replica.now_s - before.now_s);
      this.speech = 0.6 * this.speech + 0.4 * now; // steady enough to be read
      if (this.speech < 0.01) this.speech = 0;
    }
    this.before = replica;
  }

  showPill(replica) {
    const stuck = replica.inside > 0 && replica.progress_age_s > STUCK_S;
    this.pill.classList.toggle("bad", stuck || !replica.running);
    if (!replica.running) this.pill.textContent = "stopped";
    else if (stuck) this.pill.textContent = `no progress for ${replica.progress_age_s.toFixed(0)} s`;
    else this.pill.textContent = replica.sampler ? label(replica.sampler) : "idle";
  }

  showSlots(replica) {
    this.card.classList.toggle("wide", replica.width > 32);
    while (this.slots.children.length < replica.width) this.slots.append(element("span", "slot"));
    while (this.slots.children.length > replica.width) this.slots.lastChild.remove();
    const taken = new Set(replica.slots);
    const colour = replica.sampler ? this.palette.of(replica.sampler) : "";
    let reserved = replica.seatings; // slots kept for newcomers under preparation; which, the record does not say
    [...this.slots.children].forEach((square, slot) => {
      const seated = taken.has(slot);
      square.style.background = seated ? colour : "";
      square.style.borderColor = seated ? colour : "";
      square.classList.toggle("reserved", !seated && reserved > 0);
      if (!seated && reserved > 0) reserved -= 1;
    });
    this.slots.setAttribute("aria-label", `${taken.size} of ${replica.width} slots taken`);
  }
}

export function element(tag, className = "") {
  return Object.assign(document.createElement(tag), { className });
}

const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);
const share = (part, all) => (all ? `${Math.round((100 * part) / all)} %` : "–");

function fact(value, name) {
  const span = document.createElement("span");
  const number = document.createElement("b");
  number.textContent = value;
  span.append(number, ` ${name}`);
  return [span];
}
