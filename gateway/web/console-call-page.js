/** The page of one ended call: the conversation, for each answer the silence before it, and the stages of that. */

import {cutBy, endOf} from "./ends.js";
import {STAGES, byId, copies, duration, element, ms} from "./console-parts.js";

const WHAT = {play: "plays a clip", digits: "sends keys", text: "says nothing"};
const SLOW_MS = 2000; // a silence that callers remark

let shown = null; // the call on the page

/** A moment of the call, minutes, seconds and tenths after it began. */
const moment = atMs => `${duration(atMs / 1000)}.${Math.floor(atMs / 100) % 10}`;

/** The silence from the caller's last sound to the first of a turn, milliseconds; null: it answers nothing. */
const silence = ({startedMs, callerStoppedMs}) => (startedMs === null || callerStoppedMs == null ? null : Math.max(0, startedMs - callerStoppedMs));

function fact(name, value, bad = false) {
  const made = element("div");
  made.append(element("dt", {text: name}), element("dd", {text: value || "–", className: bad ? "bad" : ""}));
  return made;
}

/** The stages of a wait: what came before this server's part, then the part's own stages. */
function stagesOf(entry, promptedMs) {
  const order = name => STAGES.indexOf(name) + 1 || STAGES.length + 1; // unknown ones last
  const own = Object.entries(entry.stagesMs).filter(([, value]) => value > 0).sort(([a], [b]) => order(a) - order(b));
  const total = silence(entry);
  if (total === null) return own;
  const ready = entry.startedMs - (entry.firstPacketMs ?? 0); // the first clause was there
  const stopped = entry.callerStoppedMs;
  const told = promptedMs !== null && promptedMs >= stopped && promptedMs <= ready ? promptedMs : stopped;
  return [["end of speech and its words", told - stopped], ["the bot's thinking", ready - told], ...own].filter(([, value]) => value > 0);
}

/** A wait: one bar for each stage, one after the other. */
function waterfall(entry, promptedMs) {
  const stages = stagesOf(entry, promptedMs);
  const whole = silence(entry) ?? entry.firstPacketMs;
  const table = element("table", {className: "waterfall"});
  table.append(element("caption", {className: "visually-hidden", text: "Stages of the wait"}));
  const line = (className, name, from, length) => {
    const row = element("tr", {className});
    const bar = element("td", {className: "stretch", "aria-hidden": "true"});
    bar.style.setProperty("--from", String(Math.min(1, from / whole)));
    bar.style.setProperty("--length", String(Math.min(1, length / whole)));
    row.append(element("th", {scope: "row", text: name}), bar, element("td", {className: "number", text: `${length.toFixed(1)} ms`}));
    return row;
  };
  let from = 0;
  for (const [name, value] of stages) {
    table.append(line("stage", name, from, value));
    from += value;
  }
  table.append(line("total", silence(entry) === null ? "first packet" : "caller stopped to bot heard", 0, whole));
  const folded = element("details", {className: "wait"});
  folded.append(element("summary", {text: "Stages of the wait"}), table);
  return folded;
}

/** The words of a turn, divided into heard and not heard. */
function words({text, heardChars, what}) {
  const made = element("p", {className: "text"});
  if (!text) {
    made.append(element("i", {className: "muted", text: text === null ? "words are not kept" : WHAT[what]}));
    return made;
  }
  const chars = [...text]; // the server counts code points
  const rest = chars.slice(heardChars).join("");
  made.append(element("span", {className: "played", text: chars.slice(0, heardChars).join("")}));
  if (rest.trim()) made.append(element("span", {className: "visually-hidden", text: " (not heard:) "}), element("span", {className: "queued unheard", text: rest}));
  return made;
}

const plain = text => element("p", {className: "text", text});

/** Kind of entry -> the party, and the parts of its line. `promptedMs`: when the manager got the caller's last words. */
const ENTRY = {
  said(entry, promptedMs) {
    const {startedMs, endedMs, outcome, reason, firstPacketMs, gaps, gapMs} = entry;
    const waited = silence(entry);
    const notes = [startedMs === null ? "never heard" : `heard from ${moment(startedMs)} to ${moment(endedMs)}`];
    if (startedMs !== null && firstPacketMs === null) notes.push("without a wait");
    if (firstPacketMs !== null) notes.push(waited === null ? `after a wait of ${ms(firstPacketMs)}` : `${ms(firstPacketMs)} of the silence are ours`);
    if (gaps) notes.push(`${gaps} gap${gaps > 1 ? "s" : ""}, ${ms(gapMs)}`);
    const about = element("p", {className: "small muted", text: notes.join(" · ")});
    if (outcome !== "finished") {
      const told = outcome === "interrupted" ? "cut" : "failed";
      about.prepend(element("span", {className: "cut", text: reason ? `${told}: ${outcome === "interrupted" ? cutBy(reason) : reason}` : told}));
    }
    const parts = [words(entry), about];
    if (waited !== null) {
      const lead = element("p", {className: waited > SLOW_MS ? "silence slow" : "silence"});
      lead.append(element("b", {className: "figure", text: ms(waited)}), element("span", {className: "small", text: " caller stopped to bot heard"}));
      parts.unshift(lead);
    }
    if (firstPacketMs) parts.push(waterfall(entry, promptedMs));
    return ["Bot", ...parts];
  },
  heard: ({text, lang, typedBy}) => ["Caller", words({text, heardChars: Infinity, what: "text"}), element("p", {className: "small muted", text: [lang, typedBy && `typed by ${typedBy}`].filter(Boolean).join(" · ")})],
  pressed: ({digit}) => ["Caller", plain(digit === null ? "pressed a key" : `pressed ${digit}`)],
  supervised: ({by, event}) => ["Supervisor", plain(`${event} (${by})`)],
  call: ({event, code}) => ["Network", plain(code ? `${event} (${code})` : event)],
  answered: ({by, text, waiting}) => ["Answered by", plain([by, waiting && "a person may come", text].filter(Boolean).join(" · "))],
  listened: ({by, event}) => ["Supervisor", plain(event === "joined" ? `started to listen (${by})` : `stopped listening (${by})`)],
  fault: ({code, description}) => ["Error", element("p", {className: "text bad", text: [code, description].filter(Boolean).join(": ")})],
};

