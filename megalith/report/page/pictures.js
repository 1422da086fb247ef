
// Pictures of memory, grid and schedule.
function svgOf(width, height, label, content) {
  return `<svg class="picture" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${Math.ceil(height)}" ` +
    `role="img" ` +
    `aria-label="${escapeText(label)}">${content}</svg>`;
}

// A bar for the ranks that are alike, cut by owner; the table below has the numbers.
function memoryPicture(memory, width) {
  const total = row => Object.values(row.bytes).reduce((sum, size) => sum + size, 0);
  const rows = [...memory.rows].sort((a, b) => total(b) - total(a)).slice(0, 8), most = Math.max(1, ...rows.map(total));
  const owners = [...new Set(rows.flatMap(row => Object.keys(row.bytes)))];
  const sizeOf = owner => Math.max(...rows.map(row => row.bytes[owner] || 0));
  owners.sort((a, b) => sizeOf(b) - sizeOf(a));
  const named = owners.slice(0, 5), kind = owner => named.indexOf(owner) < 0 ? 5 : named.indexOf(owner);
  let text = "";
  rows.forEach((row, i) => {
    const y = i * 40;
    let x = 0;
    text += `<text x="0" y="${y + 12}">${row.ranks.includes("-") || row.ranks.includes(",")
      ? "ranks" : "rank"} ${escapeText(row.ranks)}: ${bytes(total(row))}</text>`;
    for (const owner of owners) {
      const part = (row.bytes[owner] || 0) / most * width;
      text += `<rect class="f${kind(owner)}" x="${x.toFixed(1)}" y="${y +
        17}" width="${part.toFixed(1)}" height="14">` +
        `<title>${escapeText(owner)}: ${bytes(row.bytes[owner] || 0)}</title></rect>`;
      x += part;
    }
  });
  const head = rows.map(row => `<th class="number">${escapeText(row.ranks)}</th>`).join("");
  const body = owners.map(owner => `<tr><td><span class="swatch b${kind(owner)}"></span>${escapeText(owner)}</td>` +
    rows.map(row => `<td class="number">${row.bytes[owner] ? bytes(row.bytes[owner]) : "-"}</td>`).join("") +
      "</tr>").join("");
  const left = memory.rows.length > rows.length ? `<p class="hint">The ${rows.length} of ${memory.rows.length} kinds ` +
    `of ranks that take most.</p>` : "";
  const measured = memory.measured.length ? `<p class="hint">Not planned, measured when a run starts: ` +
    `${escapeText(memory.measured.join(", "))}.</p>` : "";
  return svgOf(width, rows.length * 40, "memory by owner", text) +
    `<div class="scroll"><table><tr><th>owner, by rank</th>${head}</tr>${body}</table></div>${left}${measured}`;
}

// Ranks as squares: a box for each stage, in it a row for each data-parallel replica; `inner` axes run along a row.
function gridPicture(title, ranks, size, axes, width) {
  const [inner, middle, outer, pp] = axes.map(axis => axis.at), perRow = size[axes[0].name] * (size[axes[1].name] || 1);
  const cell = Math.max(16, Math.min(34, (width - 70) / perRow)), rows = size[axes[2].name], stages = size.pp;
  const boxHeight = rows * cell + 10, height = stages * (boxHeight + 8) + 24;
  let text = `<text class="name" x="0" y="13">${escapeText(title)}</text>`, drawn = 0;
  for (let stage = 0; stage < stages; ++stage) {
    const y = 22 + stage * (boxHeight + 8);
    text += `<rect class="box" x="56" y="${y}" width="${(perRow * cell +
      8).toFixed(1)}" height="${boxHeight.toFixed(1)}" rx="4"/>` +
      `<text class="faint" text-anchor="end" x="50" y="${(y + boxHeight / 2 + 4).toFixed(1)}">stage ${stage}</text>`;
  }
  ranks.forEach((at, rank) => {
    const column = at[inner] + (middle < 0 ? 0 : at[middle] * size[axes[0].name]);
    const x = 60 + column * cell, y = 22 + at[pp] * (boxHeight + 8) + 5 + at[outer] * cell;
    const kind = colour(at[axes[0].name === "etp" ? middle : outer]), side = (cell - 2).toFixed(1);
    text += `<rect class="f${kind}" fill-opacity=".3" x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${side}" ` +
      `height="${side}" rx="2">` +
      `<title>rank ${rank}: ${axes.map(axis => axis.at < 0 ? "" : `${axis.name} ${at[axis.at]}`).filter(word =>
        word).join(", ")}</title></rect>` +
      `<text class="tiny" text-anchor="middle" x="${(x + cell / 2 - 1).toFixed(1)}" y="${(y + cell / 2 +
        3).toFixed(1)}">${rank}</text>`;
    ++drawn;
  });
  return svgOf(Math.max(width, 70 + perRow * cell), height, title, text);
}
function gridPictures(grid, width) {
  const d = grid.dense, e = grid.expert;
  const words = sizes => Object.entries(sizes).map(([axis, size]) => `${axis} ${size}`).join(", ");
  let text = gridPicture(`${words(d)}: a row is a replica (dp)`, grid.ranks, {...d},
    [{name: "tp", at: 0}, {name: "cp", at: 1}, {name: "dp", at: 2}, {name: "pp", at: 3}], width);
  if (e) text += gridPicture(`experts: ${words(e)}: a colour per ep`, grid.ranks, {...e},
    [{name: "etp", at: 4}, {name: "ep", at: 5}, {name: "edp", at: 6}, {name: "pp", at: 3}], width);
  if (grid.world > grid.ranks.length) text += `<p class="hint">The first ${grid.ranks.length} of ${grid.world} ` +
    `ranks.</p>`;
  return text;
}

