// The state of the page: the chosen session, the filters and the keys.

const byId = (id) => document.getElementById(id);
const verlMasView = new Store(document.documentElement.dataset.folder);
const shared = { unfolded: false, choose: (session) => choose(session), show, keepNote, link };
// `mode`: how a session is shown: alone (""), beside its group, or as the story of its task.
const page = { run: null, search: null, wanted: { ...NO_FILTER }, mode: "", version: null };
const list = new List(byId("list"), byId("rows"), (session) => leaveStory(session));
const curves = new Curves(byId("curves"), (step) => {
  if (!list.showStep(step)) return;
  const first = list.sessions.find((session) => page.run.step[session] === step);
  if (first !== undefined) leaveStory(first);
});
const MOST_BESIDE = 32, narrow = matchMedia("(max-width: 900px)");

async function open(fresh = false) {
  const run = page.run = openIndex(await verlMasView.json("index", fresh));
  page.search = null;
  describe();
  curves.open(run);
  apply();
  // Show the list before the searched texts have been loaded.
  const text = await unpack(await verlMasView.payload("search", fresh));
  if (page.run !== run) return;
  page.search = text.split("\n", run.count);
  if (page.wanted.text) apply();
}

function describe() {
  const { run } = page, steps = run.blocks.step;
  const of = steps.length ? `, steps ${Math.min(...steps)} to ${Math.max(...steps)}` : "";
  byId("about").textContent = `${grouped(run.count)} sessions${of}`;
  byId("about").title = plain(run.folder);
  byId("live").hidden = !run.live;
  const report = Object.entries(run.report);
  document.body.classList.toggle("report", report.length > 0);
  byId("report").hidden = !report.length;
  byId("report").replaceChildren(...report.map(([title, lines], place) => folded("", [make("b", "", title)], () => textBlock(lines.join("\n"), title.toLowerCase()), place < report.length - 1)));
  if (report.length) showCurves(true);
  options(byId("agent"), "all agents", run.agents);
  options(byId("policy"), "all policies", run.policies);
  byId("agents").replaceChildren(...run.agents.slice(0, 24).map((name, place) => {
    const chip = button("chip", name, () => change({ agent: page.wanted.agent === name ? "" : name }));
    set(chip, { "--of": agentColour(place), title: "Sessions with this agent" });
    return chip;
  }));
  byId("search").title = run.cut
    ? `Searched: question, answers, faults and replies; of ${grouped(run.cut)} long sessions the beginning and the end of each text`
    : "Searched: question, answers, faults and the whole text of every reply";
}

function options(select, all, names) {
  select.replaceChildren(...["", ...names].map((value) => set(make("option", "", value || all), { value })));
  select.hidden = names.length < 2;
}

// Apply the filters, and draw the remaining sessions.
function apply() {
  const { run, wanted } = page;
  const sessions = newestFirst(run, filtered(run, wanted, searched(page.search, wanted.text)));
  list.open(run, sessions);
  const filters = Object.keys(NO_FILTER).some((name) => wanted[name] !== NO_FILTER[name]);
  byId("count").textContent = filters ? `${grouped(sessions.length)} of ${grouped(run.count)} sessions` : `${grouped(run.count)} sessions`;
  byId("clear").hidden = !filters;
  document.querySelector("[data-toggle=noted]").hidden = !Object.values(run.notes).some(Boolean);
  byId("list").classList.toggle("none", !sessions.length);
  for (const chip of byId("agents").children) chip.setAttribute("aria-pressed", String(chip.textContent === plain(wanted.agent) && wanted.agent !== ""));
  for (const button of TOGGLES) button.setAttribute("aria-pressed", String(wanted[button.dataset.toggle]));
  for (const field of FIELDS) if (document.activeElement !== field) field.value = wanted[field.dataset.field] ?? "";
  if (list.chosen < 0 || !run.count) followAddress();
  else list.choose(list.chosen);
}

// The fields of the filters, and the buttons.
const FIELDS = [...document.querySelectorAll("[data-field]")], TOGGLES = [...document.querySelectorAll("[data-toggle]")];

function change(wanted) {
  Object.assign(page.wanted, wanted);
  byId("list").scrollTop = 0;
  apply();
}

function clear() {
  page.wanted = { ...NO_FILTER };
  for (const field of FIELDS) field.value = "";
  apply();
}

const NONE = { live: "The run has not finished a session yet.", 1: "No session was recorded.", 2: "The runs have no session of the same task at the same step." };

