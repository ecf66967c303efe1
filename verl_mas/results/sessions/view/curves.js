// Curves of the run: a small panel per metric, with a line per agent or policy. The pointer selects a step in all panels.

const SVG = "http://www.w3.org/2000/svg";
const FEATURED = [
  { title: "Validation success", about: "Mean success on held-out tasks, by their source", match: /^val-core\/(?:(.+)\/)?(?:acc|reward)\/mean@\d+$|^val-core\/(.+)\/mean@\d+$/, name: (match) => match[1] || match[2] },
  { title: "Team reward", about: "Mean reward of the sessions that were trained on", match: /^session\/reward\/mean$/, name: () => "team" },
  { title: "Reward by agent", about: "Mean reward of the replies of each agent in training", match: /^agent\/(.+)\/reward\/score$/ },
  { title: "Malformed replies", about: "Share of replies that do not have the form that was asked for", match: /^agent\/(.+)\/malformed$/ },
  { title: "Replies that teach nothing", about: "Share of replies with an advantage of 0: their reward is that of the others that they are compared with", match: /^agent\/(.+)\/advantage\/zero$/ },
  { title: "All attempts score the same", about: "Share of groups, which are replies compared with each other, with equal rewards: too easy, too hard, or a reward that does not depend on the reply", match: /^agent\/(.+)\/group\/groups_uniform$/ },
  { title: "Tokens per reply", about: "Mean length of a reply", match: /^agent\/(.+)\/length\/response$/ },
  { title: "Randomness (entropy)", about: "How open the next token is: near 0, every reply to a prompt is the same", match: /^(?:policy\/(.+)\/)?actor\/entropy$/, kind: "policy" },
  { title: "Size of updates (gradient norm)", about: "Before clipping; a jump is an unstable step", match: /^(?:policy\/(.+)\/)?actor\/grad_norm$/, kind: "policy" },
];
const MARKED = /^([AB] )?(.*)$/s; // On a page of two runs, names begin with the mark of their run.
const SHOWN = 6, STRIPE = 6;

function sortedByAgent(series, agents) {
  return series.sort((a, b) => agents.indexOf(a.of) - agents.indexOf(b.of) || a.name.localeCompare(b.name));
}

function featuredPanels(curves, agents) {
  const names = Object.keys(curves.values);
  const found = FEATURED.map((panel) => {
    const series = [];
    for (const name of names) {
      const [, mark = "", key] = MARKED.exec(name), match = panel.match.exec(key);
      if (!match) continue;
      const of = panel.name ? panel.name(match) : match[1] || "", label = mark + of;
      // A data source has one curve, even if it has an accuracy and a reward.
      if (!series.some((one) => one.label === label)) series.push({ label, of, mark, name, kind: panel.name ? "" : panel.kind || "agent" });
    }
    return { ...panel, series: panel.about === FEATURED[0].about ? withControls(series) : sortedByAgent(series, agents) };
  });
  return found.filter((panel) => panel.series.length).slice(0, SHOWN);
}

// The data sets, then their controls.
function withControls(series) {
  const controlled = ({ of }) => { const base = of.replace(/_(shuffled|control)$/, ""); return base !== of && series.some((one) => one.of === base) ? base : ""; };
  const controls = series.filter(controlled).map((one) => ({ ...one, label: `${one.mark}control of ${controlled(one)}`, control: true }));
  return [...series.filter((one) => !controlled(one)), ...controls];
}

class Curves {
  constructor(element, onStep) {
    this.element = element;
    this.onStep = onStep;
    this.panels = [];
    this.marked = null;
    new ResizeObserver(() => this.draw()).observe(element);
    element.addEventListener("pointerleave", () => this.at(null));
  }

  open(run) {
    this.run = run;
    this.curves = run.curves;
    const wanted = featuredPanels(this.curves, run.agents), grid = make("div", "panels");
    this.element.hidden = !wanted.length;
    this.panels = wanted.map((panel) => this.panel(panel));
    grid.style.setProperty("--panels", String(Math.max(wanted.length, 4)));
    grid.append(...this.panels.map((panel) => panel.element));
    this.element.replaceChildren(grid);
    this.draw();
  }

  panel({ title, about, series }) {
    const names = [...new Set(series.map((one) => one.of))], at = make("span", "at"), values = make("div", "values");
    const caption = set(make("figcaption", "", make("span", "title", title), at), { title: plain(about) });
    const element = make("figure", "panel", caption);
    const svg = shape("svg", { role: "slider", tabindex: 0, "aria-label": plain(`${title}: ${series.map((one) => one.label).join(", ")}`) }, element);
    element.append(values);
    const panel = { element, svg, values, title, at, series: series.map((one) => ({ ...one, colour: this.colour(one, names.indexOf(one.of)), values: this.curves.values[one.name] })) };
    svg.addEventListener("pointermove", (event) => this.at(this.stepAt(panel, event)));
    svg.addEventListener("click", (event) => this.onStep(this.curves.steps[this.stepAt(panel, event)]));
    svg.addEventListener("keydown", (event) => this.key(event));
    svg.addEventListener("blur", () => this.at(null));
    return panel;
  }

