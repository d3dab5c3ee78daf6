// What is touched beside the cells: masks by name, the scale, and a number that is asked for.
import { Component, type ComponentChildren } from "preact";
import { entropy, type Touched } from "./core";
import {
  type Action,
  baseOf,
  countOf,
  type FigureData,
  MASKS,
  MOST_DRAWS,
  maskNamed,
  maskRows,
  orderOf,
  type State,
  scaleOf,
  splits,
  typed,
  widthOf,
} from "./model";
import { number } from "./stage";

interface Props {
  data: FigureData;
  state: State;
  stages: Map<string, Touched>;
  act: (action: Action & { going?: boolean }) => void;
}

function Group({ of, children }: { of: string; children: ComponentChildren }) {
  return (
    <fieldset>
      <legend>{of}</legend>
      {children}
    </fieldset>
  );
}

interface Several<To> {
  of: (readonly [To, string])[];
  now: To | null;
  pick: (to: To) => void;
}

function OneOf<To extends string | number>({ of, now, pick }: Several<To>) {
  return (
    <>
      {of.map(([to, words]) => (
        <button type="button" key={words} aria-pressed={to === now} onClick={() => pick(to)}>
          {words}
        </button>
      ))}
    </>
  );
}

interface Switch extends Props {
  name: "transpose" | "back" | "rotary";
  words: string;
}

function Flag({ name, words, state, act }: Switch) {
  const on = state[name];
  return (
    <button type="button" aria-pressed={on === 1} onClick={() => act({ [name]: 1 - on })}>
      {words}
    </button>
  );
}

interface Sliding {
  label: string;
  range: [min: number, max: number, step: number];
  value: number;
  text: string | number;
  slide: (to: number, going: boolean) => void;
}

class Slider extends Component<Sliding> {
  going = false;

  override render({ label, range: [min, max, step], value, text, slide }: Sliding) {
    return (
      <>
        <label>
          {label}
          <input
            type="range"
            min={min}
            max={max}
            step={step}
            value={value}
            aria-valuetext={`${text}`}
            onInput={(event) => {
              slide(Number(event.currentTarget.value), this.going);
              this.going = true;
            }}
            onChange={() => {
              this.going = false;
            }}
          />
        </label>
        <span>{text}</span>
      </>
    );
  }
}

function Mask({ data, state, act }: Props) {
  const names = Object.keys(MASKS).map((name) => [maskNamed(data, name), name] as const);
  const now = maskRows(data, state).join(".");
  return (
    <Group of="mask">
      <OneOf of={names} now={now} pick={(mask) => act({ mask })} />
    </Group>
  );
}

function Scale({ data, state, act }: Props) {
  const width = widthOf(data, state);
  const scale = baseOf(data, state);
  const same = Math.abs(scale * Math.sqrt(width) - 1) < 1e-6;
  const root = 1 / Math.sqrt(data.widths ? data.widths.at(-1)!.width : width);
  return (
    <Group of="scale">
      <OneOf
        of={[
          [1, "1"],
          [root, `1/√${width}`],
        ]}
        now={same ? root : scale}
        pick={(scale) => act({ scale })}
      />
      <Slider
        label="temperature"
        range={[-3, 3, 0.1]}
        value={Math.log2(state.temperature)}
        text={state.temperature.toFixed(2)}
        slide={(to, going) => act({ temperature: Number((2 ** to).toFixed(4)), going })}
      />
      <span class="quiet">scores × {number(scaleOf(data, state))}</span>
    </Group>
  );
}

/** Query and keys of fewer numbers, and how spread the weights are then. */
function Width({ data, state, act, stages }: Props) {
  const widths = data.widths!.map((each) => each.width);
  const width = widthOf(data, state);
  const keys = data.source_tokens;
  const rows = data.tokens.map((_, row) =>
    entropy(keys.map((_, key) => stages.get("weights")!.at(row, key))),
  );
  const mean = rows.reduce((sum, each) => sum + each, 0) / rows.length;
  return (
    <>
      <Slider
        label="width"
        range={[0, widths.length - 1, 1]}
        value={widths.indexOf(width)}
        text={width}
        slide={(to, going) => act({ width: widths[to]!, going })}
      />
      <span class="quiet">
        entropy {mean.toFixed(2)} nats; even is {Math.log(keys.length).toFixed(2)}
      </span>
    </>
  );
}

