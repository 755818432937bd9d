// From samples to columns of a picture: levels over time, and a spectrogram. Pure arithmetic, no canvas.

const SIZE = 1024; // samples of one transform
const LOWEST_HZ = 60;
const HIGHEST_HZ = 12000;
const FLOOR_DB = -84; // shown as nothing
const CEILING_DB = -18;

export const BANDS = 88;
const MOST_COLUMNS = 4096; // then every two are merged, and a column spans twice the time

/** Columns of a growing recording: least and greatest sample, and 0 to 255 for each band, low tones first. */
export class Columns {
  constructor(rateHz) {
    this.rateHz = rateHz;
    this.hop = Math.max(64, Math.round(rateHz / 100)); // samples of a column, before merging
    this.count = 0;
    this.merged = 0; // times that columns were merged: pictures start anew then
    this.lows = new Float32Array(MOST_COLUMNS);
    this.highs = new Float32Array(MOST_COLUMNS);
    this.bands = new Uint8Array(MOST_COLUMNS * BANDS);
    this.samples = 0;
    this.span = 1; // hops of a column
    this.inside = 0; // hops of the column under way
    this.rest = new Float32Array(this.hop);
    this.filled = 0;
    this.history = new Float32Array(SIZE);
    this.transform = new Transform(rateHz);
    this.column = new Uint8Array(BANDS);
  }

  get seconds() { return this.samples / this.rateHz; }

  push(samples) {
    this.samples += samples.length;
    let at = 0;
    while (at < samples.length) {
      const part = samples.subarray(at, at + this.hop - this.filled);
      this.rest.set(part, this.filled);
      this.filled += part.length;
      at += part.length;
      if (this.filled === this.hop) this.close();
    }
  }

  close() {
    this.filled = 0;
    this.history.copyWithin(0, Math.min(SIZE, this.hop));
    this.history.set(this.rest.subarray(Math.max(0, this.hop - SIZE)), Math.max(0, SIZE - this.hop));
    this.transform.measure(this.history, this.column);
    let low = 1;
    let high = -1;
    for (const sample of this.rest) {
      if (sample < low) low = sample;
      if (sample > high) high = sample;
    }
    const i = this.count;
    const fresh = this.inside === 0;
    this.lows[i] = fresh ? low : Math.min(this.lows[i], low);
    this.highs[i] = fresh ? high : Math.max(this.highs[i], high);
    for (let b = 0; b < BANDS; b++) {
      const value = this.column[b];
      if (fresh || value > this.bands[i * BANDS + b]) this.bands[i * BANDS + b] = value;
    }
    this.inside += 1;
    if (this.inside < this.span) return;
    this.inside = 0;
    this.count += 1;
    if (this.count === MOST_COLUMNS) this.merge();
  }

  merge() {
    for (let i = 0; i < MOST_COLUMNS / 2; i++) {
      this.lows[i] = Math.min(this.lows[2 * i], this.lows[2 * i + 1]);
      this.highs[i] = Math.max(this.highs[2 * i], this.highs[2 * i + 1]);
      for (let b = 0; b < BANDS; b++) {
        this.bands[i * BANDS + b] = Math.max(this.bands[2 * i * BANDS + b], this.bands[(2 * i + 1) * BANDS + b]);
      }
    }
    this.count = MOST_COLUMNS / 2;
    this.span *= 2;
    this.merged += 1;
  }
}

/** A real transform of SIZE samples under a Hann window, summed into bands that widen with pitch as hearing does. */
class Transform {
  constructor(rateHz) {
    this.window = Float32Array.from({ length: SIZE }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / SIZE));
    this.cos = Float32Array.from({ length: SIZE / 2 }, (_, i) => Math.cos((2 * Math.PI * i) / SIZE));
    this.sin = Float32Array.from({ length: SIZE / 2 }, (_, i) => Math.sin((2 * Math.PI * i) / SIZE));
    this.re = new Float32Array(SIZE);
    this.im = new Float32Array(SIZE);
    const bits = Math.log2(SIZE);
    this.order = Uint16Array.from({ length: SIZE }, (_, i) => {
      let reversed = 0;
      for (let bit = 0; bit < bits; bit++) reversed |= ((i >> bit) & 1) << (bits - 1 - bit);
      return reversed;
    });
    const mel = (hz) => 2595 * Math.log10(1 + hz / 700);
    const hz = (m) => 700 * (10 ** (m / 2595) - 1);
    const top = mel(Math.min(HIGHEST_HZ, rateHz / 2));
    const bottom = mel(LOWEST_HZ);
    this.edges = Array.from({ length: BANDS + 1 }, (_, b) => (hz(bottom + ((top - bottom) * b) / BANDS) * SIZE) / rateHz);
  }

  measure(samples, levels) {
    const { re, im } = this;
    for (let i = 0; i < SIZE; i++) {
      re[this.order[i]] = samples[i] * this.window[i];
      im[this.order[i]] = 0;
    }
    for (let half = 1; half < SIZE; half *= 2) {
      const stride = SIZE / (2 * half);
      for (let start = 0; start < SIZE; start += 2 * half) {
        for (let k = 0; k < half; k++) {
          const a = start + k;
          const b = a + half;
          const c = this.cos[k * stride];
          const s = this.sin[k * stride];
          const r = re[b] * c + im[b] * s;
          const m = im[b] * c - re[b] * s;
          re[b] = re[a] - r;
          im[b] = im[a] - m;
          re[a] += r;
          im[a] += m;
        }
      }
    }
    for (let b = 0; b < BANDS; b++) {
      const from = Math.round(this.edges[b]);
      const to = Math.max(from + 1, Math.round(this.edges[b + 1]));
      let power = 0;
      for (let i = from; i < to; i++) power = Math.max(power, re[i] ** 2 + im[i] ** 2);
      const db = 10 * Math.log10((power * 16) / SIZE ** 2 + 1e-12);
      levels[b] = Math.max(0, Math.min(255, (255 * (db - FLOOR_DB)) / (CEILING_DB - FLOOR_DB)));
    }
  }
}
