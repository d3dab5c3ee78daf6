// The bundle of the page on which a small GPT reads what is typed: the maps of its heads, and what it writes next.
import "./style.css";
import "./sentence.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Matrix } from "./figure/core";
import { forward, type Gpt, likeliest, numberAt, readGpt } from "./gpt";
import { draw } from "./page";
import { Bars } from "./shared/bars";
import { css, cssOnTop } from "./shared/colour";
import { label } from "./shared/labels";
import { useLoaded } from "./shared/loaded";
import { type Theme, useNewLook } from "./shared/look";
import { paintCells, paintValues } from "./shared/map";
import { percent } from "./shared/scale";
import { Shell } from "./shared/shell";
import { useSignal } from "./shared/signals";
import type { ViewProps } from "./source";

const START = "The assert statement is a ";
const LISTED = 6;
/** The most letters of the next word. */
const LONGEST = 20;

function SentencePage({ head, source }: ViewProps) {
  const root = useRef<HTMLDivElement>(null);
  const look = useNewLook(useSignal(null), useSignal("root"));
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
      <main class="ch-typed">{gpt && <Sentence gpt={gpt} theme={look.theme.value} />}</main>
    </Shell>
  );
}

function Sentence({ gpt, theme }: { gpt: Gpt; theme: Theme }) {
  const [text, setText] = useState(START);
  const [[layer, head], choose] = useState<[layer: number, head: number]>([0, 0]);
  const [picked, pick] = useState<number | null>(null);
  const ids = useMemo(
    () =>
      [...text]
        .map((letter) => gpt.letters.indexOf(letter))
        .filter((id) => id >= 0)
        .slice(-gpt.context),
    [gpt, text],
  );
  const unknown = [...new Set(text)].filter((letter) => !gpt.letters.includes(letter));
  const { next, maps } = useMemo(() => forward(gpt, ids), [gpt, ids]);
  const word = useNextWord(gpt, ids);
  const type = (to: string) => {
    setText(to);
    pick(null);
  };
  const last = ids.length - 1;
  const row = Math.min(picked ?? last, last);
  const shares = ids.map((_, at) => (at > row ? 0 : numberAt(maps[layer]![head]!, row, at)));
  return (
    <>
      <label>
        Your sentence
        <input
          class="ch-button"
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
      <div class="ch-letters" role="group" aria-label="Letters">
        {ids.map((id, at) => (
          <button
            key={at}
            type="button"
            class="ch-button"
            aria-pressed={at === row}
            style={{
              background: css(Math.sqrt(shares[at]!), theme),
              color: cssOnTop(Math.sqrt(shares[at]!), theme),
            }}
            onClick={() => pick(at)}
          >
            {label(gpt.letters[id]!)}
          </button>
        ))}
        {word && (
          <button
            type="button"
            class="ch-button ch-next"
            onClick={() => type(text + word)}
            aria-label={`add ${word}`}
          >
            {[...word].map(label).join("")} +
          </button>
        )}
      </div>
      {ids.length > 0 && (
        <div class="ch-sides">
          <section aria-label="Heads">
            <p class="ch-note">
              Layer {layer}, head {head}: where {label(gpt.letters[ids[row]!]!)} looks
            </p>
            <div class="ch-maps">
              {maps.flatMap((heads, at) =>
                heads.map((map, number) => (
                  <button
                    type="button"
                    class="ch-button"
                    key={`${at}.${number}`}
                    aria-label={`layer ${at}, head ${number}`}
                    aria-pressed={at === layer && number === head}
                    onClick={() => choose([at, number])}
                  >
                    <Small map={map} theme={theme} />
                  </button>
                )),
              )}
            </div>
          </section>
          <section aria-label="The next letter">
            <p class="ch-note">After it comes</p>
            <Bars
              bars={likeliest(gpt, next, row)
                .slice(0, LISTED)
                .map(({ share, letter }) => ({
                  key: letter,
                  name: label(letter),
                  share,
                  words: percent(share),
                }))}
            />
          </section>
        </div>
      )}
    </>
  );
}

/** The word that the model writes after these letters: a letter at a time, so that typing does not wait. */
function useNextWord(gpt: Gpt, ids: number[]): string {
  const [word, setWord] = useState("");
  useEffect(() => {
    setWord("");
    let [all, written, timer] = [ids, "", 0];
    const write = () => {
      const read = all.slice(-gpt.context);
      const { id, letter } = likeliest(gpt, forward(gpt, read).next, read.length - 1)[0]!;
      const isOver = /\w/.test(written) && !/\w/.test(letter);
      [all, written] = [[...all, id], written + letter];
      setWord(written);
      if (!isOver && written.length < LONGEST) timer = setTimeout(write, 30);
    };
    if (ids.length) timer = setTimeout(write, 150);
    return () => clearTimeout(timer);
  }, [gpt, ids]);
  return word;
}

/** A head as a map: a row for each letter, a column for each that it looks at. */
function Small({ map, theme }: { map: Matrix; theme: Theme }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const { rows, columns, numbers } = map;
    const isLater = (at: number) => at % columns > Math.floor(at / columns);
    const values = numbers.map((each, at) => (isLater(at) ? -1 : each));
    paintCells(canvas.current!, [rows, columns], (to) => paintValues(to, values, 1, theme, "root"));
  }, [map, theme]);
  return <canvas ref={canvas} aria-hidden="true" />;
}

draw(SentencePage);
