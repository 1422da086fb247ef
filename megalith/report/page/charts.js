
// Numbers, axes, charts of series over steps, heat maps. All return texts of HTML or SVG.
const escapeText = text => String(text).replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);
const colour = run => run % 6;

function shown(value) {
  if (value === null || value === undefined || !isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e");
  for (const [unit, scale] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e4]])
    if (size >= scale) return trimmed((value / (unit === "k" ? 1e3 : scale)).toPrecision(4)) + unit;
  return trimmed(value.toPrecision(5));
}
const trimmed = text => text.includes(".") ? text.replace(/\.?0+$/, "") : text;
function bytes(value) {
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (value >= scale) return (value / scale).toPrecision(3) + " " + unit;
  return value + " B";
}

// A series as points {from, to, mean, min, max}, in steps; buckets without a value are null.
function pointsOf(series) {
  const points = [], count = series.mean ? series.mean.length : series.count;
  for (let i = 0; i < count; ++i) {
    const mean = series.mean ? series.mean[i] : series.same;
    const from = series.first + i * series.width;
    points.push(mean === null ? null : {from, to: from + series.width - 1, mean,
      min: series.min ? series.min[i] : mean, max: series.max ? series.max[i] : mean});
  }
  return points;
}

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(f => f * power).find(f => f >= raw) || power;
  const list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && list.length < 50;
    ++i) list.push(i * step);
  return list;
}
function logTicks(low, high) {
  const list = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power)
    for (const f of high / low > 300 ? [1] : [1, 2, 5]) {
      const tick = f * 10 ** power;
      if (tick >= low && tick <= high) list.push(tick);
    }
  return list.length > 1 ? list : ticks(low, high, 4);
}

// The scores of a task of eval.tasks are series of their own: "hellaswag/hellaswag_val acc".
const kScores = ["acc", "acc_norm", "acc_bytes"];
const scoreNames = run => run.evals.flatMap(one => kScores.filter(score => typeof one[score] === "number")
  .map(score => `${one.eval} ${score}`));
function evalsOf(run, name) {
  if (!scoreNames(run).includes(name)) return run.evals.filter(one => typeof one[name] === "number");
  const at = name.lastIndexOf(" "), task = name.slice(0, at), score = name.slice(at + 1);
  return run.evals.filter(one => one.eval === task && typeof one[score] === "number")
    .map(one => ({eval: task, step: one.step, [name]: one[score]}));
}