async function choose(session, keep = false, name = "") {
  const { run } = page, element = byId("session");
  document.body.classList.toggle("story", page.mode === "story");
  byId("story-toggle").setAttribute("aria-pressed", String(page.mode === "story"));
  if (session === undefined || session < 0 || session >= run.count) {
    const missing = name ? `The address names the session ${name}, which this page does not have: choose one from the list.` : "No session matches.";
    element.replaceChildren(make("p", "empty", run.count ? missing : NONE[run.live ? "live" : run.runs.length]));
    list.chosen = -1;
    return;
  }
  list.choose(session);
  curves.mark(run.step[session]);
  // In the frame of a notebook, the page has no address.
  if (location.protocol !== "about:") history.replaceState(null, "", addressOf(page.mode, session));
  const { mode } = page, rows = mode === "story" ? storyOf(run, session) : [mode ? groupMembers(run, session).slice(0, MOST_BESIDE) : [session]];
  const chunks = new Map(), load = async (number) => chunks.set(number, await verlMasView.chunk(run.chunks[run.columns.chunk[number]]).catch((error) => ({ error })));
  await Promise.all(rows.flat().filter((one) => one !== undefined).map(load));
  // Skip the session if another one was chosen while it was loaded.
  if (list.chosen === session && page.run === run && page.mode === mode) draw(element, session, rows, chunks, keep);
}

function draw(element, session, rows, chunks, keep) {
  const { run, mode } = page, beside = rows[0].length > 1 && mode === "beside", top = element.scrollTop, inside = element.contains(document.activeElement);
  let first;
  const cell = (number, numbers, place) => {
    if (number === undefined) return make("p", "none", `Run ${run.runs[place]} has no session of this task at this step.`);
    const transcript = new Transcript(make("div", number === session ? "transcript chosen" : "transcript"), run, shared);
    const bodies = numbers.map((one) => chunks.get(one)?.sessions?.[run.columns.place[one]]), { error, messages } = chunks.get(number);
    try {
      if (error) throw error;
      transcript.draw(number, bodies[place], messages, beside || mode === "story" ? mode : "", bodies[1 - place]);
      first ??= transcript;
    } catch (error) {
      // The other sessions can still be shown.
      transcript.element.replaceChildren(make("p", "empty bad", `This session cannot be shown: ${plain(error.message)}`));
    }
    return transcript.element;
  };
  const lines = rows.map((numbers) => {
    const cells = numbers.map((number, place) => cell(number, numbers, place));
    return make("div", mode === "story" ? "story-step" : "row-of-sessions", ...cells);
  });
  element.classList.toggle("beside", beside);
  const task = mode && first ? first.question(mode === "story") : "";
  if (mode === "story") element.replaceChildren(storyHead(session, rows), task, ...lines);
  else element.replaceChildren(...(beside ? [besideHead(session, rows[0].length), task, lines[0]] : lines[0].children));
  // The button that had the focus was replaced.
  if (inside) element.focus({ preventScroll: true });
  element.scrollTop = keep ? top : 0;
  if (beside) element.scrollLeft += element.querySelector(".transcript.chosen").getBoundingClientRect().left - element.getBoundingClientRect().left - 18;
}

// Send a note to the server of this page. Throws an error with the reason if it is not saved.
async function keepNote(session, text) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ session, text }) };
  const answer = await fetch("note", options).catch(() => { throw new Error("The note is not kept: start `verl-mas view --notes` again."); });
  const { error } = await answer.json();
  if (error) throw new Error(error);
  page.run.notes[session] = text.trim();
  apply();
}

function besideHead(session, count) {
  const { run } = page, all = groupMembers(run, session), task = make("span", "", `Task ${plain(run.groups.uid[run.group[session]])}`);
  const title = make("h2", "", task, make("span", "of", (count < all.length ? `the first ${count} of ` : "") + relation(run, all)));
  return make("header", "session-head", title, link("beside", session), button("quiet", "one session", () => show(""), "g"));
}

// The explanation above a story, for somebody who sees such a page for the first time.
function storyHead(session, rows) {
  const { run } = page, steps = rows.map((row) => run.step[row.find((one) => one !== undefined)]), [low, high] = run.rewards;
  const two = run.runs.length > 1, about = make("p", "of");
  const title = make("h2", "", `One task at ${steps.length > 1 ? `steps ${steps.slice(0, -1).join(", ")} and ${steps[steps.length - 1]}` : `step ${steps[0]}`}${two ? " of both runs" : ""}`);
  about.textContent = `Below the task: what each agent wrote at each of these steps of training, and the reward that it earned, from ${number(low)} to ${number(high)} here: more is better.`;
  if (run.groups.task[run.group[session]] === run.story) about.textContent += " It is a typical task: its rewards are nearest to the mean of all.";
  if (two) about.textContent += " Marked words are missing in the reply of the other run.";
  if (steps.length < 2) about.textContent += " No other step has a session of this task: a validation (trainer.test_freq) plays the same tasks again.";
  const moves = [button("quiet", "previous task", () => moveInGroup(-1), "h"), button("quiet", "next task", () => moveInGroup(1), "l")];
  const bar = make("div", "group", ...moves, button("quiet", "all sessions", () => show(""), "s"), link("story", session));
  return make("header", "story-head", title, about, bar);
}

function show(mode, session = list.chosen) {
  page.mode = mode;
  return choose(session);
}

const leaveStory = (session) => show(page.mode === "story" ? "" : page.mode, session);

// The fragment of an address: the mode and the name of the session.
function addressOf(mode, session) {
  return `#${encodeURIComponent((mode && `${mode}/`) + nameOf(page.run, session))}`;
}

