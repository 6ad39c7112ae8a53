"""How a report looks: light and dark, on a phone, on a screen and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1c2024; --soft: #5a636d; --paper: #fff; --panel: #f5f7f9; --line: #dfe4e9; --accent: #0067a3;
  --bad: #b3261e; --bad-panel: #fdf0ee;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e7ea; --soft: #9aa4ae; --paper: #14171a; --panel: #1c2024; --line: #30363d; --accent: #6cb9ee;
    --bad: #ff9a90; --bad-panel: #2b1a19;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0 auto; max-width: 70rem; padding: 2.5rem clamp(1rem, 4vw, 2.5rem) 4rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: anywhere;
}
h1, h2, h3 { line-height: 1.25; text-wrap: balance; }
h1 { font-size: clamp(1.6rem, 1.2rem + 2vw, 2.4rem); margin: .2rem 0 1.2rem; letter-spacing: -.015em; }
h2 { font-size: 1.35rem; margin: 0 0 .4rem; letter-spacing: -.01em; }
h3 { font-size: 1.05rem; margin: 2rem 0 .8rem; }
section { margin-top: 3.2rem; padding-top: 1.8rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: 0 0 1rem; }
a { color: var(--accent); }
.kicker { color: var(--accent); font-size: .85rem; font-weight: 600; letter-spacing: .04em; margin: 0; }
.lead { font-size: 1.15rem; line-height: 1.55; max-width: 48rem; }
.note, figcaption span, .facts, summary small { color: var(--soft); font-size: .9rem; }
.note { margin-top: .9rem; }
.facts { display: flex; flex-wrap: wrap; gap: .3rem 1.6rem; margin: 1.4rem 0 0; padding: 0; list-style: none; }
.facts b { color: var(--ink); font-weight: 600; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin-top: 1.6rem; font-size: .95rem; }
nav a { text-decoration: none; padding: .2rem 0; }
nav a:hover { text-decoration: underline; }
.failed { background: var(--bad-panel); border-left: 4px solid var(--bad); margin: 1.5rem 0; padding: 1rem 1.2rem; }
.failed strong { color: var(--bad); }
.failed ul { margin: .5rem 0 0; padding-left: 1.2rem; font-size: .92rem; }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { border-bottom: 1px solid var(--line); padding: .6rem 1.1rem .6rem 0; text-align: left; vertical-align: top; }
thead th { color: var(--soft); font-size: .85rem; font-weight: 600; vertical-align: bottom; white-space: nowrap; }
tbody th { font-weight: 500; }
.wide-table { min-width: 100%; }
.wide-table :is(th, td):last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
.wide-table th:first-child { background: var(--paper); left: 0; position: sticky; z-index: 1; }
td small { color: var(--soft); font-size: .85em; }
td.best b { color: var(--accent); font-weight: 700; }
td svg.strip { display: block; height: .75rem; margin: .3rem 0 0 auto; width: 6.5rem; }
.bar { background: var(--line); display: block; height: 4px; margin: .45rem 0 0 auto; width: 6.5rem; }
.bar, .bar i { border-radius: 2px; }
.bar i { background: currentColor; display: block; height: 100%; }
.name { display: inline-block; max-width: 14rem; overflow-wrap: anywhere; padding-left: 1.15rem; position: relative; }
.name::before {
  background: var(--own); border-radius: 50%; content: ""; height: .65rem; left: 0; position: absolute; top: .48em;
  width: .65rem;
}
th .name { width: max-content; }
.names td { padding-block: .3rem; }
.names td:first-child { color: var(--soft); width: 11rem; }
.names td:last-child { overflow-wrap: anywhere; padding-right: 0; }
.names { width: 100%; font-size: .92rem; }
.hash { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; font-size: .85em; }

.figures, .columns {
  display: grid; gap: 2.2rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
  margin-top: 1.4rem;
}
.columns { gap: 0 3rem; }
.columns > * { min-width: 0; }
figure { margin: 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
figure svg { display: block; height: auto; margin-top: .7rem; max-width: 100%; width: 100%; }
figure.wide svg { min-width: 40rem; max-width: none; }
figcaption b { display: block; font-weight: 600; }
figcaption span { display: block; line-height: 1.45; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 1rem 0 0; padding: 0; list-style: none; }
.legend { font-size: .92rem; }
.legend .name, h3 .name { max-width: 100%; }

details { margin-top: 1rem; }
summary { cursor: pointer; padding: .3rem 0; }
summary:hover { color: var(--accent); }
pre {
  background: var(--panel); border-radius: 6px;
  font: .82rem/1.55 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace;
  margin: .5rem 0 1rem; overflow-x: auto; padding: .8rem 1rem; white-space: pre-wrap;
}
:is(a, summary):focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; }
@media (max-width: 40rem) {
  body { padding-top: 1.5rem; }
  section { margin-top: 2.2rem; }
  .name { max-width: 8.5rem; }
}
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff; --panel: #f5f5f5; --line: #ccc; }
  :root { --accent: #0067a3; }
  body { font-size: 10pt; max-width: none; padding: 0; }
  nav { display: none; }
  figure, tr, pre { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  figure.wide svg { min-width: 0; max-width: 100%; }
  .scroll { overflow: visible; }
  * { print-color-adjust: exact; }
}
"""
