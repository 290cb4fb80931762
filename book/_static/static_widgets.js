// Starts the page's widgets with no kernel: gives each the state that the notebook stored and runs its own module.
// Where that fails, the still picture and its sentence stay.
(function () {
  "use strict";
  const VIEW = 'script[type="application/vnd.jupyter.widget-view+json"]';
  const STATE = 'script[type="application/vnd.jupyter.widget-state+json"]';
  const modules = new Map(); // by their text: most widgets of a page share one

  function imported(text) {
    if (!modules.has(text)) {
      const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
      modules.set(text, import(address).finally(() => URL.revokeObjectURL(address)));
    }
    return modules.get(text);
  }

  // What anywidget hands to a module, with nobody at the other end.
  function modelOf(data) {
    const listeners = new Map();
    const told = (event) => [...(listeners.get(event) || [])].forEach((listener) => listener());
    return {
      get: (name) => data[name],
      set(name, value) {
        if (data[name] === value) return;
        data[name] = value;
        told(`change:${name}`);
      },
      on(event, listener) {
        if (!listeners.has(event)) listeners.set(event, new Set());
        listeners.get(event).add(listener);
      },
      off: (event, listener) => listeners.get(event)?.delete(listener),
      save_changes() {},
    };
  }

  function style(text) {
    if ([...document.head.querySelectorAll("style")].some((one) => one.textContent === text)) return;
    const element = document.createElement("style");
    element.textContent = text;
    document.head.append(element);
  }

  async function begin(view, state) {
    const stored = state[JSON.parse(view.textContent).model_id];
    if (!stored || stored.model_module !== "anywidget") return;
    const data = { ...stored.state };
    const place = document.createElement("div");
    const loaded = await imported(data._esm);
    const widget = typeof loaded.default === "function" ? await loaded.default() : loaded.default;
    style(data._css || "");
    view.before(place);
    try {
      await widget.render({ model: modelOf(data), el: place });
    } catch (error) {
      place.remove();
      throw error;
    }
    const still = view.parentElement.querySelector(".rs-still");
    if (still) still.hidden = true;
  }

  function start() {
    const stored = document.querySelector(STATE);
    if (!stored) return;
    const { state } = JSON.parse(stored.textContent);
    for (const view of document.querySelectorAll(VIEW)) {
      begin(view, state).catch((error) => console.error("a widget did not start:", error));
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
