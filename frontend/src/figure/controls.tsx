// What is touched beside the cells: masks by name, the scale, and a number that is asked for.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { number } from "../views/steps/model";
import type { Touched } from "./core";
import {
  type Action,
  blocksOf,
  type FigureData,
  MASKS,
  maskNamed,
  maskRows,
  runsOf,
  type State,
  scaleOf,
  typed,
} from "./model";

interface Props {
  data: FigureData;
  state: State;
  act: (action: Action & { going?: boolean }) => void;
}

export function Mask({ data, state, act }: Props) {
  const now = maskRows(data, state).join(".");
  return (
    <fieldset>
      <legend>mask</legend>
      {Object.keys(MASKS).map((name) => {
        const mask = maskNamed(data, name);
        return (
          <button
            type="button"
            key={name}
            aria-pressed={mask === now}
            onClick={() => act({ mask })}
          >
            {name}
          </button>
        );
      })}
    </fieldset>
  );
}

export function Scale({ data, state, act }: Props) {
  const width = data.inputs.query?.columns ?? data.inputs.W_query!.columns;
  const root = 1 / Math.sqrt(width);
  const scale = state.scale ?? data.scale;
  const [sliding, setSliding] = useState(false);
  return (
    <fieldset>
      <legend>scale</legend>
      <button type="button" aria-pressed={scale === 1} onClick={() => act({ scale: 1 })}>
        1
      </button>
      <button
        type="button"
        aria-pressed={Math.abs(scale - root) < 1e-6}
        onClick={() => act({ scale: root })}
      >
        1/√{width}
      </button>
      <label>
        temperature
        <input
          type="range"
          min={-3}
          max={3}
          step={0.1}
          value={Math.log2(state.temperature)}
          aria-valuetext={state.temperature.toFixed(2)}
          onInput={(event) => {
            act({
              temperature: Number((2 ** Number(event.currentTarget.value)).toFixed(4)),
              going: sliding,
            });
            setSliding(true);
          }}
          onChange={() => setSliding(false)}
        />
        <span>{state.temperature.toFixed(2)}</span>
      </label>
      <span class="quiet">scores × {number(scaleOf(data, state))}</span>
    </fieldset>
  );
}

/** What a kernel makes of a mask that stands alone: the keys of each query, and the blocks that it skips. */
export function Blocks({ data, state }: Omit<Props, "act">) {
  const rows = maskRows(data, state);
  const sizes = [1, 2, 4, 8, 16].filter((each) => each < Math.max(rows.length, rows[0]!.length));
  const [size, setSize] = useState(sizes[1] ?? 1);
  const blocks = blocksOf(rows, size);
  const count = (sign: string) => blocks.flat().filter((each) => each === sign).length;
  return (
    <>
      <label>
        blocks of
        <select value={size} onChange={(event) => setSize(Number(event.currentTarget.value))}>
          {sizes.map((each) => (
            <option key={each} value={each}>
              {each} × {each}
            </option>
          ))}
        </select>
      </label>
      <p class="name">
        {count("■")} full, {count("◪")} partial, {count("·")} empty
      </p>
      <pre aria-hidden="true">{blocks.map((row) => row.join(" ")).join("\n")}</pre>
      <p>A kernel skips the empty ones, and asks the mask in the partial ones alone.</p>
      <p class="name">keys that each query sees</p>
      <ul class="runs">
        {rows.map((row, at) => (
          <li key={at}>
            {data.tokens[at]}: {runsOf(row)}
          </li>
        ))}
      </ul>
    </>
  );
}

export function Predict({
  data,
  state,
  stages,
  act,
  children,
}: Props & { stages: Map<string, Touched>; children: ComponentChildren }) {
  const [name, row, column] = data.predict!;
  const [text, setText] = useState("");
  const stage = stages.get(name)!;
  const width = stage.columnAxis !== "key";
  const what = `${name} ${data[stage.rowAxis === "key" ? "source_tokens" : "tokens"][row]} ${width ? `· ${column}` : `→ ${data.source_tokens[column]}`}`;
  const truth = stage.at(row, column);
  const ends = name === "weights" ? [0, 1] : [-Math.ceil(stage.largest), Math.ceil(stage.largest)];
  const guess = typed(text);
  if (state.guess !== null) {
    return (
      <div class="predict">
        <dl>
          <div>
            <dt>your guess</dt>
            <dd>{number(state.guess)}</dd>
          </div>
          <div>
            <dt>{what}</dt>
            <dd>{number(truth)}</dd>
          </div>
          <div>
            <dt>between them</dt>
            <dd>{number(Math.abs(truth - state.guess))}</dd>
          </div>
        </dl>
        {children}
        <button type="button" onClick={() => act({ guess: null })}>
          guess again
        </button>
      </div>
    );
  }
  return (
    <form
      class="predict"
      onSubmit={(event) => {
        event.preventDefault();
        if (guess !== null) act({ guess });
      }}
    >
      <label>
        What is {what}?
        <input
          inputMode="decimal"
          size={7}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      <input
        type="range"
        aria-label={`${what}, as a bar`}
        min={ends[0]}
        max={ends[1]}
        step={0.01}
        value={guess ?? ends[0]}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <button type="submit" aria-disabled={guess === null}>
        compare
      </button>
    </form>
  );
}
