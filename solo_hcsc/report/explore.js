"use strict";
// The page of `solo-hcsc explore`. A node is a number: 0 is the root, then come the levels, the top one first. An image
// is its place in the tree's order, so that every node's images are a range. A cut of the tree has one level instead of
// its own ones. The address holds the state.
(() => {
  const find = (id) => document.getElementById(id);
  const tree = JSON.parse(find("tree").textContent);
  const { classes, shortNames } = tree;
  const labelled = classes.length > 0;

  // ---- the tree ----

  const commonest = tree.classSizes.indexOf(Math.max(...tree.classSizes));
  const known = tree.classSizes.reduce((sum, size) => sum + size, 0);
  const purity = labelled ? Math.round((1000 * tree.classSizes[commonest]) / known) : 0;
  const root = {
    number: 0, parent: -1, start: 0, size: tree.images, tightness: 0, medoid: 0, commonest, purity, name: "All images",
  };
  const mostClusters = tree.merged ? tree.merged.rank.filter((rank) => rank === tree.images).length : 0;
  let nodes = null; // columns
  let levels = 0;
  let count = 0;
  let counted = []; // each node's place among the counts of classes
  let children = [];
  let byAddress = null;
  let firstOf = null;
  let spans = null; // of tightness at each level
  let arranged = -1;

  /** Take the tree's own levels, or cut it into so many clusters. */
  function arrange(cut) {
    if (cut === arranged) return;
    arranged = cut;
    const of = cut ? tree.merged : tree.nodes;
    const all = of.start.map((_, i) => i);
    const chosen = cut ? all.filter((i) => of.above[i] < cut && cut <= of.rank[i]) : all;
    levels = cut ? 1 : tree.levels;
    count = chosen.length + 1;
    nodes = { level: [levels + 1, ...chosen.map((i) => of.level?.[i] ?? 1)] };
    for (const name in root) nodes[name] = [root[name], ...chosen.map((i) => of[name]?.[i] ?? 0)];
    if (cut) nodes.number = nodes.number.map((_, node) => Math.max(0, node - 1));
    counted = [-1, ...chosen.map((i) => (cut ? tree.nodes.start.length + i : i))];
    children = Array.from({ length: count }, () => []);
    for (let node = 1; node < count; node++) children[nodes.parent[node]].push(node);
    for (const some of children) some.sort((a, b) => nodes.size[b] - nodes.size[a]);
    byAddress = new Map(nodes.level.map((level, node) => [address(node), node]));
    firstOf = nodes.level.reduce((found, level, node) => ((found[level] ??= node), found), []);
    spans = Array.from({ length: levels + 2 }, () => [1000, 0]);
    for (let node = 1; node < count; node++) {
      const span = spans[nodes.level[node]];
      span[0] = Math.min(span[0], nodes.tightness[node]);
      span[1] = Math.max(span[1], nodes.tightness[node]);
    }
  }

  const address = (node) => `${nodes.level[node]}.${nodes.number[node]}`;
  const endOf = (node) => nodes.start[node] + nodes.size[node];
  const isBottom = (node) => nodes.level[node] === 1;

  const lineOf = (node) => (node < 0 ? [] : [...lineOf(nodes.parent[node]), node]); // from the root

  function nodeOfImage(image, level) {
    let low = firstOf[level];
    let high = (firstOf[level - 1] ?? count) - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (nodes.start[middle] <= image) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  const number = (value) => value.toLocaleString("en");
  const percent = (thousandths) => `${Math.round(thousandths / 10)} %`;
  const cosine = (thousandths) => (thousandths / 1000).toFixed(2);
  const images = (many) => `${number(many)} image${many === 1 ? "" : "s"}`;
  const className = (label) => (label < 0 ? "no label" : shortNames[label]);
  const levelName = (node) => (arranged ? `Cut into ${arranged}` : `Level ${nodes.level[node]}`);
  const place = (node) => (node ? `${levelName(node)}, cluster ${nodes.number[node]}` : "The whole tree");

  const nameOf = (node) => nodes.name[node] || `Cluster ${address(node)}`;

  function describe(node) {
    const parts = [place(node), images(nodes.size[node])];
    if (node) parts.push(`tightness ${cosine(nodes.tightness[node])}`);
    if (node && nodes.commonest[node] >= 0) parts.push(`${percent(nodes.purity[node])} ${className(nodes.commonest[node])}`);
    return parts.join(" · ");
  }

  // ---- parts: scripts beside the page, or entries of it ----

  const promised = new Map();
  const arrived = new Map();
  const waiting = new Map();
  window.loaded = (name, content) => waiting.get(name)?.(content);

  function load(name) {
    if (!promised.has(name)) {
      promised.set(name, new Promise((resolve, reject) => {
        const done = (content) => {
          arrived.set(name, content);
          resolve(content);
        };
        if (tree.parts) return done(tree.parts[name]);
        waiting.set(name, done);
        const script = document.createElement("script");
        script.src = `data/${name}.js`;
        script.onerror = () => {
          promised.delete(name);
          say(`${script.src} cannot be read: the folder "data" belongs beside this page`);
          reject(new Error(name));
        };
        script.onload = () => script.remove();
        document.head.append(script);
      }));
    }
    return promised.get(name);
  }

  const sheetAddress = (name) => (tree.parts ? tree.parts[name] : `data/${name}.jpg`);
  const blockOf = (image) => `block-${Math.floor(image / tree.block)}`;

  function loadRange(start, end) {
    const names = new Set();
    for (let image = start; image < end; image += tree.block) names.add(blockOf(image));
    if (end > start) names.add(blockOf(end - 1));
    return Promise.all([...names].map(load));
  }

  function factsOf(image) {
    const block = arrived.get(blockOf(image));
    if (!block) return null;
    const at = image % tree.block;
    return { path: block[0][at], label: block[1][at], cosines: block[2].map((column) => column[at]) };
  }

  // ---- state ----

  const TABS = {
    images: ["Images", "Nearest to the centre first"],
    clusters: ["Clusters", "By size"],
    outliers: ["Outliers", "Unlike all others; the farthest first"],
    ...(labelled && { suspects: ["Mislabelled?", "The label, and what the others suggest"] }),
    ...(tree.duplicates && { duplicates: ["Duplicates", "The first of a group is the one to keep"] }),
  };
  const VIEWS = tree.places ? ["tiles", "map"] : ["tiles"];
  const COLOURS = labelled ? ["class", "purity", "tightness"] : ["tightness"];
  const wholeBelow = (text, end) => (/^\d+$/.test(text ?? "") && Number(text) < end ? Number(text) : -1);
  let state = null;

  function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    const one = (name, allowed) => (allowed.includes(given.get(name)) ? given.get(name) : allowed[0]);
    const cut = wholeBelow(given.get("cut"), mostClusters + 1);
    arrange(cut > 1 ? cut : 0);
    return {
      cut: arranged,
      node: byAddress.get(given.get("node")) ?? 0,
      tab: one("tab", Object.keys(TABS)),
      view: one("view", VIEWS),
      lasso: tree.places && /^(\d+\.\d+_){2,}\d+\.\d+$/.test(given.get("lasso") ?? "") ? given.get("lasso") : "",
      colour: one("colour", COLOURS),
      class: wholeBelow(given.get("class"), classes.length),
      image: wholeBelow(given.get("image"), tree.images),
    };
  }

  function hashOf({ cut, node, tab, view: kind, lasso, colour, class: label, image }) {
    const given = new URLSearchParams();
    if (cut) given.set("cut", cut);
    if (node) given.set("node", address(node));
    if (tab !== "images") given.set("tab", tab);
    if (kind !== VIEWS[0]) given.set("view", kind);
    if (lasso) given.set("lasso", lasso);
    if (colour !== COLOURS[0]) given.set("colour", colour);
    if (label >= 0) given.set("class", label);
    if (image >= 0) given.set("image", image);
    return `#${given}`;
  }

  const go = (change) => { location.hash = hashOf({ ...state, ...change }); };

  function goUp() {
    if (state.image >= 0) go({ image: -1 });
    else if (state.lasso) go({ lasso: "" });
    else if (state.node) go({ node: nodes.parent[state.node] });
  }

  // ---- elements ----

  function make(tag, settings = {}, ...inner) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(settings)) {
      if (name === "class") element.className = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
      else element.setAttribute(name, value);
    }
    element.append(...inner.filter((one) => one !== null));
    return element;
  }

  const link = (change, settings, ...inner) =>
    make("a", { href: hashOf({ ...state, ...change }), ...settings }, ...inner);
  const say = (text) => { find("status").textContent = text; };

  function picture(kind, cell, side) {
    const columns = tree.sheetColumns;
    const within = cell % columns ** 2;
    const element = make("span", { class: "picture" });
    showPicture(element, `${kind}-${Math.floor(cell / columns ** 2)}`);
    element.style.width = element.style.height = `${side}px`;
    element.style.backgroundSize = `${columns * side}px auto`;
    const [x, y] = [within % columns, Math.floor(within / columns)];
    element.style.backgroundPosition = `${-x * side}px ${-y * side}px`;
    return element;
  }

  function showPicture(element, name) {
    element.style.backgroundImage = `url("${sheetAddress(name)}")`;
  }

  // ---- colours ----

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  function classColour(label, purity = 1) {
    if (label < 0) return style("--line");
    const hue = (360 * label) / classes.length + 12;
    const lightness = (dark.matches ? 58 : 48) + (classes.length > 12 ? 8 * ((label % 3) - 1) : 0);
    return `hsl(${hue} ${12 + 58 * purity}% ${lightness}%)`;
  }

  const LOW = [214, 117, 66];
  const MIDDLE = [168, 168, 160];
  const HIGH = [38, 130, 190];
  function scaleColour(share) {
    const [from, to, along] = share < 0.5 ? [LOW, MIDDLE, share * 2] : [MIDDLE, HIGH, share * 2 - 1];
    return `rgb(${from.map((one, i) => Math.round(one + (to[i] - one) * along))})`;
  }

  function colourOf(node) {
    if (state.colour === "class") return classColour(nodes.commonest[node], nodes.purity[node] / 1000);
    if (state.colour === "purity") return scaleColour(nodes.purity[node] / 1000);
    const [low, high] = spans[nodes.level[node]];
    return scaleColour(high > low ? (nodes.tightness[node] - low) / (high - low) : 1);
  }

  // ---- the map ----

  const canvas = find("tiles");
  const screen = canvas.getContext("2d");
  const GAP = 3;
  const HEAD = 24;
  let view = null; // the node's tiles, and a canvas with them
  let chosen = -1; // the tile that the keyboard or the pointer is at
  let zoom = null;

  /** Rectangles of areas as the values, which go from large to small, each as square as it can be. */
  function squarify(values, x, y, w, h) {
    const scale = (w * h) / values.reduce((sum, value) => sum + value, 0);
    const found = [];
    for (let start = 0, end; start < values.length; start = end) {
      const side = Math.min(w, h);
      let area = 0;
      let worst = Infinity;
      for (end = start; end < values.length; end++) {
        const more = area + values[end] * scale;
        const ratio = Math.max((side ** 2 * values[start] * scale) / more ** 2, more ** 2 / (side ** 2 * values[end] * scale));
        if (ratio > worst) break;
        [area, worst] = [more, ratio];
      }
      const thick = area / side;
      for (let i = start, at = 0; i < end; i++) {
        const long = (values[i] * scale) / thick;
        found.push(w >= h ? { x, y: y + at, w: thick, h: long } : { x: x + at, y, w: long, h: thick });
        at += long;
      }
      if (w >= h) [x, w] = [x + thick, w - thick];
      else [y, h] = [y + thick, h - thick];
    }
    return found;
  }

  function shrunk({ x, y, w, h }, gap) {
    return { x: x + gap / 2, y: y + gap / 2, w: Math.max(1, w - gap), h: Math.max(1, h - gap) };
  }

  function clusterTiles(node, box, nested) {
    const sizes = children[node].map((child) => nodes.size[child]);
    return squarify(sizes, box.x, box.y, box.w, box.h).map((rect, i) => {
      const child = children[node][i];
      const tile = { node: child, ...shrunk(rect, nested ? GAP : Math.min(2, Math.min(rect.w, rect.h) / 8)) };
      if (nested && children[child].length > 1 && tile.w >= 110 && tile.h >= 100) {
        const inner = { x: tile.x + 3, y: tile.y + HEAD, w: tile.w - 6, h: tile.h - HEAD - 3 };
        tile.inner = clusterTiles(child, inner, false);
      }
      return tile;
    });
  }

  function imageTiles(node, { w, h }) {
    const size = nodes.size[node];
    let side = Math.min(160, Math.floor(Math.sqrt((w * h) / size)));
    while (side > 40 && Math.floor(w / side) * Math.floor(h / side) < size) side--;
    side = Math.max(40, side);
    const columns = Math.max(1, Math.floor(w / side));
    const shown = Math.min(size, columns * Math.max(1, Math.floor(h / side)));
    return Array.from({ length: shown }, (_, i) => {
      const rect = { x: (i % columns) * side, y: Math.floor(i / columns) * side, w: side, h: side };
      return { image: nodes.start[node] + i, ...shrunk(rect, GAP) };
    });
  }

  const sheets = new Map();
  function sheet(name) {
    let image = sheets.get(name);
    if (!image) {
      image = new Image();
      image.onload = () => image.decode().then(redrawSoon, redrawSoon);
      image.src = sheetAddress(name);
      if (sheets.size > 80) sheets.delete(sheets.keys().next().value);
      sheets.set(name, image);
    }
    return image.complete && image.naturalWidth ? image : null;
  }

  function drawPicture(context, kind, cell, { x, y, w, h }) {
    const columns = tree.sheetColumns;
    const image = sheet(`${kind}-${Math.floor(cell / columns ** 2)}`);
    if (!image) return;
    const side = tree.sides[kind];
    const within = cell % columns ** 2;
    const [wide, high] = w > h ? [side, (side * h) / w] : [(side * w) / h, side];
    const left = (within % columns) * side + (side - wide) / 2;
    const top = Math.floor(within / columns) * side + (side - high) / 2;
    context.drawImage(image, left, top, wide, high, x, y, w, h);
    if (!performance.getEntriesByName("first-picture").length) performance.mark("first-picture");
  }

  function fitted(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    let [low, high] = [0, text.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
      else high = middle - 1;
    }
    return low ? `${text.slice(0, low)}…` : "";
  }

  function fillRound(context, { x, y, w, h }, radius) {
    context.beginPath();
    context.roundRect(x, y, w, h, Math.min(radius, w / 4, h / 4));
    context.fill();
  }

  const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";

  /** How much of a node is of the class that is asked for: 1 if none is. */
  function relevance(node) {
    if (state.class < 0) return 1;
    const counts = arrived.get("classes")?.[counted[node]];
    if (!counts) return 1;
    for (let i = 0; i < counts.length; i += 2) if (counts[i] === state.class) return counts[i + 1] / nodes.size[node];
    return 0;
  }

  function drawCluster(context, tile, ink) {
    const { node, x, y, w, h } = tile;
    const share = relevance(node);
    context.globalAlpha = state.class < 0 ? 1 : share ? 0.35 + 0.65 * share : 0.1;
    context.fillStyle = colourOf(node);
    if (tile.inner) {
      const full = context.globalAlpha;
      context.globalAlpha = full * 0.32;
      fillRound(context, tile, 6);
      context.globalAlpha = full;
      fillRound(context, { x, y, w: 4, h: HEAD }, 2);
      context.fillStyle = ink;
      context.textBaseline = "middle";
      context.font = `12px ${FONT}`;
      const figures = number(nodes.size[node]) + (nodes.commonest[node] < 0 ? "" : ` · ${percent(nodes.purity[node])}`);
      const room = context.measureText(figures).width;
      context.textAlign = "right";
      if (w > room + 70) context.fillText(figures, x + w - 7, y + HEAD / 2 + 1);
      context.textAlign = "left";
      context.font = `600 12.5px ${FONT}`;
      const left = w > room + 70 ? w - room - 28 : w - 18;
      context.fillText(fitted(context, nameOf(node), left), x + 11, y + HEAD / 2 + 1);
      for (const one of tile.inner) drawCluster(context, one, ink);
      return;
    }
    const frame = Math.min(3, Math.min(w, h) * 0.07);
    fillRound(context, tile, 5);
    const box = { x: x + frame, y: y + frame, w: w - 2 * frame, h: h - 2 * frame };
    drawPicture(context, "medoids", nodes.medoid[node], box);
    if (w < 70 || h < 52) return void (context.globalAlpha = 1);
    const two = h >= 84;
    const high = two ? 38 : 22;
    const shade = context.createLinearGradient(0, box.y + box.h - high - 14, 0, box.y + box.h);
    shade.addColorStop(0, "rgb(0 0 0 / 0)");
    shade.addColorStop(0.4, "rgb(0 0 0 / .62)");
    shade.addColorStop(1, "rgb(0 0 0 / .78)");
    context.fillStyle = shade;
    context.fillRect(box.x, box.y + box.h - high - 14, box.w, high + 14);
    context.fillStyle = "#fff";
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.font = `600 12px ${FONT}`;
    context.fillText(fitted(context, nameOf(node), box.w - 12), box.x + 6, box.y + box.h - (two ? 22 : 7));
    if (two) {
      context.font = `11.5px ${FONT}`;
      const figures = nodes.commonest[node] < 0 ? `tightness ${cosine(nodes.tightness[node])}` : percent(nodes.purity[node]);
      context.fillText(fitted(context, `${number(nodes.size[node])} · ${figures}`, box.w - 12), box.x + 6, box.y + box.h - 7);
    }
    context.globalAlpha = 1;
  }

  function drawImageTile(context, tile) {
    const facts = factsOf(tile.image);
    const other = state.class >= 0 && facts && facts.label !== state.class;
    context.globalAlpha = other ? 0.15 : 1;
    context.fillStyle = labelled && facts ? classColour(facts.label) : style("--line");
    fillRound(context, tile, 4);
    drawPicture(context, "images", tile.image, { x: tile.x + 2, y: tile.y + 2, w: tile.w - 4, h: tile.h - 4 });
    context.globalAlpha = 1;
  }

  function makeView(node) {
    const box = find("stage").getBoundingClientRect();
    const [w, h] = [Math.max(1, box.width), Math.max(1, box.height)];
    const base = document.createElement("canvas");
    const scale = Math.min(2, devicePixelRatio || 1);
    [base.width, base.height] = [Math.round(w * scale), Math.round(h * scale)];
    const made = { node, cut: state.cut, kind: state.view, base, scale, w, h };
    if (state.view === "map") return { ...made, ...planeOf(node, w, h) };
    const tiles = isBottom(node) ? imageTiles(node, { w, h }) : clusterTiles(node, { x: 0, y: 0, w, h }, true);
    return { ...made, tiles };
  }

  function drawView() {
    const context = view.base.getContext("2d");
    context.setTransform(view.scale, 0, 0, view.scale, 0, 0);
    context.clearRect(0, 0, view.w, view.h);
    const ink = style("--ink");
    if (view.kind === "map") return drawPlane(context, ink);
    for (const tile of view.tiles) {
      if ("node" in tile) drawCluster(context, tile, ink);
      else drawImageTile(context, tile);
    }
  }

  function compose() {
    if (canvas.width !== view.base.width || canvas.height !== view.base.height) {
      [canvas.width, canvas.height] = [view.base.width, view.base.height];
    }
    screen.setTransform(1, 0, 0, 1, 0, 0);
    screen.globalAlpha = 1;
    screen.clearRect(0, 0, canvas.width, canvas.height);
    screen.drawImage(view.base, 0, 0);
    screen.setTransform(view.scale, 0, 0, view.scale, 0, 0);
    if (view.kind === "map") drawOver();
    else {
      const way = view.tiles.find((tile) => holdsImage(tile));
      if (way) outline(way, style("--mark"), 4);
    }
    if (view.tiles[chosen]) outline(view.tiles[chosen], style("--ink"), 3);
  }

  function outline({ x, y, w, h }, colour, width) {
    screen.strokeStyle = style("--paper");
    screen.lineWidth = width + 2;
    screen.strokeRect(x, y, w, h);
    screen.strokeStyle = colour;
    screen.lineWidth = width;
    screen.strokeRect(x, y, w, h);
  }

  function holdsImage(tile) {
    if (state.image < 0) return false;
    if (!("node" in tile)) return tile.image === state.image;
    return nodes.start[tile.node] <= state.image && state.image < endOf(tile.node);
  }

  let pending = 0;
  function redrawSoon() {
    pending ||= requestAnimationFrame(() => {
      pending = 0;
      if (!view) return;
      drawView();
      if (!zoom) compose();
    });
  }

  const mix = (a, b, share) => a + (b - a) * share;
  const between = (a, b, share) => ({
    x: mix(a.x, b.x, share), y: mix(a.y, b.y, share), w: mix(a.w, b.w, share), h: mix(a.h, b.h, share),
  });

  /** The tile of the outer view that the inner view's node is or is in. */
  const tileOf = (outer, node) => outer.tiles.find((tile) => "node" in tile && lineOf(node).includes(tile.node));

  function zoomFrom(before) {
    if (zoom) cancelAnimationFrame(zoom);
    zoom = null;
    if (before.kind === "map" || view.kind === "map" || before.cut !== view.cut) return compose();
    const down = tileOf(before, view.node);
    const up = tileOf(view, before.node);
    const tile = down ?? up;
    if (!tile || still.matches || before.w !== view.w || before.h !== view.h) return compose();
    const [outer, inner] = down ? [before, view] : [view, before];
    const full = { x: 0, y: 0, w: view.w, h: view.h };
    let started = 0;
    const frame = (now) => {
      started ||= now;
      const share = Math.min(1, (now - started) / 320);
      const along = share < 0.5 ? 4 * share ** 3 : 1 - (2 - 2 * share) ** 3 / 2;
      if (share === 1) {
        zoom = null;
        return compose();
      }
      zoom = requestAnimationFrame(frame);
      const at = down ? between(tile, full, along) : between(full, tile, along);
      const [sx, sy] = [at.w / tile.w, at.h / tile.h];
      screen.setTransform(view.scale, 0, 0, view.scale, 0, 0);
      screen.globalAlpha = 1;
      screen.clearRect(0, 0, view.w, view.h);
      screen.drawImage(outer.base, at.x - tile.x * sx, at.y - tile.y * sy, outer.w * sx, outer.h * sy);
      screen.globalAlpha = down ? along : 1 - along;
      screen.fillStyle = style("--paper");
      screen.fillRect(at.x, at.y, at.w, at.h);
      screen.drawImage(inner.base, at.x, at.y, at.w, at.h);
    };
    zoom = requestAnimationFrame(frame);
  }

  function showMap() {
    const before = view;
    const same = before && ["node", "cut"].every((name) => before[name] === state[name]) && before.kind === state.view;
    if (same) return redrawSoon();
    [chosen, near] = [-1, -1];
    view = makeView(state.node);
    drawView();
    if (state.view === "map") load("places").then(rebuild);
    else if (isBottom(state.node)) loadRange(nodes.start[state.node], endOf(state.node)).then(redrawSoon);
    if (before) zoomFrom(before);
    else compose();
  }

  function rebuild() {
    if (!view) return;
    if (zoom) cancelAnimationFrame(zoom);
    zoom = null;
    view = makeView(state.node);
    drawView();
    compose();
  }

  // ---- a map of single images in the plane: near ones are alike ----

  let near = -1; // the image that the pointer is at
  let drawn = []; // the lasso as it is being drawn, in the map's own coordinates
  const MOST_PICTURES = 1200; // that are shown in place of dots

  /** Where images are on the screen, and the names of clusters as tiles; what is in a cluster fills the view. */
  function planeOf(node, w, h) {
    const places = arrived.get("places");
    if (!places) return { tiles: [] };
    const [xs, ys] = places;
    const [start, end] = [nodes.start[node], endOf(node)];
    const side = Math.max(2, Math.min(40, Math.sqrt((w * h) / (end - start)) * (end - start > MOST_PICTURES ? 0.18 : 0.7)));
    const ends = [xs, ys].map((values) => {
      const own = values.slice(start, end).sort((a, b) => a - b);
      const skip = node ? Math.floor(own.length / 50) : 0; // the few that are far from the others
      return [own[skip], own[own.length - 1 - skip]];
    });
    const pad = 12 + side / 2;
    const [sx, sy] = ends.map(([low, high], i) => ([w, h][i] - 2 * pad) / Math.max(high - low, 20));
    const [x0, y0] = ends.map(([low, high], i) => [w, h][i] / 2 - ((low + high) / 2) * [sx, sy][i]);
    const found = { start, end, side, put: (x, y) => [x * sx + x0, y * sy + y0], from: (x, y) => [(x - x0) / sx, (y - y0) / sy] };
    return { ...found, tiles: names(node, found, w, h) };
  }

  const middleOf = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

  function names(node, { put }, w, h) {
    const [xs, ys] = arrived.get("places");
    const context = canvas.getContext("2d");
    context.font = `600 12px ${FONT}`;
    const tiles = [];
    for (const child of children[node]) {
      const range = [nodes.start[child], endOf(child)];
      const [x, y] = put(middleOf(xs.slice(...range)), middleOf(ys.slice(...range)));
      const wide = Math.min(150, context.measureText(nameOf(child)).width + 12);
      const tile = { node: child, x: Math.min(w - wide - 2, Math.max(2, x - wide / 2)), y: Math.min(h - 22, Math.max(2, y - 10)), w: wide, h: 20 };
      const free = (one) => tile.x > one.x + one.w || one.x > tile.x + tile.w || tile.y > one.y + one.h || one.y > tile.y + tile.h;
      if (tiles.every(free) && tiles.length < 60) tiles.push(tile);
    }
    return tiles;
  }

  const pointColour = (node, i) => (labelled || !node ? colourOf(node) : `hsl(${(i * 137.5) % 360} 55% ${dark.matches ? 62 : 46}%)`);

  function drawPlane(context, ink) {
    if (!view.put) return;
    const [xs, ys] = arrived.get("places");
    const dot = (image, side) => {
      const [x, y] = view.put(xs[image], ys[image]);
      if (x > -side && y > -side && x < view.w + side && y < view.h + side) context.fillRect(x - side / 2, y - side / 2, side, side);
    };
    context.fillStyle = style("--line");
    for (let image = 0; image < tree.images; image++) if (image < view.start || image >= view.end) dot(image, 3);
    const parts = children[view.node].length ? children[view.node] : [view.node];
    const small = view.end - view.start > MOST_PICTURES;
    parts.forEach((part, i) => {
      context.fillStyle = pointColour(part, i);
      for (let image = nodes.start[part]; image < endOf(part); image++) {
        context.globalAlpha = isChosen(image) ? 1 : 0.15;
        if (small) dot(image, view.side);
        else {
          const [x, y] = view.put(xs[image], ys[image]);
          const box = { x: x - view.side / 2, y: y - view.side / 2, w: view.side, h: view.side };
          fillRound(context, { x: box.x - 2, y: box.y - 2, w: box.w + 4, h: box.h + 4 }, 4);
          drawPicture(context, "images", image, box);
        }
      }
    });
    context.globalAlpha = 1;
    context.font = `600 12px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const tile of view.tiles) {
      context.globalAlpha = 0.82;
      context.fillStyle = style("--paper");
      fillRound(context, tile, 5);
      context.globalAlpha = 1;
      context.fillStyle = ink;
      context.fillText(fitted(context, nameOf(tile.node), tile.w - 10), tile.x + tile.w / 2, tile.y + tile.h / 2 + 1);
    }
  }

  /** What changes often: the lasso, the image that is open, and a picture of the one under the pointer. */
  function drawOver() {
    if (!view.put) return;
    const line = drawn.length ? drawn : cornersOf(state.lasso);
    if (line.length) {
      screen.beginPath();
      for (const corner of line) screen.lineTo(...view.put(...corner));
      screen.closePath();
      screen.strokeStyle = style("--accent");
      screen.lineWidth = 2;
      screen.stroke();
      screen.globalAlpha = 0.12;
      screen.fillStyle = style("--accent");
      screen.fill();
      screen.globalAlpha = 1;
    }
    const [xs, ys] = arrived.get("places");
    for (const [image, colour] of [[near, "--ink"], [state.image, "--mark"]]) {
      if (image < 0) continue;
      const [x, y] = view.put(xs[image], ys[image]);
      const box = { x: Math.min(view.w - 76, Math.max(4, x - 36)), y: y > 90 ? y - 84 : y + 12, w: 72, h: 72 };
      outline({ x: x - 4, y: y - 4, w: 8, h: 8 }, style(colour), 2);
      outline(box, style(colour), 2);
      drawPicture(screen, "images", image, box);
    }
  }

  const cornersOf = (lasso) => (lasso ? lasso.split("_").map((corner) => corner.split(".").map(Number)) : []);

  /** Whether an image is in the lasso; if there is none, all are. */
  function isChosen(image) {
    const line = state.lasso ? cornersOfState() : [];
    const places = arrived.get("places");
    if (!line.length || !places) return true;
    const [x, y] = [places[0][image], places[1][image]];
    let inside = false;
    for (let i = 0, j = line.length - 1; i < line.length; j = i++) {
      const [[ax, ay], [bx, by]] = [line[i], line[j]];
      if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
    }
    return inside;
  }
  let corners = { of: "", line: [] };
  function cornersOfState() {
    if (corners.of !== state.lasso) corners = { of: state.lasso, line: cornersOf(state.lasso) };
    return corners.line;
  }

  function pointAt({ x, y }) {
    if (!view.put) return -1;
    const [xs, ys] = arrived.get("places");
    let [best, least] = [-1, Math.max(14, view.side) ** 2];
    for (let image = view.start; image < view.end; image++) {
      const [px, py] = view.put(xs[image], ys[image]);
      const far = (px - x) ** 2 + (py - y) ** 2;
      if (far < least) [best, least] = [image, far];
    }
    return best;
  }

  function lassoTo(event) {
    const { x, y } = onCanvas(event);
    const corner = view.from(x, y).map((value) => Math.max(0, Math.round(value)));
    const last = drawn[drawn.length - 1];
    if (!last || Math.hypot(corner[0] - last[0], corner[1] - last[1]) >= 5) drawn.push(corner);
    if (!zoom) compose();
  }

  function endLasso() {
    const step = Math.ceil(drawn.length / 80);
    const line = drawn.filter((_, i) => i % step === 0);
    drawn = [];
    if (line.length > 2) go({ lasso: line.map((corner) => corner.join(".")).join("_"), image: -1 });
    else compose();
  }

  // ---- pointer, touch and keyboard on the map ----

  function onCanvas(event) {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  function tileAt(event) {
    const { x, y } = onCanvas(event);
    return view.tiles.findIndex((one) => x >= one.x && x < one.x + one.w && y >= one.y && y < one.y + one.h);
  }

  function tellTile(tile) {
    if (!tile) return say(describe(state.node));
    if ("node" in tile) return say(describe(tile.node));
    const facts = factsOf(tile.image);
    say(facts ? [facts.path, ...(labelled ? [className(facts.label)] : []), `similarity ${cosine(facts.cosines[0])}`].join(" · ") : "");
  }

  function choose(index) {
    if (index === chosen) return;
    chosen = index;
    tellTile(view.tiles[chosen]);
    if (!zoom) compose();
  }

  /** Tell of the image under the pointer, where no name of a cluster is. */
  function lookAt(event) {
    const found = tileAt(event) < 0 ? pointAt(onCanvas(event)) : -1;
    canvas.style.cursor = found < 0 && tileAt(event) < 0 ? "crosshair" : "pointer";
    if (found === near) return;
    near = found;
    if (near < 0) tellTile(view.tiles[chosen]);
    else Promise.all([load(blockOf(near))]).then(() => near >= 0 && tellTile({ image: near }));
    if (!zoom) compose();
  }

  /** Go down where the pointer is. */
  function openAt(event) {
    if (view.kind !== "map" || tileAt(event) >= 0) return open(tileAt(event));
    const image = pointAt(onCanvas(event));
    const child = children[view.node].find((one) => nodes.start[one] <= image && image < endOf(one));
    if (child) go({ node: child });
  }

  function open(index) {
    const tile = view.tiles[index];
    if (!tile) return;
    if ("node" in tile) go({ node: tile.node });
    else go({ image: tile.image });
  }

  const fingers = new Map();
  let spread = 0;
  let pinched = false;
  const distance = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  };
  let pressed = null; // where a lasso may begin
  let lassoed = false;
  canvas.addEventListener("pointerdown", (event) => {
    lassoed = false;
    if (view.kind === "map" && view.put && event.isPrimary && event.button === 0) {
      pressed = event;
      canvas.setPointerCapture(event.pointerId);
    }
    if (event.pointerType !== "touch") return;
    if (!fingers.size) pinched = false;
    fingers.set(event.pointerId, event);
    if (fingers.size === 2) spread = distance();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (fingers.size > 1) [pressed, drawn] = [null, []];
    if (pressed && event.pointerId === pressed.pointerId) {
      if (!drawn.length && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) < 8) return;
      if (!drawn.length) lassoTo(pressed);
      return lassoTo(event);
    }
    if (event.pointerType !== "touch" && view.kind === "map") {
      choose(tileAt(event));
      return lookAt(event);
    }
    if (event.pointerType !== "touch") {
      canvas.style.cursor = tileAt(event) < 0 ? "default" : "pointer";
      return choose(tileAt(event));
    }
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event);
    if (fingers.size !== 2 || pinched) return;
    const ratio = distance() / spread;
    if (ratio < 1.35 && ratio > 0.75) return;
    pinched = true;
    const [a, b] = [...fingers.values()];
    if (ratio < 1) goUp();
    else openAt({ clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 });
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, (event) => {
      fingers.delete(event.pointerId);
      if (pressed?.pointerId !== event.pointerId) return;
      pressed = null;
      lassoed = drawn.length > 0;
      if (lassoed) endLasso();
    });
  }
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "touch") return;
    near = -1;
    choose(-1);
  });
  canvas.addEventListener("click", (event) => {
    const image = view.kind === "map" && tileAt(event) < 0 ? pointAt(onCanvas(event)) : -1;
    if (image >= 0 && !pinched && !lassoed) go({ image });
    else if (!pinched && !lassoed) open(tileAt(event));
    [pinched, lassoed] = [false, false];
  });

  let turned = 0;
  let rested = 0;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (performance.now() < rested) return;
    turned = Math.sign(turned) === Math.sign(event.deltaY) ? turned + event.deltaY : event.deltaY;
    if (Math.abs(turned) < 60) return;
    if (turned > 0) goUp();
    else if (!isBottom(state.node)) openAt(event);
    [turned, rested] = [0, performance.now() + 500];
  }, { passive: false });

  /** The nearest tile in a direction. */
  function neighbour(dx, dy) {
    const here = view.tiles[chosen];
    if (!here) return 0;
    const middle = (tile) => [tile.x + tile.w / 2, tile.y + tile.h / 2];
    const [x, y] = middle(here);
    let [best, least] = [chosen, Infinity];
    view.tiles.forEach((tile, index) => {
      const [tx, ty] = middle(tile);
      const ahead = (tx - x) * dx + (ty - y) * dy;
      const aside = Math.abs((tx - x) * dy) + Math.abs((ty - y) * dx);
      if (index !== chosen && ahead > 1 && ahead + 2 * aside < least) [best, least] = [index, ahead + 2 * aside];
    });
    return best;
  }

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select")) return;
    const { key } = event;
    const elsewhere = event.target.closest("button, a, #scroller");
    if (key === "/") find("search").focus();
    else if (key === "Escape" || key === "Backspace") goUp();
    else if (ARROWS[key] && !elsewhere) choose(neighbour(...ARROWS[key]));
    else if (key === "Enter" && !elsewhere) open(chosen);
    else return;
    event.preventDefault();
  });

  // ---- path and legend ----

  function showCrumbs() {
    const line = lineOf(state.node).map((node, i, all) => {
      const inner = [nameOf(node), make("small", {}, node ? address(node) : number(tree.images))];
      return i < all.length - 1
        ? link({ node, image: -1 }, { title: describe(node) }, ...inner)
        : make("span", { "aria-current": "page", title: describe(node) }, ...inner);
    });
    find("crumbs").replaceChildren(...line);
    find("crumbs").scrollLeft = 1e6;
  }

  function showLegend() {
    if (state.view === "map" && !labelled) return find("legend").replaceChildren();  // its colours tell clusters apart
    if (state.colour === "class") {
      const counts = countsOf(state.node);
      const chips = [];
      for (let i = 0; i < Math.min(16, counts.length); i += 2) {
        const on = counts[i] === state.class;
        const mark = make("i", { style: { background: classColour(counts[i]) } });
        const settings = { class: on ? "chip on" : "chip", title: classes[counts[i]] };
        chips.push(link({ class: on ? -1 : counts[i] }, settings, mark, className(counts[i])));
      }
      if (counts.length > 16) chips.push(make("span", { class: "more" }, `and ${counts.length / 2 - 8} more`));
      return find("legend").replaceChildren(...chips);
    }
    const span = state.colour === "purity" ? [0, 1000] : spans[Math.max(1, nodes.level[state.node] - 1)];
    const ends = state.colour === "purity" ? span.map(percent) : span.map(cosine);
    const bar = make("i", { class: "scale", style: { background: `linear-gradient(90deg, ${[0, 0.5, 1].map(scaleColour)})` } });
    find("legend").replaceChildren(make("span", { class: "more" }, `${state.colour} ${ends[0]}`), bar, make("span", { class: "more" }, ends[1]));
  }

  function countsOf(node) {
    if (node) return arrived.get("classes")?.[counted[node]] ?? [];
    return tree.classSizes.map((size, label) => [label, size]).sort((a, b) => b[1] - a[1]).flat();
  }

  // ---- the panel ----

  function showNode() {
    const { node, image } = state;
    const facts = [["Images", number(nodes.size[node])]];
    if (node) facts.push(["Tightness", cosine(nodes.tightness[node])]);
    else facts.push(["Clusters", number(count - 1)]);
    if (nodes.commonest[node] >= 0) facts.push([node ? "Purity" : "Classes", node ? percent(nodes.purity[node]) : number(classes.length)]);
    const head = make("div", { class: "head" },
      node ? picture("medoids", nodes.medoid[node], 72) : null,
      make("div", {}, make("h2", {}, nameOf(node)), make("p", {}, place(node)),
        make("dl", {}, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))))));
    const below = image >= 0 ? [imageCard(image)] : labelled && node ? [classBars(node)] : [];
    find("node").classList.toggle("of-image", image >= 0);
    find("node").replaceChildren(head, ...below);
  }

  function classBars(node) {
    const counts = countsOf(node);
    const bars = make("div", { class: "bars" });
    for (let i = 0; i < Math.min(8, counts.length); i += 2) {
      const share = Math.round((1000 * counts[i + 1]) / nodes.size[node]);
      bars.append(link({ class: counts[i] }, { title: `Show ${classes[counts[i]]}` },
        make("span", {}, className(counts[i])),
        make("i", {}, make("b", { style: { width: `${share / 10}%`, background: classColour(counts[i]) } })),
        make("small", {}, percent(share))));
    }
    if (counts.length > 8) bars.append(make("small", {}, `and ${counts.length / 2 - 4} more classes`));
    return bars;
  }

  function imageCard(image) {
    const facts = factsOf(image);
    const card = make("div", { class: "card" }, picture("images", image, 96));
    if (!facts) {
      load(blockOf(image)).then(() => state.image === image && showNode());
      return card;
    }
    const text = make("div", {}, make("h3", {}, facts.path));
    const said = labelled ? [className(facts.label)] : [];
    if (isOutlier(image)) said.push("outlier");
    const suspect = suspectOf(image);
    if (suspect) said.push(`looks like ${className(suspect.suggested)}`);
    if (said.length) text.append(make("p", {}, said.join(" · ")));
    const way = make("ol", { "aria-label": "Path through the tree" });
    for (let level = levels; level > 0; level--) {
      const node = nodeOfImage(image, level);
      const current = node === state.node ? { "aria-current": "true" } : {};
      way.append(make("li", {}, link({ node }, { title: describe(node), ...current }, `${address(node)} ${nameOf(node)}`),
        make("small", {}, cosine(cosineOf(facts, level)))));
    }
    text.append(way);
    card.append(text, link({ image: -1 }, { class: "close", "aria-label": "Close this image", title: "Close" }, "×"));
    return card;
  }

  let far = null; // the outliers as a set
  function isOutlier(image) {
    if (!far && arrived.has("outliers")) far = new Set(arrived.get("outliers"));
    return far?.has(image) ?? false;
  }
  let suspectNumbers = null; // image to its place in the list
  function suspectOf(image) {
    const suspects = arrived.get("suspects");
    if (!suspects) return null;
    suspectNumbers ??= new Map(suspects[0].map((one, i) => [one, i]));
    const i = suspectNumbers.get(image);
    return i === undefined ? null : { suggested: suspects[1][i], margin: suspects[2][i] };
  }

  /** What the panel lists: sections of images, or of clusters, all of which the button saves. */
  async function listing({ node, tab, class: label }) {
    const [start, end] = [nodes.start[node], endOf(node)];
    const here = (image) => image >= start && image < end && isChosen(image);
    const ofClass = async (list) => {
      if (label < 0) return list;
      await (list.length > 500 ? loadRange(start, end) : Promise.all(list.map((image) => load(blockOf(image)))));
      return list.filter((image) => factsOf(image).label === label);
    };
    const nearest = async (list, level) => {
      if (level > levels) return list;
      await loadRange(start, end);
      const cosines = new Map(list.map((image) => [image, cosineOf(factsOf(image), level)]));
      return list.sort((a, b) => cosines.get(b) - cosines.get(a));
    };
    if (tab === "clusters") {
      const some = children[node].length ? children[node] : node ? [node] : [];
      const any = (one) => !state.lasso || range(nodes.start[one], endOf(one)).some(isChosen);
      return [{ title: "", items: some.filter((one) => any(one) && relevance(one) > 0) }];
    }
    if (tab === "suspects") return [{ title: "", items: await ofClass((await load("suspects"))[0].filter(here)) }];
    const outliers = (await load("outliers")).filter(here);
    if (tab === "outliers") return [{ title: "", items: await ofClass(outliers) }];
    if (tab === "duplicates") return duplicatesIn(await load("duplicates"), here, label);
    const kept = await ofClass(range(start, end).filter((image) => isChosen(image) && !isOutlier(image)));
    const away = await ofClass(outliers);
    return [
      { title: "", items: await nearest(kept, nodes.level[node]) },
      { title: `Outliers (${number(away.length)})`, items: away },
    ].filter((section) => section.items.length);
  }

  const range = (start, end) => Array.from({ length: end - start }, (_, i) => start + i);
  const cosineOf = (facts, level) => facts.cosines[arranged ? 0 : level - 1]; // a cut has none of its own

  async function duplicatesIn(groups, here, label) {
    let found = groups.filter(([, ...some]) => some.some(here));
    if (label >= 0) {
      await Promise.all(found.flat().filter((one) => one !== true && one !== false).map((image) => load(blockOf(image))));
      found = found.filter(([, ...some]) => some.some((image) => factsOf(image).label === label));
    }
    return found.map(([exact, ...items]) => ({ exact, items, title: `${items.length} ${exact ? "equal files" : "alike"}` }));
  }

  let sections = [];
  let asked = 0;
  async function showList() {
    const ask = ++asked;
    const { node, tab } = state;
    const scroller = find("scroller");
    find("save").disabled = true;
    const [outliers, suspects, groups] = await Promise.all(["outliers", "suspects", "duplicates", "classes"].map(load));
    if (state.view === "map" || state.lasso) await load("places");
    if (ask !== asked) return;
    const here = (image) => image >= nodes.start[node] && image < endOf(node);
    const sizes = {
      images: nodes.size[node],
      clusters: children[node].length,
      outliers: outliers.filter(here).length,
      suspects: suspects[0].filter(here).length,
      duplicates: groups.filter(([, ...some]) => some.some(here)).length,
    };
    find("tabs").replaceChildren(...Object.entries(TABS).map(([name, [title]]) => link({ tab: name },
      { role: "tab", "aria-selected": name === tab, id: `tab-${name}` }, title, make("small", {}, number(sizes[name])))));
    find("hint").textContent = tab === "images" && !node ? "In the order of the tree" : TABS[tab][1];
    const found = await listing(state);
    if (ask !== asked) return;
    sections = found;
    const many = sections.reduce((sum, section) => sum + section.items.length, 0);
    const filters = [];
    if (state.lasso) filters.push(make("span", {}, `${number(many)} in the lasso`), link({ lasso: "" }, { "aria-label": "Clear the lasso" }, "Clear"));
    if (state.class >= 0) {
      filters.push(make("span", {}, `${number(many)} of class `, make("b", {}, classes[state.class])),
        link({ class: -1 }, { "aria-label": "Show all classes" }, "Show all"));
    }
    find("filter").hidden = !filters.length;
    find("filter").replaceChildren(...filters);
    find("save").disabled = !many;
    find("save").title = `Save this list of ${number(many)} as a table`;
    scroller.scrollTop = 0;
    layGrid();
    find("panel").dataset.ready = location.hash; // what waits for the list looks here
  }

  // ---- the grid: only the rows that are in sight are elements ----

  let rows = []; // where each section's rows start
  let geometry = null;

  function layGrid() {
    const grid = find("grid");
    const wide = state.tab === "suspects" || state.tab === "clusters";
    const width = grid.clientWidth;
    const columns = Math.max(1, Math.floor((width + 6) / (wide ? 176 : 86)));
    const cell = (width + 6) / columns;
    const high = wide ? 70 : cell + 18;
    let y = 0;
    rows = sections.map((section) => {
      const top = y + (section.title ? 34 : 0);
      y = top + Math.ceil(section.items.length / columns) * high;
      return { head: top - 34, top, end: y, ...section };
    });
    geometry = { wide, columns, cell, high };
    grid.style.height = `${y}px`;
    grid.replaceChildren();
    if (!rows.length) grid.append(make("p", { class: "nothing" }, state.tab === "images" ? "No images." : "None here."));
    fillGrid();
  }

  const shown = new Map(); // what is in the grid, by its key
  function fillGrid() {
    if (!geometry || !rows.length) return shown.clear();
    const grid = find("grid");
    const { scrollTop, clientHeight } = find("scroller");
    const [from, to] = [scrollTop - 200, scrollTop + clientHeight + 300];
    const { columns, cell, high } = geometry;
    const wanted = new Map();
    for (const row of rows) {
      if (row.end < from || row.head > to) continue;
      if (row.title) wanted.set(`head ${row.head}`, () => heading(row));
      const first = Math.max(0, Math.floor((from - row.top) / high)) * columns;
      const last = Math.min(row.items.length, Math.ceil((to - row.top) / high) * columns);
      for (let i = first; i < last; i++) {
        const [x, y] = [(i % columns) * cell, row.top + Math.floor(i / columns) * high];
        wanted.set(row.items[i], () => (state.tab === "clusters" ? clusterRow : thumbnail)(row.items[i], x, y, row));
      }
    }
    if (!grid.firstChild) shown.clear();
    for (const [key, element] of shown) {
      if (wanted.has(key)) continue;
      element.remove();
      shown.delete(key);
    }
    for (const [key, build] of wanted) {
      if (shown.has(key)) continue;
      const element = build();
      shown.set(key, element);
      grid.append(element);
    }
  }

  const heading = (row) => make("h3", { style: { top: `${row.head}px` } }, row.title);

  const placed = (x, y) => ({
    left: `${x}px`, top: `${y}px`, width: `${geometry.cell - 6}px`, height: `${geometry.high - 6}px`,
  });

  function clusterRow(node, x, y) {
    const name = make("span", { class: "caption" }, make("b", {}, nameOf(node)), make("small", {}, images(nodes.size[node])),
      make("small", {}, labelled ? `${percent(nodes.purity[node])} pure` : `tightness ${cosine(nodes.tightness[node])}`));
    const settings = { class: "thumb wide", style: placed(x, y), title: describe(node), "data-node": address(node) };
    return link({ node, image: -1 }, settings, picture("medoids", nodes.medoid[node], 60), name);
  }

  function thumbnail(image, x, y, row) {
    const { wide, cell } = geometry;
    const side = wide ? 60 : cell - 6;
    const kind = [wide ? "thumb wide" : "thumb", isOutlier(image) ? "outlier" : "", image === state.image ? "on" : ""];
    if ("exact" in row && image === row.items[0]) kind.push("keep");
    const name = make("span", { class: "caption" });
    const element = link({ image, ...(state.view === "tiles" && { node: nodeOfImage(image, 1) }) },
      { class: kind.join(" "), style: placed(x, y), "data-image": image },
      picture("images", image, side), name);
    const fill = () => {
      const facts = factsOf(image);
      element.title = labelled ? `${facts.path}\n${facts.label < 0 ? "no label" : classes[facts.label]}` : facts.path;
      if (wide) {
        const suspect = suspectOf(image);
        element.title += `\nthe others suggest ${classes[suspect.suggested]}, ahead by ${cosine(suspect.margin)}`;
        name.append(make("s", {}, className(facts.label)), make("b", {}, className(suspect.suggested)),
          make("small", {}, `${facts.path.split("/").pop()} · ${cosine(suspect.margin)}`));
      } else name.textContent = facts.path.split("/").pop();
    };
    if (factsOf(image)) fill();
    else load(blockOf(image)).then(fill);
    return element;
  }

  find("scroller").addEventListener("scroll", () => requestAnimationFrame(fillGrid), { passive: true });

  // ---- a table of what is listed ----

  async function rowsToSave() {
    const all = sections.flatMap((section) => section.items);
    const name = (label) => (label < 0 ? "" : classes[label]);
    if (state.tab === "clusters") {
      const head = ["level", "cluster", "name", "images", "tightness", ...(labelled ? ["class", "purity"] : [])];
      return [head, ...all.map((node) => [arranged ? `cut ${arranged}` : nodes.level[node], nodes.number[node], nameOf(node), nodes.size[node],
        nodes.tightness[node] / 1000, ...(labelled ? [name(nodes.commonest[node]), nodes.purity[node] / 1000] : [])])];
    }
    await Promise.all([...new Set(all.map(blockOf))].map(load));
    if (state.tab === "duplicates") {
      const each = sections.flatMap(({ exact, items }, group) => items.map((image, i) => [group + 1, factsOf(image).path, i === 0, exact]));
      return [["group", "path", "keep", "exact"], ...each];
    }
    const suspects = state.tab === "suspects";
    const each = (what) => Array.from({ length: levels }, (_, i) => `${what}_${i + 1}`);
    const head = ["path", ...(labelled ? ["label"] : []), ...(arranged ? [`cut_${arranged}`] : [...each("cluster"), ...each("similarity")]), "outlier"];
    if (suspects) head.push("suggested", "margin");
    return [head, ...all.map((image) => {
      const { path, label, cosines } = factsOf(image);
      const line = [path, ...(labelled ? [name(label)] : [])];
      for (let level = 1; level <= levels; level++) line.push(nodes.number[nodeOfImage(image, level)]);
      if (!arranged) line.push(...cosines.map((one) => one / 1000));
      line.push(isOutlier(image));
      if (suspects) line.push(classes[suspectOf(image).suggested], suspectOf(image).margin / 1000);
      return line;
    })];
  }

  async function saveTable() {
    // What a spreadsheet would take for a formula gets an apostrophe, as in cells.py, which takes it away.
    const cell = (value) => (typeof value === "string" && /^'*[=+\-@\t\r\n]/.test(value) ? `'${value}` : value);
    const quoted = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
    const lines = (await rowsToSave()).map((line) => line.map(cell).map(quoted).join(","));
    const file = new Blob([`${lines.join("\n")}\n`], { type: "text/csv" });
    const at = (state.cut ? `cut-${state.cut}-` : "") + (state.node ? `cluster-${address(state.node)}` : "all");
    const source = URL.createObjectURL(file);
    make("a", { href: source, download: `${at}-${state.tab}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(source), 10_000);
    say(`Saved ${number(lines.length - 1)} rows`);
  }
  find("save").addEventListener("click", saveTable);

  // ---- search ----

  const input = find("search");
  const results = find("results");
  let options = [];
  let option = -1;
  let typed = 0;

  function closeResults() {
    typed++;
    results.hidden = true;
    input.setAttribute("aria-expanded", "false");
  }

  function showResults(list, note) {
    options = list.map(({ change, text, detail, kind }, i) => {
      const element = make("div", { role: "option", id: `option-${i}`, class: kind },
        make("span", {}, text), make("small", {}, detail));
      element.addEventListener("pointerdown", (event) => event.preventDefault());
      element.addEventListener("click", () => pick(i));
      return { element, change };
    });
    results.replaceChildren(...options.map((one) => one.element), make("p", {}, note));
    results.hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark(options.length ? 0 : -1);
  }

  function mark(index) {
    options[option]?.element.removeAttribute("aria-selected");
    option = index;
    options[option]?.element.setAttribute("aria-selected", "true");
    options[option]?.element.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", option < 0 ? "" : `option-${option}`);
  }

  function pick(index) {
    const change = options[index]?.change;
    if (!change) return;
    closeResults();
    input.blur();
    canvas.focus();
    go(change);
  }

  const MOST = 50;
  async function search() {
    const text = input.value.trim().toLowerCase();
    if (!text) return closeResults();
    const turn = ++typed;
    const found = [];
    classes.forEach((name, label) => {
      if (found.length < 8 && name.toLowerCase().includes(text)) {
        const detail = `class · ${images(tree.classSizes[label])}`;
        found.push({ change: { class: label, node: 0, image: -1, tab: "images", lasso: "" }, text: name, detail, kind: "class" });
      }
    });
    showResults(found, "Reading names…");
    await loadRange(0, tree.images);
    if (turn !== typed) return;
    let many = 0;
    for (let image = 0; image < tree.images; image++) {
      const { path, label } = factsOf(image);
      if (!path.toLowerCase().includes(text) || ++many > MOST) continue;
      const change = { image, node: nodeOfImage(image, 1), class: -1, tab: "images", lasso: "" };
      found.push({ change, text: path, detail: labelled ? className(label) : "", kind: "file" });
    }
    const files = `${number(many)} file${many === 1 ? "" : "s"}`;
    showResults(found, many > MOST ? `${files}; the first ${MOST} are shown` : files);
  }

  let soon = 0;
  input.addEventListener("input", () => {
    clearTimeout(soon);
    soon = setTimeout(search, 80);
  });
  input.addEventListener("focus", () => input.value && search());
  input.addEventListener("blur", closeResults);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      closeResults();
      input.blur();
      canvas.focus();
    } else if (event.key === "Enter") pick(option);
    else if (event.key === "ArrowDown") mark(Math.min(options.length - 1, option + 1));
    else if (event.key === "ArrowUp") mark(Math.max(0, option - 1));
    else return;
    event.preventDefault();
  });

  // ---- the sheet on a phone ----

  const handle = find("handle");
  let grip = null;
  const height = (share) => document.documentElement.style.setProperty("--sheet", `${Math.round(100 * share)}dvh`);
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    grip = { y: event.clientY, moved: false };
  });
  handle.addEventListener("pointermove", (event) => {
    if (!grip || Math.abs(event.clientY - grip.y) < 5) return;
    grip.moved = true;
    height(Math.min(0.86, Math.max(0.14, 1 - event.clientY / innerHeight)));
  });
  handle.addEventListener("pointerup", () => setTimeout(() => { grip = null; }));
  handle.addEventListener("click", () => {
    if (grip?.moved) return;
    height(find("panel").clientHeight > innerHeight * 0.6 ? 0.45 : 0.86);
  });

  // ---- tiles or map; how many clusters ----

  const views = { tiles: "Tiles", map: "Map" };
  const slider = find("cut");
  const steps = [0]; // the tree's own levels, then numbers of clusters that grow like these
  for (let i = 0; i <= 120 && mostClusters > 1; i++) {
    const clusters = Math.round(2 * (mostClusters / 2) ** (i / 120));
    if (clusters !== steps[steps.length - 1]) steps.push(clusters);
  }
  slider.max = steps.length - 1;
  slider.parentElement.hidden = steps.length < 3;
  slider.addEventListener("input", () => {
    const change = { cut: steps[slider.value], node: 0, image: -1 };
    location.replace(hashOf({ ...state, node: 0, ...change }));
  });

  function showTools() {
    find("views").hidden = VIEWS.length < 2;
    find("views").replaceChildren(...VIEWS.map((name) => link({ view: name, lasso: name === "map" ? state.lasso : "" },
      { id: `view-${name}`, ...(name === state.view && { "aria-current": "true" }) }, views[name])));
    const after = steps.findIndex((clusters) => clusters >= state.cut);
    slider.value = after < 0 ? steps.length - 1 : after;
    const told = state.cut ? `${number(state.cut)} clusters` : `${levels} level${levels === 1 ? "" : "s"}`;
    slider.setAttribute("aria-valuetext", told);
    find("cuts").textContent = told;
  }

  // ---- all together ----

  for (const name of COLOURS) find("colour").append(make("option", { value: name }, name));
  find("colour").parentElement.hidden = COLOURS.length < 2;
  find("colour").addEventListener("change", () => go({ colour: find("colour").value }));

  function show() {
    const before = state;
    state = read();
    find("colour").value = state.colour;
    showTools();
    showMap();
    showCrumbs();
    showNode();
    showLegend();
    tellTile(null);
    const same = before && ["cut", "node", "tab", "lasso", "class"].every((name) => before[name] === state[name]);
    if (same && sections.length) {
      layGrid();
      find("panel").dataset.ready = location.hash;
    } else showList();
  }

  addEventListener("hashchange", show);
  for (const media of [dark, still]) media.addEventListener("change", () => { rebuild(); showNode(); showLegend(); });
  new ResizeObserver(rebuild).observe(find("stage"));
  new ResizeObserver(() => geometry && layGrid()).observe(find("scroller"));
  show();
  canvas.focus({ preventScroll: true });
  load("classes").then(() => {
    showNode();
    showLegend();
    redrawSoon();
  });
})();
