/* The timeline: streams as lines, their tokens and the engines' steps as ticks, deaths as marks.
 *
 * It keeps two minutes. Streams of this page are drawn as they arrived here, to the millisecond;
 * those of others, and steps, as the feed counts them. Without the feed only its own are there. */

import { duration, seconds } from "./dom.js";
import { wordsOf } from "./feed.js";

const KEPT_MS = 125_000;
const ROWS_MAX = 14;
const ROW = 22;
const TOP = 18;
const LABEL = 150;
const LABEL_NARROW = 72;
const BUCKET_MS = 50;
// A silence of others' streams is a pause if it is this long, and so many times the usual one.
const PAUSE_MS = 400;
const PAUSE_TIMES = 4;

class Row {
  constructor(id, label, kind, start) {
    this.id = id;
    this.label = label;
    this.kind = kind; // engine, own, other
    this.start = start;
    this.end = null;
    this.ticks = []; // [time, count], in order
    this.pauses = []; // [from, to, words]; `to` null: it lasts
    this.usualMs = 100;
  }

  tick(t, count, bucketMs) {
    const last = this.ticks.at(-1);
    if (last && t - last[0] < bucketMs) last[1] += count;
    else {
      if (last && this.kind === "other") this.noteSilence(last[0], t);
      this.ticks.push([t, count]);
    }
  }

  /** Of an engine: dead until the next life is ready. */
  noteMark(kind, t) {
    const last = this.pauses.at(-1);
    const isDead = last !== undefined && last[1] === null;
    if (kind === "died" && !isDead) this.pauses.push([t, null, ""]);
    else if (kind === "ready" && isDead) last[1] = t;
  }

  noteSilence(from, to) {
    const ms = to - from;
    if (ms > Math.max(PAUSE_MS, PAUSE_TIMES * this.usualMs)) this.pauses.push([from, to, ""]);
    else this.usualMs += (ms - this.usualMs) / 8;
  }
}

export class Timeline {
  constructor(canvas, legend) {
    this.canvas = canvas;
    this.swatches = legend;
    this.context = canvas.getContext("2d");
    this.rows = new Map();
    this.marks = [];
    this.seconds = 40;
    this.isCalm = matchMedia("(prefers-reduced-motion: reduce)");
    this.drawn = 0;
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    this.loop();
  }

  /** Each frame while something moves; half a second apart where motion is unwelcome. */
  loop() {
    requestAnimationFrame((at) => {
      const everyMs = this.isCalm.matches || !this.isMoving() ? 500 : 0;
      if (at - this.drawn >= everyMs) {
        this.drawn = at;
        this.draw();
      }
      this.loop();
    });
  }

  isMoving() {
    return [...this.rows.values()].some((row) => row.end === null && row.kind !== "engine");
  }

  // ---- what happens

  /** An answer of this page; called with each of its events. */
  noteAnswer(answer, label, now) {
    if (!answer.id && !answer.text) return;
    const id = answer.id || label;
    const row = this.row(id, label, "own", answer.startedAt);
    row.kind = "own";
    row.label = label;
    const arrived = answer.arrivals.at(-1);
    if (arrived && arrived.tokens > (row.tokens ?? 0)) {
      row.tick(arrived.at, arrived.tokens - (row.tokens ?? 0), BUCKET_MS);
      row.tokens = arrived.tokens;
    }
    row.pauses = [];
    for (const mark of answer.marks) if (mark.from) row.pauses.push([mark.from, mark.from + mark.ms, mark.words]);
    if (answer.pause) row.pauses.push([answer.lastAt, null, answer.pause.words]);
    row.end = answer.isEnded ? (row.end ?? now) : null;
  }

