// The bundle of the page of a trace: the figure of its stages, with its heads and samples to choose from.
import "./style.css";
import { type ComponentChildren, render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Touched } from "./figure/core";
import style from "./figure/figure.css";
import { explained } from "./figure/reading";
import { shadowOf } from "./figure/shadow";
import { looking } from "./figure/touching";
import { type Arrays, readArrays, stagesOf, type TraceData, wrongOf } from "./figure/trace";
import { type BaseProps, type Content, Figure, type Focus, type Looks } from "./figure/view";
import { draw, widget } from "./page";
import type { Head } from "./payload";
import { useAddress } from "./shared/address";
import { Choice } from "./shared/choice";
import {
  type Fields,
  FLAG,
  placeAmong,
  put,
  readFields,
  signalsOf,
  THEME,
  valuesOf,
  writeFields,
} from "./shared/fields";
import { useKeys } from "./shared/keys";
import { type Theme, useNewLook } from "./shared/look";
import { Shell } from "./shared/shell";
import { type Signal, useSignal } from "./shared/signals";
import type { ViewProps } from "./source";

interface TraceState extends Focus {
  stage: string;
  head: number;
  sample: number;
  theme: Theme | null;
  /** True without title and tools, inside another page. */
  embed: boolean;
}

interface About {
  data: TraceData;
  state: TraceState;
}

const ANY = 1 << 20;

const FIELDS: Fields<TraceState, TraceData> = {
  stage: {
    start: firstStage,
    read: (text, { data }) => (data.stages.some(({ name }) => name === text) ? text : null),
    write: (name, about) => (name === firstStage(about) ? "" : name),
  },
  query: placeAmong(
    ({ data }: About) => data.tokens.length,
    ({ data }) => Math.min(1, data.tokens.length - 1),
  ),
  key: placeAmong(
    ({ data }: About) => data.source_tokens.length,
    ({ data, state }) => Math.min(state.query, data.source_tokens.length - 1),
  ),
  number: placeAmong(() => ANY),
  feature: placeAmong(() => ANY),
  head: oneOfNumbers(({ heads }) => heads),
  sample: oneOfNumbers(({ samples }) => samples),
  theme: THEME,
  embed: FLAG,
};

/** The scores, where the mechanism begins, or the first stage that differs from the definition. */
function firstStage({ data }: About): string {
  const wanted = wrongOf(data) ?? "scores";
  return (data.stages.find(({ name }) => name === wanted) ?? data.stages[0])?.name ?? "";
}

/** A head or a sample by its number; the state has its place among those that the page has. */
function oneOfNumbers(all: (data: TraceData) => number[]) {
  return {
    start: 0,
    read: (text: string, { data }: About) => {
      const place = all(data).findIndex((each) => String(each) === text);
      return place < 0 ? null : place;
    },
    write: (place: number, { data }: About) => (place ? String(all(data)[place]) : ""),
  };
}

const KEYS: [string, string][] = [
  ["← →", "The stage before, and the next"],
  ["↑ ↓", "The query before, and the next"],
  ["?", "This help"],
];

function TracePage({ head, source }: ViewProps) {
  const arrays = useSignal<Arrays | null>(null);
  const failed = useSignal("");
  const root = useRef<HTMLDivElement>(null);
  const figure = useRef<TraceFigure>(null);
  const trace = head as Head<TraceData>;
  const { data } = trace;
  const fields = useMemo(() => signalsOf(readFields(FIELDS, "", data)), [data]);
  const look = useNewLook(fields.theme, useSignal("root"));
  useEffect(() => {
    readArrays(source, trace).then(
      (found) => (arrays.value = found),
      (error: unknown) => (failed.value = String(error)),
    );
  }, [trace, source]);
  const shownBy = (shown: TraceState) => ({
    text: writeFields(FIELDS, shown, data),
    step: shown.stage,
  });
  const state = valuesOf<TraceState>(fields);
  const missing = useAddress(root, shownBy(state), (text) => {
    const missing: string[] = [];
    const next = readFields(FIELDS, text, data, {}, missing);
    put<TraceState>(fields, next);
    const { stage, query, key, number, feature } = next;
    figure.current?.look(() => ({ stage, query, key, number, feature }));
    return { ...shownBy(next), missing };
  });
  useKeys(root, {
    ArrowLeft: () => figure.current?.step(-1),
    ArrowRight: () => figure.current?.step(1),
    ArrowUp: () => figure.current?.toQuery((now) => now - 1),
    ArrowDown: () => figure.current?.toQuery((now) => now + 1),
  });
  const { of, tokens, source_tokens, samples } = data;
  const isEmpty = [samples, tokens, source_tokens].some((axis) => axis.length === 0);
  const note = `${of === head.title ? "" : `${of}; `}${tokens.length} queries × ${source_tokens.length} keys`;
  return (
    <Shell
      root={root}
      title={head.title}
      note={note}
      bare={state.embed}
      keys={KEYS}
      look={look}
      missing={missing}
      skip={["the stages", ".ch-trace-figure"]}
    >
      {failed.value && <p role="alert">{failed.value}</p>}
      <main class="ch-trace">
        {isEmpty ? (
          <Empty data={data} />
        ) : (
          arrays.value && (
            <>
              <p class="ch-trace-parts">
                <Pick name="Head" all={data.heads} at={fields.head} />
                <Pick name="Sample" all={data.samples} at={fields.sample} />
              </p>
              <Shadow theme={look.theme.value}>
                <TraceFigure
                  handle={figure}
                  level={2}
                  head={trace}
                  arrays={arrays.value}
                  state={state}
                  focused={(focus) =>
                    put<TraceState>(fields, { ...focus, stage: focus.stage ?? "" })
                  }
                />
              </Shadow>
            </>
          )
        )}
      </main>
    </Shell>
  );
}

