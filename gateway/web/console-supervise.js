/** The supervisor's controls: the page's microphone becomes a leg of the chosen call. */

import {ask, askJson} from "./console-api.js";
import {byId, shortId} from "./console-parts.js";

const GATHER_MS = 1000; // longest wait for addresses; what has been found by then is in the offer

/** @returns {Promise<void>} when all addresses are known, or after a second. */
function gathered(connection) {
  return new Promise(resolve => {
    const check = () => connection.iceGatheringState === "complete" && resolve();
    connection.addEventListener("icegatheringstatechange", check);
    setTimeout(resolve, GATHER_MS);
    check();
  });
}

/**
 * Let the buttons of the form `#supervise` work.
 * @param {{chosen: () => string, announce: (text: string) => void, problem: (error: Error) => void}} page
 *   `chosen`: id of the chosen call, or "".
 * @returns {{show: () => void}} `show`: the chosen call has changed, or is over.
 */
export function makeSupervisor({chosen, announce, problem}) {
  const form = byId("supervise");
  const buttons = [...form.querySelectorAll("button[name=mode]")];
  const [leave, note] = [byId("supervise-leave"), byId("supervise-note")];
  let current = null; // {call, leg, mode, connection, microphone, player}

  function show() {
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(current?.mode === button.value));
      button.disabled = current ? !current.leg : !chosen();
    }
    leave.disabled = !current;
    note.textContent = current ? `in call ${shortId(current.call)}` : "";
  }

  function stop() {
    const {call, leg, connection, microphone, player} = current ?? {};
    current = null;
    if (leg) ask(`/v1/calls/${call}/supervise/${leg}`, {method: "DELETE"}).catch(() => {}); // it may be over already
    connection?.close();
    for (const track of microphone?.getTracks() ?? []) track.stop();
    if (player) player.srcObject = null;
    show();
  }

  async function start(mode) {
    const mine = (current = {call: chosen(), leg: "", mode, player: new Audio()});
    show();
    if (!navigator.mediaDevices) throw new Error("To supervise, open the console over https or on localhost.");
    mine.microphone = await navigator.mediaDevices.getUserMedia({audio: true});
    const {iceServers} = await askJson("/v1/webrtc/ice").catch(() => ({iceServers: []}));
    const connection = (mine.connection = new RTCPeerConnection({iceServers: iceServers.map(({urls, username, credential}) => ({urls, ...(username && {username, credential})}))}));
    connection.addEventListener("track", ({streams, track}) => {
      mine.player.srcObject = streams[0] ?? new MediaStream([track]);
      mine.player.play().catch(() => {});
    });
    connection.addEventListener("connectionstatechange", () => {
      if (current === mine && ["failed", "closed", "disconnected"].includes(connection.connectionState)) stop();
    });
    for (const track of mine.microphone.getAudioTracks()) connection.addTrack(track, mine.microphone);
    await connection.setLocalDescription(await connection.createOffer());
    await gathered(connection);
    const {leg, sdp} = await askJson(`/v1/calls/${mine.call}/supervise`, {json: {mode, offer: connection.localDescription.sdp}});
    if (current !== mine) return;
    mine.leg = leg;
    await connection.setRemoteDescription({type: "answer", sdp});
    announce(`${mode}: call ${shortId(mine.call)}`);
    show();
  }

  async function change(mode) {
    const mine = current;
    await ask(`/v1/calls/${mine.call}/supervise/${mine.leg}`, {method: "PATCH", json: {mode}});
    if (current !== mine) return;
    mine.mode = mode;
    announce(`${mode}: call ${shortId(mine.call)}`);
    show();
  }

  form.addEventListener("submit", async event => {
    event.preventDefault();
    const mode = event.submitter.value;
    const starts = !current;
    try {
      await (starts ? start(mode) : change(mode));
    } catch (error) {
      if (starts) stop();
      problem(error);
    }
  });
  leave.addEventListener("click", stop);
  show();
  return {show};
}
