// Signed maps: attention and COS, on a scale symmetric around 0.
const mapPaper = [208, 214];
const stripPaper = [155, 160];

// Rows of one map out of many that lie one after the other.
function mapAt(values, index, rows, columns) {
  const start = index * rows * columns;
  return Array.from({ length: rows }, (_, row) =>
    Array.from(values.subarray(start + row * columns, start + (row + 1) * columns)));
}

function extent(map) {
  let low = Infinity, high = -Infinity, undefinedCells = 0;
  for (const row of map) {
    for (const value of row) {
      if (!Number.isFinite(value)) undefinedCells += 1;
      else { low = Math.min(low, value); high = Math.max(high, value); }
    }
  }
  const empty = low > high;
  return { low, high, undefinedCells, empty, limit: empty ? null : Math.max(Math.abs(low), Math.abs(high)) || 1 };
}

const shown = (value) => (value === 0 ? "0" : Number(value.toPrecision(2)).toString().replace("-", "−"));

// A limit of null says that there is no value that could have a scale.
function signedTraces(map, limit, hover, compact) {
  const traces = [{
    type: "heatmap", z: map.map((row) => row.map((value) => (Number.isFinite(value) ? value : null))),
    ...(limit === null ? {} : { zmin: -limit, zmax: limit }), colorscale: scaleOf(colors("map")), hoverongaps: false, hovertemplate: hover,
    showscale: !compact && limit !== null, xgap: 0, ygap: 0,
    colorbar: { thickness: 10, len: 1, outlinewidth: 0, tickfont: { size: 10 }, x: 1.02 },
  }];
  const gaps = { x: [], y: [] };
  map.forEach((row, y) => row.forEach((value, x) => {
    if (!Number.isFinite(value)) { gaps.x.push(x); gaps.y.push(y); }
  }));
  if (gaps.x.length) {
    const flat = color("undefined");
    traces.push({
      type: "heatmap", z: map.map((row) => row.map((value) => (Number.isFinite(value) ? null : 1))),
      colorscale: [[0, flat], [1, flat]], showscale: false, hoverongaps: false,
      hovertemplate: "(%{y}, %{x}): undefined<extra></extra>",
    }, {
      type: "scatter", mode: "markers", ...gaps, hoverinfo: "skip",
      marker: { symbol: "x-thin", size: compact ? 4 : 7, line: { width: 1.2, color: "#111111" } },
    });
  }
  return traces;
}

function outlineTraces(targets, layer, compact) {
  return targets.filter((target) => target.layer === layer).map((target, index) => {
    const x = [], y = [];
    for (const [x0, y0, x1, y1] of target.segments) { x.push(x0, x1, null); y.push(y0, y1, null); }
    return {
      type: "scatter", mode: "lines", x, y, name: plain(target.name), hoverinfo: "skip",
      line: { color: color("outline"), width: compact ? 1 : 1.6, dash: dashes[index % dashes.length] },
    };
  });
}

// The divider is the row at which outputs begin; groups are positions before which a line parts the map both ways.
function mapLayout(rows, columns, xTitle, yTitle, { divider = null, groups = [], compact }) {
  const line = (across, at, dash) => ({ type: "line", xref: "x", yref: "y", layer: "above",
    x0: across ? -0.5 : at - 0.5, x1: across ? columns - 0.5 : at - 0.5,
    y0: across ? at - 0.5 : -0.5, y1: across ? at - 0.5 : rows - 0.5,
    line: { color: color("muted"), width: dash ? 1 : 0.6, dash: dash ?? "solid" } });
  const axis = { showgrid: false, ticks: "outside", ticklen: 3, constrain: "domain", showline: true, mirror: true };
  return baseLayout({
    margin: compact ? { l: 30, r: 4, t: 4, b: 30 } : { l: 46, r: 52, t: 8, b: 42 },
    font: { family: getComputedStyle(document.body).fontFamily, size: compact ? 9 : 12, color: color("muted") },
    xaxis: { ...axis, ...wholeTicks(columns, compact ? 4 : 9), range: [-0.5, columns - 0.5], title: { text: xTitle, standoff: 6 } },
    yaxis: { ...axis, ...wholeTicks(rows, compact ? 4 : 9), range: [rows - 0.5, -0.5], scaleanchor: "x", constraintoward: "top", title: { text: yTitle, standoff: 6 } },
    shapes: [...groups.flatMap((at) => [line(true, at), line(false, at)]), ...(divider ? [line(true, divider, "dot")] : [])],
  });
}

