// Streams that run, and what was meant for the GPU and ran on the CPU.

import { byId, element, renew } from "./dom.js";
import { count } from "./numbers.js";

const SHOWN = 100;

export function showStreams(state) {
  renew(byId("streams"), state.sessions, () => {
    if (state.sessions === null) return [quiet("Not shown here, as API keys are set; the admin listener shows them.")];
    if (!state.sessions.length) return [quiet("None runs.")];
    const more = state.sessions.length - SHOWN;
    const names = ["Request", "Model", "K/V in", "State", "Prompt", "Written"];
    return [
      element(
        "table",
        {},
        element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
        element("tbody", {}, ...state.sessions.slice(0, SHOWN).map(row)),
      ),
      more > 0 ? quiet(`and ${count(more)} more; tierd ctl sessions lists all.`) : "",
    ];
  });
}

function row(session) {
  return element(
    "tr",
    {},
    element("th", { scope: "row", class: "id" }, session.id),
    element("td", {}, session.model),
    element("td", {}, session.region === null ? "memory" : `region ${session.region}`),
    element("td", {}, standing(session)),
    element("td", { class: "number" }, count(session.prompt)),
    element("td", { class: "number" }, count(session.generated)),
  );
}

function standing(session) {
  if (session.away) return "waits for its model to be back on the GPU";
  if (session.moving) return "its rows are on their way";
  if (session.paused) return "waits for its client";
  if (session.words) return `on the CPU: ${session.words}`;
  return session.generated ? "writes" : "reads its prompt";
}

export function showPasses(state) {
  const passes = state.models.map(({ id, passes }) => ({ id, passes })).filter((model) => model.passes.length);
  renew(byId("passes"), passes, () => {
    if (!passes.length) return [quiet("Nothing that was meant for a GPU has run on the CPU.")];
    return [
      element(
        "ul",
        {},
        ...passes.flatMap(({ id, passes }) =>
          passes.map((pass) => element("li", {}, `${id}: ${count(pass.count)} × ${pass.words} `, element("code", {}, pass.reason))),
        ),
      ),
    ];
  });
}

function quiet(words) {
  return element("p", { class: "quiet" }, words);
}
