// Draws the page from the JSON in #data. Texts of run directories reach the page only through
// textContent and through the data of figures, never as HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DASHES = [[1, 0], [7, 3], [2, 2], [9, 3, 2, 3]];
const STAGES = ["train", "evaluate", "aggregate", "sample"];
const MOST_SVG_MARKS = 3000;  // beyond, a canvas is quicker
const OVERLAP = 1.1;  // cells reach under their neighbours: no seams between them
const $ = (id) => document.getElementById(id);
const hidden = new Set();  // series that are switched off
const views = new Map();
const drawn = { many: [], run: [] };  // figures to draw again in another theme

function element(tag, attributes = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  out.append(...children);
  return out;
}

// ---- theme -----------------------------------------------------------------------------------

function colours(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name);
  return text.split(",").map((colour) => colour.trim());
}

function category(i, count = 1) {
  const all = colours("--categories");
  return count > all.length ? all[0] : all[i % all.length];
}

function theme() {
  const [ink, quiet, line, grid, card] =
    ["--ink", "--quiet", "--line", "--grid", "--card"].map((name) => colours(name)[0]);
  const silent = { aria: false };  // the figure as a whole has a description
  return {
    background: card,
    font: 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif',
    axis: {
      ...silent, labelColor: quiet, titleColor: ink, domainColor: line, tickColor: line,
      gridColor: grid, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal",
    },
    legend: { ...silent, labelColor: quiet, titleColor: ink, titleFontWeight: "normal" },
    mark: { ...silent, tooltip: true },
    rule: { color: quiet }, line: { color: ink }, bar: { color: category(0) },
    view: { stroke: line },
    range: {
      category: colours("--categories"), ramp: colours("--ramp"),
      diverging: colours("--diverging"),
    },
  };
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").setAttribute("aria-pressed", String(name === "dark"));
}

// ---- figures ---------------------------------------------------------------------------------

let queue = Promise.resolve();
let waiting = 0;

function draw(name, make) {
  // One after another: two drawings of one figure at a time would both stay.
  waiting += 1;
  document.documentElement.dataset.ready = "false";
  queue = queue.then(() => drawNow(name, make)).catch(console.error).then(() => {
    waiting -= 1;
    document.documentElement.dataset.ready = String(waiting === 0);
  });
}

async function drawNow(name, make) {
  const figure = document.querySelector(`[data-figure="${name}"]`);
  const made = make();
  figure.hidden = made === null;
  views.get(name)?.finalize();
  views.delete(name);
  if (made === null) return;
  const title = figure.querySelector("h3").textContent;
  figure.querySelector("figcaption").textContent = made.caption;
  const spec = structuredClone(DATA.figures[name]);
  spec.datasets = made.data;
  spec.height = made.height ?? 280;
  spec.description = `${title}. ${made.caption}`;
  for (const parameter of spec.params ?? []) parameter.value = made.params[parameter.name];
  made.adapt?.(spec, figure.querySelector(".plot").clientWidth);
  if (made.params) showAllNames(spec, made.params);
  const legend = figure.querySelector("ul.legend");
  if (legend) legend.replaceChildren(...(made.legend ?? []).map(legendEntry));
  const marks = Math.max(...Object.values(made.data).map((rows) => rows.length));
  const { view } = await vegaEmbed(figure.querySelector(".plot"), spec, {
    mode: "vega-lite", config: theme(), downloadFileName: `c2v_sim-${name}`,
    renderer: marks > MOST_SVG_MARKS ? "canvas" : "svg",
    actions: { export: true, source: false, compiled: false, editor: false },
  });
  views.set(name, view);
  figure.querySelector("summary")?.setAttribute("aria-label", `Save the figure: ${title}`);
}

function showAllNames(spec, { middles, rows }) {
  // Vega hides slanted labels that merely come near each other.
  const gaps = middles.slice(1).map((middle, i) => (middle - middles[i]) * spec.height / rows);
  if (gaps.some((gap) => gap < 14)) return;
  for (const axis of [spec.encoding.x.axis, spec.encoding.y.axis]) {
    if (axis.labelExpr) axis.labelOverlap = false;
  }
}

function swatch(colour, dash) {
  const name = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(name, "svg");
  const mark = document.createElementNS(name, dash ? "line" : "rect");
  const shape = dash ? { x1: 0, x2: 26, y1: 6, y2: 6, stroke: colour, "stroke-width": 3,
                         "stroke-dasharray": dash.join(" ") }
                     : { width: 12, height: 12, rx: 2, fill: colour };
  for (const [key, value] of Object.entries(shape)) mark.setAttribute(key, value);
  for (const [key, value] of Object.entries({ width: dash ? 26 : 12, height: 12, "aria-hidden": true })) {
    svg.setAttribute(key, value);
  }
  svg.append(mark);
  return svg;
}

