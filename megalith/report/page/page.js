
// Fills the page from its data, again when its server has new ones.
let data = JSON.parse(document.getElementById("data").textContent);
const view = {from: undefined, to: undefined, isLog: false};
const element = id => document.getElementById(id);
const set = (id, html) => { element(id).innerHTML = html; };
const widthOf = id => Math.max(280, Math.floor(element(id).clientWidth || document.body.clientWidth - 32));
const kMain = ["loss", "grad_norm", "lr", "tokens_per_second"];

// The widths of charts in a `.grid`, as its style makes them.
function chartWidth(id) {
  const all = widthOf(id), columns = Math.max(1, Math.floor((all + 22) / 452));
  return Math.floor((all - 22 * (columns - 1)) / columns);
}
function seriesNames() {
  const names = new Set(data.runs.flatMap(run => Object.keys(run.series)));
  const isConstant = name => data.runs.every(run => !run.series[name] || "same" in run.series[name]);
  const losses = [...names].filter(name => name !== "loss" && /loss$|accuracy$/.test(name) && !isConstant(name)).sort();
  const scores = [...new Set(data.runs.flatMap(scoreNames))].sort();
  const main = [...["loss", ...losses, ...kMain.slice(1)].filter(name => names.has(name)),
    ...scores.filter(name => name.endsWith(" acc"))];
  scores.forEach(name => names.add(name));
  return {main, more: [...names].filter(name => !main.includes(name)).sort()};
}
const swatch = number => `<span class="swatch b${colour(number)}"></span>`;
const runTitle = number => data.runs.length < 2 ? "" : `<h3>` +
  `${swatch(number)}${escapeText(data.runs[number].name)}</h3>`;
const lastOf = (run, name) => {
  const points = run.series[name] ? pointsOf(run.series[name]).filter(point => point) : [];
  return points.length ? points[points.length - 1].mean : null;
};

function drawRuns() {
  document.title = "megalith: " + data.runs.map(run => run.name).join(", ");
  set("title", data.runs.length === 1 ? escapeText(data.runs[0].name) : `${data.runs.length} runs`);
  const rows = data.runs.map((run, i) => {
    const evaluation = run.evals.filter(one => typeof one.loss === "number").pop(), count = run.mark_counts;
    const notes = Object.keys(kMarks).filter(kind => count[kind])
      .map(kind => `<span class="${kMarks[kind].look}">${count[kind]} ${kind}</span>`).join(", ");
    return `<tr><td>${swatch(i)}${escapeText(run.name)}</td><td class="number">${run.last_step}${run.planned_steps
      ? ` of ${run.planned_steps}` : ""}</td>` +
      `<td class="number">${shown(lastOf(run, "loss"))}</td><td class="number">${evaluation
        ? shown(evaluation.loss) : "-"}</td>` +
      `<td class="number">${shown(lastOf(run, "tokens_per_second"))}</td><td class="whole">${notes ||
        "-"}</td><td class="text">${escapeText(run.title)}</td></tr>`;
  });
  set("runs", `<div class="scroll"><table><tr><th>run</th><th class="number">step</th><th class="number">loss</th>` +
    `<th class="number">last eval</th><th class="number">tokens/s</th><th>marks</th><th>model, grid</th></tr>` +
      `${rows.join("")}</table></div>` +
    data.runs.map((run, i) => run.steps ? "" : `<p class="caution">${escapeText(run.name)}: no complete line of a ` +
      `step yet</p>`).join(""));
}

function drawCharts(id, names) {
  const width = chartWidth(id);
  const charts = names.map(name => new Chart(name, data.runs, width, view));
  set(id, charts.map(chart => `<figure data-series="${escapeText(chart.name)}">${chart.svg()}<button type="button">` +
    `save SVG</button></figure>`).join(""));
  [...element(id).children].forEach((figure, i) => listen(figure, charts[i]));
}
function drawAllCharts() {
  const names = seriesNames();
  drawCharts("main-charts", names.main);
  element("more").hidden = !names.more.length;
  if (element("more").open) drawCharts("more-charts", names.more);
  const kinds = Object.keys(kMarks).filter(kind => data.runs.some(run => run.mark_counts[kind]));
  set("key", kinds.length ? "Marks: " + kinds.map(kind =>
    `<span class="${kMarks[kind].look}">&#9474; ${kMarks[kind].text}</span>`).join(", ") : "");
}

