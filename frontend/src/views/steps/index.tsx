// A trace: every stage from left to right, and how the number under the pointer came about.
import "./steps.css";
import { computed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Head } from "../../payload";
import { css } from "../../shared/colour";
import { Shell } from "../../shared/shell";
import { type Theme, theme } from "../../shared/theme";
import type { ViewProps } from "../../source";
import { type Arithmetic, arithmeticOf } from "./arithmetic";
import { Graph } from "./graph";
import { type Arrays, readArrays, stagesOf, type TraceData } from "./model";
import { type Marks, Panel, Token } from "./panel";
import { makeState, type State, TOKENS } from "./state";

const KEYS: [string, string][] = [
  ["← →", "The stage before, and the next"],
  ["↑ ↓", "The query before, and the next; in a weight matrix the row"],
  ["Shift ← →", "The number to the left, and to the right, in the row"],
  ["Home End", "The first query, and the last"],
  ["?", "This help"],
];

export function Steps({ head, source }: ViewProps) {
  const arrays = useSignal<Arrays | null>(null);
  const failed = useSignal("");
  const trace = head as Head<TraceData>;
  useEffect(() => {
    readArrays(source, trace).then(
      (found) => (arrays.value = found),
      (error: unknown) => (failed.value = String(error)),
    );
  }, [trace, source]);
  const { of, tokens, source_tokens } = trace.data;
  const note = `${of === head.title ? "" : `${of}; `}${tokens.length} queries × ${source_tokens.length} keys`;
  return (
    <Shell title={head.title} note={note} keys={KEYS}>
      {failed.value && <p role="alert">{failed.value}</p>}
      {isEmpty(trace.data) ? (
        <Empty data={trace.data} />
      ) : (
        arrays.value && <Trace head={trace} arrays={arrays.value} />
      )}
    </Shell>
  );
}

function isEmpty({ samples, tokens, source_tokens }: TraceData): boolean {
  return [samples, tokens, source_tokens].some((axis) => axis.length === 0);
}

/** The stages of an empty batch, or of no tokens: shapes and formulas, and nothing to step through. */
function Empty({ data }: { data: TraceData }) {
  return (
    <main class="ch-steps">
      <p role="status">There are no numbers to step through: an axis is empty.</p>
      <ol class="ch-st-empty" aria-label="Stages">
        {data.steps.map(({ name, shape, formula, same_as }) => (
          <li key={name}>
            <b>{name}</b> <code>[{shape}]</code> {same_as !== null && `the same as ${same_as}: `}
            {formula}
          </li>
        ))}
      </ol>
    </main>
  );
}

