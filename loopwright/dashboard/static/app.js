// Small things that every page works without: times in the viewer's zone, keys, copying, a form that checks itself.
(() => {
  const clock = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" };
  const thisYear = new Intl.DateTimeFormat(undefined, clock);
  const otherYear = new Intl.DateTimeFormat(undefined, { ...clock, year: "numeric" });
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
  const STREAMS = 3; // of one browser
  window.loopwright = {
    localize(root) {
      for (const time of root.querySelectorAll("time[datetime]:not([data-local])")) {
        const moment = new Date(time.dateTime);
        const short = moment.getFullYear() === new Date().getFullYear() ? thisYear : otherYear;
        time.textContent = short.format(moment);
        time.title = exact.format(moment);
        time.dataset.local = "";
      }
      for (const button of root.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
    },
    // A place to stream from: one of the few of this browser, for as long as it is kept, or null. Without locks (which
    // need https or this machine) there is one for every page.
    async place() {
      if (!navigator.locks) return () => {};
      for (let n = 0; n < STREAMS; n++) {
        const kept = await new Promise((got) => {
          navigator.locks.request(`loopwright-live-${n}`, { ifAvailable: true }, (lock) => {
            if (!lock) { got(null); return undefined; }
            return new Promise((release) => got(release));
          });
        });
        if (kept) return kept;
      }
      return null;
    },
  };
  window.loopwright.localize(document);
  // On a phone the navigation scrolls: where one is can be seen.
  document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });

  const typing = (node) => node.matches("input:not([type=checkbox]), select, textarea, [contenteditable]");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "?") {
      event.preventDefault();
      document.getElementById("help").showModal();
      return;
    }
    const target = /^[/rsp]$/.test(event.key) && document.querySelector(`[data-key="${event.key}"]:not([disabled], [hidden])`);
    if (!target) return;
    event.preventDefault();
    if (target.tagName === "BUTTON") target.click();
    else target.focus();
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    const words = button.lastChild;
    const before = words.textContent;
    words.textContent = " Copied";
    setTimeout(() => { words.textContent = before; }, 1500);
  });

  // A form sent twice by a double click does its work once anyway; this only spares the second page.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
    setTimeout(() => { delete event.target.dataset.sent; }, 3000);
  });

  const form = document.querySelector("form[data-check]");
  if (form) {
    const touched = new Set();
    let asked = 0, timer;
    const check = async () => {
      const mine = ++asked;
      const answer = await fetch(form.dataset.check, { method: "POST", body: new URLSearchParams(new FormData(form)) });
      if (!answer.ok || mine !== asked) return;
      const { wrong, worst } = await answer.json();
      for (const place of form.querySelectorAll("[data-wrong]")) {
        const name = place.dataset.wrong, message = wrong[name] ?? "";
        const control = form.elements.namedItem(name);
        const shown = message && (name === "" ? touched.size > 2 : touched.has(name));
        place.textContent = shown ? message : "";
        place.hidden = !shown;
        if (control && control.setAttribute) control.setAttribute("aria-invalid", shown ? "true" : "false");
      }
      const cost = form.querySelector("[data-worst]");
      cost.textContent = worst ? `One iteration costs at most ${worst}.` : "";
    };
    const soon = () => { clearTimeout(timer); timer = setTimeout(check, 400); };
    form.addEventListener("focusout", (event) => { if (event.target.name && event.target.value) { touched.add(event.target.name); soon(); } });
    form.addEventListener("input", (event) => { if (touched.has(event.target.name)) soon(); });
    form.addEventListener("change", (event) => { touched.add(event.target.name); soon(); });
    soon();
  }
})();
