/** The live calls: a table, the form that speaks into one of them, and its events. */

import {ask, repeat} from "./console-api.js";
import {cutBy, endOf} from "./ends.js";
import {makeListener} from "./console-listen.js";
import {makeSupervisor} from "./console-supervise.js";
import {STAGES, byId, cell, duration, element, ms, shortId} from "./console-parts.js";

const MANY = 50; // number of calls above which they are polled less often
const LOGGED = 200; // number of messages kept per call
const PLAYED_CHARS = 64; // of the heard text in the table; fewer if more is to come

/** Change a text only if it differs: the page is updated several times a second. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The end of a text, starting at a word. */
function tail(text, chars) {
  return text.length <= chars ? text : `… ${text.slice(-chars).replace(/^\S*\s/, "")}`;
}

/** A message of the dialogue protocol in words; empty for unimportant ones. */
export function describe(message) {
  const turn = message.turn ? `${message.turn}: ` : "";
  switch (message.type) {
    case "setup": return message.resumed ? "manager is back" : `began, ${message.codec}`;
    case "prompt": return message.last ? `caller: ${message.voicePrompt}` : "";
    case "dtmf": return `key ${message.digit}`;
    case "interrupt": return `${turn}cut (${cutBy(message.reason)}) after ${message.durationUntilInterruptMs} ms`;
    case "error": return `${turn}${message.description}`;
    case "mark": return message.cleared ? "" : `mark ${message.name}`;
    case "ended": return `${endOf(message.reason)} after ${duration(message.durationMs / 1000)}`;
    case "turn": switch (message.event) {
      case "started": {
        if (message.firstPacketMs < 1) return `${turn}follows without a pause`; // there was no wait
        const stages = STAGES.filter(name => message.stages?.[name] >= 1).map(name => `${name} ${Math.round(message.stages[name])}`);
        return `${turn}first packet after ${ms(message.firstPacketMs)}${stages.length ? ` (${stages.join(", ")})` : ""}`;
      }
      case "finished": return `${turn}finished, ${(message.audioMs / 1000).toFixed(1)} s${message.gaps ? `, ${message.gaps} gap${message.gaps > 1 ? "s" : ""}` : ""}`;
      case "failed": return `${turn}failed: ${message.description}`;
      default: return "";
    }
    default: return "";
  }
}

/** A row of the table. */
class Row {
  constructor(call, {choose, hangUp, listen}) {
    this.row = element("tr", {role: "row"});
    this.row.dataset.call = call.callId;
    this.choose = element("button", {className: "choose", type: "button", title: call.callId, "aria-pressed": "false"});
    this.choose.append(element("span", {className: "chip", text: call.transport}), element("code", {text: shortId(call.callId)}));
    this.choose.setAttribute("aria-label", `${call.transport} call ${shortId(call.callId)} on route ${call.route}`);
    this.choose.addEventListener("click", () => choose(call.callId));
    const first = cell("call");
    first.append(this.choose, element("span", {className: "small muted route", text: call.route}));
    this.state = cell("state");
    this.words = cell("words");
    this.played = element("span", {className: "played"});
    this.cut = element("span", {className: "cut", text: "cut"});
    this.queued = element("span", {className: "queued"});
    const line = element("p");
    line.append(this.played, this.cut, this.queued);
    this.words.append(line);
    this.firstPacket = cell("number", "first packet");
    this.gaps = cell("number", "gaps");
    this.gapCount = element("span", {text: "0"});
    this.gapTime = element("span", {className: "small"});
    this.gaps.append(this.gapCount, this.gapTime);
    this.lastCut = cell("number", "last cut");
    this.lasts = cell("number", "lasts");
    const end = cell("end");
    const button = element("button", {className: "plain hangup", type: "button", "aria-label": `Hang up call ${shortId(call.callId)}`, title: "Hang up", text: "✕"});
    button.addEventListener("click", () => hangUp(call.callId));
    this.listen = element("button", {className: "plain listen", type: "button", "aria-pressed": "false", title: "Listen in"});
    this.listen.setAttribute("aria-label", `Listen in to call ${shortId(call.callId)}`);
    this.listen.addEventListener("click", () => listen(call.callId));
    end.append(this.listen, button);
    this.row.addEventListener("click", ({target}) => {
      if (!target.closest("button")) choose(call.callId);
    });
    this.row.append(first, this.state, this.words, this.firstPacket, this.gaps, this.lastCut, this.lasts, end);
  }

  show(call, now) {
    if (this.row.dataset.state !== call.state) this.row.dataset.state = call.state;
    write(this.state, call.state === "listening" ? "listening" : "speaking"); // draining sounds the same
    write(this.played, tail(call.playedText, call.queuedText ? PLAYED_CHARS / 2 : PLAYED_CHARS));
    this.cut.hidden = call.outcome !== "interrupted";
    write(this.queued, call.queuedText.replaceAll("\n", " ¶ "));
    write(this.firstPacket, ms(call.firstPacketMs.at(-1)));
    write(this.gapCount, String(call.gaps));
    write(this.gapTime, call.gaps ? ` ${ms(call.gapS * 1000)}` : "");
    this.gaps.classList.toggle("bad", call.gaps > 0);
    write(this.lastCut, ms(call.lastCutMs));
    write(this.lasts, duration(now - call.startedAt));
  }
}

