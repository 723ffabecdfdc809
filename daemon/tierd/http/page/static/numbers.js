// Numbers as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export function count(value) {
  return whole.format(value);
}

/** "1 stream", "2 streams". */
export function counted(value, noun) {
  return `${whole.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function rate(value) {
  return value < 10 ? tenths.format(value) : whole.format(value);
}

/** Bytes in MiB or GiB. */
export function bytes(value) {
  const mib = value / 2 ** 20;
  return mib < 1024 ? `${tenths.format(mib)} MiB` : `${tenths.format(mib / 1024)} GiB`;
}

/** Seconds, from microseconds of a fast phase to the days of an uptime. */
export function duration(seconds) {
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${tenths.format(seconds * 1000)} ms`;
  if (seconds < 60) return `${tenths.format(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}
