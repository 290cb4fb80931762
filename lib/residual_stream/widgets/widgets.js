// Every widget of the book, in one module. A widget's `kind` names the function that draws it; what
// it shows and every sentence that it says come from Python, in `data`. It uses of a model only
// get, set, on, off and save_changes, so it runs in Jupyter, on Colab and on a page with no kernel.

const SVG = "http://www.w3.org/2000/svg";

// ---- what the kinds share ----------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

let made = 0;
const newId = () => `rs-${(made += 1)}`;

// A frame with a name, and the line that says in words what is shown.
function frame(model, el) {
  const root = make("div", { class: "rs-widget", role: "group", "aria-label": model.get("label") });
  const says = make("p", { class: "rs-says", role: "status" });
  // A notebook's own shortcuts stay out of the widget.
  root.addEventListener("keydown", (event) => event.stopPropagation());
  el.replaceChildren(root);
  return {
    root,
    says,
    say(text) {
      if (says.textContent !== text) says.textContent = text;
    },
  };
}

// Follow a trait: call `update` now and after each change; return what stops it.
function follow(model, trait, update) {
  const event = `change:${trait}`;
  model.on(event, update);
  update();
  return () => model.off(event, update);
}

function keep(model, trait, value) {
  model.set(trait, value);
  model.save_changes();
}

// A labelled slider over the frames of a figure: a native one, so keys and touch are the browser's.
function slider(model, { label, values }) {
  const id = newId();
  const input = make("input", { id, type: "range", min: 0, max: values.length - 1, step: 1 });
  const output = make("span", { class: "rs-value", "aria-hidden": "true" });
  input.addEventListener("input", () => keep(model, "value", Number(input.value)));
  const row = make("div", { class: "rs-slider" }, make("label", { for: id }, label), input, output);
  function show(index) {
    input.value = index;
    input.setAttribute("aria-valuetext", values[index]);
    output.textContent = values[index];
  }
  return { row, show };
}

// Move numbers to where they should be, in a fifth of a second, or at once for who asked for that.
function mover(paint) {
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let now = null;
  let request = 0;
  return (target) => {
    cancelAnimationFrame(request);
    if (now === null || still) {
      now = target;
      return paint(now);
    }
    const from = now;
    const start = performance.now();
    const step = (time) => {
      const t = Math.min(1, Math.max(0, (time - start) / 200));
      const eased = t * (2 - t);
      now = target.map((value, i) => from[i] + (value - from[i]) * eased);
      paint(now);
      if (t < 1) request = requestAnimationFrame(step);
    };
    request = requestAnimationFrame(step);
  };
}

// ---- packing: features in a plane, over sparsity -----------------------------------------------

function packing(model, el) {
  const data = model.get("data");
  const { root, says, say } = frame(model, el);
  const control = slider(model, { label: data.slider, values: data.frames.map((f) => f.label) });
  const count = data.importance.length;

  const arrows = data.importance.map((importance, i) => {
    const line = draw("line", { x1: 0, y1: 0 });
    const dot = draw("circle", { r: (0.035 + 0.05 * importance).toFixed(3) });
    const name = draw("text", { "text-anchor": "middle", "dominant-baseline": "central" }, `${i + 1}`);
    return { group: draw("g", { class: "rs-arrow" }, line, dot, name), line, dot, name };
  });
  const plane = draw(
    "svg",
    { class: "rs-plane", viewBox: "-1.6 -1.6 3.2 3.2", "aria-hidden": "true" },
    draw("circle", { class: "rs-guide", r: 1 }),
    draw("line", { class: "rs-guide", x1: -1.5, x2: 1.5 }),
    draw("line", { class: "rs-guide", y1: -1.5, y2: 1.5 }),
    ...arrows.map((arrow) => arrow.group),
  );

  const cells = data.importance.map((importance, i) => {
    const bar = make("span", { class: "rs-bar" });
    const value = make("td", {}, bar);
    const number = make("td", { class: "rs-number" });
    const row = make("tr", {}, make("th", { scope: "row" }, `${i + 1}`), make("td", { class: "rs-number" }, importance.toFixed(2)), value, number);
    return { bar, number, row };
  });
  const heads = data.columns.map((text) => make("th", { scope: "col" }, text));
  heads[2].setAttribute("colspan", 2);
  const table = make(
    "table",
    { class: "rs-table" },
    make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...cells.map((cell) => cell.row)),
  );

  const move = mover((numbers) => {
    arrows.forEach(({ line, dot, name }, i) => {
      const [x, y] = [numbers[2 * i], -numbers[2 * i + 1]]; // up is up
      const length = Math.hypot(x, y);
      const beyond = length > 0 ? (length + 0.22) / length : 0;
      fill(line, { x2: x.toFixed(3), y2: y.toFixed(3) }, []);
      fill(dot, { cx: x.toFixed(3), cy: y.toFixed(3) }, []);
      fill(name, { x: (x * beyond).toFixed(3), y: (y * beyond).toFixed(3) }, []);
    });
  });

  root.append(control.row, says, make("div", { class: "rs-side" }, plane, table));
  return follow(model, "value", () => {
    const index = model.get("value");
    const shown = data.frames[index];
    control.show(index);
    for (let i = 0; i < count; i += 1) {
      arrows[i].group.classList.toggle("rs-dropped", !shown.kept[i]);
      cells[i].bar.style.width = `${Math.round(100 * shown.share[i])}%`;
      cells[i].number.textContent = shown.share[i].toFixed(2);
    }
    move(shown.at.flat());
    say(shown.sentence);
  });
}

