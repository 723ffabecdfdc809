// The GPU: what it is, who has how much of it, or why there is none.

import { bar } from "./charts.js";
import { byId, element, renew } from "./dom.js";
import { bytes, counted, duration } from "./numbers.js";

export function showDevice(state) {
  const device = state.device;
  const retry = device.retry_s === null ? null : Math.ceil(device.retry_s);
  renew(byId("device"), [{ ...device, retry_s: retry }, state.bank], () =>
    device.device ? there(device, state.bank) : [element("p", {}, missing(device, retry)), kept(state.bank)],
  );
}

function there(device, bank) {
  const taken = Object.entries(device.reservations).map(([name, value]) => ({ name, value }));
  const names = taken.map(({ name, value }) => `${name} ${bytes(value)}`).join(", ") || "nobody";
  const { used, free, budget } = device.memory;
  return [
    element("p", {}, element("strong", {}, device.device), ` ${device.products}`),
    bar(
      "Memory of the GPU",
      [
        { name: "used", value: used, words: bytes(used) },
        { name: "free", value: free, words: bytes(free) },
      ],
      budget,
    ),
    element("p", { class: "quiet" }, `${bytes(used)} of ${bytes(budget)} taken: ${names}.`),
    device.faults === 0
      ? null
      : element("p", { class: "warn" }, `Given up ${counted(device.faults, "time")}, last: ${device.fault}`),
    kept(bank),
  ].filter((node) => node !== null);
}

function missing(device, retry) {
  const again = retry === null ? "" : ` It is tried again in ${duration(retry)}.`;
  return `No GPU serves: ${device.reason || "none was asked for"}.${again} Models run on the CPU.`;
}

function kept(bank) {
  const dropped = bank.dropped ? `; ${counted(bank.dropped, "conversation")} had to make room` : "";
  return element(
    "p",
    { class: "quiet" },
    `Bank of K/V in the host's memory: ${bytes(bank.used)} of ${bytes(bank.limit)}, ` +
      `${counted(bank.entries, "conversation")}${dropped}.`,
  );
}
