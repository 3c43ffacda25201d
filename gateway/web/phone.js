/**
 * The web phone: call a route, read the bot's words as they are heard, speak, type, press keys.
 *
 *     import {mountPhone} from "/web/phone.js";
 *     mountPhone(document.querySelector("#phone"));
 *
 * Needs base.css and phone.css. Elements with `data-talkspurt-phone` get a phone when this module loads. The phone
 * adapts to the width of its element.
 *
 * @module phone
 */

import {endOf} from "./ends.js";
import {Call} from "./talkspurt.js";

const KEYS = [
  ["1", ""], ["2", "ABC"], ["3", "DEF"],
  ["4", "GHI"], ["5", "JKL"], ["6", "MNO"],
  ["7", "PQRS"], ["8", "TUV"], ["9", "WXYZ"],
  ["*", ""], ["0", "+"], ["#", ""],
];
const KEY_NAMES = {"*": "star", "#": "pound"};
const ROWS_KEPT = 200;
const LEVELS_KEPT = 160; // of 50 ms each
const BAR_PX = 3;
const STEP_PX = 5;

const NO_BOT = "No bot leads this route yet. Type what it should say, or let a bot dial in.";

const CUT = {
  speech: "cut by your voice", dtmf: "cut by a key", cancel: "stopped", preempted: "replaced",
  hangup: "call ended", ended: "call ended", discarded: "discarded",
};

const ICON = {
  call: `<path d="M6.6 2.8 8.9 2l2.3 5-2 1.7a12 12 0 0 0 6 6l1.8-2 5 2.3-.9 2.4c-.5 1.6-2 2.5-3.7 2.2C10 18.4 5.6 14 4.3 6.5c-.3-1.7.7-3.2 2.3-3.7z"/>`,
  microphone: `<path d="M12 15a3.5 3.5 0 0 0 3.5-3.5v-5a3.5 3.5 0 1 0-7 0v5A3.5 3.5 0 0 0 12 15zm6-3.5a6 6 0 0 1-12 0H4.3a7.7 7.7 0 0 0 6.8 7.6V22h1.8v-2.9a7.7 7.7 0 0 0 6.8-7.6z"/>`,
  keypad: `<g><circle cx="6" cy="5" r="1.9"/><circle cx="12" cy="5" r="1.9"/><circle cx="18" cy="5" r="1.9"/><circle cx="6" cy="11" r="1.9"/><circle cx="12" cy="11" r="1.9"/><circle cx="18" cy="11" r="1.9"/><circle cx="6" cy="17" r="1.9"/><circle cx="12" cy="17" r="1.9"/><circle cx="18" cy="17" r="1.9"/></g>`,
};
const icon = name => `<svg viewBox="0 0 24 24" width="22" height="22" fill="currentColor" aria-hidden="true">${ICON[name]}</svg>`;

const MARKUP = `
<div class="phone-grid" data-state="idle">
  <div class="phone-head">
    <p class="phone-state" role="status"><span class="dot"></span><span data-part="state">Ready</span></p>
    <p class="phone-time figure" data-part="time" role="timer" aria-label="Length of the call"></p>
  </div>

  <div class="phone-scope">
    <canvas data-part="scope" aria-hidden="true"></canvas>
    <div class="phone-meter bot" data-part="bot" role="meter" aria-label="Volume of the bot" aria-valuemin="0" aria-valuemax="100" aria-valuenow="0"><span>Bot</span><i></i></div>
    <div class="phone-meter caller" data-part="microphone" role="meter" aria-label="Volume of your microphone" aria-valuemin="0" aria-valuemax="100" aria-valuenow="0"><span>You</span><i></i></div>
  </div>

  <dl class="phone-figures figure">
    <div><dt>First packet</dt><dd data-part="first">–</dd></div>
    <div><dt>Round trip</dt><dd data-part="trip">–</dd></div>
    <div><dt>Buffer</dt><dd data-part="buffer">–</dd></div>
    <div><dt>Concealed</dt><dd data-part="concealed">–</dd></div>
  </dl>

  <div class="phone-notice" role="alert" data-part="notice" hidden></div>

  <div class="phone-talk">
    <!-- No live region, and so no role "log": who uses a screen reader hears the bot itself, and would hear each word twice. -->
    <ol class="phone-rows" data-part="rows" aria-label="What was said" tabindex="0"></ol>
    <p class="phone-empty" data-part="empty"><strong>Press Call and speak.</strong> The bot's words appear here as you hear them. Talk over it, or press a key, and it stops.</p>
    <form class="phone-say" data-part="say">
      <label class="visually-hidden" for="ID-say">Words for the bot to say</label>
      <input id="ID-say" name="words" autocomplete="off" maxlength="2000" placeholder="Have the bot say…" disabled>
      <button type="submit" disabled>Say</button>
      <button type="button" data-part="cancel" disabled>Stop</button>
    </form>
  </div>

  <div class="phone-keys" data-part="keys" role="group" aria-label="Telephone keys">
    ${KEYS.map(([key, letters]) => `<button type="button" data-key="${key}" aria-label="${KEY_NAMES[key] ?? key}" disabled><b>${key}</b><small>${letters}</small></button>`).join("")}
  </div>

  <div class="phone-controls">
    <div class="phone-setup" data-part="setup">
      <div class="phone-route"><label for="ID-route">Route</label><select id="ID-route" data-part="route"><option>default</option></select></div>
      <label class="phone-check"><input type="checkbox" data-part="use" checked> Use my microphone</label>
    </div>
    <button type="button" class="round" data-part="mute" aria-pressed="false" disabled>${icon("microphone")}<span>Mute</span></button>
    <button type="button" class="round phone-toggle" data-part="toggle" aria-expanded="false">${icon("keypad")}<span>Keys</span></button>
    <button type="button" class="phone-call primary" data-part="call">${icon("call")}<span>Call</span></button>
  </div>
</div>`;

