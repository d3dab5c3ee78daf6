// How to read a page of heads, and what its words mean.

/** What the roles ask for, as docs/roles.md has them. */
export const ROLES: Record<string, string> = {
  previous: "the share of attention on the token before",
  first: "the share on the first token, where attention goes that is needed nowhere (a sink)",
  duplicate: "the share on where the same token was before",
  induction: "the share on what came after the same token before",
};

const WORDS: [string, string][] = [
  ...Object.entries(ROLES),
  ["special tokens", "those in brackets, such as [SEP] and </s>"],
  ["punctuation", "tokens without a letter or a digit"],
  ["entropy", "how spread the attention is, in nats: 0 is one key only, ln n is n keys alike"],
  ["received", "the sum of the weights that a key gets from all queries"],
];

export function Guide() {
  return (
    <div class="ch-guide">
      <h2>How to read it</h2>
      <p>
        A row is a query: the token that looks. A column is a key: a token that is looked at. The
        darker a cell, the larger the share of its attention that the query gives to the key; a row
        adds up to 100 %. Grey is hidden by the mask, as what comes later is in a causal model.
      </p>
      <p>
        Click a token, then another one with Shift: the list under the heads says which of them look
        from the first to the second. Over the text, blue arcs go to what the token looks at, and
        dashed ones come from what looks at it.
      </p>
      <h2>Words</h2>
      <dl>
        {WORDS.map(([word, does]) => (
          <div key={word}>
            <dt>{word}</dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}

export const KEYS: [string, string][] = [
  ["arrows", "Go from head to head, cell to cell, or token to token, wherever the focus is"],
  ["Enter", "Pin the token or the cell; once more, or Escape, lets go"],
  ["Shift + Enter", "On a token, with another one pinned: ask the heads for the link to it"],
  [
    "+  −  0",
    "On the map: zoom in, zoom out, show all; with a mouse Ctrl and the wheel, or two fingers",
  ],
  ["Shift + arrows", "On the map: move it"],
  ["[  ]", "The head before, the next head"],
  ["/", "Search for a token; Enter goes to the next one"],
  ["c", "Compare with another head"],
  ["d", "Of two heads: what the first gives more than the second"],
  ["y", "Why: how the weight that is pinned comes about, where query and key are at hand"],
  ["l", "Colours by the square root, linear or logarithmic"],
  [
    "Ctrl + Enter",
    "On a head: show it too, with a colour of its own; with a mouse Ctrl and a click",
  ],
  ["m", "The mean of all heads of the layer; once more the head alone"],
  ["w", "Without the first token and special tokens; once more with them"],
  ["?", "This help"],
];
