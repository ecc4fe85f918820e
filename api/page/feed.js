/* The live feed: server-sent events over fetch (which can send a key), merged into one picture.
 *
 * A snapshot begins anew: each process says its part in the changes behind it, and what none has
 * named a second later is gone. The connection ends with a frontend that is killed, or is taken over
 * by its next life; either way a snapshot follows. */

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 2000;
const WHOLE_AFTER_MS = 1000;
// A server's clock that is so far from where it was has been set.
const CLOCK_SET_MS = 60_000;

export class Feed {
  /** `on.change(feed, change)` after each merge; `on.marks(marks)`: new ones; `on.state(words)`. */
  constructor(keys, on) {
    this.keys = keys;
    this.on = on;
    this.processes = new Map(); // place: row
    this.streams = new Map(); // id: stream
    this.marks = [];
    this.offset = 0; // the server's clock, minus ours
    this.facts = {}; // of the snapshot: run, model, version, bucket_ms
    this.seenMark = 0; // the time of the last one
    this.old = new Set(); // places and ids of before the last snapshot, not named since
    this.wholeTimer = 0;
    this.aborter = null;
  }

  get now() {
    return Date.now() + this.offset;
  }

  stop() {
    this.aborter?.abort();
  }

  /** Read for ever; one at a time. */
  async run() {
    this.stop();
    const aborter = (this.aborter = new AbortController());
    let waitMs = FIRST_WAIT_MS;
    while (!aborter.signal.aborted) {
      try {
        const headers = { ...this.keys.headers(), accept: "text/event-stream" };
        const answer = await fetch("admin/feed", { headers, signal: aborter.signal });
        if ([401, 403, 404].includes(answer.status)) {
          this.on.state("refused");
          return;
        }
        if (answer.ok) {
          waitMs = FIRST_WAIT_MS;
          await this.read(answer.body);
        }
      } catch (error) {
        if (aborter.signal.aborted) return;
        if (!(error instanceof TypeError)) throw error; // else the network's, which comes back
      }
      this.on.state("lost");
      await new Promise((resolve) => setTimeout(resolve, waitMs));
      waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
    }
  }

  async read(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let waiting = "";
    for (let part; !(part = await reader.read()).done; ) {
      waiting += part.value;
      const events = waiting.split("\n\n");
      waiting = events.pop();
      for (const text of events) this.handleText(text);
    }
  }

  handleText(text) {
    let kind = "";
    let data = "";
    for (const line of text.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (kind === "snapshot" || kind === "change") this.merge(kind, JSON.parse(data));
  }

  merge(kind, change) {
    const isSnapshot = kind === "snapshot";
    const offset = change.t - Date.now();
    // The quickest news was the least late.
    const isSet = this.seenMark === 0 || Math.abs(offset - this.offset) > CLOCK_SET_MS;
    this.offset = isSet ? offset : Math.max(this.offset - 1, offset);
    const marks = (change.marks ?? []).filter((mark) => mark.t > this.seenMark);
    if (marks.length) {
      // Those from before this page are history, no news.
      const isFirst = this.seenMark === 0 && isSnapshot;
      this.seenMark = marks.at(-1).t;
      this.marks = [...this.marks, ...marks].slice(-64);
      if (!isFirst) this.on.marks(marks);
    }
    if (isSnapshot) {
      const { run, model, version, frontend, bucket_ms } = change;
      this.facts = { run, model, version, frontend, bucket_ms };
      this.seenMark ||= change.t;
      this.old = new Set([...this.processes.keys(), ...this.streams.keys()]);
      clearTimeout(this.wholeTimer);
      this.wholeTimer = setTimeout(() => this.dropOld(), WHOLE_AFTER_MS);
      this.on.state("open");
    }
    for (const row of change.processes ?? []) {
      this.old.delete(row.place);
      this.processes.set(row.place, { ...this.processes.get(row.place), ...row });
    }
    for (const place of change.gone ?? []) this.processes.delete(place);
    for (const stream of change.streams ?? []) {
      this.old.delete(stream.id);
      this.streams.set(stream.id, { ...this.streams.get(stream.id), ...stream });
      if (stream.end !== undefined) this.streams.delete(stream.id);
    }
    this.on.change(this, change);
  }

  dropOld() {
    for (const name of this.old) {
      this.processes.delete(name);
      this.streams.delete(name);
    }
    if (this.old.size) this.on.change(this, {});
    this.old.clear();
  }

  /** Whether a response runs where this death was; if that is not known, it may. */
  concerns(mark, responseId) {
    const stream = this.streams.get(responseId);
    if (mark.place.startsWith("host ")) {
      const engine = stream && this.processes.get(`engine ${stream.engine}`);
      return engine?.parent === mark.place;
    }
    const [role, rank] = mark.place.split(" ");
    if (role === "frontend") return stream === undefined || stream.place === mark.place;
    if (role !== "engine") return false;
    return stream === undefined || stream.engine === null || stream.engine === Number(rank);
  }
}

/** "engine 0 killed". */
export function wordsOf({ place, kind, text }) {
  return `${place} ${kind === "died" && /SIGKILL/.test(text) ? "killed" : kind}`;
}
