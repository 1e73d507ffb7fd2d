"use strict";

const $ = (id) => document.getElementById(id);
let site; // models with their examples, and limits
let image = null; // {name, blob} of the image that every request sends; the blob may be a promise
let layers = [];
let busy = false;
let next = null;

/** Run a task after the one that runs now; of several that wait, only the last one. */
async function run(task) {
  next = task;
  if (busy) return;
  busy = true;
  document.body.classList.add("busy");
  while (next) {
    const current = next;
    next = null;
    await current();
  }
  busy = false;
  document.body.classList.remove("busy");
}

async function post(path, query) {
  const { name, blob } = image;
  if (blob.size > site.max_bytes) throw new Error(`${name} must have at most ${site.max_bytes / 2 ** 20} MB.`);
  const fields = { model: $("model").value, name, channel: $("channel").value, ...query };
  let response;
  try {
    response = await fetch(`${path}?${new URLSearchParams(fields)}`, { method: "POST", body: await blob });
  } catch {
    throw new Error("The page got no answer: lambdanets demo may have ended.");
  }
  const answer = await response.json().catch(() => ({ error: "The page failed; the terminal shows why." }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function element(name, properties, ...children) {
  const created = Object.assign(document.createElement(name), properties);
  created.append(...children);
  return created;
}

function showError(id, message) {
  $(id).textContent = message;
  $(id).hidden = !message;
}

async function predict() {
  try {
    show(await post("predict"));
  } catch (error) {
    $("result").hidden = $("look").hidden = true;
    showError("error", error.message);
    if (error.message.includes("--channel")) $("channel").focus();
    return;
  }
  if (layers.length) await showMaps();
}

function show(found) {
  showError("error", "");
  $("image").src = found.image;
  $("image").classList.toggle("pixels", Math.max(found.width, found.height) < 128);
  $("about").textContent = `${image.name}: ${found.about}`;
  $("headline").textContent = found.headline;
  $("note").textContent = found.note ?? "";
  $("bars").replaceChildren(...found.bars.map(({ name, value, text }) => {
    const bar = element("span", { className: "bar" });
    bar.style.width = `${100 * value}%`;
    return element("tr", {}, element("td", {}, name), element("td", {}, text), element("td", {}, bar));
  }));
  $("files").replaceChildren(...Object.entries(found.files ?? {}).map(
    ([name, href]) => element("a", { href, download: name, textContent: name })));
  $("rows").replaceChildren();
  if (found.rows?.length) {
    const row = (kind) => (cells) => element("tr", {}, ...cells.map((text) => element(kind, {}, text)));
    $("rows").append(element("table", {}, row("th")(found.columns), ...found.rows.map(row("td"))));
  }
  layers = found.layers;
  $("layer").replaceChildren(...layers.map(({ name, label }) => new Option(label, name)));
  showHeads();
  $("row").max = found.height - 1;
  $("column").max = found.width - 1;
  $("row").value = Math.floor((found.height - 1) / 2);
  $("column").value = Math.floor((found.width - 1) / 2);
  $("stage").classList.toggle("clickable", layers.length > 0);
  $("mark").hidden = $("look").hidden = !layers.length;
  $("maps").hidden = true;
  $("result").hidden = false;
}

function showHeads() {
  const count = layers[$("layer").selectedIndex]?.heads ?? 0;
  $("head").replaceChildren(...Array.from({ length: count }, (_, head) => new Option(`${head + 1} of ${count}`, head)));
}

async function showMaps() {
  const [row, column] = [$("row"), $("column")].map((input) => Number(input.value));
  $("mark").style.top = `${(100 * (row + 0.5)) / (Number($("row").max) + 1)}%`;
  $("mark").style.left = `${(100 * (column + 0.5)) / (Number($("column").max) + 1)}%`;
  try {
    const { maps, texts } = await post("maps", {
      layer: $("layer").value, head: $("head").value, row: $("row").value, column: $("column").value });
    for (const panel of document.querySelectorAll("[data-map]")) panel.src = maps[panel.dataset.map];
    for (const part of document.querySelectorAll("[data-text]")) part.textContent = texts[part.dataset.text];
    showError("maps-error", "");
    $("maps").hidden = false;
  } catch (error) {
    showError("maps-error", error.message);
    $("maps").hidden = true;
  }
}

function take(name, blob) {
  for (const button of $("examples").children) button.ariaPressed = "false";
  $("channel").value = "";
  image = { name, blob };
  run(predict);
}

function showExamples() {
  const number = $("model").value;
  $("examples").replaceChildren(...site.models[number].examples.map((caption, index) => {
    const src = `examples/${number}/${index}`;
    const shown = element("img", { src, alt: "", className: "pixels" });
    const button = element("button", { type: "button", ariaPressed: "false" }, shown, caption);
    button.addEventListener("click", () => {
      const blob = fetch(src).then((response) => response.blob());
      blob.catch(() => {}); // `post` reports it, unless another image was chosen
      take(caption, blob);
      button.ariaPressed = "true";
    });
    return button;
  }));
  $("examples").firstElementChild?.click();
}

async function start() {
  site = await (await fetch("models")).json();
  $("limits").textContent = site.limits;
  $("model").replaceChildren(...site.models.map(({ name }, index) => new Option(name, index)));
  $("model-choice").hidden = false;
  $("model").addEventListener("change", showExamples);
  $("file").addEventListener("change", () => {
    const [file] = $("file").files;
    if (file) take(file.name, file);
    $("file").value = ""; // the same file can be chosen again
  });
  for (const type of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(type, (event) => { // anywhere, or the browser would leave the page and open the file
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      $("drop").classList.toggle("over", type === "dragover" || (type === "dragleave" && event.relatedTarget !== null));
      const [file] = event.dataTransfer.files;
      if (type === "drop" && file) take(file.name, file);
    });
  }
  $("channel").addEventListener("change", () => image && run(predict));
  $("layer").addEventListener("change", () => { showHeads(); run(showMaps); });
  for (const id of ["head", "row", "column"]) $(id).addEventListener("change", () => run(showMaps));
  $("stage").addEventListener("click", (event) => {
    if (!layers.length) return;
    const box = $("image").getBoundingClientRect();
    const pixel = (fraction, input) => Math.min(Math.max(Math.floor(fraction * (Number(input.max) + 1)), 0), input.max);
    $("row").value = pixel((event.clientY - box.top) / box.height, $("row"));
    $("column").value = pixel((event.clientX - box.left) / box.width, $("column"));
    run(showMaps);
  });
  showExamples();
}

start();