function legendEntry({ name, colour }) {
  return element("li", {}, swatch(colour), name);
}

// ---- all runs --------------------------------------------------------------------------------

const alone = DATA.groups.length === 1;  // then the curves are the measures of one group

function allSeries() {
  if (!alone) return DATA.groups.map((g) => [g.label, g.curves[$("measure").value]]);
  return Object.entries(DATA.measures).map(([key, name]) => [name, DATA.groups[0].curves[key]]);
}

function curvesFigure() {
  const rows = [];
  let top = null;
  allSeries().forEach(([series, curve], i) => {
    if (hidden.has(i)) return;
    curve.round.forEach((round, t) => {
      const mean = curve.mean[t];
      if (mean === null) return;
      if (top === null || mean > top.mean) top = { series, mean, round };
      rows.push({
        series, round, mean, low: curve.low?.[t] ?? mean, high: curve.high?.[t] ?? mean,
        runs: curve.runs?.[t] ?? 1, dot: curve.round.length > 40 ? 0 : 1, colour: category(i), dash: DASHES[Math.floor(i / 8) % 4],
      });
    });
  });
  if (!allSeries().some(([, curve]) => curve.round.length)) return null;
  const seeds = DATA.groups.some((g) => g.runs > 1);
  const torn = DATA.groups.some((g) => g.unfinished && g.runs > 1);
  const caption = [
    top ? `Highest: ${top.series}, ${top.mean.toFixed(1)} % in round ${top.round}.`
        : "No curve is chosen.",
    seeds ? "A line is the mean over the seeds of a group, its band reaches from the smallest to "
            + "the largest value over them." : "Every curve is a single run.",
    torn ? "Where a run is unfinished, later rounds are the mean of the others." : "",
  ];
  return { data: { curves: rows }, height: 340, caption: caption.join(" ").trim() };
}

function stageLegend() {
  return STAGES.map((name, i) => ({ name, colour: category(i) }));
}

function groupTimesFigure() {
  const timed = DATA.groups.map((g) => ({ ...g, total: Object.values(g.seconds).reduce((a, b) => a + b) }));
  if (alone || !timed.some((g) => g.total > 0)) return null;
  const rows = timed.flatMap((g) => STAGES.map((stage, place) =>
    ({ label: g.label, stage, place, seconds: g.seconds[stage], colour: category(place) })));
  const [least, most] = [Math.min, Math.max].map((f) => f(...timed.map((g) => g.total)).toFixed(1));
  const caption = `Seconds a run of the stages of its rounds, ${least} to ${most} s. Only runs on the `
    + "same machine and of the same number of rounds can be compared.";
  const adapt = (spec, width) => { spec.encoding.y.axis.labelLimit = Math.round(0.42 * width); };
  const height = 30 + 24 * timed.length;
  return { data: { times: rows }, height, adapt, legend: stageLegend(), caption };
}

function seriesBoxes() {
  allSeries().forEach(([name], i) => {
    const box = element("input", { type: "checkbox", checked: "" });
    box.addEventListener("change", () => {
      hidden[box.checked ? "delete" : "add"](i);
      draw("curves", curvesFigure);
    });
    const mark = element("span");
    $("series").append(element("label", {}, box, mark, name));
    const paint = () => mark.replaceChildren(swatch(category(i), DASHES[Math.floor(i / 8) % 4]));
    paint();
    repaint.push(paint);
  });
}
const repaint = [];

// ---- one run ---------------------------------------------------------------------------------

function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
  const kind = { 8: Uint8Array, 16: Uint16Array, 32: Uint32Array }[packed.bits];
  return new kind(bytes.buffer);
}

function clientsOf(run) {
  // The rows of clients: their names, groups and colours, and what their axis needs.
  const facts = DATA.pool[run.clients];
  const first = unpack(facts.first), order = facts.order && unpack(facts.order);
  const rowFacts = Array.from({ length: facts.rows }, (_, row) => {
    const group = facts.groups.findIndex((g) => row + 0.5 < g.end + 1e-9);
    const count = (first[row + 1] ?? facts.total) - first[row];
    return {
      client: order ? String(order[row]) : `${count} clients`,
      group: facts.groups[group].name, colour: category(group, facts.groups.length),
    };
  });
  const params = {
    rows: facts.rows,
    middles: facts.by ? facts.groups.map((g) => (g.begin + g.end) / 2) : [],
    names: facts.groups.map((g) => g.name),
  };
  const sorted = facts.by ? `Clients are ordered by ${facts.by}.` : "Clients are in the order of their numbers.";
  const shared = facts.rows < facts.total
    ? ` Neighbours share a row: ${facts.total} clients in ${facts.rows} rows.` : "";
  const coloured = facts.by && facts.groups.length <= 8;
  const legend = coloured ? facts.groups.map((g, i) => ({ name: g.name, colour: category(i) })) : [];
  const height = Math.round(facts.rows * Math.min(22, Math.max(3.5, 360 / facts.rows)));
  return { facts, rowFacts, params, legend, height, words: sorted + shared };
}

