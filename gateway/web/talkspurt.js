/**
 * Calls to a talkspurt server from a web page: one ES module, no dependency, no build step.
 *
 *     import {Call} from "https://voice.example.com/web/talkspurt.js";
 *     const call = new Call({route: "sales"});
 *     call.on("caption", ({text}) => subtitle.append(text));
 *     button.onclick = () => (call.state === "idle" ? call.start() : call.hangup());
 *
 * Audio goes over WebRTC, text over a data channel with the dialogue protocol; each message of the server becomes an
 * event of that name. A call survives a loss or change of the network: for 15 s the page restarts ICE, or offers a
 * new connection for the same call. Closing or leaving the page hangs up.
 *
 * @module talkspurt
 */

const CHANNEL = "talkspurt";
const RESTART_MS = 15_000; // the server's webrtc.restart_s
const SILENT_MS = 1_800; // the server reports every 0.5 to 1.5 s, also in silence
const LOOK_MS = 300;
const RETRY_MS = 500;
const ANSWER_MS = 3_000; // longest wait for an answer while reconnecting
const FLOW_MS = 4_000; // longest wait for media after an ICE restart
const CONNECT_MS = 10_000;
const HANGUP_MS = 1_000;
const GATHER_MS = 200; // longest wait for candidates before the offer; later ones trickle
const LEVEL_EVERY_MS = 50;
const SILENCE_DB = -60;

/**
 * @typedef {object} CallOptions
 * @property {string} [url] origin of the server; default: the origin of this module.
 * @property {string} [route] the server's route; default "default".
 * @property {Object<string, string>} [params] custom parameters for the dialogue manager, in `setup`.
 * @property {string} [token] if the server requires one: a token that your own server got by `POST /v1/tokens`, never
 *   an API key, since visitors can read it (docs/browser.md).
 * @property {boolean|MediaStream} [microphone] true (default) asks the visitor; false only listens; or your own stream.
 * @property {HTMLAudioElement} [audio] plays the audio; default: a new element.
 */

/** An error, with a text for visitors (`message`) and an identifier for programs (`code`). */
export class CallError extends Error {
  /** @param {string} code @param {string} message */
  constructor(code, message) {
    super(message);
    this.name = "CallError";
    this.code = code;
  }
}

/**
 * One call. Use it once.
 *
 * Events, by `call.on(name, detail => …)`:
 *
 * | event | detail |
 * |---|---|
 * | `state` | `{state, reason}`: `connecting`, `connected`, `reconnecting`, `ended` |
 * | `caption` | `{turn, text}`: the next word of the bot, as it is heard |
 * | `turn` | `{turn, event, …}`: `accepted`, `started` (`firstPacketMs`, `stages`), `finished`, `interrupted`, `failed` |
 * | `interrupt` | `{turn, reason, utteranceUntilInterrupt, utteranceRemaining, durationUntilInterruptMs}` |
 * | `prompt` | `{voicePrompt, last}`: the caller's words, if the route has a recogniser |
 * | `dtmf` | `{digit}`: a key that the server received |
 * | `error` | `{code, description}`: from the server or the microphone (`microphone_denied`, `_absent`, `_busy`, `_insecure`, `_lost`); without a microphone, the call continues |
 * | `microphone` | `{label}`: the microphone that the call uses from now on; empty: none, for example because it was unplugged |
 * | `level` | `{bot, microphone}`: 0 (-60 dB and less) to 1, twenty times a second |
 * | `setup`, `info`, `mark`, `ended` | as the dialogue protocol has them |
 */
export class Call extends EventTarget {
  #options;
  #link = null; // the connection that carries the call
  #resource = ""; // address for hanging up
  #stream = null; // the microphone
  #ownsStream = false;
  #group = ""; // the device behind the system's default microphone
  #absent = false; // the microphone was unplugged, or there is none
  #switching = null;
  #context = null;
  #analysers = {};
  #meter = 0;
  #turns = 0;
  #openTurn = null;
  #abort = new AbortController();

