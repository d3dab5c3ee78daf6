// A figure: the words, the stages next to each other with one row in focus, and the arithmetic of the number that is
// pointed at.
import { Component, type ComponentChildren, createRef } from "preact";
import type { Touched } from "./core";
import { Panel, type PanelProps } from "./panel";
import { drawPath } from "./path";
import { type Explained, Reading } from "./reading";
import { type Axis, type Call, columnLabels, placeOf, rowLabels, type Stage } from "./stage";

/** What is in focus: a stage, and the place on each kind of axis; -1 is none. */
export interface Focus {
  stage: string | null;
  query: number;
  key: number;
  /** The column of a stage of vectors. */
  number: number;
  /** The row of a weight matrix. */
  feature: number;
}

export interface Looks {
  focus: Focus;
  /** The cell under the pointer, or the one that has the focus. */
  pointed: string | null;
  /** True if all numbers are shown. */
  all: boolean;
  /** The last stage that is drawn in full while a reader steps through; null is all. */
  step: number | null;
}

/** What a figure draws. */
export interface Content {
  title: string;
  show: string[];
  stages: Map<string, Touched>;
  call: Call;
  hidden: (row: number, column: number) => boolean;
  /** The sum behind a number; null of one that has none. */
  explain: (at: string) => Explained | null;
  /** What stands in the reading while nothing is pointed at. */
  hint: ComponentChildren;
  /** What a panel of a stage has in addition. */
  panel?: (stage: Touched) => Partial<PanelProps>;
  /** What is drawn instead of the numbers of a stage. */
  instead?: (name: string) => ComponentChildren;
  tools?: ComponentChildren;
  below?: ComponentChildren;
  /** False leaves out the words and the steps. */
  plain?: boolean;
}

export interface BaseProps {
  /** The level of the heading. */
  level: number;
  focused?: (focus: Focus) => void;
}

/** With more stages, where there is no room for numbers, cells have colours alone. */
const MANY = 8;

type Hands = preact.HTMLAttributes<HTMLElement>;

export abstract class Figure<Props extends BaseProps, State extends Looks> extends Component<
  Props,
  State