function cohortCells(run, clients) {
  const { cohorts } = run, rows = clients.facts.rows;
  const cells = unpack(cohorts.cells), weights = unpack(cohorts.weights);
  const times = cohorts.times ? unpack(cohorts.times) : null;
  const most = times ? Math.max(...times) : 1;
  return Array.from(cells, (cell, i) => {
    const row = cell % rows, column = Math.floor(cell / rows);
    const start = cohorts.first + column * cohorts.width;
    const end = Math.min(start + cohorts.width, cohorts.first + cohorts.rounds);
    return {
      ...clients.rowFacts[row], row, next: row + 1, begin: start - 0.5, end: end - 0.5,
      middle: (start + end - 1) / 2, round: end - start > 1 ? `${start}–${end - 1}` : String(start),
      times: times ? times[i] : 1, opacity: times ? 0.15 + 0.85 * times[i] / most : 1,
      weight: 100 * weights[i] / 65535 * cohorts.top, equal: cohorts.equal,
    };
  });
}

function runFigures(run) {
  const clients = clientsOf(run), { facts, params, legend, height, words } = clients;
  const cells = run.cohorts && cohortCells(run, clients);
  const index = run.index === null ? null : DATA.pool[run.index];
  const rowed = { params, height };
  return {
    timeline: () => cells && { data: { cells }, ...rowed, legend, caption: `${run.cohorts.cohort_caption} ${words}` },
    weights: () => cells && { data: { cells }, height: 300, legend, caption: run.cohorts.weight_caption },
    histogram: () => run.accuracy && histogramFigure(run.accuracy),
    partition: () => facts.counts && partitionFigure(clients, rowed),
    groups: () => index?.groups ? groupFigure(index, facts) : null,
    index: () => index && indexFigure(index.maps[0], clients),
    "index-feature": () => index?.maps[1] ? indexFigure(index.maps[1], clients) : null,
    times: () => run.seconds && timesFigure(run.seconds),
  };
}

function histogramFigure({ counts, caption }) {
  const size = 100 / counts.length;
  const bins = counts.map((clients, i) => ({ begin: i * size, end: (i + 1) * size, clients }));
  return { data: { bins }, height: 280, caption };
}

function partitionFigure({ facts, rowFacts, words }, rowed) {
  const counts = unpack(facts.counts), width = counts.length / facts.rows;
  const classes = Array.from({ length: width }, (_, k) => facts.classes[k] ?? String(k));
  const held = [];
  counts.forEach((samples, i) => {
    if (!samples) return;
    const row = Math.floor(i / width);
    held.push({ ...rowFacts[row], row, next: row + 1, class: classes[i % width], samples });
  });
  const adapt = (spec) => {
    spec.encoding.x.scale.domain = classes;
    spec.encoding.x.axis.labelOverlap = classes.length > 24;
  };
  return { data: { held }, ...rowed, adapt, caption: `${facts.caption} ${words}` };
}

function indexFigure(map, { facts, rowFacts, params, words }) {
  const upper = unpack(map.upper), cosines = [];
  let i = 0;
  for (let a = 0; a < facts.rows; a++) {
    for (let b = a; b < facts.rows; b++) {
      const level = upper[i++];
      if (level === 255) continue;  // a client with itself
      for (const [row, column] of a === b ? [[a, a]] : [[a, b], [b, a]]) {
        cosines.push({
          row, column, cosine: level / 127 - 1,
          next: Math.min(row + OVERLAP, facts.rows), right: Math.min(column + OVERLAP, facts.rows),
          client: rowFacts[row].client, other: rowFacts[column].client,
        });
      }
    }
  }
  const adapt = (spec, width) => { spec.height = square(width); };
  return { data: { cosines }, params, adapt, caption: `${map.name}. ${map.caption} ${words}` };
}

function groupFigure({ groups, quality }, { by }) {
  const written = groups.names.length <= 10;
  const [ink] = colours("--ink"), pairs = [];
  groups.names.forEach((a, i) => groups.names.forEach((b, j) => {
    const cosine = groups.means[i][j];
    if (cosine === null) return;
    pairs.push({ a, b, cosine, written, colour: cosinesInk(cosine, ink) });
  }));
  const caption = `Mean cosine of ${groups.part} between clients of two ${by}s, a client with itself left out.`
    + (quality ? ` Quality of the index: ${quality}.` : "");
  const adapt = (spec, width) => { spec.height = square(width); };
  return { data: { pairs }, adapt, caption };
}

function square(width) {
  return Math.max(200, Math.min(420, width - 75));  // the axis takes about 75
}

