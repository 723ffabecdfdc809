// A card for each model that is loaded, and a line for those that are not.

import { bar, Sparkline } from "./charts.js";
import { byId, element, renew, say } from "./dom.js";
import { History } from "./history.js";
import { count, counted, duration, rate } from "./numbers.js";
import { regions } from "./regions.js";

const OUTCOMES = {
  cpu: "on the CPU",
  "gpu:resident": "on the GPU, whole",
  "gpu:rails": "on the CPU, large products on the GPU",
};
const SEATS = {
  away: "away from the GPU",
  leaving: "leaving the GPU",
  arriving: "coming to the GPU",
  lost: "its GPU is lost",
};

class Card {
  constructor(id, commands) {
    this.history = new History();
    this.place = element("p", { class: "place" });
    this.words = element("p", { class: "quiet" });
    this.decline = element("p", { class: "warn" });
    this.streams = element("p", {});
    this.room = element("div", {});
    this.generated = new Sparkline("tokens/s", rate);
    this.first = new Sparkline("first token", duration);
    this.gap = new Sparkline("between tokens", duration);
    this.buttons = commands ? commands.buttons(id) : null;
    this.title = element("h3", {}, id);
    this.node = element(
      "article",
      { class: "card", "aria-label": id },
      this.title,
      this.place,
      this.words,
      this.decline,
      this.streams,
      element("div", { class: "sparks" }, this.generated.node, this.first.node, this.gap.node),
      this.room,
      this.buttons ? this.buttons.node : null,
    );
  }

  update(model, state) {
    this.history.add(model.totals, state.uptime_s);
    const seat = SEATS[model.seat];
    renew(this.place, [model.outcome, model.seat, model.default], () => [
      element("span", { class: `badge is-${model.outcome.replace(":", "-")}` }, model.outcome),
      ` ${seat ?? OUTCOMES[model.outcome] ?? ""}`,
      model.default ? element("span", { class: "quiet" }, " · the default") : null,
    ].filter((node) => node !== null));
    say(
      this.words,
      `${model.architecture}, context ${count(model.context)}, K/V ${model.kv_dtype}, ` +
        `${counted(model.streams, "stream")} at most${model.device ? `, ${model.device}` : ""}`,
    );
    say(this.decline, model.decline ? `Not on the GPU: ${model.decline}` : "");
    this.decline.hidden = !model.decline;
    say(this.streams, streams(model));
    this.generated.update(this.history.generated);
    this.first.update(this.history.first);
    this.gap.update(this.history.gap);
    renew(this.room, [model.regions, model.pages], () => room(model));
    this.buttons?.update(model, state);
  }
}

function streams(model) {
  const parts = [`${count(model.running)} running`, `${count(model.waiting)} waiting`];
  if (model.paused) parts.push(`${count(model.paused)} paused for slow clients`);
  if (model.preempted) parts.push(`${count(model.preempted)} waiting for K/V`);
  return parts.join(", ");
}

function room(model) {
  if (model.regions.length) return [regions(model)];
  const { used, cached, free, total } = model.pages;
  if (total === 0) return [];
  const parts = [
    { name: "used", value: used, words: count(used) },
    { name: "cached", value: cached, words: count(cached) },
    { name: "free", value: free, words: count(free) },
  ];
  return [
    bar("K/V pages", parts, total),
    element("p", { class: "quiet" }, `K/V pages: ${parts.map((part) => `${part.words} ${part.name}`).join(", ")}`),
  ];
}

/** Shows the models. commands: makes the buttons of a card; null where nothing may be changed. */
export class Models {
  constructor(commands) {
    this.commands = commands;
    this.cards = new Map();
  }

  update(state) {
    const place = byId("models");
    const names = state.models.map((model) => model.id);
    for (const [id, card] of this.cards) {
      if (!names.includes(id)) {
        card.node.remove();
        this.cards.delete(id);
      }
    }
    state.models.forEach((model, at) => {
      let card = this.cards.get(model.id);
      if (!card) {
        card = new Card(model.id, this.commands);
        this.cards.set(model.id, card);
        place.insertBefore(card.node, place.children[at] ?? null);
      }
      card.update(model, state);
    });
    renew(byId("idle"), [state.loading, state.unloaded, names.length], () => this.others(state));
  }

  others(state) {
    const lines = state.loading.map((id) => element("p", { class: "loading" }, `${id} is being loaded …`));
    if (state.unloaded.length) {
      const names = state.unloaded.flatMap((id, at) => [at ? " · " : "", id, this.commands?.load(id) ?? ""]);
      lines.push(element("p", { class: "quiet" }, "Not loaded: ", ...names));
    }
    if (!lines.length && !state.models.length) lines.push(element("p", {}, "No model is loaded."));
    return lines;
  }
}