let mounted = 0;

/**
 * Put a phone into an element.
 * @param {HTMLElement} element
 * @param {{url?: string, token?: string, route?: string}} [options] options of Call; `route`: the route selected initially.
 * @returns {{readonly call: Call|null}} `call`: the current call.
 */
export function mountPhone(element, {url, token, route} = {}) {
  const server = {...(url && {url}), ...(token && {token})};
  element.classList.add("phone");
  element.innerHTML = MARKUP.replaceAll("ID-", `phone${++mounted}-`);
  const grid = element.firstElementChild;
  const part = Object.fromEntries([...element.querySelectorAll("[data-part]")].map(found => [found.dataset.part, found]));
  const words = part.say.elements.words;
  const scope = new Scope(part.scope, part.bot, part.microphone);
  let call = null;
  let rows = null;
  let connectedAt = 0;

  offerRoutes(part.route, {url, token, route});

  function become(state, reason) {
    grid.dataset.state = state;
    const live = state === "connected" || state === "reconnecting";
    const texts = {connecting: "Calling…", connected: "In call", reconnecting: "Connection lost, reconnecting…", ended: reason === "hangup" ? "Call ended" : endOf(reason)};
    part.state.textContent = texts[state];
    for (const control of part.keys.children) control.disabled = state !== "connected";
    for (const control of part.say.elements) control.disabled = state !== "connected" || !call.leads;
    part.mute.disabled = !live || !call.hasMicrophone;
    part.route.disabled = part.use.disabled = live || state === "connecting";
    const busy = live || state === "connecting";
    part.call.classList.toggle("danger", busy);
    part.call.classList.toggle("primary", !busy);
    part.call.lastElementChild.textContent = busy ? "Hang up" : "Call";
    if (state === "connected") connectedAt ||= Date.now();
    if (state === "ended") {
      scope.rest();
      rows.end();
      showKeys(false);
      part.mute.setAttribute("aria-pressed", "false");
    }
  }

  function notice(text) {
    part.notice.textContent = text;
    part.notice.hidden = !text;
  }

  async function begin() {
    notice("");
    part.rows.replaceChildren();
    part.empty.hidden = true;
    connectedAt = 0;
    for (const name of ["first", "trip", "buffer", "concealed"]) part[name].textContent = "–";
    part.time.textContent = "";
    rows = new Rows(part.rows);
    call = new Call({...server, route: part.route.value, microphone: part.use.checked});
    call.on("state", ({state, reason}) => become(state, reason));
    call.on("level", level => scope.add(level));
    call.on("error", ({description}) => notice(description));
    call.on("microphone", () => { part.mute.disabled = call.state === "ended" || !call.hasMicrophone; });
    call.on("caption", caption => {
      if (part.notice.textContent === NO_BOT) notice("");
      rows.caption(caption);
    });
    call.on("prompt", prompt => rows.prompt(prompt));
    call.on("dtmf", ({digit}) => rows.key(digit));
    call.on("interrupt", interrupt => rows.interrupt(interrupt));
    call.on("turn", turn => {
      rows.turn(turn);
      if (turn.event === "started" && !follows(turn)) part.first.textContent = `${Math.round(turn.firstPacketMs)} ms`;
    });
    scope.run();
    if (part.route.selectedOptions[0]?.dataset.dialogue === "dial-in") notice(NO_BOT);
    try {
      await call.start();
    } catch (error) {
      if (error.code !== "hangup") notice(`The call could not be made: ${error.message}.`);
    }
  }

  part.call.onclick = () => (call && call.state !== "ended" ? call.hangup() : begin());
  part.mute.onclick = () => {
    call.mute();
    part.mute.setAttribute("aria-pressed", String(call.muted));
    part.mute.lastElementChild.textContent = call.muted ? "Muted" : "Mute";
  };
  function showKeys(open) {
    grid.classList.toggle("keys-open", open);
    part.toggle.setAttribute("aria-expanded", String(open));
  }
  part.toggle.onclick = () => showKeys(!grid.classList.contains("keys-open"));
  part.cancel.onclick = () => call.cancel();
  part.say.onsubmit = event => {
    event.preventDefault();
    if (words.value.trim()) call.text(words.value);
    words.value = "";
  };

  function press(key) {
    call.sendDigit(key);
    const button = part.keys.querySelector(`[data-key="${CSS.escape(key)}"]`);
    button.classList.add("pressed");
    setTimeout(() => button.classList.remove("pressed"), 150);
  }
  part.keys.onclick = ({target}) => {
    const key = target.closest("button")?.dataset.key;
    if (key) press(key);
  };
  // Keys of the keyboard, unless they go into a text field or belong to another part of the page.
  document.addEventListener("keydown", event => {
    const {key, target} = event;
    const elsewhere = target !== document.body && !element.contains(target);
    if (elsewhere || target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^[0-9*#]$/.test(key) && !event.repeat && call?.state === "connected") press(key);
  });

  setInterval(async () => {
    if (call?.state !== "connected") return;
    const seconds = Math.floor((Date.now() - connectedAt) / 1000);
    part.time.textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
    const stats = await call.stats();
    if (!stats) return;
    part.trip.textContent = stats.roundTripMs === null ? "–" : `${Math.round(stats.roundTripMs)} ms`;
    part.buffer.textContent = `${Math.round(stats.bufferMs)} ms`;
    part.concealed.textContent = `${(stats.concealedShare * 100).toFixed(1)} %`;
  }, 500);

  return {get call() { return call; }};
}

async function offerRoutes(select, {url = "", token, route}) {
  const response = await fetch(`${url}/v1/routes`, {headers: token ? {Authorization: `Bearer ${token}`} : {}}).catch(() => null);
  if (!response?.ok) return select.replaceChildren(new Option(route ?? "default")); // a token for calls cannot list routes
  const {routes} = await response.json();
  const options = routes.map(({name, dialogue, language}) => {
    const leads = {script: "script", "dial-out": "bot", "dial-in": "waits for a bot"}[dialogue];
    const option = new Option(`${name} · ${leads} · ${language}`, name, false, name === (route ?? "default"));
    option.dataset.dialogue = dialogue;
    return option;
  });
  // A call on a route that does not exist is refused with its name. Another route would surprise.
  if (route && !routes.some(({name}) => name === route)) options.unshift(new Option(`${route} · no such route`, route, true, true));
  select.replaceChildren(...options);
}

/** Return true if a turn directly followed another: there was no wait, so its figure means nothing. */
const follows = ({firstPacketMs}) => firstPacketMs < 5;

/** The conversation: one row for each turn of the bot, each utterance and each series of keys of the caller. */
class Rows {
  #list;
  #turns = new Map();
  #heard = null; // the row of an unfinished prompt
  #keys = null;

  constructor(list) {
    this.#list = list;
  }

  caption({turn, text}) {
    const {said, now} = this.#turn(turn);
    const [, blank, word] = /^(\s*)(.*)$/s.exec(text);
    said.textContent += now.textContent + blank;
    now.textContent = word;
    this.#follow();
  }

  turn({turn, event, ...data}) {
    if (event === "started") {
      this.#fact(this.#turn(turn), follows(data) ? "no pause" : `first packet ${Math.round(data.firstPacketMs)} ms`);
    } else if (event === "finished") {
      const row = this.#turns.get(turn);
      if (!row) return;
      this.#still(row);
      this.#fact(row, `${(data.audioMs / 1000).toFixed(1)} s`);
      if (data.gaps) this.#fact(row, data.gaps === 1 ? "1 gap" : `${data.gaps} gaps`, "bad");
    } else if (event === "interrupted" && this.#turns.has(turn)) {
      const row = this.#turns.get(turn);
      this.#still(row);
      row.item.classList.add("cut");
      this.#fact(row, `${CUT[data.reason] ?? data.reason} after ${(data.heardMs / 1000).toFixed(1)} s`);
    } else if (event === "failed") {
      this.#fact(this.#turn(turn), `failed: ${data.description}`, "bad");
    }
  }

  interrupt({turn, utteranceRemaining}) {
    const row = this.#turns.get(turn);
    if (row) row.unsaid.textContent = utteranceRemaining ?? "";
    this.#follow();
  }

  prompt({voicePrompt, last}) {
    this.#heard ??= this.#caller();
    this.#heard.textContent = voicePrompt;
    this.#heard.classList.toggle("partial", !last);
    if (last) this.#heard = null;
    this.#follow();
  }

  key(digit) {
    this.#keys ??= this.#caller("keys");
    this.#keys.append(Object.assign(document.createElement("kbd"), {textContent: digit}));
    this.#follow();
  }

  end() {
    for (const row of this.#turns.values()) this.#still(row);
  }

  #turn(id) {
    let row = this.#turns.get(id);
    if (!row) {
      const item = this.#item("bot");
      item.innerHTML = `<p class="words"><span class="said"></span><span class="now"></span><span class="unsaid"></span></p><p class="facts"></p>`;
      const [said, now, unsaid] = item.querySelectorAll("span");
      row = {item, said, now, unsaid, facts: item.lastElementChild};
      this.#turns.set(id, row);
      this.#keys = null;
    }
    return row;
  }

  #caller(kind = "") {
    const item = this.#item("caller");
    item.append(Object.assign(document.createElement("p"), {className: `words ${kind}`}));
    return item.firstElementChild;
  }

  #item(who) {
    const item = document.createElement("li");
    item.className = who;
    item.setAttribute("aria-label", who === "bot" ? "Bot" : "You");
    this.#list.append(item);
    while (this.#list.children.length > ROWS_KEPT) this.#list.firstElementChild.remove();
    return item;
  }

  #still({said, now}) {
    said.textContent += now.textContent;
    now.textContent = "";
  }

  #fact({facts}, text, kind = "") {
    facts.append(Object.assign(document.createElement("span"), {className: `chip ${kind}`, textContent: text}));
    this.#follow();
  }

  #follow() {
    this.#list.scrollTop = this.#list.scrollHeight;
  }
}

