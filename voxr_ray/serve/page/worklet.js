// Plays a tape on the audio thread: nothing the page does can make it stutter.
import { Tape } from "./tape.js";

const REPORT_EVERY = 2048; // samples

class TapePlayer extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.tape = new Tape(processorOptions.lead);
    this.played = 0; // samples of speech that left for the speakers, in all
    this.since = 0;
    this.port.onmessage = ({ data: [what, value] }) => {
      if (what === "push") this.tape.push(value);
      else if (what === "whole") this.tape.whole = true;
      else if (what === "seek") this.tape.seek(value);
      else if (what === "playing") this.tape.playing = value;
      this.report();
    };
  }

  process(_inputs, [[output]]) {
    const before = this.tape.playing;
    this.played += this.tape.read(output);
    this.since += output.length;
    if (this.since >= REPORT_EVERY || before !== this.tape.playing) this.report();
    return true;
  }

  report() {
    this.since = 0;
    this.port.postMessage({ ...this.tape.state, played: this.played });
  }
}

registerProcessor("tape-player", TapePlayer);
