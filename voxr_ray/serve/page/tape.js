// The audio of a take as it grows, and a place in it. Used on the audio thread (worklet.js) or, where there is none,
// on the page's own (player.js).
//
// It starts with the first chunk. When it runs dry before the end it waits until `lead` samples are ahead again:
// one longer gap is easier to follow than a stutter.
export class Tape {
  constructor(lead) {
    this.lead = lead;
    this.chunks = [];
    this.starts = []; // of each chunk, in samples
    this.length = 0;
    this.position = 0;
    this.index = 0; // of the chunk that holds the position
    this.whole = false;
    this.playing = true;
    this.dry = false;
    this.gaps = 0;
  }

  push(samples) {
    if (samples.length === 0) return;
    this.starts.push(this.length);
    this.chunks.push(samples);
    this.length += samples.length;
  }

  seek(position) {
    this.position = Math.max(0, Math.min(position, this.length));
    let low = 0;
    let high = this.chunks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= this.position) low = middle;
      else high = middle - 1;
    }
    this.index = low;
    this.dry = false;
  }

  /** Fill `output` with what comes next, silence where there is nothing. Returns how many samples were played. */
  read(output) {
    if (this.dry && (this.whole || this.length - this.position >= this.lead)) this.dry = false;
    let filled = 0;
    if (this.playing && !this.dry) {
      while (filled < output.length && this.position < this.length) {
        const chunk = this.chunks[this.index];
        const from = this.position - this.starts[this.index];
        const part = chunk.subarray(from, from + output.length - filled);
        output.set(part, filled);
        filled += part.length;
        this.position += part.length;
        if (from + part.length === chunk.length && this.index < this.chunks.length - 1) this.index += 1;
      }
      // A chunk that came after its predecessor was used up is found here.
      if (this.position === this.length) {
        if (this.whole) this.playing = false;
        else if (this.length > 0 && filled < output.length) {
          this.dry = true;
          this.gaps += 1;
        }
      }
    }
    output.fill(0, filled);
    return filled;
  }

  get state() {
    return { position: this.position, playing: this.playing, dry: this.dry, gaps: this.gaps };
  }
}
