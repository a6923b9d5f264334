// Keeps a run's page live. The stream of events says that something happened; the server then renders the parts that
// changed. So nothing is put together here, and a page that missed events for an hour catches up with one request.
//
// A browser opens six connections to a host, for all its tabs together: with a stream in each, the seventh tab would
// load nothing. So a page streams only while it can be seen, and only a few of a browser's pages do; the others look
// every few seconds.
(() => {
  const root = document.querySelector("[data-run]");
  const conn = document.getElementById("conn");
  const pause = document.getElementById("pause");
  const log = document.getElementById("log");
  const now = document.getElementById("now");
  const base = `/runs/${root.dataset.run}`;
  const KEPT = 100; // iterations that stay on the page
  const EVERY = 300; // milliseconds between two renderings
  const WORDS = 600; // characters of the text being written that are shown
  const LOOK = 3000, LOOK_HIDDEN = 10000; // milliseconds between two looks of a page that doesn't stream
  let stream, seen = "", wait = 500, timer, busy = false, again = false, paused = false, over = false, reopening, give = null;

  const say = (state, words) => {
    if (conn.dataset.state === state && conn.dataset.said === words) return;
    conn.dataset.state = state;
    conn.querySelector(".say").textContent = conn.dataset.said = words;
    pause.hidden = state === "finished";
  };

  // --- the parts of the page ---

  function put(fresh) {
    for (const part of fresh.querySelectorAll("[data-part]")) {
      const old = document.getElementById(part.id);
      const typing = part.dataset.state && part.dataset.state === old.dataset.state; // a form may be half filled
      if (typing || old.innerHTML === part.innerHTML) continue;
      const open = [...old.querySelectorAll("details")].map((each) => each.open);
      const focused = old.contains(document.activeElement);
      old.replaceWith(part);
      part.querySelectorAll("details").forEach((each, n) => { each.open = open[n] ?? each.open; });
      if (focused) (part.querySelector("button, a") ?? document.getElementById("main")).focus();
    }
    document.title = document.getElementById("cards").dataset.title;
  }

  function add(fresh) {
    const rows = [...fresh.querySelectorAll("#fresh > details")];
    if (fresh.querySelector("#fresh").dataset.reset === "yes") log.replaceChildren();
    if (rows.length) document.getElementById("none-yet")?.remove();
    for (const row of rows) row.classList.add("fresh");
    log.prepend(...rows);
    while (log.children.length > KEPT) log.lastElementChild.remove();
    const first = Number(log.querySelector("details:last-of-type")?.dataset.position ?? 1);
    const earlier = document.getElementById("earlier");
    earlier.href = `?before=${first}`;
    earlier.hidden = first <= 1;
  }

  async function render() {
    if (busy) { again = true; return; }
    busy = true;
    again = false;
    try {
      const newest = root.dataset.newest === "yes";
      const last = newest ? (log.querySelector("details")?.dataset.position ?? 0) : 1e9;
      const answer = await fetch(`${base}/live?after=${last}`);
      if (answer.status === 401) location.href = `/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`;
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!paused) { // it may have been asked for before
        if (newest) add(fresh);
        put(fresh);
        window.loopwright.localize(document);
      }
    } catch {
      again = true;
    }
    busy = false;
    const cards = document.getElementById("cards").dataset;
    if (cards.live === "no" && !over && !again) finish(cards.sentence);
    if (again && !paused) timer = setTimeout(render, 1000);
  }

  function soon() {
    if (paused) return;
    clearTimeout(timer);
    timer = setTimeout(render, EVERY);
  }

  function finish(sentence) {
    over = true;
    stop();
    now.hidden = true;
    say("finished", `finished: ${sentence}`);
  }

  // --- what is being written ---

  function tell(what, words = "") {
    now.hidden = false;
    now.querySelector(".what").textContent = what;
    now.querySelector(".words").textContent = words;
  }

  const doing = {
    run_started: () => {},
    run_resumed: () => {},
    iteration_started: (e) => tell(`Iteration ${e.number}`, "thinking"),
    text_delta: (e) => {
      const words = now.dataset.place === `${e.attempt}/${e.number}` ? now.dataset.text : "";
      now.dataset.place = `${e.attempt}/${e.number}`;
      now.dataset.text = (words + e.text).slice(-WORDS);
      tell(`Iteration ${e.number} writes`, now.dataset.text);
    },
    tool_called: (e) => tell(`Iteration ${e.number} called`, e.name),
    guardrail_refused: (e) => tell(e.number ? `Iteration ${e.number}` : "", e.sentence),
    candidate_produced: (e) => tell(`Iteration ${e.number}`, "is being scored"),
    evaluation_retried: (e) => tell(`Iteration ${e.number} is scored again:`, e.why),
    iteration_finished: soon,
    money_settled: soon,
    run_finished: soon,
  };

  // --- whether this page streams ---

  function stop() {
    clearTimeout(reopening);
    stream?.close();
    stream = undefined;
    give?.();
    give = null;
  }

  async function follow() {
    clearTimeout(reopening);
    if (over) return;
    const found = document.hidden ? null : await window.loopwright.place();
    if (found && !over && !stream && !document.hidden) { give = found; open(); return; }
    found?.();
    if (over || stream) return;
    if (!paused) await render();
    if (over || stream) return;
    if (!paused) say(...(again ? ["reconnecting", "reconnecting…"] : ["live", `live, looks every ${LOOK / 1000} seconds`]));
    clearTimeout(reopening);
    reopening = setTimeout(follow, document.hidden ? LOOK_HIDDEN : LOOK);
  }

  document.addEventListener("visibilitychange", () => {
    if (over || document.getElementById("cards").dataset.live !== "yes") return;
    if (document.hidden) stop();
    follow();
  });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => { if (event.persisted && !over) follow(); });

  function open() {
    const url = new URL(`/api${base}/events`, location.href);
    // Without a number of its own the stream begins at the end of what has happened; the page shows the rest.
    url.searchParams.set("after", seen || "9007199254740992");
    stream = new EventSource(url);
    stream.onopen = () => { wait = 500; if (!paused) { say("live", "live"); soon(); } };
    stream.onerror = () => {
      if (over) return;
      if (!paused) say("reconnecting", "reconnecting…");
      if (stream.readyState !== EventSource.CLOSED) return;
      render(); // the run may be over (204), or the session (401)
      stop();
      reopening = setTimeout(follow, wait);
      wait = Math.min(wait * 2, 10000);
    };
    for (const [name, act] of Object.entries(doing)) {
      stream.addEventListener(name, (event) => {
        if (event.lastEventId) seen = event.lastEventId;
        if (!paused) act(JSON.parse(event.data));
      });
    }
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", paused);
    pause.lastChild.textContent = paused ? " Go on" : " Pause live view";
    if (paused) { clearTimeout(timer); now.hidden = true; say("paused", "paused; the run goes on"); }
    else { say("live", "live"); render(); }
  });

  // An iteration is fetched when it is opened.
  log.addEventListener("toggle", async (event) => {
    const row = event.target;
    if (!row.matches?.(".iteration") || !row.open || row.dataset.loaded) return;
    row.dataset.loaded = "yes";
    const answer = await fetch(row.dataset.src);
    if (!answer.ok) { delete row.dataset.loaded; return; }
    const told = new DOMParser().parseFromString(await answer.text(), "text/html");
    row.querySelector(".inside").replaceChildren(...told.body.childNodes);
    window.loopwright.localize(row);
  }, true);

  if (document.getElementById("cards").dataset.live === "yes") follow();
})();
