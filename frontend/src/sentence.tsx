// The bundle of the page on which a small GPT reads what is typed: the maps of its heads, and what it writes next.
import "./style.css";
import "./sentence.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Matrix } from "./figure/core";
import { forward, type Gpt, numberAt, readGpt, sharesAt } from "./gpt";
import { draw } from "./page";
import { Bars } from "./shared/bars";
import { label } from "./shared/labels";
import { useLoaded } from "./shared/loaded";
import { type Theme, useLook, useNewLook } from "./shared/look";
import { paintValues } from "./shared/map";
import { percent, type Scale } from "./shared/scale";
import { Shell } from "./shared/shell";
import { useSignal } from "./shared/signals";
import type { ViewProps } from "./source";

const START = "The assert statement is a ";
const LISTED = 6;
/** The most letters of the next word. */
const LONGEST = 20;

function SentencePage({ head, source }: ViewProps) {
  const root = useRef<HTMLDivElement>(null);
  const look = useNewLook(useSignal<Theme | null>(null), useSignal<Scale>("root"));
  const { value: gpt, failed } = useLoaded(() => readGpt(source), [source]);
  return (
    <Shell
      root={root}
      title={head.title}
      bare
      keys={[]}
      look={look}
      missing={[]}
      skip={["the sentence", "input"]}
    >
      {failed !== undefined && <p role="alert">The model could not be read.</p>}
      <main class="ch-sentence">{gpt && <Sentence gpt={gpt} />}</main>
    </Shell>
  );
}

function Sentence({ gpt }: { gpt: Gpt }) {
  const [text, setText] = useState(START);
  const [chosen, choose] = useState<[layer: number, head: number]>([0, 0]);
  const [picked, pick] = useState<number | null>(null);
  const [next, setNext] = useState("");
  const known = useMemo(() => new Map(gpt.letters.map((letter, id) => [letter, id])), [gpt]);
  const unknown = [...new Set(text)].filter((letter) => !known.has(letter));
  const ids = useMemo(
    () => [...text].flatMap((letter) => known.get(letter) ?? []).slice(-gpt.context),
    [gpt, known, text],
  );
  const { logits, maps } = useMemo(() => forward(gpt, ids), [gpt, ids]);
  // A letter at a time, so that typing does not wait.
  useEffect(() => {
    setNext("");
    let [all, word, timer] = [ids, "", 0];
    const write = () => {
      const read = all.slice(-gpt.context);
      const shares = sharesAt(forward(gpt, read).logits, read.length - 1);
      const id = shares.indexOf(Math.max(...shares));
      const letter = gpt.letters[id]!;
      const isOver = /\w/.test(word) && !/\w/.test(letter);
      [all, word] = [[...all, id], word + letter];
      setNext(word);
      if (!isOver && word.length < LONGEST) timer = setTimeout(write, 30);
    };
    if (ids.length) timer = setTimeout(write, 150);
    return () => clearTimeout(timer);
  }, [gpt, ids]);
  const type = (to: string) => {
    setText(to);
    pick(null);
  };
  const last = ids.length - 1;
  const row = Math.min(picked ?? last, last);
  const weights = maps[chosen[0]]![chosen[1]]!;
  const shares = ids.length ? sharesAt(logits, row) : [];
  const likely = shares.map((share, id) => ({ share, letter: gpt.letters[id]! }));
  likely.sort((one, other) => other.share - one.share);
  return (
    <>
      <label class="ch-typed">
        Your sentence
        <input
          value={text}
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => type(event.currentTarget.value)}
        />
      </label>
      <p class="ch-note" role="status">
        {unknown.length > 0 &&
          `The model has never seen ${unknown.map(label).join(" ")}, and skips it. `}
        {[...text].length > gpt.context && `It reads the last ${gpt.context} letters. `}
        {ids.length === 0 && "Type a letter that it knows."}
      </p>
      <ol class="ch-letters" aria-label="The letters: one is in focus">
        {ids.map((id, at) => (
          <li key={at}>
            <button
              type="button"
              aria-pressed={at === row}
              style={{
                "--share": `${at > row ? 0 : 100 * Math.sqrt(numberAt(weights, row, at))}%`,
              }}
              onClick={() => pick(at)}
            >
              {label(gpt.letters[id]!)}
            </button>
          </li>
        ))}
        {next && (
          <li class="ch-next">
            <button type="button" onClick={() => type(text + next)} aria-label={`add ${next}`}>
              {[...next].map(label).join("")} +
            </button>
          </li>
        )}
      </ol>
      <div class="ch-sides">
        <section aria-label="Heads">
          <p class="ch-note">
            Layer {chosen[0]}, head {chosen[1]}: where {label(gpt.letters[ids[row]!] ?? "")} looks
          </p>
          <div class="ch-maps">
            {maps.flatMap((layer, at) =>
              layer.map((map, head) => (
                <button
                  type="button"
                  key={`${at}.${head}`}
                  aria-label={`layer ${at}, head ${head}`}
                  aria-pressed={at === chosen[0] && head === chosen[1]}
                  onClick={() => choose([at, head])}
                >
                  <Small map={map} />
                </button>
              )),
            )}
          </div>
        </section>
        <section aria-label="The next letter">
          <p class="ch-note">After it comes</p>
          <Bars
            bars={likely.slice(0, LISTED).map(({ share, letter }) => ({
              key: letter,
              name: label(letter),
              share,
              words: percent(share),
            }))}
          />
        </section>
      </div>
    </>
  );
}

/** A head as a map: a row for each letter, a column for each that it looks at. */
function Small({ map }: { map: Matrix }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useLook().theme.value;
  useEffect(() => {
    const { rows, columns } = map;
    const place = canvas.current!;
    [place.height, place.width] = [Math.max(1, rows), Math.max(1, columns)];
    if (!rows) return;
    const pixels = new ImageData(columns, rows);
    const values = map.numbers.map((each, at) =>
      at % columns > Math.floor(at / columns) ? -1 : each,
    );
    paintValues(new Uint32Array(pixels.data.buffer), values, 1, theme, "root");
    place.getContext("2d")!.putImageData(pixels, 0, 0);
  }, [map, theme]);
  return <canvas ref={canvas} aria-hidden="true" />;
}

draw(SentencePage);
