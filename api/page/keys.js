/* Keys of this page: where they come from, how HTTP and WebSocket present them, what they open.
 *
 * A key that is typed lives in sessionStorage, so it ends with the tab. That of `--demo` comes in the
 * address's fragment, which browsers do not send; it is removed from there, and lives in localStorage,
 * so that every tab has it. It ends with its server: the next one refuses it, and it is forgotten. */

const PLACE = "triolet.key";
const DEMO = "triolet.demo";

export class Keys {
  get key() {
    return sessionStorage.getItem(PLACE) ?? localStorage.getItem(DEMO) ?? "";
  }

  set key(value) {
    if (value) sessionStorage.setItem(PLACE, value);
    else sessionStorage.removeItem(PLACE);
  }

  /** Whether the key of this tab is that of a demonstration. */
  get isDemo() {
    return this.key !== "" && sessionStorage.getItem(PLACE) === null;
  }

  headers() {
    return this.key ? { authorization: `Bearer ${this.key}` } : {};
  }

  /** Subprotocols of a WebSocket, which can send no header. */
  protocols() {
    if (!this.key) return ["triolet"];
    const text = String.fromCharCode(...new TextEncoder().encode(this.key));
    const base64url = btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
    return ["triolet", `triolet.key.${base64url}`];
  }

  /** Take the key of the address, if it has one. */
  takeFromAddress() {
    const key = new URLSearchParams(location.hash.slice(1)).get("key");
    if (!key) return;
    history.replaceState(null, "", location.pathname + location.search);
    sessionStorage.removeItem(PLACE);
    localStorage.setItem(DEMO, key);
  }

  /** Another server refused the key of a demonstration that is over. Whether there was one. */
  forgetDemo() {
    const wasDemo = this.isDemo;
    if (wasDemo) localStorage.removeItem(DEMO);
    return wasDemo;
  }

  /** Ask the server: `{models}` if the key opens the chat, else `{refused}`, a sentence. */
  async check() {
    let answer = await fetch("v1/models", { headers: this.headers() });
    if (answer.status === 401 && this.forgetDemo()) answer = await fetch("v1/models", { headers: this.headers() });
    if (answer.ok) return { models: (await answer.json()).data };
    return { refused: await sentenceOf(answer), status: answer.status };
  }
}

export function post(path, body, headers) {
  return fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
}

/** What an error answer says. */
export async function sentenceOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server answered ${answer.status}.`;
  }
}
