// When engines and trainers worked: a row each, for the steps around the chosen one. Perfetto draws the whole timeline.json.

const KINDS = {
  engine: "engine has requests", sample: "waits for tasks", log_probs: "log-probs", update: "update", abort: "abort", sleep: "sleep",
  wake: "weights to engines, wake", resume: "resume", save: "save", validate: "validate",
};
const STARTING = {
  checks: "checks", ray: "Ray starts", task_runner: "task runner imports", data: "data", processes: "training processes import", load: "model is loaded",
  launch: "engines start", agent_loop_workers: "agent-loop workers", reward_workers: "reward workers", checkpoint: "checkpoint is loaded",
};
Object.assign(KINDS, STARTING);
const BEFORE = 1, AFTER = 3, LABELS = 150, LINE = 22;

/** The steps that are drawn, and where they begin and end in milliseconds. A start takes long: it is drawn with its first step alone. */
function timeWindow(data, step) {
  const known = data.steps.map(([number]) => number), place = known.findIndex((number) => number >= step);
  const from = Math.max(0, (place < 0 ? known.length : place) - BEFORE);
  const first = Math.max(0, Math.min(from, known.length - 1 - BEFORE - AFTER));
  const started = data.spans.some((span) => span[2] === step && span[1] in STARTING);
  const numbers = new Set(started ? [step] : known.slice(first, first + 1 + BEFORE + AFTER));
  const spans = data.spans.filter((span) => numbers.has(span[2]) && (started || !(span[1] in STARTING)));
  const begin = spans.reduce((least, span) => Math.min(least, span[3]), Infinity);
  const end = spans.reduce((most, span) => Math.max(most, span[3] + span[4]), 0);
  return { spans, begin, end, steps: data.steps.filter(([number]) => numbers.has(number)) };
}

class Timeline {
  constructor(element) {
    this.element = element;
    this.data = null;
    this.step = Infinity;
    new ResizeObserver(() => this.draw()).observe(element);
  }

  open(data) {
    this.data = data;
    this.draw();
  }

  mark(step) {
    this.step = step;
    this.draw();
  }

  draw() {
    const { data, element } = this;
    if (!data || element.hidden) return;
    const { spans, begin, end, steps } = timeWindow(data, this.step);
    const drawn = [...new Set(spans.map((span) => span[0]))].sort((one, other) => one - other);
    const width = element.clientWidth - 32 || 800, height = 18 + drawn.length * LINE;
    const x = (milliseconds) => LABELS + ((milliseconds - begin) / Math.max(end - begin, 1)) * (width - LABELS);
    const svg = document.createElementNS(SVG, "svg"), legend = make("div", "kinds");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", "Timeline");
    drawn.forEach((row, place) => {
      shape("text", { class: "tick", x: LABELS - 8, y: 18 + place * LINE + 14 }, svg).textContent = plain(data.rows[row]);
    });
    for (const [number, at] of steps) {
      if (at < begin) continue;
      shape("line", { class: number === this.step ? "now" : "grid", x1: x(at), x2: x(at), y1: 4, y2: height }, svg);
      shape("text", { class: "step", x: x(at) + 3, y: 12 }, svg).textContent = `${width < 600 ? "" : "step "}${number}`;
    }
    for (const [row, kind, number, at, lasts] of spans) {
      const bar = { class: `span ${kind}`, x: x(at), y: 18 + drawn.indexOf(row) * LINE + 2, width: Math.max(x(at + lasts) - x(at), 0.5), height: LINE - 5 };
      shape("rect", bar, svg).dataset.tip = `step ${number}: ${KINDS[kind] || plain(kind)}, ${(lasts / 1000).toFixed(3)} s`;
    }
    for (const kind of Object.keys(KINDS).filter((name) => spans.some((span) => span[1] === name))) {
      const entry = make("span", "kind", KINDS[kind]);
      entry.prepend(make("i", `span ${kind}`));
      legend.append(entry);
    }
    legend.append(make("span", "of", `${((end - begin) / 1000).toFixed(1)} s`));
    element.replaceChildren(svg, legend);
  }
}
