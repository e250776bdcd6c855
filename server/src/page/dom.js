// Small tools over the DOM. Text goes in by textContent alone: whatever a drive or a group is called stays text. Nodes are
// kept from one update to the next, so that focus, selection and opened details stay where they are.

const SVG = 'http://www.w3.org/2000/svg';

/** A copy of the template NAME-t. */
export function stamp(name) {
  return document.getElementById(`${name}-t`).content.firstElementChild.cloneNode(true);
}

/** The part of a stamped node with this name. */
export function part(node, name) {
  node.parts ??= {};
  return (node.parts[name] ??= node.querySelector(`[data-part="${name}"]`));
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttr(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Sets the text of several parts. */
export function fill(node, texts) {
  for (const [name, text] of Object.entries(texts)) setText(part(node, name), text);
}

/** Makes the children of `parent` those of `items`, in their order; a node stays with its key. */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map();
  for (const child of parent.children) old.set(child.itemKey, child);
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let node = old.get(key);
    if (!node) {
      node = make(item);
      node.itemKey = key;
    }
    old.delete(key);
    update(node, item);
    if (node === at) {
      at = at.nextElementSibling;
    } else {
      parent.insertBefore(node, at);
    }
  }
  for (const node of old.values()) node.remove();
}

/** An SVG element with these attributes. */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Each health has a sign of its own: tick, exclamation in a triangle, cross in an octagon, question mark.
const SHAPES = {
  ok: ['M12 1a11 11 0 1 0 0 22a11 11 0 1 0 0-22z', 'M6.5 12.5l3.8 3.8L17.5 8.5'],
  warning: ['M12 1.5L23.5 22H.5z', 'M12 9v6M12 18v.6'],
  critical: ['M7.5 1h9L23 7.5v9L16.5 23h-9L1 16.5v-9z', 'M8 8l8 8M16 8l-8 8'],
  info: ['M12 1a11 11 0 1 0 0 22a11 11 0 1 0 0-22z', 'M12 6v.6M12 10.5v7'],
  unknown: ['M12 1a11 11 0 1 0 0 22a11 11 0 1 0 0-22z', 'M8.6 9a3.4 3.4 0 1 1 5 3c-1.2.6-1.6 1.2-1.6 2.4M12 18v.6'],
};

/** Shows the icon of a health in `node`. */
export function setIcon(node, health) {
  if (node.shown === health) return;
  node.shown = health;
  const [outline, mark] = SHAPES[health] ?? SHAPES.unknown;
  const stroke = { d: mark, fill: 'none', stroke: 'var(--tone-bg)', 'stroke-width': '2.6', 'stroke-linecap': 'round', 'stroke-linejoin': 'round' };
  node.replaceChildren(svg('svg', { viewBox: '0 0 24 24' }, svg('path', { d: outline, fill: 'currentColor' }), svg('path', stroke)));
}

/** The icon of a health as an image for the browser's tab. */
export function favicon(health) {
  const colours = { ok: '#0a6b3d', warning: '#c77700', critical: '#c1121f' };
  const [outline, mark] = SHAPES[health] ?? SHAPES.unknown;
  const image = `<svg xmlns="${SVG}" viewBox="0 0 24 24"><path d="${outline}" fill="${colours[health] ?? '#6b7280'}"/>`
    + `<path d="${mark}" fill="none" stroke="#fff" stroke-width="2.6" stroke-linecap="round"/></svg>`;
  return `data:image/svg+xml,${encodeURIComponent(image)}`;
}
