/* Chat over one socket: what is asked in each lane, resumed on each connection, paced and stored.
 *
 * A lane runs one answer at a time. A connection may end at any moment: on the next one every
 * answer under way is resumed behind its last event, or asked again if the server never named it. */

import { Answer, CUT } from "./answer.js";
import { Conversation, freeLane, LANES_MAX, loadConversations, saveConversations } from "./conversations.js";
import { announce, seconds } from "./dom.js";
import { AHEAD_S } from "./parameters.js";
import { LaneSocket } from "./socket.js";

const SAVE_MS = 1000;
const PACE_MS = 100;
const AGAIN_MS = 500;
const GRANT = "grant";
const CHECK_LANE = "check";

export class Chat {
  /** `on.changed(conversation)`: redraw it; `on.list()`: one came or went; `on.link(state, words)`;
   *  `on.compared(run)`: an undisturbed run has come further. */
  constructor(keys, parameters, on) {
    this.parameters = parameters;
    this.on = on;
    this.conversations = loadConversations();
    this.leaving = new Set(); // lanes whose last answer was stopped with them, and has not ended yet
    if (!this.conversations.length) this.add();
    this.checks = []; // undisturbed runs that wait or run: {answer, run, conversation}
    this.socket = new LaneSocket(keys, {
      open: () => this.handleOpen(),
      event: (event) => this.handleEvent(event),
      lost: () => this.handleLost(),
      refused: (sentence, status) => on.link("refused", sentence, status),
    });
    this.saveTimer = 0;
    this.paceTimer = 0;
    addEventListener("pagehide", () => this.save());
  }

  // ---- conversations

  add() {
    const lane = freeLane(this.conversations, this.leaving);
    if (lane === null) {
      announce(`There are ${LANES_MAX} conversations; close one first`);
      return null;
    }
    const conversation = new Conversation(lane);
    this.conversations.push(conversation);
    this.saveSoon();
    return conversation;
  }

  close(conversation) {
    if (conversation.running && this.socket.isOpen) this.leaving.add(conversation.lane);
    this.stop(conversation);
    this.conversations.splice(this.conversations.indexOf(conversation), 1);
    if (!this.conversations.length) this.add();
    this.saveSoon();
    this.on.list();
  }

  ask(conversation, question) {
    if (conversation.running) return;
    const parent = conversation.parentOf(conversation.turns.length);
    const answer = new Answer({ body: this.parameters.body(question, parent), parent });
    conversation.turns.push({ question, answers: [answer], chosen: 0 });
    conversation.draft = "";
    this.begin(conversation, answer);
  }

  /** Another answer to the last question. */
  regenerate(conversation) {
    const turn = conversation.turns.at(-1);
    if (!turn || conversation.running) return;
    const input = turn.answers[0].ask.body.input || turn.question;
    const parent = conversation.parentOf(conversation.turns.length - 1);
    const answer = new Answer({ body: this.parameters.body(input, parent), parent });
    turn.chosen = turn.answers.push(answer) - 1;
    this.begin(conversation, answer);
  }

  begin(conversation, answer) {
    answer.granted = answer.ask.body.runtime.credit ?? 0;
    this.send({ ...answer.ask.body, stream_id: conversation.lane });
    this.pace();
    this.changed(conversation);
  }

  stop(conversation) {
    const answer = conversation.running;
    if (!answer) return;
    answer.isStopped = true;
    this.send({ type: "response.cancel", stream_id: conversation.lane });
  }

  /** Ask once more, at full speed and unseen, and compare: was the disturbed text the same? */
  check(conversation, answer) {
    const { credit, ...runtime } = answer.ask.body.runtime;
    const { include, top_logprobs, ...body } = { ...answer.ask.body, runtime: { ...runtime, events: false } };
    answer.check = "comparing with an undisturbed run …";
    this.checks.push({ answer, conversation, run: new Answer({ body, parent: answer.ask.parent }) });
    if (this.checks.length === 1) this.send({ ...body, stream_id: CHECK_LANE });
    this.changed(conversation);
  }

  // ---- the socket

  connect() {
    this.socket.connect();
  }

  send(event) {
    return this.socket.send(event); // if not now: `handleOpen` does what is needed then
  }

  handleOpen() {
    this.on.link("open", "connected");
    for (const conversation of this.conversations) {
      if (conversation.running) this.resume(conversation, conversation.running);
    }
    if (this.checks.length) {
      this.checks[0].run = new Answer(this.checks[0].run.ask);
      this.send({ ...this.checks[0].run.ask.body, stream_id: CHECK_LANE });
    }
    this.pace();
  }