> {
  place = createRef<HTMLDivElement>();
  work = createRef<HTMLDivElement>();
  panels = createRef<HTMLDivElement>();
  seen: Focus | null = null;
  origins: Parameters<typeof drawPath>[2] = [];
  resized = new ResizeObserver(() => this.draw());
  abstract hands: Hands;
  abstract content(): Content;

  /** Put a cell in focus. */
  pin = (at: string) => {
    const [name, row, column] = placeOf(at);
    const stage = this.content().stages.get(name)!;
    const across = stage.columnAxis === "key" ? "key" : "number";
    this.look(() => ({ stage: name, [DOWN[stage.rowAxis]]: row, [across]: column }));
  };

  look(partOf: (now: Focus) => Partial<Focus>) {
    this.setState((now) => {
      const part = partOf(now.focus);
      const focus = { ...now.focus, ...part };
      return { focus, pointed: this.cellOf(focus), step: part.stage ? null : now.step };
    });
  }

  /** The cell that is in focus in its stage. */
  cellOf(focus: Focus): string | null {
    const stage = focus.stage === null ? undefined : this.content().stages.get(focus.stage);
    if (!stage) return null;
    const [row, column] = placeIn(stage, focus);
    return `${stage.name}.${Math.max(0, row)}.${Math.max(0, column)}`;
  }

  names() {
    return this.content().show.filter((name) => name !== "plane");
  }

  /** The stage before or after, with its arithmetic; those that come later wait. */
  step = (by: number) => {
    const names = this.names();
    this.setState(({ focus: now, pointed }) => {
      const name = pointed === null ? now.stage : placeOf(pointed)[0];
      const to = Math.max(0, Math.min(names.length - 1, names.indexOf(name ?? "") + by));
      const focus = { ...now, stage: names[to]! };
      const panel = this.panels.current!.querySelector<HTMLElement>(`[data-stage="${names[to]}"]`);
      this.panels.current!.scrollTo({ left: panel?.offsetLeft ?? 0 });
      const step = to === names.length - 1 ? null : to;
      return { focus, pointed: this.cellOf(focus), step };
    });
  };

  /** Put a query in focus, and the key that it sits on: the last query sits on the last key. */
  toQuery(queryOf: (now: number) => number) {
    const { tokens, source_tokens } = this.content().call;
    this.look(({ query: now }) => {
      const query = Math.max(0, Math.min(tokens.length - 1, queryOf(now)));
      return { query, key: Math.max(0, query + source_tokens.length - tokens.length) };
    });
  }

  draw() {
    if (this.panels.current) drawPath(this.panels.current, this.state.pointed, this.origins);
  }

  override componentDidMount() {
    this.seen = this.state.focus;
    this.resized.observe(this.work.current!);
    this.draw();
  }

  override componentWillUnmount() {
    this.resized.disconnect();
  }

  override componentDidUpdate() {
    this.draw();
    const { focus } = this.state;
    if (focus === this.seen) return;
    this.seen = focus;
    this.props.focused?.(focus);
  }

  override render() {
    const { focus, pointed, all, step } = this.state;
    const content = this.content();
    const { title, show, stages, call, hidden, plain } = content;
    const Heading = `h${this.props.level}` as "h2";
    const found = pointed === null ? null : content.explain(pointed);
    this.origins = found?.arithmetic?.origins ?? [];
    const spot = pointed === null ? null : placeOf(pointed);
    const isMarked = (name: string) => (row: number, column: number) =>
      (spot?.[0] === name && spot[1] === row && spot[2] === column) ||
      this.origins.some(
        (each) =>
          each.stage === name &&
          (each.row === null || each.row === row) &&
          (each.column === null || each.column === column),
      );
    const names = this.names();
    return (
      <div class={`figure ${show.length > MANY && !all ? "many" : ""}`} ref={this.place}>
        {title && <Heading>{title}</Heading>}
        <div class="tools">
          {content.tools}
          {!plain && (
            <span class="steps">
              <button type="button" aria-label="step back" onClick={() => this.step(-1)}>
                ‹
              </button>
              <button type="button" onClick={() => this.step(1)}>
                step ›
              </button>
              <button type="button" aria-pressed={all} onClick={() => this.setState({ all: !all })}>
                numbers
              </button>
            </span>
          )}
        </div>
        {!plain && (
          <Words
            call={call}
            query={focus.query}
            weights={show.includes("weights") ? stages.get("weights") : undefined}
            go={(to) => this.toQuery(() => to)}
          />
        )}
        <div class="work" ref={this.work}>
          <div class="panels" {...this.hands} ref={this.panels}>
            <svg class="paths" aria-hidden="true">
              <path class="row" />
              <path class="from" />
            </svg>
            {show.map((name) => {
              const other = content.instead?.(name);
              if (other) return other;
              const stage = stages.get(name)!;
              return (
                <Panel
                  key={name}
                  stage={stage}
                  rows={rowLabels(stage, call)}
                  columns={columnLabels(stage, call)}
                  focus={placeIn(stage, focus)}
                  all={all}
                  later={step !== null && names.indexOf(name) > step}
                  hidden={stage.columnAxis === "key" ? hidden : null}
                  marked={isMarked(name)}
                  look={(row, column) => this.pin(`${name}.${row}.${column}`)}
                  {...content.panel?.(stage)}
                />
              );
            })}
          </div>
          <section
            class="reading"
            aria-label={[title, "how it comes about"].filter(Boolean).join(": ")}
            tabIndex={0}
          >
            {found ? <Reading {...found} data={call} /> : content.hint}
          </section>
        </div>
        {content.below}
      </div>
    );
  }
}

/** The part of the focus that is the row of a stage. */
const DOWN: Record<Axis, "query" | "key" | "feature"> = {
  query: "query",
  key: "key",
  width: "feature",
};

function placeIn(stage: Stage, focus: Focus): [row: number, column: number] {
  const column = focus[stage.columnAxis === "key" ? "key" : "number"];
  return [
    Math.min(stage.rows - 1, focus[DOWN[stage.rowAxis]]),
    Math.min(stage.columns - 1, column),
  ];
}

interface WordsProps {
  call: Call;
  query: number;
  weights: Touched | undefined;
  go: (to: number) => void;
}

/** The sentence: a word puts its row in focus, and each is shaded by the weight that the row gives it. */
function Words({ call: { tokens, source_tokens }, query, weights, go }: WordsProps) {
  const shares = source_tokens.map((_, key) => weights?.at(query, key) || 0);
  const same =
    tokens.length === source_tokens.length &&
    tokens.every((each, at) => each === source_tokens[at]);
  const share = (at: number) => ({ "--share": `${Math.round(100 * Math.min(1, shares[at]!))}%` });
  return (
    <>
      <ol class="words" aria-label="the words: one is in focus">
        {tokens.map((word, at) => (
          <li key={at}>
            <button
              type="button"
              aria-pressed={at === query}
              style={same ? share(at) : {}}
              onClick={() => go(at)}
            >
              <bdi>{word}</bdi>
            </button>
          </li>
        ))}
      </ol>
      {!same && (
        <ol class="words" aria-label="the words attended to" tabIndex={0}>
          {source_tokens.map((word, at) => (
            <li key={at} class="key" style={share(at)}>
              <bdi>{word}</bdi>
            </li>
          ))}
        </ol>
      )}
    </>
  );
}
