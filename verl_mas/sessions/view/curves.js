// Curves of the run: one small panel per number, a line per agent or policy. A pointer shows the values of its step in all of them.

const SVG = "http://www.w3.org/2000/svg";
const FEATURED = [
  { title: "Success", match: /^val-core\/(?:(.+)\/)?(?:acc|reward)\/mean@\d+$|^val-core\/(.+)\/mean@\d+$/, name: (match) => match[1] || match[2] },
  { title: "Reward", match: /^session\/reward\/mean$/, name: () => "team" },
  { title: "Reward by agent", match: /^agent\/(.+)\/reward\/score$/ },
  { title: "Malformed replies", match: /^agent\/(.+)\/malformed$/ },
  { title: "Advantages of zero", match: /^agent\/(.+)\/advantage\/zero$/ },
  { title: "Groups that are uniform", match: /^agent\/(.+)\/group\/groups_uniform$/ },
  { title: "Tokens per reply", match: /^agent\/(.+)\/length\/response$/ },
  { title: "Entropy", match: /^(?:policy\/(.+)\/)?actor\/entropy$/, kind: "policy" },
  { title: "Gradient norm", match: /^(?:policy\/(.+)\/)?actor\/grad_norm$/, kind: "policy" },
];
const SHOWN = 6;

function sortedByAgent(series, agents) {
  return series.sort((a, b) => agents.indexOf(a.label) - agents.indexOf(b.label) || a.name.localeCompare(b.name));
}

function featuredPanels(curves, agents) {
  const names = Object.keys(curves.values);
  const found = FEATURED.map((panel) => {
    const series = [];
    for (const name of names) {
      const match = panel.match.exec(name);
      if (!match) continue;
      const label = panel.name ? panel.name(match) : match[1] || "";
      // A source with its accuracy is there once.
      if (!series.some((one) => one.label === label)) series.push({ label, name, kind: panel.name ? "" : panel.kind || "agent" });
    }
    return { title: panel.title, series: sortedByAgent(series, agents) };
  });
  return found.filter((panel) => panel.series.length).slice(0, SHOWN);
}

/** Every number of the run, those of agents and of policies together. */
function allPanels(curves, agents) {
  const panels = new Map();
  for (const name of Object.keys(curves.values)) {
    if (/\/(low|high)$/.test(name)) continue;
    const match = /^(val-agent|agent|policy)\/([^/]+)\/(.+)$/.exec(name);
    const key = match ? `${match[1]}/*/${match[3]}` : name;
    if (!panels.has(key)) panels.set(key, { title: key.replace("/*/", " · "), series: [] });
    panels.get(key).series.push({ label: match ? match[2] : "", name, kind: match ? match[1].replace("val-", "") : "" });
  }
  for (const panel of panels.values()) sortedByAgent(panel.series, agents);
  return [...panels.values()].sort((a, b) => a.title.localeCompare(b.title));
}

class Curves {
  constructor(element, onStep) {
    this.element = element;
    this.onStep = onStep;
    this.panels = [];
    this.all = false;
    this.marked = null;
    new ResizeObserver(() => this.draw()).observe(element);
    element.addEventListener("pointerleave", () => this.at(null));
  }

  open(run) {
    this.run = run;
    this.curves = run.curves;
    this.element.replaceChildren();
    this.grid = make("div", "panels");
    this.element.append(this.grid);
    const total = allPanels(this.curves, run.agents).length;
    this.element.hidden = !total;
    if (total > featuredPanels(this.curves, run.agents).length) {
      const bar = make("div", "more-curves"), toggle = make("button", "quiet", this.all ? "fewer curves" : `all ${total} curves`);
      toggle.type = "button";
      toggle.onclick = () => { this.all = !this.all; this.open(this.run); };
      bar.append(toggle);
      if (this.all) {
        const filter = make("input");
        filter.type = "search";
        filter.placeholder = "names of curves";
        filter.setAttribute("aria-label", "Filter curves by name");
        filter.oninput = () => this.fill(filter.value);
        bar.append(filter);
      }
      this.element.prepend(bar);
    }
    this.element.classList.toggle("all", this.all);
    this.fill("");
  }

  fill(text) {
    const { agents } = this.run;
    const wanted = this.all ? allPanels(this.curves, agents).filter((panel) => panel.title.includes(text.trim())) : featuredPanels(this.curves, agents);
    this.grid.replaceChildren();
    this.panels = wanted.map((panel) => this.panel(panel));
    this.grid.style.setProperty("--panels", String(Math.min(Math.max(wanted.length, 4), SHOWN)));
    this.grid.append(...this.panels.map((panel) => panel.element));
    this.draw();
  }

