// What an administrator may do from here. Each button asks the admin API and tells how that ended.

import { byId, element } from "./dom.js";

export class Commands {
  /** ask: sends a request to the admin API; tell: shows a line. */
  constructor(ask, tell) {
    this.ask = ask;
    this.tell = tell;
    this.running = new Set();
    byId("commands").hidden = false;
    byId("drain").addEventListener("click", () => {
      if (confirm("Admit no more requests, until “Admit again”?")) this.run("Draining", "drain", {});
    });
    byId("resume").addEventListener("click", () => this.run("Admitting again", "resume", {}));
  }

  update(state) {
    byId("drain").disabled = state.draining !== "" || this.running.has("drain");
    byId("resume").disabled = state.draining === "" || this.running.has("resume");
  }

  /** Return the buttons of a model's card. */
  buttons(id) {
    const activate = element("button", { type: "button", onclick: () => this.run(`Bringing ${id} to the GPU`, "models/activate", { model: id }) }, "Bring to the GPU");
    const unload = element(
      "button",
      {
        type: "button",
        onclick: () => {
          if (confirm(`Unload ${id}? Its streams may end first; its K/V is not kept.`)) {
            this.run(`Unloading ${id}`, "models/unload", { model: id });
          }
        },
      },
      "Unload",
    );
    const update = (model) => {
      activate.hidden = model.seat === "";
      activate.disabled = model.seat !== "away" || this.running.size > 0;
      unload.disabled = this.running.size > 0;
    };
    return { node: element("div", { class: "commands" }, activate, unload), update };
  }

  /** Return the button that loads a model. */
  load(id) {
    return element("button", { type: "button", class: "small", "aria-label": `Load ${id}`, onclick: () => this.run(`Loading ${id}`, "models/load", { id }) }, "Load");
  }

  async run(words, path, body) {
    if (this.running.has(path)) return;
    this.running.add(path);
    this.tell(`${words} …`);
    try {
      const response = await this.ask(path, {
        method: "POST",
        headers: { "Content-Type": "application/json", Prefer: "wait=600" },
        body: JSON.stringify(body),
      });
      const told = await response.json().catch(() => ({}));
      this.tell(response.ok ? `${words}: done.` : `${words}: ${told.error?.message ?? `status ${response.status}`}`);
    } catch {
      this.tell(`${words}: the daemon did not answer.`);
    } finally {
      this.running.delete(path);
    }
  }
}