/** The entries, in order. The same error again, one after the other, is one line with their number. */
function draw(entries) {
  const lines = [];
  let promptedMs = null;
  let last = null; // the last line, if it is an error
  for (const entry of entries) {
    const same = entry.kind === "fault" && last && last.code === entry.code && last.description === entry.description;
    if (same) {
      last.times++;
      last.count.textContent = ` · ${last.times} times, last at ${moment(entry.atMs)}`;
      continue;
    }
    const line = element("li", {className: entry.kind});
    const [who, ...parts] = ENTRY[entry.kind](entry, promptedMs);
    const head = element("p", {className: "who"});
    const count = element("span", {className: "small muted figure"});
    head.append(element("b", {text: who}), " ", element("span", {className: "small muted figure", text: moment(entry.atMs)}), count);
    line.append(head, ...parts);
    lines.push(line);
    if (entry.kind === "heard" || entry.kind === "pressed") promptedMs = entry.atMs;
    last = entry.kind === "fault" ? {...entry, times: 1, count} : null;
  }
  return lines;
}

/** The conversation as plain text: a line for each entry with words or keys. What was not heard is in brackets. */
function plainWords({entries}) {
  const line = {
    said: ({text, heardChars, what}) => {
      if (!text) return `Bot: (${text === null ? "words are not kept" : WHAT[what]})`;
      const chars = [...text];
      const rest = chars.slice(heardChars).join("").trim();
      return `Bot: ${chars.slice(0, heardChars).join("").trim()}${rest ? ` [not heard: ${rest}]` : ""}`;
    },
    heard: ({text}) => `Caller: ${text ?? "(words are not kept)"}`,
    pressed: ({digit}) => `Caller: (pressed ${digit ?? "a key"})`,
    fault: ({code, description}) => `Error: ${[code, description].filter(Boolean).join(": ")}`,
  };
  return entries.filter(({kind}) => line[kind]).map(entry => `${moment(entry.atMs)} ${line[entry.kind](entry)}`).join("\n");
}

/** The silences of a call in one line. */
function waits({entries}) {
  const sorted = entries.filter(({kind}) => kind === "said").map(silence).filter(value => value !== null).sort((a, b) => a - b);
  if (!sorted.length) return "";
  const middle = sorted[Math.floor((sorted.length - 1) / 2)];
  return `From caller stopped to bot heard: ${ms(middle)} in the median of ${sorted.length}, ${ms(sorted.at(-1))} at most.`;
}

/**
 * Show a call.
 * @param {object} call the answer of `GET /v1/calls/{id}` for an ended call.
 */
export function drawCall(call) {
  shown = call;
  const failed = call.outcome === "failed";
  byId("call-facts").replaceChildren(
    fact("Began", new Date(call.startedAt * 1000).toLocaleString([], {dateStyle: "medium", timeStyle: "medium"})),
    fact("Lasted", duration(call.durationMs / 1000)),
    fact("From", call.from),
    fact("To", call.to),
    fact("Route", call.route),
    fact("Over", [call.transport, call.direction].filter(Boolean).join(", ")),
    fact("Ended", [endOf(call.reason), call.reason === "hangup" && call.endedBy && `by the ${call.endedBy}`].filter(Boolean).join(", "), failed),
    ...(call.endText || call.sipStatus ? [fact("Network", [call.sipStatus, call.endText].filter(Boolean).join(" "))] : []),
    fact("Turns", String(call.turns)),
    fact("Longest wait for us", ms(call.firstPacketMs)),
    fact("Gaps", call.gaps ? `${call.gaps}, ${ms(call.gapMs)}` : "0", call.gaps > 0),
    fact("Carrier's id", call.callSid),
  );
  const player = byId("call-recording");
  const sound = call.recording ? `/v1/calls/${encodeURIComponent(call.callId)}/recording` : "";
  player.hidden = !sound;
  if ((player.getAttribute("src") ?? "") !== sound) sound ? player.setAttribute("src", sound) : player.removeAttribute("src");
  byId("call-entries").replaceChildren(...draw(call.entries));
  byId("call-waits").textContent = waits(call);
  byId("unfold").hidden = !document.querySelector("#call-entries details");
  unfold(false);
  const nothing = call.entries.length ? "" : "Nothing was said in this call.";
  byId("call-lost").textContent = call.entriesLost ? `${call.entriesLost} more entries were not kept.` : nothing;
}

function unfold(open) {
  byId("unfold").setAttribute("aria-pressed", String(open));
  for (const folded of document.querySelectorAll("#call-entries details")) folded.open = open;
}

byId("unfold").addEventListener("click", ({currentTarget}) => unfold(currentTarget.ariaPressed !== "true"));
copies(byId("copy-id"), () => byId("call-id").textContent);
copies(byId("copy-link"), () => location.href);
copies(byId("copy-words"), () => plainWords(shown));
copies(byId("copy-record"), () => JSON.stringify(shown, null, 2));