// ---- the prediction box ------------------------------------------------------------------------

const SHELF = "residual-stream/prediction/";

// What a reader predicted stays in this browser. Where it keeps nothing, the widget itself does.
const shelf = {
  read(name) {
    try {
      return JSON.parse(localStorage.getItem(SHELF + name)) || {};
    } catch {
      return {};
    }
  },
  write(name, record) {
    try {
      if (record === null) localStorage.removeItem(SHELF + name);
      else localStorage.setItem(SHELF + name, JSON.stringify(record));
    } catch {
      // nothing is kept: private windows, blocked storage
    }
    window.dispatchEvent(new Event(SHELF));
  },
};

function prediction(model, el) {
  const { name, question, options, answer, words } = model.get("data");
  const letters = Object.keys(options);
  const { root, says, say } = frame(model, el);
  const group = newId();
  const choices = letters.map((letter) => {
    const input = make("input", { type: "radio", name: group, value: letter });
    input.addEventListener("change", () => record(letter, false));
    const text = make("span", { class: question ? "" : "rs-spoken" }, ` ${options[letter]}`);
    const label = make("label", { class: "rs-choice" }, input, make("span", {}, `(${letter})`), text);
    return { input, label };
  });
  const compare = make("button", { type: "button" }, words.compare);
  const forget = make("button", { type: "button" }, words.forget);
  compare.addEventListener("click", () => record(model.get("picked"), true));
  forget.addEventListener("click", () => {
    record("", false);
    choices[0].input.focus();
  });
  const legend = make("legend", {}, question || words.legend);
  const field = make("fieldset", { class: question ? "rs-long" : "" }, legend, ...choices.map((c) => c.label));
  root.append(field, says, make("div", { class: "rs-buttons" }, compare, forget));

  function record(picked, compared) {
    model.set("compared", compared);
    keep(model, "picked", picked);
    const text = { picked, compared, predicted: options[picked], answer, found: options[answer] };
    shelf.write(name, picked ? text : null);
    show();
  }

  function show() {
    const picked = model.get("picked");
    const compared = model.get("compared") && picked !== "";
    for (const { input, label } of choices) {
      input.checked = input.value === picked;
      input.disabled = compared;
      label.classList.toggle("rs-answer", compared && input.value === answer);
    }
    const had = document.activeElement === compare;
    compare.hidden = picked === "" || compared;
    forget.hidden = picked === "";
    if (had && compare.hidden && !forget.hidden) forget.focus();
    const state = picked === "" ? "none" : !compared ? "picked" : picked === answer ? "right" : "wrong";
    const said = { picked: `(${picked}) ${options[picked]}`, answer: `(${answer}) ${options[answer]}` };
    say(words[state].replace(/\{(\w+)\}/g, (_, key) => said[key]));
    root.dataset.state = state;
  }

  const before = shelf.read(name);
  if (letters.includes(before.picked)) {
    model.set("compared", Boolean(before.compared));
    keep(model, "picked", before.picked);
  }
  const stop = [follow(model, "picked", show), follow(model, "compared", show)];
  return () => stop.forEach((end) => end());
}

// What was predicted in a chapter, looked at again.
function predictions(model, el) {
  const { names, words } = model.get("data");
  const { root, says, say } = frame(model, el);
  const list = make("ul", { class: "rs-list" });
  root.append(says, list);

  function show() {
    const records = names.map((name) => [name, shelf.read(name)]).filter(([, r]) => r.picked);
    const compared = records.filter(([, r]) => r.compared);
    const right = compared.filter(([, r]) => r.picked === r.answer);
    list.replaceChildren(
      ...records.map(([name, r]) => {
        const state = !r.compared ? "open" : r.picked === r.answer ? "right" : "wrong";
        const said = { name: name.split("/").pop(), predicted: r.predicted, found: r.found };
        return make("li", {}, words[state].replace(/\{(\w+)\}/g, (_, key) => said[key]));
      }),
    );
    const numbers = { made: records.length, compared: compared.length, right: right.length, all: names.length };
    say(words[records.length ? "some" : "none"].replace(/\{(\w+)\}/g, (_, key) => numbers[key]));
  }

  show();
  window.addEventListener(SHELF, show);
  return () => window.removeEventListener(SHELF, show);
}

const KINDS = { packing, prediction, predictions };

export default {
  render({ model, el }) {
    const kind = KINDS[model.get("kind")];
    if (!kind) throw new Error(`no widget of kind "${model.get("kind")}"`);
    return kind(model, el);
  },
};
