// The list of sessions. Only visible rows have elements, so a long list is as fast as a short one.

const ROW = 28, SPARE = 6; // height of a row in pixels; rows that are drawn above and below the visible ones

class List {
  constructor(element, rows, onChoose) {
    this.element = element;
    this.rows = rows;
    this.onChoose = onChoose;
    this.sessions = new Int32Array(0);
    this.chosen = -1;
    this.visible = new Map();
    element.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(element);
  }

  // Every item is a row: the heading of a step, the title of a group, or a session.
  open(run, sessions) {
    this.run = run;
    this.sessions = sessions;
    this.items = [];
    this.places = new Int32Array(run.count).fill(-1);
    let block = -1, group = -1;
    for (const session of sessions) {
      if (run.block[session] !== block) this.items.push({ kind: "heading", number: block = run.block[session] });
      if (run.group[session] !== group) this.items.push({ kind: "title", number: group = run.group[session], first: session });
      this.places[session] = this.items.push({ kind: "row", number: session }) - 1;
    }
    this.rows.style.height = `${this.items.length * ROW}px`;
    for (const row of this.visible.values()) row.remove();
    this.visible.clear();
    this.draw();
  }

  draw() {
    if (!this.items) return;
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - SPARE);
    const end = Math.min(this.items.length, Math.ceil((scrollTop + clientHeight) / ROW) + SPARE);
    for (const [place, row] of this.visible) {
      if (place < first || place >= end) { row.remove(); this.visible.delete(place); }
    }
    for (let place = first; place < end; place++) {
      if (this.visible.has(place)) continue;
      const item = this.items[place], row = this[item.kind](item);
      row.style.transform = `translateY(${place * ROW}px)`;
      this.visible.set(place, row);
      this.rows.append(row);
    }
  }

  heading({ number: block }) {
    const { blocks } = this.run, all = blocks.size[block];
    const shown = this.sessions.filter((session) => this.run.block[session] === block), count = shown.length;
    const rewards = Array.from(shown, (session) => this.run.reward[session]).filter((reward) => !Number.isNaN(reward));
    const name = make("b", "", `${blocks.run[block]} step ${blocks.step[block]}`.trim()), part = blocks.partition[block];
    const size = make("span", "of", `${count === all ? count : `${count} of ${all}`} sessions`);
    const mean = rewards.length ? `mean ${number(rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length)}` : "";
    return make("div", "heading", name, make("span", `part ${part}`, part), size, make("span", "mean", mean));
  }

  title({ number: group, first }) {
    const title = set(make("div", "title", this.run.groups.title[group] || this.run.groups.uid[group]), AUTO);
    return set(title, { onclick: () => this.onChoose(first) });
  }

  row({ number: session }) {
    const { run } = this, { columns } = run, group = run.group[session];
    const row = set(make("div", "row"), { role: "option", id: `session-${session}`, onclick: () => this.onChoose(session) });
    row.classList.toggle("uniform", Boolean(run.groups.uniform[group]));
    row.append(meter(run, session));
    for (const agent of run.agents.filter((agent) => columns.agents[session].includes(agent)).slice(0, 12)) {
      const malformed = columns.malformed[session].includes(agent), title = plain(agent) + (malformed ? ": malformed" : "");
      row.append(set(make("i", malformed ? "dot malformed" : "dot"), { "--of": agentColour(run.agents.indexOf(agent)), title }));
    }
    row.append(set(make("span", "answer", columns.answer[session]), AUTO));
    for (const kind of columns.faults[session]) row.append(make("span", "badge bad", kind));
    if (run.notes[nameOf(run, session)]) row.append(make("span", "badge", "note"));
    const status = columns.status[session];
    if (status !== "finished") row.append(make("span", "badge bad", status));
    row.append(make("span", "id", `${plain(run.groups.uid[group]).slice(0, 12)}·${columns.session[session]}`));
    row.title = plain(`${run.groups.title[group]}\n${columns.acts[session]} acts, ${grouped(columns.tokens[session])} tokens, ${seconds(columns.seconds[session])}`);
    this.mark(row, session);
    return row;
  }

  mark(row, session) {
    row.classList.toggle("chosen", session === this.chosen);
    row.setAttribute("aria-selected", String(session === this.chosen));
  }

  choose(session) {
    this.chosen = session;
    for (const [place, row] of this.visible) if (this.items[place].kind === "row") this.mark(row, this.items[place].number);
    this.element.setAttribute("aria-activedescendant", `session-${session}`);
    const place = this.places ? this.places[session] : -1, top = place * ROW, { scrollTop, clientHeight } = this.element;
    if (place < 0) return;
    // Keep a row above and below the chosen one in sight.
    if (top < scrollTop + ROW) this.element.scrollTop = top - ROW;
    else if (top + 2 * ROW > scrollTop + clientHeight) this.element.scrollTop = top + 2 * ROW - clientHeight;
    this.draw();
  }

  showStep(step) {
    const place = this.items.findIndex(({ kind, number }) => kind === "heading" && this.run.blocks.step[number] === step);
    if (place >= 0) { this.element.scrollTop = place * ROW; this.draw(); }
    return place >= 0;
  }

  // The session a number of rows further, or the first session.
  next(by) {
    if (!this.sessions.length) return -1;
    const here = this.sessions.indexOf(this.chosen);
    return here < 0 ? this.sessions[0] : this.sessions[Math.min(Math.max(here + by, 0), this.sessions.length - 1)];
  }
}

// The reward as a number, and as a bar relative to the rewards of the run.
function meter(run, session) {
  const reward = run.reward[session], [low, high] = run.rewards;
  const share = Number.isNaN(reward) ? 0 : Math.max(0.02, (reward - low) / (high - low));
  return make("div", "meter", make("b", "", number(reward)), set(make("i", ""), { "--share": share }));
}