function link(mode, session) {
  const title = "The address of this view. Its part from # on works for every copy of the page";
  return set(make("a", "quiet", "link"), { href: addressOf(mode, session), title });
}

// Show the session that the address names, or else the story of a task.
function followAddress() {
  let address = location.hash.slice(1);
  try { address = decodeURIComponent(address); } catch { /* a truncated escape stays as it is */ }
  const [, mode, name] = /^(?:(story|beside)\/)?(.*)$/s.exec(address);
  page.mode = name ? mode || "" : "story";
  return choose(name ? sessionNamed(page.run, name) : page.run.opens, false, name);
}

// Scroll by a number of acts, from the act at the top of the window.
function moveAct(by) {
  const acts = [...byId("session").querySelectorAll(".act, .branches")].filter((act) => !act.parentElement.closest(".branches"));
  const top = byId("session").getBoundingClientRect().top + 8;
  const here = acts.findLastIndex((act) => act.getBoundingClientRect().top <= top + 4);
  acts[Math.min(Math.max(here + by, 0), acts.length - 1)]?.scrollIntoView({ block: "start" });
}

function moveInGroup(by) {
  if (page.mode === "story") {
    const { run } = page, to = run.groupStart[run.group[list.chosen] + by];
    if (run.block[to] === run.block[list.chosen]) choose(to);
    return;
  }
  const members = groupMembers(page.run, list.chosen), place = members.indexOf(list.chosen) + by;
  if (place >= 0 && place < members.length) choose(members[place]);
}

function toggleFolds() {
  shared.unfolded = !shared.unfolded;
  // The collection is live: a fold that is opened can add more folds to it.
  const folds = byId("session").getElementsByTagName("details");
  for (let place = 0; place < folds.length; place++) folds[place].unfold(shared.unfolded);
}

function showCurves(shown) {
  document.body.classList.toggle("no-curves", !shown);
  byId("curves-toggle").setAttribute("aria-expanded", String(shown));
}

const toggleCurves = () => showCurves(document.body.classList.contains("no-curves"));

// Fold curves and filters on a narrow screen, so that the sessions come first.
function fold() {
  showCurves(!narrow.matches || document.body.classList.contains("report"));
  byId("more-filters").open = !narrow.matches;
}

const toggleStory = () => show(page.mode === "story" ? "" : "story");

const KEYS = {
  j: () => leaveStory(list.next(1)), k: () => leaveStory(list.next(-1)),
  h: () => moveInGroup(-1), l: () => moveInGroup(1),
  n: () => moveAct(1), p: () => moveAct(-1),
  g: () => show(page.mode === "beside" ? "" : "beside"), s: toggleStory, f: toggleFolds, c: toggleCurves,
  "/": () => { byId("search").focus(); byId("search").select(); },
  "?": () => byId("help").showModal(),
  Escape: () => clear(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open || !page.run) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape" || (event.key === "Enter" && event.target.id === "search")) event.target.blur();
    return;
  }
  const inList = event.target.id === "list", arrows = { ArrowDown: "j", ArrowUp: "k" };
  const action = KEYS[inList ? arrows[event.key] || event.key : event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

const numberOf = (text) => (text.trim() === "" || Number.isNaN(Number(text)) ? null : Number(text));
for (const field of FIELDS) {
  field.oninput = () => change({ [field.dataset.field]: field.type === "number" ? numberOf(field.value) : field.value });
}
for (const button of TOGGLES) button.onclick = () => change({ [button.dataset.toggle]: !page.wanted[button.dataset.toggle] });
byId("clear").onclick = clear;
narrow.onchange = fold;
fold();
byId("curves-toggle").onclick = toggleCurves;
byId("story-toggle").onclick = toggleStory;
byId("help-button").onclick = () => byId("help").showModal();
addEventListener("hashchange", () => {
  if (page.run && location.hash.length > 1) followAddress();
});

// Poll the version of a page whose run trains, and open the index again when it has changed.
async function follow() {
  try {
    // Do not replace a note that is being written.
    const writes = [...document.querySelectorAll("textarea")].some((area) => area.value !== area.defaultValue || area === document.activeElement);
    const version = writes ? page.version : await verlMasView.payload("live", true);
    if (page.version !== null && version !== page.version) {
      const name = list.chosen >= 0 ? nameOf(page.run, list.chosen) : "", top = byId("list").scrollTop, before = page.run.count;
      list.chosen = -1;
      await open(true);
      const again = name ? sessionNamed(page.run, name) : -1;
      if (again >= 0) await choose(again, true);
      byId("list").scrollTop = top;
      byId("live").textContent = `live, ${grouped(page.run.count - before)} new`;
    }
    page.version = version;
    byId("live").classList.remove("bad");
  } catch {
    byId("live").classList.add("bad");
    byId("live").textContent = "not followed any more";
  }
  setTimeout(follow, 2000);
}

open().then(() => { if (page.run.live) follow(); }).catch((error) => {
  byId("session").replaceChildren(make("p", "empty bad", `This page cannot be shown: ${plain(error.message)}`));
});