  /** "idle", "connecting", "connected", "reconnecting" or "ended". */
  state = "idle";
  /** The server's id of the call. Empty before it is known. */
  id = "";
  /** True if this page has the rights of a dialogue manager: `text`, `cancel`, `send`. @type {boolean} */
  leads = false;
  /** The latest `setup` message: the description of the call for a dialogue manager. */
  setup = null;
  /** True if the caller is muted. */
  muted = false;

  /** @param {CallOptions} [options] */
  constructor({url = new URL(import.meta.url).origin, route = "default", params = {}, token = "", microphone = true,
    audio = new Audio()} = {}) {
    super();
    this.#options = {url: String(url).replace(/\/$/, ""), route, params, token, microphone};
    /** The element that plays the bot. @type {HTMLAudioElement} */
    this.audio = audio;
  }

  /**
   * Listen to an event; see the class.
   * @param {string} name
   * @param {(detail: any) => void} listener
   * @returns {() => void} stops listening.
   */
  on(name, listener) {
    const wrapped = event => listener(event.detail);
    this.addEventListener(name, wrapped);
    return () => this.removeEventListener(name, wrapped);
  }

  /** True if the call has a microphone; false in a call that only listens. */
  get hasMicrophone() {
    return this.#stream !== null;
  }

  /** The current connection, for more than `stats()`. @returns {RTCPeerConnection|null} */
  get connection() {
    return this.#link?.pc ?? null;
  }

