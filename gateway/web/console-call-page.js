/** The page of one ended call: both sides with their times, the heard part of each turn, and the stages of its wait. */

import {STAGES, byId, duration, element, ms} from "./console-parts.js";

const WHAT = {play: "plays a clip", digits: "sends keys", text: "says nothing"};

/** A moment of the call, minutes, seconds and tenths after it began. */
const moment = atMs => `${duration(atMs / 1000)}.${Math.floor(atMs / 100) % 10}`;

function fact(name, value, bad = false) {
  const made = element("div");
  made.append(element("dt", {text: name}), element("dd", {text: value || "–", className: bad ? "bad" : ""}));
  return made;
}

/** A wait: one bar for each stage, one after the other. */
function waterfall({stagesMs, firstPacketMs}) {
  const order = name => STAGES.indexOf(name) + 1 || STAGES.length + 1; // unknown ones last
  const stages = Object.entries(stagesMs).filter(([, value]) => value > 0).sort(([a], [b]) => order(a) - order(b));
  const table = element("table", {className: "waterfall"});
  table.append(element("caption", {className: "visually-hidden", text: "Stages of the wait"}));
  const line = (className, name, from, length) => {
    const row = element("tr", {className});
    const bar = element("td", {className: "stretch", "aria-hidden": "true"});
    bar.style.setProperty("--from", String(from / firstPacketMs));
    bar.style.setProperty("--length", String(length / firstPacketMs));
    row.append(element("th", {scope: "row", text: name}), bar, element("td", {className: "number", text: `${length.toFixed(1)} ms`}));
    return row;
  };
  let from = 0;
  for (const [name, value] of stages) {
    table.append(line("stage", name, from, value));
    from += value;
  }
  table.append(line("total", "first packet", 0, firstPacketMs));
  return table;
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

const ENTRY = {
  said(entry) {
    const {startedMs, endedMs, outcome, reason, firstPacketMs, gaps, gapMs} = entry;
    const notes = [startedMs === null ? "never heard" : `heard from ${moment(startedMs)} to ${moment(endedMs)}`];
    if (startedMs !== null && firstPacketMs === null) notes.push("without a wait");
    if (firstPacketMs !== null) notes.push(`after a wait of ${ms(firstPacketMs)}`);
    if (gaps) notes.push(`${gaps} gap${gaps > 1 ? "s" : ""}, ${ms(gapMs)}`);
    const about = element("p", {className: "small muted", text: notes.join(" · ")});
    if (outcome !== "finished") {
      const told = outcome === "interrupted" ? "cut" : "failed";
      about.prepend(element("span", {className: "cut", text: reason ? `${told}: ${reason}` : told}));
    }
    return ["Bot", words(entry), about, ...(firstPacketMs ? [waterfall(entry)] : [])];
  },
  heard: ({text, lang}) => ["Caller", words({text, heardChars: Infinity, what: "text"}), element("p", {className: "small muted", text: lang})],
  pressed: ({digit}) => ["Caller", element("p", {className: "text", text: digit === null ? "pressed a key" : `pressed ${digit}`})],
  supervised: ({by, event}) => ["Supervisor", element("p", {className: "text", text: `${event} (${by})`})],
  call: ({event, code}) => ["Network", element("p", {className: "text", text: code ? `${event} (${code})` : event})],
  answered: ({by, text, waiting}) => ["Answered by", element("p", {className: "text", text: [by, waiting && "a person may come", text].filter(Boolean).join(" · ")})],
  listened: ({by, event}) => ["Supervisor", element("p", {className: "text", text: event === "joined" ? `started to listen (${by})` : `stopped listening (${by})`})],
  fault: ({code, description}) => ["Error", element("p", {className: "text bad", text: [code, description].filter(Boolean).join(": ")})],
};

function draw(entry) {
  const line = element("li", {className: entry.kind});
  const [who, ...parts] = ENTRY[entry.kind](entry);
  const head = element("p", {className: "who"});
  head.append(element("b", {text: who}), " ", element("span", {className: "small muted figure", text: moment(entry.atMs)}));
  line.append(head, ...parts);
  return line;
}

/**
 * Show a call.
 * @param {object} call the answer of `GET /v1/calls/{id}` for an ended call.
 */
export function drawCall(call) {
  const failed = call.outcome === "failed";
  byId("call-facts").replaceChildren(
    fact("Began", new Date(call.startedAt * 1000).toLocaleString([], {dateStyle: "medium", timeStyle: "medium"})),
    fact("Lasted", duration(call.durationMs / 1000)),
    fact("From", call.from),
    fact("To", call.to),
    fact("Route", call.route),
    fact("Over", [call.transport, call.direction].filter(Boolean).join(", ")),
    fact("Ended", failed ? `failed: ${call.reason}` : call.reason, failed),
    fact("Turns", String(call.turns)),
    fact("Longest wait", ms(call.firstPacketMs)),
    fact("Gaps", call.gaps ? `${call.gaps}, ${ms(call.gapMs)}` : "0", call.gaps > 0),
    fact("Carrier's id", call.callSid),
  );
  const player = byId("call-recording");
  const sound = call.recording ? `/v1/calls/${encodeURIComponent(call.callId)}/recording` : "";
  player.hidden = !sound;
  if ((player.getAttribute("src") ?? "") !== sound) sound ? player.setAttribute("src", sound) : player.removeAttribute("src");
  byId("call-entries").replaceChildren(...call.entries.map(draw));
  const nothing = call.entries.length ? "" : "Nothing was said in this call.";
  byId("call-lost").textContent = call.entriesLost ? `${call.entriesLost} more entries were not kept.` : nothing;
}
