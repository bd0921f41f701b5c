// What the figures show: from the JSON in #data to the rows of Vega-Lite's data sets. A function
// ...Figure() gives { data, caption, height or adapt(spec, width), params, legend }, or null where
// there is nothing to show.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DASHES = [[1, 0], [7, 3], [2, 2], [9, 3, 2, 3]];
const STAGES = ["train", "evaluate", "aggregate", "sample"];  // of a round
const ALL_STAGES = [...STAGES, "index"];  // of a run
const OVERLAP = 1.1;  // cells reach under their neighbours: no seams between them
const $ = (id) => document.getElementById(id);
const UNTESTED = 10001;  // of report_domains.py
const hidden = new Set();  // series that are switched off

function colours(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name);
  return text.split(",").map((colour) => colour.trim());
}

function category(i, count = 1) {
  const all = colours("--categories");
  return count > all.length ? all[0] : all[i % all.length];
}

function dashOf(i) {
  return DASHES[Math.floor(i / 8) % DASHES.length];  // another one for every eight colours
}

// ---- all runs --------------------------------------------------------------------------------

const alone = DATA.groups.length === 1;  // then the curves are the measures of one group

function allSeries() {
  if (!alone) return DATA.groups.map((g) => [g.label, g.curves[$("measure").value]]);
  return Object.entries(DATA.measures).map(([key, name]) => [name, DATA.groups[0].curves[key]]);
}

function curvesFigure() {
  const rows = [];
  const shown = allSeries().length - hidden.size;
  let top = null;
  allSeries().forEach(([series, curve], i) => {
    if (hidden.has(i)) return;
    curve.round.forEach((round, t) => {
      const mean = curve.mean[t];
      if (mean === null) return;
      const runs = curve.runs?.[t] ?? 1;
      if (top === null || mean > top.mean) top = { series, mean, round, runs, of: DATA.groups[alone ? 0 : i].runs };
      rows.push({
        series, round, mean, low: curve.low?.[t] ?? mean, high: curve.high?.[t] ?? mean,
        runs, band: 0.18 * Math.min(1, 3 / shown), dot: curve.round.length > 40 ? 0 : 1,
        colour: category(i), dash: dashOf(i), width: alone ? (i ? 1.3 : 3.2) : 2,
      });
    });
  });
  if (alone) rows.reverse();  // what comes last is drawn on top: the first measure, or the last group
  if (!allSeries().some(([, curve]) => curve.round.length)) return null;
  const seeds = DATA.groups.some((g) => g.runs > 1);
  const torn = DATA.groups.some((g) => g.unfinished && g.runs > 1);
  const caption = [
    top ? `Highest: ${top.series}, ${top.mean.toFixed(1)} % in round ${top.round}`
          + (top.runs < top.of ? ` (${top.runs} of ${top.of} runs).` : ".")
        : "No curve is chosen.",
    seeds ? "A line is the mean over the seeds of a group, its band reaches from the smallest to "
            + "the largest value over them." : "Every curve is a single run.",
    alone || $("measure").selectedIndex ? "" : DATA.gains,
    torn ? "A run that failed or is unfinished counts in the rounds it has: later ones are the mean of the others." : "",
  ];
  return { data: { curves: rows }, height: 340, caption: caption.filter(Boolean).join(" ") };
}

function stageLegend(stages) {
  return stages.map((name, i) => ({ name, colour: category(i) }));
}

function groupTimesFigure() {
  const timed = DATA.groups.map((g) => ({ ...g, total: Object.values(g.seconds).reduce((a, b) => a + b) }));
  if (alone || !timed.some((g) => g.total > 0)) return null;
  const indexed = timed.some((g) => g.seconds.index > 0);
  const stages = indexed ? ALL_STAGES : STAGES;
  const rows = timed.flatMap((g) => stages.map((stage, place) =>
    ({ label: g.label, stage, place, seconds: g.seconds[stage], colour: category(place) })));
  const [least, most] = [Math.min, Math.max].map((f) => f(...timed.map((g) => g.total)).toFixed(1));
  const caption = `Seconds per run of the stages of its rounds${indexed ? " and of its client index" : ""}, `
    + `${least} to ${most} s. Only runs on the `
    + "same machine and of the same number of rounds can be compared.";
  const adapt = (spec, width) => { spec.encoding.y.axis.labelLimit = Math.round(0.42 * width); };
  const height = 30 + 24 * timed.length;
  return { data: { times: rows }, height, adapt, legend: stageLegend(stages), caption };
}

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
    domains: () => run.domains && domainsFigure(run.domains, facts.groups),
    timeline: () => cells && { data: { cells }, ...rowed, legend, caption: `${run.cohorts.cohort_caption} ${words}` },
    weights: () => cells && { data: { cells }, height: 300, legend, caption: run.cohorts.weight_caption },
    histogram: () => run.accuracy && histogramFigure(run.accuracy),
    projection: () => run.projection && projectionFigure(run.projection),
    changes: () => run.changes && changesFigure(run.changes),
    partition: () => facts.counts && partitionFigure(clients, rowed),
    groups: () => index?.groups ? groupFigure(index, facts) : null,
    index: () => index && indexFigure(index.maps[0], clients),
    "index-feature": () => index?.maps[1] ? indexFigure(index.maps[1], clients) : null,
    times: () => run.seconds && timesFigure(run.seconds),
  };
}

function domainsFigure({ rounds, values, caption }, groups) {
  const at = unpack(rounds), levels = unpack(values), dot = at.length > 40 ? 0 : 1;
  const legend = groups.map(({ name }, i) => ({ name, colour: category(i), dash: dashOf(i) }));
  const curves = [];
  levels.forEach((level, i) => {
    if (level === UNTESTED) return;
    const { name: series, colour, dash } = legend[i % groups.length];
    curves.push({ series, colour, dash, dot, width: 2, round: at[Math.floor(i / groups.length)], accuracy: level / 100 });
  });
  return { data: { curves }, height: 280, legend, caption };
}

function histogramFigure({ counts, caption }) {
  const size = 100 / counts.length;
  const bins = counts.map((clients, i) => ({ begin: i * size, end: (i + 1) * size, clients }));
  return { data: { bins }, height: 280, caption };
}

function projectionFigure({ x, y, clusters, names, caption }) {
  const legend = names.map((name, i) => ({ name, colour: category(i) }));
  const points = x.map((at, i) => ({ x: at, y: y[i], client: String(i), cluster: names[clusters[i]], colour: category(clusters[i]) }));
  const adapt = (spec, width) => { spec.height = square(width); };
  return { data: { points }, legend, adapt, caption };
}

function changesFigure({ ids, before, after, caption }) {
  const clients = ids.map((id, i) => ({ client: String(id), before: before[i], after: after[i], colour: category(after[i] < before[i] ? 1 : 0) }));
  clients.push({ edge: 0 }, { edge: 100 });
  const adapt = (spec, width) => { spec.height = square(width); };
  return { data: { clients }, adapt, caption };
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
  const apart = pairs.filter(({ a, b }) => a !== b).map(({ cosine }) => cosine);
  const [least, most] = [Math.min(...apart), Math.max(...apart)].map((v) => v.toFixed(2));
  const caption = `Mean cosine of ${groups.part} between clients of two ${by}s, a client with itself left out`
    + (apart.length ? `: ${least} to ${most} between different ${by}s.` : ".")
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
  return { data: { times }, height: 220, legend: stageLegend(STAGES), caption };
}
