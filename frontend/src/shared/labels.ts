// Tokens are data: what cannot be seen, or would turn a line around, is spelled out. As
// clearhead._common.text.printable and drawing/labels.py have it.

const NAMES: Record<string, string> = { "\n": "⏎", "\t": "⇥", "\r": "␍", " ": "␣" };
// Control, format (direction marks, joiners), surrogates, private, unassigned; other blanks.
const INVISIBLE = /[\p{C}\p{Z}]/gu;
const MARK = /^\p{M}/u;

export function label(token: string): string {
  const text = token.replace(INVISIBLE, (char) => NAMES[char] ?? escaped(char)) || "∅";
  // A mark would combine with whatever stands before the label.
  return MARK.test(text) ? `◌${text}` : text;
}

/** A label of so many characters at most, those with marks and joined emoji counted as one. */
export function short(text: string, most: number): string {
  const clusters = [...new Intl.Segmenter().segment(text)];
  if (clusters.length <= most) return text;
  return `${clusters
    .slice(0, most - 1)
    .map((each) => each.segment)
    .join("")}…`;
}

function escaped(char: string): string {
  const code = char.codePointAt(0)!;
  if (code < 256) return `\\x${code.toString(16).padStart(2, "0")}`;
  if (code < 1 << 16) return `\\u${code.toString(16).padStart(4, "0")}`;
  return `\\U${code.toString(16).padStart(8, "0")}`;
}