// The lines of one series of all runs. `view`: {from, to} in steps, `isLog`.
class Chart {
  constructor(name, runs, width, view) {
    Object.assign(this, {name, width, height: 210, left: 54, right: 8, top: 24, bottom: 24});
    this.runs = runs.map((run, number) => ({
      number, run, points: run.series[name] ? pointsOf(run.series[name]) : [],
      evals: evalsOf(run, name)}));
    const last = Math.max(1, ...runs.map(run => run.last_step));
    this.from = view.from ?? 1;
    this.to = Math.max(view.to ?? last, this.from + 1);
    this.setRange(view.isLog);
  }
  isSeen(point) { return point && point.to >= this.from && point.from <= this.to; }
  seenEvals(line) { return line.evals.filter(one => one.step >= this.from && one.step <= this.to); }
  setRange(isLog) {
    let low = Infinity, high = -Infinity;
    for (const line of this.runs) {
      for (const point of line.points) if (this.isSeen(point)) {
        low = Math.min(low, point.min); high = Math.max(high, point.max);
      }
      for (const one of this.seenEvals(line)) { low = Math.min(low, one[this.name]); high = Math.max(high,
        one[this.name]); }
    }
    this.isEmpty = low > high;
    if (this.isEmpty) [low, high] = [0, 1];
    this.isLog = isLog && low > 0;
    if (low === high) { const room = Math.abs(low) * .05 || 1; low -= room; high += room; this.isLog = false; }
    if (this.isLog) { low /= 1.05; high *= 1.05; }
    else { const room = (high - low) * .04; high += room; low = low >= 0 ? Math.max(0, low - room) : low - room; }
    this.low = low; this.high = high;
  }
  x(step) { return this.left + (this.width - this.left - this.right) * (step - this.from) / (this.to - this.from); }
  y(value) {
    const share = this.isLog ? Math.log(value / this.low) / Math.log(this.high / this.low)
      : (value - this.low) / (this.high - this.low);
    return this.height - this.bottom - (this.height - this.top - this.bottom) * share;
  }
  at(px) { return this.from + (px - this.left) / (this.width - this.left - this.right) * (this.to - this.from); }
  axes() {
    let text = `<text class="name" x="0" y="13">${escapeText(this.name)}</text>`;
    for (const tick of this.isLog ? logTicks(this.low, this.high) : ticks(this.low, this.high, 5)) {
      const y = this.y(tick).toFixed(1);
      text += `<path class="rule" d="M${this.left} ${y}H${this.width - this.right}"/>` +
        `<text class="faint" text-anchor="end" x="${this.left - 6}" y="${+y + 4}">${shown(tick)}</text>`;
    }
    for (const tick of ticks(this.from, this.to, this.width / 90)) {
      if (!Number.isInteger(tick)) continue;
      const x = this.x(tick), anchor = x > this.width - 30 ? "end" : "middle";
      text += `<text class="faint" text-anchor="${anchor}" x="${x.toFixed(1)}" y="${this.height - 6}">` +
        `${shown(tick)}</text>`;
    }
    return text;
  }
  // Stretches of points without a gap.
  stretches(line) {
    const all = [];
    let now = [];
    for (const point of line.points) {
      if (this.isSeen(point)) now.push(point);
      else if (now.length) { all.push(now); now = []; }
    }
    if (now.length) all.push(now);
    return all;
  }
  line(line) {
    const c = colour(line.number), spot = (step, value) => `${this.x(step).toFixed(1)} ${this.y(value).toFixed(1)}`;
    const middle = point => (point.from + Math.min(point.to, line.run.last_step)) / 2;
    let text = "";
    for (const points of this.stretches(line)) {
      if (points.some(point => point.min < point.max)) {
        const above = points.map(p => spot(middle(p), p.max)), below = points.map(p => spot(middle(p),
          p.min)).reverse();
        text += `<path class="band f${c}" d="M${above.concat(below).join("L")}Z"/>`;
      }
      text += points.length === 1
        ? `<circle class="f${c}" cx="${this.x(middle(points[0])).toFixed(1)}" ` +
          `cy="${this.y(points[0].mean).toFixed(1)}" r="2"/>`
        : `<path class="line s${c}" d="M${points.map(p => spot(middle(p), p.mean)).join("L")}"/>`;
    }
    const seen = this.seenEvals(line);
    if (!line.points.length && seen.length > 1)
      text += `<path class="line s${c}" d="M${seen.map(one => spot(one.step, one[this.name])).join("L")}"/>`;
    for (const one of seen)
      text += `<circle class="eval f${c}" cx="${this.x(one.step).toFixed(1)}" ` +
        `cy="${this.y(one[this.name]).toFixed(1)}" r="4.5">` +
        `<title>${escapeText(line.run.name)}: eval ${escapeText(one.eval)}, step ${one.step}: ` +
          `${shown(one[this.name])}</title></circle>`;
    return `<g class="run" data-run="${line.number}">${text}</g>`;
  }
  marks(line) {
    let text = "";
    for (const mark of line.run.marks) {
      if (!isMark(mark) || mark.step < this.from || mark.step > this.to) continue;
      const long = mark.kind === "resume" || mark.kind === "fault", x = this.x(mark.step).toFixed(1);
      text += `<path class="mark ${mark.kind.replace(" ", "-")}" d="M${x} ${this.top - 4}V${long
        ? this.height - this.bottom : this.top + 5}">` +
        `<title>${escapeText(line.run.name)}: ${escapeText(mark.kind)}, step ${mark.step} ${escapeText(mark.text ||
          "")}</title></path>`;
    }
    return text;
  }
  key() {
    const names = new Set(this.runs.flatMap(line => line.evals.map(one => one.eval)));
    if (!names.size) return "";
    return `<text class="faint" text-anchor="end" x="${this.width - 74}" y="13">&#9679; eval: ` +
      `${escapeText([...names].join(", "))}</text>`;
  }
  svg() {
    const none = this.isEmpty ? `<text class="faint" x="${this.left + 8}" y="${this.top +
      30}">no values in these steps</text>` : "";
    return `<svg class="picture" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${this.width} ${this.height}" ` +
      `role="img" ` +
      `aria-label="${escapeText(this.name)} over steps">${this.axes()}${this.key()}${none}` +
      this.runs.map(line => this.marks(line)).join("") + this.runs.map(line => this.line(line)).join("") +
      `<path class="cursor" visibility="hidden"/><rect class="select" visibility="hidden" y="${this.top}" ` +
        `height="${this.height - this.top - this.bottom}"/></svg>`;
  }
  // What the runs have at a step: "loss, step 12: 4.61 (4.5 to 4.7)".
  valuesAt(step) {
    const rows = [];
    for (const line of this.runs) {
      const point = line.points.find(p => p && step >= p.from && step <= p.to);
      if (!point) continue;
      const steps = point.from === point.to ? `step ${point.from}` : `steps ${point.from} to ${point.to}`;
      rows.push({number: line.number, steps, text: shown(point.mean) +
        (point.min < point.max ? ` (${shown(point.min)} to ${shown(point.max)})` : "")});
    }
    return rows;
  }
}
const kMarks = {
  resume: {text: "resume (dashed)", look: "go"}, fault: {text: "fault", look: "alert"},
  skipped: {text: "skipped step", look: "alert"}, "not finite": {text: "value that is not finite", look: "alert"},
  rerun: {text: "step that was run again", look: "caution"}, spike: {text: "spike", look: "caution"},
  warning: {text: "warning", look: "caution"}};
