// Small pictures: a line of what was lately, and a bar of shares.

import { element, say, shape } from "./dom.js";
import { latest } from "./history.js";

const WIDTH = 120;
const HEIGHT = 28;

/** A named figure with a line behind it. */
export class Sparkline {
  /** words: formats a value. */
  constructor(name, words) {
    this.words = words;
    this.line = shape("polyline", { class: "spark-line", fill: "none" });
    this.figure = element("span", { class: "spark-figure" }, "–");
    this.node = element(
      "div",
      { class: "spark" },
      element("span", { class: "spark-name" }, name),
      this.figure,
      shape(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        this.line,
      ),
    );
  }

  update(values) {
    const value = latest(values);
    say(this.figure, value === null ? "–" : this.words(value));
    this.line.setAttribute("points", points(values));
  }
}

function points(values) {
  const most = Math.max(1e-9, ...values.filter((value) => value !== null));
  const step = WIDTH / Math.max(1, values.length - 1);
  return values
    .map((value, at) => (value === null ? null : `${(at * step).toFixed(1)},${height(value / most)}`))
    .filter((point) => point !== null)
    .join(" ");
}

function height(share) {
  return (HEIGHT - 2 - share * (HEIGHT - 4)).toFixed(1);
}

/** Return a bar. parts: [{name, value, words}], whose values add up to at most the whole. */
export function bar(label, parts, whole) {
  const bars = parts.map((part) => {
    const node = element("span", { class: `bar-part is-${part.name}`, title: `${part.words} ${part.name}` });
    node.style.width = `${whole > 0 ? (100 * part.value) / whole : 0}%`;
    return node;
  });
  const words = parts.map((part) => `${part.words} ${part.name}`).join(", ");
  return element("div", { class: "bar", role: "img", "aria-label": `${label}: ${words}` }, ...bars);
}
