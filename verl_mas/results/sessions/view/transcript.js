// The transcript of a session, alone or beside others.

// Twelve agents have different colours; further agents repeat them.
function agentColour(agent) {
  return `var(--a${agent % 12})`;
}

const MOST_TOKENS = 20000, MOST_MARKED = 8000;

// The caption of the sessions of a group.
function relation(run, members) {
  return `${members.length} sessions of this task${run.groups.uniform[run.group[members[0]]] ? ", all with one reward" : ""}`;
}

class Transcript {
  constructor(element, run, shared) {
    this.element = element;
    this.run = run;
    // State that all transcripts share, and the functions of the page.
    this.shared = shared;
  }

  // Draw a session. `messages`: those of its chunk; `mode`: "", "beside" or "story"; `other`: in a story of two runs, the
  // session of the other run.
  draw(number, session, messages, mode, other) {
    Object.assign(this, { number, session, messages, other, brief: mode === "story" });
    this.seen = new Map();
    this.narrow = mode !== "";
    const { narrow } = this, found = document.createDocumentFragment(), task = this.question(), facts = this.facts();
    if (narrow) found.append(...this.head(), ...(this.brief ? [] : [facts]));
    else { task.append(facts); found.append(...this.head(), task); }
    found.append(...this.faults(), make("div", "acts", ...this.parts()), this.brief ? "" : this.outcome());
    this.element.replaceChildren(found);
  }

