// Making elements. Texts are always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element. properties: attributes, "on…" listeners; null or false leaves one out. */
export function element(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for a part of a picture. */
export function shape(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

/** Return an element of the page by its id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Set the text of an element, if it is another: what does not change is not read out again. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Replace what an element holds where what it is made of has changed. make: returns its children. */
export function renew(node, value, make) {
  const made = JSON.stringify(value);
  if (node.madeOf === made) return;
  node.madeOf = made;
  node.replaceChildren(...make());
}

function filled(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === false || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
