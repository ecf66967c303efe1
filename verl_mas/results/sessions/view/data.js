"use strict";
// Data of the page. Payloads are gzip in base64, so that no text of a model becomes markup or script.

async function unpack(payload) {
  const binary = atob(payload);
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const MOST_CHUNKS = 40;

// Payloads by name, from the page itself or from scripts in the folder next to it.
class Store {
  constructor(folder) {
    this.folder = folder;
    this.waiting = new Map();
    this.chunks = new Map();
  }

  // Called by the scripts in the folder.
  arrive(name, payload) {
    this.waiting.get(name)?.(payload);
  }

  payload(name, fresh = false) {
    if (!this.folder) {
      const element = document.querySelector(`script[data-name="${name}"]`);
      return element ? Promise.resolve(element.textContent) : Promise.reject(new Error(`${name} is not in this page`));
    }
    const script = document.createElement("script");
    script.src = `${encodeURIComponent(this.folder)}/${name}.js${fresh ? `?${Date.now()}` : ""}`;
    return new Promise((resolve, reject) => {
      this.waiting.set(name, resolve);
      script.onerror = () => reject(new Error(`${this.folder}/${name}.js cannot be read; keep it beside this page`));
      document.head.append(script);
    }).finally(() => script.remove());
  }

  async json(name, fresh) {
    return JSON.parse(await unpack(await this.payload(name, fresh)));
  }

  // Load a chunk of sessions. The last chunks that were loaded stay in memory.
  chunk(name) {
    if (!this.chunks.has(name)) {
      const made = this.json(name);
      made.catch(() => this.chunks.delete(name));
      this.chunks.set(name, made);
      if (this.chunks.size > MOST_CHUNKS) this.chunks.delete(this.chunks.keys().next().value);
    }
    return this.chunks.get(name);
  }
}

// Add typed arrays for the filters to the index. A session is identified by its number in the index.
function openIndex(index) {
  const { columns, blocks, groups } = index;
  const count = columns.session.length;
  const run = Object.assign({}, index, {
    count,
    step: new Int32Array(count),
    block: new Int32Array(count),
    group: new Int32Array(count),
    reward: Float64Array.from(columns.reward, (value) => (value === null ? NaN : value)),
  });
  fill(run.block, blocks.size);
  run.block.forEach((block, number) => { run.step[number] = blocks.step[block]; });
  run.groupStart = fill(run.group, groups.size);
  const known = run.reward.filter((value) => !Number.isNaN(value));
  run.rewards = known.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [0, 0]);
  if (run.rewards[0] === run.rewards[1]) run.rewards[1] = run.rewards[0] + 1;
  const told = run.groupStart[groups.task.indexOf(index.story)];
  run.opens = told === undefined ? -1 : storyOf(run, told).at(-1).find((one) => one !== undefined);
  return run;
}

// Write each number as often as its size says; return where each number begins.
function fill(numbers, sizes) {
  let next = 0;
  return sizes.map((size, number) => {
    const first = next;
    next += size;
    numbers.fill(number, first, next);
    return first;
  });
}

// A lone surrogate, which an address cannot contain.
const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

// The name of a session in an address. It stays the same when the page is written again.
function nameOf(run, number) {
  const block = run.block[number];
  const mark = run.blocks.run[block], parts = [run.blocks.partition[block], run.blocks.step[block], run.groups.uid[run.group[number]], run.columns.session[number]];
  return (mark ? [mark, ...parts] : parts).join("/").replace(LONE, "?");
}

function sessionNamed(run, name) {
  return run.step.findIndex((_, number) => nameOf(run, number) === name);
}

const STORY = 4;

// The sessions of a task at its first step, its last step and two between: per step one of each run, or undefined.
function storyOf(run, number) {
  const { task } = run.groups, { session } = run.columns, marks = run.runs, steps = new Map();
  task.forEach((one, group) => {
    if (one !== task[run.group[number]]) return;
    const first = run.groupStart[group], found = steps.get(run.step[first]) || marks.map(() => undefined);
    found[marks.indexOf(run.blocks.run[run.block[first]])] ??= groupMembers(run, first).find((member) => session[member] === session[number]) ?? first;
    steps.set(run.step[first], found);
  });
  const rows = [...steps.values()], whole = rows.filter((row) => row.every((one) => one !== undefined)), told = whole.length ? whole : rows;
  const places = Array.from({ length: STORY }, (_, part) => Math.round((part * (told.length - 1)) / (STORY - 1)));
  return [...new Set(places)].map((place) => told[place]);
}

// The sessions of a task in a step.
function groupMembers(run, number) {
  const group = run.group[number], first = run.groupStart[group];
  return Array.from({ length: run.groups.size[group] }, (_, place) => first + place);
}
