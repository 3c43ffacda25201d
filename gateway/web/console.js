/** The console: connects the page's parts and updates the figures of gateway and engine. */

import {ask, askJson, repeat} from "./console-api.js";
import {showAdmin} from "./console-admin.js";
import {showCalls} from "./console-calls.js";
import {History, parse, remembered} from "./console-figures.js";
import {showPast} from "./console-past.js";
import {Plot} from "./console-plot.js";
import {showVoices} from "./console-voices.js";
import {mountPhone} from "./phone.js";

const EVERY_MS = 2000;
const SPANS_S = [60, 120, 300, 600, 1800, 3600]; // spans of the plots' time axis: the shortest that fits is used
const SPAN_S = SPANS_S.at(-1);
const RARE_S = 30; // window for percentiles of events per turn
const OFTEN_S = 10; // window for events per frame

const byId = id => document.getElementById(id);

// --- messages to the user ---------------------------------------------------------------------------------------------

function announce(text) {
  const line = document.createElement("p");
  line.textContent = text;
  const log = byId("announcements");
  log.append(line);
  while (log.childElementCount > 20) log.firstChild.remove();
}

let hiding = 0;

function problem({message}) {
  const toast = byId("problem");
  toast.textContent = message;
  toast.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => (toast.hidden = true), 8000);
}

// --- light and dark ---------------------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
const THEME = "talkspurt.theme";
const SPAN = "talkspurt.span";

function theme(choice) {
  if (choice) document.documentElement.dataset.theme = choice;
  const isDark = (choice || (dark.matches ? "dark" : "light")) === "dark";
  const button = byId("theme");
  const [icon, label] = button.children;
  button.dataset.next = isDark ? "light" : "dark";
  icon.textContent = isDark ? "☀" : "☾";
  label.textContent = isDark ? "Light" : "Dark";
  button.setAttribute("aria-label", `${label.textContent} colours`);
}

byId("theme").addEventListener("click", () => {
  const {next} = byId("theme").dataset;
  localStorage.setItem(THEME, next);
  theme(next);
});
dark.addEventListener("change", () => theme(localStorage.getItem(THEME)));
theme(localStorage.getItem(THEME));

// --- figures over time ------------------------------------------------------------------------------------------------

const history = new History(SPAN_S);
/** @type {{at: number, active: number, queued: number}[]} */
const load = [];
const inMs = points => points.map(({at, value}) => ({at, value: value === null ? null : value * 1000}));
const percentiles = (family, windowS, ...quantiles) => quantiles.map(q => inMs(history.quantiles(family, q, windowS)));

const PLOTS = [
  {
    plot: new Plot({title: "First packet", unit: "ms", series: ["p50", "p95"], goal: 300, least: 100,
      note: `From the message that makes the first clause speakable to the first audible frame; last ${RARE_S} s`}),
    points: () => percentiles("talkspurt_first_packet_seconds", RARE_S, 0.5, 0.95),
  },
  {
    plot: new Plot({title: "Cut", unit: "ms", series: ["p50", "p95"], least: 50,
      note: `From cancel, caller speech or a key to the last old frame; last ${RARE_S} s`}),
    points: () => percentiles("talkspurt_cut_seconds", RARE_S, 0.5, 0.95),
  },
  {
    plot: new Plot({title: "Pacing error", unit: "ms", series: ["p50", "p99"], goal: 10, least: 5,
      note: `Actual minus due time of frames; last ${OFTEN_S} s`}),
    points: () => percentiles("talkspurt_pacing_error_seconds", OFTEN_S, 0.5, 0.99),
  },
  {
    plot: new Plot({title: "First chunk", unit: "ms", series: ["p50", "p95"], least: 100,
      note: `From text to the first audible chunk, in the engine; last ${RARE_S} s`}),
    points: () => percentiles("talkspurt_engine_first_chunk_seconds", RARE_S, 0.5, 0.95),
  },
  {
    plot: new Plot({title: "Engine", unit: "", series: ["making", "queued", "batch"], optional: ["batch"], least: 2,
      note: "Utterances in progress, steps that wait, and utterances in one step"}),
    points: () => [
      load.map(({at, active}) => ({at, value: active})),
      load.map(({at, queued}) => ({at, value: queued})),
      history.means("talkspurt_engine_batch_size", OFTEN_S),
    ],
  },
  {
    plot: new Plot({title: "Calls", unit: "", series: ["live", "gaps a minute"], least: 4,
      note: "Live calls, and gaps within turns"}),
    points: () => [history.gauge("talkspurt_calls_active"), history.rates("talkspurt_gaps_total", RARE_S)],
  },
];
byId("plots").append(...PLOTS.map(({plot}) => plot.element));

async function figures() {
  const answer = await ask("/v1/health", {also: 503}).catch(error => {
    status("unreachable", error.message);
    throw error;
  });
  const health = await answer.json();
  status(answer.ok ? "ready" : "waiting", answer.ok ? "ready" : health.status);
  byId("calls-live").textContent = `${health.calls} / ${health.callsLimit}`;
  byId("engine").textContent = [...new Set([health.engine, health.model, health.gpuName])].filter(Boolean).join(" · ") || "–";
  byId("engine-active").textContent = health.active;
  byId("engine-queued").textContent = health.queued;
  document.title = health.calls ? `${health.calls} live – talkspurt console` : "talkspurt console";
  const now = performance.now() / 1000;
  recalled ??= recall(now);
  await recalled;
  load.push({at: now, active: health.active, queued: health.queued});
  while (load[0].at < now - SPAN_S) load.shift();
  try {
    history.add(now, parse(await (await ask("/metrics")).text()));
  } catch (error) {
    if (![403, 404].includes(error.status)) throw error;
    byId("plots-note").textContent = error.status === 403
      ? "Only the engine's load is shown: the other figures need a key with the scope admin."
      : "Metrics are off (metrics.enabled): only the engine's load is shown.";
    byId("plots-note").hidden = false;
  }
  const mostS = Number(byId("plots-span").value);
  const spanS = SPANS_S.find(span => span >= mostS || span >= now - load[0].at);
  for (const {plot, points} of PLOTS) plot.show(points(), now, spanS);
}

let recalled = null;

/** Begin with what the server remembers. A key without the scope sees what happens while the page is open. */
async function recall(now) {
  try {
    for (const {at, ...figures} of remembered(await askJson("/v1/figures"), now)) {
      history.add(at, figures);
      load.push({at, active: figures.values.get("active"), queued: figures.values.get("queued")});
    }
  } catch (error) {
    if (![403, 404].includes(error.status)) recalled = null;
  }
}

byId("plots-span").value = localStorage.getItem(SPAN) ?? "3600";
byId("plots-span").addEventListener("change", ({target}) => {
  localStorage.setItem(SPAN, target.value);
  look();
});

function status(state, text) {
  const note = byId("status");
  note.dataset.state = state;
  if (note.textContent !== text) note.textContent = text;
}

// --- the parts --------------------------------------------------------------------------------------------------------

byId("call-command").textContent = `talkspurt call ${location.origin.replace(/^http/, "ws")}/media/twilio/default`;
const phone = mountPhone(byId("phone"));
const past = showPast({problem});
showCalls({announce, problem, own: () => phone.call?.id ?? "", ended: past.ended});
showVoices({announce});
showAdmin();
const look = repeat(figures, () => EVERY_MS);
