// Keeps a conversation's page live: shows an answer while it is written, and then renders the parts that changed. While
// runs that it started go on, it looks after them.
(() => {
  const root = document.querySelector("[data-thread]");
  const now = document.getElementById("now");
  const base = `/chat/${root.dataset.thread}`;
  const LOOK = 3000; // milliseconds between two looks of a page that doesn't stream
  let stream, give = null, timer;

  const state = () => document.getElementById("cost").dataset;
  const newest = !new URLSearchParams(location.search).has("before");

  async function render() {
    const answer = await fetch(`${base}/live`);
    if (answer.status === 401) location.href = `/sign-in?next=${encodeURIComponent(location.pathname)}`;
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of fresh.querySelectorAll("[data-part]")) {
      const old = document.getElementById(part.id);
      if (old.innerHTML !== part.innerHTML || old.dataset.answering !== part.dataset.answering) old.replaceWith(part);
    }
    window.loopwright.localize(document);
    settle();
  }

  function settle() {
    for (const hint of document.querySelectorAll(".without-script")) hint.hidden = true;
    if (state().answering !== "yes") now.hidden = true;
  }

  function show(words) {
    const atEnd = innerHeight + scrollY > document.documentElement.scrollHeight - 160;
    now.hidden = false;
    now.querySelector(".words").textContent = words;
    if (atEnd) scrollTo(0, document.documentElement.scrollHeight);
  }

  function stop() {
    clearTimeout(timer);
    stream?.close();
    stream = undefined;
    give?.();
    give = null;
  }

  function open() {
    let words = "";
    stream = new EventSource(`/api/threads/${root.dataset.thread}/events`);
    stream.onopen = () => { words = ""; };
    stream.addEventListener("text_delta", (event) => { words += JSON.parse(event.data).text; show(words); });
    stream.addEventListener("tool_called", (event) => { words = ""; show(`called ${JSON.parse(event.data).name}`); render(); });
    stream.addEventListener("run_finished", () => { stop(); render().finally(follow); });
    stream.onerror = () => {
      if (stream?.readyState !== EventSource.CLOSED) return; // it connects again by itself
      stop();
      timer = setTimeout(() => render().finally(follow), 1000);
    };
  }

  async function follow() {
    clearTimeout(timer);
    if (stream || document.hidden) return;
    if (state().answering === "yes") {
      const place = await window.loopwright.place();
      if (place && !stream) { give = place; open(); return; }
      place?.();
    } else if (state().running !== "yes") return;
    timer = setTimeout(() => render().finally(follow), LOOK);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else if (state().answering === "yes" || state().running === "yes") render().finally(follow);
  });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => { if (event.persisted) render().finally(follow); });

  settle();
  if (newest) follow();
})();
