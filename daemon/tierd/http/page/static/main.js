// Asks the daemon once a second how it stands, and shows it. Nothing is asked while nobody looks.

import { Chat } from "./chat.js";
import { Commands } from "./commands.js";
import { showDevice } from "./device.js";
import { byId, say } from "./dom.js";
import { Models } from "./models.js";
import { counted, duration } from "./numbers.js";
import { showPasses, showStreams } from "./streams.js";
import { showSwitches } from "./switches.js";

const EVERY_MS = 1000;
const LONGEST_MS = 10000;

let token = "";
let commands = null;
let chat = null;
let models = null;
let pause = EVERY_MS;

function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { cache: "no-store", ...options, headers });
}

function tell(words) {
  say(byId("notice"), words);
  byId("notice").hidden = !words;
}

function health(kind, words) {
  byId("health").dataset.kind = kind;
  say(byId("health-words"), words);
}

function show(state) {
  if (models === null) {
    if (state.admin) commands = new Commands(ask, tell);
    else chat = new Chat();
    byId("links").hidden = state.admin;
    models = new Models(commands);
  }
  say(byId("version"), `${state.version}, up for ${duration(state.uptime_s)}`);
  const running = state.models.reduce((sum, model) => sum + model.running, 0);
  if (state.draining) health("warn", state.draining);
  else if (state.models.length) health("good", `${counted(state.models.length, "model")}, ${counted(running, "stream")}`);
  else health("warn", state.loading.length ? "loading" : "no model is ready");
  showDevice(state);
  models.update(state);
  showSwitches(state);
  showStreams(state);
  showPasses(state);
  commands?.update(state);
  chat?.update(state);
}

async function look() {
  const response = await ask("page/state.json").catch(() => null);
  byId("token-form").hidden = response?.status !== 401;
  if (response?.status === 401) {
    if (token) tell("That is not the admin token.");
    token = "";
    health("warn", "asks for the admin token");
  } else if (response?.ok) {
    show(await response.json());
    pause = EVERY_MS;
  } else {
    health("bad", "the daemon does not answer");
    pause = Math.min(2 * pause, LONGEST_MS);
  }
}

async function follow() {
  if (!document.hidden && byId("token-form").hidden) await look();
  setTimeout(follow, pause);
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  tell("");
  look();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && byId("token-form").hidden) look();
});
follow();
