// Every widget of the book, in one module. A widget's `kind` names the function that draws it; what
// it shows and every sentence that it says come from Python, in `data`. It uses of a model only
// get, set, on, off and save_changes, so it runs in Jupyter, on Colab and on a page with no kernel.
// A widget carries the part that all share and its own: a line that begins with `// ====` begins a
// part and names the kinds in it (base.py cuts there and adds the export).

// ==== all: what the kinds share

const SVG = "http://www.w3.org/2000/svg";

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

// Drawn, not counted: each kind is a module of its own, and a page has several.
const newId = () => `rs-${Math.random().toString(36).slice(2)}`;

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

// Whether there is room for a phone's drawing only: letters keep their size, and drawings shrink.
const narrow = (el) => el.clientWidth > 0 && el.clientWidth < 520;

// A sentence with its gaps filled.
const fillIn = (text, gaps) => text.replace(/\{(\w+)\}/g, (_, name) => gaps[name]);

// A number as the book's sentences write it: thousands set off by a narrow space.
const grouped = (value) => value.toLocaleString("en", { maximumFractionDigits: 6 }).replaceAll(",", "\u202f");

// Items as a sentence joins them.
const listing = (items) => [items.slice(0, -1).join(", "), ...items.slice(-1)].filter(Boolean).join(" and ");

// A labelled slider over the frames of a figure: a native one, so keys and touch are the browser's.
function slider(model, { label, values, moved = (index) => keep(model, "value", index) }) {
  const id = newId();
  const input = make("input", { id, type: "range", min: 0, max: values.length - 1, step: 1 });
  const longest = Math.max(3, ...values.map((value) => `${value}`.length));
  const output = make("span", { class: "rs-value", "aria-hidden": "true", style: `width: ${longest}ch` });
  input.addEventListener("input", () => moved(Number(input.value)));
  const row = make("div", { class: "rs-slider" }, make("label", { for: id }, label), input, output);
  function show(index) {
    input.value = index;
    input.setAttribute("aria-valuetext", values[index]);
    output.textContent = values[index];
  }
  // How far it goes: the frames of a figure may be fewer after a choice.
  function last(index) {
    input.max = index;
  }
  return { row, show, last };
}

