/* Elements, words and numbers: the helpers that the other modules build the page from.
 *
 * Text becomes text nodes and nothing else: no module sets HTML. */

/** An element: `el("p.quiet", {title: "…", onclick: f}, "text", node)`. */
export function el(spec, attributes = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Set a text only where it differs: unchanged nodes cost no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Say it to screen readers. */
export function announce(text) {
  setText(byId("live"), text);
}

export const seconds = (ms) => (ms < 9950 ? (ms / 1000).toFixed(ms < 995 ? 2 : 1) : Math.round(ms / 1000)) + " s";

export function duration(ms) {
  if (ms < 100_000) return seconds(ms);
  const minutes = ms / 60_000;
  return minutes < 100 ? `${Math.round(minutes)} min` : `${(minutes / 60).toFixed(1)} h`;
}

export function bytes(count) {
  const mib = count / 2 ** 20;
  if (mib >= 1024) return `${(mib / 1024).toFixed(1)} GiB`;
  if (mib >= 1) return `${mib.toFixed(mib < 10 ? 1 : 0)} MiB`;
  return `${Math.ceil(count / 1024)} KiB`;
}

export const plural = (count, noun, nouns = `${noun}s`) => `${count.toLocaleString("en")} ${count === 1 ? noun : nouns}`;