  head() {
    const { session, run, narrow, number: mine } = this, title = make("h2");
    const mark = run.blocks.run[run.block[mine]], label = `${mark && `run ${mark}, `}step ${session.step}${this.brief ? (session.step || session.partition === "train" ? "" : ", before training") : `, session ${session.session}`}`;
    if (narrow) title.append(button("quiet", label, () => this.shared.show("", mine)));
    else title.append(make("span", "", mark ? `Run ${mark}, step ${session.step}` : `Step ${session.step}`), make("span", `part ${session.partition}`, session.partition), make("span", "of", `task ${plain(session.uid)}, session ${session.session}`), this.shared.link("", mine));
    const facts = make("p", "facts");
    const add = (text, className = "") => facts.append(make("span", className, text));
    if (session.status !== "finished") add(session.status, "badge bad");
    add(`${session.acts.length} acts`);
    add(`${grouped(run.columns.tokens[mine])} tokens sampled`);
    add(seconds(session.seconds));
    if (!narrow && session.started > 1e9) add(new Date(session.started * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }));
    const reward = make("div", "big-reward", make("b", "", number(session.outcome.reward)), make("span", "", "reward"));
    return [make("header", "session-head", reward, title, this.brief ? this.facts() : facts), this.note(), ...(narrow ? [] : [this.group()])];
  }

  // The note on the session. If the page comes from a server, the note can be edited.
  note() {
    const { notes } = this.run, name = nameOf(this.run, this.number);
    if (this.narrow || !("notes" in document.documentElement.dataset)) {
      return notes[name] ? make("section", "note", make("b", "role", "note"), textBlock(notes[name])) : "";
    }
    const placeholder = "A note on this session. It is kept when you leave the field.", said = make("output", "of");
    const area = set(make("textarea", "", notes[name]), { placeholder, "aria-label": "Note", maxLength: 4000, rows: 2 });
    area.onchange = () => this.shared.keepNote(name, area.value).then(() => { area.defaultValue = area.value; said.textContent = "kept"; said.className = "of"; })
      .catch((error) => { said.textContent = plain(error.message); said.className = "bad"; });
    return make("section", "note", area, said);
  }

  // The sessions of the same task in this step, with their rewards.
  group() {
    const { run } = this, members = groupMembers(run, this.number);
    if (members.length < 2) return make("div", "group");
    const strip = make("div", "strip", ...members.map((member) => {
      const one = button(member === this.number ? "member chosen" : "member", meter(run, member), () => this.shared.choose(member));
      const title = `session ${run.columns.session[member]}: reward ${number(run.reward[member])}`;
      set(one, { title, "aria-label": title });
      return one;
    }));
    return make("div", "group", make("span", "of", relation(run, members)), strip, button("quiet", "beside each other", () => this.shared.show("beside"), "g"));
  }

  // `whole`: add the expected answer, for a task above several sessions.
  question(whole = false) {
    const { task } = this.session, box = make("section", "task");
    const messages = task.messages.map((place) => this.messages[place]);
    messages.forEach((message, place) => {
      this.seen.set(`task ${contentOf(message)}`, true);
      const last = place === messages.length - 1;
      box.append(last ? this.message(message, "asked") : this.fold("message", [make("b", "", `task · ${plain(message.role)}`), this.snippet(message)], () => this.message(message, "")));
    });
    if (whole) box.append(this.facts(["expected", "source"]));
    return box;
  }

  facts(wanted = this.narrow ? ["answer"] : ["expected", "answer", "source"]) {
    const { task, outcome } = this.session, facts = make("dl", "truth");
    const pair = (name, value) => {
      if (value === null || value === undefined || value === "") return;
      const text = plain(typeof value === "string" ? value : JSON.stringify(value)).slice(0, 2000);
      facts.append(make("div", "", make("dt", "", name), set(make("dd", "", text), AUTO)));
    };
    const values = { expected: task.ground_truth, answer: outcome.answer, source: task.data_source };
    for (const name of wanted) pair(name, values[name]);
    return facts.children.length ? facts : "";
  }

  faults() {
    return this.session.faults.map((fault) => {
      const where = fault.agent ? `${plain(fault.agent)}, turn ${fault.turn}` : "between acts";
      const title = make("b", "", `${plain(fault.kind)} fault in attempt ${fault.attempt + 1}, ${where}`);
      const box = make("section", "fault", title, textBlock(fault.cause, "cause"));
      if (fault.traceback) box.append(this.fold("traceback", [make("span", "", "traceback")], () => textBlock(fault.traceback)));
      return box;
    });
  }

  // The acts in order: candidates of an act beside each other, probes folded, boards after their acts.
  parts() {
    const found = [], places = new Map(), { acts } = this.session;
    acts.forEach((act, place) => {
      if (this.brief && (act.probe || !act.committed)) return;
      const key = act.probe ? `probe ${act.line}` : `${act.agent} ${act.instance} ${act.turn} ${act.line}`;
      if (!places.has(key)) { places.set(key, { probe: act.probe, line: act.line, acts: [] }); found.push(places.get(key)); }
      places.get(key).acts.push({ act, place });
    });
    const boards = (!this.brief && this.session.boards) || [];
    const boardsAfter = (place) => boards.filter((board) => (board.after ?? -1) === place).map((board) => this.board(board));
    return [...boardsAfter(-1), ...found.flatMap((part) => [this.part(part), ...part.acts.flatMap(({ place }) => boardsAfter(place))])];
  }

  part({ probe, line, acts }) {
    if (probe) {
      return this.fold("probe", [make("b", "", `probe of ${plain(line)}`), make("span", "of", `${acts.length} acts, not trained on`)], () => acts.map(({ act }) => this.act(act)));
    }
    const branches = new Set(acts.map(({ act }) => act.branch)).size > 1;
    if (!branches) {
      const all = acts.map(({ act }) => this.act(act));
      return all.length === 1 ? all[0] : make("div", "several", ...all);
    }
    const { act } = acts[0], colour = { "--of": agentColour(this.run.agents.indexOf(act.agent)) };
    const head = [this.who(act, `${acts.length} candidates`), ...this.prompt(act)];
    const candidates = acts.map(({ act: one }) => this.candidate(one));
    const columns = this.narrow ? make("div", "several", ...candidates) : set(make("div", "columns", ...candidates), { tabIndex: 0 });
    return set(make("section", "branches", ...head, columns), colour);
  }

  // A candidate that is not committed is folded if there is little room.
  candidate(act) {
    if (!this.narrow || act.committed) return this.act(act, true);
    const summary = [make("b", "", `candidate ${act.branch}`), this.credit(act)];
    return this.fold("other", summary, () => this.act(act, true));
  }

  who(act, more = "") {
    const instance = act.instance && !String(act.agent).endsWith(`_${act.instance}`) ? ` ${act.instance}` : "";
    const name = make("b", "agent", plain(act.agent) + instance);
    const about = [`turn ${act.turn}`, act.policy && `policy ${act.policy}`, act.role !== act.agent && act.role, more];
    return make("div", "who", name, ...(this.brief ? [] : about.filter(Boolean).map((text) => make("span", "of", text))));
  }

  act(act, candidate = false) {
    const box = set(make("section", "act"), { "--of": agentColour(this.run.agents.indexOf(act.agent)) });
    const head = candidate ? make("div", "who") : this.who(act);
    if (candidate) head.append(make("b", "", `candidate ${act.branch}`));
    if (candidate || act.branch) {
      if (!candidate) head.append(make("span", "of", `branch ${act.branch}`));
      if (act.committed) head.append(make("span", "badge good", "✓ committed"));
      box.classList.toggle("committed", act.committed);
      box.classList.toggle("other", !act.committed);
    }
    if (act.malformed !== null && act.malformed !== undefined) head.append(make("span", "badge bad", "malformed"));
    if (act.stop_reason === "length") head.append(make("span", "badge", "cut at its length"));
    if (act.trainable === false) head.append(make("span", "badge", "not trained"));
    if (act.probe) head.append(make("span", "badge", "probe"));
    head.append(this.credit(act));
    box.append(head);
    if (!candidate) box.append(...this.prompt(act));
    if (act.malformed) box.append(set(make("p", "reason", plain(act.malformed).slice(0, 600)), AUTO));
    if (this.brief) box.append(...this.told(act));
    else box.append(...this.reply(act), this.numbers(act));
    return box;
  }

  // The reply, with marks on words that the same act of the other run lacks.
  told(act) {
    const same = this.other?.acts.find((one) => one.committed && ["agent", "instance", "turn", "line"].every((name) => one[name] === act[name]));
    if (!same) return [textBlock(act.text, "reply")];
    const most = Math.max(act.text.length, same.text.length);
    return most <= MOST_MARKED ? [differing(act.text, same.text)] : [textBlock(act.text, "reply"), make("p", "none", `Differences are not marked, because a reply has more than ${grouped(MOST_MARKED)} characters.`)];
  }

  // Reward and advantage. Side and colour of a bar show the sign of the advantage.
  credit(act) {
    const box = make("div", "credit"), { reward } = act;
    if (this.brief && reward?.score === this.session.outcome.reward) return box;
    if (reward && reward.score !== undefined) {
      const { parts, ...sums } = reward, tip = Object.entries({ ...sums, ...parts }).map(([name, value]) => plain(`${name} ${number(value, 3)}`)).join("\n");
      box.append(set(make("span", "reward", make("span", "of", "reward "), make("b", "", number(reward.score))), { title: tip }));
    }
    if (typeof act.advantage === "number" && !this.brief) {
      const side = act.advantage > 0 ? "advantage up" : act.advantage < 0 ? "advantage down" : "advantage";
      const gauge = set(make("i", ""), { "--share": Math.min(Math.abs(act.advantage) / 2, 1) });
      box.append(set(make("span", side, gauge, make("b", "", signed(act.advantage))), { title: `advantage ${number(act.advantage, 4)}` }));
    }
    return box;
  }

  // The prompt of an act: messages that are new to the agent are open, the others are folded.
  prompt(act) {
    const messages = act.messages.slice(this.brief ? -1 : 0).map((place) => ({ place, message: this.messages[place] }));
    if (!messages.length) return [];
    const known = (one) => this.seen.get(`${act.agent} ${act.instance} ${one.place}`);
    const fresh = messages.filter((one) => !known(one));
    const old = messages.length - fresh.length;
    for (const one of messages) this.seen.set(`${act.agent} ${act.instance} ${one.place}`, true);
    const parts = [];
    if (old) {
      parts.push(this.fold("prompt", [make("b", "", "prompt"), make("span", "of", fresh.length ? `${old} earlier message${old > 1 ? "s" : ""}` : `the same as before, ${old} message${old > 1 ? "s" : ""}`)], () => messages.filter((one) => !fresh.includes(one)).map((one) => this.message(one.message, "prompt"))));
    }
    fresh.forEach((one, number) => {
      const text = contentOf(one.message), last = number === fresh.length - 1;
      const open = last && !this.brief && one.message.role !== "system" && text.length < 1500 && !this.seen.has(`task ${text}`);
      parts.push(open ? this.message(one.message, "prompt") : this.fold("prompt", [make("b", "", this.brief ? "prompt" : one.message.role), this.snippet(one.message)], () => this.message(one.message, "prompt")));
    });
    return parts;
  }

  snippet(message) {
    const text = contentOf(message).replace(/\s+/g, " ").trim(), images = imagesOf(message).length;
    return set(make("span", "snippet", (images ? `${images} image${images > 1 ? "s" : ""} ` : "") + plain(text.slice(0, 160))), AUTO);
  }

  message(message, className) {
    const calls = (message.tool_calls || []).map((call) => textBlock(`${call.function?.name}(${asText(call.function?.arguments)})`, "call"));
    const parts = [textBlock(contentOf(message)), ...imagesOf(message).map((part) => this.image(part)), ...calls];
    return make("div", `message ${className}`, make("b", "role", message.role), ...parts);
  }

  image(part) {
    if (!/^data:image\/(png|jpeg|webp|gif);base64,/.test(part.data || "")) return make("span", "badge", plain(`${part.type || "part"} ${part.file || "not stored"}`));
    return set(make("img", ""), { src: part.data, alt: plain(part.file), loading: "lazy" });
  }

  // The reply. An act with tools has its steps in order, with calls folded.
  reply(act) {
    const calls = [...(act.tool_calls || [])], parts = [];
    if (!calls.length) return [this.replyText(act)];
    for (const message of act.steps.map((place) => this.messages[place])) {
      if (message.role === "tool") continue;
      const text = contentOf(message);
      if (text.trim()) parts.push(textBlock(text, "reply"));
      for (let left = (message.tool_calls || []).length; left > 0 && calls.length; left--) parts.push(this.call(calls.shift()));
    }
    parts.push(...calls.map((call) => this.call(call)));
    if (act.tokens && act.tokens.length) parts.push(this.fold("prompt", [make("b", "", "sampled tokens")], () => this.tokens(act)));
    return parts.length ? parts : [this.replyText(act)];
  }

  replyText(act) {
    return act.tokens && act.tokens.length && act.tokens.length <= MOST_TOKENS ? this.tokens(act) : textBlock(act.text, "reply");
  }

  // The sampled tokens, each with its log-prob.
  tokens(act) {
    const block = set(make("pre", "text reply tokens"), AUTO), length = replyLength(act.tokens, act.text);
    act.tokens.forEach(([text, logProb], place) => {
      const span = make("span", place < length ? "token" : "token end", pieces(String(text)));
      if (typeof logProb === "number") {
        set(span, { title: `log-prob ${number(logProb, 2)}\nprobability ${(Math.exp(logProb) * 100).toPrecision(3)} %` });
      }
      block.append(span);
    });
    return block;
  }

  call(call) {
    const result = call.error ?? call.result, short = `${plain(call.name)}(${plain(asText(call.arguments)).replace(/\s+/g, " ").slice(0, 90)})`;
    const summary = [make("span", "tool", short), make("span", call.error ? "badge bad" : "snippet", call.error ? "error" : `→ ${plain(asText(result)).replace(/\s+/g, " ").slice(0, 110)}`)];
    return this.fold("call", summary, () => {
      const facts = [call.reward !== null && call.reward !== undefined ? `reward ${number(call.reward)}` : "", call.seconds !== null && call.seconds !== undefined ? seconds(call.seconds) : ""].filter(Boolean);
      return [make("b", "role", "arguments"), textBlock(asText(call.arguments)), make("b", "role", call.error ? "error" : "result"), textBlock(asText(result)), make("p", "facts", facts.join(", "))];
    });
  }

  // Token counts, time, aborts, the origin of the tokens, and how the reply was read.
  numbers(act) {
    const parsed = (act.parses || []).findLast((parse) => parse !== null && parse !== undefined);
    const facts = {
      tokens: `${grouped(act.prompt_tokens)} → ${grouped(act.sampled_tokens ?? act.response_tokens)}`, time: act.seconds && seconds(act.seconds),
      aborts: act.aborts, "tokens of its row": act.origin, "forged tokens in the prompt": act.forged_tokens,
      "read as": parsed !== undefined && !act.malformed && String(parsed).slice(0, 80),
    };
    const known = Object.entries(facts).filter(([, value]) => value);
    return make("div", "numbers", ...known.map(([name, value]) => make("span", "", `${name} `, make("b", "", value))));
  }

  board({ title, text }) {
    return make("section", "board", ...(title ? [make("b", "role", title)] : []), textBlock(text));
  }

  outcome() {
    const { info } = this.session.outcome, entries = Object.entries(info || {});
    if (!entries.length) return "";
    const facts = entries.map(([name, value]) => {
      const text = typeof value === "number" ? number(value, 3) : asText(value);
      return make("div", "", make("dt", "", name), make("dd", "", text.length > 200 ? textBlock(text) : text));
    });
    return make("section", "outcome", make("b", "role", "outcome"), make("dl", "truth", ...facts));
  }

  fold(className, summary, body) {
    return folded(className, summary, body, this.shared.unfolded);
  }
}

function asText(value) {
  return value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 1);
}
