// One stage as a grid of cells, of which a row is drawn again only when what it shows is another.
import { Component } from "preact";
import type { Touched } from "./core";
import { cellNumber, number, places } from "./stage";

/** With more columns cells have colours alone, with more rows no old numbers; the reading has both. */
const MOST = 12;
/** Rows and columns that are drawn at a time; the others are in the blocks before and after. */
const ROWS = 12;
const WEIGHT_ROWS = 8;
const COLUMNS = 64;

/** The colours of heads, told apart by lightness too. */
export const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#888"];

function focusEnd(input: HTMLInputElement | null) {
  if (input === null) return;
  const root = input.getRootNode() as ShadowRoot;
  if (root.activeElement === input) return;
  input.focus();
  input.setSelectionRange(input.value.length, input.value.length);
}

interface RowProps {
  stage: Touched;
  old: Touched | undefined;
  row: number;
  label: string;
  columns: string[];
  /** The first column that is drawn. */
  from: number;
  /** True for the row in focus. */
  focus: boolean;
  /** True if all its numbers are shown, and not those alone that are marked. */
  all: boolean;
  editable: boolean;
  sparse: boolean;
  /** Its numbers are whole, and stand without decimals. */
  whole: boolean;
  /** Neither numbers nor what stood there before has room. */
  small: boolean;
  top: number;
  /** Of its cells: those that a hand has set, and those that are marked, one sign each. */
  cut: string;
  marks: string;
  mask: string;
  /** The colour of each cell, a digit each; "" for none. */
  hues: string;
  /** The places of the one that is asked for, that is typed into, that Tab reaches; -1 is none. */
  asked: number;
  typing: number;
  text: string;
  stop: number;
}

/** A row of cells, which is worked out again only when a number or a mark of it is another. */
class Row extends Component<RowProps> {
  override shouldComponentUpdate(next: RowProps) {
    const now = this.props;
    const names = Object.keys(next) as (keyof RowProps)[];
    const plain = (each: unknown) => typeof each !== "object" && each !== undefined;
    if (names.some((name) => plain(now[name]) && now[name] !== next[name])) return true;
    if (next.columns.some((each, j) => each !== now.columns[j])) return true;
    const same = (one: Touched | undefined, other: Touched | undefined) =>
      one === other ||
      next.columns.every((_, j) =>
        Object.is(one?.at(next.row, next.from + j), other?.at(next.row, next.from + j)),
      );
    return !same(now.stage, next.stage) || !same(now.old, next.old);
  }

  override render(props: RowProps) {
    return (
      <tr class={props.focus ? "focus" : ""}>
        <th scope="row" title={props.label}>
          <bdi>{props.label}</bdi>
        </th>
        {props.columns.map((_, place) => cellOf(props, place))}
      </tr>
    );
  }
}

