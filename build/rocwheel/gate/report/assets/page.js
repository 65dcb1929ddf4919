"use strict";
(() => {
  const STEP = 200;
  const WORST = ["crashed", "timed-out", "failed", "flaky", "not-run", "xfailed", "skipped", "passed"];
  const tests = JSON.parse(document.getElementById("data").textContent);
  const body = document.querySelector("#table tbody");
  const find = (id) => document.getElementById(id);
  const state = { key: "outcome", down: false, shown: STEP };

  const make = (tag, text, className) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const seconds = (ms) => (ms / 1000).toFixed(2) + " s";
  const fill = (select, values) => values.forEach((value) => select.append(make("option", value)));

  const order = {
    test: (a, b) => (a.test < b.test ? -1 : a.test > b.test ? 1 : 0),
    outcome: (a, b) => WORST.indexOf(a.outcome) - WORST.indexOf(b.outcome),
    ms: (a, b) => a.ms - b.ms,
  };

  const chosen = () => {
    const text = find("search").value.toLowerCase();
    const outcome = find("outcome").value;
    const library = find("library").value;
    const found = tests.filter((test) =>
      test.test.toLowerCase().includes(text) &&
      (!outcome || test.outcome === outcome) &&
      (!library || test.libraries.includes(library)));
    const sign = state.down ? -1 : 1;
    return found.sort((a, b) => sign * order[state.key](a, b) || order.test(a, b));
  };

  const detail = (test) => {
    const row = make("tr", undefined, "detail");
    const cell = make("td");
    cell.colSpan = 4;
    if (test.reason) cell.append(make("p", test.reason));
    if (test.libraries.length) cell.append(make("p", "ROCm: " + test.libraries.join(", ")));
    for (const attempt of test.attempts) {
      const line = make("p");
      line.append(make("span", attempt.outcome, "outcome " + attempt.outcome),
        ` on ${attempt.lane}, process ${attempt.process}, ${seconds(attempt.duration_ms)}`,
        attempt.before ? `, after ${attempt.before}` : "");
      if (attempt.log) {
        const log = make("a", "log");
        log.href = "logs/" + attempt.log.split("/").map(encodeURIComponent).join("/");
        line.append("; ", log);
      }
      cell.append(line);
      for (const text of [attempt.detail, attempt.output]) if (text) cell.append(make("pre", text));
    }
    if (test.again) cell.append(make("p", "To run it again", "note"), make("pre", test.again, "again"));
    row.append(cell);
    return row;
  };

  const line = (test) => {
    const row = make("tr");
    const name = make("td");
    if (test.reason || test.attempts.length || test.libraries.length) {
      const box = make("details");
      const summary = make("summary");
      summary.append(make("code", test.test));
      box.append(summary);
      let below;
      box.addEventListener("toggle", () => {
        if (box.open) row.after((below = below || detail(test)));
        else if (below) below.remove();
      });
      name.append(box);
    } else name.append(make("code", test.test));
    const outcome = make("td");
    outcome.append(make("span", test.outcome, "outcome " + test.outcome));
    const time = make("td", test.lanes.length ? seconds(test.ms) : "", "n");
    row.append(name, outcome, time, make("td", test.lanes.join(", ")));
    return row;
  };

  const draw = () => {
    const found = chosen();
    body.replaceChildren(...found.slice(0, state.shown).map(line));
    find("shown").textContent = `${found.length} of ${tests.length}`;
    find("more").hidden = found.length <= state.shown;
    for (const button of document.querySelectorAll("#table thead button")) {
      const mine = button.dataset.key === state.key;
      button.parentElement.setAttribute(
        "aria-sort", mine ? (state.down ? "descending" : "ascending") : "none");
    }
  };

  fill(find("outcome"), WORST.filter((name) => tests.some((test) => test.outcome === name)));
  fill(find("library"), [...new Set(tests.flatMap((test) => test.libraries))].sort());
  for (const id of ["search", "outcome", "library"]) {
    find(id).addEventListener("input", () => { state.shown = STEP; draw(); });
  }
  for (const button of document.querySelectorAll("#table thead button")) {
    button.addEventListener("click", () => {
      state.down = state.key === button.dataset.key ? !state.down : false;
      state.key = button.dataset.key;
      draw();
    });
  }
  find("more").addEventListener("click", () => { state.shown += STEP; draw(); });
  draw();
})();
