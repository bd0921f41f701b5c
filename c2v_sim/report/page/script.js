// Draws the page with the figures of figures.js, which stands before it. Texts of run directories
// reach the page only through textContent and through the data of figures, never as HTML.

const MOST_SVG_MARKS = 3000;  // beyond, a canvas is quicker
const views = new Map();
const repaint = [];  // legends to paint again in another theme
const drawn = { many: [], run: [] };  // figures to draw again in another theme

function element(tag, attributes = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  out.append(...children);
  return out;
}

// ---- theme -----------------------------------------------------------------------------------

function theme() {
  const [ink, quiet, line, grid, card] =
    ["--ink", "--quiet", "--line", "--grid", "--card"].map((name) => colours(name)[0]);
  const silent = { aria: false };  // the figure as a whole has a description
  return {
    background: card,
    font: 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif',
    axis: {
      ...silent, labelColor: quiet, titleColor: ink, domainColor: line, tickColor: line,
      gridColor: grid, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", titlePadding: 8,
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
  const spec = structuredClone(DATA.figures[name.replace(/-\d$/, "")]);
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
    if (axis.labelExpr?.startsWith("names")) axis.labelOverlap = false;
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

function legendEntry({ name, colour, dash }) {
  return element("li", {}, swatch(colour, dash), name);
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
    const paint = () => mark.replaceChildren(swatch(category(i), dashOf(i)));
    paint();
    repaint.push(paint);
  });
}

function showRun(number) {
  const run = DATA.runs[number];
  $("run").value = String(number);
  $("facts").textContent = `${run.name}: ${run.facts}`;
  $("failure").hidden = !run.failure;
  $("failure").textContent = `This run failed: ${run.failure}`;
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

const NUMBER = /^[\d.,±%–−+\s-]+(so far|\(\d+ of \d+ seeds\))?$/;

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
  // A stand-in must not be overlooked, nor a failure.
  const parts = text.split(/(\S*standin\S*|stand-in encoder [^)]*|^failed.*:.*|failed: [\d, ]+|\(\d+ of \d+ seeds\)|so far$)/);
  const span = (part) => element("span", { class: "notice" }, part);
  return element("span", {}, ...parts.map((part, i) => i % 2 ? span(part) : part));
}

function pairs(rows) {
  const body = rows.map(([name, text]) =>
    element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, text)));
  return element("div", { class: "scroll" }, element("table", { class: "pairs" }, element("tbody", {}, ...body)));
}

function showTables() {
  $("banners").replaceChildren(...DATA.banners.map((text) => element("p", { class: "banner" }, text)));
  $("summary").replaceChildren(table(DATA.summary, "Summary"));
  $("summary-words").textContent = DATA.words;
  $("every-run").hidden = DATA.every_run.rows.length === 1;
  $("runs").replaceChildren(table(DATA.every_run, "Every run", (i) => {
    if (i >= DATA.runs.length) return [element("td")];  // it has no run directory
    const button = element("button", { type: "button", "aria-label": `Show ${DATA.runs[i].name}` }, "Show");
    button.addEventListener("click", () => { showRun(i); $("run").focus(); });
    return [element("td", {}, button)];
  }));
}

// ---- start -----------------------------------------------------------------------------------

function showTwo() {
  // Two runs are compared: both cohorts at once, and in detail first the one with a client index.
  if (DATA.runs.length !== 2) return 0;
  $("two").hidden = false;
  DATA.runs.forEach((run, i) => {
    const name = `timeline-${i}`;
    document.querySelector(`[data-figure="${name}"] h3`).textContent = `${run.label}, seed ${run.seed}`;
    drawn.many.push([name, runFigures(run).timeline]);
  });
  return Math.max(0, DATA.runs.findIndex((run) => run.index !== null));
}

function drawAll() {
  repaint.forEach((paint) => paint());
  [...drawn.many, ...drawn.run].forEach(([name, make]) => draw(name, make));
}

function start() {
  for (const [key, name] of Object.entries(DATA.measures)) {
    $("measure").append(element("option", { value: key }, name));
  }
  DATA.runs.forEach((run, i) => {
    const state = run.state === "done" ? "" : `, ${run.state}`;
    $("run").append(element("option", { value: i }, `${run.label}, seed ${run.seed} (${run.name})${state}`));
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
  const first = showTwo();
  drawn.many.forEach(([name, make]) => draw(name, make));
  showRun(first);
}

start();
