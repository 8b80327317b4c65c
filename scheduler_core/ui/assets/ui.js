// Keeps the page up to date: replaces the parts that the server sends, or fetches the page again.
// Without this module the page works too, and is fetched again every ten seconds.

const state = document.getElementById("state");
const REFRESH_MS = 3000;
const POLL_MS = 5000;
const POLLS = 6; // then the stream is tried again
let stream = null;
let failures = 0;
let polling = null;
let polls = 0;
let refreshing = null;
let etag = null;

function showMode() {
  // The server answers, but may itself not be able to read the cluster.
  const stale = document.getElementById("main")?.dataset.stale !== undefined;
  show(stale ? "not up to date" : stream ? "live" : "polling", stale);
}

function show(words, bad = false) {
  if (state.textContent !== words) state.textContent = words;
  state.className = bad ? "bad" : "";
}

// A selector of the focused element, if it is within the part; it is looked up again in the new part.
function focusedIn(part) {
  const found = part.contains(document.activeElement) ? document.activeElement : null;
  const key = ["href", "aria-label", "name"].find((each) => found?.hasAttribute(each));
  if (key) return `${found.localName}[${key}="${CSS.escape(found.getAttribute(key))}"]`;
  return found?.localName === "summary" ? "summary" : null;
}

function fragment(markup) {
  // A table row is only parsed inside a table body.
  const holder = document.createElement("template");
  holder.innerHTML = markup;
  return holder.content.firstElementChild;
}

function replacePart(id, markup) {
  const old = document.getElementById(id);
  if (!old) return false;
  const part = fragment(markup);
  if (!part) return false;
  const focused = focusedIn(old);
  old.replaceWith(part);
  if (focused) part.querySelector(focused)?.focus();
  if (part.tagName === "TR") {
    part.classList.add("changed");
    setTimeout(() => part.classList.remove("changed"), 2000);
  }
  return true;
}

async function refresh() {
  refreshing = null;
  try {
    const answer = await fetch(location.href, { headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) return location.reload(); // the token has expired: log in again
    if (answer.status === 304) return showMode();
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.getElementById("main");
    const old = document.getElementById("main");
    if (!main) return;
    const open = [...old.querySelectorAll("details")].map((each) => each.open);
    [...main.querySelectorAll("details")].forEach((each, place) => { each.open = open[place] ?? each.open; });
    replaceMain(old, main);
    etag = answer.headers.get("ETag");
    showMode();
  } catch {
    show("not reachable; trying again", true);
  }
}

// A form that somebody fills in stays as it is.
function replaceMain(old, main) {
  const form = old.querySelector(":scope > form");
  const parts = [...main.children];
  const place = parts.findIndex((each) => each.localName === "form");
  if (!form?.contains(document.activeElement) || place < 0) {
    const focused = focusedIn(old);
    old.replaceWith(main);
    if (focused) main.querySelector(focused)?.focus();
    return;
  }
  [...old.children].forEach((each) => { if (each !== form) each.remove(); });
  form.before(...parts.slice(0, place));
  form.after(...parts.slice(place + 1));
  old.toggleAttribute("data-stale", main.hasAttribute("data-stale"));
}

function refreshSoon() {
  refreshing ??= setTimeout(refresh, REFRESH_MS);
}

function receive(message) {
  failures = 0;
  const found = JSON.parse(message.data);
  // Parts belong to the page of the whole cluster; any other page is fetched.
  if (found.refresh || location.search || !document.getElementById("summary")) return refreshSoon();
  const known = Object.entries(found.parts).map(([id, markup]) => replacePart(id, markup));
  if (known.includes(false)) refreshSoon();
  showMode();
}

function connect() {
  if (stream || polling) return;
  stream = new EventSource("events");
  stream.onmessage = receive;
  stream.onopen = () => { failures = 0; showMode(); refreshSoon(); }; // what changed since the page was made
  stream.onerror = () => {
    failures += 1;
    show("reconnecting", true);
    if (failures >= 3 || stream.readyState === EventSource.CLOSED) { // closed: the server refused the stream
      disconnect();
      polls = 0;
      polling = setInterval(poll, POLL_MS);
      refresh();
    }
  };
}

function poll() {
  polls += 1;
  if (polls <= POLLS) return refresh();
  stopPolling();
  connect();
}

function stopPolling() {
  clearInterval(polling);
  polling = null;
  failures = 0;
}

function disconnect() {
  stream?.close();
  stream = null;
}

// A browser opens at most six connections to a server: a hidden tab gives its own back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    disconnect();
    stopPolling();
  } else {
    refresh();
    connect();
  }
});

connect();
