/* Conversations and where they are kept: lanes, turns, versions of answers, in localStorage.
 *
 * What is kept of an answer under way (id, number, text) belongs together, so whatever ends the
 * page, the next one resumes behind the last event whose text it has. */

import { Answer } from "./answer.js";

const PLACE = "triolet.conversations";
export const LANES_MAX = 8;
// localStorage has some 5 MB; a longer question is kept, and shown, by its beginning.
export const QUESTION_SHOWN = 20_000;

export class Conversation {
  constructor(lane) {
    this.lane = lane; // its name on the socket
    this.turns = []; // {question, answers, chosen}
    this.draft = "";
  }

  static stored(values) {
    const conversation = Object.assign(new Conversation(values.lane), values);
    for (const turn of conversation.turns) turn.answers = turn.answers.map(Answer.stored);
    return conversation;
  }

  get title() {
    const first = this.turns[0]?.question.trim() ?? "";
    if (!first) return "New conversation";
    return first.length > 42 ? first.slice(0, 40).trimEnd() + "…" : first;
  }

  /** The answer under way, if there is one. */
  get running() {
    const answer = this.turns.at(-1)?.answers.at(-1);
    return answer && !answer.isEnded ? answer : null;
  }

  /** The response that turn number `index` continues; of those before it, as chosen. */
  parentOf(index) {
    const before = this.turns[index - 1];
    return before ? before.answers[before.chosen].id || null : null;
  }

  /** All before turn `index` as messages, for a server that has forgotten the responses. */
  messagesBefore(index) {
    return this.turns.slice(0, index).flatMap((turn) => [
      { role: "user", content: turn.question },
      { role: "assistant", content: turn.answers[turn.chosen].text },
    ]);
  }

  toStored() {
    const turns = this.turns.map((turn) => ({
      ...turn,
      question: turn.question.slice(0, QUESTION_SHOWN),
      answers: turn.answers.map((answer) => {
        const kept = answer.toStored();
        const input = kept.ask.body.input;
        // Too long to be kept: then it cannot be asked again.
        if (input.length > QUESTION_SHOWN) kept.ask = { ...kept.ask, body: { ...kept.ask.body, input: "" } };
        return kept;
      }),
    }));
    return { lane: this.lane, turns, draft: this.draft.slice(0, QUESTION_SHOWN) };
  }
}

export function loadConversations() {
  try {
    return JSON.parse(localStorage.getItem(PLACE) ?? "[]").map(Conversation.stored);
  } catch {
    return []; // written by another version of this page
  }
}

/** False if there was no room: the oldest turns are then left out. */
export function saveConversations(conversations) {
  const stored = conversations.map((each) => each.toStored());
  for (let tries = 0; tries < 64; tries++) {
    try {
      localStorage.setItem(PLACE, JSON.stringify(stored));
      return tries === 0;
    } catch {
      const longest = stored.reduce((a, b) => (a.turns.length >= b.turns.length ? a : b));
      if (!longest.turns.length) break;
      longest.turns.shift();
    }
  }
  return false;
}

/** A name that no conversation has, nor any of `leaving`; null if there are as many as may be. */
export function freeLane(conversations, leaving) {
  const taken = new Set([...conversations.map((each) => each.lane), ...leaving]);
  for (let number = 1; number <= LANES_MAX; number++) {
    if (!taken.has(`lane-${number}`)) return `lane-${number}`;
  }
  return null;
}
