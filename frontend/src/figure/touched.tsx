// A figure whose numbers are touched: every stage is its formula, and then what a hand has set.
import { Predict, TOOLS } from "./controls";
import { entropy, matrix, stageOf, type Touched } from "./core";
import {
  type Action,
  compute,
  type FigureData,
  maskRows,
  ordered,
  reduce,
  START,
  type State,
  scaleOf,
  write,
} from "./model";
import { HUES } from "./panel";
import { Plane } from "./plane_view";
import { type Explained, explained, headingOf, NOTHING, Reading } from "./reading";
import { type Call, columnLabels, number, placeOf, rowLabels, type Stage } from "./stage";
import { touching } from "./touching";
import { type BaseProps, type Content, Figure, type Focus, type Looks } from "./view";

export interface Drawn {
  state: State;
  stages: Map<string, Touched>;
  old: Map<string, Touched> | null;
  said: string;
}

type Step = Action & { going?: boolean };

interface Props extends BaseProps {
  data: FigureData;
  start: State;
  /** Called with the state as a text whenever it is another. */
  changed: (state: string) => void;
  /** Called with what sets the state from outside. */
  ready: (put: (state: State) => void) => void;
}

interface TouchedLooks extends Looks {
  drawn: Drawn;
  typing: { at: string; text: string } | null;
}

export class TouchedFigure extends Figure<Props, TouchedLooks> {
  told: State;
  lit: Drawn["old"] = null;
  hands;

  constructor(props: Props) {
    super(props);
    const { data, start, ready } = props;
    this.told = start;
    const drawn = { state: start, stages: allStages(data, start), old: null, said: "" };
    const focus = firstFocus(data);
    this.state = { drawn, focus, pointed: null, typing: null, all: false, step: null };
    ready((state) => this.act({ state }));
    const stageOf = (name: string) => this.state.drawn.stages.get(name)!;
    this.hands = touching({
      root: () => this.place.current!,
      valueAt: (at) => {
        const [stage, row, column] = placeOf(at);
        return stageOf(stage).at(row, column);
      },
      rows: () => maskRows(data, this.state.drawn.state),
      editable: (at) => data.edit.includes(placeOf(at)[0]) && at !== this.asked(),
      size: (name) => [stageOf(name).rows, stageOf(name).columns],
      set: (at, to, going = false) => this.act({ set: at, to, going }),
      paint: (rows, going = false) => this.act({ mask: rows.join("."), going }),
      type: (typing) => this.setState({ typing }),
      point: (pointed) => this.setState({ pointed }),
      pin: this.pin,
    });
  }

  act = (action: Step) => {
    this.setState(({ drawn: now }) => {
      const { data } = this.props;
      const state = reduce(now.state, action);
      const stages = allStages(data, state);
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
    super.componentDidUpdate();
    const { state, old } = this.state.drawn;
    if (old !== this.lit) light(this.place.current!);
    this.lit = old;
    if (state === this.told) return;
    this.told = state;
    this.props.changed(write(state));
  }

  content(): Content {
    const { drawn, focus, pointed, typing } = this.state;
    const { state, stages, old, said } = drawn;
    const { act } = this;
    const data = ordered(this.props.data, state.order);
    const { edit, predict, show, title } = data;
    const asked = this.asked();
    const dropout = state.draws ? state.dropout : null;
    const call = { ...CALL, ...data, scale: scaleOf(data, state), dropout };
    const rows = edit.includes("mask") || data.mask ? maskRows(data, state) : null;
    // In the colour of its head each number is found again.
    const split = edit.includes("heads") ? stages.get("split")!.columns : 0;
    const hues = ({ name, from }: Touched) => {
      if (!split || (name !== "query" && !from)) return null;
      return (row: number, column: number) =>
        Math.floor((from?.(row, column)[1] ?? column) / split) % HUES.length;
    };
    const tools = { data, state, stages, act };
    const plain = stages.size === 1;
    return {
      title,
      show,
      stages,
      call,
      plain,
      hidden: (row, column) => rows?.[row]?.[column] === "0",
      explain: (at) => (plain || at === asked ? null : touchedReading(at, stages, call, state)),
      hint: (
        <p class="quiet">
          {pointed !== null && pointed === asked
            ? "This is the number that is asked for."
            : `${plain ? "" : "Point at a number to see how it comes about. "}${handy(data)}`}
        </p>
      ),
      panel: (stage) => ({
        old: old?.get(stage.name),
        editable: edit.includes(stage.name),
        cut: state.cells,
        asked,
        typing,
        hue: hues(stage),
      }),
      instead: (name) =>
        name === "plane" && (
          <Plane
            key={name}
            data={data}
            stages={stages}
            row={focus.query}
            move={(stage, row, numbers, going) => act({ stage, row, numbers, going })}
          />
        ),
      tools: (
        <>
          {Object.entries(TOOLS).map(
            ([name, Tool]) => edit.includes(name) && <Tool key={name} {...tools} />,
          )}
          <button type="button" onClick={() => act({ state: START })}>
            reset
          </button>
        </>
      ),
      below: (
        <>
          {predict && (
            <Predict {...tools}>
              <Reading {...touchedReading(predict.join("."), stages, call, state)} data={call} />
            </Predict>
          )}
          <p role="status">{said}</p>
        </>
      ),
    };
  }
}

/** Light what changed, one stage after the other. */
function light(place: HTMLElement) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const [order, panel] of place.querySelectorAll(".panel").entries())
    for (const cell of panel.querySelectorAll(".changed"))
      cell.animate(LIT, { duration: 600, delay: 160 * order, fill: "backwards" });
}

