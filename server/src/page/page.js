// The page: asks the daemon what its state is, shows it worst first, and says so when the daemon does not answer.
//
// Nothing here judges: health, WHY, RISK, NEXT and CODE come from the status document, word for word as the command line
// prints them. The page only reads (GET), and only from where it came from.

import { favicon, fill, keyed, part, setAttr, setIcon, setText, stamp } from './dom.js';
import { History } from './history.js';
import { bytes, level, moment, plural, progress, rank, span, stateOf, useUnits, word } from './text.js';

const ANSWER_MS_MAX = 5000;
const HIDDEN_MS = 10000;
const EVENTS_MAX = 100;
const MARKS = { ok: '✓', warning: '⚠', critical: '✖', unknown: '?' };

const $ = (id) => document.getElementById(id);
const shown = { status: null, atMs: 0, lostSince: null, drives: null, disks: null, events: [], newestEvent: 0, changeKey: '' };
const history = new History($('charts'), $('chart-note'), $('subject'));

/** The document behind a path of the API. */
async function ask(path) {
  const answer = await fetch(path, { cache: 'no-store', credentials: 'omit', signal: AbortSignal.timeout(ANSWER_MS_MAX) });
  const envelope = await answer.json();
  if (!envelope.ok) throw new Error(envelope.error?.message ?? `${path}: status ${answer.status}`);
  return envelope.data;
}

/** The daemon's clock now, in unix seconds. */
function now() {
  if (!shown.status) return Date.now() / 1000;
  return shown.status.daemon.now_unix_s + (performance.now() - shown.atMs) / 1000;
}

// ---- Health

function showState(health, text, summary) {
  const state = $('state');
  setAttr(document.body, 'data-health', health);
  setAttr(state, 'data-health', health);
  setIcon(part(state, 'icon'), health);
  fill(state, { word: text, summary });
  const title = `${MARKS[health]} ${text} · warpraid`;
  if (document.title !== title) {
    document.title = title;
    $('favicon').href = favicon(health);
  }
}

/** The worst in one line, as `warpraid health` says it. */
function summary(status) {
  const worst = status.problems[0];
  if (worst) {
    const more = status.problems.length > 1 ? ` (and ${plural(status.problems.length - 1, 'more problem')})` : '';
    return `${worst.group ?? 'warpraid'}: ${worst.why}; ${worst.risk}${more}`;
  }
  const drives = status.groups.reduce((sum, group) => sum + group.members.length, 0);
  return status.groups.length === 0 ? 'no groups' : `${plural(status.groups.length, 'group')} healthy, ${plural(drives, 'drive')}`;
}

function showProblems(problems) {
  $('problems-s').hidden = problems.length === 0;
  const keyOf = (one) => JSON.stringify([one.code, one.group, one.slot, one.drive]);
  keyed($('problems'), problems, keyOf, makeProblem, (node, one) => {
    setAttr(node, 'data-health', one.health);
    setIcon(part(node, 'icon'), one.health);
    const serial = one.serial === null ? '' : `serial ${one.serial}`;
    const since = one.since_unix_s === null ? '' : `since ${moment(one.since_unix_s, now())}, ${span(now() - one.since_unix_s)} ago`;
    fill(node, {
      health: one.health.toUpperCase(),
      subject: one.group === null ? '' : `group ${one.group}`,
      since: [serial, since].filter(Boolean).join(', '),
      why: one.why, risk: one.risk, next: one.next, code: one.code,
    });
    setAttr(part(node, 'copy'), 'aria-label', `Copy the command: ${one.next}`);
  });
}

function makeProblem(one) {
  const node = stamp('problem');
  part(node, 'copy').addEventListener('click', () => copy(part(node, 'next'), part(node, 'copy')));
  part(node, 'more').addEventListener('toggle', () => explain(node, one.code));
  return node;
}

/** Copies a command, without the remark that may stand behind it. */
async function copy(from, button) {
  const command = from.textContent.replace(/\s{2,}\(.*\)$/, '');
  try {
    await navigator.clipboard.writeText(command);
    button.textContent = 'Copied';
  } catch {
    // Only a page from a loopback address or https may use the clipboard: the text is selected instead.
    getSelection().selectAllChildren(from);
    button.textContent = 'Selected';
  }
  setTimeout(() => { button.textContent = 'Copy'; }, 2000);
}

async function explain(node, code) {
  if (!part(node, 'more').open || node.isExplained) return;
  fill(node, { explain: 'asking the daemon' });
  try {
    const told = await ask(`/v1/explain/${encodeURIComponent(code)}`);
    fill(node, { explain: explained(told) });
    node.isExplained = true;
  } catch (error) {
    fill(node, { explain: `no explanation: ${error.message}` });
  }
}

