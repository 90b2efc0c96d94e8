
// The page to play with. The form is the state; every change asks the server, and the address holds the state.
const form = document.getElementById("form");
const boards = document.getElementById("boards");
const byId = (id) => document.getElementById(id);
const words = () => [...form.querySelectorAll("[name]")];
let shown = 0;
let latest = null; // the last answer that was drawn
let files = {};

// ---------------------------------------------------------------------------------------------------------- boards
let boardCount = 0;
function addBoard(text) {
  const node = byId("board").content.firstElementChild.cloneNode(true);
  const number = boardCount++;
  const label = (control, tag, name) => { control.id = `board-${number}-${name}`; tag.htmlFor = control.id; };
  const [gpu, yaml, error] = [node.querySelector(".gpu"), node.querySelector(".yaml"), node.querySelector(".error")];
  label(gpu, node.querySelector(".line label"), "gpu");
  label(yaml, node.querySelector(".paste label"), "yaml");
  error.id = `board-${number}-error`;
  for (const control of [gpu, yaml]) control.setAttribute("aria-describedby", error.id);
  for (const slider of node.querySelectorAll(".slider")) {
    const range = slider.querySelector("input");
    label(range, slider.querySelector("label"), range.dataset.parameter);
    slider.querySelector("output").htmlFor = range.id;
    range.addEventListener("input", () => { fromSliders(node); changed(); });
  }
  gpu.addEventListener("input", () => toSliders(node));
  node.querySelector(".remove").addEventListener("click", () => {
    const next = node.nextElementSibling || node.previousElementSibling;
    node.remove();
    if (shown >= boards.children.length) shown = 0;
    (next ? next.querySelector(".remove") : byId("add")).focus();
    changed();
  });
  boards.append(node);
  if (text.includes("\n") || text.includes(":")) { yaml.value = text; node.querySelector(".paste").open = true; }
  else { gpu.value = text; toSliders(node); }
  return node;
}
const factor = (range) => Number((2 ** Number(range.value)).toPrecision(3));
function told(range) { range.parentElement.querySelector("output").textContent = `x ${factor(range)}`; range.setAttribute("aria-valuetext", `times ${factor(range)}`); }
function fromSliders(node) {
  const gpu = node.querySelector(".gpu");
  const name = gpu.value.split(/\s+/).filter((word) => !word.includes("=")).join(" ");
  const moved = [...node.querySelectorAll("input[type=range]")].filter((range) => Number(range.value) !== 0);
  gpu.value = [name, ...moved.map((range) => `${range.dataset.parameter}=${factor(range)}`)].join(" ").trim();
  for (const range of node.querySelectorAll("input[type=range]")) told(range);
}
function toSliders(node) {
  const given = new Map(node.querySelector(".gpu").value.split(/\s+/).filter((word) => word.includes("=")).map((word) => word.split("=")));
  for (const range of node.querySelectorAll("input[type=range]")) {
    const value = Number(given.get(range.dataset.parameter) || 1);
    range.value = value > 0 ? Math.log2(value) : 0;
    told(range);
    if (value > 0 && given.has(range.dataset.parameter)) range.parentElement.querySelector("output").textContent = `x ${value}`;
  }
}
const boardText = (node) => node.querySelector(".yaml").value.trim() || node.querySelector(".gpu").value.trim();

