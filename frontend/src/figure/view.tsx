// A figure: panels of stages, what may be touched beside them, and the arithmetic of what is pointed at.
import { Component } from "preact";
import { type Arithmetic, arithmeticOf } from "../views/steps/arithmetic";
import { type CallData, number, type Stage } from "../views/steps/model";
import { Blocks, Predict, TOOLS } from "./controls";
import { entropy, matrix, stageOf, type Touched } from "./core";
import {
  type Action,
  compute,
  type FigureData,
  maskRows,
  ordered,
  placeOf,
  reduce,
  START,
  type State,
  scaleOf,
  write,
} from "./model";
import { Panel } from "./panel";
import { Plane } from "./plane_view";
import { touching } from "./touching";

export interface Drawn {
  state: State;
  stages: Map<string, Touched>;
  old: Map<string, Touched> | null;
  said: string;
}

type Step = Action & { going?: boolean };

export interface ViewProps {
  data: FigureData;
  /** Of its heading, among those of the page. */
  level: number;
  start: State;
  /** Told the state as a text whenever it is another. */
  changed: (state: string) => void;
  /** Given what sets the state from outside. */
  ready: (put: (state: State) => void) => void;
}

interface Looks {
  drawn: Drawn;
  /** What is pointed at, typed into, and reached by Tab in each stage. */
  pointed: string | null;
  typing: { at: string; text: string } | null;
  stops: Record<string, string>;
}

export class Figure extends Component<ViewProps, Looks> {
  place: HTMLElement | null = null;
  told: State;
  flash = 0;
  hands;

  constructor(props: ViewProps) {
    super(props);
    const { data, start, ready } = props;
    this.told = start;
    const drawn = { state: start, stages: all(data, start), old: null, said: "" };
    this.state = { drawn, pointed: null, typing: null, stops: {} };
    ready((state) => this.act({ state }));
    this.hands = touching({
      root: () => this.place!,
      valueAt: (at) => {
        const [stage, row, column] = placeOf(at);
        return this.state.drawn.stages.get(stage)!.at(row, column);
      },
      rows: () => maskRows(data, this.state.drawn.state),
      editable: (at) => data.edit.includes(placeOf(at)[0]) && at !== this.asked(),
      size: (name) => {
        const { rows, columns } = this.state.drawn.stages.get(name)!;
        return [rows, columns];
      },
      set: (at, to, going = false) => this.act({ set: at, to, going }),
      paint: (rows, going = false) => this.act({ mask: rows.join("."), going }),
      type: (typing) => this.setState({ typing }),
      point: (at) =>
        this.setState(({ stops }) => ({ pointed: at, stops: { ...stops, [placeOf(at)[0]]: at } })),
    });
  }

  act = (action: Step) => {
    // Once for all that changes, however often within a drag.
    this.place?.classList.add("flash");
    clearTimeout(this.flash);
    this.flash = setTimeout(() => this.place?.classList.remove("flash"), FLASH);
    this.setState(({ drawn: now }) => {
      const { data } = this.props;
      const state = reduce(now.state, action);
      const stages = all(data, state);
      const said = told(action, ordered(data, state.order), now, stages);
      const old = action.going ? now.old : now.stages;
      return { drawn: { state, stages, old, said } };
    });
  };

  /** The place of the number that is asked for, until it is told. */
  asked() {
    const { predict } = this.props.data;
    return predict && this.state.drawn.state.guess === null ? predict.join(".") : null;
  }

  override componentDidUpdate() {
    const { state } = this.state.drawn;
    if (state === this.told) return;
    this.told = state;
    this.props.changed(write(state));
  }

