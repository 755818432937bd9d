// A colour for each sampler, the same on every replica for as long as the page is open.

// Told apart also with the common kinds of colour blindness, and on light and dark ground.
const COLOURS = ["#1f9e93", "#e08a2e", "#5b7fe0", "#c9578f", "#8bab2f", "#8a63c8", "#3fa9dc", "#c65a45"];

export class Palette {
  constructor() {
    this.known = new Map();
  }

  /** The colour of a sampler; the ninth gets the first one's. */
  of(sampler) {
    const name = label(sampler);
    if (!this.known.has(name)) this.known.set(name, COLOURS[this.known.size % COLOURS.length]);
    return this.known.get(name);
  }
}

export const label = ({ cfg_value: guidance, inference_timesteps: steps }) => `guidance ${guidance} · ${steps} steps`;