// The pointer shows the values at a step in a line below the chart, and chooses steps.
function listen(figure, chart) {
  const svg = figure.querySelector("svg"), cursor = svg.querySelector(".cursor"), select = svg.querySelector(".select");
  let start = null;
  const px = event => { const box = svg.getBoundingClientRect();
    return (event.clientX - box.left) * chart.width / box.width; };
  const show = event => {
    const step = Math.round(Math.min(chart.to, Math.max(chart.from, chart.at(px(event))))), rows = chart.valuesAt(step);
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("d", `M${chart.x(step).toFixed(1)} ${chart.top}V${chart.height - chart.bottom}`);
    readout(figure, rows.length ? `${rows[0].steps}: ` + rows.map(row => (data.runs.length > 1
      ? swatch(row.number) : "") + row.text).join(" &nbsp; ") : `step ${step}: no value`);
    if (start === null) return;
    select.setAttribute("visibility", "visible");
    select.setAttribute("x", Math.min(start, px(event)));
    select.setAttribute("width", Math.abs(px(event) - start));
  };
  const choose = event => {
    if (start === null) return;
    const ends = [chart.at(start), chart.at(px(event))].sort((a, b) => a - b),
      is_drag = Math.abs(px(event) - start) > 8;
    start = null;
    select.setAttribute("visibility", "hidden");
    if (!is_drag) return;
    view.from = Math.max(1, Math.floor(ends[0]));
    view.to = Math.ceil(ends[1]);
    drawAllCharts();
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", event => { if (event.pointerType === "mouse") start = px(event); show(event); });
  svg.addEventListener("pointerup", choose);
  svg.addEventListener("pointerleave", () => { start = null; cursor.setAttribute("visibility", "hidden");
    select.setAttribute("visibility", "hidden"); readout(figure, ""); });
  svg.addEventListener("dblclick", () => { view.from = view.to = undefined; drawAllCharts(); });
  figure.querySelector("button").addEventListener("click", () => save(chart.name));
}
function readout(figure, html) {
  let line = figure.querySelector("figcaption");
  if (!line) { line = document.createElement("figcaption"); line.className = "hint"; figure.append(line); }
  line.innerHTML = html || "&nbsp;";
}

// A chart as a file of its own, with the style that it needs.
function standalone(name) {
  const svg = element("main-charts").querySelector(`[data-series="${CSS.escape(name)}"] svg`) ||
    element("more-charts").querySelector(`[data-series="${CSS.escape(name)}"] svg`);
  if (!svg) return "";
  const copy = svg.cloneNode(true), style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  for (const part of copy.querySelectorAll(".cursor, .select")) part.remove();
  style.textContent = element("chart-style").textContent;
  copy.prepend(style);
  return new XMLSerializer().serializeToString(copy) + "\n";
}
function save(name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([standalone(name)], {type: "image/svg+xml"}));
  link.download = name + ".svg";
  link.click();
}

function drawLoads() {
  const runs = data.runs.map((run, number) => ({run, number})).filter(({run}) => run.loads.length);
  element("loads").hidden = !runs.length;
  const lastStep = Math.max(1, ...data.runs.map(run => run.last_step));
  const names = [...new Set(runs.flatMap(({run}) => run.loads.flatMap(layer => Object.keys(layer.series))))];
  const first = ["echo.before", "echo.after", "max_over_mean"].filter(name => names.includes(name));
  const rest = names.filter(name => !first.includes(name)).sort(),
    open = element("load-maps").querySelector("details")?.open;
  // The loads of ranks before and after clones have one scale, in all runs.
  const together = name => name.startsWith("echo.") && first.includes(name) ? ["echo.before", "echo.after"] : [name];
  const top = name => Math.max(0, ...runs.flatMap(({run}) => run.loads.flatMap(layer => together(name).flatMap(one =>
    layer.series[one] ? pointsOf(layer.series[one]).filter(point => point).map(point => point.max) : []))));
  const maps = (list, run, width) => list.filter(name => run.loads.some(layer => layer.series[name]))
    .map(name => `<figure data-load="${escapeText(name)}">${heatMap(name, run.loads, top(name), width,
      lastStep)}</figure>`).join("");
  const width = chartWidth("load-maps");
  const hottest = run => {
    const rows = run.loads.filter(layer => layer.hottest).map(layer => `<tr><td>layer ${layer.layer}</td>` +
      layer.hottest.map(([expert, share]) => `<td class="number">expert ${expert}: ${(100 * share).toFixed(1)} ` +
        `%</td>`).join("") + "</tr>");
    return rows.length ? `<details><summary>Experts that most tokens chose, last step</summary><div class="scroll">` +
      `<table>${rows.join("")}</table></div></details>` : "";
  };
  set("load-maps", runs.map(({run, number}) => `${runTitle(number)}<div class="grid">${maps(first, run,
    width)}</div>${hottest(run)}`).join("") +
    (rest.length ? `<details id="more-loads"${open ? " open" : ""}><summary>More about the experts</summary><div ` +
      `id="more-maps"></div></details>` : ""));
  const more = element("more-loads");
  const drawMore = () => { if (more.open) set("more-maps", runs.map(({run, number}) =>
    `${runTitle(number)}<div class="grid">${maps(rest, run, width)}</div>`).join("")); };
  if (more) { more.addEventListener("toggle", drawMore); drawMore(); }
}

