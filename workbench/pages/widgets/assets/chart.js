// Draws a Plotly figure in the page's colours, and redraws the same figure in place when its data changes.

const CONFIG = {
  displaylogo: false,
  showSendToCloud: false, // nothing leaves this machine
  modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
};
const AXIS = /^[xy]axis\d*$/;

function loadPlotly() {
  window.workbenchPlotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "PLOTLY";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("Plotly could not be loaded"));
    document.head.append(script);
  });
  return window.workbenchPlotly;
}

function colours(element) {
  const style = getComputedStyle(element);
  const named = (name, otherwise) => style.getPropertyValue(`--st-${name}`).trim() || otherwise;
  return {
    text: named("text-color", "#31333f"),
    background: named("background-color", "#ffffff"),
    line: named("border-color", "#dddddd"),
    family: named("font", "sans-serif"),
  };
}

function faded(hex, alpha) {
  const parts = /^#(..)(..)(..)/.exec(hex);
  return parts ? `rgba(${parts.slice(1).map((part) => parseInt(part, 16)).join(",")},${alpha})` : hex;
}

function themed(layout, element) {
  const { text, background, line, family } = colours(element);
  const quiet = faded(text, 0.68);
  const axis = (given) => ({
    gridcolor: line,
    zerolinecolor: line,
    showline: false,
    ticks: "outside",
    ticklen: 5,
    tickcolor: "rgba(0,0,0,0)",
    ...given,
    tickfont: { size: 11.5, color: quiet, ...given.tickfont },
    title: { ...given.title, font: { size: 12.5, color: quiet, ...given.title?.font } },
  });
  const axes = Object.keys(layout).filter((name) => AXIS.test(name));
  return {
    ...layout,
    ...Object.fromEntries(axes.map((name) => [name, axis(layout[name])])),
    width: element.clientWidth,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family, color: text, size: 12 },
    title: { ...layout.title, font: { weight: 600, color: text, ...layout.title?.font } },
    legend: { font: { size: 12, color: text }, ...layout.legend },
    hoverlabel: { bgcolor: background, bordercolor: line, font: { color: text, family } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: faded(text, 0.4), activecolor: text },
  };
}

// Pixels between a title and its legend.
const GAP = 4;

function roomier(layout, more) {
  return { ...layout, margin: { ...layout.margin, t: layout.margin.t + more } };
}

// How far the legend reaches over the title: it grows upwards, by a row for every few words more or pixels less.
function overlap(plot) {
  const [title, legend] = [".g-gtitle", ".legend"].map((name) => plot.querySelector(name)?.getBoundingClientRect());
  return title?.height && legend?.height ? Math.ceil(title.bottom - legend.top) : 0;
}

// How far a title goes down that would lie under the buttons of a narrow chart.
const BAR = 24;

function lowered(layout, by) {
  const title = { ...layout.title, pad: { ...layout.title?.pad, t: (layout.title?.pad?.t ?? 0) + by } };
  return { ...roomier(layout, by), title };
}

function underButtons(plot) {
  const [title, bar] = [".g-gtitle", ".modebar"].map((name) => plot.querySelector(name)?.getBoundingClientRect());
  return Boolean(title?.width && bar?.width) && title.right > bar.left && title.top < bar.bottom;
}

async function react(Plotly, plot) {
  const { data, layout } = plot.figure;
  const width = plot.clientWidth;
  const room = plot.room?.width === width ? plot.room : { width, more: 0, down: 0 };
  plot.room = room;
  const drawn = () => {
    const traces = data.map((trace) => ({ ...trace })); // Plotly writes into them
    const around = lowered(roomier(themed(structuredClone(layout), plot), room.more), room.down);
    return Plotly.react(plot, traces, around, CONFIG);
  };
  await drawn();
  if (!room.down && underButtons(plot)) {
    room.down = BAR;
    await drawn();
  }
  const over = overlap(plot);
  if (over > 0) {
    room.more += over + GAP;
    await drawn();
  }
}

// What is drawn loses its last points, of which some are others now, and gets all that follow.
async function extend(Plotly, plot, kept) {
  const { data } = plot.figure;
  const grown = [...kept.keys()].filter((place) => Object.keys(kept[place]).length > 0);
  const names = [...new Set(grown.flatMap((place) => Object.keys(kept[place])))];
  const keep = (place, name) => kept[place][name] ?? data[place][name].length;
  for (const place of grown) {
    for (const name of names) plot.data[place][name] = plot.data[place][name].slice(0, keep(place, name));
  }
  const tails = names.map((name) => [name, grown.map((place) => data[place][name].slice(keep(place, name)))]);
  await Plotly.extendTraces(plot, Object.fromEntries(tails), grown);
  if (overlap(plot) > 0) await react(Plotly, plot); // its place has another width meanwhile, or the legend more rows
}

// One after the other: Plotly fails where a chart is drawn anew, by new data or another width, while it is being drawn.
function draw(plot) {
  if (!plot.waiting) {
    plot.waiting = true;
    plot.drawing = (plot.drawing ?? Promise.resolve()).then(() => {
      plot.waiting = false;
      return drawNow(plot);
    });
  }
  return plot.drawing;
}

