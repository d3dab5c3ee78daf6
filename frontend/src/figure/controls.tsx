// What is touched beside the cells: masks by name, the scale, and a number that is asked for.
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { number } from "../views/steps/model";
import { entropy, type Touched } from "./core";
import {
  type Action,
  baseOf,
  blocksOf,
  countOf,
  type FigureData,
  MASKS,
  MOST_DRAWS,
  maskNamed,
  maskRows,
  orderOf,
  runsOf,
  type State,
  scaleOf,
  splits,
  typed,
  widthOf,
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
  const width = widthOf(data, state);
  const root = 1 / Math.sqrt(width);
  const scale = baseOf(data, state);
  const all = data.widths ? 1 / Math.sqrt(data.widths.at(-1)!.width) : root;
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
        onClick={() => act({ scale: all })}
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

/** Query and keys of fewer numbers, and how spread the weights are then. */
export function Width({ data, state, act, stages }: Props & { stages: Map<string, Touched> }) {
  const widths = data.widths!.map((each) => each.width);
  const width = widthOf(data, state);
  const keys = data.source_tokens;
  const rows = data.tokens.map((_, row) =>
    entropy(keys.map((_, key) => stages.get("weights")!.at(row, key))),
  );
  const mean = rows.reduce((sum, each) => sum + each, 0) / rows.length;
  return (
    <fieldset>
      <legend>width</legend>
      <input
        type="range"
        aria-label="width"
        min={0}
        max={widths.length - 1}
        value={widths.indexOf(width)}
        aria-valuetext={`${width}`}
        onInput={(event) => act({ width: widths[Number(event.currentTarget.value)]! })}
      />
      <span>{width}</span>
      <span class="quiet">
        entropy {mean.toFixed(2)} nats; even is {Math.log(keys.length).toFixed(2)}
      </span>
    </fieldset>
  );
}

/** Weights left out by chance, drawn anew by hand alone. */
export function Dropout({ state, act }: Props) {
  const draw = (more: number) => act({ draws: Math.min(MOST_DRAWS, state.draws + more) });
  return (
    <fieldset>
      <legend>dropout</legend>
      <input
        type="range"
        aria-label="dropout"
        min={0}
        max={0.9}
        step={0.1}
        value={state.dropout}
        onInput={(event) => act({ dropout: Number(event.currentTarget.value) })}
      />
      <span>{state.dropout}</span>
      <button type="button" onClick={() => draw(1)}>
        draw anew
      </button>
      <button type="button" onClick={() => draw(100)}>
        100 more
      </button>
      <span class="quiet">{state.draws} drawn</span>
    </fieldset>
  );
}

/** The tokens in their order, to drag or to move with the arrows. */
export function Order({ data, state, act }: Props) {
  const place = useRef<HTMLOListElement>(null);
  const drag = useRef<number | null>(null);
  const order = orderOf(data, state);
  const move = (from: number, to: number) => {
    if (to < 0 || to >= order.length || from === to) return;
    const moved = order.filter((_, at) => at !== from);
    moved.splice(to, 0, order[from]!);
    act({ order: moved });
  };
  return (
    <fieldset>
      <legend>order</legend>
      <ol class="order" ref={place}>
        {order.map((token, at) => (
          <li key={token}>
            <button
              type="button"
              aria-label={`${data.tokens[token]}, place ${at + 1} of ${order.length}; arrow left and right move it`}
              onPointerDown={(event) => {
                drag.current = token;
                event.currentTarget.setPointerCapture(event.pointerId);
              }}
              onPointerMove={(event) => {
                if (drag.current !== token || event.buttons === 0) return;
                const over = [...place.current!.children].findIndex((each) => {
                  const box = each.getBoundingClientRect();
                  const inside = event.clientX >= box.left && event.clientX <= box.right;
                  return inside && event.clientY >= box.top && event.clientY <= box.bottom;
                });
                if (over >= 0) move(at, over);
              }}
              onPointerUp={() => {
                drag.current = null;
              }}
              onKeyDown={(event) => {
                const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
                if (by === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
                event.preventDefault();
                const { currentTarget } = event;
                move(at, at + by);
                requestAnimationFrame(() => currentTarget.focus());
              }}
            >
              {data.tokens[token]}
            </button>
          </li>
        ))}
      </ol>
    </fieldset>
  );
}

export function HeadCount({ data, state, act }: Props) {
  const flag = (name: "transpose" | "back", words: string) => (
    <button
      type="button"
      aria-pressed={state[name] === 1}
      onClick={() =>
        act(name === "back" ? { back: 1 - state.back } : { transpose: 1 - state.transpose })
      }
    >
      {words}
    </button>
  );
  return (
    <fieldset>
      <legend>heads</legend>
      {splits(data).map((each) => (
        <button
          type="button"
          key={each}
          aria-pressed={each === countOf(data, state)}
          onClick={() => act({ heads: each })}
        >
          {each}
        </button>
      ))}
      {flag("transpose", "transpose")}
      {flag("back", "transpose back")}
    </fieldset>
  );
}

export function Rotary({ state, act }: Props) {
  return (
    <fieldset>
      <legend>position</legend>
      <button
        type="button"
        aria-pressed={state.rotary === 1}
        onClick={() => act({ rotary: 1 - state.rotary })}
      >
        rotary
      </button>
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
