// Line charts in SVG: a fixed box, nice ticks, a cross-hair with the values under the pointer or moved by the arrow keys.
// A gap in the data is a gap in the line. Latency has a logarithmic axis, because its tail matters.

import { fill, part, setAttr, setText, stamp, svg } from './dom.js';

// The frame around the plot, in pixels of a page whose letters are 16 pixels high.
const [LEFT, RIGHT, TOP, BOTTOM] = [66, 8, 8, 20];

/** Ticks of a linear axis from 0: at most five, at 1, 2 or 5 times a power of the base's steps. */
function linearTicks(top, base) {
  let unit = 1;
  while (top / unit >= base) unit *= base;
  const raw = top / unit / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw) * unit;
  const ticks = [];
  for (let n = 0; ticks.length < 7; n += 1) {
    ticks.push(n * step);
    if (n * step >= top) break;
  }
  return ticks;
}

/** Whole decades around the values. */
function decades(least, most) {
  const from = Math.floor(Math.log10(Math.max(1, least)));
  const to = Math.max(from + 1, Math.ceil(Math.log10(Math.max(1, most))));
  return Array.from({ length: to - from + 1 }, (_, n) => 10 ** (from + n));
}

/** Seconds between the ticks of a time axis of this length. */
function timeStep(seconds, room) {
  const steps = [30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200];
  return steps.find((step) => seconds / step <= room) ?? 86400;
}

