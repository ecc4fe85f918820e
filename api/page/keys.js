/* Keys of this tab: where they come from, how HTTP and WebSocket present them, what they open.
 *
 * A key lives in sessionStorage, so it ends with the tab. The one-time token of `--demo` comes in
 * the address's fragment, which browsers do not send; it is exchanged for an admin key and removed. */

const PLACE = "triolet.key";
const DEMO = "triolet.demo";

export class Keys {
  get key() {
    return sessionStorage.getItem(PLACE) ?? "";
  }

  set key(value) {
    if (value) sessionStorage.setItem(PLACE, value);
    else sessionStorage.removeItem(PLACE);
  }

  /** Whether the key of this tab is that of a demonstration. */
  get isDemo() {
    return sessionStorage.getItem(DEMO) !== null;
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

  /** Exchange the token of the address, if it has one. Returns a sentence if that failed. */
  async claimToken() {
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (!token) return "";
    history.replaceState(null, "", location.pathname + location.search);
    const answer = await post("session", { token }, {});
    if (answer.status === 200) {
      this.key = (await answer.json()).admin_key;
      sessionStorage.setItem(DEMO, "");
      return "";
    }
    if (this.key) return ""; // a reload of the same tab
    return "The token of this address was used before or is not this server's: start it again with --demo for a new one.";
  }

  /** Ask the server: `{models}` if the key opens the chat, else `{refused}`, a sentence. */
  async check() {
    const answer = await fetch("v1/models", { headers: this.headers() });
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
