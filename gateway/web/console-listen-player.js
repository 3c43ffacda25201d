/** Plays a call's audio with little delay. Runs in the browser's audio thread. */

const BEFORE_S = 0.06; // buffered before the first sample, and after an underrun
const MOST_S = 0.4; // longest buffer: above it, the oldest audio is dropped

class Listen extends AudioWorkletProcessor {
  constructor() {
    super();
    this.pieces = []; // s16le, left and right in turn
    this.at = 0; // position in the first piece
    this.held = 0; // sample pairs
    this.playing = false;
    this.port.onmessage = ({data}) => {
      const pcm = new Int16Array(data);
      this.pieces.push(pcm);
      this.held += pcm.length / 2;
      while (this.held > MOST_S * sampleRate && this.pieces.length > 1) this.drop();
    };
  }

  drop() {
    this.held -= (this.pieces.shift().length - this.at) / 2;
    this.at = 0;
  }

  process(_, [[left, right]]) {
    if (this.held >= BEFORE_S * sampleRate) this.playing = true;
    for (let i = 0; this.playing && i < left.length; i++) {
      if (!this.pieces.length) {
        this.playing = false;
        break;
      }
      const [piece] = this.pieces;
      left[i] = piece[this.at] / 32768;
      right[i] = piece[this.at + 1] / 32768;
      this.at += 2;
      this.held--;
      if (this.at >= piece.length) this.drop();
    }
    return true;
  }
}

registerProcessor("listen", Listen);
