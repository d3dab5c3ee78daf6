// What is touched beside the cells: masks by name, the scale, and a number that is asked for.
import { Component, type ComponentChildren } from "preact";
import { entropy, SHARES, type Touched } from "./core";
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

/** The tokens in their order, to drag or to move with the arrows. */
class Order extends Component<Props> {
  drag: number | null = null;

  move(from: number, to: number) {
    const { data, state, act } = this.props;
    const order = orderOf(data, state);
    if (to < 0 || to >= order.length || from === to) return;
    const moved = order.filter((_, at) => at !== from);
    moved.splice(to, 0, order[from]!);
    act({ order: moved });
  }

  override render({ data, state }: Props) {
    const order = orderOf(data, state);
    return (
      <Group of="order">
        <ol class="order">
          {order.map((token, at) => (
            <li key={token}>
              <button
                type="button"
                aria-label={`${data.tokens[at]}, place ${at + 1} of ${order.length}; arrow left and right move it`}
                onPointerDown={(event) => {
                  this.drag = token;
                  event.currentTarget.setPointerCapture(event.pointerId);
                }}
                onPointerMove={({ currentTarget, clientX, clientY, buttons }) => {
                  if (this.drag !== token || buttons === 0) return;
                  const all = [...currentTarget.closest("ol")!.children];
                  const over = all.findIndex((each) => {
                    const box = each.getBoundingClientRect();
                    const inside = clientX >= box.left && clientX <= box.right;
                    return inside && clientY >= box.top && clientY <= box.bottom;
                  });
                  if (over >= 0) this.move(at, over);
                }}
                onPointerUp={() => {
                  this.drag = null;
                }}
                onKeyDown={(event) => {
                  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
                  if (by === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
                  event.preventDefault();
                  const { currentTarget } = event;
                  this.move(at, at + by);
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

const counted = (all: string[]) => all.map((each, at) => [at, each] as const);

/** How scores become weights, right and wrong. */
function Softmax({ state, act }: Props) {
  const axes = counted(["over the keys", "over the queries"]);
  return (
    <Group of="weights">
      <OneOf of={counted(SHARES)} now={state.shares} pick={(shares) => act({ shares })} />
      <OneOf of={axes} now={state.axis} pick={(axis) => act({ axis })} />
    </Group>
  );
}

/** What hides a pair. */
function Hiding({ state, act }: Props) {
  const ways = counted(["−∞", "strike out", "strike out, divide anew"]);
  return (
    <Group of="hide by">
      <OneOf of={ways} now={state.hiding} pick={(hiding) => act({ hiding })} />
    </Group>
  );
}

/** By what is edited: all that is touched beside the cells. */
export const TOOLS = {
  mask: Mask,
  hiding: Hiding,
  softmax: Softmax,
  scale: Scale,
  width: Width,
  dropout: Dropout,
  order: Order,
  heads: Heads,
  rotary: Rotary,
};

/** What a kernel makes of a mask that stands alone: the keys of each query, and the blocks that it skips. */
type MaskBlocksProps = Pick<Props, "data" | "state">;

export class MaskBlocks extends Component<MaskBlocksProps, { size?: number }> {
  override render({ data, state }: MaskBlocksProps) {
    const rows = maskRows(data, state);
    const sizes = [1, 2, 4, 8, 16].filter((each) => each < Math.max(rows.length, rows[0]!.length));
    const size = this.state.size ?? sizes[1] ?? 1;
    const blocks = blocksOf(rows, size);
    const count = (sign: string) => blocks.flat().filter((each) => each === sign).length;
    return (
      <>
        <label>
          blocks of
          <select
            value={size}
            onChange={(event) => this.setState({ size: Number(event.currentTarget.value) })}
          >
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
}

type PredictProps = Props & { children: ComponentChildren };

export class Predict extends Component<PredictProps, { text?: string }> {
  override render({ data, state, stages, act, children }: PredictProps) {
    const { text = "" } = this.state;
    const [name, row, column] = data.predict!;
    const stage = stages.get(name)!;
    const width = stage.columnAxis !== "key";
    const what = `${name} ${data[stage.rowAxis === "key" ? "source_tokens" : "tokens"][row]} ${width ? `· ${column}` : `→ ${data.source_tokens[column]}`}`;
    const truth = stage.at(row, column);
    const ends =
      name === "weights" ? [0, 1] : [-Math.ceil(stage.largest), Math.ceil(stage.largest)];
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
        <input
          type="range"
          aria-label={`${what}, as a bar`}
          min={ends[0]}
          max={ends[1]}
          step={0.01}
          value={guess ?? ends[0]}
          onInput={(event) => this.setState({ text: event.currentTarget.value })}
        />
        <button type="submit" aria-disabled={guess === null}>
          compare
        </button>
      </form>
    );
  }
}