  // Arrow keys move from step to step; Enter opens a session of the step.
  key(event) {
    const { steps } = this.curves, place = this.place ?? steps.length - 1, to = place + { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (to in steps) this.at(to);
    if (event.key === "Enter") this.onStep(steps[place]);
  }

  colour(series, place) {
    const agent = series.kind === "agent" ? this.run.agents.indexOf(series.of) : -1;
    return agent >= 0 ? agentColour(agent) : ["var(--ink)", "var(--muted)", "var(--line-2)", "var(--line-3)"][place % 4];
  }

  stepAt(panel, event) {
    const box = panel.svg.getBoundingClientRect(), { steps } = this.curves;
    const share = (event.clientX - box.left - 2) / Math.max(panel.plot - 4, 1);
    const wanted = steps[0] + share * (steps[steps.length - 1] - steps[0]);
    return steps.reduce((best, step, place) => (Math.abs(step - wanted) < Math.abs(steps[best] - wanted) ? place : best), 0);
  }

  // Show the values at an index of the steps; null: the last values.
  at(place) {
    this.place = place;
    for (const panel of this.panels) {
      const { steps } = this.curves;
      panel.at.textContent = place === null ? "" : `step ${steps[place]}`;
      panel.values.replaceChildren(...panel.series.slice(0, 6).map((one) => {
        const value = place === null ? one.values.findLast((item) => item !== null) : one.values[place];
        const label = panel.series.length > 1 || one.label ? [make("span", "label", one.label)] : [];
        return set(make("span", "value", make("i"), ...label, make("b", "", compact(value))), { "--of": one.colour, title: plain(one.name) });
      }));
      panel.svg.setAttribute("aria-valuenow", steps[place ?? steps.length - 1]);
      panel.svg.setAttribute("aria-valuetext", `step ${steps[place ?? steps.length - 1]}: ${panel.values.textContent}`);
      if (panel.series.length > 6) panel.values.append(make("span", "label", `and ${panel.series.length - 6} more`));
      if (panel.rule) {
        panel.rule.style.display = place === null ? "none" : "";
        if (place !== null) move(panel.rule, panel.x(steps[place]));
      }
    }
  }

  // Mark the step of the open session.
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

// A gradient with a colour in one of several stripes, so that all of several equal curves are visible.
function stripes(svg, place, of, colour) {
  // Equal gradients of several panels may share an id.
  const id = `stripes-${place}-${of}-${colour.replace(/\W/g, "")}`, gradient = shape("linearGradient", { id, gradientUnits: "userSpaceOnUse", x2: STRIPE * of, spreadMethod: "repeat" }, svg);
  for (const [edge, opacity] of [[0, 0], [0, 1], [1, 1], [1, 0]]) shape("stop", { offset: (place + edge) / of, "stop-opacity": opacity }, gradient).style.stopColor = colour;
  return `url(#${id})`;
}

function drawPanel(panel, steps) {
  const width = panel.svg.clientWidth || 200, height = panel.svg.clientHeight || 56;
  let low = Infinity, high = -Infinity;
  for (const { values } of panel.series) for (const value of values) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low === Infinity) { low = 0; high = 1; }
  panel.range = [low, high];
  if (high - low < 1e-9) { const apart = Math.abs(high) * 0.1 || 0.5; low -= apart; high += apart; }
  const span = steps[steps.length - 1] - steps[0] || 1, ticks = panel.range[1] > panel.range[0] ? [[high, 10], [low, height - 2]] : [];
  // Leave room for the numbers to the right of the curves: a digit of 10 px is less than 7 px wide.
  panel.plot = width - Math.max(0, ...ticks.map(([value]) => 4 + 7 * compact(value).length));
  panel.x = (step) => (2 + ((step - steps[0]) / span) * (panel.plot - 4)).toFixed(1);
  const y = (value) => (height - 5 - ((value - low) / (high - low)) * (height - 10)).toFixed(1);
  panel.svg.replaceChildren();
  panel.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  for (const value of [low, high]) shape("line", { class: "grid", x1: 0, x2: panel.plot, y1: y(value), y2: y(value) }, panel.svg);
  panel.now = shape("line", { class: "now", y1: 0, y2: height }, panel.svg);
  const of = panel.series.length, lines = panel.series.map(({ values }) => steps.flatMap((step, place) => (typeof values[place] === "number" ? [[panel.x(step), y(values[place])]] : [])));
  for (const strokeOf of [(one) => one.colour, (one, place) => stripes(panel.svg, place, of, one.colour)].slice(0, of)) {
    panel.series.forEach((one, place) => { shape("path", { d: `M${lines[place].join("L")}`, class: `curve ${one.mark === "B " ? "b" : ""}${one.control ? " control" : ""}` }, panel.svg).style.stroke = strokeOf(one, place); });
  }
  panel.series.forEach(({ colour }, place) => {
    // Draw equal points side by side.
    for (const [x, cy] of lines[place].length < 4 ? lines[place] : []) shape("circle", { cx: Number(x) + 4 * (place - (of - 1) / 2), cy, r: 2.2 }, panel.svg).style.fill = colour;
  });
  for (const [value, place] of ticks) shape("text", { class: "tick", x: width - 1, y: place }, panel.svg).textContent = compact(value);
  panel.rule = shape("line", { class: "rule", y1: 0, y2: height }, panel.svg);
}