/**
 * Begin to show the calls.
 * @param {{announce: (text: string) => void, problem: (error: Error) => void, own: () => string, ended: () => void}} page
 *   `own`: id of the page's own call, which the form speaks into as soon as it exists. `ended`: a call may
 *   have ended.
 */
export function showCalls({announce, problem, own, ended}) {
  const rows = new Map();
  const logs = new Map();
  const [body, options] = [byId("call-rows"), byId("turn-call")];
  let chosen = "";
  let lastOwn = "";

  const guarded = work => async (...given) => {
    try {
      await work(...given);
    } catch (error) {
      problem(error);
    }
  };

  const listener = makeListener({
    changed(heard) {
      for (const [id, {listen}] of rows) listen.setAttribute("aria-pressed", String(id === heard));
    },
    problem,
  });
  const supervisor = makeSupervisor({chosen: () => chosen, announce, problem});
  const hangUp = guarded(async id => {
    if (!confirm(`Hang up call ${shortId(id)}? The caller is cut off at once.`)) return;
    await ask(`/v1/calls/${id}`, {method: "DELETE"});
  });
  const send = (id, message) => ask(`/v1/calls/${id}/messages`, {json: message});

  function choose(id) {
    chosen = id;
    options.value = id;
    for (const [other, {row, choose: button}] of rows) {
      button.setAttribute("aria-pressed", String(other === id));
      row.classList.toggle("chosen", other === id);
    }
    for (const button of ["speak", "as-caller", "cancel"]) byId(button).disabled = !id;
    supervisor.show();
    showLog();
  }

  function showLog() {
    const log = byId("log");
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    const lines = logs.get(chosen) ?? [];
    log.replaceChildren(...lines.map(({at, text}) => {
      const line = element("li");
      line.append(element("time", {className: "muted figure", text: at}), " ", text);
      return line;
    }));
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  function update(calls) {
    const now = Date.now() / 1000 - skew;
    const live = new Map(calls.map(call => [call.callId, call]));
    for (const [id, {row}] of rows) {
      if (live.has(id)) continue;
      row.remove();
      rows.delete(id);
      options.querySelector(`[value="${id}"]`)?.remove();
      if (id !== chosen) logs.delete(id);
    }
    for (const call of calls) {
      let row = rows.get(call.callId);
      if (!row) {
        row = new Row(call, {choose, hangUp, listen: listener.toggle});
        rows.set(call.callId, row);
        body.append(row.row);
        options.append(new Option(`${call.transport} ${shortId(call.callId)} (${call.route})`, call.callId));
      }
      row.show(call, now);
    }
    byId("no-calls").hidden = calls.length > 0;
    body.parentElement.hidden = !calls.length;
    if (own() !== lastOwn && rows.has(own())) {
      lastOwn = own();
      choose(lastOwn);
    } else if (!rows.has(chosen)) {
      choose(rows.keys().next().value ?? "");
    }
    const speaking = calls.filter(call => call.state !== "listening").length;
    write(byId("calls-note"), calls.length ? `${speaking} of ${calls.length} speaking` : "");
  }

  let skew = 0; // our clock minus the server's, seconds
  let count = 0;
  const refresh = repeat(async () => {
    const response = await ask("/v1/calls");
    const date = Date.parse(response.headers.get("Date") ?? "");
    // The header has whole seconds: a second of difference is none.
    if (date && Math.abs(Date.now() - date) > 2000) skew = (Date.now() - date) / 1000;
    const {calls} = await response.json();
    count = calls.length;
    update(calls);
  }, () => (count > MANY ? 2000 : 400));

  const events = new EventSource("/v1/events");
  events.onopen = ended; // calls may have ended before this, or while the connection was lost
  events.onmessage = ({data}) => {
    const message = JSON.parse(data);
    const id = message.sessionId;
    if (message.type === "setup" && !message.resumed) announce(`${message.transport} call ${shortId(id)} began`);
    if (message.type === "ended") {
      announce(`call ${shortId(id)} ended`);
      ended();
    }
    if (message.type === "setup" || message.type === "ended") refresh();
    const text = describe(message);
    if (!text || !id) return;
    if (!logs.has(id)) logs.set(id, []);
    const lines = logs.get(id);
    lines.push({at: new Date().toLocaleTimeString([], {hour12: false}), text});
    if (lines.length > LOGGED) lines.shift();
    if (id === chosen) showLog();
  };

  const form = byId("turn");
  const [text, voice] = [byId("turn-text"), byId("turn-voice")];
  const cancel = guarded(() => send(chosen, {type: "cancel"}));
  options.addEventListener("change", () => choose(options.value));
  form.addEventListener("submit", guarded(async event => {
    event.preventDefault();
    await send(chosen, {type: "text", token: text.value, last: true, ...(voice.value && {voice: voice.value})});
    text.select();
    refresh();
  }));
  byId("as-caller").addEventListener("click", guarded(async () => {
    if (!text.reportValidity()) return;
    await ask(`/v1/calls/${chosen}/words`, {json: {text: text.value.slice(0, 2000)}});
    text.select();
  }));
  text.addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit(byId("speak"));
  });
  form.addEventListener("keydown", event => event.key === "Escape" && chosen && cancel());
  byId("cancel").addEventListener("click", cancel);
  choose("");
}