const nothing = "every value is undefined (yellow with a ×)";

function undefinedNote({ empty, undefinedCells: count }) {
  return count && !empty ? ` ${count} undefined ${count === 1 ? "cell is" : "cells are"} yellow with a ×.` : "";
}

// Maps of one run: its layers and COS matrices at all checkpoints, unpacked once.
function mapsOf(sent) {
  return {
    ...sent,
    layers: sent.layers.map((layer) => ({ ...layer, values: floats(layer.data) })),
    cosine: sent.cosine && { ...sent.cosine, values: floats(sent.cosine.data) },
  };
}

function attentionInto(chart, run, index, { layer = 0, head = 0, outline = true, ownScale = false, compact = false } = {}) {
  const [heads, rows, columns] = run.layers[layer].shape;
  const map = mapAt(run.layers[layer].values, index * heads + head, rows, columns);
  // Later keys are zero by the mask, also where every value of the model's own is undefined.
  const own = extent(map.map((row, query) => row.slice(0, query + 1)));
  const found = own.empty ? own : extent(map);
  const limit = ownScale ? found.limit : run.layers[layer].limit;
  const traces = !run.patternPresent[index] ? [] : signedTraces(map, limit, "query %{y}, key %{x}: %{z:.3~g}<extra></extra>", compact);
  if (outline) traces.push(...outlineTraces(run.targets, layer, compact));
  draw(chart, traces, mapLayout(rows, columns, "key position", "query position",
    { divider: run.outputStart, groups: run.groups, compact }), compact ? stripPaper : mapPaper);
  return { ...found, limit: found.empty ? null : limit };
}

function cosineInto(chart, run, index, { compact = false } = {}) {
  const { n, values, present } = run.cosine;
  const map = mapAt(values, index, n, n);
  draw(chart, !present[index] ? [] : signedTraces(map, 1, "outputs %{y} and %{x}: %{z:.3~f}<extra></extra>", compact),
    mapLayout(n, n, "output", "output", { groups: run.groups, compact }), compact ? stripPaper : mapPaper);
  return extent(map);
}

// Fills a choice of heads; `choose` is told the layer and the head.
function offerHeads(select, layers, choose) {
  layers.forEach((layer, index) => {
    for (let head = 0; head < layer.shape[0]; head += 1) {
      select.append(element("option", { value: `${index} ${head}`, textContent: `layer ${index} · head ${head}` }));
    }
  });
  select.parentElement.hidden = select.options.length < 2;
  select.addEventListener("change", () => choose(...select.value.split(" ").map(Number)));
}

// Some checkpoints side by side: a row of attention maps, a row of COS matrices.
function addStrip(parent, run, options = () => ({}), go = null) {
  const rows = [[run.layers.length, "Attention map", attentionInto], [run.cosine, "COS matrix", cosineInto]];
  for (const [has, title, into] of rows) {
    if (!has) continue;
    const grid = element("div", { className: "strip" });
    parent.append(grid);
    for (const [name, step] of Object.entries(run.shown)) {
      const index = run.checkpoints.findIndex((checkpoint) => checkpoint.step === step);
      const near = name === "collapse" && step !== run.opening ? "near the " : "";
      const what = `${near}${run.names[name]}, step ${step}`;
      const chart = element("div", { className: "chart", role: "img", ariaLabel: `${title} ${what}` });
      const caption = go ? element("button", { type: "button", textContent: what, onclick: () => go(index) }) : what;
      grid.append(element("figure", {}, element("figcaption", {}, caption), chart));
      addDrawing(() => into(chart, run, index, { ...options(), ownScale: false, compact: true }));
    }
  }
}
