/* The live tree: each process with what it does, its tasks, and buttons that kill, stop, continue.
 *
 * Rows stay while their place lives, so a death and the next life are seen in one row: the name is
 * struck, the old pid is left crossed out, the new one comes in. */

import { announce, bytes, duration, el, plural, setText } from "./dom.js";
import { post, sentenceOf } from "./keys.js";

const EARLIER_PIDS = 4;
const SIGNALS = { kill: "Kill", stop: "Stop", continue: "Continue" };
const ANIMATION_MS = 1400;
// Facts with a place of their own in the row.
const SHOWN = new Set(["running", "waiting", "kv_blocks", "kv_blocks_free", "state", "requests", "connections",
  "ranks", "round trip", "lease left"]);

// What a name means, for who points at it.
const ROLES = {
  root: "owns every other process, and computes nothing",
  frontend: "speaks HTTP and WebSocket with clients",
  engine: "schedules requests, and orders the steps of its workers",
  worker: "computes the model",
  spare: "warm: waits to take the place of a process that dies",
  fork: "makes spares: copies of itself, which have imported everything",
  host: "another machine: owns its engines, and ends them when it has not heard this server for too long",
  forms: "checks JSON schemas and grammars of clients, apart from all others",
};

class ProcessView {
  constructor(place, tree) {
    this.place = place;
    this.tree = tree;
    this.pid = null;
    this.earlier = [];
    this.name = el("span.name");
    this.epoch = el("span.epoch", { title: "Every process of the server that was ever started has a number of its own" });
    this.pids = el("span.pids");
    this.what = el("p.what");
    this.cpu = el("span.meter.cpu");
    this.memory = el("span.memory");
    this.blocks = el("span.meter.blocks");
    this.buttons = el("span.buttons");
    this.more = el("p.more");
    this.tasks = el("ul.tasks");
    this.summary = el("summary");
    this.details = el("details", { ontoggle: () => tree.redraw(place) }, this.summary, this.more, this.tasks);
    this.children = el("div.children");
    this.node = el(
      "section.process",
      { "aria-label": place },
      el("div.row", {}, el("div.line", {}, el("span.dot"), this.name, this.epoch, this.buttons), this.what,
        el("div.figures", {}, this.pids, this.cpu, this.memory, this.blocks, this.details)),
      this.children,
    );
  }

  update(row, now) {
    // "worker 0" is enough below its engine.
    setText(this.name, row.place.startsWith(`${row.parent} `) ? row.place.slice(row.parent.length + 1) : row.place);
    this.notePid(row);
    this.node.dataset.state = row.state;
    this.node.dataset.role = row.role;
    this.name.title = ROLES[row.place.includes("fork server") ? "fork" : row.role] ?? "";
    setText(this.epoch, row.epoch > 1 || row.role === "engine" || row.role === "frontend" ? `epoch ${row.epoch}` : "");
    setText(this.what, whatOf(row, now));
    this.what.hidden = !this.what.textContent;
    this.meter(this.cpu, row.cpu ?? 0, `${Math.round(100 * (row.cpu ?? 0))} %`, "CPU");
    setText(this.memory, row.pid ? bytes(row.memory ?? 0) : "");
    const { kv_blocks: all, kv_blocks_free: free } = row.facts ?? {};
    this.blocks.hidden = all === undefined;
    if (all) this.meter(this.blocks, (all - free) / all, `${all - free} of ${all}`, "KV blocks");
    this.updateButtons(row);
    this.updateTasks(row, now);
  }

  meter(node, share, words, noun) {
    node.style.setProperty("--share", Math.min(1, share).toFixed(3));
    setText(node, `${words} ${noun}`);
  }

  /** Another pid is another life: what was is crossed out, what is comes in. A spare may have moved. */
  notePid(row) {
    // One that is dead stays so: that news was late.
    if (row.pid === this.pid || this.earlier.includes(row.pid)) return;
    const old = this.pid;
    this.pid = row.pid;
    const hasMoved = row.role === "spare";
    const before = hasMoved ? 0 : old;
    if (before) this.earlier = [...this.earlier, before].slice(-EARLIER_PIDS);
    const dead = this.earlier.map((pid) => el("s", { title: `pid ${pid} is dead` }, String(pid)));
    this.pids.replaceChildren(...dead, row.pid ? el("span.pid", { title: "pid" }, String(row.pid)) : "");
    if (before) this.animate("died");
    else if (hasMoved && old !== null) this.animate("born");
  }