function Trace({ head, arrays }: { head: Head<TraceData>; arrays: Arrays }) {
  const { data } = head;
  const state = useMemo(() => makeState(data, firstStage(data)), [data]);
  const stages = useMemo(
    () => computed(() => stagesOf(head, arrays, state.parts.value.sample, state.parts.value.head)),
    [head, arrays, state],
  );
  const byName = useMemo(
    () => computed(() => new Map(stages.value.map((each) => [each.name, each]))),
    [stages],
  );
  const shown = useMemo(
    () => computed(() => state.hovered.value ?? state.cellOf(stages.value[state.stage.value]!)),
    [state, stages],
  );
  const told = useMemo(
    () =>
      computed(() => {
        const { stage, row, column } = shown.value;
        return arithmeticOf(byName.value, data, state.head.value, stage, row, column);
      }),
    [byName, data, state, shown],
  );
  // Of the last query, since a cache has what the first ones are made of.
  const operands = useMemo(
    () =>
      computed(
        () =>
          new Map(
            stages.value.map(({ name, rows }) => {
              const { origins } = arithmeticOf(
                byName.value,
                data,
                state.head.value,
                name,
                rows - 1,
                0,
              );
              return [name, origins.map((each) => each.stage)] as const;
            }),
          ),
      ),
    [stages, byName, data, state],
  );
  const marks = useMemo(
    () => computed<Marks>(() => ({ cell: shown.value, origins: told.value.origins })),
    [shown, told],
  );
  const root = useRef<HTMLElement>(null);
  const strip = useRef<HTMLDivElement>(null);
  const graph = useRef<HTMLDivElement>(null);
  const count = stages.value.length;
  const go = (to: number) => {
    state.stage.value = Math.max(0, Math.min(to, count - 1));
    state.hovered.value = null;
  };
  useKeys(root, (event) => {
    const name = `${event.shiftKey ? "Shift " : ""}${event.key}`;
    const current = stages.value[state.stage.value]!;
    const actions: Record<string, () => void> = {
      ArrowLeft: () => go(state.stage.value - 1),
      ArrowRight: () => go(state.stage.value + 1),
      ArrowUp: () => state.down(current, -1),
      ArrowDown: () => state.down(current, 1),
      "Shift ArrowLeft": () => state.along(current, -1),
      "Shift ArrowRight": () => state.along(current, 1),
      Home: () => state.setQuery(0),
      End: () => state.setQuery(state.queries - 1),
    };
    const action = actions[name];
    if (action === undefined) return false;
    action();
    return true;
  });
  const current = stages.value[state.stage.value]!;
  const made = operands.value.get(current.name)!;
  // The stage that is looked at stands in the middle of the strip, with what it is made of.
  // biome-ignore lint/correctness/useExhaustiveDependencies: the strip is as wide as its stages.
  useEffect(() => {
    const place = strip.current!;
    const panels = [...place.children] as HTMLElement[];
    const panel = panels[state.stage.value]!;
    const group = panels.filter((_, at) => made.includes(stages.value[at]!.name));
    const [first, last] = [
      Math.min(...[panel, ...group].map((each) => each.offsetLeft)),
      panel.offsetLeft + panel.clientWidth,
    ];
    const spare = place.clientWidth - (last - first);
    const from =
      spare > 0
        ? first - spare / 2
        : Math.min(panel.offsetLeft - 16, last + 16 - place.clientWidth);
    place.scrollLeft = from - place.offsetLeft;
    const chip = graph.current!.querySelector<HTMLElement>("li:has([aria-current])")!;
    graph.current!.scrollLeft = chip.offsetLeft - graph.current!.clientWidth / 3;
  }, [state.stage.value, stages.value]);
  const masked = byName.value.get("masked_scores")!;
  return (
    <main class="ch-steps" ref={root}>
      <Controls data={data} state={state} />
      <nav class="ch-st-rail" aria-label="Stages">
        <button
          type="button"
          class="ch-button"
          onClick={() => go(state.stage.value - 1)}
          disabled={state.stage.value === 0}
          aria-keyshortcuts="ArrowLeft"
          aria-label="The stage before"
        >
          ‹
        </button>
        <Graph
          stages={stages.value}
          operands={operands.value}
          current={state.stage.value}
          go={go}
          at={graph}
        />
        <button
          type="button"
          class="ch-button"
          onClick={() => go(state.stage.value + 1)}
          disabled={state.stage.value === count - 1}
          aria-keyshortcuts="ArrowRight"
          aria-label="The next stage"
        >
          ›
        </button>
      </nav>
      <div class="ch-st-beside">
        <Told told={told.value} data={data} />
        <div
          class="ch-st-strip"
          ref={strip}
          tabIndex={0}
          role="region"
          aria-label="Stages with their numbers"
        >
          {stages.value.map((stage, at) => (
            <Panel
              key={stage.name}
              stage={stage}
              data={data}
              state={state}
              masked={masked}
              marks={marks}
              current={at === state.stage.value}
              order={
                at === state.stage.value
                  ? 2
                  : made.includes(stage.name)
                    ? 1
                    : at < state.stage.value
                      ? 0
                      : 3
              }
              onCurrent={() => go(at)}
            />
          ))}
        </div>
      </div>
      <p class="ch-st-legend">
        <span class="ch-st-swatch ch-st-above" /> above 0 <span class="ch-st-swatch ch-st-below" />{" "}
        below 0, the stronger the farther from it{" "}
        <span class="ch-st-swatch" style={{ background: scale(theme.value) }} /> weights from 0 to 1
        {state.keys > TOKENS && ", by their root"} <span class="ch-st-swatch ch-st-hidden" /> hidden
        by the mask
      </p>
    </main>
  );
}

/** The scores are where the mechanism begins; what stands before them is what it works on. */
function firstStage(data: TraceData): number {
  return Math.max(
    0,
    data.steps.findIndex((step) => step.name === "scores"),
  );
}