function cosinesInk(cosine, ink) {
  const dark = document.documentElement.dataset.theme === "dark";
  return Math.abs(cosine) > 0.7 ? (dark ? "#10151b" : "#ffffff") : ink;
}

function timesFigure({ stages, width, first, caption }) {
  const times = STAGES.flatMap((stage, place) => stages[stage].map((seconds, i) => {
    const start = first + i * width;
    return {
      stage, place, seconds, colour: category(place), begin: start - 0.5, end: start + width - 0.5,
      round: width > 1 ? `${start}–${start + width - 1}` : String(start),
    };
  }));
  return { data: { times }, height: 220, legend: stageLegend(), caption };
}

function showRun(number) {
  const run = DATA.runs[number];
  $("run").value = String(number);
  $("facts").textContent = `${run.name}: ${run.facts}`;
  $("worst-card").hidden = run.accuracy === null;
  if (run.accuracy) $("worst").replaceChildren(table(run.accuracy.worst, "Clients with the lowest accuracy"));
  const rows = run.manifest.flatMap(([section, at]) =>
    DATA.pool[at].map(([name, text]) => [name ? `${section}.${name}` : section, text]));
  $("manifest").replaceChildren(pairs(rows));
  $("settings").replaceChildren(pairs([["seed", String(run.seed)], ...DATA.pool[run.settings]]));
  $("missing").textContent = run.missing;
  drawn.run = Object.entries(runFigures(run));
  drawn.run.forEach(([name, make]) => draw(name, make));
}

// ---- tables ----------------------------------------------------------------------------------

const NUMBER = /^[\d.,±%–\s-]+$/;

function table({ head, rows }, label, last = () => []) {
  const isNumber = head.map((_, j) => j > 0 && rows.some((r) => /\d/.test(r[j])) && rows.every((r) => NUMBER.test(r[j])));
  const kind = (j) => isNumber[j] ? { class: "number" } : {};
  const top = head.map((name, j) => element("th", { scope: "col", ...kind(j) }, name));
  const body = rows.map((row, i) => {
    const cells = row.map((text, j) =>
      element(j ? "td" : "th", j ? kind(j) : { scope: "row" }, marked(text)));
    return element("tr", {}, ...cells, ...last(i));
  });
  if (last(0).length) top.push(element("td"));
  const whole = element("table", {}, element("thead", {}, element("tr", {}, ...top)), element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, whole);
}

function marked(text) {
  // A stand-in must not be overlooked.
  const parts = text.split(/(\S*standin\S*|stand-in encoder [^)]*)/);
  const span = (part) => element("span", { class: "stand-in" }, part);
  return element("span", {}, ...parts.map((part, i) => i % 2 ? span(part) : part));
}

function pairs(rows) {
  const body = rows.map(([name, text]) =>
    element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, text)));
  return element("div", { class: "scroll" }, element("table", { class: "pairs" }, element("tbody", {}, ...body)));
}

function showTables() {
  $("standins").replaceChildren(...DATA.standins.map((text) => element("p", { class: "banner" }, text)));
  $("summary").replaceChildren(table(DATA.summary, "Summary"));
  $("summary-words").textContent = DATA.words;
  $("every-run").hidden = DATA.runs.length === 1;
  $("runs").replaceChildren(table(DATA.every_run, "Every run", (i) => {
    const button = element("button", { type: "button", "aria-label": `Show ${DATA.runs[i].name}` }, "Show");
    button.addEventListener("click", () => { showRun(i); $("run").focus(); });
    return [element("td", {}, button)];
  }));
}

// ---- start -----------------------------------------------------------------------------------

function drawAll() {
  repaint.forEach((paint) => paint());
  [...drawn.many, ...drawn.run].forEach(([name, make]) => draw(name, make));
}

function start() {
  for (const [key, name] of Object.entries(DATA.measures)) {
    $("measure").append(element("option", { value: key }, name));
  }
  DATA.runs.forEach((run, i) => {
    $("run").append(element("option", { value: i }, `${run.label}, seed ${run.seed} (${run.name})`));
  });
  $("measure").parentElement.hidden = alone;
  $("run").parentElement.hidden = DATA.runs.length === 1;
  $("measure").addEventListener("change", () => draw("curves", curvesFigure));
  $("run").addEventListener("change", () => showRun(Number($("run").value)));
  setTheme(document.documentElement.dataset.theme);
  $("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    drawAll();
  });
  let before = null;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    if (before === "dark") { setTheme("light"); drawAll(); }
  });
  addEventListener("afterprint", () => {
    if (before === "dark") { setTheme("dark"); drawAll(); }
  });
  showTables();
  seriesBoxes();
  drawn.many = [["curves", curvesFigure], ["group-times", groupTimesFigure]];
  drawn.many.forEach(([name, make]) => draw(name, make));
  showRun(0);
}

start();
