/* The page: joins chat, tree, timeline and keys, and reacts to what concerns all of them.
 *
 * Nothing here keeps state of its own beyond what is focused and which view a phone shows. */

import { Chat } from "./chat.js";
import { LANES_MAX } from "./conversations.js";
import { announce, byId, el, setText } from "./dom.js";
import { Feed, wordsOf } from "./feed.js";
import { Keys } from "./keys.js";
import { LaneView } from "./lane.js";
import { Parameters } from "./parameters.js";
import { Timeline } from "./timeline.js";
import { Tree } from "./tree.js";

const THEME = "triolet.theme";
const NOTICE_MS = 12_000;

const keys = new Keys();
const timeline = new Timeline(byId("timeline"), byId("legend"));
const parameters = new Parameters(() => showParameters());
const views = new Map(); // conversation: its view
let focused = null;
let noticeTimer = 0;

const chat = new Chat(keys, parameters, {
  changed: (conversation) => {
    views.get(conversation)?.update();
    for (const turn of conversation.turns.slice(-1)) {
      const label = `${chat.conversations.indexOf(conversation) + 1} ${conversation.title}`;
      timeline.noteAnswer(turn.answers[turn.chosen], label, Date.now());
    }
  },
  compared: (run) => timeline.noteAnswer(run, "comparison", Date.now()),
  list: () => showLanes(),
  link: (state, words, status) => showLink(state, words, status),
});

const tree = new Tree(byId("tree"), keys, notify);
const feed = new Feed(keys, {
  change: (all, change) => {
    tree.update(all, change.processes ?? []);
    timeline.noteFeed(all, change);
  },
  marks: (marks) => marks.forEach(handleMark),
  state: (state) => {
    byId("server").dataset.feed = state;
    if (state !== "refused") return;
    keys.forgetDemo();
    explainTree();
  },
});

// ---- what the feed brings

const DISTURBING = ["died", "hung", "silent", "lost"];

function handleMark(mark) {
  tree.handleMark(mark);
  if (!DISTURBING.includes(mark.kind)) return;
  const words = wordsOf(mark);
  chat.disturb((answer) => feed.concerns(mark, answer.id), words, mark.t - feed.offset);
  announce(words);
}

// ---- lanes

function showLanes() {
  const hadFocus = byId("lanes").contains(document.activeElement);
  for (const [conversation, view] of views) {
    if (chat.conversations.includes(conversation)) continue;
    view.node.remove();
    views.delete(conversation);
  }
  for (const conversation of chat.conversations) {
    if (views.has(conversation)) continue;
    const view = new LaneView(conversation, chat, { onFocus: setFocus, onList: showTabs });
    views.set(conversation, view);
    byId("lanes").append(view.node);
  }
  byId("lanes").style.setProperty("--lanes", views.size);
  if (!focused || !views.has(focused.conversation)) {
    setFocus([...views.values()][0]);
    if (hadFocus) focused.focus();
  }
  showTabs();
}

function setFocus(view) {
  focused = view;
  for (const each of views.values()) each.node.classList.toggle("current", each === view);
  showTabs();
}

/** Where lanes do not fit beside each other, one is shown, and these choose it. */
function showTabs() {
  const tabs = [...views.values()].map((view, i) =>
    el("button", {
      type: "button",
      "aria-pressed": String(view === focused),
      title: `${view.conversation.title} (${i + 1})`,
      onclick: () => {
        setFocus(view);
        view.focus();
      },
    }, view.conversation.title),
  );
  byId("tabs").replaceChildren(...tabs);
  byId("new-lane").disabled = views.size >= LANES_MAX;
}

function addLane() {
  const conversation = chat.add();
  if (!conversation) return;
  showView("chat");
  showLanes();
  setFocus(views.get(conversation));
  focused.focus();
}

// ---- words about the whole

