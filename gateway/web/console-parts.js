/** Helpers for the console's parts: elements and formatted numbers. */

export const byId = id => document.getElementById(id);

/** Make an element; `text` and values of attributes are never read as HTML. */
export function element(name, {className = "", text = "", ...attributes} = {}) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** A cell of a table whose rows become cards in a narrow window; `label` is its name there. */
export function cell(className, label) {
  const made = element("td", {className, role: "cell"});
  if (label) made.dataset.label = label;
  return made;
}

/**
 * Let a button copy a text, and say so on itself for two seconds.
 * @param {HTMLButtonElement} button
 * @param {() => string} text
 */
export function copies(button, text) {
  const label = button.textContent;
  let timer = 0;
  button.addEventListener("click", async () => {
    clearTimeout(timer);
    button.textContent = (await copied(text())) ? "Copied" : "Not allowed";
    timer = setTimeout(() => (button.textContent = label), 2000);
  });
}

/** Copy a text; true if that worked. Browsers have a clipboard only on https and localhost, and an old command elsewhere. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", {className: "visually-hidden", "aria-hidden": "true"});
    area.value = text;
    const before = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }
}

export const shortId = id => id.slice(-6);
export const ms = value => (value === null || value === undefined ? "–" : value < 999.5 ? `${value < 10 ? value.toFixed(1) : Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`);

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const pad = number => String(number).padStart(2, "0");
  return h ? `${h}:${pad(m)}:${pad(s)}` : `${m}:${pad(s)}`;
}

/** The stages of the time to a first packet, in the order of a turn (docs/latency.md). */
export const STAGES = ["moved", "transit", "token", "fetch", "text", "queue", "engine", "loop", "codec", "send"];
