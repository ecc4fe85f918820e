/* Markdown of a model as DOM nodes. A model's text is never HTML: it ends up in text nodes alone.
 *
 * Headings, lists, quotes, tables, fenced code, emphasis, code, links (http, https, mailto; no
 * picture is loaded). Blocks work on ranges of the source, so each text node knows its offset
 * (`offsetOf`): marks and logprobs are placed by it. While a text grows only its last block changes. */

import { el } from "./dom.js";

const DEPTH_MAX = 8;
// Characters of a link's text, and of its address.
const LINK_MAX = 2000;
// Beyond this many characters a browser is busy with layout alone.
export const SHOWN_MAX = 200_000;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]{0,32})/;
const HEADING = /^(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+/;
const QUOTE = /^ {0,3}>[ \t]?/;
const DIVIDER = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const INLINE = /[\\`*_~[!]|https?:\/\//g;
const URL_TEXT = /https?:\/\/[^\s<>"'`()[\]{}]{1,2000}/y;
const LINKED = /^(?:https?:\/\/|mailto:)/i;

const offsets = new WeakMap();
/** Where a text node begins in the source; undefined: it is none of the text. */
export const offsetOf = (node) => offsets.get(node);

const drawn = new WeakMap();

/** Show `text` in `container`; `marks` are `{at, words, …}` in order, `makeMark(mark)` their nodes. */
export function renderMarkdown(container, text, marks, makeMark) {
  const source = text.length > SHOWN_MAX ? text.slice(0, SHOWN_MAX) : text;
  const blocks = topBlocks(source);
  const before = drawn.get(container) ?? [];
  const after = [];
  let next = 0;
  blocks.forEach((block, index) => {
    const isLast = index === blocks.length - 1;
    const own = [];
    while (next < marks.length && (marks[next].at < block.end || isLast)) own.push(marks[next++]);
    const shown = own.map((mark) => mark.words).join();
    const key = `${block.kind} ${block.start} ${block.end} ${isLast} ${shown}`;
    const old = before[index];
    if (old?.key === key && !isLast) return after.push(old);
    const writer = new Writer(source, own, makeMark);
    const node = writer.block(block, 0);
    writer.rest(node);
    if (old) old.node.replaceWith(node);
    else container.append(node);
    return after.push({ key, node });
  });
  for (const extra of before.slice(after.length)) extra.node.remove();
  drawn.set(container, after);
}

/** Blocks of the whole source: `{kind, start, end, lines: [[from, to], …]}`. */
function topBlocks(source) {
  const lines = [];
  for (let from = 0; from < source.length; ) {
    let to = source.indexOf("\n", from);
    if (to < 0) to = source.length;
    lines.push([from, to]);
    from = to + 1;
  }
  return blocksOf(source, lines);
}

const LOOKED_AT = 400; // of a line, to see what it begins
const head = (source, [from, to]) => source.slice(from, Math.min(to, from + LOOKED_AT));
const isBlank = (source, line) => line[0] >= line[1] || !/\S/.test(head(source, line));

function kindOf(source, lines, i) {
  const text = head(source, lines[i]);
  if (FENCE.test(text)) return "code";
  if (HEADING.test(text)) return "heading";
  if (RULE.test(text)) return "rule";
  if (QUOTE.test(text)) return "quote";
  if (ITEM.test(text)) return "list";
  if (text.includes("|") && i + 1 < lines.length) {
    const next = head(source, lines[i + 1]);
    if (next.includes("-") && next.includes("|") && DIVIDER.test(next)) return "table";
  }
  return "paragraph";
}

function blocksOf(source, lines) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    if (isBlank(source, lines[i])) {
      i++;
      continue;
    }
    const kind = kindOf(source, lines, i);
    const stop = stopOf(kind, source, lines, i);
    const own = lines.slice(i, stop);
    blocks.push({ kind, start: own[0][0], end: own.at(-1)[1], lines: own });
    i = stop;
  }
  return blocks;
}

/** Behind the last line of the block that begins with line `i`. */
function stopOf(kind, source, lines, i) {
  let stop = i + 1;
  const more = (test) => {
    while (stop < lines.length && test(lines[stop])) stop++;
    return stop;
  };
  if (kind === "heading" || kind === "rule") return stop;
  if (kind === "code") {
    const fence = head(source, lines[i]).match(FENCE)[1];
    more((line) => !head(source, line).trimStart().startsWith(fence));
    return Math.min(stop + 1, lines.length);
  }
  if (kind === "table") return more((line) => head(source, line).includes("|"));
  if (kind === "quote") return more((line) => QUOTE.test(head(source, line)));
  if (kind === "list") {
    // Blank lines stay inside when the list goes on behind them.
    for (; stop < lines.length; stop++) {
      if (!isBlank(source, lines[stop])) {
        const text = head(source, lines[stop]);
        const wasBlank = isBlank(source, lines[stop - 1]);
        if (!ITEM.test(text) && (wasBlank ? !/^[ \t]{2,}/.test(text) : kindOf(source, lines, stop) !== "paragraph")) break;
      }
    }
    while (isBlank(source, lines[stop - 1])) stop--;
    return stop;
  }
  while (stop < lines.length && !isBlank(source, lines[stop]) && kindOf(source, lines, stop) === "paragraph") stop++;
  return stop;
}