function showLink(state, words, status) {
  const shown = { open: "connected", lost: "reconnecting", refused: "key needed" }[state];
  if (!shown) {
    notify(words);
    return;
  }
  byId("link").dataset.state = state;
  setText(byId("link-words"), shown);
  if (state === "lost") announce("connection lost, reconnecting");
  if (state === "refused" && status === 401) askKey(words);
  else if (state === "refused") notify(words);
}

function notify(words) {
  const notice = byId("notice");
  setText(notice, words);
  notice.hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => (notice.hidden = true), NOTICE_MS);
}

function showParameters() {
  const summary = parameters.summary();
  byId("open-parameters").title = summary ? `Parameters (p): ${summary}` : "Parameters (p)";
  byId("open-parameters").classList.toggle("set", summary !== "");
}

function explainTree() {
  tree.explain(
    el("p", {}, "With an admin key every process of the server is seen here, and may be killed: the text goes on."),
    el("button", { type: "button", onclick: () => askKey("") }, "Enter an admin key"),
    el("p", {}, "A server has one when it was started with ", el("code", {}, "triolet serve --demo"), " or ",
      el("code", {}, "--admin-key KEY"), "."),
  );
}

// ---- keys

function askKey(refused) {
  setText(byId("key-refused"), keys.key ? refused : "");
  byId("key").value = "";
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

async function takeKey(event) {
  event.preventDefault();
  const before = keys.key;
  keys.key = byId("key").value.trim();
  const { refused } = await keys.check().catch(() => ({ refused: "The server does not answer." }));
  if (refused) {
    keys.key = before;
    setText(byId("key-refused"), refused);
    return;
  }
  byId("key-dialog").close();
  begin();
}

/** Ask what the key opens before the sockets do: they could not say why they are refused. */
async function begin() {
  const { models, refused, status } = await keys.check().catch(() => ({}));
  if (models?.length) setText(byId("model"), models[0].id);
  if (refused) showLink("refused", refused, status);
  else chat.connect();
  // Without a key there is no feed, and browsers note each refusal on their console.
  if (keys.key && !refused) {
    await feed.run();
    return;
  }
  feed.stop();
  explainTree();
}

// ---- views, theme, keyboard

function showView(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll(".views button")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === view));
  }
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

function switchTheme() {
  const isDark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  const theme = isDark ? "light" : "dark";
  localStorage.setItem(THEME, theme);
  setTheme(theme);
  announce(`${theme} theme`);
}

const SHORTCUTS = {
  n: addLane,
  p: () => byId("parameters").showModal(),
  t: switchTheme,
  k: () => {
    showView("server");
    tree.focusFirstKill();
  },
  "?": () => byId("shortcuts").showModal(),
};

function handleKey(event) {
  // A dialog that was just closed may still have the focus.
  const isTyping = event.target.closest("input, textarea, dialog")?.checkVisibility();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const lane = [...views.values()][Number(event.key) - 1];
  const action = lane ? () => (showView("chat"), setFocus(lane), lane.focus()) : SHORTCUTS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function listen() {
  const on = (id, action) => byId(id).addEventListener("click", action);
  on("new-lane", addLane);
  on("open-parameters", SHORTCUTS.p);
  on("open-shortcuts", SHORTCUTS["?"]);
  on("open-key", () => askKey(""));
  on("theme", switchTheme);
  on("key-cancel", () => byId("key-dialog").close());
  byId("key-form").addEventListener("submit", takeKey);
  document.addEventListener("keydown", handleKey);
  for (const button of document.querySelectorAll(".views button")) {
    button.addEventListener("click", () => showView(button.dataset.view));
  }
  for (const button of document.querySelectorAll("[data-seconds]")) {
    button.addEventListener("click", () => {
      timeline.seconds = Number(button.dataset.seconds);
      for (const each of document.querySelectorAll("[data-seconds]")) {
        each.setAttribute("aria-pressed", String(each === button));
      }
    });
  }
}

setTheme(localStorage.getItem(THEME));
listen();
showLanes();
showParameters();
keys.takeFromAddress();
if (keys.isDemo) parameters.suggestPace();
await begin();