  /** A change of the feed; its times are the server's. */
  noteFeed(feed, change) {
    if (document.hidden) this.prune(Date.now() - KEPT_MS); // nothing is drawn then
    const bucketMs = feed.facts.bucket_ms ?? 100;
    const ours = (t) => t - feed.offset;
    for (const steps of change.steps ?? []) {
      const row = this.row(steps.place, steps.place, "engine", 0);
      fill(row, steps, ours, bucketMs);
    }
    for (const stream of change.streams ?? []) {
      const whole = feed.streams.get(stream.id) ?? stream;
      const row = this.row(stream.id, "stream", "other", ours(whole.start ?? change.t));
      if (row.kind !== "other") continue;
      fill(row, stream, ours, bucketMs);
      if (stream.end !== undefined) row.end = ours(stream.end);
    }
    for (const process of change.processes ?? []) {
      if (process.role === "engine" && process.place) this.row(process.place, process.place, "engine", 0);
    }
    for (const mark of change.marks ?? []) {
      const t = ours(mark.t);
      if (!this.marks.some((each) => each.key === `${mark.t} ${mark.place} ${mark.kind}`)) {
        this.marks.push({ ...mark, t, key: `${mark.t} ${mark.place} ${mark.kind}` });
        if (this.rows.get(mark.place)?.kind === "engine") this.rows.get(mark.place).noteMark(mark.kind, t);
      }
    }
  }

  row(id, label, kind, start) {
    if (!this.rows.has(id)) this.rows.set(id, new Row(id, label, kind, start));
    return this.rows.get(id);
  }

  prune(from) {
    this.marks = this.marks.filter((mark) => mark.t > from);
    for (const [id, row] of this.rows) {
      if (row.end !== null && row.end < from) this.rows.delete(id);
      while (row.ticks.length && row.ticks[0][0] < from) row.ticks.shift();
      row.pauses = row.pauses.filter(([, to]) => to === null || to > from);
    }
  }

  // ---- drawing

  font(px) {
    this.family ??= getComputedStyle(document.body).fontFamily;
    return `${px}px ${this.family}`;
  }

  draw() {
    const { canvas, context } = this;
    const now = Date.now();
    this.prune(now - KEPT_MS);
    const rows = this.shownRows(now - this.seconds * 1000);
    const { clientWidth: width } = canvas.parentElement;
    const height = TOP + Math.max(2, rows.length) * ROW + 4;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const left = width < 600 ? LABEL_NARROW : LABEL;
    const scale = (width - left - 8) / (this.seconds * 1000);
    const place = { left, width, height, now, x: (t) => left + (t - now + this.seconds * 1000) * scale, scale };
    const [ink, faint, accent] = [...this.swatches.children].map((each) => getComputedStyle(each).color);
    const colours = { ink, faint, accent };
    this.drawSeconds(place, colours);
    rows.forEach((row, i) => this.drawRow(row, TOP + i * ROW + ROW / 2, place, colours));
    this.drawMarks(place, colours);
    this.describe(rows, now);
  }

  /** Engines first, then streams by their beginning; of too many the latest. */
  shownRows(from) {
    const all = [...this.rows.values()].filter((row) => row.end === null || row.end > from);
    const engines = all.filter((row) => row.kind === "engine").sort((a, b) => a.id.localeCompare(b.id));
    const streams = all.filter((row) => row.kind !== "engine").sort((a, b) => a.start - b.start);
    return [...engines, ...streams.slice(-(ROWS_MAX - engines.length))];
  }

