/** Plays one live call at a time: the caller left, the bot right. */

const PLAYER = "/web/console-listen-player.js";

/**
 * @param {{changed: (id: string) => void, problem: (error: Error) => void}} page `changed`: gets the id of the call that is played now, or "".
 * @returns {{toggle: (id: string) => void}} `toggle`: listen to this call instead of another, or stop if it is this one.
 */
export function makeListener({changed, problem}) {
  let current = null;

  function stop() {
    const {socket, context} = current ?? {};
    current = null;
    socket?.close();
    context?.close();
    changed("");
  }

  async function play(mine, {sampleRate}) {
    const context = (mine.context = new AudioContext({sampleRate})); // the browser resamples it
    if (!context.audioWorklet) throw new Error("To listen, open the console over https or on localhost.");
    await context.audioWorklet.addModule(PLAYER);
    if (current !== mine) return;
    mine.player = new AudioWorkletNode(context, "listen", {numberOfInputs: 0, outputChannelCount: [2]});
    mine.player.connect(context.destination);
    await context.resume();
  }

  function start(id) {
    const socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/v1/calls/${encodeURIComponent(id)}/listen`);
    socket.binaryType = "arraybuffer";
    const mine = (current = {id, socket, context: null, player: null});
    const failed = error => {
      if (current !== mine) return;
      stop();
      problem(error);
    };
    socket.addEventListener("message", ({data}) => {
      if (typeof data !== "string") {
        mine.player?.port.postMessage(data, [data]);
        return;
      }
      const told = JSON.parse(data);
      if (told.type === "listening") play(mine, told).catch(failed);
    });
    socket.addEventListener("close", ({code}) => {
      if (code !== 1000) failed(new Error("This call cannot be heard: it has ended, has too many listeners, or the key lacks the scope calls."));
      else if (current === mine) stop();
    });
    changed(id);
  }

  return {
    toggle(id) {
      const was = current?.id;
      if (current) stop();
      if (was !== id) start(id);
    },
  };
}
