// Draws a take while it grows: waveform above, spectrogram below, in the colours of the scheme.
import { BANDS, Columns } from "./spectrum.js";

const SHORTEST_S = 3; // seconds the picture spans at least while audio still comes

export class Picture {
  constructor(wave, spectrum) {
    this.wave = wave;
    this.spectrum = spectrum;
    this.strip = document.createElement("canvas"); // the spectrogram, one pixel a column and band
    this.strip.height = BANDS;
    this.columns = null;
    this.position = 0; // seconds that have been played
    this.growing = false;
    this.waiting = false; // for a frame
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    new ResizeObserver(() => this.draw()).observe(wave);
    this.recolour();
  }

  /** Seconds that the width stands for. */
  get span() {
    const seconds = this.columns?.seconds ?? 0;
    return this.growing ? Math.max(SHORTEST_S, seconds * 1.08) : Math.max(0.1, seconds);
  }

  start(rateHz) {
    this.columns = new Columns(rateHz);
    this.growing = true;
    this.position = 0;
    this.fresh();
    this.soon();
  }

  push(samples) {
    this.columns.push(samples);
    this.soon();
  }

  end() {
    this.growing = false;
    this.soon();
  }

  clear() {
    this.columns = null;
    this.soon();
  }

  at(seconds) {
    this.position = seconds;
    this.soon();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  recolour() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    this.ink = value("--wave");
    this.ahead = value("--wave-ahead");
    const stops = [0, 1, 2, 3].map((i) => hex(value(`--heat-${i}`)));
    this.heat = new Uint8ClampedArray(256 * 3);
    for (let level = 0; level < 256; level++) {
      const place = (level / 255) * (stops.length - 1);
      const i = Math.min(stops.length - 2, Math.floor(place));
      for (let c = 0; c < 3; c++) this.heat[3 * level + c] = stops[i][c] + (place - i) * (stops[i + 1][c] - stops[i][c]);
    }
    this.fresh();
    this.draw();
  }

  /** Paint the strip anew from its first column. */
  fresh() {
    this.painted = 0;
    this.merged = this.columns?.merged ?? 0;
    this.strip.width = 4096; // also empties it
  }

  draw() {
    const { columns } = this;
    const wave = fitted(this.wave);
    const spectrum = fitted(this.spectrum);
    if (!columns || columns.count === 0) return;
    const share = Math.min(1, columns.seconds / this.span);
    this.drawWave(wave, share);
    this.paintStrip();
    spectrum.imageSmoothingEnabled = true;
    spectrum.imageSmoothingQuality = "high";
    const { width, height } = this.spectrum;
    spectrum.drawImage(this.strip, 0, 0, columns.count, BANDS, 0, 0, width * share, height);
  }

  drawWave(context, share) {
    const { columns } = this;
    const { width, height } = this.wave;
    const wide = width * share;
    const bar = 3 * Math.max(1, Math.round(devicePixelRatio)); // a bar and the gap after it
    const bars = Math.max(1, Math.floor(wide / bar));
    const played = (this.position / Math.max(1e-9, columns.seconds)) * bars;
    let loudest = 0.08;
    for (let i = 0; i < columns.count; i++) loudest = Math.max(loudest, columns.highs[i], -columns.lows[i]);
    const middle = height / 2;
    for (let b = 0; b < bars; b++) {
      const from = Math.floor((b * columns.count) / bars);
      const to = Math.max(from + 1, Math.floor(((b + 1) * columns.count) / bars));
      let peak = 0;
      for (let i = from; i < to; i++) peak = Math.max(peak, columns.highs[i], -columns.lows[i]);
      const tall = Math.max(bar * 0.5, (peak / loudest) * height * 0.86);
      context.fillStyle = b < played ? this.ink : this.ahead;
      context.beginPath();
      context.roundRect(b * bar + bar / 6, middle - tall / 2, bar * 0.66, tall, bar / 3);
      context.fill();
    }
  }

  paintStrip() {
    const { columns } = this;
    if (columns.merged !== this.merged) this.fresh();
    const fresh = columns.count - this.painted;
    if (fresh <= 0) return;
    const image = new ImageData(fresh, BANDS);
    for (let x = 0; x < fresh; x++) {
      for (let b = 0; b < BANDS; b++) {
        const level = columns.bands[(this.painted + x) * BANDS + b];
        const at = 4 * ((BANDS - 1 - b) * fresh + x);
        for (let c = 0; c < 3; c++) image.data[at + c] = this.heat[3 * level + c];
        image.data[at + 3] = 255;
      }
    }
    this.strip.getContext("2d").putImageData(image, this.painted, 0);
    this.painted = columns.count;
  }
}

/** A canvas at the size it is shown, emptied; its context. */
export function fitted(canvas) {
  const ratio = Math.min(3, devicePixelRatio || 1);
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  return canvas.getContext("2d");
}

function hex(colour) {
  const full = colour.length === 4 ? colour.replace(/[^#]/g, "$&$&") : colour;
  return [1, 3, 5].map((i) => Number.parseInt(full.slice(i, i + 2), 16));
}
