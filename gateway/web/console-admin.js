/** The pages of keys, usage and routes, each with its own address (`#keys`, `#usage`, `#routes`). They change nothing. */

import {askJson} from "./console-api.js";
import {byId, cell, duration, element} from "./console-parts.js";

const MOST = 200; // rows that are drawn before the button for all of them is pressed

const number = value => value.toLocaleString();
const date = seconds => (seconds === null ? "–" : new Date(seconds * 1000).toLocaleString([], {dateStyle: "medium", timeStyle: "short"}));
const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);

/**
 * @typedef {object} Table
 * @property {[string, boolean][]} columns names, and true for numbers.
 * @property {(string|{text: string, bad: boolean})[][]} rows
 * @property {string[]} [foot] a last row with sums.
 * @property {string} note one sentence above the table.
 * @property {string} empty shown in place of a table without rows.
 */

/** @type {Object<string, {title: string, csv?: string, load: () => Promise<Table>}>} */
const PAGES = {
  keys: {
    title: "Keys",
    async load() {
      const {required, changeable, keys} = await askJson("/v1/keys");
      const how = changeable
        ? "Make and revoke keys with talkspurt keys create and talkspurt keys revoke; the server follows at once. Those of the configuration change there."
        : "These keys are in the configuration (auth.api_keys). Set auth.keys_file to make and revoke keys while the server runs.";
      return {
        columns: [["Key", false], ["Tenant", false], ["Scopes", false], ["Requests a minute", true], ["Calls a minute", true], ["Calls at once", true], ["Made", false], ["Expires", false], ["Last use", false], ["State", false]],
        rows: keys.map(key => [
          [key.name, key.id].filter(Boolean).join(" · ") || key.source, key.tenant, key.scopes.join(", "), number(key.requestsPerMinute),
          number(key.callsPerMinute), number(key.concurrentCalls), date(key.createdAt), date(key.expiresAt), date(key.lastUsedAt),
          {text: key.state, bad: key.state !== "active"},
        ]),
        note: required ? `${how} The last use is that since the start of the server.` : `No key is required on this listener. ${how}`,
        empty: "There is no key.",
      };
    },
  },
  usage: {
    title: "Usage",
    csv: "/v1/usage?format=csv",
    async load() {
      const {tenant, days} = await askJson("/v1/usage");
      return {
        columns: [["Day (UTC)", false], ["Tenant", false], ["Calls", true], ["Time in calls", true], ["Requests", true], ["Characters", true], ["Audio", true]],
        rows: days.map(day => [day.day, day.tenant || tenant || "–", number(day.calls), duration(day.callSeconds), number(day.requests), number(day.characters), duration(day.audioSeconds)]),
        foot: ["All", "", number(sum(days, "calls")), duration(sum(days, "callSeconds")), number(sum(days, "requests")), number(sum(days, "characters")), duration(sum(days, "audioSeconds"))],
        note: tenant === null ? "The days of all tenants." : `The days of tenant ${tenant}.`,
        empty: "Nothing has been used yet. The first ended call or request appears here.",
      };
    },
  },
  routes: {
    title: "Routes",
    async load() {
      const {routes} = await askJson("/v1/routes");
      const leads = {script: "a script", "dial-out": "we dial the manager", "dial-in": "the manager dials in"};
      return {
        columns: [["Route", false], ["Tenant", false], ["Led by", false], ["Language", false], ["Voice", false], ["Hears words", false], ["Records", false]],
        rows: routes.map(route => [route.name, route.tenant || "–", leads[route.dialogue], route.language, route.voice || "engine's default", route.recogniser ? "yes" : "no", route.recording ? "yes" : "no"]),
        note: "Routes are in the configuration (routes), which is read at the start of the server.",
        empty: "No route belongs to this key's tenant.",
      };
    },
  },
};

/** The page that the address names; undefined: none. */
export const adminPage = () => PAGES[location.hash.slice(1)];

function row(cells, columns, name = "td") {
  const made = element("tr", {role: "row"});
  made.append(...cells.map((given, index) => {
    const {text, bad} = typeof given === "string" ? {text: given, bad: false} : given;
    const one = name === "th" ? element("th", {role: "columnheader", scope: "col"}) : cell("", columns[index][0]);
    one.className = [columns[index][1] && "number", bad && "bad"].filter(Boolean).join(" ");
    one.textContent = text;
    return one;
  }));
  return made;
}

function draw({columns, rows, foot, note, empty}, most = MOST) {
  byId("admin-note").textContent = note;
  byId("admin-empty").textContent = rows.length ? "" : empty;
  byId("admin-scroll").hidden = !rows.length;
  byId("admin-head").replaceChildren(row(columns.map(([name]) => name), columns, "th"));
  const drawn = rows.slice(0, most).map(cells => row(cells, columns));
  if (foot && rows.length) {
    const last = row(foot, columns);
    last.className = "sums";
    drawn.unshift(last); // first, where it is seen without scrolling
  }
  byId("admin-rows").replaceChildren(...drawn);
  const all = byId("admin-all");
  all.hidden = rows.length <= most;
  all.textContent = `Show all ${number(rows.length)}`;
  all.onclick = () => {
    draw({columns, rows, foot, note, empty}, Infinity);
    byId("admin-scroll").focus();
  };
}

let before; // the page that was shown

async function show() {
  const page = adminPage();
  if (before && !page && location.hash) byId(location.hash.slice(1))?.focus();
  before = page;
  byId("admin-page").hidden = !page;
  for (const link of document.querySelectorAll(".bar nav a")) {
    if (page && link.hash === location.hash) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!page) return;
  byId("admin-title").textContent = page.title;
  byId("admin-note").textContent = "loading";
  byId("admin-problem").hidden = true;
  byId("admin-empty").textContent = "";
  byId("admin-scroll").hidden = byId("admin-all").hidden = true;
  byId("admin-csv").hidden = !page.csv;
  if (page.csv) byId("admin-csv").href = page.csv;
  scrollTo(0, 0);
  byId("admin-title").focus();
  try {
    const table = await page.load();
    if (adminPage() === page) draw(table);
  } catch (error) {
    if (adminPage() !== page) return;
    byId("admin-note").textContent = "";
    byId("admin-message").textContent = error.message;
    byId("admin-problem").hidden = false;
  }
}

/** Begin to follow the address. */
export function showAdmin() {
  byId("admin-again").addEventListener("click", show);
  addEventListener("hashchange", show);
  show();
}