/** Writes blocks and inline text, and puts each mark where its offset comes by. */
class Writer {
  constructor(source, marks, makeMark) {
    this.source = source;
    this.marks = marks;
    this.makeMark = makeMark;
    this.next = 0;
    this.absent = new Set(); // closers that are not there: looked for once
  }

  rest(node) {
    while (this.next < this.marks.length) node.append(this.makeMark(this.marks[this.next++]));
  }

  text(parent, from, to) {
    while (this.next < this.marks.length && this.marks[this.next].at < to) {
      const at = Math.max(from, this.marks[this.next].at);
      if (at > from) this.plain(parent, from, at);
      from = at;
      parent.append(this.makeMark(this.marks[this.next++]));
    }
    if (to > from) this.plain(parent, from, to);
  }

  plain(parent, from, to) {
    const node = document.createTextNode(this.source.slice(from, to));
    offsets.set(node, from);
    parent.append(node);
  }

  blocks(parent, lines, depth) {
    for (const block of blocksOf(this.source, lines)) parent.append(this.block(block, depth));
  }

  block(block, depth) {
    const kind = depth > DEPTH_MAX ? "paragraph" : block.kind;
    return this[kind](block, depth);
  }

  paragraph({ lines }) {
    const node = el("p");
    this.lines(node, lines);
    return node;
  }

  lines(parent, lines) {
    lines.forEach(([from, to], i) => {
      if (i) parent.append("\n");
      this.inline(parent, from, to, 0);
    });
  }

  heading({ lines: [[from, to]] }) {
    const found = head(this.source, [from, to]).match(HEADING);
    const node = el(`h${Math.min(6, found[1].length + 2)}`); // below the page's own
    this.inline(node, from + found[0].length, to, 0);
    return node;
  }

  rule() {
    return el("hr");
  }

