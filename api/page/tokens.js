/* Logprobs on hover: which token of an answer is under the pointer, and what else was likely there.
 *
 * The text is the rendered one: its text nodes know their offsets, tokens theirs by their bytes.
 * With the keyboard: focus the answer, then the arrow keys. */

import { el } from "./dom.js";
import { offsetOf } from "./markdown.js";

const MARK = "token"; // of CSS.highlights

/** Offset of each token in the text, and the end: bytes that are no whole character belong on. */
function tokenOffsets(entries) {
  const decoder = new TextDecoder();
  const offsets = [0];
  let length = 0;
  for (const entry of entries) {
    length += decoder.decode(new Uint8Array(entry.bytes ?? []), { stream: true }).length;
    offsets.push(length);
  }
  return offsets;
}

export class TokenView {
  /** `answerOf()` gives the answer that `container` shows. */
  constructor(container, answerOf) {
    this.container = container;
    this.answerOf = answerOf;
    this.index = -1;
    this.offsets = [0];
    this.popover = el("div.token", { role: "tooltip", hidden: true });
    container.after(this.popover);
    container.addEventListener("pointermove", (event) => this.handlePointer(event));
    container.addEventListener("pointerleave", () => this.hide());
    container.addEventListener("blur", () => this.hide());
    container.addEventListener("keydown", (event) => this.handleKey(event));
  }

  get entries() {
    return this.answerOf().entries;
  }

  /** Only an answer with logprobs is a stop of the tab key. */
  update() {
    if (this.entries.length) this.container.tabIndex = 0;
    else this.container.removeAttribute("tabindex");
    if (!this.popover.hidden) this.show(this.index); // of the text as it is drawn now
  }

  prepare() {
    if (this.offsets.length !== this.entries.length + 1) this.offsets = tokenOffsets(this.entries);
    return this.entries.length > 0;
  }

  handlePointer(event) {
    if (!this.prepare()) return;
    const found = caretAt(event.clientX, event.clientY);
    const begin = found && offsetOf(found.node);
    if (begin === undefined || begin === null) this.hide();
    else this.show(this.indexOf(begin + found.offset));
  }

  handleKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.hide();
    if (!step || !this.prepare()) return;
    event.preventDefault();
    this.show(Math.max(0, Math.min(this.entries.length - 1, this.index + step)));
  }

  indexOf(offset) {
    let [low, high] = [0, this.entries.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.offsets[middle + 1] <= offset) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, this.entries.length - 1);
  }

  show(index) {
    const entry = this.entries[index];
    const range = entry && rangeOf(this.container, this.offsets[index], this.offsets[index + 1]);
    if (!range) {
      this.index = index;
      this.hide(false);
      return;
    }
    globalThis.CSS?.highlights?.set(MARK, new Highlight(range));
    if (index !== this.index || this.popover.hidden) this.popover.replaceChildren(...rowsOf(entry));
    this.index = index;
    this.popover.hidden = false;
    const own = this.popover.parentElement.getBoundingClientRect();
    const at = range.getBoundingClientRect();
    const left = Math.min(at.left - own.left, own.width - this.popover.offsetWidth);
    this.popover.style.left = `${Math.max(0, left)}px`;
    this.popover.style.top = `${at.bottom - own.top + 4}px`;
  }

  hide(forget = true) {
    if (forget) this.index = -1;
    if (this.popover.hidden) return;
    this.popover.hidden = true;
    globalThis.CSS?.highlights?.delete(MARK);
  }
}

function caretAt(x, y) {
  if (document.caretPositionFromPoint) {
    const found = document.caretPositionFromPoint(x, y);
    return found && { node: found.offsetNode, offset: found.offset };
  }
  const range = document.caretRangeFromPoint?.(x, y);
  return range && { node: range.startContainer, offset: range.startOffset };
}

/** The part of the rendered text that shows the source between two offsets; null: none does. */
function rangeOf(container, from, to) {
  const walker = document.createTreeWalker(container, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()); ) {
    const begin = offsetOf(node);
    if (begin === undefined || begin + node.length <= from) continue;
    if (begin >= to) return null;
    const range = document.createRange();
    range.setStart(node, Math.max(0, from - begin));
    range.setEnd(node, Math.min(node.length, to - begin));
    return range;
  }
  return null;
}

/** The token itself and the likely ones, each with its share. */
function rowsOf(entry) {
  const all = entry.top_logprobs.some((each) => each.token === entry.token)
    ? entry.top_logprobs
    : [...entry.top_logprobs, entry];
  return all.map((each) => {
    const share = Math.exp(each.logprob);
    const bar = el("span.share");
    bar.style.setProperty("--share", share.toFixed(3));
    const percent = share >= 0.001 ? `${(100 * share).toFixed(1)} %` : "< 0.1 %";
    const kind = each.token === entry.token ? "p.own" : "p";
    return el(kind, {}, el("code", {}, visible(each.token)), bar, el("span.percent", {}, percent));
  });
}

const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";
