// How to read a page of heads: a picture, and what its words mean.

/** What the roles ask for, as docs/roles.md has them. */
export const ROLES: Record<string, string> = {
  previous: "the share of attention on the token before",
  first: "the share on the first token, where attention goes that is needed nowhere (a sink)",
  duplicate: "the share on where the same token was before",
  induction: "the share on what came after the same token before",
};

const CELLS = [
  [1, 0, 0, 0],
  [0.5, 0.5, 0, 0],
  [0.1, 0.8, 0.1, 0],
  [0.1, 0.7, 0.1, 0.1],
];
const WORDS = ["the", "cat", "licked", "itself"];

export function Guide() {
  return (
    <div class="ch-guide">
      <h2>How to read it</h2>
      <svg viewBox="0 0 250 170" role="img" aria-label="Rows are queries, columns are keys.">
        <text x="62" y="12" class="ch-guide-axis">
          key: is looked at →
        </text>
        <text x="4" y="48" class="ch-guide-axis">
          query ↓
        </text>
        {WORDS.map((word, at) => (
          <>
            <text key={word} x={78 + 40 * at} y="36" text-anchor="middle">
              {word}
            </text>
            <text key={`${word}-row`} x="52" y={66 + 28 * at} text-anchor="end">
              {word}
            </text>
          </>
        ))}
        {CELLS.flatMap((row, query) =>
          row.map((share, key) => (
            <rect
              key={`${query}/${key}`}
              x={58 + 40 * key}
              y={48 + 28 * query}
              width="39"
              height="27"
              class={key > query ? "ch-guide-hidden" : "ch-guide-cell"}
              fill-opacity={key > query ? 1 : 0.06 + 0.9 * share}
            />
          )),
        )}
        <rect x="98" y="132" width="39" height="27" class="ch-guide-own" />
      </svg>
      <p>
        A row is a query: the token that looks. A column is a key: a token that is looked at. The
        darker a cell, the larger the share of its attention that the query gives to the key; a row
        adds up to 100 %. Here <i>itself</i> gives 70 % to <i>cat</i>. Grey is hidden by the mask,
        as what comes later is in a causal model.
      </p>
      <p>
        Click a token, then another one with Shift: the list under the heads says which of them look
        from the first to the second. Over the text, blue arcs go to what the token looks at, and
        dashed ones come from what looks at it.
      </p>
      <h2>Words</h2>
      <dl>
        {Object.entries(ROLES).map(([role, does]) => (
          <div key={role}>
            <dt>{role}</dt>
            <dd>{does}</dd>
          </div>
        ))}
        <div>
          <dt>special tokens</dt>
          <dd>those in brackets, such as [SEP] and &lt;/s&gt;</dd>
        </div>
        <div>
          <dt>punctuation</dt>
          <dd>tokens without a letter or a digit</dd>
        </div>
        <div>
          <dt>entropy</dt>
          <dd>how spread the attention is, in nats: 0 is one key only, ln n is n keys alike</dd>
        </div>
        <div>
          <dt>received</dt>
          <dd>the sum of the weights that a key gets from all queries</dd>
        </div>
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
  ["t", "Where the pinned token looks through the layers, and its rollout"],
  ["l", "Colours by the square root, linear or logarithmic"],
  [
    "Ctrl + Enter",
    "On a head: show it too, with a colour of its own; with a mouse Ctrl and a click",
  ],
  ["m", "The mean of all heads of the layer; once more the head alone"],
  ["w", "Without the first token and special tokens; once more with them"],
  ["f", "The map alone, as large as there is room; once more goes back"],
  ["?", "This help"],
];
