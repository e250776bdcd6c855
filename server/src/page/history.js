// The charts over time: which subject and range is shown, and the history document as four charts.

import { Chart } from './chart.js';
import { bytes, count, latency, unitBase } from './text.js';
import { keyed, setAttr, setText } from './dom.js';

const RANGES = { '5m': { spanS: 300, everyMs: 2000 }, '1h': { spanS: 3600, everyMs: 10000 }, '24h': { spanS: 86400, everyMs: 60000 } };

export class History {
  constructor(parent, note, subject) {
    this.charts = ['Throughput', 'Operations', 'Latency', 'Capacity'].map((title) => new Chart(parent, title));
    [this.note, this.subject, this.range, this.data] = [note, subject, '5m', null];
  }

  everyMs() {
    return RANGES[this.range].everyMs;
  }

  path() {
    return `/v1/history?range=${this.range}${this.subject.value}`;
  }

  choose(range) {
    this.range = range;
  }

  /** What there is to choose from: the daemon, every group, every disk. */
  groups(groups) {
    const query = (group, disk) => `&group=${encodeURIComponent(group)}${disk === undefined ? '' : `&disk=${encodeURIComponent(disk)}`}`;
    const options = [{ value: '', text: 'the whole daemon' }, ...groups.flatMap((group) => [
      { value: query(group.name), text: `group ${group.name}` },
      ...group.disks.map((disk) => ({ value: query(group.name, disk), text: `disk ${group.name}/${disk}` })),
    ])];
    const make = () => document.createElement('option');
    keyed(this.subject, options, (option) => option.value, make, (node, option) => {
      setAttr(node, 'value', option.value);
      setText(node, option.text);
    });
  }

  show(data) {
    this.data = data;
    this.draw();
  }

  draw() {
    if (!this.data) return;
    const { period_s: periodS, now_unix_s: nowS, series } = this.data;
    const one = series[0] ?? { at_unix_s: [] };
    const times = one.at_unix_s;
    const line = (label, name) => ({ label, values: one[name] ?? [] });
    const common = { times, periodS, nowS, spanS: RANGES[this.data.range].spanS, base: 1000, isLog: false };
    const [throughput, operations, latencies, capacity] = this.charts;
    const perSecond = (n) => `${bytes(n)}/s`;
    throughput.show({ ...common, base: unitBase(), unit: unitBase() === 1024 ? 'binary bytes a second' : 'decimal bytes a second', shown: perSecond,
      lines: [line('read', 'read_bytes_per_s'), line('write', 'write_bytes_per_s')] });
    operations.show({ ...common, unit: 'requests a second', shown: count, lines: [line('read', 'read_ops_per_s'), line('write', 'write_ops_per_s')] });
    latencies.show({ ...common, isLog: true, unit: 'of a request, logarithmic', shown: latency,
      lines: [line('read p50', 'read_p50_ns'), line('read p99', 'read_p99_ns'), line('write p50', 'write_p50_ns'), line('write p99', 'write_p99_ns')] });
    capacity.show({ ...common, base: unitBase(), unit: unitBase() === 1024 ? 'binary bytes' : 'decimal bytes', shown: bytes,
      lines: [line('cut into disks', 'used_bytes'), line('in all', 'capacity_bytes')] });
    setText(this.note, `a sample every ${periodS} s`.replace('every 300 s', 'every 5 min'));
  }
}
