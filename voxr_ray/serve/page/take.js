// One take: asks for speech as raw samples and hands them on while they arrive, with what was measured on the way.
import { call } from "./api.js";
import { Problem } from "./problems.js";

export class Take {
  /** @param request Body of a speech request, without format and streaming. */
  constructor(request) {
    this.request = request;
    this.chunks = [];
    this.samples = 0;
    this.rateHz = 0;
    this.seed = null;
    this.whole = false;
    this.firstMs = null; // from the request to the first audio
    this.spentMs = null; // from the request to the last audio so far
    this.leaving = new AbortController();
  }

  get seconds() { return this.rateHz ? this.samples / this.rateHz : 0; }

  /** Seconds of work for a second of speech; below 1 the server is faster than the voice. */
  get realTimeFactor() { return this.samples ? this.spentMs / 1000 / this.seconds : null; }

  /** The request that makes the same take as a file: equal seed, and a streamed take is never made again. */
  asFile(format) {
    return { ...this.request, seed: this.seed, retry_badcase: false, response_format: format };
  }

  stop() { this.leaving.abort(); }

  /**
   * @param onStart Called with this once the answer has begun; awaited.
   * @param onAudio Called with each piece, float32 samples.
   */
  async run(onStart, onAudio) {
    const begun = performance.now();
    const answer = await call("v1/audio/speech", {
      json: { ...this.request, response_format: "pcm", stream: true },
      signal: this.leaving.signal,
    });
    this.rateHz = Number(answer.headers.get("x-voxr-sample-rate"));
    this.seed = Number(answer.headers.get("x-voxr-seed"));
    await onStart(this);
    const reader = answer.body.getReader();
    let odd = new Uint8Array(0); // half a sample may be cut off by the network
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const bytes = new Uint8Array(odd.length + value.length);
        bytes.set(odd);
        bytes.set(value, odd.length);
        const count = bytes.length >> 1;
        odd = bytes.slice(2 * count);
        if (count === 0) continue;
        const samples = floats(bytes, count);
        this.spentMs = performance.now() - begun;
        this.firstMs ??= this.spentMs;
        this.chunks.push(samples);
        this.samples += count;
        onAudio(samples);
      }
    } catch (error) {
      if (error.name === "AbortError") throw error;
      const got = this.samples ? `${this.seconds.toFixed(1)} s had arrived and can be played.` : "";
      throw new Problem({ code: "broken", message: `The server ended the answer before the speech was complete. ${got}` });
    }
    this.whole = true;
  }
}

function floats(bytes, count) {
  const view = new DataView(bytes.buffer);
  const samples = new Float32Array(count);
  for (let i = 0; i < count; i++) samples[i] = view.getInt16(2 * i, true) / 32768;
  return samples;
}
