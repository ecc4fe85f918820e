/* One answer of the model: what its events make of it. Pure: events and times in, state out.
 *
 * It knows up to which event it was read (`number`), so that it can be resumed from any connection;
 * where the text paused, for how long and why (`marks`); and what to ask for to get it again. */

const ENDED = new Set(["completed", "incomplete", "cancelled", "failed", "refused", "lost"]);
// A token takes eight numbers: see the server's `responses/record`.
const NUMBERS_OF_TOKEN = 8;
// Arrivals that are kept to find the pause that a death made.
const ARRIVALS_MAX = 64;
const RATE_WINDOW_MS = 2000;
// The feed says of a death when it happened; clocks and buckets are as coarse as this.
const COARSE_MS = 150;
// Said where the feed does not say, or has not said yet, which process died.
const UNKNOWN = "its engine died";
export const CUT = "connection lost";
const VAGUE = new Set([UNKNOWN, CUT]);

export class Answer {
  constructor(ask) {
    this.ask = ask; // {body, parent}: what was sent, and the response that it continues
    this.id = "";
    this.text = "";
    this.number = -1;
    this.status = "asking"; // streaming, then one of ENDED
    this.reason = "";
    this.marks = [];
    this.usage = null;
    this.startedAt = Date.now();
    this.firstAt = 0;
    this.lastAt = 0;
    this.check = ""; // what a comparison with an undisturbed run said
    this.clearPassing();
  }

  /** What a reload does not keep. */
  clearPassing() {
    this.entries = []; // logprobs, one a token
    this.arrivals = []; // {at, offset, tokens}
    this.pause = null; // {since, words}
    this.granted = 0; // tokens of credit
    this.owed = 0; // of them, what its pace allows and was not yet sent
    this.isStopped = false; // the visitor wants no more of it
  }

  static stored(values) {
    const answer = Object.assign(Object.create(Answer.prototype), values);
    answer.clearPassing();
    return answer;
  }

  toStored() {
    const { entries, arrivals, pause, granted, owed, isStopped, ...kept } = this;
    return kept;
  }

  get isEnded() {
    return ENDED.has(this.status);
  }

  get tokens() {
    return this.usage?.output_tokens ?? Math.max(0, Math.floor(this.number / NUMBERS_OF_TOKEN));
  }

  /** Tokens a second: lately while it streams, over all of it at its end. 0: not known yet. */
  rate(now) {
    if (this.isEnded) {
      const ms = this.lastAt - this.firstAt;
      return ms > 50 ? ((this.tokens - 1) * 1000) / ms : 0;
    }
    const recent = this.arrivals.filter((arrival) => arrival.at > now - RATE_WINDOW_MS);
    if (recent.length < 2) return 0;
    const [first, last] = [recent[0], recent.at(-1)];
    return ((last.tokens - first.tokens) * 1000) / Math.max(50, last.at - first.at);
  }

  handleEvent(event, now) {
    switch (event.type) {
      case "response.output_text.delta":
        this.handleDelta(event, now);
        return;
      case "response.created":
        this.id = event.response.id;
        this.status = "streaming";
        break;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        this.handleEnd(event.response);
        break;
      case "error":
        this.handleError(event.error);
        break;
      case "runtime.queued":
      case "runtime.preempted":
      case "runtime.migrated":
        this.handleNotice(event, now);
    }
    if (event.sequence_number > this.number) this.number = event.sequence_number;
  }

  handleDelta(event, now) {
    if (event.sequence_number <= this.number) return;
    this.number = event.sequence_number;
    const offset = this.text.length;
    this.text += event.delta;
    this.entries.push(...(event.logprobs ?? []));
    this.firstAt ||= now;
    if (this.pause) this.markPause(offset, now);
    this.lastAt = now;
    this.arrivals.push({ at: now, offset, tokens: this.tokens });
    if (this.arrivals.length > ARRIVALS_MAX) this.arrivals.shift();
  }

  handleEnd(response) {
    const whole = response.output?.find((item) => item.type === "message")?.content[0]?.text;
    if (whole !== undefined) this.text = whole;
    this.usage = response.usage;
    this.reason = response.error?.message ?? response.incomplete_details?.reason ?? "";
    this.status = response.status;
    this.pause = null;
  }

  /** Refused, or lost: the server does not have it any more. */
  handleError(error) {
    this.status = this.id ? "lost" : "refused";
    this.reason = error.message;
    this.pause = null;
  }

  handleNotice(event, now) {
    if (event.type === "runtime.migrated" && !event.exact) this.disturb("went on with other tokens", now);
    else if (event.type === "runtime.preempted") this.disturb("made room for others", now);
    else if (event.type === "runtime.queued" && this.firstAt) this.disturb(UNKNOWN, now);
  }

  /** Something happened to it: the next text ends the pause. The first cause names it. */
  disturb(words, now, since = this.lastAt || now) {
    if (this.isEnded || !this.firstAt) return false;
    const last = this.marks.at(-1);
    if (this.pause) {
      if (VAGUE.has(this.pause.words)) this.pause.words = words;
    } else if (last && VAGUE.has(last.words) && last.from + last.ms >= since - COARSE_MS) {
      last.words = words; // it went on before this news came
    } else this.pause = { since: Math.min(since, now), words };
    return true;
  }

  /** The longest silence since the cause is the pause, also where the news of it came late. */
  markPause(offset, now) {
    const { since, words } = this.pause;
    let mark = { at: offset, from: this.lastAt, ms: now - this.lastAt, words };
    const known = this.arrivals.filter((arrival) => arrival.at >= since - COARSE_MS);
    for (let i = 1; i < known.length; i++) {
      const ms = known[i].at - known[i - 1].at;
      if (ms > mark.ms) mark = { at: known[i].offset, from: known[i - 1].at, ms, words };
    }
    this.marks.push(mark);
    this.pause = null;
  }
}