  animate(kind) {
    this.node.classList.remove("died", "born");
    void this.node.offsetWidth; // begin anew
    this.node.classList.add(kind);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.node.classList.remove("died", "born"), ANIMATION_MS);
  }

  updateButtons(row) {
    const isStopped = row.state === "stopped";
    const wanted = (row.can ?? []).filter((signal) => signal !== (isStopped ? "stop" : "continue"));
    const key = `${wanted} ${row.pid}`;
    if (key === this.drawnButtons) return;
    this.drawnButtons = key;
    const focused = this.buttons.contains(document.activeElement) && document.activeElement.dataset.signal;
    this.buttons.replaceChildren(
      ...wanted.map((signal) =>
        el(`button.${signal}`, {
          type: "button",
          "data-signal": signal,
          "aria-label": `${SIGNALS[signal]} ${this.place}`,
          disabled: !row.pid,
          onclick: (event) => this.tree.send(this.place, signal, row.pid, event.currentTarget),
        }, SIGNALS[signal]),
      ),
    );
    // A button that is replaced under the keyboard keeps the focus.
    if (focused) this.buttons.querySelector(`[data-signal=${focused}]`)?.focus();
  }

  updateTasks(row, now) {
    const tasks = row.tasks ?? [];
    const count = tasks.reduce((sum, task) => sum + (task[4] ?? 1), 0);
    this.details.hidden = !count;
    setText(this.summary, plural(count, "task"));
    if (!this.details.open) return;
    setText(this.more, factsOf(row.facts ?? {}));
    while (this.tasks.children.length > tasks.length) this.tasks.lastChild.remove();
    tasks.forEach(([depth, name, waitsFor, since, folded, end], i) => {
      const line = this.tasks.children[i] ?? this.tasks.appendChild(el("li", {}, el("span"), el("span.waits")));
      line.style.setProperty("--depth", Math.min(depth, 8));
      setText(line.firstChild, folded > 1 ? `${name} × ${folded}` : name);
      const time = since ? ` ${duration(Math.max(0, now - since))}` : "";
      const waits = waitsFor ? `waits${time} for ${waitsFor}` : "";
      setText(line.lastChild, [waits, endOf(end, now)].filter(Boolean).join(" · "));
    });
  }
}

/** The end of a task's scope: a reason, a deadline, or nothing known. */
function endOf(end, now) {
  if (typeof end === "string") return `cancelled: ${end}`;
  return end ? `deadline in ${duration(Math.max(0, end - now))}` : "";
}

/** A line of words: its state, and what it has to do. */
function whatOf(row, now) {
  const facts = row.facts ?? {};
  const parts = [];
  if (row.state !== "ready" && row.state !== "up") {
    const time = `${row.state} for ${duration(Math.max(0, now - row.since))}`;
    parts.push(row.reason ? `${time}: ${row.reason}` : time);
  }
  if (row.role === "host") {
    const { ranks, "round trip": trip, "lease left": left } = facts;
    parts.push(`engines ${ranks}`, `round trip ${trip}`, `lease ${left} left`);
  }
  if (facts.running !== undefined) parts.push(`${facts.running} running`, `${facts.waiting ?? 0} waiting`);
  if (facts.requests !== undefined) parts.push(plural(Number(facts.requests), "request"));
  if (facts.connections !== undefined) parts.push(plural(Number(facts.connections), "connection"));
  if (row.restarts) parts.push(plural(row.restarts, "restart"));
  return parts.join(" · ");
}

/** All of them together. */
function headOf(rows) {
  const living = rows.filter((row) => row.pid);
  const sum = (name) => living.reduce((total, row) => total + (row[name] ?? 0), 0);
  return `${plural(living.length, "process", "processes")} · ${Math.round(100 * sum("cpu"))} % CPU · ${bytes(sum("memory"))}`;
}

const factsOf = (facts) =>
  Object.entries(facts)
    .filter(([name]) => !SHOWN.has(name))
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)
    .join(" · ");

export class Tree {
  constructor(container, keys, onProblem) {
    this.container = container;
    this.keys = keys;
    this.onProblem = onProblem;
    this.views = new Map();
    this.feed = null;
    this.head = null;
    this.hasBegun = false;
  }

  /** Instead of the tree: why there is none. */
  explain(...children) {
    this.views.clear();
    this.head = null;
    this.container.replaceChildren(el("div.why", {}, ...children));
  }

  /** All rows, or those of a change. */
  update(feed, rows = [...feed.processes.values()]) {
    this.feed = feed;
    if (!this.head) {
      this.head = el("p.head");
      const hint = el("p.hint", {}, "Kill one while text streams: the text goes on.");
      this.container.replaceChildren(this.head, hint);
    }
    setText(this.head, headOf([...feed.processes.values()]));
    for (const { place } of rows) this.redraw(place);
    for (const [place, view] of this.views) {
      if (!feed.processes.has(place)) this.remove(place, view);
    }
  }

  /** Once its death was seen, and if its place is empty then. */
  remove(place, view) {
    if (view.isLeaving) return;
    view.isLeaving = true;
    view.animate("died");
    setTimeout(() => {
      view.isLeaving = false;
      if (this.feed.processes.has(place) || this.views.get(place) !== view) return;
      this.views.delete(place);
      view.node.remove();
    }, ANIMATION_MS);
  }

  redraw(place) {
    const row = this.feed?.processes.get(place);
    if (!row) return;
    let view = this.views.get(place);
    if (!view) {
      view = new ProcessView(place, this);
      this.views.set(place, view);
      (this.views.get(row.parent)?.children ?? this.container).append(view.node);
      if (this.hasBegun) view.animate("born");
    }
    view.update(row, this.feed.now);
  }

  /** A death of the feed is seen at once, also before the row has another pid. */
  handleMark(mark) {
    if (mark.kind === "died" || mark.kind === "lost") this.views.get(mark.place)?.animate("died");
    this.hasBegun = true; // from here on what is new was born, not found
  }

  async send(place, signal, pid, button) {
    button.disabled = true;
    try {
      const answer = await post("admin/signal", { place, signal, pid }, this.keys.headers());
      if (answer.ok) announce(`${signal} sent to ${place}`);
      else this.onProblem(await sentenceOf(answer));
    } catch {
      this.onProblem("The server did not answer; it may have been the one that was killed.");
    } finally {
      setTimeout(() => (button.disabled = false), 500);
    }
  }

  focusFirstKill() {
    const found = [...this.container.querySelectorAll("button.kill:not(:disabled)")];
    const engine = found.find((button) => button.closest(".process").dataset.role === "engine");
    (engine ?? found[0])?.focus();
  }
}
