// The regions of a model's K/V on the GPU: a square for each, and how full it is.

import { element } from "./dom.js";
import { count } from "./numbers.js";

export function regions(model) {
  const tally = new Map();
  const squares = model.regions.map((region) => {
    tally.set(region.state, (tally.get(region.state) ?? 0) + 1);
    const words = `region ${region.region}: ${region.state}, ${count(region.positions)} positions`;
    const level = element("span", { class: "region-level" });
    level.style.height = `${model.region_positions ? (100 * region.positions) / model.region_positions : 0}%`;
    return element("span", { class: `region is-${region.state}`, title: words }, level);
  });
  const summary = [...tally].map(([state, number]) => `${count(number)} ${state}`).join(", ");
  return element(
    "div",
    { class: "regions-box" },
    element("div", { class: "regions", role: "img", "aria-label": `Regions: ${summary}` }, ...squares),
    element("p", { class: "quiet" }, `Regions of ${count(model.region_positions)} positions: ${summary}`),
  );
}
