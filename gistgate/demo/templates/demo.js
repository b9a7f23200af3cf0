// The demo: asks the server, and shows what arrives. All text enters the page as text, never as HTML.
const at = (id) => document.getElementById(id);
const SIDES = ["loose", "strict"];
const settings = JSON.parse(at("setting").dataset.settings);
let running = null;

function describe() {
  const setting = settings[Number(at("setting").value)];
  at("label").textContent = setting.label;
  at("claim").textContent = setting.claim;
  at("setting").setAttribute("aria-valuetext", setting.label);
}

function element(kind, text, attributes) {
  const made = document.createElement(kind);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function tokenElement(token, first) {
  return element("span", token.text, {
    class: `token ${token.reason}`, role: "option", "aria-selected": "false", tabindex: first ? "0" : "-1",
    "aria-label": `${token.text}: ${token.note}`, "data-note": token.note,
  });
}

function showNumbers(side, numbers) {
  const pairs = Object.entries(numbers).map(([name, value]) => {
    const pair = document.createElement("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  });
  at(`${side}-numbers`).replaceChildren(...pairs);
}

function markDifferences(differences) {
  for (const side of SIDES) {
    const tokens = tokensOf(at(side));
    for (const difference of differences) {
      tokens.slice(...difference[side]).forEach((token) => token.classList.add("differs"));
    }
  }
}

function take(event) {
  if (event.waiting) say("Another answer is being written; this one comes next.");
  if (event.error) throw new Error(event.error);
  if (event.differences) markDifferences(event.differences);
  if (!event.side) return;
  say(`Decoding: ${event.side}.`);
  const answer = at(event.side);
  event.tokens.forEach((token) => answer.append(tokenElement(token, !answer.childElementCount)));
  showNumbers(event.side, event.numbers);
}

function say(text) {
  if (at("status").textContent !== text) at("status").textContent = text;
}

async function read(response) {
  if (!response.ok) throw new Error((await response.json()).error);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n");
    rest = whole.pop();
    whole.forEach((line) => take(JSON.parse(line)));
  }
}

async function ask(event) {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  at("go").disabled = true;
  at("stop").disabled = false;
  for (const side of SIDES) {
    at(side).replaceChildren();
    at(`${side}-numbers`).replaceChildren();
  }
  at("loose-name").textContent = settings[Number(at("setting").value)].label;
  say("Reading the prompt.");
  const question = {
    prompt: at("prompt").value, setting: Number(at("setting").value), max_new_tokens: Number(at("length").value),
  };
  try {
    await read(await fetch("answer", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question),
      signal: running.signal,
    }));
    say("Done.");
  } catch (error) {
    const lost = "The connection broke off. Start the demo again.";
    say(error.name === "AbortError" ? "Stopped." : error instanceof TypeError ? lost : error.message);
  } finally {
    running = null;
    at("go").disabled = false;
    at("stop").disabled = true;
  }
}

at("ask").addEventListener("submit", ask);
at("stop").addEventListener("click", () => running && running.abort());
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask").requestSubmit();
});
at("setting").addEventListener("input", describe);
describe();
