// Draws a Plotly figure in the page's colours, and redraws the same figure in place when its data changes.

const SOURCE = "/workbench/plotly.min.js";
const CONFIG = {
  displaylogo: false,
  showSendToCloud: false, // nothing leaves this machine
  modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
};
const AXIS = /^[xy]axis\d*$/;

function loadPlotly() {
  window.workbenchPlotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = SOURCE;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error(`${SOURCE} could not be loaded`));
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

async function react(Plotly, plot) {
  const { data, layout } = plot.figure;
  const width = plot.clientWidth;
  const room = plot.room?.width === width ? plot.room.more : 0;
  await Plotly.react(plot, data, roomier(themed(layout, plot), room), CONFIG);
  const over = overlap(plot);
  if (over > 0) {
    plot.room = { width, more: room + over + GAP };
    await Plotly.react(plot, data, roomier(themed(layout, plot), plot.room.more), CONFIG);
  }
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
    if (plot.isConnected && plot.clientWidth > 0) {
      await react(Plotly, plot);
      listenForClicks(plot);
    }
  } catch (error) {
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

function watched(plot) {
  const again = () => draw(plot);
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

export default function (component) {
  const { data, parentElement } = component;
  const plot = parentElement.querySelector(".workbench-chart");
  const first = plot.figure === undefined;
  plot.figure = structuredClone(data);
  plot.setAttribute("aria-label", data.alt);
  plot.clicked = data.clickable ? (point) => component.setTriggerValue("clicked", point) : null;
  plot.classList.toggle("workbench-clickable", Boolean(data.clickable));
  plot.forget = first ? watched(plot) : plot.forget;
  draw(plot);
  return () => plot.forget();
}