  /**
   * Call. Browsers want it in answer to a click or key, else they may not play.
   * @returns {Promise<void>} settled when media flows.
   * @throws {CallError} there is no call; the state is "ended".
   */
  async start() {
    if (this.state !== "idle") throw new CallError("used", `this call is ${this.state}; make a new Call`);
    this.#become("connecting");
    this.#context = new AudioContext();
    this.#context.resume();
    addEventListener("pagehide", this.#leave);
    addEventListener("online", this.#networkChanged);
    navigator.mediaDevices?.addEventListener("devicechange", this.#devicesChanged);
    try {
      const [servers] = await Promise.all([this.#iceServers(), this.#openMicrophone()]);
      this.#options.iceServers = servers;
      await this.#connect();
    } catch (error) {
      // A DOMException has a number for a code.
      this.#end(error instanceof CallError ? error.code : "failed");
      throw error;
    }
  }

  /**
   * Have the bot say something, as a dialogue manager would. Tokens without `last: true` are one turn with those after.
   * @param {string} token
   * @param {object} [options] fields of the protocol's `text`: `last` (default true), `turn`, `interruptible`, `voice` …
   * @returns {string} the turn's id.
   */
  text(token, {last = true, turn, ...fields} = {}) {
    turn ??= this.#openTurn ?? `page-${++this.#turns}`;
    this.#openTurn = last ? null : turn;
    this.send({type: "text", token, last, turn, ...fields});
    return turn;
  }

  /**
   * Silence the bot now.
   * @param {string} [turn] only this turn; default: all.
   */
  cancel(turn) {
    this.#openTurn = null;
    this.send(turn ? {type: "cancel", turn} : {type: "cancel"});
  }

  /**
   * Press a key of the telephone.
   * @param {string} digit one of 0-9 A-D * #
   */
  sendDigit(digit) {
    if (!/^[0-9A-D*#]$/.test(digit)) throw new CallError("digit", `${digit} is not a telephone key`);
    const tones = this.#link?.sender.dtmf;
    if (!tones?.canInsertDTMF) throw new CallError("no_tones", "this call cannot send keys");
    tones.insertDTMF(tones.toneBuffer + digit, 100, 70); // otherwise, waiting tones would be replaced
  }

  /**
   * Silence the microphone, or open it again.
   * @param {boolean} [muted] default: the other state.
   */
  mute(muted = !this.muted) {
    this.muted = muted;
    for (const track of this.#stream?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  /**
   * Use another microphone from now on. An unplugged one is replaced by itself.
   * @param {boolean|MediaStream} [microphone] true (default): the system's; false: none; or your own stream.
   */
  async useMicrophone(microphone = true) {
    if (this.state === "ended") throw new CallError("used", "this call is ended");
    this.#options.microphone = microphone;
    await this.#switchMicrophone();
  }

  /**
   * Send any message of the dialogue protocol (`mark`, `play`, `language` …).
   * @param {object} message
   * @throws {CallError} the call is not connected, or the server does not let browsers lead.
   */
  send(message) {
    const channel = this.#link?.channel;
    if (channel?.readyState !== "open") throw new CallError("not_connected", `cannot send: the call is ${this.state}`);
    channel.send(JSON.stringify(message));
  }

  /** Hang up. */
  hangup() {
    if (this.state === "ended") return;
    const link = this.#link;
    this.#link = null;
    this.#end("hangup");
    // Send the request first: a closed connection also ends the call, and then the request would fail.
    const told = this.#resource && fetch(this.#resource, {method: "DELETE", headers: this.#headers(), keepalive: true});
    Promise.race([told, pause(HANGUP_MS)]).catch(() => {}).finally(() => link && drop(link));
  }

  /**
   * How the sound arrives.
   * @returns {Promise<null|{codec: string, packetsReceived: number, packetsLost: number, packetsDiscarded: number,
   *   jitterMs: number, bufferMs: number, concealedSamples: number, concealedShare: number, samples: number,
   *   audioEnergy: number, roundTripMs: number|null}>} null before there is any. `bufferMs`: what the browser held back
   *   on average; concealed: samples it had to make up; `audioEnergy`: W3C's `totalAudioEnergy` of what was heard.
   */
  async stats() {
    const report = await this.#link?.pc.getStats();
    const all = report ? [...report.values()] : [];
    const inbound = all.find(entry => entry.type === "inbound-rtp");
    if (!inbound) return null;
    const pair = all.find(entry => entry.type === "candidate-pair" && entry.nominated);
    const samples = inbound.totalSamplesReceived ?? 0;
    // Between turns there are no packets, which is not a loss.
    const concealed = (inbound.concealedSamples ?? 0) - (inbound.silentConcealedSamples ?? 0);
    return {
      codec: report.get(inbound.codecId)?.mimeType ?? "",
      packetsReceived: inbound.packetsReceived,
      packetsLost: inbound.packetsLost,
      packetsDiscarded: inbound.packetsDiscarded ?? 0,
      jitterMs: inbound.jitter * 1000,
      bufferMs: inbound.jitterBufferEmittedCount ? inbound.jitterBufferDelay / inbound.jitterBufferEmittedCount * 1000 : 0,
      concealedSamples: concealed,
      concealedShare: samples ? concealed / samples : 0,
      samples,
      audioEnergy: inbound.totalAudioEnergy ?? 0,
      roundTripMs: pair?.currentRoundTripTime === undefined ? null : pair.currentRoundTripTime * 1000,
    };
  }

  // --- the connection ------------------------------------------------------------------------------------------------

  async #iceServers() {
    const {iceServers} = await this.#fetch("/v1/webrtc/ice").then(response => response.json());
    // Leave out an empty user name, since RTCPeerConnection would use it.
    return iceServers.map(({urls, username, credential}) => (username ? {urls, username, credential} : {urls}));
  }

  /** Offer a connection, the first one or a new one for the same call; resolves when media flows. */
  async #connect() {
    const pc = new RTCPeerConnection({iceServers: this.#options.iceServers, bundlePolicy: "max-bundle"});
    const stream = this.#stream ?? silence(this.#context);
    const {sender} = pc.addTransceiver(stream.getAudioTracks()[0], {direction: "sendrecv", streams: [stream]});
    const link = {pc, sender, channel: pc.createDataChannel(CHANNEL), etag: "", early: [], timer: 0};
    link.channel.onmessage = ({data}) => this.#receive(JSON.parse(data));
    pc.onicecandidate = ({candidate}) => candidate?.candidate && this.#trickle(link, candidate);
    pc.ontrack = event => this.#play(event);
    try {
      await this.#negotiate(link);
      await this.#up(link);
    } catch (error) {
      drop(link);
      throw error;
    }
    const before = this.#link;
    this.#link = link;
    if (before) drop(before);
    this.#become("connected");
    this.#watch(link);
  }

  /** Offer, and take the answer. */
  async #negotiate(link) {
    const {pc} = link;
    link.etag = "";
    await pc.setLocalDescription();
    await gathered(pc);
    link.early.length = 0; // these are in the offer
    const {sdp} = pc.localDescription;
    const {route, params} = this.#options;
    const response = await this.#fetch("/v1/webrtc/offer", {
      method: "POST",
      headers: {"Content-Type": "application/json"},
      body: JSON.stringify({type: "offer", sdp, route, params, callId: this.id}),
    }, this.state === "reconnecting" ? ANSWER_MS : 0);
    const answer = await response.json();
    this.id = answer.callId;
    this.leads = answer.leads;
    link.etag = response.headers.get("ETag") ?? "";
    this.#resource = this.#options.url + response.headers.get("Location");
    await pc.setRemoteDescription({type: "answer", sdp: answer.sdp});
    for (const candidate of link.early.splice(0)) this.#trickle(link, candidate);
  }

  #up({pc, channel}) {
    return new Promise((done, failed) => {
      const timer = setTimeout(() => failed(new CallError("no_connection", "no media reached the server or came back")), CONNECT_MS);
      const look = () => {
        const silent = pc.sctp === null; // the server refused the data channel
        if (pc.connectionState === "connected" && (silent || channel.readyState === "open")) done();
        else if (pc.connectionState === "failed") failed(new CallError("no_connection", "no network path to the server"));
        else if (this.state === "ended") failed(new CallError("hangup", "the call was hung up"));
        else return;
        clearTimeout(timer);
        this.#abort.signal.removeEventListener("abort", look);
      };
      pc.addEventListener("connectionstatechange", look);
      channel.addEventListener("open", look);
      this.#abort.signal.addEventListener("abort", look);
      look();
    });
  }

  #watch(link) {
    const {pc} = link;
    const transport = pc.getReceivers()[0].transport;
    transport?.addEventListener("statechange", () => {
      const lost = pc.iceConnectionState === "failed" || this.state === "reconnecting";
      if (transport.state === "closed" && this.#link === link && !lost) this.#end("hangup");
    });
    const look = () => ["disconnected", "failed"].includes(pc.connectionState) && this.#heal(link);
    pc.addEventListener("connectionstatechange", look);
    look();
    // Browsers notice a dead path after about five seconds. Silence shows it sooner.
    let packets = 0, heardAt = performance.now();
    link.timer = setInterval(async () => {
      const now = await received(pc);
      if (now === null || now !== packets || this.state !== "connected") [packets, heardAt] = [now, performance.now()];
      else if (performance.now() - heardAt > SILENT_MS) this.#heal(link);
    }, LOOK_MS);
  }

  /** Find the server again: by an ICE restart, which keeps the connection, or if that fails by a new connection. */
  async #heal(link) {
    if (this.#link !== link || this.state !== "connected") return;
    this.#become("reconnecting");
    const deadline = performance.now() + RESTART_MS;
    let restarts = true;
    while (this.state === "reconnecting") {
      try {
        await (restarts ? this.#restartIce(link) : this.#connect());
        if (this.state === "reconnecting") this.#become("connected");
        return;
      } catch (error) {
        const lasting = restarts ? [401, 403, 404] : [400, 401, 403, 404, 413, 415, 422];
        if (lasting.includes(error.status) || performance.now() > deadline) return this.#end("connection_lost");
        if (error.code !== "unreachable") restarts = !restarts;
        await pause(RETRY_MS);
      }
    }
  }

  async #restartIce(link) {
    const {pc} = link;
    const before = await received(pc);
    pc.restartIce();
    await this.#negotiate(link);
    const deadline = performance.now() + FLOW_MS;
    while (performance.now() < deadline && this.state === "reconnecting") {
      if (pc.connectionState === "connected" && (before === null || await received(pc) !== before)) return;
      await pause(50);
    }
    throw new CallError("no_connection", "no network path to the server");
  }

  #networkChanged = () => this.#link && this.#heal(this.#link);

  #trickle(link, {candidate, usernameFragment}) {
    if (!link.etag) {
      link.early.push({candidate, usernameFragment});
      return;
    }
    fetch(this.#resource, {
      method: "PATCH",
      headers: {...this.#headers(), "Content-Type": "application/trickle-ice-sdpfrag", "If-Match": link.etag},
      body: `a=ice-ufrag:${usernameFragment}\r\na=${candidate}\r\n`,
    }).catch(() => {}); // ignore one failed candidate
  }

  #headers() {
    return this.#options.token ? {Authorization: `Bearer ${this.#options.token}`} : {};
  }

  /** Send a request to the server. Throws a CallError with the server's message. */
  async #fetch(path, {headers, ...more} = {}, limitMs = 0) {
    let response;
    const limit = new AbortController();
    const stop = () => limit.abort();
    const timer = limitMs && setTimeout(stop, limitMs);
    this.#abort.signal.addEventListener("abort", stop);
    try {
      response = await fetch(this.#options.url + path, {headers: {...this.#headers(), ...headers}, signal: limit.signal, ...more});
    } catch {
      throw new CallError(this.#abort.signal.aborted ? "hangup" : "unreachable", "the server cannot be reached");
    } finally {
      clearTimeout(timer);
      this.#abort.signal.removeEventListener("abort", stop);
    }
    if (response.ok) return response;
    const {error} = await response.json().catch(() => ({}));
    const failure = new CallError(error?.code ?? "refused", error?.message ?? `the server answered ${response.status}`);
    failure.status = response.status;
    throw failure;
  }

  #receive({type, ...message}) {
    if (type === "setup") this.setup = message;
    this.#emit(type, message);
    if (type === "ended") this.#end(message.reason);
  }

  // --- sound ---------------------------------------------------------------------------------------------------------

  async #openMicrophone() {
    const {microphone} = this.#options;
    if (microphone instanceof MediaStream) {
      this.#stream = microphone;
    } else if (microphone) {
      try {
        if (!navigator.mediaDevices) throw Object.assign(new Error(), {name: "insecure"});
        this.#stream = await navigator.mediaDevices.getUserMedia({
          audio: {echoCancellation: true, noiseSuppression: true, autoGainControl: true},
        });
        this.#ownsStream = true;
      } catch (error) {
        this.#absent = error.name === "NotFoundError";
        const [code, description] = MICROPHONE[error.name] ?? ["microphone_failed", `The microphone does not work: ${error.message}`];
        this.#emit("error", {code, description});
      }
    }
    if (this.state === "ended") return this.#closeMicrophone(); // hung up while the visitor was asked
    const [track] = this.#stream?.getAudioTracks() ?? [];
    if (track) {
      this.#absent = false;
      track.enabled = !this.muted;
      track.onended = () => this.#microphoneEnded(track);
      this.#analyse("microphone", this.#stream);
      this.#group = await defaultGroup();
    }
    this.#emit("microphone", {label: track?.label ?? ""});
  }

