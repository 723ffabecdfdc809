// A small chat, over the same API as any other client.

import { byId, element, say } from "./dom.js";
import { duration, rate } from "./numbers.js";

export class Chat {
  constructor() {
    this.messages = [];
    this.abort = null;
    const text = byId("chat-text");
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (text.value.trim() && !this.abort) this.send(text.value.trim());
    });
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        byId("chat-form").requestSubmit();
      }
    });
    byId("chat-stop").addEventListener("click", () => this.abort?.abort());
    byId("chat-clear").addEventListener("click", () => this.clear());
  }

  update(state) {
    byId("chat").hidden = false;
    byId("chat-key-label").hidden = !state.guarded;
    const select = byId("chat-model");
    const names = state.models.map((model) => model.id);
    if (JSON.stringify(names) !== JSON.stringify([...select.options].map((option) => option.value))) {
      const chosen = names.includes(select.value) ? select.value : state.models.find((model) => model.default)?.id;
      select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
      if (chosen) select.value = chosen;
    }
    this.away = new Set(state.models.filter((model) => model.seat === "away" || model.seat === "arriving").map((model) => model.id));
    if (this.abort && !this.begun && this.away.has(select.value)) {
      say(byId("chat-figures"), `${select.value} is on its way to the GPU …`);
    }
  }

  clear() {
    this.abort?.abort();
    this.messages = [];
    byId("talk").replaceChildren();
    say(byId("chat-figures"), "");
    byId("chat-text").focus();
  }

  async send(text) {
    const model = byId("chat-model").value;
    this.messages.push({ role: "user", content: text });
    byId("chat-text").value = "";
    show("You", "user").append(text);
    const answer = show(model, "assistant");
    this.begun = false;
    this.abort = new AbortController();
    byId("chat-send").disabled = true;
    byId("chat-stop").hidden = false;
    say(byId("chat-figures"), "waiting …");
    const asked = this.messages;
    try {
      const said = await this.stream(model, answer);
      if (this.messages === asked) this.messages.push({ role: "assistant", content: said });
    } catch (error) {
      if (this.messages === asked) this.messages.pop();
      const words = error.name === "AbortError" ? "Stopped." : error.message;
      answer.append(element("p", { class: "warn" }, words));
      say(byId("chat-figures"), "");
    } finally {
      this.abort = null;
      byId("chat-send").disabled = false;
      byId("chat-stop").hidden = true;
    }
  }

  /** Ask for an answer and write it as it comes; return its text. */
  async stream(model, answer) {
    const headers = { "Content-Type": "application/json" };
    const key = byId("chat-key").value.trim();
    if (key) headers.Authorization = `Bearer ${key}`;
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers,
      signal: this.abort.signal,
      body: JSON.stringify({ model, messages: this.messages, stream: true, stream_options: { include_usage: true } }),
    });
    if (!response.ok) {
      const told = await response.json().catch(() => ({}));
      throw new Error(told.error?.message ?? `The daemon answered with status ${response.status}.`);
    }
    let said = "";
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.reasoning_content) thought(answer).append(delta.reasoning_content);
      if (delta.content) {
        said += delta.content;
        answer.append(delta.content);
      }
      if (!this.begun && (delta.content || delta.reasoning_content)) {
        this.begun = true;
        say(byId("chat-figures"), "writing …");
      }
      if (chunk.timings) figures(chunk.timings);
      answer.closest(".talk").scrollTop = answer.closest(".talk").scrollHeight;
    }
    return said;
  }
}

/** Go through the events of a stream. */
async function* events(body) {
  let rest = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function show(name, role) {
  const text = element("div", { class: "said" });
  byId("talk").append(element("div", { class: `turn is-${role}` }, element("span", { class: "who" }, name), text));
  byId("talk").scrollTop = byId("talk").scrollHeight;
  return text;
}

/** Return where thoughts go, which stand before the answer, folded up. */
function thought(answer) {
  const known = answer.querySelector(".thought");
  if (known) return known;
  const text = element("div", { class: "thought" });
  answer.append(element("details", {}, element("summary", {}, "Thoughts"), text));
  return text;
}

function figures(timings) {
  const cached = timings.cache_n ? `, ${timings.cache_n} tokens known` : "";
  say(
    byId("chat-figures"),
    `${timings.predicted_n} tokens, ${rate(timings.predicted_per_second)} per second, ` +
      `prompt read in ${duration(timings.prompt_ms / 1000)}${cached}`,
  );
}