interface StagesProps extends BaseProps {
  /** Given the figure, so that keys and the address can move it. */
  handle: { current: TraceFigure | null };
  head: Head<TraceData>;
  arrays: Arrays;
  state: TraceState;
}

/** The figure of one sample and head; a stage that repeats another is left out. */
class TraceFigure extends Figure<StagesProps, Looks> {
  known: { of: string; stages: Map<string, Touched> } | null = null;
  hands = looking({
    root: () => this.place.current!,
    size: (name) => {
      const { rows, columns } = this.stages().get(name)!;
      return [rows, columns];
    },
    point: (pointed) => this.setState({ pointed }),
    pin: this.pin,
  });

  constructor(props: StagesProps) {
    super(props);
    props.handle.current = this;
    const { stage, query, key, number, feature } = props.state;
    const focus = { stage, query, key, number, feature };
    this.state = { focus, pointed: this.cellOf(focus), all: false, step: null };
  }

  stages() {
    const { head, arrays, state } = this.props;
    const of = `${state.sample} ${state.head}`;
    if (this.known?.of !== of) {
      const found = stagesOf(head, arrays, state.sample, state.head);
      this.known = {
        of,
        stages: new Map([...found].map(([name, each]) => [name, { ...each, made: each.at }])),
      };
    }
    return this.known.stages;
  }

  content(): Content {
    const { head, state } = this.props;
    const call = head.data;
    const stages = this.stages();
    const masked = stages.get("masked_scores");
    return {
      title: "",
      show: [...stages.values()].filter(({ sameAs }) => sameAs === null).map(({ name }) => name),
      stages,
      call,
      hidden: (row, column) => masked?.at(row, column) === -Infinity,
      explain: (at) => explained(at, stages, call, state.head),
      hint: null,
    };
  }
}

interface ShadowProps {
  theme: Theme;
  children: ComponentChildren;
}

/** Its children in a shadow with the style of a figure. */
function Shadow({ theme, children }: ShadowProps) {
  const host = useRef<HTMLDivElement>(null);
  const place = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    host.current!.setAttribute("theme", theme);
    place.current ??= shadowOf(host.current!, style);
    render(children, place.current);
  });
  useLayoutEffect(() => () => render(null, place.current!), []);
  return <div class="ch-trace-figure" ref={host} tabIndex={-1} />;
}

/** The stages of an empty batch, or of no tokens: formulas, and nothing to step through. */
function Empty({ data }: { data: TraceData }) {
  return (
    <>
      <p role="status">There are no numbers to step through: an axis is empty.</p>
      <ol aria-label="Stages">
        {data.stages.map(({ name, shape, formula, same_as }) => (
          <li key={name}>
            <b>{name}</b> <code>[{shape}]</code> {same_as !== null && `the same as ${same_as}: `}
            {formula}
          </li>
        ))}
      </ol>
    </>
  );
}

function Pick({ name, all, at }: { name: string; all: number[]; at: Signal<number> }) {
  if (all.length < 2) return null;
  return (
    <label>
      {name}{" "}
      <Choice
        name={name}
        value={String(at.value)}
        all={Object.fromEntries(all.map((each, place) => [place, String(each)]))}
        onChoice={(to) => (at.value = Number(to))}
      />
    </label>
  );
}

draw(TracePage);

export default widget(TracePage);
