// Texts of models, tools and users. They become text nodes, never markup.

const CUT = 4000, MORE = 200000;
const AUTO = { dir: "auto" }; // the first letter determines the direction of a text
// Characters that a browser interprets or hides: control characters, marks of direction, separators, tags.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udc7f]/g;

// Make an element. Its content is nodes and texts; hidden characters of a text are written out.
function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content.map((part) => (part instanceof Node ? part : plain(part ?? ""))));
  return element;
}

// Set properties, attributes and style variables of an element; return it.
function set(element, values) {
  for (const [name, value] of Object.entries(values)) {
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  return element;
}

// Make a button; `key` is its keyboard shortcut.
function button(className, text, onclick, key = "") {
  return set(make("button", className, text, ...(key ? [" ", make("kbd", "", key)] : [])), { type: "button", onclick });
}

function codeOf(character) {
  const code = character.codePointAt(0);
  return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : code < 65536 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\u{${code.toString(16)}}`;
}

// The text as nodes, with hidden characters written as escapes such as \x1b.
function pieces(text) {
  const found = document.createDocumentFragment();
  let place = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > place) found.append(text.slice(place, match.index));
    found.append(make("span", "hidden-char", codeOf(match[0])));
    place = match.index + match[0].length;
  }
  if (place < text.length) found.append(text.slice(place));
  return found;
}

// The text as a string, with hidden characters written as escapes.
function plain(text) {
  return String(text).replace(HIDDEN, codeOf);
}

// Tokens that end a reply in the chat templates of known models.
const END = /^(?:<\|[^|<>]+\|>|<｜[^｜<>]+｜>|<\/s>|<(?:eos|pad|end_of_turn|end_of_utterance|turn\|)>|\[(?:EOS|PAD|SEP)\])$/;

// The number of sampled tokens that belong to the reply. The text of an act lacks the tokens that end it.
function replyLength(tokens, text) {
  const texts = tokens.map(([token]) => String(token)), whole = texts.join("");
  let count = texts.length, length = whole.length;
  const ends = whole.startsWith(text) ? (token) => (length -= token.length) >= text.length : (token) => END.test(token);
  while (count && ends(texts[count - 1])) count--;
  return count;
}

// A block of text. A long text is cut, and a button shows more.
function textBlock(text, className = "") {
  const block = set(make("pre", `text ${className}`), AUTO), whole = String(text ?? "");
  let until = 0;
  const add = (count) => {
    const end = whole.length - until > count * 1.25 ? cutAt(whole, until + count) : whole.length;
    more.before(pieces(whole.slice(until, end)));
    until = end;
    more.textContent = `show more of ${grouped(whole.length - until)} further characters`;
    if (until === whole.length) more.remove();
  };
  const more = button("more", "", () => add(MORE));
  block.append(whole ? more : make("span", "none", "empty"));
  if (whole) add(CUT);
  return block;
}

// The words of a text, each with whether it belongs to the longest common subsequence with another text.
function comparedWords(text, other) {
  const [words, others] = [text, other].map((one) => one.split(/(?<=\s)(?=\S)/)), width = others.length + 1;
  const common = new Uint16Array((words.length + 1) * width);
  for (let i = words.length - 1; i >= 0; i--) for (let j = others.length - 1; j >= 0; j--) {
    common[i * width + j] = words[i].trim() === others[j].trim() ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  }
  let j = 0;
  return words.map((word, i) => {
    while (j < others.length && word.trim() !== others[j].trim() && common[i * width + j] === common[i * width + j + 1]) j++;
    const same = j < others.length && word.trim() === others[j].trim();
    if (same) j++;
    return [word, same];
  });
}

// A reply, with marks on the words that another reply lacks.
function differing(text, other) {
  const block = set(make("pre", "text reply"), AUTO);
  for (const [word, same] of comparedWords(text, other)) {
    block.append(make(same ? "span" : "mark", "", pieces(word)));
  }
  return block;
}

// Move the place of a cut that is between the two halves of a character.
function cutAt(text, place) {
  return /[\ud800-\udbff]/.test(text[place - 1] || "") ? place - 1 : place;
}

function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, " ");
}

function number(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (value !== 0 && (Math.abs(value) >= 100000 || Math.abs(value) < 0.5 * 10 ** -digits)) return value.toExponential(1);
  return Number.isInteger(value) && Math.abs(value) >= 10 ? String(value) : value.toFixed(digits).replace("-", "−");
}

// A number with three digits, for curves.
function compact(value) {
  if (typeof value !== "number") return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  return (size >= 1000 ? grouped(Math.round(value)) : String(Number(value.toPrecision(3)))).replace("-", "−");
}

function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${Math.round(value * 1000)} ms` : value < 120 ? `${value.toFixed(1)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

// The text of a message. Parts are joined by line breaks.
function contentOf(message) {
  const content = message.content;
  if (Array.isArray(content)) return content.filter((part) => part && part.text).map((part) => part.text).join("\n");
  return content === null || content === undefined ? "" : String(content);
}

function imagesOf(message) {
  return Array.isArray(message.content) ? message.content.filter((part) => part && part.type !== "text") : [];
}

// An element that is folded until it is clicked. Its body is made then.
function folded(className, summary, body, open = false) {
  const details = make("details", className, make("summary", "", ...summary));
  let made = false;
  const fill = () => {
    if (made || !details.open) return;
    made = true;
    details.append(...[body()].flat());
  };
  details.addEventListener("toggle", fill);
  if (open) { details.open = true; fill(); }
  details.unfold = (wanted) => { details.open = wanted; fill(); };
  return details;
}