  override render({ data: came, level }: ViewProps, { drawn, pointed, typing, stops }: Looks) {
    const Heading = `h${level}` as "h2";
    const { state, stages, old } = drawn;
    const { hands, act } = this;
    const data = ordered(came, state.order);
    const asked = this.asked();
    const dropout = state.draws ? state.dropout : null;
    const trace: CallData = { ...TRACE, ...data, scale: scaleOf(data, state), dropout };
    const rows = data.edit.includes("mask") || data.mask ? maskRows(data, state) : null;
    const found =
      pointed !== null && pointed !== asked ? explained(pointed, stages, trace, state) : null;
    // In the colour of its head each number is found again.
    const split = data.edit.includes("heads") ? stages.get("split")!.columns : 0;
    const hues = ({ name, from }: Touched) => {
      if (!split || (name !== "query" && !from)) return null;
      return (row: number, column: number) =>
        Math.floor((from?.(row, column)[1] ?? column) / split) % HUES;
    };
    const spot = pointed === null ? null : placeOf(pointed);
    const origins = found?.arithmetic?.origins ?? [];
    return (
      <div
        class={`figure ${data.edit.includes("softmax") ? "as-bars" : ""}`}
        ref={(place) => {
          this.place = place;
        }}
      >
        {data.title && <Heading>{data.title}</Heading>}
        <div class="tools">
          {Object.entries(TOOLS).map(
            ([name, Tool]) =>
              data.edit.includes(name) && <Tool key={name} {...{ data, state, stages, act }} />,
          )}
          <button type="button" onClick={() => act({ state: START })}>
            reset
          </button>
        </div>
        <div class="work">
          <div class="panels" {...hands}>
            {data.show.map((name) => {
              if (name === "plane") {
                const move = (stage: string, row: number, numbers: number[], going: boolean) =>
                  act({ stage, row, numbers, going });
                return <Plane key={name} data={data} stages={stages} move={move} />;
              }
              const stage = stages.get(name)!;
              const own = origins.filter((each) => each.stage === name);
              return (
                <Panel
                  key={name}
                  stage={stage}
                  old={old?.get(name)}
                  rows={labels(stage, data, true)}
                  columns={labels(stage, data, false)}
                  editable={data.edit.includes(name)}
                  cut={state.cells}
                  mask={stage.columnAxis === "key" ? rows : null}
                  asked={asked}
                  typing={typing}
                  stop={stops[name] ?? `${name}.0.0`}
                  hue={hues(stage)}
                  marked={(row, column) =>
                    (spot?.[0] === name && spot[1] === row && spot[2] === column) ||
                    own.some(
                      (each) =>
                        (each.row === null || each.row === row) &&
                        (each.column === null || each.column === column),
                    )
                  }
                />
              );
            })}
          </div>
          <section
            class={`reading ${found ? "" : "empty"}`}
            aria-label={[data.title, "how it comes about"].filter(Boolean).join(": ")}
            tabIndex={0}
          >
            {stages.size === 1 ? (
              <Blocks data={data} state={state} />
            ) : found ? (
              <Reading {...found} data={data} />
            ) : (
              <p class="quiet">
                {pointed !== null && pointed === asked
                  ? "This is the number that is asked for."
                  : `Point at a number to see how it comes about. ${handy(data)}`}
              </p>
            )}
          </section>
        </div>
        {data.predict && (
          <Predict data={data} state={state} stages={stages} act={act}>
            <Reading {...explained(data.predict.join("."), stages, trace, state)} data={data} />
          </Predict>
        )}
        <p role="status">{drawn.said}</p>
      </div>
    );
  }
}

const HUES = 6;
/** How long what changed is lit, in milliseconds. */
const FLASH = 500;

/** What no figure has, and the arithmetic asks for. */
const TRACE = { sinks: null, renormalised: false, heads: [0] };

const NOTHING: Shown = { lines: [], keys: [], more: "", origins: [] };

function handy({ edit }: FigureData): string {
  const cells = edit.filter((name) => !(name in TOOLS));
  const pairs = edit.includes("mask") ? " Click a cell of the mask to hide or show a key." : "";
  if (cells.length === 0) return pairs.trim();
  return `Numbers of ${cells.join(", ")} can be changed: arrow up and down, drag sideways, or type.${pairs}`;
}

/** Every stage, and the mask as one more. */
function all(data: FigureData, state: State): Map<string, Touched> {
  const found = compute(data, state);
  if (!data.show.includes("mask")) return found;
  const rows = maskRows(data, state);
  const made = matrix(data.tokens.length, data.source_tokens.length, (i, j) => Number(rows[i]![j]));
  return found.set("mask", stageOf("mask", made, made, "● sees, · does not"));
}

function labels(
  stage: Stage,
  data: Pick<FigureData, "tokens" | "source_tokens">,
  ofRows: boolean,
): string[] {
  const axis = ofRows ? stage.rowAxis : stage.columnAxis;
  if (ofRows && stage.name === "split") {
    const { length } = data.tokens;
    return Array.from(
      { length: stage.rows },
      (_, at) => `${Math.floor(at / length)} ${data.tokens[at % length]}`,
    );
  }
  if (axis === "query") return data.tokens;
  if (axis === "key") return data.source_tokens;
  const count = ofRows ? stage.rows : stage.columns;
  return Array.from({ length: count }, (_, at) =>
    ofRows && stage.bias && at === count - 1 ? "bias" : String(at),
  );
}

type Shown = Pick<Arithmetic, "lines" | "keys" | "more" | "origins">;

interface Explained {
  heading: string;
  words: string;
  arithmetic: Shown | null;
}