async function drawNow(plot) {
  try {
    if (plot.failed) {
      plot.failed = false;
      plot.textContent = "";
    }
    const Plotly = await loadPlotly();
    if (plot.figure && plot.isConnected && plot.clientWidth > 0) {
      const kept = plot.kept;
      plot.kept = plot.figure.data.map(() => ({}));
      plot.look = look(plot);
      await (kept ? extend(Plotly, plot, kept) : react(Plotly, plot));
      listenForClicks(plot);
    }
  } catch (error) {
    plot.kept = null;
    if (!plot.isConnected) return; // the page has taken it down meanwhile
    window.Plotly?.purge(plot);
    plot.failed = true;
    plot.textContent = `This chart cannot be drawn: ${error.message}`;
  }
}

// A click on a point is told to Python: its x and what the figure says of it. Only where somebody asked for it.
function listenForClicks(plot) {
  if (plot.clicked && !plot.listening) {
    plot.listening = true;
    plot.on("plotly_click", ({ points: [point] }) => plot.clicked({ x: point.x, about: point.customdata ?? null }));
  }
}

// What a chart is drawn with besides its figure.
function look(plot) {
  return JSON.stringify([colours(plot), plot.clientWidth]);
}

function watched(plot) {
  const again = () => {
    plot.kept = null;
    draw(plot);
  };
  const size = new ResizeObserver(again);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const recoloured = () => setTimeout(again, 300); // the page changes its own colours first
  size.observe(plot);
  scheme.addEventListener("change", recoloured);
  return () => {
    size.disconnect();
    scheme.removeEventListener("change", recoloured);
    window.Plotly?.purge(plot);
  };
}

const KINDS = {
  f4: Float32Array,
  f8: Float64Array,
  i1: Int8Array,
  i2: Int16Array,
  i4: Int32Array,
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
};

// An array from the way in which Plotly writes one into JSON, a matrix by rows; anything else as it is.
function unpacked(value) {
  if (!(value?.dtype in KINDS)) return structuredClone(value);
  const bytes = Uint8Array.from(atob(value.bdata), (letter) => letter.charCodeAt(0));
  const numbers = new KINDS[value.dtype](bytes.buffer);
  if (!value.shape) return numbers;
  const [rows, columns] = value.shape.split(",").map(Number);
  return Array.from({ length: rows }, (_, row) => numbers.subarray(row * columns, (row + 1) * columns));
}

function joined(old, keep, more) {
  if (Array.isArray(old)) return old.map((row, place) => joined(row, keep, more[place]));
  const all = new old.constructor(keep + more.length);
  all.set(old.subarray(0, keep));
  all.set(more, keep);
  return all;
}

function mapped(object, change) {
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value, name)]));
}

// Puts what is new on the figure. `kept`: of each trace, by attribute, how many of the points that Plotly has drawn
// are still the first ones; null where it has to compare all of the figure, for more than points has changed.
function put(plot, { traces, layout }) {
  const data = plot.figure.data.map((trace, place) => {
    const { append = {}, set = {} } = traces[place];
    if (Object.keys(set).length || Object.keys(append).some((name) => Array.isArray(trace[name]))) plot.kept = null;
    for (const [name, { keep }] of Object.entries(plot.kept ? append : {})) {
      plot.kept[place][name] = Math.min(keep, plot.kept[place][name] ?? keep);
    }
    const grown = mapped(append, ({ keep, new: more }, name) => joined(trace[name], keep, unpacked(more)));
    return { ...trace, ...mapped(set, unpacked), ...grown };
  });
  if (Object.keys(layout).length) plot.kept = null;
  plot.figure = { data, layout: { ...plot.figure.layout, ...layout } };
}

// Takes over what was told: a figure, or what is new since one. True where the chart has to be drawn again, null where
// it has none of the versions that this goes on from.
function take(plot, told) {
  if (told.version !== undefined && told.version === plot.version) return false;
  if (told.data) {
    const data = told.data.map((trace) => mapped(trace, unpacked));
    plot.figure = { data, layout: structuredClone(told.layout) };
    plot.kept = null;
  } else if (told.from.includes(plot.version)) {
    put(plot, told);
  } else {
    return null;
  }
  plot.version = told.version;
  return true;
}

function placeOf(parent) {
  const found = parent.querySelector(".workbench-chart");
  if (found) return found;
  const plot = document.createElement("div");
  plot.className = "workbench-chart";
  plot.setAttribute("role", "figure");
  parent.append(plot);
  return plot;
}

export default function (component) {
  const { data, parentElement } = component;
  const plot = placeOf(parentElement);
  const news = take(plot, data);
  if (news === null) component.setTriggerValue("missing", data.version);
  plot.setAttribute("aria-label", data.alt);
  plot.clicked = data.clickable ? (point) => component.setTriggerValue("clicked", point) : null;
  plot.classList.toggle("workbench-clickable", Boolean(data.clickable));
  plot.forget ??= watched(plot);
  if (plot.look !== look(plot)) plot.kept = null;
  if (news || plot.failed || plot.look !== look(plot)) draw(plot);
  return () => plot.forget();
}
