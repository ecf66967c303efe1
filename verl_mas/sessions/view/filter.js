// Filters and search. Nothing here touches the page.

const NO_FILTER = Object.freeze({
  text: "", partition: "", agent: "", policy: "", stepFrom: null, stepTo: null, rewardFrom: null, rewardTo: null,
  malformed: false, fault: false, uniform: false, mixed: false, noted: false,
});

/** The words of a query; what is in double quotes is one word. */
function wordsOf(query) {
  const found = [];
  for (const match of query.toLowerCase().matchAll(/"([^"]*)"?|(\S+)/g)) {
    const word = (match[1] ?? match[2]).trim().replace(/\s+/g, " ");
    if (word) found.push(word);
  }
  return found;
}

/** All texts are one: a search is a few passes over it. Line n is the text of session n. */
function openSearch(text, count) {
  const starts = new Int32Array(count + 1);
  let place = 0;
  for (let number = 0; number < count; number++) {
    starts[number] = place;
    const end = text.indexOf("\n", place);
    place = end < 0 ? text.length + 1 : end + 1;
  }
  starts[count] = text.length + 1;
  return { text, starts, count };
}

/** 1 for every session that has all the words; null without words. */
function searched(search, query) {
  const words = wordsOf(query);
  if (!words.length || !search) return null;
  let hits = null;
  for (const word of words.sort((a, b) => b.length - a.length)) {
    const found = new Uint8Array(search.count);
    let number = 0, place = search.text.indexOf(word);
    while (place >= 0) {
      number = lineAt(search.starts, place, number);
      if (!hits || hits[number]) found[number] = 1;
      place = search.text.indexOf(word, search.starts[number + 1]);
    }
    hits = found;
  }
  return hits;
}

/** The line with this place, at or behind line `from`: lines that have a word are often near. */
function lineAt(starts, place, from) {
  let low = from, step = 1;
  while (low + step < starts.length && starts[low + step] <= place) { low += step; step *= 2; }
  let high = Math.min(low + step, starts.length - 1);
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= place) low = middle; else high = middle;
  }
  return low;
}

/** The sessions that pass all filters, in the order of the index. `hits` is what `searched` gave. */
function filtered(run, wanted, hits) {
  const { columns, sets } = run;
  const agent = run.agents.indexOf(wanted.agent), policy = run.policies.indexOf(wanted.policy);
  const withAgent = sets.map((set) => set.includes(agent));
  const withPolicy = sets.map((set) => set.includes(policy));
  const filled = sets.map((set) => set.length > 0);
  const from = wanted.rewardFrom ?? -Infinity, to = wanted.rewardTo ?? Infinity;
  const bounded = wanted.rewardFrom !== null || wanted.rewardTo !== null;
  const found = new Int32Array(run.count);
  let length = 0;
  for (let number = 0; number < run.count; number++) {
    if (hits && !hits[number]) continue;
    if (wanted.partition && (wanted.partition === "val") !== Boolean(run.validation[number])) continue;
    if (wanted.stepFrom !== null && run.step[number] < wanted.stepFrom) continue;
    if (wanted.stepTo !== null && run.step[number] > wanted.stepTo) continue;
    // A comparison with NaN is false: a session without a reward is outside every range.
    if (bounded && !(run.reward[number] >= from && run.reward[number] <= to)) continue;
    if (wanted.agent && !withAgent[columns.agents[number]]) continue;
    if (wanted.policy && !withPolicy[columns.policies[number]]) continue;
    if (wanted.malformed && !(wanted.agent ? withAgent : filled)[columns.malformed[number]]) continue;
    if (wanted.noted && !run.notes[nameOf(run, number)]) continue;
    if (wanted.fault && !filled[columns.faults[number]]) continue;
    const uniform = run.groups.uniform[run.group[number]];
    if (wanted.uniform && !uniform) continue;
    if (wanted.mixed && uniform) continue;
    found[length++] = number;
  }
  return found.subarray(0, length);
}

/** In the order of the list. The sort is stable, so that equal ones stay in the order of the run. */
function ordered(run, sessions, order) {
  if (order === "oldest") return sessions;
  if (order === "newest") {
    const blocks = [];
    let start = 0;
    for (let place = 1; place <= sessions.length; place++) {
      if (place === sessions.length || run.block[sessions[place]] !== run.block[sessions[start]]) {
        blocks.unshift(sessions.subarray(start, place));
        start = place;
      }
    }
    const made = new Int32Array(sessions.length);
    let length = 0;
    for (const block of blocks) { made.set(block, length); length += block.length; }
    return made;
  }
  const keys = order === "longest" ? run.tokens : run.reward;
  const sign = order === "lowest" ? 1 : -1;
  const value = (number) => (Number.isNaN(keys[number]) ? Infinity : sign * keys[number]);
  return sessions.slice().sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a - b));
}