function explained(told) {
  const steps = told.steps.map((step, n) => `${n + 1}. ${step}`);
  return [told.title, '', told.means, `Risk: ${told.risks}`, ...steps, `Example: ${told.example}`].join('\n');
}

// ---- Groups

function losses(group) {
  if (group.state === 'offline') return 'no service';
  if (group.state === 'stopped') return 'not running';
  return group.state === 'healthy' ? `can lose ${group.tolerates}` : `can lose ${group.tolerates} more`;
}

function showGroups(groups) {
  const sorted = [...groups].sort((a, b) => rank(b.health) - rank(a.health));
  setText($('groups-n'), groups.length === 0 ? '' : String(groups.length));
  $('groups-none').hidden = groups.length > 0;
  keyed($('groups'), sorted, (group) => group.uuid, () => stamp('group'), (node, group) => {
    setAttr(node, 'data-health', group.health);
    setIcon(part(node, 'icon'), group.health);
    const inSync = group.members.filter((member) => member.state === 'in_sync').length;
    const all = group.members.length;
    const used = group.capacity_bytes - group.free_bytes;
    const percent = group.capacity_bytes === 0 ? 0 : Math.round((used / group.capacity_bytes) * 100);
    fill(node, {
      name: group.name, level: level(group.level), state: word(group.state), losses: losses(group),
      shape: [
        inSync === all ? plural(all, 'drive') : `${inSync} of ${all} drives in sync`,
        group.chunk_bytes > 0 && `chunk ${bytes(group.chunk_bytes)}`, plural(group.disks.length, 'disk'),
      ].filter(Boolean).join(', '),
      capacity: `${bytes(used)} of ${bytes(group.capacity_bytes)} cut into disks, ${bytes(group.free_bytes)} free (${percent} % used)`,
    });
    setAttr(part(node, 'meter'), 'aria-label', `${percent} % of the group is cut into disks`);
    part(node, 'bar').style.width = `${percent}%`;
    keyed(part(node, 'slots'), group.members, (member) => member.slot, () => stamp('slot'), showSlot);
    showJobs(part(node, 'jobs'), jobsOf(group));
  });
}

function showSlot(node, member) {
  const state = stateOf(member.state);
  setAttr(node, 'data-health', state.health);
  const percent = member.progress ? ` ${member.progress.percent} %` : '';
  fill(node, { slot: String(member.slot), glyph: state.glyph, word: member.progress ? `${member.progress.operation}${percent}` : state.word });
  const drive = [member.drive ?? 'no drive', member.serial && `serial ${member.serial}`, member.why].filter(Boolean).join(', ');
  const link = part(node, 'link');
  setAttr(link, 'title', `slot ${member.slot}: ${state.word}${percent}; ${drive}`);
  setAttr(link, 'aria-label', `slot ${member.slot}: ${state.word}${percent}; ${drive}`);
  link.onclick = (event) => {
    const row = [...$('drives').children].find((one) => one.itemKey === member.drive);
    if (!row) return;
    event.preventDefault();
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: 'center' });
    row.classList.add('hit');
    setTimeout(() => row.classList.remove('hit'), 3000);
  };
}

/** Whatever runs on a group; a rebuild is listed with its member and with the group, and counts once. */
function jobsOf(group) {
  const all = [...group.members.map((member) => member.progress).filter(Boolean), ...group.progress];
  const keyOf = (job) => `${job.operation} ${job.slot}`;
  return all.filter((job, n) => all.findIndex((one) => keyOf(one) === keyOf(job)) === n).map((job) => ({ ...job, group: group.name }));
}

function showJobs(list, jobs, isNamed = false) {
  keyed(list, jobs, (job) => `${job.group} ${job.operation} ${job.slot}`, () => stamp('job'), (node, job) => {
    const { what, detail } = progress(job);
    fill(node, { what: isNamed ? `${job.group}: ${what}` : what, percent: `${job.percent} %`, detail });
    const bar = part(node, 'bar');
    bar.value = job.percent;
    setAttr(bar, 'aria-label', `${job.group}: ${what}`);
  });
}

function showActivity(groups) {
  const jobs = groups.flatMap(jobsOf);
  setText($('jobs-n'), jobs.length === 0 ? '' : String(jobs.length));
  $('jobs-none').hidden = jobs.length > 0;
  showJobs($('jobs'), jobs, true);
}

// ---- Disks, drives, events