export class Chart {
  /** An empty chart at the end of `parent`. */
  constructor(parent, title) {
    this.node = stamp('chart');
    parent.append(this.node);
    fill(this.node, { title });
    this.plot = part(this.node, 'plot');
    this.title = title;
    this.data = null;
    this.cursor = null;
    this.zoom = 1;
    this.plot.addEventListener('pointermove', (event) => this.point(event.clientX - this.plot.getBoundingClientRect().left));
    this.plot.addEventListener('pointerleave', () => this.pick(null));
    this.plot.addEventListener('blur', () => this.pick(null));
    this.plot.addEventListener('keydown', (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /**
   * `data`: times in unix seconds, a sample every `periodS`, the axis from `nowS - spanS` to `nowS`; lines: [{label, values}] with null
   * for none; `shown` writes a value in units that step by `base`.
   */
  show(data) {
    this.data = data;
    setText(part(this.node, 'unit'), data.unit);
    const legend = part(this.node, 'legend');
    const labels = data.lines.map((line) => line.label).join('|');
    if (legend.labels !== labels) {
      legend.labels = labels;
      legend.replaceChildren(...data.lines.map((line, n) => {
        const entry = document.createElement('span');
        entry.append(svg('svg', { viewBox: '0 0 26 10' }, svg('line', { x1: 0, y1: 5, x2: 26, y2: 5, class: `curve s${n}` })), line.label);
        return entry;
      }));
    }
    this.draw();
  }

  /** The sample nearest to a place on the plot. */
  point(x) {
    if (!this.data || this.data.times.length === 0) return;
    const at = this.data.nowS - this.data.spanS * (1 - (x - this.left()) / this.room());
    const { times } = this.data;
    let best = 0;
    for (let n = 1; n < times.length; n += 1) {
      if (Math.abs(times[n] - at) < Math.abs(times[best] - at)) best = n;
    }
    this.pick(times[best]);
  }

  key(event) {
    const times = this.data?.times ?? [];
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || times.length === 0) return;
    event.preventDefault();
    const now = this.cursor === null ? times.length : times.indexOf(this.cursor);
    this.pick(times[Math.min(times.length - 1, Math.max(0, now + step))]);
  }

  /** Moves the cross-hair to the sample of this time; none: away. It stays with its time as samples come. */
  pick(time) {
    if (this.cursor === time) return;
    this.cursor = time;
    this.draw();
  }

  left() {
    return LEFT * this.zoom;
  }

  room() {
    return Math.max(10, this.plot.clientWidth - this.left() - RIGHT);
  }

  draw() {
    const data = this.data;
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    if (!data || width === 0) return;
    this.zoom = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
    const left = this.left();
    const all = data.lines.flatMap((line) => line.values).filter((value) => value !== null);
    const most = all.reduce((a, b) => Math.max(a, b), 0);
    const least = all.reduce((a, b) => Math.min(a, b), Infinity);
    const ticks = data.isLog ? decades(Number.isFinite(least) ? least : 1e3, most || 1e6) : linearTicks(most || data.base * 4, data.base);
    const [low, high] = [ticks[0], ticks[ticks.length - 1]];
    const bottom = height - BOTTOM * this.zoom;
    const depth = bottom - TOP;
    const share = (value) => (data.isLog ? Math.log10(Math.max(low, value) / low) / Math.log10(high / low) : value / high);
    const y = (value) => TOP + depth * (1 - share(value));
    const x = (time) => left + this.room() * (1 - (data.nowS - time) / data.spanS);
    const picture = svg('svg', { width, height });
    for (const tick of ticks) {
      picture.append(svg('line', { class: 'grid', x1: left, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
      picture.append(svg('text', { x: left - 6, y: y(tick) + 4, 'text-anchor': 'end' }, data.shown(tick)));
    }
    picture.append(...this.timeAxis(x, height));
    data.lines.forEach((line, n) => picture.append(svg('path', { class: `curve s${n}`, d: this.path(line.values, x, y) })));
    this.values(picture, x, y, bottom);
    this.plot.replaceChildren(picture);
  }

  timeAxis(x, height) {
    const { nowS, spanS } = this.data;
    const step = timeStep(spanS, this.room() / (75 * this.zoom));
    const zone = new Date().getTimezoneOffset() * 60;
    const marks = [];
    for (let at = Math.floor((nowS - zone) / step) * step + zone; at > nowS - spanS; at -= step) {
      if (x(at) < this.left() + 16 || x(at) > this.left() + this.room() - 16) continue;
      const clock = new Date(at * 1000).toLocaleTimeString([], { hour12: false, hour: '2-digit', minute: '2-digit', ...(step < 60 ? { second: '2-digit' } : {}) });
      marks.push(svg('text', { x: x(at), y: height - 5, 'text-anchor': 'middle' }, clock));
    }
    return marks;
  }

  /** The line through the values; it ends where a sample is missing. A lone sample is a dash. */
  path(values, x, y) {
    const { times, periodS, nowS, spanS } = this.data;
    let path = '';
    let last = null;
    values.forEach((value, n) => {
      if (value === null || times[n] < nowS - spanS) {
        last = null;
        return;
      }
      const isJoined = last !== null && times[n] - last <= periodS * 2.5;
      const at = `${x(times[n]).toFixed(1)} ${y(value).toFixed(1)}`;
      path += isJoined ? `L${at}` : `M${at}h.1`;
      last = times[n];
    });
    return path;
  }

  /** The values at the cross-hair, or the newest ones. */
  values(picture, x, y, bottom) {
    const { times, lines, shown } = this.data;
    const picked = this.cursor === null ? -1 : times.indexOf(this.cursor);
    const at = picked >= 0 ? picked : times.length - 1;
    const text = (value) => (value === null ? 'none' : shown(value));
    const list = lines.map((line) => `${line.label} ${at < 0 ? 'none' : text(line.values[at])}`).join(', ');
    const when = at < 0 ? '' : new Date(times[at] * 1000).toLocaleTimeString([], { hour12: false });
    setText(part(this.node, 'values'), at < 0 ? 'no samples yet' : `${picked >= 0 ? 'at' : 'last,'} ${when}: ${list}`);
    setAttr(this.plot, 'aria-label', `${this.title}: ${list}. Arrow keys move through time.`);
    if (picked < 0) return;
    picture.append(svg('line', { class: 'cross', x1: x(times[at]), x2: x(times[at]), y1: TOP, y2: bottom }));
    lines.forEach((line, n) => {
      if (line.values[at] !== null) picture.append(svg('circle', { class: `dot s${n}`, cx: x(times[at]), cy: y(line.values[at]), r: 3.5 }));
    });
  }
}