  #closeMicrophone() {
    for (const track of this.#stream?.getAudioTracks() ?? []) {
      track.onended = null;
      if (this.#ownsStream) track.stop();
    }
    this.#stream = null;
    this.#ownsStream = false;
  }

  /** Open the chosen microphone, and send it, or silence. The connection stays as it is. One switch at a time. */
  async #switchMicrophone() {
    await this.#switching;
    this.#switching = (async () => {
      this.#closeMicrophone();
      await this.#openMicrophone();
      if (this.state !== "ended") await this.#link?.sender.replaceTrack((this.#stream ?? silence(this.#context)).getAudioTracks()[0]);
    })();
    await this.#switching;
  }

  async #microphoneEnded(track) {
    if (this.state === "ended" || !this.#stream?.getAudioTracks().includes(track)) return;
    this.#emit("error", {code: "microphone_lost", description: "The microphone was unplugged or switched off."});
    const {microphone} = this.#options;
    const another = microphone === true && await defaultGroup() !== null;
    if (!another) this.#options.microphone = false;
    await this.#switchMicrophone();
    this.#options.microphone = microphone === true;
    this.#absent ||= !another;
  }

  #devicesChanged = async () => {
    if (this.#options.microphone !== true || !["connected", "reconnecting"].includes(this.state)) return;
    const group = await defaultGroup();
    if (group !== null && (this.#stream ? group !== this.#group : this.#absent)) await this.#switchMicrophone();
  };

  #play({track, receiver}) {
    // Prefer low delay: the server paces its audio, so the buffer can be short.
    if ("jitterBufferTarget" in receiver) receiver.jitterBufferTarget = 0;
    else if ("playoutDelayHint" in receiver) receiver.playoutDelayHint = 0;
    const stream = new MediaStream([track]);
    this.audio.srcObject = stream;
    this.audio.play().catch(error => {
      if (error.name === "NotAllowedError") this.#emit("error", {code: "playback_blocked", description: "The browser blocked the audio: press a button on the page."});
    });
    this.#analyse("bot", stream);
  }

  #analyse(name, stream) {
    this.#analysers[name]?.source.disconnect();
    const analyser = this.#context.createAnalyser();
    analyser.fftSize = 1024;
    const source = this.#context.createMediaStreamSource(stream);
    source.connect(analyser);
    this.#analysers[name] = {analyser, source, wave: new Float32Array(analyser.fftSize)};
    this.#meter ||= setInterval(() => this.#emit("level", {bot: this.#level("bot"), microphone: this.#level("microphone")}), LEVEL_EVERY_MS);
  }

  #level(name) {
    const meter = this.#analysers[name];
    if (!meter) return 0;
    meter.analyser.getFloatTimeDomainData(meter.wave);
    const power = meter.wave.reduce((sum, x) => sum + x * x, 0) / meter.wave.length;
    return Math.min(1, Math.max(0, 1 - 10 * Math.log10(power + 1e-12) / SILENCE_DB));
  }

  // --- life ----------------------------------------------------------------------------------------------------------

  #leave = () => {
    const link = this.#link;
    this.hangup();
    if (link) drop(link); // in case the request is not sent in time
  };

  #end(reason) {
    if (this.state === "ended") return;
    this.#become("ended", reason);
    this.#abort.abort();
    removeEventListener("pagehide", this.#leave);
    removeEventListener("online", this.#networkChanged);
    navigator.mediaDevices?.removeEventListener("devicechange", this.#devicesChanged);
    clearInterval(this.#meter);
    if (this.#link) drop(this.#link);
    this.audio.srcObject = null;
    this.#closeMicrophone();
    this.#context?.close();
  }

  #become(state, reason = "") {
    if (this.state === "ended") return;
    this.state = state;
    this.#emit("state", {state, reason});
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, {detail}));
  }
}