// A labelled choice among texts.
function choice(label, texts, chosen) {
  const id = newId();
  const select = make("select", { id }, ...texts.map((text, i) => make("option", { value: i }, text)));
  select.addEventListener("change", () => chosen(Number(select.value)));
  return { select, row: make("div", { class: "rs-pick" }, make("label", { for: id }, label), select) };
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

// ==== packing: features in a plane, over sparsity

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

// ==== prediction, predictions: the prediction box, and looking back

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
    say(fillIn(words[state], said));
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

// What was predicted in a chapter, or in several, looked at again.
function predictions(model, el) {
  const { chapters, words } = model.get("data");
  const { root, says, say } = frame(model, el);
  const lists = make("div", {});
  root.append(says, lists);

  function line(name, record) {
    const state = !record.compared ? "open" : record.picked === record.answer ? "right" : "wrong";
    const said = { name: name.split("/").pop(), predicted: record.predicted, found: record.found };
    return make("li", {}, fillIn(words[state], said));
  }

  function show() {
    const made = chapters.map(({ names }) => names.map((name) => [name, shelf.read(name)]).filter(([, r]) => r.picked));
    lists.replaceChildren(
      ...chapters.flatMap(({ title, href, names }, i) => {
        const list = make("ul", { class: "rs-list" }, ...made[i].map(([name, record]) => line(name, record)));
        if (!title) return [list];
        const said = fillIn(words.chapter, { made: made[i].length, all: names.length });
        return [make("p", { class: "rs-title" }, href ? make("a", { href }, title) : title, ` ${said}`), list];
      }),
    );
    const records = made.flat().map(([, record]) => record);
    const compared = records.filter((record) => record.compared);
    const right = compared.filter((record) => record.picked === record.answer);
    const all = chapters.reduce((sum, { names }) => sum + names.length, 0);
    const numbers = { made: records.length, compared: compared.length, right: right.length, all };
    say(fillIn(words[records.length ? "some" : "none"], numbers));
  }

  show();
  window.addEventListener(SHELF, show);
  window.addEventListener("storage", show); // another window of this browser
  return () => {
    window.removeEventListener(SHELF, show);
    window.removeEventListener("storage", show);
  };
}

// ==== ledger: a prediction's shares, writes switched off, the guess beside the model's word

function ledger(model, el) {
  const { words, cases } = model.get("data");
  const { root, says, say } = frame(model, el);
  const signed = (x) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(1)}`;
  const bare = (x) => x.toFixed(1).replace("-", "−");
  let [which, token] = [0, 0];
  const prompts = choice(words.prompt, cases.map((c) => c.prompt), (index) => {
    [which, token] = [index, 0];
    build();
    keep(model, "value", 0);
    show();
  });
  const tokens = choice(words.token, [], (index) => {
    token = index;
    build();
    show();
  });
  const width = narrow(el) ? 310 : 620;
  const chart = draw("svg", { class: "rs-ledger", viewBox: `0 0 ${width} 134`, "aria-hidden": "true" });
  const field = make("fieldset", {});
  const all = make("button", { type: "button" }, words.all);
  all.addEventListener("click", () => keep(model, "value", 0));
  const results = ["guess", "real"].map((name) => {
    const bar = make("span", { class: `rs-bar rs-${name}` });
    const number = make("td", { class: "rs-number" });
    return { bar, number, row: make("tr", {}, make("th", { scope: "row" }, words[name]), number, make("td", {}, bar)) };
  });
  const table = make("table", { class: "rs-table rs-two" }, make("tbody", {}, ...results.map((r) => r.row)));
  const picks = make("div", { class: "rs-picks" }, prompts.row, tokens.row);
  root.append(picks, chart, make("p", { class: "rs-scale" }, words.axis), field, says, table, make("div", { class: "rs-buttons" }, all));

  let [bars, boxes] = [[], []];
  const isOff = (write) => {
    const at = cases[which].switches.indexOf(write);
    return at >= 0 && Boolean((model.get("value") >> at) & 1);
  };
  function flip(at) {
    keep(model, "value", model.get("value") ^ (1 << at));
  }

  function build() {
    const c = cases[which];
    tokens.select.replaceChildren(...c.tokens.map((text, i) => make("option", { value: i }, `“${text.trim()}”`)));
    tokens.select.value = token;
    const shares = c.shares[token];
    const [low, high] = [Math.min(0, ...shares), Math.max(0, ...shares)];
    const y = (x) => 10 + (120 * (high - x)) / (high - low || 1);
    const wide = width / shares.length;
    bars = shares.map((share, i) => {
      const bar = draw("rect", {
        class: `rs-write rs-of-${c.kinds[i]}`,
        x: (i * wide + 0.1 * wide).toFixed(1),
        y: Math.min(y(share), y(0)).toFixed(1),
        width: (0.8 * wide).toFixed(1),
        height: Math.max(0.5, Math.abs(y(share) - y(0))).toFixed(1),
      }, draw("title", {}, `${c.labels[i]} ${signed(share)}`));
      const at = c.switches.indexOf(i);
      if (at >= 0) {
        bar.classList.add("rs-switch");
        bar.addEventListener("click", () => flip(at));
      }
      return bar;
    });
    chart.replaceChildren(draw("line", { class: "rs-zero", x1: 0, x2: width, y1: y(0), y2: y(0) }), ...bars);
    boxes = c.switches.map((write, at) => {
      const box = make("input", { type: "checkbox" });
      box.addEventListener("change", () => flip(at));
      const text = `${c.labels[write]} ${signed(shares[write])}`;
      return { box, label: make("label", { class: "rs-choice" }, box, make("span", {}, text)) };
    });
    field.replaceChildren(make("legend", {}, words.switches), ...boxes.map((b) => b.label));
  }

  function show() {
    const c = cases[which];
    const off = model.get("value");
    bars.forEach((bar, i) => bar.classList.toggle("rs-off", isOff(i)));
    boxes.forEach(({ box }, at) => { box.checked = !((off >> at) & 1); });
    const numbers = [c.linear[off][token], c.real[off][token]];
    const longest = Math.max(1, ...c.linear[0].map(Math.abs), ...numbers.map(Math.abs));
    results.forEach(({ bar, number }, i) => {
      number.textContent = bare(numbers[i]);
      bar.style.width = `${Math.max(0, (100 * numbers[i]) / longest).toFixed(1)}%`;
    });
    all.disabled = off === 0;
    say(fillIn(words[off ? "off" : "on"], {
      prompt: c.prompt,
      writes: c.labels.length,
      names: listing(c.switches.filter(isOff).map((i) => c.labels[i])),
      token: c.tokens[token].trim(),
      guess: bare(numbers[0]),
      real: bare(numbers[1]),
      top: c.top[off].trim() || "␣",
      p: `${Math.round(100 * c.p[off])} %`,
    }));
  }

  build();
  return follow(model, "value", show);
}

// ==== climb: a sentence climbing through the model, by depth and token

function climb(model, el) {
  const { words, tokens, depths, norms, cosines, read } = model.get("data");
  const { root, says, say } = frame(model, el);
  const count = tokens.length;
  const [wide, high] = [narrow(el) ? 56 : 100, 17];
  const put = (depth, token) => keep(model, "value", depth * count + token);
  const now = () => [Math.floor(model.get("value") / count), model.get("value") % count];
  const depth = slider(model, { label: words.depth, values: depths, moved: (i) => put(i, now()[1]) });
  const token = slider(model, { label: words.token, values: tokens, moved: (i) => put(now()[0], i) });
  const logs = norms.map((row) => row.map(Math.log10));
  const [least, most] = [Math.min(...logs.flat()), Math.max(...logs.flat())];
  const word = (text) => (text.trim() || "␣").slice(0, narrow(el) ? 8 : 11);

  const rows = depths.map((_, d) => {
    const cells = tokens.map((_, t) => {
      const share = (logs[d][t] - least) / (most - least || 1);
      const place = { x: t * wide + 1, y: (depths.length - 1 - d) * high + 1, width: wide - 2, height: high - 2 };
      const cell = draw("g", { class: t ? "rs-cell" : "rs-cell rs-first" },
        draw("rect", { ...place, "fill-opacity": (0.05 + 0.4 * share).toFixed(3) }),
        draw("text", { x: t * wide + wide / 2, y: place.y + high - 5 }, word(read[d][t][0][0])));
      cell.addEventListener("click", () => put(d, t));
      return cell;
    });
    return { cells, group: draw("g", {}, ...cells) };
  });
  const bottom = depths.length * high;
  const names = tokens.map((text, t) => draw("text", { class: "rs-token", x: t * wide + wide / 2, y: bottom + 16 }, text.trim()));
  const grid = draw("svg", { class: "rs-climb", viewBox: `0 0 ${count * wide} ${bottom + 22}`, "aria-hidden": "true" },
    ...rows.map((row) => row.group), ...names);

  const play = make("button", { type: "button" }, words.play);
  let timer = 0;
  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = words.play;
  }
  play.addEventListener("click", () => {
    if (timer) return stop();
    const at = now()[1];
    put(0, at);
    play.textContent = words.stop;
    timer = setInterval(() => {
      const [d] = now();
      if (d + 1 < depths.length) put(d + 1, at);
      if (d + 2 >= depths.length) stop();
    }, 160);
  });
  const scale = fillIn(words.scale, { low: (10 ** least).toPrecision(2), high: grouped(Math.round(10 ** most)) });
  root.append(
    depth.row, token.row, make("div", { class: "rs-buttons" }, play), says, grid,
    make("p", { class: "rs-scale" }, make("span", { class: "rs-ramp", "aria-hidden": "true" }), ` ${scale}`),
  );
  const end = follow(model, "value", () => {
    const [d, t] = now();
    depth.show(d);
    token.show(t);
    rows.forEach(({ cells, group }, i) => {
      group.classList.toggle("rs-above", i > d);
      cells.forEach((cell, j) => cell.classList.toggle("rs-picked", i === d && j === t));
    });
    if (timer && d + 1 < depths.length) return; // said once, when it has arrived
    const reading = read[d][t].map(([text, p]) => `“${text.trim() || "␣"}” (${Math.round(100 * p)} %)`);
    say(fillIn(words.says, {
      depth: depths[d], token: tokens[t].trim(), norm: grouped(norms[d][t]),
      cosine: cosines[d][t].toFixed(2).replace("-", "−"), read: reading.join(", "),
    }) + (t === 0 ? words.zero : ""));
  });
  return () => { stop(); end(); };
}

// ==== composition: all pairs of heads, beside chance

function composition(model, el) {
  const { words, layers, heads, largest, baseline, limit, scores } = model.get("data");
  const { root, says, say } = frame(model, el);
  const size = layers * heads;
  const bytes = Uint8Array.from(atob(scores), (c) => c.charCodeAt(0));
  const [mean, deviation] = baseline;
  const name = (head) => `L${Math.floor(head / heads)}H${head % heads}`;
  const above = (row) => (Math.floor(row / heads) + 1) * heads; // the first head of the next layer
  const starts = [];
  for (let row = 0, at = 0; row < size; row += 1) {
    starts.push(at);
    at += size - above(row);
  }
  const score = (row, column) => (largest * bytes[starts[row] + column - above(row)]) / 255;
  const far = (value) => (value - mean) / deviation;

  const values = Array.from({ length: size }, (_, row) => name(row));
  const control = slider(model, { label: words.head, values });
  const box = make("input", { type: "checkbox" });
  const hide = make("label", { class: "rs-choice" }, box, make("span", {}, fillIn(words.hide, { limit })));
  const canvas = make("canvas", { width: size, height: size, class: "rs-map", "aria-hidden": "true" });
  const wrap = make("div", { class: "rs-mapped" }, canvas, make("span", { class: "rs-cross", "aria-hidden": "true" }));
  const labels = make("p", { class: "rs-scale" }, `→ ${words.reads}; ↓ ${words.writes}`);
  root.append(control.row, says, hide, wrap, labels);

  // From the ground to the colour of attention, by how large a score is.
  function paint() {
    const style = getComputedStyle(root);
    const rgb = (variable) => {
      const text = style.getPropertyValue(variable).trim();
      return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
    };
    const [ground, faint, ink] = [rgb("--rs-ground"), rgb("--rs-faint"), rgb("--rs-attn")];
    const context = canvas.getContext("2d");
    const image = context.createImageData(size, size);
    for (let row = 0; row < size; row += 1) {
      for (let column = 0; column < size; column += 1) {
        const at = 4 * (row * size + column);
        let colour = faint;
        if (column >= above(row)) {
          const value = score(row, column);
          const share = box.checked && far(value) <= limit ? 0 : Math.min(1, value / largest) ** 0.7;
          colour = ground.map((g, i) => g + share * (ink[i] - g));
        }
        image.data.set([...colour, 255], at);
      }
    }
    context.putImageData(image, 0, 0);
  }
  box.addEventListener("change", paint);
  canvas.addEventListener("click", (event) => {
    const place = canvas.getBoundingClientRect();
    const row = Math.floor((size * (event.clientY - place.top)) / place.height);
    keep(model, "value", Math.max(0, Math.min(size - 1, row)));
  });
  const themes = new MutationObserver(paint);
  for (const element of [document.documentElement, document.body]) {
    themes.observe(element, { attributes: true, attributeFilter: ["data-theme", "theme", "data-jp-theme-light", "class"] });
  }

  const end = follow(model, "value", () => {
    const row = model.get("value");
    control.show(row);
    wrap.lastChild.style.top = `${(100 * (row + 0.5)) / size}%`;
    const first = above(row);
    if (first >= size) return say(fillIn(words.none, { head: name(row) }));
    let [best, many] = [first, 0];
    for (let column = first; column < size; column += 1) {
      if (score(row, column) > score(row, best)) best = column;
      if (far(score(row, column)) > limit) many += 1;
    }
    const value = score(row, best);
    return say(fillIn(words.says, {
      head: name(row), best: name(best), reader: words.reader, count: size - first,
      score: value.toFixed(3), far: far(value).toFixed(1).replace("-", "−"),
      chance: mean.toFixed(3), above: many, limit,
    }));
  });
  paint();
  return () => { themes.disconnect(); end(); };
}

// ==== path_lengths: the gradient by the length of the paths that it came by

function path_lengths(model, el) {
  const { words, floor, stride, frames } = model.get("data");
  const { root, says, say } = frame(model, el);
  const now = () => {
    const which = Math.floor(model.get("value") / stride);
    return [which, Math.min(model.get("value") % stride, frames[which].size.length - 1)];
  };
  const put = (which, length) => keep(model, "value", which * stride + length);
  const models = choice(words.model, frames.map((f) => f.name), (i) => put(i, now()[1]));
  const counts = Array.from({ length: stride }, (_, i) => `${i}`);
  const length = slider(model, { label: words.length, values: counts, moved: (i) => put(now()[0], i) });
  const [wide, high, left, bottom] = [narrow(el) ? 330 : 640, narrow(el) ? 230 : 250, 48, 24];
  const chart = draw("svg", { class: "rs-chart", viewBox: `0 0 ${wide} ${high}`, "aria-hidden": "true" });
  const key = (kind, text) => make("span", { class: "rs-key" }, make("span", { class: `rs-mark rs-${kind}` }), ` ${text}`);
  const keys = make("p", { class: "rs-scale" }, key("part", words.parts), key("zeroth", words.first), key("error", words.error));
  root.append(models.row, length.row, says, chart, make("p", { class: "rs-scale" }, words.axis), keys);

  // One axis for all models, so that they can be compared.
  const all = frames.flatMap((f) => [...f.size, ...f.error, ...f.first]);
  const [low, most] = [Math.log10(floor), Math.ceil(Math.log10(Math.max(1, ...all)))];
  const y = (value) => 6 + ((high - bottom - 6) * (most - Math.log10(Math.max(value, floor)))) / (most - low);
  const amount = (value) => {
    if (value < floor) return fillIn(words.least, { floor });
    return grouped(Number(value.toPrecision(2)));
  };
  let [built, bars, dots] = [-1, [], []];

  function build(which) {
    const { size, error, first } = frames[which];
    const step = (wide - left - 8) / size.length;
    const x = (m) => left + (m + 0.5) * step;
    const ticks = [];
    for (let power = low; power <= most; power += 1) {
      const at = y(10 ** power);
      ticks.push(draw("line", { class: power ? "rs-tick" : "rs-tick rs-whole", x1: left, x2: wide, y1: at, y2: at }));
      if ((power - low) % 2 === 0) {
        const text = grouped(10 ** power);
        ticks.push(draw("text", { class: "rs-axis rs-end", x: left - 5, y: at + 4 }, text));
      }
    }
    const every = size.length > 12 ? (narrow(el) ? 10 : 5) : 1;
    size.forEach((_, m) => {
      if (m % every === 0) ticks.push(draw("text", { class: "rs-axis rs-mid", x: x(m), y: high - 6 }, `${m}`));
    });
    bars = size.map((value, m) => {
      const bar = draw("rect", {
        class: "rs-part", x: x(m) - 0.4 * step, width: 0.8 * step, y: y(value), height: Math.max(0.5, high - bottom - y(value)),
      });
      const place = draw("rect", { class: "rs-place", x: x(m) - 0.5 * step, width: step, y: 0, height: high - bottom });
      place.addEventListener("click", () => put(now()[0], m));
      return { bar, place };
    });
    const radius = Math.max(1.5, Math.min(3.5, 0.22 * step));
    const zeroth = first.map((value, m) => draw("circle", { class: "rs-zeroth", cx: x(m), cy: y(value), r: radius }));
    const line = draw("polyline", { class: "rs-error", points: error.map((value, m) => `${x(m).toFixed(1)},${y(value).toFixed(1)}`).join(" ") });
    dots = error.map((value, m) => draw("circle", { class: "rs-error", cx: x(m), cy: y(value), r: 4 }));
    chart.replaceChildren(...ticks, ...bars.map((b) => b.bar), ...zeroth, line, ...dots, ...bars.map((b) => b.place));
    length.last(size.length - 1);
    models.select.value = which;
    built = which;
  }

  return follow(model, "value", () => {
    const [which, m] = now();
    if (built !== which) build(which);
    length.show(m);
    const { name, size, error, first, ratio, mean } = frames[which];
    bars.forEach(({ bar }, i) => {
      bar.classList.toggle("rs-later", i > m);
      bar.classList.toggle("rs-chosen", i === m);
    });
    dots.forEach((dot, i) => { dot.style.visibility = i === m ? "visible" : "hidden"; });
    say(fillIn(words.says, {
      model: name, length: fillIn([words.none, words.one][m] || words.many, { count: m }),
      size: amount(size[m]), first: amount(first[m]), error: amount(error[m]), ratio: amount(ratio), mean,
    }));
  });
}

// ==== variants: training runs by residual connection, depth and learning rate

function variants(model, el) {
  const { words, depths, rates, stride, best, guess, learned, top, variants: kinds } = model.get("data");
  const { root, says, say } = frame(model, el);
  const now = () => [Math.floor(model.get("value") / rates.length), model.get("value") % rates.length];
  const put = (depth, rate) => keep(model, "value", depth * rates.length + rate);
  const look = ({ colour, dash }) => ({ style: `stroke: var(--rs-${colour.replace(" ", "-")})`, "stroke-dasharray": dash || "none" });

  const group = newId();
  const radios = depths.map((depth, i) => {
    const input = make("input", { type: "radio", name: group, value: i });
    input.addEventListener("change", () => put(i, now()[1]));
    return { input, label: make("label", { class: "rs-choice" }, input, make("span", {}, `${depth}`)) };
  });
  const rate = slider(model, { label: words.rate, values: rates, moved: (i) => put(now()[0], i) });
  const boxes = kinds.map((kind) => {
    const input = make("input", { type: "checkbox" });
    input.checked = true;
    input.addEventListener("change", show);
    const sample = draw("svg", { class: "rs-sample", viewBox: "0 0 26 10", "aria-hidden": "true" },
      draw("line", { class: "rs-run", x1: 0, x2: 26, y1: 5, y2: 5, ...look(kind) }));
    return { input, label: make("label", { class: "rs-choice rs-small" }, input, sample, make("span", {}, kind.name)) };
  });

  const [wide, high, left, bottom] = [330, 230, 34, 36];
  const chart = () => draw("svg", { class: "rs-chart rs-half", viewBox: `0 0 ${wide} ${high}`, "aria-hidden": "true" });
  const [curves, ends] = [chart(), chart()];
  root.append(
    make("fieldset", {}, make("legend", {}, words.depth), ...radios.map((r) => r.label)), rate.row, says,
    make("div", { class: "rs-side" }, curves, ends),
    make("fieldset", {}, make("legend", { class: "rs-spoken" }, words.variants), ...boxes.map((b) => b.label)),
  );

  const last = Math.max(...kinds.flatMap((kind) => kind.runs.flat().map((run) => run.losses.length)));
  const low = Math.floor(10 * best - 1) / 10;
  const y = (loss) => 20 + ((high - bottom - 20) * (top - Math.min(loss ?? top, top))) / (top - low);
  const xStep = (i) => left + ((wide - left - 6) * (i + 1)) / last;
  const xRate = (i) => left + ((wide - left) * (i + 0.5)) / rates.length;

  function ground(name, label, ticks) {
    const lines = [[best, words.best], [guess, words.guess]].flatMap(([loss, text]) => [
      draw("line", { class: "rs-tick rs-whole", x1: left, x2: wide, y1: y(loss), y2: y(loss) }),
      draw("text", { class: "rs-axis rs-end", x: wide - 2, y: y(loss) - 3 }, text),
    ]);
    const numbers = [draw("text", { class: "rs-axis rs-end", x: left - 5, y: y(top) + 4 }, `≥${top}`)];
    for (let loss = Math.ceil(2 * low) / 2; loss < top - 0.2; loss += 0.5) {
      numbers.push(draw("text", { class: "rs-axis rs-end", x: left - 5, y: y(loss) + 4 }, loss.toFixed(1)));
    }
    return [
      ...lines, ...numbers,
      draw("line", { class: "rs-zero", x1: left, x2: wide, y1: high - bottom, y2: high - bottom }),
      ...ticks.map(([x, text]) => draw("text", { class: "rs-axis rs-mid", x, y: high - bottom + 14 }, text)),
      draw("text", { class: "rs-axis rs-mid", x: (left + wide) / 2, y: high - 5 }, name),
      draw("text", { class: "rs-axis", x: 2, y: 9 }, label),
    ];
  }

  const line = (points, kind) => draw("polyline", {
    class: "rs-run", points: points.map(([x, at]) => `${x.toFixed(1)},${at.toFixed(1)}`).join(" "), ...look(kind),
  });

  function show() {
    const [d, r] = now();
    radios.forEach(({ input }, i) => { input.checked = i === d; });
    rate.show(r);
    const ticked = kinds.filter((_, i) => boxes[i].input.checked);
    const steps = [0, 1, 2, 3].map((i) => Math.round((i * last) / 3)).filter(Boolean);
    curves.replaceChildren(
      ...ground(words.steps, words.loss, steps.map((i) => [xStep(i - 1) - 6, `${i * stride}`])),
      ...ticked.map((kind) => line(kind.runs[d][r].losses.map((loss, i) => [xStep(i), y(loss)]), kind)),
    );
    const places = rates.map((_, i) => {
      const place = draw("rect", { class: "rs-place", x: xRate(i) - (wide - left) / rates.length / 2, width: (wide - left) / rates.length, y: 0, height: high });
      place.addEventListener("click", () => put(now()[0], i));
      return place;
    });
    ends.replaceChildren(
      draw("rect", { class: "rs-column", x: xRate(r) - 20, width: 40, y: 0, height: high - bottom }),
      ...ground(words.rates, words.last, rates.map((text, i) => [xRate(i), text])),
      ...ticked.flatMap((kind) => {
        const points = rates.map((_, i) => [xRate(i), y(kind.runs[d][i].last)]);
        const dots = points.map(([cx, cy]) => draw("circle", { cx, cy, r: 3, style: `fill: var(--rs-${kind.colour.replace(" ", "-")})` }));
        return [line(points, kind), ...dots];
      }),
      ...places,
    );
    const runs = ticked.map((kind) => ({ name: kind.name, ...kind.runs[d][r] }));
    const well = runs.filter((run) => run.last !== null && run.last < learned).sort((a, b) => a.last - b.last);
    const idle = runs.filter((run) => run.last !== null && run.last >= learned);
    const blown = runs.filter((run) => run.last === null);
    const listed = (some, text) => some.map((run) => fillIn(text, { ...run, last: run.last?.toFixed(2), step: run.diverged })).join(", ");
    const where = fillIn(words.where, { depth: depths[d], rate: rates[r] });
    const said = [
      well.length ? fillIn(words.learned, { names: listed(well, words.one) }) : "",
      idle.length ? fillIn(words.guessing, { guess: guess.toFixed(2), names: listed(idle, words.one) }) : "",
      blown.length ? fillIn(words.blown, { names: listed(blown, words.step) }) : "",
    ];
    say(`${where}${runs.length ? said.join("") : words.none}`.trim());
  }

  return follow(model, "value", show);
}