  drawSeconds({ left, height, now, x }, { faint }) {
    const { context } = this;
    context.font = this.font(11);
    context.fillStyle = faint;
    context.strokeStyle = faint;
    const step = this.seconds > 60 ? 20 : this.seconds > 20 ? 5 : 2;
    for (let back = step; back < this.seconds; back += step) {
      const at = Math.round(x(now - back * 1000)) + 0.5;
      if (at < left + 24) break;
      context.globalAlpha = 0.18;
      context.beginPath();
      context.moveTo(at, TOP);
      context.lineTo(at, height);
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  drawRow(row, y, { left, width, now, x, scale }, { ink, faint, accent }) {
    const { context } = this;
    const isEngine = row.kind === "engine";
    context.font = this.font(12);
    context.textBaseline = "middle";
    context.fillStyle = isEngine ? faint : ink;
    context.fillText(clip(context, row.label, left - 14), 0, y);
    const begin = Math.max(left, x(row.start || 0));
    const end = Math.min(width, row.end === null ? x(now) : x(row.end));
    context.strokeStyle = faint;
    context.globalAlpha = 0.35;
    line(context, begin, end, y);
    context.globalAlpha = 1;
    context.fillStyle = isEngine ? faint : ink;
    const wide = Math.max(1, Math.min(3, BUCKET_MS * scale * 0.7));
    for (const [t, count] of row.ticks) {
      const at = x(t);
      if (at < left) continue;
      const high = isEngine ? 5 : Math.min(ROW - 6, 4 + 2.2 * Math.sqrt(count));
      context.fillRect(at, y - high / 2, wide, high);
    }
    for (const [from, to] of row.pauses) this.drawPause(Math.max(left, x(from)), x(to ?? now), y, (to ?? now) - from, accent);
  }

  drawPause(from, to, y, ms, accent) {
    if (to <= from) return;
    const { context } = this;
    context.strokeStyle = accent;
    context.lineWidth = 2;
    line(context, from, Math.max(to, from + 2), y);
    context.lineWidth = 1;
    if (to - from > 38) {
      context.fillStyle = accent;
      context.font = this.font(10);
      context.fillText(seconds(ms), from + 4, y - 7);
    }
  }

  drawMarks({ left, width, height, x }, { accent }) {
    const { context } = this;
    context.font = this.font(11);
    const shown = this.marks
      .filter((mark) => ["died", "hung", "failed", "silent", "lost"].includes(mark.kind))
      .map((mark) => ({ at: Math.round(x(mark.t)) + 0.5, words: wordsOf(mark) }))
      .filter(({ at }) => at >= left)
      .map((mark) => ({ ...mark, wide: context.measureText(mark.words).width }));
    const places = labelPlaces(shown, left, width);
    shown.forEach(({ at, words }, i) => {
      context.strokeStyle = context.fillStyle = accent;
      context.beginPath();
      context.moveTo(at, TOP - 2);
      context.lineTo(at, height);
      context.moveTo(at - 3, TOP - 10);
      context.lineTo(at + 3, TOP - 4);
      context.moveTo(at + 3, TOP - 10);
      context.lineTo(at - 3, TOP - 4);
      context.stroke();
      if (places[i] !== null) context.fillText(words, places[i], TOP - 7);
    });
  }

  /** The same in words, a few times a minute. */
  describe(rows, now) {
    if (now - (this.describedAt ?? 0) < 5000) return;
    this.describedAt = now;
    const streams = rows.filter((row) => row.kind !== "engine").length;
    const deaths = this.marks.filter((mark) => mark.kind === "died" && mark.t > now - this.seconds * 1000).length;
    this.canvas.setAttribute("aria-label", `Timeline of the last ${duration(this.seconds * 1000)}: streams: ${streams}, deaths: ${deaths}`);
  }
}

/**
 * Where the words of crosses begin: before theirs, else behind it, else nowhere (null), as the row
 * is too narrow for all. Crosses have a place and a width of words, from the left, in pixels.
 */
export function labelPlaces(crosses, left, width) {
  let free = left;
  return crosses.map(({ at, wide }) => {
    const begin = at - 8 - wide > free ? at - 8 - wide : at + 8 > free && at + 8 + wide < width ? at + 8 : null;
    free = Math.max(free, at + 6, begin === null ? 0 : begin + wide + 4);
    return begin;
  });
}

/** Counts of buckets, the last of which ends at `t`. */
function fill(row, { t, counts = [] }, ours, bucketMs) {
  counts.forEach((count, i) => {
    if (count) row.tick(ours(t) - (counts.length - i) * bucketMs, count, bucketMs / 2);
  });
}

function line(context, from, to, y) {
  context.beginPath();
  context.moveTo(from, y);
  context.lineTo(to, y);
  context.stroke();
}

function clip(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let shown = text;
  while (shown && context.measureText(shown + "…").width > width) shown = shown.slice(0, -1);
  return shown.trimEnd() + "…";
}
