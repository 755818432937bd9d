// The strip of a replica: who sat in which slot while time went by, how long steps took, and who waited.
import { fitted } from "./picture.js";

export const SPAN_S = 12; // shown
const KEPT_S = 20;
const DELAY_S = 0.9; // the right edge lies that far back, so that what it shows has arrived already
const CURVE = 46; // pixels of the curve

export class Strip {
  constructor(palette) {
    this.palette = palette;
    this.canvas = Object.assign(document.createElement("canvas"), { className: "strip" });
    this.canvas.setAttribute("role", "img");
    this.steps = [];
    this.width = 1;
    this.offset = null; // of the engine's clock to the page's, in seconds
  }

  /** Take in what a reading says. Readings overlap. */
  add(replica) {
    const here = performance.now() / 1000;
    const offset = replica.now_s - here;
    // A late answer makes the engine's clock look slow; the least delayed one is right. Drifts are followed slowly.
    this.offset = this.offset === null ? offset : Math.max(offset, this.offset - 0.002);
    const latest = this.steps.at(-1)?.started_s ?? -Infinity;
    this.steps.push(...replica.steps.filter((step) => step.started_s > latest));
    const oldest = replica.now_s - KEPT_S;
    const first = this.steps.findIndex((step) => step.started_s >= oldest);
    this.steps.splice(0, first < 0 ? this.steps.length : first);
    if (this.width !== replica.width) {
      this.width = replica.width;
      this.canvas.style.height = `${this.lineHeight() * this.width + CURVE + 12}px`;
    }
    this.waiting = replica.waiting;
  }

  lineHeight() { return Math.max(2, Math.min(9, Math.floor(180 / this.width))); }

  draw() {
    const context = fitted(this.canvas);
    if (this.offset === null) return;
    const scale = this.canvas.width / Math.max(1, this.canvas.clientWidth);
    context.scale(scale, scale);
    const width = this.canvas.clientWidth;
    const right = performance.now() / 1000 + this.offset - DELAY_S;
    const x = (seconds) => ((seconds - right + SPAN_S) / SPAN_S) * width;
    this.drawSlots(context, x, width);
    this.drawCurve(context, x, width);
  }

  drawSlots(context, x, width) {
    const tall = this.lineHeight();
    const style = getComputedStyle(document.documentElement);
    context.fillStyle = style.getPropertyValue("--line");
    for (let slot = 0; slot < this.width; slot++) context.fillRect(0, 6 + slot * tall + tall / 2 - 0.25, width, 0.5);
    this.steps.forEach((step, i) => {
      const from = x(step.started_s);
      // Up to the next step where that follows at once: decodes and other rows' work fill the time between.
      const next = this.steps[i + 1];
      const own = step.started_s + (step.step_ms + step.decode_ms) / 1000;
      const until = x(next && next.gap_ms > 0 ? next.started_s : own);
      if (until < 0 || from > width) return;
      context.fillStyle = this.palette.of(step.sampler);
      const seam = until - from > 3 ? 0.7 : 0; // single steps show where there is room
      for (const slot of step.slots) {
        context.fillRect(from, 6 + slot * tall + 0.5, Math.max(0.8, until - from - seam), Math.max(1, tall - 1.5));
      }
    });
  }

  drawCurve(context, x, width) {
    const style = getComputedStyle(document.documentElement);
    const top = 12 + this.lineHeight() * this.width;
    const bottom = top + CURVE - 6;
    const seen = this.steps.filter((step) => x(step.started_s) > -4);
    if (seen.length === 0) return;
    const most = Math.max(4, ...seen.map((step) => step.waiting));
    context.fillStyle = style.getPropertyValue("--line");
    context.beginPath();
    context.moveTo(x(seen[0].started_s), bottom);
    for (const step of seen) context.lineTo(x(step.started_s), bottom - (step.waiting / most) * (CURVE - 10));
    context.lineTo(Math.min(width, x(seen.at(-1).started_s)), bottom);
    context.fill();
    const ceiling = quantile(seen.map((step) => step.step_ms), 0.98) * 1.25 || 1;
    context.strokeStyle = style.getPropertyValue("--ink");
    context.lineWidth = 1.2;
    context.beginPath();
    let before = null;
    for (const step of seen) {
      const y = bottom - Math.min(1, step.step_ms / ceiling) * (CURVE - 10);
      const joined = before && step.started_s - before.started_s < 0.5;
      if (joined) context.lineTo(x(step.started_s), y);
      else context.moveTo(x(step.started_s), y);
      before = step;
    }
    context.stroke();
    context.fillStyle = style.getPropertyValue("--quiet");
    context.font = "11px system-ui, sans-serif";
    context.fillText(`${ceiling.toFixed(ceiling < 10 ? 1 : 0)} ms`, 6, top + 8);
    const waiting = `${this.waiting} waiting`;
    context.fillText(waiting, width - context.measureText(waiting).width - 6, top + 8);
  }

  /** Step times of the latest seconds, in milliseconds. */
  latest(seconds) {
    const since = (this.steps.at(-1)?.started_s ?? 0) - seconds;
    return this.steps.filter((step) => step.started_s >= since).map((step) => step.step_ms);
  }
}

/** A quantile of numbers; 0 of none. */
export function quantile(numbers, share) {
  if (numbers.length === 0) return 0;
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}
