/** Converts audio that the browser can decode to a WAV file. */

const RATE_HZ = 24000;

/**
 * @param {ArrayBuffer} data a recording or a file.
 * @returns {Promise<Blob>} mono, 16 bit, 24 kHz.
 */
export async function toWav(data) {
  const context = new OfflineAudioContext(1, 1, RATE_HZ); // decodes to its own sample rate
  const sound = await context.decodeAudioData(data).catch(() => {
    throw new Error("The browser cannot read this audio.");
  });
  const pcm = new Int16Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    const samples = sound.getChannelData(channel);
    for (let i = 0; i < pcm.length; i++) {
      pcm[i] += Math.max(-1, Math.min(1, samples[i])) * 32767 / sound.numberOfChannels;
    }
  }
  const head = new DataView(new ArrayBuffer(44));
  const ascii = (offset, text) => [...text].forEach((letter, i) => head.setUint8(offset + i, letter.charCodeAt(0)));
  ascii(0, "RIFF");
  head.setUint32(4, 36 + pcm.byteLength, true);
  ascii(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true); // PCM
  head.setUint16(22, 1, true); // mono
  head.setUint32(24, RATE_HZ, true);
  head.setUint32(28, RATE_HZ * 2, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  ascii(36, "data");
  head.setUint32(40, pcm.byteLength, true);
  return new Blob([head, pcm], {type: "audio/wav"}); // samples are little-endian on every browser platform
}
