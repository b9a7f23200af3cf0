"use strict";
// One token of each answer is a stop of the Tab key; arrow keys move among the others.
const tokensOf = (answer) => [...answer.querySelectorAll(".token")];
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };
const LOOSE_STEPS = { ArrowDown: 1, ArrowUp: -1 };

function rove(answer) {
  tokensOf(answer).forEach((token, place) => { token.tabIndex = place ? -1 : 0; });
}

function goal(tokens, now, key) {
  if (key === "Home") return tokens[0];
  if (key === "End") return tokens[tokens.length - 1];
  if (key in STEPS) return tokens[now + STEPS[key]];
  if (!(key in LOOSE_STEPS)) return undefined;
  const step = LOOSE_STEPS[key];
  const rest = step > 0 ? tokens.slice(now + 1) : tokens.slice(0, Math.max(now, 0)).reverse();
  return rest.find((token) => token.classList.contains("loose"));
}

document.addEventListener("keydown", (event) => {
  const answer = event.target.closest(".answer");
  if (!answer || event.ctrlKey || event.altKey || event.metaKey) return;
  const tokens = tokensOf(answer);
  const next = goal(tokens, tokens.indexOf(event.target), event.key);
  if (event.key in STEPS || event.key in LOOSE_STEPS) event.preventDefault();
  if (!next) return;
  event.preventDefault();
  tokens.forEach((token) => { token.tabIndex = -1; });
  next.tabIndex = 0;
  next.focus();
});

document.querySelectorAll(".answer").forEach(rove);
