"use strict";
// The page is whole without this: it only keeps the content current and lets people give orders.
const content = document.getElementById("content");
const connection = document.getElementById("connection");
const dialog = document.getElementById("ask");
const tokenField = document.getElementById("ask-token");
let token = ""; // in this tab's memory only: nothing that another page or a later visitor could use is stored

function say(text) {
  connection.textContent = text;
}

// What is replaced between press and release of a mouse button would swallow the click.
let pressed = false;
addEventListener("pointerdown", () => (pressed = true), true);
for (const end of ["pointerup", "pointercancel"])
  addEventListener(end, () => setTimeout(() => (pressed = false)), true);

async function show() {
  const answer = await fetch("/status/content", { cache: "no-store" });
  if (!answer.ok) throw new Error(`the router answers ${answer.status}`);
  const text = await answer.text();
  if (pressed) return showSoon();
  const focused = document.activeElement && document.activeElement.id;
  content.innerHTML = text;
  for (const button of content.querySelectorAll("button[data-order]")) button.hidden = false;
  const again = focused && document.getElementById(focused);
  if (again && content.contains(again)) again.focus();
}

let waiting = false;
function showSoon() {
  if (waiting) return;
  waiting = true;
  setTimeout(() => {
    waiting = false;
    show().catch((error) => say(`Not current: ${error.message}.`));
  }, 250);
}

function ask(question, withToken) {
  document.getElementById("ask-question").textContent = question;
  document.getElementById("ask-token-row").hidden = !withToken;
  tokenField.value = "";
  dialog.returnValue = "no";
  dialog.showModal();
  (withToken ? tokenField : document.getElementById("ask-no")).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function order(button) {
  const { service, order, question } = button.dataset;
  if (question || !token) {
    const agreed = await ask(question || `${button.textContent} ${service}?`, !token);
    if (!agreed) return;
    if (!token) token = tokenField.value.trim();
    tokenField.value = "";
  }
  say(`${button.textContent} ${service}: ordered …`);
  const answer = await fetch(`/admin/services/${encodeURIComponent(service)}/${order}`, {
    method: "POST",
    headers: { Authorization: `Bearer ${token}`, "X-Operator": "status page" },
  });
  const document_ = await answer.json();
  if (answer.status === 401) token = "";
  say(answer.ok ? `${service} is ${document_.depth.replace("_", " ")}.` : document_.error.message);
  showSoon();
}

// Enter in the token's field means yes, not the dialog's first button.
tokenField.addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    event.preventDefault();
    dialog.close("yes");
  }
});

content.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-order]");
  if (button) order(button).catch((error) => say(`The order did not get through: ${error.message}.`));
});

const events = new EventSource("/admin/events");
events.onopen = () => say("live");
events.onerror = () => say("Not current: the router does not answer. Trying again …");
for (const kind of ["depth", "transition", "admin", "registry", "device", "note", "reload", "disk", "internal_error"])
  events.addEventListener(kind, showSoon);
events.addEventListener("request", showSoon);
setInterval(showSoon, 10000);
showSoon();