  code({ lines }) {
    const language = head(this.source, lines[0]).match(FENCE)[2];
    const isClosed = lines.length > 1 && /^ {0,3}(`{3,}|~{3,})[ \t]*$/.test(head(this.source, lines.at(-1)));
    const own = lines.slice(1, isClosed ? -1 : undefined);
    const code = el("code");
    if (own.length) this.text(code, own[0][0], own.at(-1)[1]);
    const copy = el("button.copy", { type: "button", onclick: () => navigator.clipboard?.writeText(code.textContent) }, "Copy");
    return el("div.code", {}, el("div.code-head", {}, el("span", {}, language || "code"), copy), el("pre", { tabindex: 0 }, code));
  }

  quote({ lines }, depth) {
    const node = el("blockquote");
    const inner = lines.map(([from, to]) => [from + head(this.source, [from, to]).match(QUOTE)[0].length, to]);
    this.blocks(node, inner, depth + 1);
    return node;
  }

  list({ lines }, depth) {
    const first = head(this.source, lines[0]).match(ITEM);
    const isNumbered = /\d/.test(first[2]);
    const node = isNumbered ? el("ol", { start: parseInt(first[2], 10) }) : el("ul");
    const margin = first[1].length;
    for (let i = 0; i < lines.length; ) {
      const [from, to] = lines[i];
      const found = head(this.source, lines[i]).match(ITEM);
      const inner = [[from + (found ? found[0].length : 0), to]];
      const width = found ? found[0].length : margin + 2;
      for (i++; i < lines.length; i++) {
        const other = head(this.source, lines[i]).match(ITEM);
        if (other && other[1].length <= margin + 1) break;
        const [start, stop] = lines[i];
        const indent = head(this.source, lines[i]).match(/^[ \t]*/)[0].length;
        inner.push([start + Math.min(indent, width), stop]);
      }
      node.append(this.item(inner, depth));
    }
    return node;
  }

  item(lines, depth) {
    const node = el("li");
    const blocks = blocksOf(this.source, lines);
    for (const block of blocks) {
      if (block.kind === "paragraph") this.lines(node, block.lines); // tight
      else node.append(this.block(block, depth + 1));
    }
    return node;
  }

  table({ lines }) {
    const body = el("tbody");
    const header = el("thead", {}, this.row(lines[0], "th"));
    for (const line of lines.slice(2)) body.append(this.row(line, "td"));
    return el("div.table", { tabindex: 0 }, el("table", {}, header, body));
  }

  row([from, to], tag) {
    const node = el("tr");
    let start = from;
    while (start < to && /[ \t|]/.test(this.source[start])) start++;
    while (start < to) {
      let stop = this.source.indexOf("|", start);
      if (stop < 0 || stop > to) stop = to;
      let end = stop;
      while (end > start && /[ \t]/.test(this.source[end - 1])) end--;
      const cell = el(tag);
      this.inline(cell, start, end, 0);
      node.append(cell);
      for (start = stop + 1; start < to && /[ \t]/.test(this.source[start]); start++);
    }
    return node;
  }

  // ---- inline

  inline(parent, from, to, depth) {
    const own = this.source.slice(from, to);
    const pattern = new RegExp(INLINE);
    let done = from;
    for (let found; depth < DEPTH_MAX && (found = pattern.exec(own)); ) {
      const at = from + found.index;
      const span = this.span(at, to);
      if (!span) continue;
      this.text(parent, done, at);
      span.write(parent, depth + 1);
      done = span.end;
      pattern.lastIndex = done - from;
    }
    this.text(parent, done, to);
  }

  /** What begins at `at`: `{end, write(parent, depth)}`, or null if it is a plain character. */
  span(at, to) {
    const { source } = this;
    const two = source.slice(at, at + 2);
    if (two[0] === "\\") {
      if (!/[\\`*_~[\]()#!>|.-]/.test(two[1] ?? "")) return null;
      return { end: at + 2, write: (parent) => this.text(parent, at + 1, at + 2) };
    }
    if (two[0] === "`") {
      const ticks = /`+/y;
      ticks.lastIndex = at;
      const marker = ticks.exec(source)[0];
      return this.paired(at, marker, to, (parent, start, end) => {
        const code = el("code");
        this.text(code, start, end);
        parent.append(code);
      });
    }
    if (two === "**" || two === "__") return this.emphasis(at, two, "strong", to);
    if (two === "~~") return this.emphasis(at, two, "del", to);
    if (two[0] === "*" || two[0] === "_") return this.emphasis(at, two[0], "em", to);
    if (two[0] === "[" || two === "![") return this.link(at, to);
    if (two[0] === "h") return this.address(at, to);
    return null;
  }

  emphasis(at, marker, tag, to) {
    const after = this.source[at + marker.length] ?? " ";
    const before = this.source[at - 1] ?? " ";
    if (/\s/.test(after) || (marker[0] === "_" && /\w/.test(before))) return null;
    return this.paired(at, marker, to, (parent, start, end, depth) => {
      const node = el(tag);
      this.inline(node, start, end, depth);
      parent.append(node);
    });
  }

  paired(at, marker, to, write) {
    const start = at + marker.length;
    const end = this.find(marker, start + 1, to);
    if (end < 0) return null;
    return { end: end + marker.length, write: (parent, depth) => write(parent, start, end, depth) };
  }

  /** Linear over all calls: what was once not found from further left is not there. */
  find(marker, from, to) {
    const key = `${marker} ${to}`;
    if (this.absent.has(key)) return -1;
    const found = this.source.slice(from, to).indexOf(marker);
    if (found < 0) this.absent.add(key);
    return found < 0 ? -1 : from + found;
  }

  link(at, to) {
    const start = at + (this.source[at] === "!" ? 2 : 1);
    const near = (mark, after) => {
      const found = this.source.slice(after, Math.min(to, after + LINK_MAX)).indexOf(mark);
      return found < 0 ? -1 : after + found;
    };
    const middle = near("](", start);
    const end = middle < 0 ? -1 : near(")", middle + 2);
    if (end < 0) return null;
    const address = this.source.slice(middle + 2, end).trim().split(/\s/)[0];
    const node = LINKED.test(address) ? anchor(address) : el("span");
    return {
      end: end + 1,
      write: (parent, depth) => {
        this.inline(node, start, middle, depth);
        parent.append(node);
      },
    };
  }

  address(at, to) {
    URL_TEXT.lastIndex = at;
    const found = URL_TEXT.exec(this.source)?.[0].replace(/[.,;:!?*_~]+$/, "");
    if (!found) return null;
    const end = Math.min(to, at + found.length);
    return {
      end,
      write: (parent) => {
        const node = anchor(this.source.slice(at, end));
        this.text(node, at, end);
        parent.append(node);
      },
    };
  }
}

function anchor(address) {
  return el("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" });
}