function drawBeside(section, id, of) {
  const isOne = data.runs.length === 1, width = isOne ? Math.min(960, widthOf(id)) : chartWidth(id);
  set(id, `<div class="beside${isOne ? " one" : ""}">${data.runs.map((run, number) =>
    `<div>${runTitle(number)}${of(run, width) ?? `<p class="hint">Not known: ` +
      `${escapeText(run.recipe_problem || "OUT has no recipe.toml")}</p>`}</div>`).join("")}</div>`);
}

function drawEvents() {
  set("event-tables", data.runs.map((run, number) => {
    const rows = run.marks.map(mark => `<tr><td class="whole">${escapeText((mark.time || "").replace("T",
      " ").replace("Z", ""))}</td><td class="number">${mark.step}</td>` +
      `<td class="${kMarks[mark.kind]?.look || ""}">${escapeText(mark.kind)}</td>` +
      `<td class="text">${escapeText(mark.text || "")}</td></tr>`);
    const hidden = Object.values(run.mark_counts).reduce((sum, count) => sum + count, 0) - run.marks.length;
    const notes = [...run.left_out.map(text => `<p class="caution">${escapeText(text)}</p>`),
      ...(run.call_logs.length ? [`<p class="alert">Ranks wrote their last communication calls when a collective ` +
        `failed: ${escapeText(run.call_logs.join(", "))}</p>`] : []),
      ...(hidden > 0 ? [`<p class="hint">and ${hidden} more</p>`] : [])];
    return runTitle(number) + (rows.length ? `<div class="scroll"><table><tr><th>time (UTC)</th><th class="number">` +
      `step</th><th>what</th><th>text</th></tr>${rows.join("")}</table></div>` : "<p class=\"hint\">None.</p>") +
        notes.join("");
  }).join(""));
}

function drawRecipes() {
  const keys = [...new Set(data.runs.flatMap(run => Object.keys(run.recipe)))], differs = new Set(data.differs);
  const row = key => `<tr${differs.has(key) ? " class=\"differs\"" : ""}><td class="whole"><code>` +
    `${escapeText(key)}</code></td>` +
    data.runs.map(run => `<td><code>${key in run.recipe ? escapeText(run.recipe[key]) : "-"}</code></td>`).join("") + "</tr>";
  const table = list => `<div class="scroll"><table><tr><th>key</th>${data.runs.map((run, i) =>
    `<th>${swatch(i)}${escapeText(run.name)}</th>`).join("")}</tr>${list.map(row).join("")}</table></div>`;
  const several = data.runs.length > 1, open = element("all-keys")?.open;
  set("recipe-tables", (several ? `<h3>What differs</h3>${data.differs.length
    ? table(data.differs) : "<p class=\"hint\">Nothing: all keys are equal.</p>"}` : "") +
    `<details id="all-keys"${open ? " open" : ""}><summary>All ${keys.length} keys, as resolved</summary>` +
      `${table(keys)}</details>` +
    data.runs.filter(run => run.recipe_problem).map(run => `<p class="caution">${escapeText(run.recipe_problem)}</p>`).join(""));
}

function draw() {
  drawRuns();
  drawAllCharts();
  drawLoads();
  drawBeside("memory", "memory-bars", (run, width) => run.memory && memoryPicture(run.memory, width));
  drawBeside("grids", "grid-pictures", (run, width) => run.grid && gridPictures(run.grid, width));
  drawBeside("schedules", "schedule-pictures", (run, width) => run.schedule && schedulePicture(run.schedule, width));
  drawEvents();
  drawRecipes();
}

let tag = "";
async function poll() {
  let text = "";
  try {
    const answer = await fetch("data.json", {cache: "no-store", headers: tag ? {"If-None-Match": tag} : {}});
    if (answer.status === 200) {
      tag = answer.headers.get("ETag") || "";
      data = await answer.json();
      draw();
    }
    text = `live: step ${data.runs.map(run => run.last_step).join(", ")}, looked at ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    text = "the server does not answer: the page shows what it had";
  }
  element("state").textContent = text;
  setTimeout(poll, 2000);
}

draw();
let drawnWidth = document.body.clientWidth;
addEventListener("resize", () => {
  if (document.body.clientWidth === drawnWidth) return;
  drawnWidth = document.body.clientWidth;
  draw();
});
element("log").addEventListener("change", event => { view.isLog = event.target.checked; drawAllCharts(); });
element("more").addEventListener("toggle", drawAllCharts);
if (live) poll();
if (location.hash === "#all") for (const part of document.querySelectorAll("details")) part.open = true;
if (location.hash.startsWith("#svg=")) {  // scripts/check-page reads a chart from here
  const text = standalone(decodeURIComponent(location.hash.slice(5))), pre = document.createElement("pre");
  pre.id = "svg";
  pre.textContent = text;
  document.body.replaceChildren(pre);
}
