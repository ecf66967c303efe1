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
const SHOWN = 6, STRIPE = 6; // panels of a page; pixels of a colour where curves are equal

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
    this.marked = null;
    element.addEventListener("pointerleave", () => this.at(null));
  }

  open(run) {
    this.run = run;
    this.steps = run.curves.steps;
    this.panels = featuredPanels(run.curves, run.agents).map((panel) => this.panel(panel));
    this.element.hidden = !this.panels.length;
    const grid = make("div", "panels", ...this.panels.map((panel) => panel.element));
    this.element.replaceChildren(set(grid, { "--panels": Math.max(this.panels.length, 4) }));
    this.at(null);
    this.mark(this.marked);
  }

  panel({ title, about, series }) {
    const names = [...new Set(series.map((one) => one.of))], at = make("span", "at"), values = make("div", "values"), plot = make("div", "plot");
    const lines = series.map((one) => ({ ...one, colour: this.colour(one, names.indexOf(one.of)), values: this.run.curves.values[one.name] }));
    const caption = set(make("figcaption", "", make("span", "title", title), at), { title: plain(about) });
    const label = plain(`${title}: ${series.map((one) => one.label).join(", ")}`);
    // Lines keep their width in pixels, whatever the size of the box.
    const svg = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label }, plot);
    const panel = { element: make("figure", "panel", caption, plot, values), at, values, lines };
    plot.append(make("div", "ticks", ...this.draw(panel, svg).map((value) => make("span", "tick", compact(value)))));
    svg.addEventListener("pointermove", (event) => this.at(this.placeAt(svg, event)));
    svg.addEventListener("click", (event) => this.onStep(this.steps[this.placeAt(svg, event)]));
    return panel;
  }

  // Draw the curves; return the numbers beside them.
  draw(panel, svg) {
    const known = panel.lines.flatMap((one) => one.values.filter((value) => typeof value === "number"));
    const [low, high] = known.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
    // Values that differ by rounding alone are drawn as a flat line.
    const flat = !(high - low > 1e-9), count = panel.lines.length;
    const y = (value) => (flat ? 50 : 95 - 90 * ((value - low) / (high - low)));
    for (const edge of [5, 95]) vertical(svg, "grid", { x1: 0, x2: 100, y1: edge, y2: edge });
    panel.now = vertical(svg, "now");
    // Draw the curves again with gaps, so that all of several equal curves are seen.
    for (const dashed of [false, true].slice(0, count)) {
      panel.lines.forEach((one, place) => {
        const points = this.steps.flatMap((step, at) => (typeof one.values[at] === "number" ? [`${this.x(step)},${y(one.values[at])}`] : []));
        const classes = ["curve", one.mark === "B " && "b", one.control && "control", points.length === 1 && "point"];
        const curve = shape("path", { d: points.length ? `M${points.join("L")}h0` : "", class: classes.filter(Boolean).join(" ") }, svg);
        set(curve, { "--of": one.colour });
        if (dashed) Object.assign(curve.style, { strokeDasharray: `${STRIPE} ${STRIPE * (count - 1)}`, strokeDashoffset: -STRIPE * place });
      });
    }
    panel.rule = vertical(svg, "rule");
    return flat ? [] : [high, low];
  }

  x(step) {
    const { steps } = this;
    return 1 + 98 * ((step - steps[0]) / (steps[steps.length - 1] - steps[0] || 1));
  }

  colour(series, place) {
    const agent = series.kind === "agent" ? this.run.agents.indexOf(series.of) : -1;
    return agent >= 0 ? agentColour(agent) : ["var(--ink)", "var(--muted)", "var(--line-2)", "var(--line-3)"][place % 4];
  }

  placeAt(svg, event) {
    const { left, width } = svg.getBoundingClientRect(), x = (100 * (event.clientX - left)) / width;
    return this.steps.reduce((best, step, place) => (Math.abs(this.x(step) - x) < Math.abs(this.x(this.steps[best]) - x) ? place : best), 0);
  }

  // Show the values at an index of the steps; null: the last values.
  at(place) {
    for (const { at, values, lines, rule } of this.panels) {
      at.textContent = place === null ? "" : `step ${this.steps[place]}`;
      values.replaceChildren(...lines.slice(0, 6).map((one) => {
        const value = place === null ? one.values.findLast((item) => item !== null) : one.values[place];
        const label = lines.length > 1 || one.label ? [make("span", "label", one.label)] : [];
        return set(make("span", "value", make("i"), ...label, make("b", "", compact(value))), { "--of": one.colour, title: plain(one.name) });
      }));
      if (lines.length > 6) values.append(make("span", "label", `and ${lines.length - 6} more`));
      move(rule, place === null ? null : this.x(this.steps[place]));
    }
  }

  // Mark the step of the open session.
  mark(step) {
    this.marked = step;
    const { steps } = this, inside = step !== null && step >= steps[0] && step <= steps[steps.length - 1];
    for (const panel of this.panels) move(panel.now, inside ? this.x(step) : null);
  }
}

// Move a vertical line; null: hide it.
function move(line, x) {
  line.style.display = x === null ? "none" : "";
  for (const end of ["x1", "x2"]) line.setAttribute(end, x ?? 0);
}

function vertical(svg, name, place = { y1: 0, y2: 100 }) {
  return shape("line", { class: name, ...place }, svg);
}

function shape(tag, attributes, parent) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
}
