// The list of sessions. Only visible rows have elements, so a long list is as fast as a short one.

// Heights in pixels. The first row of a group is higher, because it has the question.
const FIRST = 50, ROW = 30, HEAD = 30, SPARE = 6;

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

  // `bySteps`: whether each step has a heading.
  open(run, sessions, bySteps) {
    this.run = run;
    this.sessions = sessions;
    const items = [], offsets = [];
    this.places = new Int32Array(run.count).fill(-1);
    let top = 0, block = -1, group = -1;
    const add = (item, height) => { items.push(item); offsets.push(top); top += height; };
    for (const number of sessions) {
      if (bySteps && run.block[number] !== block) {
        block = run.block[number];
        add(-1 - block, HEAD);
        group = -1;
      }
      this.places[number] = items.length;
      add(number, run.group[number] === group ? ROW : FIRST);
      group = run.group[number];
    }
    this.items = items;
    this.offsets = Float64Array.from([...offsets, top]);
    this.rows.style.height = `${top}px`;
    for (const row of this.visible.values()) row.remove();
    this.visible.clear();
    this.draw();
  }

  draw() {
    if (!this.items) return;
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, this.itemAt(scrollTop) - SPARE);
    const last = Math.min(this.items.length - 1, this.itemAt(scrollTop + clientHeight) + SPARE);
    for (const [place, row] of this.visible) {
      if (place < first || place > last) { row.remove(); this.visible.delete(place); }
    }
    const made = document.createDocumentFragment();
    for (let place = first; place <= last; place++) {
      if (this.visible.has(place)) continue;
      const item = this.items[place], row = item < 0 ? this.heading(-1 - item) : this.row(item, place);
      row.style.transform = `translateY(${this.offsets[place]}px)`;
      this.visible.set(place, row);
      made.append(row);
    }
    this.rows.append(made);
  }

  itemAt(top) {
    let low = 0, high = this.items.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.offsets[middle] <= top) low = middle; else high = middle;
    }
    return low;
  }

  heading(block) {
    const { blocks } = this.run, all = blocks.size[block];
    const shown = this.sessions.filter((session) => this.run.block[session] === block), count = shown.length;
    const rewards = Array.from(shown, (session) => this.run.reward[session]).filter((reward) => !Number.isNaN(reward));
    const name = make("b", "", `${blocks.run[block]} step ${blocks.step[block]}`.trim()), part = blocks.partition[block];
    const size = make("span", "of", `${count === all ? count : `${count} of ${all}`} sessions`);
    const mean = rewards.length ? `mean ${number(rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length)}` : "";
    return make("div", "heading", name, make("span", `part ${part}`, part), size, make("span", "mean", mean));
  }

  row(session, place) {
    const { run } = this, { columns } = run, group = run.group[session];
    const row = set(make("div", "row"), { role: "option", id: `session-${session}` });
    const first = this.offsets[place + 1] - this.offsets[place] === FIRST;
    row.classList.toggle("first", first);
    row.classList.toggle("uniform", Boolean(run.groups.uniform[group]));
    row.append(meter(run, session));
    const line = make("div", "under"), acted = run.agents.filter((agent) => columns.agents[session].includes(agent));
    for (const agent of acted.slice(0, 12)) {
      const malformed = columns.malformed[session].includes(agent), title = plain(agent) + (malformed ? ": malformed" : "");
      line.append(set(make("i", malformed ? "dot malformed" : "dot"), { "--of": agentColour(run.agents.indexOf(agent)), title }));
    }
    line.append(set(make("span", "answer", columns.answer[session]), AUTO));
    for (const kind of columns.faults[session]) line.append(make("span", "badge bad", kind));
    if (run.notes[nameOf(run, session)]) line.append(make("span", "badge", "note"));
    const status = columns.status[session];
    if (status !== "finished") line.append(make("span", "badge bad", status));
    line.append(make("span", "id", `${plain(run.groups.uid[group]).slice(0, 12)}·${columns.session[session]}`));
    if (first) row.append(set(make("div", "title", run.groups.title[group] || run.groups.uid[group]), AUTO));
    row.append(line);
    row.title = plain(`${run.groups.title[group]}\n${columns.acts[session]} acts, ${grouped(columns.tokens[session])} tokens, ${seconds(columns.seconds[session])}`);
    row.onclick = () => this.onChoose(session);
    this.mark(row, session);
    return row;
  }

  mark(row, session) {
    row.classList.toggle("chosen", session === this.chosen);
    row.setAttribute("aria-selected", String(session === this.chosen));
  }

  choose(session) {
    this.chosen = session;
    for (const [place, row] of this.visible) if (this.items[place] >= 0) this.mark(row, this.items[place]);
    this.element.setAttribute("aria-activedescendant", `session-${session}`);
    const place = this.places ? this.places[session] : -1;
    if (place >= 0) this.show(place);
  }

  show(place) {
    const top = this.offsets[place], bottom = this.offsets[place + 1], { scrollTop, clientHeight } = this.element;
    if (top < scrollTop + HEAD) this.element.scrollTop = Math.max(0, top - HEAD);
    else if (bottom > scrollTop + clientHeight) this.element.scrollTop = bottom - clientHeight + HEAD;
    this.draw();
  }

  showStep(step) {
    const place = this.items.findIndex((item) => (item < 0 ? this.run.blocks.step[-1 - item] : this.run.step[item]) === step);
    if (place >= 0) { this.element.scrollTop = this.offsets[place]; this.draw(); }
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