/** The last seconds of both voices: the bot's above the line, the caller's below. */
class Scope {
  #levels = [];
  #at = 0;
  #running = false;

  constructor(canvas, bot, caller) {
    this.canvas = canvas;
    this.meters = {bot, microphone: caller};
    new ResizeObserver(() => this.#draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  add(level) {
    this.#levels.push(level);
    if (this.#levels.length > LEVELS_KEPT) this.#levels.shift();
    this.#at = performance.now();
    for (const [name, meter] of Object.entries(this.meters)) {
      meter.style.setProperty("--level", level[name].toFixed(2));
      meter.setAttribute("aria-valuenow", String(Math.round(level[name] * 100)));
    }
  }

  run() {
    this.#levels.length = 0;
    this.#running = true;
    const frame = () => {
      this.#draw();
      if (this.#running) requestAnimationFrame(frame);
    };
    frame();
  }

  rest() {
    this.#running = false;
    this.add({bot: 0, microphone: 0});
    this.#draw();
  }

  #draw() {
    const {canvas} = this;
    const {clientWidth: width, clientHeight: height} = canvas;
    const scale = devicePixelRatio;
    if (canvas.width !== width * scale || canvas.height !== height * scale) {
      canvas.width = width * scale;
      canvas.height = height * scale;
    }
    const paint = canvas.getContext("2d");
    paint.setTransform(scale, 0, 0, scale, 0, 0);
    paint.clearRect(0, 0, width, height);
    const middle = Math.round(height * 0.62);
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const drift = this.#running && !calm ? Math.min(1, (performance.now() - this.#at) / 50) * STEP_PX : 0;
    const [up, down] = [this.meters.bot, this.meters.microphone].map(meter => getComputedStyle(meter).color);
    const rest = getComputedStyle(canvas).color;
    for (let x = width - BAR_PX - drift, i = this.#levels.length - 1; x > -BAR_PX; x -= STEP_PX, i--) {
      const {bot = 0, microphone = 0} = this.#levels[i] ?? {};
      bar(paint, x, middle - 1, -(bot ** 1.5) * (middle - 2), bot > 0.05 ? up : rest);
      bar(paint, x, middle + 1, microphone ** 1.5 * (height - middle - 2), microphone > 0.05 ? down : rest);
    }
  }
}

function bar(paint, x, y, length, colour) {
  paint.fillStyle = colour;
  paint.beginPath();
  const size = Math.max(2, Math.abs(length));
  paint.roundRect(x, length < 0 ? y - size : y, BAR_PX, size, 1.5);
  paint.fill();
}

for (const element of document.querySelectorAll("[data-talkspurt-phone]")) {
  // On its own page, the phone is the page's interface and can be used from the browser's console.
  element.phone = mountPhone(element, {route: new URLSearchParams(location.search).get("route") ?? undefined});
}