/** How the number at a place comes about, or that a hand has set it, and what it would be. */
function explained(
  at: string,
  stages: Map<string, Touched>,
  data: CallData,
  state: State,
): Explained {
  const [name, row, column] = placeOf(at);
  const stage = stages.get(name)!;
  const words = data.source_tokens;
  const [from, to] = [labels(stage, data, true)[row]!, labels(stage, data, false)[column]!];
  const arrow = stage.columnAxis === "key" ? "→" : "·";
  if (name === "mask") {
    const sees = stage.at(row, column) ? "sees" : "does not see";
    return { heading: `${from} ${sees} ${words[column]}`, words: "", arithmetic: null };
  }
  if (stage.from) {
    const [token, place] = stage.from(row, column);
    const origins = [{ stage: "query", row: token, column: place }];
    return {
      heading: `${name} ${from} · ${to} = ${number(stage.at(row, column))}`,
      words: `Number ${place} of the query of ${data.tokens[token]}.`,
      arithmetic: { ...NOTHING, origins },
    };
  }
  const heading = `${name} ${from} ${arrow} ${to} = ${number(stage.at(row, column))}`;
  const isGiven =
    stage.formula === "an argument" ||
    /^(the (input|weights|sequence|mean)|of the first|nothing is|not turned)|, turned/.test(
      stage.formula,
    );
  const cut = state.cells.has(at) ? `Set by hand; ${number(stage.made(row, column))} ` : "";
  if (isGiven)
    return { heading, words: cut ? `${cut}is what came.` : `${stage.formula}.`, arithmetic: null };
  // What a hand has set follows from nothing: shown is what the formula would give.
  const known = new Map<string, Stage>(stages);
  if (name === "scores")
    for (const each of ["query", "key"])
      known.set(each, stages.get(`rotated_${each}`) ?? stages.get(each)!);
  if (cut) known.set(name, { ...stage, at: stage.made });
  if (name === "weights" && !cut && (state.shares || state.axis || state.hiding)) {
    const [part, total] = stage.share!(row, column);
    const text = `${number(part)} / ${number(total)} = ${number(part / total)}`;
    return {
      heading,
      words: `${stage.formula}:`,
      arithmetic: { ...NOTHING, lines: [{ text, sum: true }] },
    };
  }
  const arithmetic = arithmeticOf(known, data, 0, name, row, column);
  const told = cut && `${cut}is what ${stage.formula} gives, from which it is cut:`;
  if (name !== "weights" || cut) return { heading, words: told, arithmetic };
  const shares = words.map((_, key) => stage.at(row, key));
  return { heading, words: `Entropy of the row: ${number(entropy(shares))} nats.`, arithmetic };
}

function Reading({ heading, words, arithmetic, data }: Explained & { data: FigureData }) {
  return (
    <>
      <p class="name">{heading}</p>
      {words && <p>{words}</p>}
      {arithmetic?.lines.map((line, at) => (
        <p key={at} class={line.sum ? "sum" : ""}>
          {line.text}
        </p>
      ))}
      {arithmetic && arithmetic.keys.length > 0 && (
        <table class="keys">
          <thead>
            <tr>
              {["key", "score", "exp", "weight"].map((each) => (
                <th key={each} scope="col">
                  {each}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {arithmetic.keys.map((line) => (
              <tr key={line.key} class={line.picked ? "picked" : ""}>
                <th scope="row">
                  <bdi>{data.source_tokens[line.key]}</bdi>
                </th>
                {line.cells.map((each, at) => (
                  <td key={at}>{each}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {arithmetic?.more && <p>{arithmetic.more}</p>}
    </>
  );
}

/** What an action did, in words for those who cannot see it. */
function told(action: Step, data: FigureData, before: Drawn, now: Map<string, Touched>): string {
  if ("state" in action) return action.state === START ? "Everything is as it was." : "";
  if ("mask" in action) {
    const rows = action.mask.split(".").join("");
    return `${[...rows].filter((each) => each === "1").length} of ${rows.length} pairs are visible.`;
  }
  if ("scale" in action || "temperature" in action)
    return `Scores are multiplied by ${number(scaleOf(data, { ...before.state, ...action }))}.`;
  if ("numbers" in action) {
    const word = labels(now.get(action.stage)!, data, true)[action.row];
    return `${action.stage} of ${word} is set to ${action.numbers.map(number).join(", ")}.`;
  }
  if ("order" in action) return `The order is ${data.tokens.join(", ")}.`;
  if ("heads" in action || "transpose" in action || "back" in action) {
    const { formula, rows } = now.get("split")!;
    return `${rows / data.tokens.length} heads: ${formula}; ${now.get("joined")!.formula}.`;
  }
  if ("rotary" in action) return action.rotary ? "Turned by position." : "Not turned.";
  if ("shares" in action || "axis" in action || "hiding" in action)
    return `Weights are ${now.get("weights")!.formula}.`;
  if ("draws" in action) return `${action.draws} drawn.`;
  if (!("set" in action)) return "";
  const [name, row, column] = placeOf(action.set);
  const stage = now.get(name)!;
  const value = number(stage.at(row, column));
  if (action.to === null) return `${name} is ${value}, as ${stage.formula} gives it.`;
  const cut = / · |softmax/.test(stage.formula) ? `, cut from ${stage.formula}` : "";
  return `${name} of ${labels(stage, data, true)[row]}, ${labels(stage, data, false)[column]} is set to ${value}${cut}.`;
}
