// Numbers, times and states as words. The wording follows the command line, which is rendered from the same documents.

const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
const DECIMAL = ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB'];
let isDecimal = false;

export function useUnits(name) {
  isDecimal = name === 'decimal';
}

export function unitBase() {
  return isDecimal ? 1000 : 1024;
}

/** A size: three significant digits, in the chosen units. */
export function bytes(n) {
  const [names, base] = isDecimal ? [DECIMAL, 1000] : [BINARY, 1024];
  let at = 0;
  while (n >= base && at < names.length - 1) {
    n /= base;
    at += 1;
  }
  return `${at === 0 ? Math.round(n) : digits(n)} ${names[at]}`;
}

/** A count: three significant digits and k, M. */
export function count(n) {
  const steps = [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
  const step = steps.find(([size]) => n >= size);
  return step ? `${digits(n / step[0])} ${step[1]}` : String(Math.round(n));
}

/** A latency. */
export function latency(ns) {
  const steps = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];
  const [size, name] = steps.find(([least]) => ns >= least) ?? steps[3];
  return `${digits(ns / size)} ${name}`;
}

/** Three significant digits, cut and not rounded, as the command line does: what is free is never said to be more. */
function digits(n) {
  if (Number.isInteger(n) || n >= 100) return String(Math.floor(n));
  const places = n >= 10 ? 1 : 2;
  return (Math.floor(n * 10 ** places + 1e-6) / 10 ** places).toFixed(places);
}

/** Seconds: the two largest units. */
export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const parts = [[Math.floor(s / 86400), 'd'], [Math.floor(s / 3600) % 24, 'h'], [Math.floor(s / 60) % 60, 'min'], [s % 60, 's']];
  const first = parts.findIndex(([n]) => n > 0);
  if (first < 0) return '0 s';
  return parts.slice(first, first + 2).filter(([n]) => n > 0).map(([n, unit]) => `${n} ${unit}`).join(' ');
}

/** A moment in local time: the clock alone if it is of the last 20 hours, else with its day. */
export function moment(unixSeconds, nowSeconds) {
  const at = new Date(unixSeconds * 1000);
  const clock = at.toLocaleTimeString([], { hour12: false });
  if (Math.abs(nowSeconds - unixSeconds) < 72000) return clock;
  return `${at.toLocaleDateString([], { year: 'numeric', month: 'short', day: 'numeric' })} ${clock}`;
}

export function plural(n, noun) {
  return n === 1 ? `1 ${noun}` : `${n} ${noun}s`;
}

/** An enum's word as people read it. */
export function word(name) {
  return String(name).replaceAll('_', ' ');
}

export function level(name) {
  return word(name).replace('raid', 'RAID ');
}

/** How bad, worst first as the command line sorts; what nobody can say comes before all. */
export function rank(health) {
  return { ok: 0, warning: 1, critical: 2 }[health] ?? 3;
}

// A member's or drive's state: how bad it is, and a sign that is not a colour.
const STATES = {
  in_sync: ['ok', '✓'], rebuilding: ['warning', '↻'], failed: ['critical', '✗'], missing: ['critical', '∅'],
  stale: ['warning', '!'], conflict: ['critical', '≠'],
  free: ['unknown', '○'], member: ['ok', '✓'], claimed: ['warning', '◐'], used: ['unknown', '■'], held: ['unknown', '■'],
};

export function stateOf(name) {
  const [health, glyph] = STATES[name] ?? ['unknown', '?'];
  return { health, glyph, word: word(name) };
}

/** How far a long operation is, as the command line says it. */
export function progress(job) {
  const what = job.slot === null ? word(job.operation) : `${word(job.operation)} of slot ${job.slot}`;
  if (job.total_bytes === 0) return { what, detail: 'starting' };
  const rate = job.rate_bytes_per_s === null ? 'rate unknown' : `${bytes(job.rate_bytes_per_s)}/s`;
  const eta = job.eta_s === null ? 'time to go unknown' : `${span(job.eta_s)} to go`;
  return { what, detail: `${bytes(job.done_bytes)} of ${bytes(job.total_bytes)}, ${rate}, ${eta}` };
}