function scale(theme: Theme): string {
  const stops = Array.from({ length: 9 }, (_, at) => css(at / 8, theme));
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

function Controls({ data, state }: { data: TraceData; state: State }) {
  const query = data.tokens[state.query.value]!;
  return (
    <div class="ch-st-controls">
      <label class="ch-st-control">
        <span>Query</span>
        <input
          type="range"
          min={0}
          max={state.queries - 1}
          value={state.query.value}
          aria-valuetext={query}
          onInput={(event) => state.setQuery(Number(event.currentTarget.value))}
        />
        <output>
          <Token label={query} />
        </output>
      </label>
      {state.keys > TOKENS && (
        <label class="ch-st-control">
          <span>Keys</span>
          <input
            type="range"
            min={0}
            max={state.keys - TOKENS}
            value={state.keyFrom.value}
            aria-valuetext={`from ${data.source_tokens[state.keyFrom.value]}`}
            onInput={(event) => (state.keyFrom.value = Number(event.currentTarget.value))}
          />
          <output>
            {state.keyFrom.value} to {state.keyFrom.value + TOKENS - 1} of {state.keys}
          </output>
        </label>
      )}
      <Choice
        name="Head"
        all={data.heads}
        value={state.head.value}
        onChoice={(to) => (state.head.value = to)}
      />
      <Choice
        name="Sample"
        all={data.samples}
        value={state.sample.value}
        onChoice={(to) => (state.sample.value = to)}
      />
    </div>
  );
}

interface ChoiceProps {
  name: string;
  all: number[];
  value: number;
  onChoice: (to: number) => void;
}

function Choice({ name, all, value, onChoice }: ChoiceProps) {
  if (all.length < 2) return null;
  return (
    <label class="ch-st-control">
      <span>{name}</span>
      <select
        class="ch-button"
        value={value}
        onChange={(event) => onChoice(Number(event.currentTarget.value))}
      >
        {all.map((each, at) => (
          <option key={each} value={at}>
            {each}
          </option>
        ))}
      </select>
    </label>
  );
}

function Told({ told, data }: { told: Arithmetic; data: TraceData }) {
  return (
    <section
      class="ch-st-told"
      aria-live="polite"
      aria-label="How this number comes about"
      tabIndex={0}
    >
      <h2>
        <span class="ch-st-told-stage">{told.stage}</span> <Token label={told.row} /> {told.arrow}{" "}
        {told.ofKey ? <Token label={told.column} /> : told.column} = <output>{told.value}</output>
      </h2>
      <div class="ch-st-told-parts">
        <div>
          {told.lines.map((line, at) => (
            <p key={at} class={line.sum ? "ch-st-sum" : undefined}>
              {line.text}
            </p>
          ))}
        </div>
        {told.keys.length > 0 && <Shares told={told} data={data} />}
      </div>
    </section>
  );
}

/** What softmax makes of every key. */
function Shares({ told, data }: { told: Arithmetic; data: TraceData }) {
  return (
    <table class="ch-st-shares">
      <thead>
        <tr>
          {["key", "score", "exp", "weight"].map((name) => (
            <th key={name} scope="col">
              {name}
            </th>
          ))}
          <td></td>
        </tr>
      </thead>
      <tbody>
        {told.keys.map((each) => (
          <tr key={each.key} class={each.picked ? "ch-st-this" : undefined}>
            <th scope="row">
              <Token label={data.source_tokens[each.key]!} />
            </th>
            {each.cells.map((cell, place) => (
              <td key={place}>{cell}</td>
            ))}
            <td class="ch-st-bar">
              <span style={{ width: `${100 * each.share}%` }} />
            </td>
          </tr>
        ))}
      </tbody>
      {told.more && <caption>{told.more}</caption>}
    </table>
  );
}

/** Keys of the whole page where the view is all of it; in a notebook only of what has the focus. */
function useKeys(root: { current: HTMLElement | null }, act: (event: KeyboardEvent) => boolean) {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const place = root.current!.closest("#clearhead-page") === null ? root.current! : document;
    const onKey = (event: Event) => {
      const key = event as KeyboardEvent;
      const target = key.target as Element;
      const own = target.closest("input, select, textarea, dialog") !== null;
      if (own || key.ctrlKey || key.metaKey || key.altKey) return;
      if (latest.current(key)) key.preventDefault();
    };
    place.addEventListener("keydown", onKey);
    return () => place.removeEventListener("keydown", onKey);
  }, [root]);
}