  panel({ title, series }) {
    const element = make("figure", "panel"), caption = make("figcaption"), values = make("div", "values");
    caption.append(make("span", "title", title), make("span", "at"));
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", plain(`${title}: ${series.map((one) => one.label).join(", ")}`));
    element.append(caption, svg, values);
    const panel = { element, svg, values, title, at: caption.lastChild, series: series.map((one, place) => ({ ...one, colour: this.colour(one, place), values: this.curves.values[one.name] })) };
    svg.addEventListener("pointermove", (event) => this.at(this.stepAt(panel, event)));
    svg.addEventListener("click", (event) => this.onStep(this.curves.steps[this.stepAt(panel, event)]));
    return panel;
  }

  colour(series, place) {
    const agent = series.kind === "agent" ? this.run.agents.indexOf(series.label) : -1;
    return agent >= 0 ? agentColour(agent) : ["var(--ink)", "var(--muted)", "var(--line-2)", "var(--line-3)"][place % 4];
  }

  stepAt(panel, event) {
    const box = panel.svg.getBoundingClientRect(), { steps } = this.curves;
    const share = (event.clientX - box.left - 2) / Math.max(box.width - 4, 1);
    const wanted = steps[0] + share * (steps[steps.length - 1] - steps[0]);
    return steps.reduce((best, step, place) => (Math.abs(step - wanted) < Math.abs(steps[best] - wanted) ? place : best), 0);
  }

  /** The values at a place in the steps; at the last ones with null. */
  at(place) {
    for (const panel of this.panels) {
      const { steps } = this.curves;
      panel.at.textContent = place === null ? "" : `step ${steps[place]}`;
      panel.values.replaceChildren(...panel.series.slice(0, 6).map((one) => {
        const value = place === null ? one.values.findLast((item) => item !== null) : one.values[place];
        const item = make("span", "value");
        item.style.setProperty("--of", one.colour);
        item.append(make("i"), ...(panel.series.length > 1 || one.label ? [make("span", "label", one.label)] : []), make("b", "", compact(value)));
        item.title = plain(one.name);
        return item;
      }));
      if (panel.series.length > 6) panel.values.append(make("span", "label", `and ${panel.series.length - 6} more`));
      if (panel.rule) {
        panel.rule.style.display = place === null ? "none" : "";
        if (place !== null) move(panel.rule, panel.x(steps[place]));
      }
    }
  }

  /** The step of the session that is open. */
  mark(step) {
    this.marked = step;
    for (const panel of this.panels) {
      if (!panel.now) continue;
      const { steps } = this.curves, inside = step !== null && step >= steps[0] && step <= steps[steps.length - 1];
      panel.now.style.display = inside ? "" : "none";
      if (inside) move(panel.now, panel.x(step));
    }
  }

  draw() {
    for (const panel of this.panels) drawPanel(panel, this.curves.steps);
    if (this.panels.length) { this.at(null); this.mark(this.marked); }
  }
}

function move(line, x) {
  line.setAttribute("x1", x);
  line.setAttribute("x2", x);
}

function shape(tag, attributes, parent) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
}

function drawPanel(panel, steps) {
  const width = panel.svg.clientWidth || 200, height = panel.svg.clientHeight || 56;
  let low = Infinity, high = -Infinity;
  for (const { values } of panel.series) for (const value of values) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low === Infinity) { low = 0; high = 1; }
  panel.range = [low, high];
  if (high - low < 1e-9) { const apart = Math.abs(high) * 0.1 || 0.5; low -= apart; high += apart; }
  const span = steps[steps.length - 1] - steps[0] || 1;
  panel.x = (step) => (2 + ((step - steps[0]) / span) * (width - 4)).toFixed(1);
  const y = (value) => (height - 5 - ((value - low) / (high - low)) * (height - 10)).toFixed(1);
  panel.svg.replaceChildren();
  panel.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  for (const value of [low, high]) shape("line", { class: "grid", x1: 0, x2: width, y1: y(value), y2: y(value) }, panel.svg);
  panel.now = shape("line", { class: "now", y1: 0, y2: height }, panel.svg);
  for (const one of panel.series) {
    const points = steps.map((step, place) => [step, one.values[place]]).filter(([, value]) => value !== null && value !== undefined);
    if (!points.length) continue;
    const path = points.map(([step, value]) => `${panel.x(step)} ${y(value)}`);
    const line = shape("path", { d: `M${path.join("L")}`, class: "curve" }, panel.svg);
    line.style.stroke = one.colour;
    if (points.length < 4) {
      for (const [step, value] of points) shape("circle", { cx: panel.x(step), cy: y(value), r: 2.2 }, panel.svg).style.fill = one.colour;
    }
  }
  if (panel.range[1] > panel.range[0]) {
    for (const [value, place] of [[high, 10], [low, height - 7]]) shape("text", { class: "tick", x: width - 1, y: place }, panel.svg).textContent = compact(value);
  }
  panel.rule = shape("line", { class: "rule", y1: 0, y2: height }, panel.svg);
}
