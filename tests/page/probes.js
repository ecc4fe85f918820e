// What tests look at in the page: put into each document before its own scripts run.
window.sockets = [];
window.sent = [];
const RealSocket = WebSocket;
window.WebSocket = class extends RealSocket {
  constructor(...all) {
    super(...all);
    sockets.push(this);
  }
  send(text) {
    sent.push(JSON.parse(text));
    super.send(text);
  }
};

const turnsOf = (lane) => [...document.querySelectorAll(`.lane:nth-child(${lane + 1}) .turn`)];

window.probes = {
  /** The last answer of a lane, without the marks in it. */
  text(lane) {
    const copy = turnsOf(lane).at(-1).querySelector(".text").cloneNode(true);
    for (const mark of copy.querySelectorAll(".mark")) mark.remove();
    return copy.textContent;
  },

  turns: (lane) => turnsOf(lane).length,

  isEnded: (lane) => turnsOf(lane).length > 0 && !turnsOf(lane).at(-1).matches(".streaming"),

  /** Words of the answer that streams in a lane. */
  streamed(lane) {
    const turn = turnsOf(lane).at(-1);
    return turn?.matches(".streaming") ? turn.querySelector(".text").textContent.split(" ").length : 0;
  },

  /** The last button of a lane that says this, if it can be pressed. */
  chooseButton(lane, words) {
    const all = [...document.querySelectorAll(`.lane:nth-child(${lane + 1}) button`)];
    const button = all.filter((each) => each.innerText === words && !each.disabled).at(-1);
    document.querySelector("[data-chosen]")?.removeAttribute("data-chosen");
    button?.setAttribute("data-chosen", "");
    return Boolean(button);
  },

  /** Where the first character of the first answer is. */
  firstCharacter() {
    const range = document.createRange();
    range.selectNode(document.querySelector(".text p").firstChild);
    const box = range.getClientRects()[0];
    return [box.x + 3, box.y + box.height / 2];
  },

  /** A text drawn as a model's, piece by piece and whole. */
  async draw(text) {
    const { renderMarkdown } = await import("/page/markdown.js");
    const node = document.body.appendChild(document.createElement("div"));
    for (let end = 0; end < 700; end += 7) renderMarkdown(node, text.slice(0, end), [], () => "");
    const begun = performance.now();
    renderMarkdown(node, text, [], () => "");
    const ms = performance.now() - begun;
    const tags = [...node.querySelectorAll("*")].map((each) => each.localName);
    const links = [...node.querySelectorAll("a")].map((each) => each.href);
    const found = { ms, tags: [...new Set(tags)], links, text: node.textContent };
    node.remove();
    return found;
  },

  /** What reaches beyond the right edge, but for what scrolls by itself. */
  outside() {
    const seen = [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility());
    const own = seen.filter((each) => !each.closest(".tabs, .unseen, .skip, .canvas"));
    return own
      .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
      .map((each) => each.outerHTML);
  },

  /** The lightness of the page, and {"ink on paper": contrast} of WCAG 2. */
  contrast() {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const probe = document.body.appendChild(document.createElement("i"));
    const lightness = (name) => {
      probe.style.color = `var(--${name})`;
      canvas.fillStyle = getComputedStyle(probe).color;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((each) => linear(each / 255));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratios = {};
    for (const name of ["ink", "soft", "accent"]) {
      for (const ground of ["paper", "panel", "raised"]) {
        const [a, b] = [lightness(name), lightness(ground)].sort((x, y) => y - x);
        ratios[`${name} on ${ground}`] = (a + 0.05) / (b + 0.05);
      }
    }
    const paper = lightness("paper");
    probe.remove();
    return [paper, ratios];
  },

  /** From here on: what had the focus, and what of it did not show it. */
  watchFocus() {
    document.activeElement.blur();
    this.reached = new Set();
    this.unmarked = [];
    addEventListener("focusin", ({ target }) => {
      this.reached.add(target);
      if (getComputedStyle(target).outlineStyle === "none") this.unmarked.push(target.outerHTML);
    });
  },

  /** What should have been reached and was not. */
  unreached() {
    const wanted = [...document.querySelectorAll("button, textarea, summary")];
    return wanted
      .filter((each) => each.checkVisibility() && !each.disabled && !this.reached.has(each))
      .map((each) => each.outerHTML);
  },

  stops: () => document.querySelectorAll("button, textarea, summary, [tabindex]").length,
};
