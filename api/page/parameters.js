/* Sampling parameters of the next answers: a form, its storage, and the request made of it. */

import { byId, el } from "./dom.js";

const PLACE = "triolet.parameters";
const KEEP_S = 60; // so long an answer goes on while this page is away; the server's usual maximum
const TOP_LOGPROBS = 5;
// A request with a pace begins with credit for this long, and never has more than that ahead.
export const AHEAD_S = 0.4;
const PACE_OF_DEMO = 12;

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, hint: "0: always the likeliest token" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01, hint: "only the likeliest tokens that make up this share" },
  { name: "max_output_tokens", label: "Max tokens", min: 1, step: 1, hint: "of one answer" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "same seed, same tokens; empty: another one each time" },
  { name: "pace", label: "Pace", min: 1, step: 1, hint: "tokens a second at most; empty: as fast as they come" },
];

export class Parameters {
  constructor(onChange) {
    this.onChange = onChange;
    this.defaults = {}; // of this visit; null among the values takes one away
    this.values = {};
    try {
      this.values = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
    } catch {
      // Written by another version of this page.
    }
    this.inputs = new Map();
    byId("parameter-fields").append(...FIELDS.map((field) => this.field(field)), this.system(), this.logprobs());
    byId("reset-parameters").addEventListener("click", () => this.reset());
    this.show();
  }

  field({ name, label, hint, ...bounds }) {
    const input = el("input", { type: "number", inputmode: "decimal", placeholder: "server's", ...bounds });
    return this.row(name, label, input, hint);
  }

  system() {
    const input = el("textarea", { rows: 3, maxlength: 20000, placeholder: "none" });
    return this.row("instructions", "System", input, "a message before the conversation");
  }

  logprobs() {
    return this.row("logprobs", "Logprobs", el("input", { type: "checkbox" }), "hover a word to see what else was likely");
  }

  row(name, label, input, hint) {
    input.id = `parameter-${name}`;
    input.name = name;
    input.setAttribute("aria-describedby", `${input.id}-hint`);
    input.addEventListener("change", () => this.read(name, input));
    this.inputs.set(name, input);
    return el(
      "div.field",
      {},
      el("label", { for: input.id }, label),
      input,
      el("small", { id: `${input.id}-hint` }, hint),
    );
  }

  read(name, input) {
    const value = input.type === "checkbox" ? input.checked : input.value.trim();
    const isEmpty = value === "" || value === false || !input.checkValidity();
    if (isEmpty && name in this.defaults) this.values[name] = null;
    else if (isEmpty) delete this.values[name];
    else this.values[name] = input.type === "number" ? Number(value) : value;
    this.save();
  }

  /** A pace that can be watched, for a demonstration. */
  suggestPace() {
    this.defaults.pace = PACE_OF_DEMO;
    this.show();
    this.onChange();
  }

  get effective() {
    const all = Object.entries({ ...this.defaults, ...this.values });
    return Object.fromEntries(all.filter(([, value]) => value !== null));
  }

  reset() {
    this.values = {};
    this.save();
    this.show();
  }

  save() {
    localStorage.setItem(PLACE, JSON.stringify(this.values));
    this.onChange();
  }

  show() {
    const values = this.effective;
    for (const [name, input] of this.inputs) {
      if (input.type === "checkbox") input.checked = Boolean(values[name]);
      else input.value = values[name] ?? "";
    }
  }

  /** Those that differ from the server's, in a line. */
  summary() {
    const { temperature, top_p, max_output_tokens, seed, pace } = this.effective;
    const parts = { temperature, "top p": top_p, "max tokens": max_output_tokens, seed, pace };
    return Object.entries(parts)
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => `${name} ${value}`)
      .join(" · ");
  }

  /** The body of `response.create`, but for its lane; the seed is always given, to compare runs. */
  body(input, parent) {
    const { logprobs, seed, pace, ...given } = this.effective;
    const runtime = { seed: seed ?? crypto.getRandomValues(new Uint32Array(1))[0], events: true, keep_s: KEEP_S };
    const body = { type: "response.create", input, ...given, runtime };
    if (pace) runtime.credit = Math.max(1, Math.round(pace * AHEAD_S));
    if (parent) body.previous_response_id = parent;
    if (logprobs) {
      body.include = ["message.output_text.logprobs"];
      body.top_logprobs = TOP_LOGPROBS;
    }
    return body;
  }
}
