/* The view of one conversation: its turns, and the field to write in.
 *
 * Redrawn at most once a frame, and more seldom where a text is so long that drawing takes time. */

import { bytes, duration, el, plural, seconds, setText } from "./dom.js";
import { QUESTION_SHOWN } from "./conversations.js";
import { renderMarkdown, SHOWN_MAX } from "./markdown.js";
import { TokenView } from "./tokens.js";

const SUGGESTIONS = [
  "Tell me a story about a fox and a lantern.",
  "Tell me a story about a girl who found a map.",
  "Tell me a story about an owl and the rain.",
];
const ENDS = {
  incomplete: { max_output_tokens: "stopped at the maximum of tokens", deadline: "stopped at its deadline" },
  cancelled: "stopped",
  failed: "failed",
  refused: "refused",
  lost: "lost",
};
// Beside drawing there must be time for everything else.
const DRAWING_SHARE = 4;
const NEAR_END = 48;

/** The word in the text where it paused, or pauses now. */
function makeMark({ words, ms }) {
  const nodes = document.createDocumentFragment();
  const title = ms === undefined ? words : `${words}: the text paused for ${seconds(ms)} and went on`;
  const shown = ms === undefined ? words : `${words} · ${seconds(ms)}`;
  const kind = ms === undefined ? "span.mark.now" : "span.mark";
  nodes.append(el("wbr"), el(kind, { title, role: "note", "aria-label": title }, shown)); // a line may end before it
  return nodes;
}

class TurnView {
  constructor(turn, view) {
    this.turn = turn;
    this.view = view;
    this.key = "";
    this.text = el("div.text");
    this.state = el("p.state");
    this.facts = el("p.facts");
    this.versions = el("span.versions");
    this.actions = el("span.actions");
    const { question } = turn;
    const shown = question.slice(0, QUESTION_SHOWN);
    const rest = question.length - shown.length;
    this.node = el(
      "div.turn",
      {},
      el("div.question", {}, shown, rest ? el("em", {}, ` … and ${plural(rest, "more character")} (${bytes(rest)})`) : null),
      el("article.answer", {}, el("div.body", {}, this.text), this.state, el("footer", {}, this.facts, this.versions, this.actions)),
    );
    this.tokens = new TokenView(this.text, () => this.answer);
    this.shownAnswer = null;
  }

  get answer() {
    return this.turn.answers[this.turn.chosen];
  }

  update(isLast, now) {
    const { answer, turn } = this;
    const parts = [turn.chosen, turn.answers.length, answer.number, answer.text.length, answer.status];
    const key = [...parts, answer.marks.length, answer.marks.at(-1)?.words, answer.pause?.words, answer.check, isLast, answer.tokens].join("|");
    if (key === this.key && answer.isEnded) return;
    if (key !== this.key) this.draw(answer, isLast);
    this.key = key;
    setText(this.facts, factsOf(answer, now));
  }

  draw(answer, isLast) {
    const now = answer.pause ? [{ at: answer.text.length, words: answer.pause.words }] : [];
    renderMarkdown(this.text, answer.text, [...answer.marks, ...now], makeMark);
    const { node, state } = this;
    node.classList.toggle("streaming", !answer.isEnded);
    node.classList.toggle("waiting", !answer.isEnded && !answer.firstAt);
    node.classList.toggle("paused", Boolean(answer.pause));
    node.classList.toggle("failed", ["failed", "refused", "lost"].includes(answer.status));
    setText(state, stateOf(answer));
    state.hidden = !state.textContent;
    this.tokens.update();
    const wanted = `${answer.isEnded} ${isLast} ${this.turn.answers.length} ${this.turn.chosen} ${answer.check} ${answer.marks.length}`;
    if (wanted !== this.drawnActions) this.drawActions(answer, isLast);
    this.drawnActions = wanted;
  }

  drawActions(answer, isLast) {
    const { chat, conversation } = this.view;
    const button = (words, onclick) => el("button.quiet", { type: "button", onclick }, words);
    this.actions.replaceChildren();
    this.versions.replaceChildren();
    if (!answer.isEnded) return;
    this.actions.append(button("Copy", () => navigator.clipboard?.writeText(answer.text)));
    if (isLast) this.actions.append(button("Regenerate", () => chat.regenerate(conversation)));
    if (answer.marks.length && !answer.check && answer.ask.body.input) {
      this.actions.prepend(button("Compare with an undisturbed run", () => chat.check(conversation, answer)));
    }
    if (this.turn.answers.length > 1) this.drawVersions(isLast);
  }

  /** Earlier ones stay; the conversation goes on from the chosen one. */
  drawVersions(isLast) {
    const { turn } = this;
    const step = (by, words, sign) =>
      el("button.quiet", {
        type: "button",
        "aria-label": words,
        disabled: !isLast || !turn.answers[turn.chosen + by],
        onclick: () => {
          turn.chosen += by;
          this.view.chat.changed(this.view.conversation);
        },
      }, sign);
    this.versions.append(
      step(-1, "the answer before", "‹"),
      ` ${turn.chosen + 1} of ${turn.answers.length} `,
      step(1, "the next answer", "›"),
    );
  }
}

