// A trace: a stage beside what it is made of, and how the number under the pointer came about.

import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Head } from "../../payload";
import { useAddress } from "../../shared/address";
import { Choice } from "../../shared/choice";
import { css } from "../../shared/colour";
import { put, readFields, valuesOf, writeFields } from "../../shared/fields";
import { useKeys } from "../../shared/keys";
import { type Theme, useLook, useNewLook } from "../../shared/look";
import { Shell } from "../../shared/shell";
import { computed, type Signal, useSignal } from "../../shared/signals";
import type { ViewProps } from "../../source";
import { type Arithmetic, arithmeticOf, origin } from "./arithmetic";
import { changed } from "./changed";
import { Graph } from "./graph";
import { type Arrays, readArrays, type Stage, stagesOf, type TraceData, wrongOf } from "./model";
import { type Marks, Panel, Token } from "./panel";
import { FIELDS, makeState, type State, type StepsState, TOKENS } from "./state";

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
  const root = useRef<HTMLDivElement>(null);
  const trace = head as Head<TraceData>;
  const { data } = trace;
  const state = useMemo(() => makeState(data, readFields(FIELDS, "", data)), [data]);
  const look = useNewLook(state.theme, useSignal("root"));
  useEffect(() => {
    readArrays(source, trace).then(
      (found) => (arrays.value = found),
      (error: unknown) => (failed.value = String(error)),
    );
  }, [trace, source]);
  const shownBy = (shown: StepsState) => ({
    text: writeFields(FIELDS, shown, data),
    step: shown.stage,
  });
  const { missing } = useAddress(root, shownBy(valuesOf<StepsState>(state.fields)), (text) => {
    const missing: string[] = [];
    const next = readFields(FIELDS, text, data, {}, missing);
    put<StepsState>(state.fields, next);
    state.setQuery(next.query);
    state.setKey(next.key);
    return { ...shownBy(next), missing };
  });
  const { of, tokens, source_tokens } = data;
  const note = `${of === head.title ? "" : `${of}; `}${tokens.length} queries × ${source_tokens.length} keys`;
  return (
    <Shell
      root={root}
      title={head.title}
      note={note}
      bare={state.embed.value}
      keys={KEYS}
      look={look}
      missing={missing}
      skip={["the numbers", "section:has([aria-current]) .ch-st-scroll"]}
    >
      {failed.value && <p role="alert">{failed.value}</p>}
      {isEmpty(data) ? (
        <Empty data={data} />
      ) : (
        arrays.value && <Trace head={trace} arrays={arrays.value} state={state} />
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

function Trace({ head, arrays, state }: { head: Head<TraceData>; arrays: Arrays; state: State }) {
  const { data } = head;
  const { stages, byName, current, shown, told } = useMemo(() => {
    const stages = computed(() => stagesOf(head, arrays, state.sample.value, state.head.value));
    const byName = computed(() => new Map(stages.value.map((each) => [each.name, each])));
    // Inside another page stages that change nothing are left out.
    const current = computed(() => {
      const stage = byName.value.get(state.stage.value)!;
      return state.embed.value ? byName.value.get(origin(byName.value, stage))! : stage;
    });
    const shown = computed(() => state.hovered.value ?? state.cellOf(current.value));
    const told = computed(() => {
      const { stage, row, column } = shown.value;
      return arithmeticOf(byName.value, data, state.head.value, stage, row, column, changed);
    });
    return { stages, byName, current, shown, told };
  }, [head, arrays, data, state]);
  const marks = useMemo(
    () => computed<Marks>(() => ({ cell: shown.value, origins: told.value.origins })),
    [shown, told],
  );
  const all = byName.value;
  const embed = state.embed.value;
  const listed = stages.value.filter(({ sameAs }) => !embed || sameAs === null);
  // Of the last query, since a cache has what the first ones are made of.
  const operands = useMemo(() => {
    const made = ({ name, rows }: Stage) =>
      arithmeticOf(all, data, state.head.value, name, rows - 1, 0).origins.map(({ stage }) =>
        embed ? origin(all, all.get(stage)!) : stage,
      );
    return new Map([...all.values()].map((each) => [each.name, made(each)]));
  }, [all, data, state, embed]);
  const stage = current.value;
  const at = listed.indexOf(stage);
  const go = (to: number) => {
    state.stage.value = listed[Math.max(0, Math.min(to, listed.length - 1))]!.name;
    state.hovered.value = null;
  };
  const root = useRef<HTMLElement>(null);
  const graph = useRef<HTMLDivElement>(null);
  useKeys(root, {
    ArrowLeft: () => go(at - 1),
    ArrowRight: () => go(at + 1),
    ArrowUp: () => state.down(stage, -1),
    ArrowDown: () => state.down(stage, 1),
    "Shift ArrowLeft": () => state.along(stage, -1),
    "Shift ArrowRight": () => state.along(stage, 1),
    Home: () => state.setQuery(0),
    End: () => state.setQuery(state.queries - 1),
  });
  // biome-ignore lint/correctness/useExhaustiveDependencies: the stage that is looked at is in sight.
  useEffect(() => {
    const place = graph.current!;
    const chip = place.querySelector<HTMLElement>("li:has([aria-current])")!;
    place.scrollLeft = chip.offsetLeft - place.clientWidth / 3;
  }, [stage]);
  const shownStages = [...operands.get(stage.name)!.map((name) => all.get(name)!), stage];
  const masked = all.get("masked_scores")!;
  const turn = (sign: string, to: number, words: string, key: string) => (
    <button
      type="button"
      class="ch-button"
      onClick={() => go(to)}
      disabled={!listed[to]}
      aria-keyshortcuts={key}
      aria-label={words}
    >
      {sign}
    </button>
  );
  return (
    <main class="ch-steps" ref={root}>
      <Controls data={data} state={state} />
      <nav class="ch-st-rail" aria-label="Stages">
        {turn("‹", at - 1, "The stage before", "ArrowLeft")}
        <Graph
          stages={listed}
          operands={operands}
          current={stage.name}
          wrong={wrongOf(data)}
          go={go}
          at={graph}
        />
        {turn("›", at + 1, "The next stage", "ArrowRight")}
      </nav>
      <div class="ch-st-beside">
        <Told told={told.value} data={data} />
        <div class="ch-st-strip">
          {shownStages.map((each) => (
            <Panel
              key={each.name}
              stage={each}
              data={data}
              state={state}
              masked={masked}
              marks={marks}
              current={each === stage}
              onCurrent={() => go(listed.indexOf(each))}
            />
          ))}
          {stage.expected && (
            <Panel
              stage={{
                ...stage,
                ...stage.expected,
                expected: null,
              }}
              title={`${stage.name}, as expected`}
              data={data}
              state={state}
              masked={masked}
              marks={marks}
              current={false}
            />
          )}
        </div>
      </div>
      <Legend state={state} />
    </main>
  );
}

function Legend({ state }: { state: State }) {
  const { theme } = useLook();
  return (
    <p class="ch-st-legend">
      <span class="ch-st-swatch ch-st-above" /> above 0 <span class="ch-st-swatch ch-st-below" />{" "}
      below 0, the stronger the farther from it{" "}
      <span class="ch-st-swatch" style={{ background: scale(theme.value) }} /> weights from 0 to 1
      {state.keys > TOKENS && ", by their root"} <span class="ch-st-swatch ch-st-hidden" /> hidden
      by the mask
    </p>
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
      <Pick name="Head" all={data.heads} at={state.head} />
      <Pick name="Sample" all={data.samples} at={state.sample} />
    </div>
  );
}

function Pick({ name, all, at }: { name: string; all: number[]; at: Signal<number> }) {
  if (all.length < 2) return null;
  return (
    <label class="ch-st-control">
      <span>{name}</span>
      <Choice
        name={name}
        value={String(at.value)}
        all={Object.fromEntries(all.map((each, place) => [place, String(each)]))}
        onChoice={(to) => (at.value = Number(to))}
      />
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