// A row for each stage, time from left to right: forward passes filled, backward passes pale, idle time grey.
function schedulePicture(schedule, width) {
  const s = schedule, left = 56, row = 26;
  const cost = span => span[1] > 0 ? 1 : 2, end = Math.max(1, ...s.spans.flatMap(spans => spans.map(span =>
    span[0] + cost(span))));
  const unit = Math.max(3, (width - left - 4) / end), all = left + unit * end + 4;
  let text = "";
  s.spans.forEach((spans, stage) => {
    const y = stage * row;
    text += `<text class="faint" text-anchor="end" x="${left - 6}" y="${y + 16}">stage ${stage}</text>` +
      `<rect class="idle" x="${left}" y="${y + 2}" width="${(unit * end).toFixed(1)}" height="${row - 4}"/>`;
    for (const span of spans) {
      const [start, sign, microbatch] = span, chunk = Math.abs(sign) - 1, long = cost(span) * unit;
      const word = sign > 0 ? "forward" : "backward", c = colour(chunk);
      text += `<rect class="f${c}" fill-opacity="${sign > 0 ? .75 : .35}" x="${(left +
        start * unit).toFixed(1)}" y="${y + 2}" width="${Math.max(1, long - 1).toFixed(1)}" height="${row - 4}">` +
        `<title>stage ${stage}: ${word}, microbatch ${microbatch}${s.chunks > 1
          ? `, chunk ${chunk}` : ""}</title></rect>`;
      if (long > 13) text += `<text class="tiny" text-anchor="middle" x="${(left + start * unit +
        long / 2).toFixed(1)}" y="${y + 16}">${microbatch}</text>`;
    }
  });
  const drawn = s.drawn < s.microbatches ? ` The first ${s.drawn} of ${s.microbatches} microbatches are drawn, as a ` +
    `step of their own.` : "";
  const idle = s.idle_percent === undefined ? "" : ` Every stage is idle for ${s.idle_percent} % of the step, if ` +
    `communication is free.`;
  const colours = s.chunks > 1 ? "; a colour is a chunk" : "";
  return `<p class="hint">${escapeText(s.kind.replace(/_/g, " "))}: ${s.stages} ${s.stages === 1
    ? "stage" : "stages"}` +
    `${s.chunks > 1 ? ` of ${s.chunks} chunks` : ""}, ${s.microbatches} ${s.microbatches === 1
      ? "microbatch" : "microbatches"}.${idle}${drawn} ` +
    `Dark: forward, pale: backward${colours}; the number is that of the microbatch.</p>` +
    (s.spans.length ? `<div class="scroll">${svgOf(all, s.spans.length * row, "schedule", text).replace("<svg ",
      `<svg style="min-width:${Math.min(all, Math.ceil(end * 6)).toFixed(0)}px" `)}</div>` : "");
}
