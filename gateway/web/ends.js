/** The reasons of an ended call, and of a turn that was cut, in words for people. */

const ENDED = {
  hangup: "Hung up",
  cancelled: "Hung up before an answer",
  end: "The bot hung up",
  transferred: "The call was passed on",
  too_long: "The call reached its longest time",
  dialogue_failed: "No one answers on this route",
  connection_lost: "The connection was lost",
  webrtc_failed: "The connection was lost",
  no_connection: "No network path to the server",
  unreachable: "The server cannot be reached",
  hangup_by_api: "The operator ended the call",
  drained: "The server is shutting down",
  shutdown: "The server is shutting down",
  gateway_gone: "The server has stopped",
  spent_token: "The stream's token had been used before",
  too_many_calls: "Too many calls at a time",
  rate_limited: "Too many calls in a short time",
  full: "The server is full",
  unknown_route: "There is no such route",
  unauthorized: "The key is not valid",
  missing_scope: "The key may not make calls",
};

const CUT = {
  speech: "the caller spoke", dtmf: "the caller pressed a key", cancel: "stopped", preempted: "replaced by another turn",
  hangup: "the call ended", ended: "the call ended", discarded: "discarded",
};

/** A code that is not in a table, as words: `stream_stopped` is "stream stopped". */
const plain = code => code.replaceAll("_", " ");

/** The reason of a call's end. @param {string} reason @returns {string} */
export function endOf(reason) {
  return Object.hasOwn(ENDED, reason) ? ENDED[reason] : reason ? `Call ended: ${plain(reason)}` : "Call ended";
}

/** The reason that a turn was cut, on the operator's pages. @param {string} reason @returns {string} */
export function cutBy(reason) {
  return Object.hasOwn(CUT, reason) ? CUT[reason] : plain(reason);
}