// ----------------------------------------------------------------------------------------------------------- state
function state() {
  const found = { gpu: [...boards.children].map(boardText), shown: String(shown) };
  for (const control of words()) found[control.name] = control.value;
  for (const control of document.querySelectorAll("[data-search]")) if (control.value !== control.dataset.default) found[control.dataset.search] = control.value;
  return found;
}
let linked = []; // what is wrong with the link, until something is changed
function restore(text) {
  const given = new URLSearchParams(text.replace(/^#/, ""));
  const known = new Set(["gpu", "shown", ...words().map((control) => control.name), ...[...document.querySelectorAll("[data-search]")].map((control) => control.dataset.search)]);
  linked = [...new Set(given.keys())].flatMap((name) => {
    if (!known.has(name)) return [{ field: "", line: `the link says ${name.slice(0, 40)}, which is no word of the page.` }];
    return name !== "gpu" && given.getAll(name).length > 1 ? [{ field: name, line: `the link says ${name} twice; the first is taken.` }] : [];
  });
  for (const control of words()) control.value = given.get(control.name) ?? control.dataset.default;
  for (const control of document.querySelectorAll("[data-search]")) {
    control.value = given.get(control.dataset.search) ?? control.dataset.default;
    if (given.has(control.dataset.search)) control.closest("details").open = true;
  }
  const asked = given.getAll("gpu");
  if (![...given.keys()].length) byId("w-model").value = byId("w-model").getAttribute("value");
  boards.replaceChildren();
  for (const one of asked.length ? asked : boards.dataset.boards.split(" ")) addBoard(one);
  shown = Math.min(Number(given.get("shown")) || 0, boards.children.length - 1);
  if (byId("w-config").value) byId("w-config").closest("details").open = true;
  if ([...byId("rest").querySelectorAll("[name]")].some((control) => control.value !== control.dataset.default)) byId("rest").open = true;
}

// --------------------------------------------------------------------------------------------------------- asking
let asking = null;
async function ask(path, body, signal) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  const text = await answer.text();
  try { return JSON.parse(text); } catch { return { errors: [{ field: "", line: text.trim() }] }; }
}
let timer = null;
function changed() {
  clearTimeout(timer);
  linked = [];
  byId("quick").classList.add("stale");
  timer = setTimeout(update, 80);
}
async function update() {
  if (asking) asking.abort();
  const mine = (asking = new AbortController());
  hide();
  const asked = state();
  try {
    const answer = await ask("/api/answer", asked, mine.signal);
    if (mine.signal.aborted) return;
    say(answer.errors);
    if ("link" in answer) history.replaceState(null, "", `#${answer.link}`);
    if (!answer.html) return;
    latest = asked;
    files = answer.files;
    put(byId("quick"), answer.html);
    byId("quick").classList.remove("stale");
    byId("said").textContent = answer.said;
    byId("command").textContent = answer.command;
    byId("python").textContent = answer.python;
    document.title = `${answer.title} - Tilecast`;
    for (const id of ["link", "json", "png"]) byId(`get-${id}`).disabled = false;
    byId("get-files").disabled = !Object.keys(files).length;
    if (!answer.shown) return byId("details").replaceChildren();
    byId("details").classList.add("stale");
    const details = await ask("/api/details", asked, mine.signal);
    if (mine.signal.aborted || !details.html) return;
    put(byId("details"), details.html);
    byId("details").classList.remove("stale");
  } catch (error) {
    if (error.name !== "AbortError") say([{ field: "", line: `no answer from the server: ${error.message}; is it still running?` }]);
  } finally {
    if (asking === mine) document.documentElement.dataset.settled = String(Number(document.documentElement.dataset.settled || 0) + 1);
  }
}
function put(place, html) {
  const focus = document.activeElement && place.contains(document.activeElement) ? document.activeElement.dataset.board : undefined;
  place.innerHTML = html;
  walkCharts(place);
  for (const button of place.querySelectorAll("button.show")) {
    button.addEventListener("click", () => { shown = Number(button.dataset.board); update(); });
    if (button.dataset.board === focus) button.focus();
  }
}

// --------------------------------------------------------------------------------------------------------- errors
function controlOf(field) {
  const place = /^gpu\.(\d+)$/.exec(field);
  if (!place) {
    return [byId(`w-${field}`), byId(`error-${field}`)];
  }
  const board = boards.children[Number(place[1])];
  if (!board) return [null, byId("error-gpu")];
  const yaml = board.querySelector(".yaml");
  return [yaml.value.trim() ? yaml : board.querySelector(".gpu"), board.querySelector(".error")];
}
function say(errors) {
  for (const line of document.querySelectorAll(".error")) line.textContent = "";
  for (const control of document.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
  for (const { field, line } of [...linked, ...errors]) {
    const [control, place] = controlOf(field);
    const beside = place && !(control && control.closest("[hidden]")) ? place : byId("error-");
    beside.textContent = beside.textContent ? `${beside.textContent} ${line}` : line;
    if (control) {
      control.setAttribute("aria-invalid", "true");
      const closed = control.closest("details:not([open])");
      if (closed) closed.open = true;
    }
  }
}
function hide() { // words that the mode does not take
  const mode = byId("w-mode").value;
  for (const row of form.querySelectorAll("[data-modes]")) row.hidden = !row.dataset.modes.split(" ").includes(mode);
}

// ------------------------------------------------------------------------------------------------------ downloads
function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
byId("get-link").addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(location.href); byId("said").textContent = "The link is copied."; }
  catch { byId("said").textContent = `The link is the address of this page: ${location.href}`; }
  byId("get-link").textContent = "Copied";
  setTimeout(() => { byId("get-link").textContent = "Copy the link"; }, 1500);
});
byId("get-json").addEventListener("click", async () => {
  const answer = await fetch("/api/json", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(state()) });
  const text = await answer.text();
  const found = answer.ok ? JSON.parse(text) : { errors: [{ field: "", line: text.trim() }] };
  if (found.errors) return say(found.errors);
  save("tilecast.json", new Blob([text], { type: "application/json" }));
});
byId("get-files").addEventListener("click", () => {
  for (const [name, text] of Object.entries(files)) save(name, new Blob([text], { type: "text/plain" }));
});
byId("get-png").addEventListener("click", async () => save("tilecast.png", await picture()));

