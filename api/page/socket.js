/* The one WebSocket of the page: it reconnects by itself, for ever, and says what happens to it.
 *
 * What was under way is for `chat` to resume: it hears of every opening. A refused handshake is
 * opaque to scripts, so the reason is asked for over HTTP. */

const FIRST_WAIT_MS = 100;
const LONGEST_WAIT_MS = 3000;

export class LaneSocket {
  /** `on.open()`, `on.event(event)`, `on.lost()`, `on.refused(sentence, status)`. */
  constructor(keys, on) {
    this.keys = keys;
    this.on = on;
    this.socket = null;
    this.waitMs = FIRST_WAIT_MS;
    this.timer = 0;
    addEventListener("online", () => this.isOpen || this.connect());
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** Begin, or begin anew with another key. */
  connect() {
    clearTimeout(this.timer);
    const before = this.socket;
    this.socket = null;
    before?.close();
    const url = new URL("v1/responses", location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    url.hash = "";
    const socket = new WebSocket(url, this.keys.protocols());
    let wasOpen = false;
    this.socket = socket;
    socket.onopen = () => {
      wasOpen = true;
      this.waitMs = FIRST_WAIT_MS;
      this.on.open();
    };
    socket.onmessage = (message) => this.socket === socket && this.on.event(JSON.parse(message.data));
    socket.onclose = () => this.socket === socket && this.handleClose(wasOpen);
  }

  /** False if there is no connection now. */
  send(event) {
    if (!this.isOpen) return false;
    this.socket.send(JSON.stringify(event));
    return true;
  }

  async handleClose(wasOpen) {
    const socket = this.socket;
    if (wasOpen) this.on.lost();
    else {
      const found = await this.keys.check().catch(() => ({}));
      if (this.socket !== socket) return;
      if (found.status === 401 || found.status === 403) {
        this.on.refused(found.refused, found.status);
        return; // another key begins anew
      }
    }
    this.timer = setTimeout(() => this.connect(), this.waitMs * (0.5 + Math.random() / 2));
    this.waitMs = Math.min(2 * this.waitMs, LONGEST_WAIT_MS);
  }
}