const isMark = mark => mark.kind in kMarks && mark.step > 0;

// One quantity of all MoE layers over steps. `top`: the value of the darkest cell.
function heatMap(name, layers, top, width, lastStep) {
  const left = 54, cell = Math.max(9, Math.min(22, 260 / layers.length)), head = 22;
  const rows = layers.map(layer => ({layer: layer.layer, points: layer.series[name]
    ? pointsOf(layer.series[name]) : []}));
  const some = rows.flatMap(row => row.points).find(point => point);
  const bottom = some ? Math.min(...rows.flatMap(row => row.points.filter(p => p).map(p => p.min))) : 0;
  const height = head + cell * rows.length + 22, x = step => left + (width - left - 4) * (step - 1) / lastStep;
  let text = `<text class="name" x="0" y="13">${escapeText(name)}</text>` +
    `<text class="faint" text-anchor="end" x="${width - 4}" y="13">${shown(bottom)} to ${shown(top)}</text>`;
  rows.forEach((row, i) => {
    const y = (head + i * cell).toFixed(1), every = Math.ceil(11 / cell);
    if (i % every === 0) text += `<text class="faint tiny" text-anchor="end" x="${left - 6}" y="${(+y + cell / 2 +
      4).toFixed(1)}">layer ${row.layer}</text>`;
    for (const point of row.points) {
      if (!point) continue;
      const share = top > bottom ? (point.max - bottom) / (top - bottom) : 0, x0 = x(point.from);
      const steps = point.from === point.to ? `step ${point.from}` : `steps ${point.from} to ${point.to}`;
      text += `<rect class="heat" x="${x0.toFixed(1)}" y="${y}" width="${Math.max(.6, x(Math.min(point.to,
        lastStep) + 1) - x0).toFixed(1)}" ` +
        `height="${(cell - 1).toFixed(1)}" fill-opacity="${(.05 +
          .95 * share).toFixed(2)}"><title>layer ${row.layer}, ${steps}: ` +
        `${shown(point.mean)}${point.min < point.max ? ` (${shown(point.min)} to ${shown(point.max)})` : ""}</title>` +
          `</rect>`;
    }
  });
  for (const tick of ticks(1, lastStep, width / 90))
    if (Number.isInteger(tick)) text += `<text class="faint" text-anchor="middle" x="${x(tick).toFixed(1)}" ` +
      `y="${height - 6}">${shown(tick)}</text>`;
  return `<svg class="picture" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height.toFixed(0)}" ` +
    `role="img" aria-label="${escapeText(name)} by layer and step">${text}</svg>`;
}
