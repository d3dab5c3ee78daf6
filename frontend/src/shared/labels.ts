// Tokens are data: what cannot be seen, or would turn a line around, is spelled out. As
// clearhead._text.printable and drawing/labels.py have it.

const NAMES: Record<string, string> = { "\n": "⏎", "\t": "⇥", "\r": "␍", " ": "␣" };
// Control, format (direction marks, joiners), surrogates, private, unassigned; other blanks.
const INVISIBLE = /[\p{C}\p{Z}]/gu;
const MARK = /^\p{M}/u;

/** Emoji that joiners make one of: a family, a profession. */
const JOINED =
  // biome-ignore lint/suspicious/noMisleadingCharacterClass: each of them is meant by itself.
  /\p{Extended_Pictographic}[\p{EMod}\uFE0F]?(?:\u200D\p{Extended_Pictographic}[\p{EMod}\uFE0F]?)+/gu;

export function label(token: string): string {
  let text = "";
  let from = 0;
  for (const joined of token.matchAll(JOINED)) {
    text += spelled(token.slice(from, joined.index)) + joined[0];
    from = joined.index + joined[0].length;
  }
  text += spelled(token.slice(from));
  if (!text) return "∅";
  // A mark would combine with whatever stands before the label.
  return MARK.test(text) ? `◌${text}` : text;
}

/** The tokens of one list, without the space before a word; it is written as ␣ only where two of them differ by it
 * alone. As drawing/labels.py has them. */
export function names(tokens: readonly string[]): string[] {
  const known = new Set(tokens);
  return tokens.map((token) => {
    if (/^ {4,}$/.test(token)) return `␣×${token.length}`;
    return label(/^ [^ ]/s.test(token) && !known.has(token.slice(1)) ? token.slice(1) : token);
  });
}

const [CLOSING, OPENING, APOSTROPHE] = [/^[.,;:!?)\]}%]$/, /^[([{]$/, /^['’]$/];
const CONTRACTED = /^([tsmd]|re|ve|ll)$/;
export const CONTINUED = /^##(?=.)/s;

/** Whether a space is written before each token that the token does not bring. */
export function gaps(tokens: readonly string[]): boolean[] {
  if (tokens.some((token) => token.startsWith(" "))) return tokens.map(() => false);
  return tokens.map((token, at) => {
    const [before = "", after = ""] = [tokens[at - 1], tokens[at + 1]];
    return !(
      CONTINUED.test(token) ||
      CLOSING.test(token) ||
      OPENING.test(before) ||
      (APOSTROPHE.test(token) && CONTRACTED.test(after)) ||
      (APOSTROPHE.test(before) && CONTRACTED.test(token))
    );
  });
}

function spelled(text: string): string {
  return text.replace(INVISIBLE, (char) => NAMES[char] ?? escaped(char));
}

const segmenter = new Intl.Segmenter();

/** A label of so many characters at most, those with marks and joined emoji counted as one. */
export function short(text: string, most: number): string {
  if (text.length <= most) return text;
  const clusters = [...segmenter.segment(text)];
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