function stateOf(answer) {
  if (!answer.isEnded) return "";
  const words = ENDS[answer.status];
  const end = typeof words === "object" ? (words[answer.reason] ?? `incomplete: ${answer.reason}`) : (words ?? "");
  const isError = ["failed", "refused", "lost"].includes(answer.status);
  const clipped = answer.text.length > SHOWN_MAX ? `; ${plural(SHOWN_MAX, "character")} of it are shown` : "";
  return (isError ? `${end}: ${answer.reason}` : end) + clipped;
}

function factsOf(answer, now) {
  if (!answer.firstAt) return answer.isEnded ? "" : "waiting for the first token";
  const parts = [plural(answer.tokens, "token")];
  const rate = answer.rate(now);
  // Else it would look as if the server were slow.
  const pace = answer.ask.body.runtime?.credit ? " (paced)" : "";
  if (rate) parts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s${pace}`);
  if (answer.isEnded) parts.push(`first after ${duration(answer.firstAt - answer.startedAt)}`);
  if (answer.marks.length) parts.push(`${plural(answer.marks.length, "interruption")}`);
  if (answer.check) parts.push(answer.check);
  return parts.join(" · ");
}

export class LaneView {
  constructor(conversation, chat, { onFocus, onList }) {
    this.conversation = conversation;
    this.chat = chat;
    this.onList = onList;
    this.turns = [];
    this.frame = 0;
    this.title = el("h2");
    this.log = el("div.turns");
    this.field = el("textarea", {
      rows: 1,
      placeholder: "Write a message",
      "aria-label": "Message",
      oninput: () => this.handleInput(),
      onkeydown: (event) => this.handleKey(event),
    });
    this.button = el("button.main.send", { onclick: (event) => this.handleButton(event) }, "Send");
    const close = el("button.quiet.close", {
      type: "button",
      "aria-label": "Close this conversation",
      title: "Close",
      onclick: () => chat.close(conversation),
    }, "×");
    this.node = el(
      "section.lane",
      { onfocusin: () => onFocus(this) },
      el("header", {}, this.title, close),
      this.log,
      el("form.composer", { onsubmit: (event) => this.handleSubmit(event) }, this.field, this.button),
    );
    this.field.value = conversation.draft;
    this.follows = true;
    this.log.addEventListener("scroll", () => {
      this.follows = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR_END;
    });
    this.draw();
  }

  handleInput() {
    this.conversation.draft = this.field.value.length > QUESTION_SHOWN ? "" : this.field.value;
    this.chat.saveSoon();
    this.fit();
  }

  /** As high as its text, up to a limit of the style. */
  fit() {
    this.field.style.height = "auto";
    if (this.field.value) this.field.style.height = `${this.field.scrollHeight + 2}px`;
  }

  handleKey(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.send(this.field.value);
    }
    if (event.key === "Escape") {
      if (this.conversation.running) this.chat.stop(this.conversation);
      else this.field.blur();
    }
  }

  handleButton(event) {
    if (!this.conversation.running) return;
    event.preventDefault();
    this.chat.stop(this.conversation);
  }

  handleSubmit(event) {
    event.preventDefault();
    this.send(this.field.value);
  }

  send(text) {
    if (!text.trim() || this.conversation.running) return;
    this.field.value = "";
    this.fit();
    this.follows = true;
    this.chat.ask(this.conversation, text);
    this.onList();
  }

  focus() {
    this.field.focus();
    this.node.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** Soon: many events are one drawing. */
  update() {
    this.frame ||= requestAnimationFrame(() => {
      const begun = performance.now();
      this.draw();
      const ms = (performance.now() - begun) * DRAWING_SHARE;
      if (ms < 16) this.frame = 0;
      else setTimeout(() => this.drawnLate(), ms);
    });
    this.isStale = true;
  }

  drawnLate() {
    this.frame = 0;
    if (this.isStale) this.update();
  }

  draw() {
    this.isStale = false;
    const { conversation } = this;
    const { turns, running } = conversation;
    setText(this.title, conversation.title);
    this.node.setAttribute("aria-label", conversation.title);
    turns.forEach((turn, i) => {
      if (this.turns[i]) return;
      this.turns[i] = new TurnView(turn, this);
      this.log.append(this.turns[i].node);
    });
    const now = Date.now();
    this.turns.forEach((view, i) => view.update(i === turns.length - 1, now));
    if (!turns.length) this.drawSuggestions();
    else this.suggestions?.remove();
    setText(this.button, running ? "Stop" : "Send");
    this.button.classList.toggle("stop", Boolean(running));
    if (this.follows) this.log.scrollTop = this.log.scrollHeight;
  }

  drawSuggestions() {
    if (this.suggestions) return;
    const choices = SUGGESTIONS.map((text) => el("button.suggestion", { type: "button", onclick: () => this.send(text) }, text));
    this.suggestions = el("div.suggestions", {}, el("p", {}, "Ask anything, or begin with"), ...choices);
    this.log.append(this.suggestions);
  }
}