const LIT = [
  { offset: 0, background: "var(--raised)", color: "transparent" },
  { offset: 0.4, background: "var(--mark)" },
];

/** What no figure has, and the arithmetic asks for. */
const CALL = { sinks: null, heads: [0] };

function firstFocus({ predict, tokens, source_tokens }: FigureData): Focus {
  const query = Math.min(predict?.[1] ?? 1, tokens.length - 1);
  const key = Math.max(0, query + source_tokens.length - tokens.length);
  return { stage: null, query, key, number: 0, feature: -1 };
}

/** How the number at a place comes about, or that a hand has set it, and what it would be. */
function touchedReading(
  at: string,
  stages: Map<string, Touched>,
  data: Call,
  state: State,
): Explained {
  const [name, row, column] = placeOf(at);
  const stage = stages.get(name)!;
  const words = data.source_tokens;
  const [from, to] = [rowLabels(stage, data)[row]!, columnLabels(stage, data)[column]!];
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
  const heading = headingOf(stage, row, column, data);
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
  const arithmetic = explained(at, known, data).arithmetic!;
  const told = cut && `${cut}is what ${stage.formula} gives, from which it is cut:`;
  if (name !== "weights" || cut) return { heading, words: told, arithmetic };
  const shares = words.map((_, key) => stage.at(row, key));
  return { heading, words: `Entropy of the row: ${number(entropy(shares))} nats.`, arithmetic };
}

function handy({ edit }: FigureData): string {
  const cells = edit.filter((name) => !(name in TOOLS));
  const pairs = edit.includes("mask") ? " Click a cell of the mask to hide or show a key." : "";
  if (cells.length === 0) return pairs.trim();
  return `Numbers of ${cells.join(", ")} can be changed: arrow up and down, drag sideways, or type.${pairs}`;
}

/** Every stage, and the mask as one more. */
function allStages(data: FigureData, state: State): Map<string, Touched> {
  const found = compute(data, state);
  if (!data.show.includes("mask")) return found;
  const rows = maskRows(data, state);
  const made = matrix(data.tokens.length, data.source_tokens.length, (i, j) => Number(rows[i]![j]));
  return found.set("mask", stageOf("mask", made, made, "● sees, · does not"));
}

/** What an action did, in words for those who cannot see it. */
function told(action: Step, data: FigureData, before: Drawn, now: Map<string, Touched>): string {
  if ("state" in action) return action.state === START ? "Everything is as it was." : "";
  if ("mask" in action) {
    const rows = action.mask.split(".").join("");
    return `${[...rows].filter((each) => each === "1").length} of ${rows.length} pairs are visible.`;
  }
  if ("numbers" in action) {
    const word = rowLabels(now.get(action.stage)!, data)[action.row];
    return `${action.stage} of ${word} is set to ${action.numbers.map(number).join(", ")}.`;
  }
  if ("order" in action) return `The order is ${data.tokens.join(", ")}.`;
  if (!("set" in action)) {
    const other = [...now.values()].findLast(
      ({ name, formula }) => formula !== before.stages.get(name)?.formula,
    );
    return other ? `${other.name} is ${other.formula}.` : "";
  }
  const [name, row, column] = placeOf(action.set);
  const stage = now.get(name)!;
  const value = number(stage.at(row, column));
  if (action.to === null) return `${name} is ${value}, as ${stage.formula} gives it.`;
  const cut = / · |softmax/.test(stage.formula) ? `, cut from ${stage.formula}` : "";
  return `${name} of ${rowLabels(stage, data)[row]}, ${columnLabels(stage, data)[column]} is set to ${value}${cut}.`;
}
