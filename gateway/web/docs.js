/** The page of the HTTP API: each form asks its operation of this server, and its curl line follows the fields. */

const MOST_SHOWN = 20000;
const EVENTS_FOR_MS = 5000;

/** What a form asks for: address, and the body if there is one. */
function asked(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  for (const input of form.querySelectorAll("input")) {
    if (input.dataset.in === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (input.value) query.set(input.name, input.value);
  }
  const search = query.toString();
  return {url: location.origin + path + (search ? `?${search}` : ""), body: form.elements.body?.value};
}

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

/** Write the curl line anew; the header with the key stays as the server wrote it. */
function showCurl(form, line) {
  const {url, body} = asked(form);
  const method = form.dataset.method;
  const parts = [`curl -g${method === "GET" ? "" : ` -X ${method}`} ${quoted(url)}`];
  if (line.dataset.key) parts.push('-H "Authorization: Bearer $TALKSPURT_API_KEY"');
  if (body !== undefined) parts.push("-H 'Content-Type: application/json'", `-d ${quoted(body.replace(/\s*\n\s*/g, " "))}`);
  line.textContent = parts.join(" \\\n  ");
}

/** Read an answer as text; endless ones are cut after some seconds. */
async function read(answer) {
  const type = answer.headers.get("Content-Type") ?? "";
  if (type.startsWith("audio/")) return {sound: await answer.blob()};
  const reader = answer.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  if (reader) {
    const late = setTimeout(() => reader.cancel(), EVENTS_FOR_MS);
    for (let part = await reader.read(); !part.done && text.length < MOST_SHOWN; part = await reader.read()) {
      text += decoder.decode(part.value, {stream: true});
    }
    clearTimeout(late);
    reader.cancel();
  }
  if (type.startsWith("application/json")) {
    try {
      text = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // cut off, or not JSON: shown as it is
    }
  }
  return {text};
}

async function ask(form, outcome) {
  const {url, body} = asked(form);
  outcome.hidden = false;
  outcome.textContent = "…";
  try {
    const headers = body === undefined ? {} : {"Content-Type": "application/json"};
    const answer = await fetch(url, {method: form.dataset.method, body, headers, credentials: "same-origin"});
    const {text, sound} = await read(answer);
    outcome.textContent = `${answer.status} ${answer.statusText}\n${text ?? ""}`;
    if (sound) {
      const player = document.createElement("audio");
      player.controls = true;
      player.src = URL.createObjectURL(sound);
      outcome.append(player);
    }
  } catch (error) {
    outcome.textContent = `The server did not answer: ${error.message}`;
  }
}

for (const form of document.querySelectorAll("form[data-path]")) {
  const [line, outcome] = [form.querySelector(".curl"), form.querySelector(".outcome")];
  line.dataset.key = line.textContent.includes("Authorization") ? "1" : "";
  form.addEventListener("input", () => showCurl(form, line));
  form.addEventListener("submit", event => {
    event.preventDefault();
    ask(form, outcome);
  });
  showCurl(form, line);
}

/** A link to an operation opens it. */
function open() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
addEventListener("hashchange", open);
open();
