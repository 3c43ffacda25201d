/** Ended calls: a list with a search, and a page for each call with its own address (`#call=ID`). */

import {adminPage} from "./console-admin.js";
import {ask, askJson, repeat} from "./console-api.js";
import {drawCall} from "./console-call-page.js";
import {endOf} from "./ends.js";
import {byId, cell, duration, element, ms} from "./console-parts.js";

const PAGE = 25;
const MOST = 1000; // most calls of one answer
const SETTLES_MS = 10000; // a call's record and recording appear shortly after its end
const SOON_MS = 1000;
const LATER_MS = 60000;
const TYPED_MS = 250;

const openId = () => new URLSearchParams(location.hash.slice(1)).get("call") ?? "";
const linkTo = id => `#${new URLSearchParams({call: id})}`;

/** A row of the list. It never changes, because the call has ended. */
function makeRow(call) {
  const row = element("tr", {role: "row"});
  row.dataset.call = call.callId;
  const at = new Date(call.startedAt * 1000);
  const link = element("a", {href: linkTo(call.callId)});
  link.append(element("time", {
    datetime: at.toISOString(), text: at.toLocaleString([], {dateStyle: "short", timeStyle: "medium"}),
  }));
  const started = cell("started");
  started.append(link);
  const cells = [["numbers", "numbers", `${call.from || "–"} → ${call.to || "–"}`], ["route", "route", call.route],
    ["number", "lasted", duration(call.durationMs / 1000)], ["number", "turns", String(call.turns)],
    ["number", "longest wait", ms(call.firstPacketMs)],
    [call.gaps ? "number bad" : "number", "gaps", call.gaps ? `${call.gaps}, ${ms(call.gapMs)}` : "0"],
    [call.outcome === "failed" ? "reason bad" : "reason", "ended", endOf(call.reason)]];
  row.append(started, ...cells.map(([className, label, text]) => {
    const made = cell(className, label);
    made.textContent = text;
    return made;
  }));
  return row;
}

/**
 * Begin to show ended calls.
 * @param {{problem: (error: Error) => void}} page
 * @returns {{ended: () => void}} `ended`: a call has ended and will soon be in the list.
 */
