// Filters and search, without access to the page.

const NO_FILTER = Object.freeze({
  text: "", partition: "", agent: "", policy: "", stepFrom: null, stepTo: null, rewardFrom: null, rewardTo: null,
  malformed: false, fault: false, uniform: false, mixed: false, noted: false,
});

// The words of a query. Text in double quotes is one word.
function wordsOf(query) {
  const found = [];
  for (const match of query.toLowerCase().matchAll(/"([^"]*)"?|(\S+)/g)) {
    const word = (match[1] ?? match[2]).trim().replace(/\s+/g, " ");
    if (word) found.push(word);
  }
  return found;
}

// 1 for every session whose text has all words, else 0; null without words.
function searched(lines, query) {
  const words = wordsOf(query);
  if (!words.length || !lines) return null;
  return Uint8Array.from(lines, (line) => words.every((word) => line.includes(word)));
}

// The sessions that pass all filters, in the order of the index. `hits`: the result of `searched`.
function filtered(run, wanted, hits) {
  const { columns } = run;
  const from = wanted.rewardFrom ?? -Infinity, to = wanted.rewardTo ?? Infinity;
  const bounded = wanted.rewardFrom !== null || wanted.rewardTo !== null;
  const found = new Int32Array(run.count);
  let length = 0;
  for (let number = 0; number < run.count; number++) {
    if (hits && !hits[number]) continue;
    if (wanted.partition && wanted.partition !== run.blocks.partition[run.block[number]]) continue;
    if (wanted.stepFrom !== null && run.step[number] < wanted.stepFrom) continue;
    if (wanted.stepTo !== null && run.step[number] > wanted.stepTo) continue;
    // A comparison with NaN is false: a session without a reward is outside every range.
    if (bounded && !(run.reward[number] >= from && run.reward[number] <= to)) continue;
    if (wanted.agent && !columns.agents[number].includes(wanted.agent)) continue;
    if (wanted.policy && !columns.policies[number].includes(wanted.policy)) continue;
    const malformed = columns.malformed[number];
    if (wanted.malformed && !(wanted.agent ? malformed.includes(wanted.agent) : malformed.length)) continue;
    if (wanted.noted && !run.notes[nameOf(run, number)]) continue;
    if (wanted.fault && !columns.faults[number].length) continue;
    const uniform = run.groups.uniform[run.group[number]];
    if (wanted.uniform && !uniform) continue;
    if (wanted.mixed && uniform) continue;
    found[length++] = number;
  }
  return found.subarray(0, length);
}

// The last step first. Sessions of a step keep their order.
function newestFirst(run, sessions) {
  return sessions.slice().sort((a, b) => run.block[b] - run.block[a] || a - b);
}
