// Plays a take while it arrives. One player, one take.
//
// Browsers offer AudioWorklet to secure pages only (https, or localhost). A page opened over plain http from another
// machine plays through the older ScriptProcessorNode: the same tape, on the page's thread.
import { Tape } from "./tape.js";

const LEAD_S = 0.4; // what has to be ahead again after running dry
const BLOCK = 2048;

/** An audio context at the rate of the take, so that nothing is resampled here. Call it in a click: it may then sound. */
export function openContext(rateHz) {
  try {
    return new AudioContext({ sampleRate: rateHz, latencyHint: "interactive" });
  } catch {
    return new AudioContext({ latencyHint: "interactive" }); // a rate the browser does not take
  }
}

export class Player {
  /**
   * @param context An AudioContext, closed by close().
   * @param onState Called with {position, playing, dry, gaps, played}, in samples at the context's rate.
   */
  static async open(context, onState) {
    const lead = Math.round(LEAD_S * context.sampleRate);
    context.resume().catch(() => {}); // without a gesture it stays silent until play()
    const player = new Player(context);
    try {
      await context.audioWorklet.addModule(new URL("./worklet.js", import.meta.url));
      const node = new AudioWorkletNode(context, "tape-player", {
        numberOfInputs: 0, outputChannelCount: [1], processorOptions: { lead },
      });
      node.port.onmessage = ({ data }) => onState(data);
      player.tell = (what, value) => node.port.postMessage([what, value]);
      player.node = node;
      player.kind = "worklet";
    } catch {
      player.fallBack(lead, onState);
    }
    player.node.connect(context.destination);
    return player;
  }

  constructor(context) {
    this.context = context;
  }

  fallBack(lead, onState) {
    const tape = new Tape(lead);
    let played = 0;
    const report = () => onState({ ...tape.state, played });
    const node = this.context.createScriptProcessor(BLOCK, 0, 1);
    node.onaudioprocess = ({ outputBuffer }) => {
      played += tape.read(outputBuffer.getChannelData(0));
      report();
    };
    this.tell = (what, value) => {
      if (what === "push") tape.push(value);
      else if (what === "whole") tape.whole = true;
      else if (what === "seek") tape.seek(value);
      else tape.playing = value;
      report();
    };
    this.node = node;
    this.kind = "script";
  }

  push(samples) { this.tell("push", samples); }

  /** Nothing more will come. */
  end() { this.tell("whole"); }

  seek(position) { this.tell("seek", Math.round(position)); }

  play() {
    this.context.resume().catch(() => {});
    this.tell("playing", true);
  }

  pause() { this.tell("playing", false); }

  close() {
    this.node.disconnect();
    if (this.context.state !== "closed") this.context.close();
  }
}