/** The cell at a place of a row. */
function cellOf(props: RowProps, place: number) {
  const { stage, old, row, editable, mask, whole } = props;
  const [j, column, pairs] = [props.from + place, props.columns[place], stage.name === "mask"];
  const say = whole ? (value: number) => `${value}`.replace("-", "−") : cellNumber;
  const value = stage.at(row, j);
  const waits = j === props.asked;
  const typing = j === props.typing;
  const before = old === undefined ? value : old.at(row, j);
  const changed = !Object.is(before, value) && !waits;
  const hidden = !pairs && mask[place] === "0";
  const marked = props.marks[place] === "1";
  const cut = props.cut[place] === "1";
  const blank = hidden && (value === 0 || value === -Infinity);
  const text = waits ? "?" : pairs ? (value ? "●" : "·") : blank ? "" : say(value);
  /** The number to four decimals, for screen readers. */
  const spoken = waits ? "?" : pairs || whole ? text : number(value);
  const what = pairs ? `${props.label} sees ${column}` : `${stage.name} ${props.label}, ${column}`;
  const label = hidden ? `${what}, hidden` : what;
  const share = waits || blank || !Number.isFinite(value) ? 0 : Math.abs(value / props.top);
  const isTouched = editable && !waits;
  const classes = [
    "cell",
    isTouched && (pairs ? "pair" : "number"),
    changed && "changed",
    hidden && "hidden",
    cut && "cut",
    waits && "asked",
    marked && "marked",
    stage.expected && !isNear(value, stage.expected.at(row, j)) && "wrong",
    props.hues && `hue${props.hues[place]}`,
    value < 0 && Number.isFinite(value) && "below",
  ];
  const own = {
    "data-at": `${stage.name}.${row}.${j}`,
    tabIndex: j === props.stop && !typing ? 0 : -1,
    class: classes.filter(Boolean).join(" "),
    style: {
      "--share": `${Math.round(100 * Math.min(1, share))}%`,
      "--hue": props.hues && HUES[Number(props.hues[place])]!,
    },
  };
  const isShown = pairs || waits || (!props.small && (props.all || marked || cut || changed));
  // What stood here before the last edit, where that was something else.
  const beside = changed && !pairs && !props.sparse && say(before);
  const content = typing ? (
    <input defaultValue={props.text} inputMode="decimal" aria-label={label} ref={focusEnd} />
  ) : (
    <>
      <span>{isShown ? text : ""}</span>
      {beside && beside !== text && <small>{beside}</small>}
    </>
  );
  if (!isTouched) {
    return (
      <td key={j} {...own} aria-label={`${label}: ${spoken}`}>
        {content}
      </td>
    );
  }
  const role = pairs
    ? ({ role: "switch", "aria-checked": value === 1 ? "true" : "false" } as const)
    : ({ role: "spinbutton", "aria-valuenow": value, "aria-valuetext": spoken } as const);
  // The element stays while a number is typed into it, so that it keeps the focus afterwards.
  return (
    <td key={j}>
      <span {...own} {...(!typing && { ...role, "aria-label": label })}>
        {content}
      </span>
    </td>
  );
}

/** True if two numbers are equal to four decimals. */
function isNear(one: number, other: number): boolean {
  return Object.is(one, other) || Math.abs(one - other) < 5e-5;
}

/** The block of at most `most` places that has this one. */
function blockOf(place: number, count: number, most: number): number[] {
  const from = Math.max(0, Math.min(Math.floor(place / most) * most, count - most));
  return places(Math.min(most, count)).map((at) => from + at);
}

export interface PanelProps {
  stage: Touched;
  old?: Touched | undefined;
  rows: string[];
  columns: string[];
  editable?: boolean;
  /** The row and the column in focus; -1 is none. */
  focus: [row: number, column: number];
  /** True if all numbers are shown, and not those of the row in focus alone. */
  all: boolean;
  /** True for the stages that *step* has not reached. */
  later: boolean;
  /** Numbers that a hand has set. */
  cut?: ReadonlyMap<string, number>;
  /** True if the mask hides the pair; null for a stage that is not over query and key. */
  hidden: ((row: number, column: number) => boolean) | null;
  /** The place that waits for a guess. */
  asked?: string | null;
  typing?: { at: string; text: string } | null;
  /** The colour of a cell, where that is no matter of its number. */
  hue?: ((row: number, column: number) => number) | null;
  marked: (row: number, column: number) => boolean;
  /** Puts the row or the column in focus. */
  look: (row: number, column: number) => void;
}

const NO_CELLS: ReadonlyMap<string, number> = new Map();

