/** Requests to the page's own server. If a key is required, it is in a cookie. */

/** A refusal by the server, with its message. */
export class Refused extends Error {
  constructor(status, {code = "", message = "", param = ""} = {}) {
    super(message || `the server answered ${status}`);
    Object.assign(this, {status, code, param});
  }
}

/**
 * Send a request; throw an error if it fails.
 * @param {string} path
 * @param {RequestInit & {json?: object, also?: number}} [options] `json` is sent as the body; `also` is one more status
 *   that counts as success.
 * @returns {Promise<Response>}
 */
export async function ask(path, {json, also, ...options} = {}) {
  if (json !== undefined) {
    options = {method: "POST", body: JSON.stringify(json), headers: {"Content-Type": "application/json"}, ...options};
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refused(0, {code: "unreachable", message: "the server cannot be reached"});
  }
  if (response.ok || response.status === also) return response;
  if (response.status === 401) location.reload(); // the key is gone: the reloaded page shows the sign-in form
  const {error} = await response.json().catch(() => ({}));
  throw new Refused(response.status, error);
}

/** The same, for an answer in JSON. */
export const askJson = async (path, options) => (await ask(path, options)).json();

/**
 * Repeat something, never twice at a time; more slowly while it fails or the page is hidden.
 * @param {() => Promise<void>} work
 * @param {() => number} everyMs called after each round.
 * @returns {() => void} starts the next round now.
 */
export function repeat(work, everyMs) {
  let timer = 0;
  let busy = false;
  let again = false;
  async function round() {
    clearTimeout(timer);
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    let failed = false;
    await work().catch(() => (failed = true));
    busy = false;
    const wait = again ? 0 : failed || document.hidden ? Math.max(2000, everyMs()) : everyMs();
    again = false;
    timer = setTimeout(round, wait);
  }
  round();
  return round;
}