function showDisks() {
  const { disks } = shown;
  if (!disks) return;
  setText($('disks-n'), disks.length === 0 ? '' : String(disks.length));
  [$('disks-none').hidden, $('disks-t').hidden] = [disks.length > 0, disks.length === 0];
  keyed($('disks'), disks, (disk) => disk.uuid, () => stamp('disk'), (node, disk) => {
    const served = disk.exposures.map((one) => one.uri + (one.read_only ? ' (read-only)' : ''));
    const clients = disk.exposures.flatMap((one) => one.clients);
    fill(node, {
      name: `${disk.group}/${disk.name}`, size: bytes(disk.size_bytes), served: served.join(', ') || 'not served',
      clients: clients.length === 0 ? 'none' : `${clients.length}: ${clients.join('; ')}`,
    });
  });
}

function showDrives() {
  if (!shown.drives) return;
  // A drive that cannot be read and is of no group is nobody's emergency.
  const isOurs = (drive) => drive.group !== null || drive.errors.commands > 0;
  const worst = (drive) => (isOurs(drive) ? ({ failed: 4, claimed: 1 }[drive.state] ?? 0) : 0) + (drive.errors.commands > 0 ? 2 : 0);
  const drives = [...shown.drives].sort((a, b) => worst(b) - worst(a));
  setText($('drives-n'), drives.length === 0 ? '' : String(drives.length));
  [$('drives-none').hidden, $('drives-t').hidden] = [drives.length > 0, drives.length === 0];
  keyed($('drives'), drives, (drive) => drive.path, () => stamp('drive'), (node, drive) => {
    const state = stateOf(drive.state);
    setAttr(part(node, 'state'), 'data-health', drive.state === 'failed' && !isOurs(drive) ? 'unknown' : state.health);
    const by = drive.holders.length > 0 ? `by ${drive.holders.join(', ')}` : '';
    fill(node, {
      path: drive.path, state: `${state.glyph} ${state.word}`, by: drive.state === 'held' ? by : '',
      member: drive.group === null ? '' : `${drive.group}${drive.slot === null ? '' : `, slot ${drive.slot}`}`,
      serial: drive.serial ?? '', model: drive.model ?? word(drive.kind), size: bytes(drive.size_bytes),
      errors: String(drive.errors.commands), numa: drive.numa_node === null ? '' : String(drive.numa_node),
    });
  });
}

/** The newest events come first; what was shown stays. */
function showEvents(data) {
  const fresh = data.events.filter((event) => event.id > shown.newestEvent);
  // The numbers of a daemon that lost its record begin again.
  if (data.newest_id < shown.newestEvent) [shown.events, shown.newestEvent] = [[], 0];
  if (fresh.length > 0) shown.newestEvent = fresh[fresh.length - 1].id;
  shown.events = [...fresh.reverse(), ...shown.events].slice(0, EVENTS_MAX);
  drawEvents();
}

function drawEvents() {
  $('events-none').hidden = shown.events.length > 0;
  keyed($('events'), shown.events, (event) => event.id, () => stamp('event'), (node, event) => {
    setAttr(node, 'data-health', event.severity);
    setIcon(part(node, 'icon'), event.severity);
    fill(node, { time: moment(event.at_unix_s, now()), severity: `${event.severity}: `, text: event.message, code: event.code });
    setAttr(part(node, 'time'), 'title', `event ${event.id}, ${span(now() - event.at_unix_s)} ago`);
  });
}

// ---- What is asked, and when

function showStatus(status) {
  shown.status = status;
  shown.atMs = performance.now();
  if (shown.version !== undefined && shown.version !== status.daemon.version) location.reload();
  shown.version = status.daemon.version;
  const text = status.health.toUpperCase();
  showState(status.health, status.health === 'ok' && status.groups.length > 0 ? 'HEALTHY' : text, summary(status));
  announce(status);
  drawStatus();
  history.groups(status.groups);
  const key = JSON.stringify(status.groups.map((group) => [group.uuid, group.epoch.id, group.state, group.disks]));
  if (shown.changeKey !== key) {
    shown.changeKey = key;
    for (const one of [disks, drives]) one.dueMs = 0;
  }
}

/** Everything that depends on the status, the clock or the units. */
function drawStatus() {
  const { status } = shown;
  if (!status) return;
  showProblems(status.problems);
  showGroups(status.groups);
  showActivity(status.groups);
  const { version, pid, started_unix_s: started } = status.daemon;
  setText($('daemon'), `${version}, pid ${pid}, up ${span(now() - started)}`);
}

