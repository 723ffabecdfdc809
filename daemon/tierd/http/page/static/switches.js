// The last switches as a timeline: one line each, its phases by their length.

import { byId, element, renew } from "./dom.js";
import { counted, duration } from "./numbers.js";

const SHOWN = 8;

export function showSwitches(state) {
  const shown = state.switches.slice(-SHOWN).reverse();
  const running = state.switch;
  const ago = shown.map((done) => minutes(done.ago_s));
  renew(byId("switches"), [shown.map(({ ago_s, ...rest }) => rest), ago, running && Math.floor(running.seconds), running], () => {
    const longest = Math.max(1e-6, ...shown.map((done) => done.seconds));
    const lines = shown.map((done, at) => line(done, ago[at], longest));
    if (running) lines.unshift(element("li", { class: "switch" }, current(running)));
    if (!lines.length) return [element("p", { class: "quiet" }, "None yet: no model had to make room for another.")];
    return [element("ol", { class: "switches" }, ...lines), legend()];
  });
}

const PHASES = ["pause", "hydrate", "drop", "save", "restore", "rearm", "rehome"];

function line(done, ago, longest) {
  const parts = PHASES.map((name) => {
    const seconds = done.phases[name] ?? 0;
    const part = element("span", { class: `phase is-${name}`, title: `${name} ${duration(seconds)}` });
    part.style.width = `${(100 * seconds) / longest}%`;
    return part;
  });
  const words = PHASES.filter((name) => done.phases[name]).map((name) => `${name} ${duration(done.phases[name])}`);
  return element(
    "li",
    { class: done.error ? "switch is-failed" : "switch" },
    element("span", { class: "switch-name" }, who(done), element("span", { class: "quiet" }, ` ${ago}, ${duration(done.seconds)}`)),
    element("span", { class: "phases", role: "img", "aria-label": words.join(", ") || "no phase" }, ...parts),
    done.error ? element("span", { class: "warn" }, done.error) : "",
  );
}

function who(done) {
  const out = done.outgoing.join(", ");
  if (!done.incoming) return `${out} left`;
  return out ? `${done.incoming} came for ${out}` : `${done.incoming} came`;
}

function current(running) {
  const coming = running.incoming ? `${running.incoming} is coming` : `${running.outgoing.join(", ")} leaving`;
  return `${coming}: ${running.phase}, for ${duration(running.seconds)}`;
}

function minutes(seconds) {
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${counted(Math.floor(seconds / 60), "minute")} ago`;
  return `${counted(Math.floor(seconds / 3600), "hour")} ago`;
}

function legend() {
  return element(
    "p",
    { class: "legend quiet", "aria-hidden": "true" },
    ...PHASES.flatMap((name) => [element("span", { class: `key is-${name}` }), `${name} `]),
  );
}