export function showPast({problem}) {
  const [body, text, route, form] = [byId("past-rows"), byId("past-text"), byId("past-route"), byId("past-search")];
  const sorters = [...document.querySelectorAll("#past .sort")];
  let [sort, order] = ["start", "desc"];
  const rows = new Map();
  let wanted = PAGE;
  let settledAt = 0;
  let off = false;
  let drawn = ""; // the call page's data

  /** The filters that are set, as parameters of the list. */
  function filters() {
    const set = Object.entries(Object.fromEntries(new FormData(form))).filter(([, value]) => value.trim());
    const seconds = (name, value) => (["since", "until"].includes(name) ? String(new Date(value).getTime() / 1000) : value.trim());
    return Object.fromEntries(set.map(([name, value]) => [name, seconds(name, value)]));
  }

  function query(more) {
    const given = {ended: "true", ...filters(), sort, order, ...more};
    return `/v1/calls?${new URLSearchParams(Object.entries(given).filter(([, value]) => value))}`;
  }

  async function showList() {
    const calls = [];
    let before = "";
    let totals = null;
    try {
      do {
        const page = await askJson(query({limit: Math.min(MOST, wanted - calls.length), before, totals: before ? "" : "true"}));
        totals ??= page.totals;
        calls.push(...page.calls);
        before = page.next;
      } while (before && calls.length < wanted);
    } catch (error) {
      off = error.code === "not_configured";
      byId("past-off").hidden = !off;
      byId("past-on").hidden = off;
      if (!off) byId("past-note").textContent = error.message;
      return;
    }
    byId("past-off").hidden = true;
    byId("past-on").hidden = false;
    update(calls);
    byId("past-more").hidden = !before;
    byId("past-csv").href = query({limit: MOST, format: "csv"});
    const narrowed = Object.keys(filters()).length;
    const sums = totals && [`${totals.calls} call${totals.calls === 1 ? "" : "s"}`, duration(totals.durationMs / 1000), `${totals.turns} turns`, `${totals.gaps} gaps`, `${totals.failed} failed`];
    byId("past-totals").textContent = totals?.calls ? `${narrowed ? "All that match" : "All"}: ${sums.join(" · ")}` : "";
    byId("past-note").textContent = calls.length ? (before ? `${calls.length} of ${totals.calls}` : `${calls.length}`) : narrowed ? "no call matches" : "none yet";
  }

  /** Sort the rows; rows that stay are not moved, so that the focus stays too. */
  function update(calls) {
    const ids = new Set(calls.map(call => call.callId));
    for (const [id, row] of rows) {
      if (ids.has(id)) continue;
      row.remove();
      rows.delete(id);
    }
    calls.forEach((call, index) => {
      if (!rows.has(call.callId)) rows.set(call.callId, makeRow(call));
      const row = rows.get(call.callId);
      if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
    });
    body.closest("table").hidden = !calls.length;
  }

  async function showCall(id) {
    let note = "";
    try {
      const found = await (await ask(`/v1/calls/${encodeURIComponent(id)}`)).text();
      if (openId() !== id) return;
      const call = JSON.parse(found);
      if (call.entries && found !== drawn) drawCall(call);
      if (call.entries) drawn = found;
      else note = call.state === "failed" ? `This call failed. ${endOf(call.reason)}.` : "This call has not ended. Its transcript will appear here.";
    } catch (error) {
      if (drawn || openId() !== id) return; // an ended call does not change, so keep the page
      note = error.status === 404 ? `${error.message}. Ended calls are kept if calls.folder is set.` : error.message;
    }
    byId("call-note").textContent = note;
    byId("call-found").hidden = Boolean(note);
  }

  /** Show the part of the page named by the address. */
  let shown = "";
  function navigate() {
    const id = openId();
    byId("overview").hidden = Boolean(id || adminPage());
    byId("call-page").hidden = !id;
    byId("call-recording").pause();
    if (id && id !== shown) {
      drawn = "";
      byId("call-id").textContent = id;
      byId("call-note").textContent = "";
      byId("call-found").hidden = true;
      scrollTo(0, 0);
      byId("call-title").focus();
    } else if (shown && !id) {
      const row = location.hash === "#past" ? rows.get(shown)?.querySelector("a") : null;
      (row ?? byId(location.hash.slice(1)) ?? byId("past")).focus();
    }
    shown = id;
    look();
  }

  const look = repeat(
    async () => {
      if (openId()) await showCall(openId());
      else if (!off) await showList();
    },
    () => (performance.now() < settledAt ? SOON_MS : LATER_MS),
  );
  function showOrder() {
    for (const button of sorters) {
      const mine = button.dataset.sort === sort;
      button.dataset.order = mine ? order : "";
      const column = button.closest("th");
      if (mine) column.setAttribute("aria-sort", order === "asc" ? "ascending" : "descending");
      else column.removeAttribute("aria-sort");
    }
  }

  let typing = 0;
  const search = () => {
    wanted = PAGE;
    look();
  };
  form.addEventListener("input", ({target}) => {
    clearTimeout(typing);
    typing = setTimeout(search, target.matches("select") ? 0 : TYPED_MS);
  });
  form.addEventListener("change", ({target}) => target.matches("select") && search());
  form.addEventListener("reset", () => setTimeout(search)); // the fields are empty after this event
  for (const button of sorters) {
    button.addEventListener("click", () => {
      order = button.dataset.sort === sort && order === "desc" ? "asc" : "desc";
      sort = button.dataset.sort;
      showOrder();
      search();
    });
  }
  showOrder();
  byId("past-search").addEventListener("submit", event => {
    event.preventDefault();
    search();
  });
  byId("past-more").addEventListener("click", () => {
    wanted = rows.size + PAGE;
    look();
  });
  addEventListener("hashchange", navigate);
  navigate();
  askJson("/v1/routes").then(({routes}) => route.append(...routes.map(({name}) => new Option(name))), problem);
  return {
    ended() {
      const looking = performance.now() < settledAt;
      settledAt = performance.now() + SETTLES_MS;
      if (!looking) look();
    },
  };
}