/** Tells a screen reader of a change of health, and only of that. */
function announce(status) {
  const key = JSON.stringify([status.health, status.problems.map((one) => [one.code, one.group, one.slot])]);
  if (key === shown.announced) return;
  shown.announced = key;
  setText($('announce'), `Health is ${status.health}. ${summary(status)}`);
}

function isHeard() {
  if (shown.lostSince !== null) {
    shown.lostSince = null;
    shown.announced = null;
    document.documentElement.classList.remove('stale');
    setText($('alarm'), '');
    for (const one of FEEDS) one.dueMs = 0;
  }
  const pill = $('link');
  setAttr(pill, 'data-state', 'live');
  setText(pill, `live, ${new Date().toLocaleTimeString([], { hour12: false })}`);
}

function isLost(why) {
  if (shown.lostSince === null) {
    shown.lostSince = shown.heardMs ?? Date.now();
    setText($('alarm'), `The daemon cannot be reached: ${why}`);
  }
  document.documentElement.classList.add('stale');
  const since = moment(shown.lostSince / 1000, Date.now() / 1000);
  const was = shown.status ? ` What is below was true then. It was: ${shown.status.health}.` : '';
  showState('unknown', `DAEMON UNREACHABLE since ${since}`, `${span((Date.now() - shown.lostSince) / 1000)}: ${why}.${was} On its host: systemctl status warpraid`);
  setAttr($('link'), 'data-state', 'lost');
  setText($('link'), 'unreachable');
}

const status = { everyMs: 2000, ask: () => ask('/v1/status'), show: showStatus };
const disks = { everyMs: 5000, ask: () => ask('/v1/disks'), show: (data) => { shown.disks = data.disks; showDisks(); } };
const drives = { everyMs: 20000, ask: () => ask('/v1/drives'), show: (data) => { shown.drives = data.drives; showDrives(); } };
const samples = { get everyMs() { return history.everyMs(); }, ask: () => ask(history.path()), show: (data) => history.show(data) };
const events = { everyMs: 2000, ask: () => ask(`/v1/events?limit=${EVENTS_MAX}${shown.newestEvent > 0 ? `&after=${shown.newestEvent}` : ''}`), show: showEvents };
const FEEDS = [status, disks, drives, events, samples];

/** Asks once; a status that fails twice in a row means that the daemon is lost. */
async function feed(one) {
  one.isBusy = true;
  try {
    const data = await one.ask();
    if (one === status) {
      one.failures = 0;
      shown.heardMs = Date.now();
      isHeard();
    }
    one.show(data);
  } catch (error) {
    one.failures = (one.failures ?? 0) + 1;
    if (one === status && (one.failures > 1 || !shown.status)) {
      const why = error.name === 'TimeoutError' ? 'no answer within 5 s' : error instanceof TypeError ? 'no connection' : error.message;
      isLost(why);
    } else if (one !== status && shown.lostSince === null && error instanceof TypeError) {
      status.dueMs = 0;
    }
  }
  one.isBusy = false;
  const everyMs = one === status && one.failures === 1 ? 500 : one.everyMs;
  one.dueMs = performance.now() + (document.hidden ? Math.max(HIDDEN_MS, everyMs) : everyMs);
}

function turn() {
  for (const one of FEEDS) {
    const isWanted = one === status || (shown.lostSince === null && shown.status && !document.hidden);
    if (isWanted && !one.isBusy && performance.now() >= (one.dueMs ?? 0)) feed(one);
  }
  // Ages go on while nothing new arrives.
  if (shown.lostSince !== null) isLost($('alarm').textContent.replace('The daemon cannot be reached: ', ''));
}

function begin() {
  const units = $('units');
  try {
    units.value = localStorage.getItem('units') ?? 'binary';
  } catch { /* Storage may be switched off. */ }
  const useChosen = () => {
    useUnits(units.value);
    drawStatus();
    showDisks();
    showDrives();
    history.draw();
  };
  units.addEventListener('change', () => {
    try {
      localStorage.setItem('units', units.value);
    } catch { /* It holds for this visit, then. */ }
    useChosen();
  });
  useChosen();
  const rechart = () => { samples.dueMs = 0; history.choose(new FormData($('chart-tools')).get('range')); };
  $('chart-tools').addEventListener('change', rechart);
  $('chart-tools').addEventListener('submit', (event) => event.preventDefault());
  document.addEventListener('visibilitychange', () => { for (const one of FEEDS) one.dueMs = 0; turn(); });
  setIcon(part($('state'), 'icon'), 'unknown');
  setAttr($('state'), 'data-health', 'unknown');
  turn();
  setInterval(turn, 250);
}

begin();
