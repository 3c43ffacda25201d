/** The voices: list, play, register from the microphone or a file, remove. */

import {ask, askJson} from "./console-api.js";
import {toWav} from "./console-wav.js";

const LONGEST_S = 30;

const byId = id => document.getElementById(id);

/**
 * Begin to show the voices.
 * @param {{announce: (text: string) => void}} page
 */
export function showVoices({announce}) {
  const [list, player, form] = [byId("voice-list"), byId("player"), byId("voice-form")];
  let reference = null; // WAV, ready to send
  let recorder = null;

  function problem(error) {
    byId("voice-problem").textContent = error ? error.message : "";
  }

  const guarded = work => async (...given) => {
    problem(null);
    try {
      await work(...given);
    } catch (error) {
      problem(error);
    }
  };

  async function refresh() {
    const {voices} = await askJson("/v1/voices");
    list.replaceChildren(...voices.map(item));
    byId("voices-note").textContent = `${voices.length}`;
    const choice = byId("turn-voice");
    const before = choice.value;
    choice.replaceChildren(choice.options[0], ...voices.map(({voice_id, name}) => new Option(name === voice_id ? name : `${name} (${voice_id})`, voice_id)));
    choice.value = before;
    if (choice.selectedIndex < 0) choice.value = "";
  }

  function item(voice) {
    const line = document.createElement("li");
    line.dataset.voice = voice.voice_id;
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = voice.name;
    const about = document.createElement("span");
    about.className = "small muted";
    const id = voice.name === voice.voice_id ? [] : [voice.voice_id];
    about.textContent = [...id, ...voice.languages, voice.registered ? "registered" : "built in"].join(" · ");
    const hear = document.createElement("button");
    hear.type = "button";
    hear.textContent = "Hear";
    hear.setAttribute("aria-label", `Hear ${voice.name}`);
    hear.addEventListener("click", guarded(() => play(voice.voice_id, hear)));
    line.append(name, about, hear);
    if (voice.registered) {
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "plain";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove ${voice.name}`);
      remove.addEventListener("click", guarded(async () => {
        if (!confirm(`Remove the voice ${voice.name}?`)) return;
        await ask(`/v1/voices/${encodeURIComponent(voice.voice_id)}`, {method: "DELETE"});
        announce(`voice ${voice.name} removed`);
        await refresh();
      }));
      line.append(remove);
    }
    return line;
  }

  async function play(speaker, button) {
    button.disabled = true;
    try {
      const answer = await ask("/v1/tts", {json: {text: byId("sample").value, speaker, format: "wav"}});
      URL.revokeObjectURL(player.src);
      player.src = URL.createObjectURL(await answer.blob());
      await player.play();
    } finally {
      button.disabled = false;
      button.focus();
    }
  }

  // --- a new one -------------------------------------------------------------------------------------------------------

  async function take(blob) {
    reference = await toWav(await blob.arrayBuffer());
    const audio = byId("reference");
    URL.revokeObjectURL(audio.src);
    audio.src = URL.createObjectURL(reference);
    audio.hidden = false;
  }

  async function record() {
    const button = byId("record");
    if (recorder) {
      recorder.stop();
      return;
    }
    if (!navigator.mediaDevices) throw new Error("Browsers allow the microphone only on https pages; choose a file.");
    const stream = await navigator.mediaDevices.getUserMedia({audio: {echoCancellation: false, noiseSuppression: false}}).catch(() => {
      throw new Error("There is no microphone, or access was denied; choose a file.");
    });
    const pieces = [];
    recorder = new MediaRecorder(stream);
    const timer = setTimeout(() => recorder?.stop(), LONGEST_S * 1000);
    recorder.ondataavailable = ({data}) => pieces.push(data);
    recorder.onstop = guarded(async () => {
      clearTimeout(timer);
      for (const track of stream.getTracks()) track.stop();
      recorder = null;
      button.setAttribute("aria-pressed", "false");
      button.textContent = "Record again";
      await take(new Blob(pieces));
    });
    recorder.start();
    button.setAttribute("aria-pressed", "true");
    button.textContent = "Stop";
  }

  byId("record").addEventListener("click", guarded(record));
  byId("voice-file").addEventListener("change", guarded(async ({target}) => {
    if (target.files.length) await take(target.files[0]);
  }));
  form.addEventListener("submit", guarded(async event => {
    event.preventDefault();
    if (!reference) throw new Error("Record the speaker, or choose a file.");
    const body = new FormData();
    body.append("audio", reference, "reference.wav");
    const fields = {transcript: "transcript", voice_id: "voice-id", name: "voice-name", language: "voice-language"};
    for (const [field, id] of Object.entries(fields)) if (byId(id).value) body.append(field, byId(id).value);
    const button = form.querySelector(".primary");
    button.disabled = true;
    try {
      const voice = await askJson("/v1/voices", {method: "POST", body});
      announce(`voice ${voice.name} registered`);
      const {problems} = voice.sample;
      byId("voice-problem").textContent = problems.map(({message}) => message).join("; ");
      form.reset();
      reference = null;
      byId("reference").hidden = true;
      await refresh();
    } finally {
      button.disabled = false;
    }
  }));
  guarded(refresh)();
}