/** Weights left out by chance, drawn anew by hand alone. */
function Dropout({ state, act }: Props) {
  const draw = (more: number) => act({ draws: Math.min(MOST_DRAWS, state.draws + more) });
  return (
    <Group of="dropout">
      <Slider
        label="rate"
        range={[0, 0.9, 0.1]}
        value={state.dropout}
        text={state.dropout}
        slide={(dropout, going) => act({ dropout, going })}
      />
      <button type="button" onClick={() => draw(1)}>
        draw anew
      </button>
      <button type="button" onClick={() => draw(100)}>
        100 more
      </button>
      <span class="quiet">{state.draws} drawn</span>
    </Group>
  );
}

/** The tokens in their order: a click or an arrow moves one. */
function Order({ data, state, act }: Props) {
  const order = orderOf(data, state);
  const move = (from: number, to: number) => {
    const moved = order.filter((_, at) => at !== from);
    moved.splice(to % order.length, 0, order[from]!);
    act({ order: moved });
  };
  return (
    <Group of="order">
      <ol class="order">
        {order.map((token, at) => (
          <li key={token}>
            <button
              type="button"
              aria-label={`${data.tokens[at]}, place ${at + 1} of ${order.length}; arrow left and right move it`}
              onClick={() => move(at, at + 1)}
              onKeyDown={(event) => {
                const to = at + ({ ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? NaN);
                if (!(to in order) || event.ctrlKey || event.altKey || event.metaKey) return;
                event.preventDefault();
                const { currentTarget } = event;
                move(at, to);
                requestAnimationFrame(() => currentTarget.focus());
              }}
            >
              {data.tokens[at]}
            </button>
          </li>
        ))}
      </ol>
    </Group>
  );
}

function Heads(props: Props) {
  const { data, state, act } = props;
  const counts = splits(data).map((each) => [each, `${each}`] as const);
  return (
    <Group of="heads">
      <OneOf of={counts} now={countOf(data, state)} pick={(heads) => act({ heads })} />
      <Flag {...props} name="transpose" words="transpose" />
      <Flag {...props} name="back" words="transpose back" />
    </Group>
  );
}

function Rotary(props: Props) {
  return (
    <Group of="position">
      <Flag {...props} name="rotary" words="rotary" />
    </Group>
  );
}

/** By what is edited: all that is touched beside the cells. */
export const TOOLS = {
  mask: Mask,
  scale: Scale,
  width: Width,
  dropout: Dropout,
  order: Order,
  heads: Heads,
  rotary: Rotary,
};

type PredictProps = Props & { children: ComponentChildren };

export class Predict extends Component<PredictProps, { text?: string }> {
  override render({ data, state, stages, act, children }: PredictProps) {
    const { text = "" } = this.state;
    const [name, row, column] = data.predict!;
    const stage = stages.get(name)!;
    const width = stage.columnAxis !== "key";
    const what = `${name} ${data[stage.rowAxis === "key" ? "source_tokens" : "tokens"][row]} ${width ? `· ${column}` : `→ ${data.source_tokens[column]}`}`;
    const truth = stage.at(row, column);
    const guess = typed(text);
    if (state.guess !== null) {
      return (
        <div class="predict">
          <dl>
            {[
              ["your guess", state.guess] as const,
              [what, truth] as const,
              ["between them", Math.abs(truth - state.guess)] as const,
            ].map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{number(value)}</dd>
              </div>
            ))}
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
            onInput={(event) => this.setState({ text: event.currentTarget.value })}
          />
        </label>
        <button type="submit" aria-disabled={guess === null}>
          compare
        </button>
      </form>
    );
  }
}
