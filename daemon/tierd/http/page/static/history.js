// What the page remembers of each model: the daemon tells totals, the page makes rates of them.

const KEPT = 90; // samples, one a second

/** Rates of one model: tokens generated per second, mean seconds to a first token and between tokens. */
export class History {
  constructor() {
    this.generated = [];
    this.first = [];
    this.gap = [];
    this.before = null;
  }

  /** Take in a model's totals. seconds: when they were true, by the daemon's clock. */
  add(totals, seconds) {
    const before = this.before;
    if (before !== null && seconds <= before.seconds) return;
    this.before = { totals, seconds };
    if (before === null || totals.generated < before.totals.generated) return;
    const since = (name) => totals[name] - before.totals[name];
    const mean = (sum, number) => (since(number) > 0 ? since(sum) / since(number) : null);
    keep(this.generated, since("generated") / (seconds - before.seconds));
    keep(this.first, mean("first_token_s", "first_tokens"));
    keep(this.gap, mean("gap_s", "gaps"));
  }
}

/** Return the last value that is one. */
export function latest(values) {
  return values.findLast((value) => value !== null) ?? null;
}

function keep(values, value) {
  values.push(value);
  if (values.length > KEPT) values.shift();
}