const MICROPHONE = {
  NotAllowedError: ["microphone_denied", "Access to the microphone was denied. You can listen, type and press keys; allow it in the browser's site settings to speak."],
  SecurityError: ["microphone_denied", "The browser does not let this page use the microphone. You can listen, type and press keys."],
  NotFoundError: ["microphone_absent", "No microphone was found. You can listen, type and press keys."],
  NotReadableError: ["microphone_busy", "Another program uses the microphone. You can listen, type and press keys."],
  insecure: ["microphone_insecure", "Browsers allow the microphone only on https pages. You can listen, type and press keys."],
};

const pause = ms => new Promise(done => setTimeout(done, ms));

/** Count what came over the present connection, by the browser's own figures. Null: it has none (Firefox). */
async function received(pc) {
  const report = await pc.getStats();
  return [...report.values()].find(({type}) => type === "transport")?.packetsReceived ?? null;
}

/** The group of devices of the system's default microphone. Empty: the browser does not tell. Null: there is none. */
async function defaultGroup() {
  const devices = await navigator.mediaDevices?.enumerateDevices() ?? [];
  const inputs = devices.filter(({kind}) => kind === "audioinput");
  if (!inputs.length) return null;
  return inputs.find(({deviceId}) => deviceId === "default")?.groupId ?? "";
}

/** Wait for candidates, but not for slow ones. */
function gathered(pc) {
  return new Promise(done => {
    const timer = setTimeout(done, GATHER_MS);
    const look = () => {
      if (pc.iceGatheringState !== "complete") return;
      clearTimeout(timer);
      done();
    };
    pc.addEventListener("icegatheringstatechange", look);
    look();
  });
}

/** Silence for a call without a microphone: telephone keys need a running stream. */
function silence(context) {
  const destination = context.createMediaStreamDestination();
  const source = new ConstantSourceNode(context, {offset: 0});
  source.connect(destination);
  source.start();
  return destination.stream;
}

function drop({pc, channel, timer}) {
  clearInterval(timer);
  channel.onmessage = pc.onicecandidate = pc.ontrack = null;
  pc.close();
}
