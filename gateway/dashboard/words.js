// How figures, ages and states are said. Pure: the time of asking is an argument.

const GROUPED = new Intl.NumberFormat();
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** "3 min" of seconds, in the largest unit that fits; "—" where nothing is known. */
export function span(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "—";
  for (const [size, name] of UNITS) {
    if (seconds >= size || size === 1) return `${Math.max(0, Math.floor(seconds / size))} ${name}`;
  }
}

/** "3 min ago" of two instants in Unix milliseconds. */
export function ago(then, now) {
  return then ? `${span((now - then) / 1000)} ago` : "never";
}

/** Wall-clock time of day, as the browser's owner writes it. */
export function clock(ms) {
  return ms ? new Date(ms).toLocaleTimeString() : "—";
}

/** 1.5 GiB */
export function bytes(count) {
  if (!count) return count === 0 ? "0" : "—";
  const power = Math.min(4, Math.floor(Math.log2(count) / 10));
  const value = count / 1024 ** power;
  return `${value >= 100 || power === 0 ? Math.round(value) : value.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** Three significant figures; thousands are grouped, what is next to nothing is nothing. */
export function figure(value) {
  if (value == null || !Number.isFinite(value)) return "—";
  if (Math.abs(value) < 1e-6) return "0";
  if (Math.abs(value) >= 100) return GROUPED.format(Math.round(value));
  return String(Number(value.toPrecision(3)));
}

export function percent(share) {
  return share == null || !Number.isFinite(share) ? "—" : `${(100 * share).toFixed(1)} %`;
}

/** 48 % of 0.48, for where there is little room. */
export function share(part) {
  return part == null || !Number.isFinite(part) ? "—" : `${Math.round(100 * part)} %`;
}

/** 12 ms of seconds; "—" where nothing is known. */
export function delay(seconds) {
  if (!(seconds > 0)) return "—";
  return seconds < 1 ? `${figure(Math.max(1, Math.round(1000 * seconds)))} ms` : `${figure(seconds)} s`;
}

/** Ids are 40 characters; ten tell machines apart. */
export function short(id) {
  return (id || "").slice(0, 10) || "—";
}

export function plural(count, one, many = `${one}s`) {
  return `${figure(count)} ${count === 1 ? one : many}`;
}

/** Order and shape of the states of a machine: what people care for comes first; shape and word tell them apart, colour only helps. */
export const NODE_STATES = {
  active: { shape: "●", tone: "good", means: "works" },
  probation: { shape: "◐", tone: "good", means: "works; young, so more of its work is checked" },
  joining: { shape: "○", tone: "calm", means: "attached, not usable yet" },
  rehab: { shape: "◇", tone: "calm", means: "back after a quarantine: its work is checked and does not count" },
  draining: { shape: "▽", tone: "calm", means: "leaving politely" },
  suspect: { shape: "▲", tone: "warn", means: "silent or doubtful" },
  quarantined: { shape: "■", tone: "bad", means: "gets no work" },
  offline: { shape: "✕", tone: "calm", means: "gone" },
};

export function shapeOf(state) {
  return NODE_STATES[state] || { shape: "?", tone: "calm", means: "unknown" };
}