// The charts that are on the screen, one below the other, under the title.
async function picture() {
  const charts = [...document.querySelectorAll("#quick svg.chart, #details svg.chart")].filter((chart) => chart.getBoundingClientRect().width > 0);
  const [width, head] = [960, 64];
  const sizes = charts.map((chart) => { const [, , w, h] = chart.getAttribute("viewBox").split(" ").map(Number); return [width, (h * width) / w]; });
  const canvas = document.createElement("canvas");
  const scale = 2;
  canvas.width = width * scale;
  canvas.height = (head + sizes.reduce((sum, [, h]) => sum + h + 12, 0)) * scale;
  const paint = canvas.getContext("2d");
  const style = getComputedStyle(document.body);
  paint.scale(scale, scale);
  paint.fillStyle = style.backgroundColor === "rgba(0, 0, 0, 0)" ? "#ffffff" : style.backgroundColor;
  paint.fillRect(0, 0, width, canvas.height / scale);
  paint.fillStyle = style.color;
  paint.font = `600 20px ${style.fontFamily}`;
  paint.fillText(document.title, 16, 28, width - 32);
  paint.font = `12px ${style.fontFamily}`;
  paint.fillText(byId("command").textContent, 16, 50, width - 32);
  let top = head;
  for (const [i, chart] of charts.entries()) {
    const copy = chart.cloneNode(true);
    const from = [chart, ...chart.querySelectorAll("*")];
    [copy, ...copy.querySelectorAll("*")].forEach((node, k) => {
      const look = getComputedStyle(from[k]);
      for (const name of ["fill", "fill-opacity", "stroke", "stroke-width", "font-size", "font-family", "paint-order", "stroke-linejoin"]) node.style.setProperty(name, look.getPropertyValue(name));
    });
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", sizes[i][0]);
    copy.setAttribute("height", sizes[i][1]);
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    await image.decode();
    paint.drawImage(image, 0, top, ...sizes[i]);
    top += sizes[i][1] + 12;
  }
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// ------------------------------------------------------------------------------------------------------- searches
for (const part of document.querySelectorAll(".search")) {
  const [start, cancel, bar, told, found] = [".start", ".cancel", "progress", ".state", ".found"].map((name) => part.querySelector(name));
  let key = null;
  const running = (yes) => { start.disabled = yes; cancel.disabled = !yes; bar.hidden = !yes; };
  async function look() {
    if (!key) return;
    const answer = await (await fetch(`/api/search/${key}`)).json();
    const seconds = `${answer.seconds.toFixed(answer.seconds < 10 ? 1 : 0)} s`;
    if (answer.state === "running") { told.textContent = `Searching: ${seconds}`; return setTimeout(look, 250); }
    ended(answer, seconds);
  }
  function ended(answer, seconds) {
    key = null;
    running(false);
    say(answer.errors);
    told.textContent = { done: `Done in ${seconds}.`, cancelled: `Cancelled after ${seconds}.`, failed: `Failed after ${seconds}.` }[answer.state];
    if (answer.html) { found.innerHTML = answer.html; walkCharts(found); }
    if (answer.state === "failed") found.replaceChildren();
    cancel === document.activeElement && start.focus();
  }
  start.addEventListener("click", async () => {
    told.textContent = "";
    const answer = await ask(`/api/${part.dataset.kind}`, state());
    say(answer.errors);
    if (!answer.key) return;
    key = answer.key;
    running(true);
    look();
  });
  cancel.addEventListener("click", async () => { if (key) await fetch(`/api/search/${key}`, { method: "DELETE" }); });
  part.addEventListener("input", changed);
}

// ---------------------------------------------------------------------------------------------------------- start
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", changed);
form.addEventListener("change", changed);
byId("add").addEventListener("click", () => { addBoard("").querySelector(".gpu").focus(); changed(); });
window.addEventListener("hashchange", () => { restore(location.hash); update(); });
restore(location.hash);
update();