  resume(conversation, answer) {
    const lane = { stream_id: conversation.lane };
    answer.granted = answer.tokens;
    if (!answer.id) {
      const isKept = answer.ask.body.input.length > 0;
      if (isKept && !answer.isStopped) this.begin(conversation, answer);
      else answer.handleError({ message: "It was not sent." });
      this.changed(conversation);
      return;
    }
    const after = answer.number < 0 ? {} : { starting_after: answer.number };
    this.send({ type: "response.resume", response_id: answer.id, ...after, ...lane });
    if (answer.isStopped) this.send({ type: "response.cancel", response_id: answer.id, ...lane });
  }

  handleLost() {
    this.leaving.clear();
    this.on.link("lost", "reconnecting");
    this.disturb(() => true, CUT);
  }

  /** A process has died, or a connection: what `concerns` has a pause with this cause. */
  disturb(concerns, words, since) {
    const now = Date.now();
    for (const conversation of this.conversations) {
      const answer = conversation.running;
      if (answer && concerns(answer) && answer.disturb(words, now, since)) this.changed(conversation);
    }
  }

  handleEvent(event) {
    if (event.error?.event_id === GRANT) return; // it had ended when the grant came
    if (event.stream_id === CHECK_LANE) {
      this.handleCheck(event);
      return;
    }
    if (this.leaving.has(event.stream_id)) {
      const isEnd = event.type === "error" || (event.response && event.response.status !== "in_progress");
      if (isEnd) this.leaving.delete(event.stream_id);
      return;
    }
    const conversation = this.conversations.find((each) => each.lane === event.stream_id);
    const answer = conversation?.running;
    if (!answer) {
      if (event.type === "error" && !event.stream_id) this.on.link("notice", event.error.message);
      return;
    }
    if (event.type === "error" && this.goesOnAfter(event, conversation, answer)) return;
    const before = answer.marks.length;
    answer.handleEvent(event, Date.now());
    if (answer.marks.length > before) {
      const mark = answer.marks.at(-1);
      announce(`${mark.words}; the text goes on after ${seconds(mark.ms)}`);
    }
    if (answer.isEnded) this.handleEnd(conversation, answer);
    this.changed(conversation);
  }

  /** Errors that are no end: of a place that is not back yet, of a parent that was forgotten. */
  goesOnAfter(event, conversation, answer) {
    if (answer.id && event.status === 503) {
      setTimeout(() => conversation.running === answer && this.resume(conversation, answer), AGAIN_MS);
      return true;
    }
    const { body } = answer.ask;
    if (event.error.code !== "previous_response_not_found" || !body.previous_response_id) return false;
    const { previous_response_id, ...rest } = body;
    const before = conversation.messagesBefore(conversation.turns.length - 1);
    rest.input = [...before, { role: "user", content: conversation.turns.at(-1).question }];
    answer.ask = { body: rest, parent: null };
    this.begin(conversation, answer);
    return true;
  }

  handleEnd(conversation, answer) {
    const words = { completed: "answer complete", incomplete: "answer cut", cancelled: "answer stopped" };
    announce(words[answer.status] ?? answer.reason);
    this.save();
  }

  handleCheck(event) {
    const { answer, conversation, run } = this.checks[0] ?? {};
    if (!run) return;
    run.handleEvent(event, Date.now());
    this.on.compared(run);
    if (!run.isEnded) return;
    this.checks.shift();
    const isSame = run.text.slice(0, answer.text.length) === answer.text;
    if (!run.id || run.status === "failed") answer.check = `not compared: ${run.reason}`;
    else if (isSame) answer.check = `identical to an undisturbed run, all ${answer.tokens} tokens`;
    else answer.check = "differs from an undisturbed run";
    announce(answer.check);
    if (this.checks.length) this.send({ ...this.checks[0].run.ask.body, stream_id: CHECK_LANE });
    this.changed(conversation);
  }

  // ---- pace: tokens are granted as time goes by

  pace() {
    clearTimeout(this.paceTimer);
    this.paceTimer = 0;
    let isPaced = false;
    for (const conversation of this.conversations) {
      const answer = conversation.running;
      const credit = answer?.ask.body.runtime.credit;
      if (!credit) continue;
      isPaced = true;
      const perTick = (credit / AHEAD_S) * (PACE_MS / 1000);
      answer.owed = Math.min(credit, (answer.owed ?? 0) + perTick);
      const room = answer.tokens + credit - answer.granted;
      const add = Math.floor(Math.min(answer.owed, room));
      if (add < 1 || !answer.id || !this.socket.isOpen) continue;
      this.send({ type: "runtime.credit", stream_id: conversation.lane, add, event_id: GRANT });
      answer.owed -= add;
      answer.granted += add;
    }
    if (isPaced) this.paceTimer = setTimeout(() => this.pace(), PACE_MS);
  }

  // ---- storage

  changed(conversation) {
    this.on.changed(conversation);
    this.saveSoon();
  }

  saveSoon() {
    this.saveTimer ||= setTimeout(() => this.save(), SAVE_MS);
  }

  save() {
    clearTimeout(this.saveTimer);
    this.saveTimer = 0;
    saveConversations(this.conversations);
  }
}