export function Panel(props: PanelProps) {
  const { stage, rows, columns, hidden, marked } = props;
  const { editable = false, cut = NO_CELLS, asked = null, typing = null, hue = null } = props;
  const [row, column] = props.focus;
  const isMask = stage.name === "mask";
  const rowsAtOnce = stage.rowAxis === "width" ? WEIGHT_ROWS : ROWS;
  const shownRows = blockOf(row, stage.rows, isMask ? stage.rows : rowsAtOnce);
  const shownColumns = blockOf(column, stage.columns, isMask ? stage.columns : COLUMNS);
  const small = shownColumns.length > MOST;
  const low = shownRows.length > MOST;
  // Of another shape, as with another number of heads, no number stood here before.
  const same = props.old?.rows === stage.rows && props.old.columns === stage.columns;
  // Weights in one language of colour, those that dropout leaves too.
  const top = stage.name.endsWith("weights") ? 1 : stage.largest || 1;
  // Of numbers that only move, the whole ones stand as such.
  const whole =
    hue !== null &&
    rows.every((_, i) => columns.every((_, j) => Number.isSafeInteger(stage.at(i, j))));
  const columnIn = (at: string | undefined | null, row: number) => {
    const start = `${stage.name}.${row}.`;
    return at?.startsWith(start) ? Number(at.slice(start.length)) : -1;
  };
  const signs = (is: (column: number) => boolean) =>
    shownColumns.map((j) => (is(j) ? "1" : "0")).join("");
  const own = [...cut.keys()].some((at) => at.startsWith(`${stage.name}.`));
  return (
    <section
      class={`panel ${small ? "small" : ""} ${low ? "low" : ""} ${props.later ? "later" : ""}`}
      data-stage={stage.name}
      data-rows={stage.rowAxis}
      style={{ "--columns": shownColumns.length }}
    >
      <p class="name">
        {stage.name} <span title={stage.formula}>{stage.formula}</span>
      </p>
      <div class="scroll">
        <table aria-label={stage.name}>
          <thead>
            <tr>
              <td />
              {shownColumns.map((j) => (
                <th key={j} scope="col" title={columns[j]}>
                  {small ? j : <bdi>{columns[j]}</bdi>}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shownRows.map((i) => (
              <Row
                key={i}
                stage={stage}
                old={same ? props.old : undefined}
                row={i}
                label={rows[i]!}
                columns={shownColumns.map((j) => columns[j]!)}
                from={shownColumns[0] ?? 0}
                focus={i === row}
                all={props.all || i === row || hue !== null}
                editable={editable}
                sparse={small || low}
                small={small}
                top={top}
                cut={own ? signs((j) => cut.has(`${stage.name}.${i}.${j}`)) : ""}
                marks={signs((j) => marked(i, j))}
                mask={hidden ? signs((j) => !hidden(i, j)) : ""}
                whole={whole}
                hues={hue ? shownColumns.map((j) => hue(i, j)).join("") : ""}
                asked={columnIn(asked, i)}
                typing={columnIn(typing?.at, i)}
                text={columnIn(typing?.at, i) < 0 ? "" : typing!.text}
                stop={i === Math.max(0, row) ? Math.max(0, column) : -1}
              />
            ))}
          </tbody>
        </table>
      </div>
      <Blocks
        what="rows"
        shown={shownRows}
        count={stage.rows}
        go={(to) => props.look(to, column)}
      />
      <Blocks
        what="columns"
        shown={shownColumns}
        count={stage.columns}
        go={(to) => props.look(row, to)}
      />
    </section>
  );
}

interface BlocksProps {
  what: string;
  shown: number[];
  count: number;
  go: (to: number) => void;
}

/** Which rows or columns are drawn, where these are not all, and buttons for the others. */
function Blocks({ what, shown, count, go }: BlocksProps) {
  if (shown.length === count) return null;
  const [first, last] = [shown[0]!, shown.at(-1)!];
  const button = (sign: string, place: string, to: number) => (
    <button
      type="button"
      aria-label={`${what} ${place} these`}
      disabled={to < 0 || to >= count}
      onClick={() => go(to)}
    >
      {sign}
    </button>
  );
  return (
    <p class="blocks quiet">
      {button("‹", "before", first - 1)} {what} {first} to {last} of {count}{" "}
      {button("›", "after", last + 1)}
    </p>
  );
}
